"""Events as they come out of messages, and as Arrow.

A row is one event with its fields still as they were on the wire; an ``EventBatch`` is made of
many rows at once, column by column. What a message has beyond an event of the log is kept in
properties, by the rule of ``amqp.event_properties``.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from leasehold.azure.amqp.event_properties import Pairs, body_of, pairs_of
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import MESSAGE_ANNOTATIONS, sections
from leasehold.azure.amqp.values import decode
from leasehold.azure.eventhubs.fast_decode import ENQUEUED, KEY, NUMBER, OFFSET
from leasehold.events.event import STORED_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAP = STORED_SCHEMA.field("properties").type
_MICROSECONDS = pa.timestamp("us", "UTC")
_MANY = 4096
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_ROW_BYTES = 256
RowTuple: TypeAlias = "tuple[bytes, bytes, bytes, bytes, bytes | None, Pairs | None]"


class EventRow(NamedTuple):
    """One event. Numbers have 8 bytes, the largest first; ``pairs`` are its properties."""

    number: bytes
    enqueued: bytes
    offset: bytes
    body: bytes
    key: bytes | None = None
    pairs: Pairs | None = None


def read_row(message: bytes) -> EventRow:
    """The event in a message of any form.

    Raises:
        AmqpFault: it is damaged, or lacks the annotations that every event of a hub has.
    """
    found = list(sections(message))
    notes: dict[object, object] = {}
    for code, _, value_at, _ in found:
        if code == MESSAGE_ANNOTATIONS:
            value, _ = decode(message, value_at)
            notes = value if isinstance(value, dict) else {}
    number, enqueued, key = notes.get(NUMBER), notes.get(ENQUEUED), notes.get(KEY)
    if not isinstance(number, int) or not isinstance(enqueued, int):
        raise AmqpFault("an event came without its sequence number or its time")
    return EventRow(
        number=_eight(number),
        enqueued=_eight(enqueued),
        offset=str(notes.get(OFFSET, "")).encode(),
        body=body_of(message, found),
        key=key.encode() if isinstance(key, str) else None,
        pairs=pairs_of(message, found),
    )


def batch_of(payload: bytes) -> pa.RecordBatch:
    """The events in an Arrow batch of a server, which may be anybody: all of it is looked at.

    Raises:
        AmqpFault: it is no such batch, is damaged, or is much bigger than its bytes.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), STORED_SCHEMA)
        batch.validate(full=True)  # else a place beyond its bytes would be read from elsewhere
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise AmqpFault(f"a batch of events can not be read: {error}") from error
    if batch.get_total_buffer_size() > len(payload):
        raise AmqpFault("a batch of events is bigger than its bytes: compression was not agreed on")
    for field, column in zip(STORED_SCHEMA, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise AmqpFault(f"a batch of events has one without {field.name!r}")
    return batch


def arrow_of(rows: Sequence[EventRow | RowTuple]) -> pa.RecordBatch:
    """The rows as a batch of ``STORED_SCHEMA``; at least one.

    Raises:
        AmqpFault: the time of an event is none of a calendar.
    """
    count = len(rows)
    numbers, enqueued, offsets, bodies, keys, pairs = zip(*rows, strict=True)
    moments = _longs(enqueued)
    if min(moments) < _FIRST_MS or max(moments) > _LAST_MS:
        raise AmqpFault("the time of an event lies in no year from 1 to 9999")
    times = array("q", [1000 * ms for ms in moments])
    return pa.RecordBatch.from_arrays(
        [
            _whole(pa.int64(), _longs(numbers)),
            _whole(pa.int64(), _offsets(offsets)),
            _whole(_MICROSECONDS, times),
            _keys(keys),
            _bodies(bodies),
            _properties(offsets, pairs),
            _zeros(max(count, _MANY)).slice(0, count),
        ],
        schema=STORED_SCHEMA,
    )


def size_of(row: EventRow | RowTuple) -> int:
    """About how many bytes of memory a row takes."""
    return _ROW_BYTES + len(row[3])


# --------------------------------------------------------------------- columns


def _longs(values: Sequence[bytes]) -> array[int]:
    found = array("q", b"".join(values))
    found.byteswap()
    return found


def _whole(kind: pa.DataType, values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _offsets(offsets: Sequence[bytes]) -> array[int]:
    """As numbers; -1 for those of a hub whose offsets are text."""
    try:
        return array("q", map(int, offsets))
    except (ValueError, OverflowError):
        return array("q", map(_offset, offsets))


def _offset(text: bytes) -> int:
    is_number = text.isdigit() and int(text) < 1 << 63
    return int(text) if is_number else -1


def _keys(keys: Sequence[bytes | None]) -> pa.Array:
    count = len(keys)
    if keys.count(None) == count:
        return _no_keys(max(count, _MANY)).slice(0, count)
    present = [key for key in keys if key is not None]
    whole = b"".join(present)
    if len(present) == count and whole.isascii():  # then each of them is UTF-8
        # By its bytes: the first pa.array of a process loads pandas, where that is installed.
        places = array("i", accumulate(map(len, present), initial=0))
        return pa.Array.from_buffers(
            pa.utf8(), count, [None, pa.py_buffer(places), pa.py_buffer(whole)]
        )
    texts = [None if key is None else key.decode(errors="replace") for key in keys]
    return pa.array(texts, pa.utf8())


def _bodies(bodies: Sequence[bytes]) -> pa.Array:
    places = array("i", accumulate(map(len, bodies), initial=0))
    parts = [None, pa.py_buffer(places), pa.py_buffer(b"".join(bodies))]
    return pa.Array.from_buffers(pa.binary(), len(bodies), parts)


def _properties(offsets: Sequence[bytes], pairs: Sequence[Pairs | None]) -> pa.Array:
    """The properties; with an offset that is no number among them, since it has no column."""
    count = len(pairs)
    has_numbers = b"".join(offsets).isdigit()
    if has_numbers and pairs.count(None) == count:
        return _no_properties(max(count, _MANY)).slice(0, count)
    if not has_numbers:
        pairs = [_with_offset(*both) for both in zip(offsets, pairs, strict=True)]
    return pa.array(pairs, _MAP)


def _with_offset(offset: bytes, pairs: Pairs | None) -> Pairs | None:
    if not offset or _offset(offset) >= 0:
        return pairs
    return (*(pairs or ()), (OFFSET, offset.decode(errors="replace")))


def _eight(number: int) -> bytes:
    try:
        return number.to_bytes(8, "big", signed=True)
    except OverflowError as error:
        raise AmqpFault(f"{number} is no number that an event can have") from error


@lru_cache(maxsize=4)
def _zeros(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(bytes(8 * count))])


@lru_cache(maxsize=4)
def _no_keys(count: int) -> pa.Array:
    return pa.nulls(count, pa.utf8())


@lru_cache(maxsize=4)
def _no_properties(count: int) -> pa.Array:
    return pa.nulls(count, _MAP)
