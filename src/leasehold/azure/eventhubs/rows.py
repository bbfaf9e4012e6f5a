"""Turn messages into rows, and rows into Arrow batches.

A row is one event with its fields still encoded; a batch is made of many rows, column by column.
What a message has beyond an event of the log is kept in properties, as ``amqp.event_properties``
describes.
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
from leasehold.azure.eventhubs.fast_decode import (
    ENQUEUED_TIME,
    OFFSET,
    PARTITION_KEY,
    SEQUENCE_NUMBER,
)
from leasehold.events.event import STORED_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAP = STORED_SCHEMA.field("properties").type
_MICROSECONDS = pa.timestamp("us", "UTC")
_CACHED_ROWS = 4096
_MIN_MS, _MAX_MS = -62_135_596_800_000, 253_402_300_799_999
_ROW_BYTES = 256
RowTuple: TypeAlias = "tuple[bytes, bytes, bytes, bytes, bytes | None, Pairs | None]"


class EventRow(NamedTuple):
    """One event. Numbers have 8 bytes, big-endian; ``pairs`` are its properties."""

    number: bytes
    enqueued: bytes
    offset: bytes
    body: bytes
    key: bytes | None = None
    pairs: Pairs | None = None


def read_row(message: bytes) -> EventRow:
    """Decode the event in a message of any form."""
    found = list(sections(message))
    annotations: dict[object, object] = {}
    for code, _, value_at, _ in found:
        if code == MESSAGE_ANNOTATIONS:
            value, _ = decode(message, value_at)
            annotations = value if isinstance(value, dict) else {}
    number, enqueued = annotations.get(SEQUENCE_NUMBER), annotations.get(ENQUEUED_TIME)
    key = annotations.get(PARTITION_KEY)
    if not isinstance(number, int) or not isinstance(enqueued, int):
        raise AmqpFault("an event came without its sequence number or its time")
    return EventRow(
        number=_int64_bytes(number),
        enqueued=_int64_bytes(enqueued),
        offset=str(annotations.get(OFFSET, "")).encode(),
        body=body_of(message, found),
        key=key.encode() if isinstance(key, str) else None,
        pairs=pairs_of(message, found),
    )


def batch_of(payload: bytes) -> pa.RecordBatch:
    """Read an Arrow batch from a server; it is not trusted, so all of it is validated."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), STORED_SCHEMA)
        batch.validate(full=True)  # an offset beyond its bytes would read other memory
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise AmqpFault(f"a batch of events can not be read: {error}") from error
    if batch.get_total_buffer_size() > len(payload):
        raise AmqpFault("a batch of events is bigger than its bytes: compression was not agreed on")
    for field, column in zip(STORED_SCHEMA, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise AmqpFault(f"a batch of events has one without {field.name!r}")
    return batch


def arrow_of(rows: Sequence[EventRow | RowTuple]) -> pa.RecordBatch:
    """Make a batch of ``STORED_SCHEMA`` from at least one row."""
    count = len(rows)
    numbers, enqueued, offsets, bodies, keys, pairs = zip(*rows, strict=True)
    times_ms = _int64s(enqueued)
    if min(times_ms) < _MIN_MS or max(times_ms) > _MAX_MS:
        raise AmqpFault("the time of an event lies in no year from 1 to 9999")
    times = array("q", [1000 * ms for ms in times_ms])
    return pa.RecordBatch.from_arrays(
        [
            _primitive_array(pa.int64(), _int64s(numbers)),
            _primitive_array(pa.int64(), _offsets(offsets)),
            _primitive_array(_MICROSECONDS, times),
            _keys(keys),
            _bodies(bodies),
            _properties(offsets, pairs),
            _zeros(max(count, _CACHED_ROWS)).slice(0, count),
        ],
        schema=STORED_SCHEMA,
    )


def size_of(row: EventRow | RowTuple) -> int:
    """Estimate how many bytes of memory a row takes."""
    return _ROW_BYTES + len(row[3])


# --------------------------------------------------------------------- columns


def _int64s(values: Sequence[bytes]) -> array[int]:
    found = array("q", b"".join(values))
    found.byteswap()
    return found


def _primitive_array(kind: pa.DataType, values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _offsets(offsets: Sequence[bytes]) -> array[int]:
    """Return offsets as numbers; -1 for those of a hub whose offsets are text."""
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
        return _no_keys(max(count, _CACHED_ROWS)).slice(0, count)
    present = [key for key in keys if key is not None]
    whole = b"".join(present)
    if len(present) == count and whole.isascii():  # so each key is valid UTF-8
        # From buffers: the first pa.array of a process loads pandas, if that is installed.
        value_offsets = array("i", accumulate(map(len, present), initial=0))
        return pa.Array.from_buffers(
            pa.utf8(), count, [None, pa.py_buffer(value_offsets), pa.py_buffer(whole)]
        )
    texts = [None if key is None else key.decode(errors="replace") for key in keys]
    return pa.array(texts, pa.utf8())


def _bodies(bodies: Sequence[bytes]) -> pa.Array:
    value_offsets = array("i", accumulate(map(len, bodies), initial=0))
    parts = [None, pa.py_buffer(value_offsets), pa.py_buffer(b"".join(bodies))]
    return pa.Array.from_buffers(pa.binary(), len(bodies), parts)


def _properties(offsets: Sequence[bytes], pairs: Sequence[Pairs | None]) -> pa.Array:
    """Return the properties; an offset that is not a number is one, since it has no column."""
    count = len(pairs)
    has_numbers = b"".join(offsets).isdigit()
    if has_numbers and pairs.count(None) == count:
        return _no_properties(max(count, _CACHED_ROWS)).slice(0, count)
    if not has_numbers:
        pairs = [_with_offset(*both) for both in zip(offsets, pairs, strict=True)]
    return pa.array(pairs, _MAP)


def _with_offset(offset: bytes, pairs: Pairs | None) -> Pairs | None:
    if not offset or _offset(offset) >= 0:
        return pairs
    return (*(pairs or ()), (OFFSET, offset.decode(errors="replace")))


def _int64_bytes(number: int) -> bytes:
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
