"""Start positions as a hub takes them: a selector, and the sequence number if it is known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasehold.errors import BeyondEnd, Trimmed
from leasehold.events.source import PartitionEnds
from leasehold.events.start import Start, StartKind

if TYPE_CHECKING:
    from collections.abc import Mapping

_EARLIEST_SELECTOR = "amqp.annotation.x-opt-offset > '-1'"
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS = 253_402_300_799_999  # of the year 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What the hub reports of a partition."""

    ends: PartitionEnds
    last_offset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedStart:
    """A start position. ``position`` is None if only the first event shows its number.

    ``allows_gap``: the first event may have a higher number than ``position``. ``since_us``: of the
    first events, those that were stored earlier are skipped.
    """

    selector: str
    position: int | None
    allows_gap: bool = False
    since_us: int = 0


def facts_of(answer: Mapping[object, object]) -> PartitionFacts:
    """Read the answer of the management node about a partition."""
    begin = _number(answer.get("begin_sequence_number"))
    last = _number(answer.get("last_enqueued_sequence_number"))
    empty = answer.get("is_partition_empty") is True or begin < 0 or begin > last
    at_ms = _number(answer.get("last_enqueued_time_utc"))
    return PartitionFacts(
        ends=PartitionEnds(
            first=last + 1 if empty else begin,
            next=last + 1,
            last_enqueued_at=(
                _UNIX_EPOCH + timedelta(milliseconds=at_ms) if 0 <= at_ms <= _MAX_MS else None
            ),
        ),
        last_offset=str(answer.get("last_enqueued_offset") or ""),
    )


def start_at(position: int) -> ResolvedStart:
    """Return the start at the event with this number."""
    selector = f"amqp.annotation.x-opt-sequence-number > '{position - 1}'"
    return ResolvedStart(selector=selector, position=position)


def resolve_start(
    start: Start, facts: PartitionFacts, *, partition: str, hub: str
) -> ResolvedStart:
    """Resolve ``start``; raise ``Trimmed`` or ``BeyondEnd`` for an event that is not there."""
    ends = facts.ends
    match start.kind:
        case StartKind.EARLIEST:
            return ResolvedStart(selector=_EARLIEST_SELECTOR, position=ends.first, allows_gap=True)
        case StartKind.LATEST:
            return start_at(ends.next)
        case StartKind.SEQUENCE:
            check_in_range(start.value, ends, partition=partition, hub=hub)
            return start_at(start.value)
        case StartKind.TIME:
            return _by_time(start.value, ends)
        case StartKind.OFFSET:
            return _by_offset(start.value, facts, partition=partition, hub=hub)


def check_in_range(number: int, ends: PartitionEnds, *, partition: str, hub: str) -> None:
    """Raise ``Trimmed`` or ``BeyondEnd``, unless this event exists or is the next one."""
    if number < ends.first:
        raise Trimmed(
            f"event {number} of partition {partition} of {hub!r} was removed by retention: the "
            f"first that is kept is {ends.first}",
            earliest=ends.first,
        )
    if number > ends.next:
        raise _beyond(f"event {number}", ends, partition, hub)


def _by_time(at_us: int, ends: PartitionEnds) -> ResolvedStart:
    last = ends.last_enqueued_at
    at_ms = at_us // 1000  # the hub only has milliseconds
    if (
        ends.first == ends.next
        or last is None
        or (last - _UNIX_EPOCH) < timedelta(milliseconds=at_ms)
    ):
        return start_at(ends.next)
    selector = f"amqp.annotation.x-opt-enqueued-time >= '{at_ms}'"
    return ResolvedStart(selector=selector, position=None, allows_gap=True, since_us=at_us)


def _by_offset(offset: int, facts: PartitionFacts, *, partition: str, hub: str) -> ResolvedStart:
    if facts.ends.first == facts.ends.next and not offset:
        return start_at(facts.ends.next)
    if facts.last_offset.removeprefix("-").isdigit() and offset > int(facts.last_offset):
        raise _beyond(f"offset {offset}", facts.ends, partition, hub)
    selector = f"amqp.annotation.x-opt-offset >= '{offset}'"
    return ResolvedStart(selector=selector, position=None, allows_gap=True)


def _beyond(what: str, ends: PartitionEnds, partition: str, hub: str) -> BeyondEnd:
    return BeyondEnd(
        f"{what} lies beyond the end of partition {partition} of {hub!r}: the next event is "
        f"{ends.next}",
        end=ends.next,
    )


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else -1
