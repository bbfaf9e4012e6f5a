"""Where a receiver begins, in the words of the hub: a selector, and the number if it is known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasehold.errors import BeyondEnd, Trimmed
from leasehold.events.source import PartitionEnds
from leasehold.events.start import Start, StartKind

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST = "amqp.annotation.x-opt-offset > '-1'"
_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999  # of the year 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What the hub says of a partition."""

    ends: PartitionEnds
    last_offset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlace:
    """``position`` is None where only the first event will tell. ``loose``: it may lie ahead.

    ``since_us``: of the first events, those that were stored before are passed over.
    """

    selector: str
    position: int | None
    loose: bool = False
    since_us: int = 0


def facts_of(answer: Mapping[object, object]) -> PartitionFacts:
    """The answer of the management node about a partition."""
    begin = _number(answer.get("begin_sequence_number"))
    last = _number(answer.get("last_enqueued_sequence_number"))
    empty = answer.get("is_partition_empty") is True or begin < 0 or begin > last
    at_ms = _number(answer.get("last_enqueued_time_utc"))
    return PartitionFacts(
        ends=PartitionEnds(
            first=last + 1 if empty else begin,
            next=last + 1,
            last_enqueued_at=(
                _BEGAN + timedelta(milliseconds=at_ms) if 0 <= at_ms <= _LAST_MS else None
            ),
        ),
        last_offset=str(answer.get("last_enqueued_offset") or ""),
    )


def after(position: int) -> HubPlace:
    """Begin with the event that has this number."""
    selector = f"amqp.annotation.x-opt-sequence-number > '{position - 1}'"
    return HubPlace(selector=selector, position=position)


def place_of(start: Start, facts: PartitionFacts, *, partition: str, hub: str) -> HubPlace:
    """What ``start`` means now.

    Raises:
        Trimmed: retention has removed the event.
        BeyondEnd: it lies beyond the end.
    """
    ends = facts.ends
    match start.kind:
        case StartKind.EARLIEST:
            return HubPlace(selector=_FIRST, position=ends.first, loose=True)
        case StartKind.LATEST:
            return after(ends.next)
        case StartKind.SEQUENCE:
            check(start.value, ends, partition=partition, hub=hub)
            return after(start.value)
        case StartKind.TIME:
            return _by_time(start.value, ends)
        case StartKind.OFFSET:
            return _by_offset(start.value, facts, partition=partition, hub=hub)


def check(number: int, ends: PartitionEnds, *, partition: str, hub: str) -> None:
    """Return if this is the number of an event that is there, or of the next one.

    Raises:
        Trimmed: retention has removed it.
        BeyondEnd: it lies beyond the end.
    """
    if number < ends.first:
        raise Trimmed(
            f"event {number} of partition {partition} of {hub!r} was removed by retention: the "
            f"first that is kept is {ends.first}",
            earliest=ends.first,
        )
    if number > ends.next:
        raise _beyond(f"event {number}", ends, partition, hub)


def _by_time(at_us: int, ends: PartitionEnds) -> HubPlace:
    last = ends.last_enqueued_at
    at_ms = at_us // 1000  # the hub knows only these
    if ends.first == ends.next or last is None or (last - _BEGAN) < timedelta(milliseconds=at_ms):
        return after(ends.next)
    selector = f"amqp.annotation.x-opt-enqueued-time >= '{at_ms}'"
    return HubPlace(selector=selector, position=None, loose=True, since_us=at_us)


def _by_offset(offset: int, facts: PartitionFacts, *, partition: str, hub: str) -> HubPlace:
    if facts.ends.first == facts.ends.next and not offset:
        return after(facts.ends.next)
    if facts.last_offset.removeprefix("-").isdigit() and offset > int(facts.last_offset):
        raise _beyond(f"offset {offset}", facts.ends, partition, hub)
    selector = f"amqp.annotation.x-opt-offset >= '{offset}'"
    return HubPlace(selector=selector, position=None, loose=True)


def _beyond(what: str, ends: PartitionEnds, partition: str, hub: str) -> BeyondEnd:
    return BeyondEnd(
        f"{what} lies beyond the end of partition {partition} of {hub!r}: the next event is "
        f"{ends.next}",
        end=ends.next,
    )


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else -1
