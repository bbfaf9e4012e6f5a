"""What all stores have in common: limits, checks of arguments, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from leasehold.core.lease_timing import MAX_LEASE_S, MIN_LEASE_S
from leasehold.errors import InvalidName, LeaseLost, StoreUnusable, UnknownResource, UsageError
from leasehold.model import EndReason, Lease, Note, Position
from leasehold.names import check_group, check_key, check_name, seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from leasehold.model import Ownership

HISTORY_LIMIT = 100
# A release succeeds if the term was released before, or has ended by time.
RELEASED_BY = (EndReason.RELEASED, EndReason.LAPSED, EndReason.EXPIRED, EndReason.BROKEN)


def revoked_as(*, runs: bool, lapsed: bool) -> EndReason:
    """Return why the terms of a lease end when it is revoked."""
    if not runs:
        return EndReason.EXPIRED
    return EndReason.LAPSED if lapsed else EndReason.RELEASED


# Whose term a reset is in the history.
OPERATOR = "operator"
_HOUR_S = 3600.0
_BIGGEST_NUMBER = 2**63 - 1


def purge_after_s(group: str) -> float:
    """Return how long an ended lease is remembered.

    In a group, longer than any lease can last: a member that was paused for that time has lost its
    own lease and starts again from nothing, so no member can miss the end. A lease without a group
    has no watchers.
    """
    return MAX_LEASE_S + _HOUR_S if group else _HOUR_S


def checked_keys(keys: Sequence[str]) -> list[str]:
    """Return the keys, checked and without duplicates."""
    if isinstance(keys, str):
        raise InvalidName(f"give a list of keys, such as [{keys[:80]!r}], not one text")
    return list(dict.fromkeys(check_key(key) for key in keys))


def checked_lease(*, holder: str, token: str, group: str, duration: timedelta) -> Lease:
    """Return the requested lease, checked."""
    check_name(holder, what="holder")
    check_name(token, what="token")
    if group:
        check_group(group)
    duration_s = seconds_of(duration, what="lease", min_s=MIN_LEASE_S, max_s=MAX_LEASE_S)
    return Lease(holder=holder, token=token, group=group, duration_s=duration_s)


def check_hand_over_request(key: str, *, epoch: object, to: str) -> None:
    """Check the arguments of ``Store.request_hand_over``."""
    check_key(key)
    check_name(to, what="holder")
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch <= _BIGGEST_NUMBER:
        raise UsageError(
            f"epoch must be a whole number from 0 to 2**63 - 1, as the key shows it, not {epoch!r}"
        )


def checked_positions(positions: object) -> dict[str, Position | None]:
    """Return the positions by key, checked so that every store can keep them."""
    if not isinstance(positions, Mapping):
        raise UsageError(f"give positions by key, such as {{key: position}}, not {positions!r}")
    return {check_key(key): _checked_position(key, each) for key, each in positions.items()}


def checked_notes(ownerships: Sequence[Ownership], notes: object) -> Mapping[str, str]:
    """Return the notes by key, checked so that every store can keep them."""
    if not notes:
        return {}
    if not isinstance(notes, Mapping):
        raise UsageError(f"give notes by key, such as {{key: note}}, not {notes!r}")
    owned = {each.key: each for each in ownerships}
    for key, text in notes.items():
        if key not in owned:
            raise UsageError(
                f"there is a note for {key!r}, which is not released in this call: "
                "give notes only for the keys of the ownerships"
            )
        Note(ownership=owned[key], text=text)
    return notes


def _checked_position(key: str, position: object) -> Position | None:
    if position is None:
        return None
    if not isinstance(position, Position):
        raise UsageError(f"{key}: a position is Position(sequence_number=…), not {position!r}")
    if position.sequence_number > _BIGGEST_NUMBER:
        raise UsageError(f"{key}: sequence_number may be 2**63 - 1 at most: {position!r}")
    texts: dict[str, object] = {"offset": position.offset, "stream": position.stream}
    for what, text in texts.items():
        if not isinstance(text, str) or "\0" in text or not _is_unicode(text):
            raise UsageError(
                f"{key}: {what} must be text without NUL and lone surrogates: {text!r}"
            )
    return position


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def same_position(one: Position | None, other: Position | None) -> bool:
    """Return whether two positions are equal, offset and stream included; ``==`` ignores them."""
    if one is None or other is None:
        return one is other
    return (one.sequence_number, one.stored_offset) == (other.sequence_number, other.stored_offset)


def limit_s(limit: timedelta, *, what: str) -> float:
    """Return a waiting time in seconds, checked: zero up to the longest lease."""
    return seconds_of(limit, what=what, min_s=0.0, max_s=MAX_LEASE_S)


def lost_lease(holder: str, reason: str) -> LeaseLost:
    """Return the error for a lease that has ended."""
    return LeaseLost(
        f"the lease of {holder} is gone ({reason}): stop the work, then join again "
        "under a new holder id",
        key=holder,
        reason=reason,
    )


def no_store_yet(where: str) -> UsageError:
    """Return the error for a place without a store, opened by a caller that may not create one."""
    return UsageError(
        f"there is no store at {where} yet: check the URL. A program that writes creates it, such "
        "as `leasehold log create`, `leasehold process`, `leasehold run` or `leasehold worker`"
    )


def older_schema(where: str, *, found: int, needed: int) -> StoreUnusable:
    """Return the error for an older schema, opened by a caller that may not upgrade it."""
    return StoreUnusable(
        f"the store at {where} has the schema of an older Leasehold ({found}, this one needs "
        f"{needed}), which a command that only reads does not change. Upgrade it by starting a "
        "program of this version that writes, such as `leasehold log create`, `leasehold process`, "
        "`leasehold run` or `leasehold worker`; or read it with the older version"
    )


def unknown_key(key: str) -> UnknownResource:
    """Return the error for a key that was not declared, or was forgotten."""
    return UnknownResource(f"{key} is not declared in this store")
