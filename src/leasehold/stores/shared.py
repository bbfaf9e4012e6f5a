"""What all stores have in common: limits, checks, and the words of their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.core.timing import LEAST_LEASE_S, MOST_LEASE_S
from leasehold.errors import InvalidName, LeaseLost
from leasehold.model import EndReason, Lease
from leasehold.names import check_group, check_key, check_name, seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

HISTORY_LIMIT = 100
# A release finds its wish fulfilled if it was released before, or if time was faster.
RELEASED_BY = (EndReason.RELEASED, EndReason.EXPIRED, EndReason.BROKEN)
_HOUR_S = 3600.0


def purge_after_s(group: str) -> float:
    """How long an ended lease is remembered.

    In a group for longer than any lease can last: a watcher that slept through that time has
    lost its own lease and starts again from nothing, so nobody can miss the end. Nobody watches
    a lease without a group.
    """
    return MOST_LEASE_S + _HOUR_S if group else _HOUR_S


def checked_keys(keys: Sequence[str]) -> list[str]:
    """The keys, each of them well-formed, none of them twice.

    Raises:
        InvalidName: one of them is no key, or it is one key where a list is wanted.
    """
    if isinstance(keys, str):
        raise InvalidName(f"give a list of keys, such as [{keys[:80]!r}], not one text")
    return list(dict.fromkeys(check_key(key) for key in keys))


def checked_lease(*, holder: str, token: str, group: str, duration: timedelta) -> Lease:
    """The lease that is asked for.

    Raises:
        InvalidName: the holder has no proper name, or the group is no group.
        InvalidDuration: the duration is outside the range, which the message names.
    """
    check_name(holder, what="holder")
    check_name(token, what="token")
    if group:
        check_group(group)
    duration_s = seconds_of(duration, what="lease", least_s=LEAST_LEASE_S, most_s=MOST_LEASE_S)
    return Lease(holder=holder, token=token, group=group, duration_s=duration_s)


def limit_s(limit: timedelta, *, what: str) -> float:
    """A waiting time in seconds: zero up to the longest lease."""
    return seconds_of(limit, what=what, least_s=0.0, most_s=MOST_LEASE_S)


def lost_lease(holder: str, reason: str) -> LeaseLost:
    """The error for a lease that the store does not honour any more."""
    return LeaseLost(
        f"the lease of {holder} is gone ({reason}): stop the work, then join again "
        "under a new holder id",
        key=holder,
        reason=reason,
    )
