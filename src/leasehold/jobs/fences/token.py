"""The fencing epoch of a writer, and the error of a write that is refused."""

from __future__ import annotations

from typing import Protocol

from leasehold.errors import FencedWrite, UsageError

_BIGGEST = 2**63 - 1


class HasEpoch(Protocol):
    """What has a fencing epoch: a reservation, or a run of a worker."""

    @property
    def epoch(self) -> int:
        """Higher than that of every earlier holder."""
        ...


def epoch_of(epoch: int | HasEpoch) -> int:
    """The number itself.

    Raises:
        UsageError: it is no number from 1 up, and has none.
    """
    number: object = getattr(epoch, "epoch", epoch)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _BIGGEST:
        raise UsageError(
            f"the epoch of a reservation is a number from 1 up, not {number!r}: "
            "give the reservation, the run, or the number in LEASEHOLD_EPOCH"
        )
    return number


def refusal(what: str, *, epoch: int, highest: int, key: str, made_anew: str) -> FencedWrite:
    """Say that ``what`` was refused, why, and what to do; ``made_anew`` is the odd case."""
    return FencedWrite(
        f"{what} was refused, and nothing was changed: it came with epoch {epoch}, and epoch "
        f"{highest} has been here since. Somebody else has the job now: stop, and leave the work "
        f"to that one. If the store of the leases was made anew, so that its epochs began again at "
        f"1: {made_anew}",
        key=key,
        epoch=epoch,
        reason="fenced",
    )
