"""The fencing epoch of a writer, and the error for a write that is refused."""

from __future__ import annotations

from typing import Protocol

from leasehold.errors import FencedWrite, UsageError

_MAX_EPOCH = 2**63 - 1


class HasEpoch(Protocol):
    """An object with an epoch: a reservation, or a run of a worker."""

    @property
    def epoch(self) -> int:
        """Higher than that of every earlier holder."""
        ...


def epoch_number(epoch: int | HasEpoch) -> int:
    """Return the epoch as a number, checked."""
    number: object = getattr(epoch, "epoch", epoch)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _MAX_EPOCH:
        raise UsageError(
            f"the epoch of a reservation is a number from 1 up, not {number!r}: "
            "give the reservation, the run, or the number in LEASEHOLD_EPOCH"
        )
    return number


def fenced_write(
    what: str, *, epoch: int, highest: int, key: str, if_recreated: str
) -> FencedWrite:
    """Make the error for ``what``; ``if_recreated`` is the advice if the store was recreated."""
    return FencedWrite(
        f"{what} was refused, and nothing was changed: it came with epoch {epoch}, and epoch "
        f"{highest} has been here since. Somebody else has the job now: stop, and leave the work "
        f"to that one. If the store of the leases was made anew, so that its epochs began again at "
        f"1: {if_recreated}",
        key=key,
        epoch=epoch,
        reason="fenced",
    )
