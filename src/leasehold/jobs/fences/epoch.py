"""The epoch of a reservation as a fencing token, and the error for one that is too old."""

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


def epoch_number(token: int | HasEpoch) -> int:
    """Return the epoch as a number, checked."""
    number: object = getattr(token, "epoch", token)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _MAX_EPOCH:
        raise UsageError(
            f"a fencing token is the epoch of a reservation, a number from 1 up, not {number!r}: "
            "give the reservation, the run, or the number in LEASEHOLD_TOKEN"
        )
    return number


def fenced_write(what: str, *, token: int, seen: int, key: str, if_recreated: str) -> FencedWrite:
    """Make the error for ``what``; ``if_recreated`` is the advice if the store was recreated."""
    return FencedWrite(
        f"{what} was refused, and nothing was changed: it came with token {token}, and token "
        f"{seen} has been here since. Somebody else has the job now: stop, and leave the work to "
        f"that one. If the store of the leases was made anew, so that its epochs began again at 1: "
        f"{if_recreated}",
        key=key,
        epoch=token,
        reason="fenced",
    )
