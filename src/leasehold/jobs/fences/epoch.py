"""The fencing token of whoever writes: the epoch of a reservation, and the words of a refusal."""

from __future__ import annotations

from typing import Protocol

from leasehold.errors import FencedWrite, UsageError

_MAX_EPOCH = 2**63 - 1


class HasEpoch(Protocol):
    """What has a fencing token: a reservation, or a run of a worker."""

    @property
    def epoch(self) -> int:
        """Higher than that of every earlier holder."""
        ...


def epoch_number(token: int | HasEpoch) -> int:
    """The number itself.

    Raises:
        UsageError: it is no number from 1 up, and has none.
    """
    number: object = getattr(token, "epoch", token)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _MAX_EPOCH:
        raise UsageError(
            f"a fencing token is the epoch of a reservation, a number from 1 up, not {number!r}: "
            "give the reservation, the run, or the number in LEASEHOLD_TOKEN"
        )
    return number


def fenced_write(what: str, *, token: int, seen: int, key: str, made_anew: str) -> FencedWrite:
    """Say that ``what`` was refused, why, and what to do; ``made_anew`` is the odd case."""
    return FencedWrite(
        f"{what} was refused, and nothing was changed: it came with token {token}, and token "
        f"{seen} has been here since. Somebody else has the job now: stop, and leave the work to "
        f"that one. If the store of the leases was made anew, so that its epochs began again at 1: "
        f"{made_anew}",
        key=key,
        epoch=token,
        reason="fenced",
    )
