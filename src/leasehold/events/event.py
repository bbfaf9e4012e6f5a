"""Events as they are sent and as they are received, one by one or as Arrow.

``sent_batch`` makes one record batch of ``SENT_SCHEMA`` from whatever was handed in, or refuses it
with the name of the column that is wrong. What comes back from the log has ``STORED_SCHEMA``; an
``EventBatch`` carries it without copying and makes ``Event`` objects only when asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.errors import UsageError
from leasehold.events.keys import partition_of, split_by_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "SENT_SCHEMA",
    "STORED_SCHEMA",
    "Event",
    "EventBatch",
    "partition_of",
    "sent_batch",
    "split_by_key",
]

_KEY = pa.field("key", pa.utf8())
_BODY = pa.field("body", pa.binary(), nullable=False)
_PROPERTIES = pa.field("properties", pa.map_(pa.utf8(), pa.utf8()))
SENT_SCHEMA = pa.schema([_KEY, _BODY, _PROPERTIES])
STORED_SCHEMA = pa.schema(
    [
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("enqueued_at", pa.timestamp("us", "UTC"), nullable=False),
        _KEY,
        _BODY,
        _PROPERTIES,
        pa.field("epoch", pa.int64(), nullable=False),
    ]
)
_MANY = 4096
_EPOCH_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
_EXPECTED = {
    "key": "text (string), null where there is none",
    "body": "bytes (binary) or text (string), never null",
    "properties": "a map of text to text (map<string, string>), null where there are none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. The fields from ``sequence_number`` on are those of a received one.

    Raises:
        UsageError: the body is not ``bytes``, or the key not ``str``.
    """

    body: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    sequence_number: int = -1
    offset: int = -1
    enqueued_at: datetime | None = None
    epoch: int = 0
    partition: str = ""

    def __post_init__(self) -> None:
        """Refuse what could not be stored, where it was written."""
        if not isinstance(self.body, bytes):
            kind = type(self.body).__name__
            how = 'body="…".encode()' if isinstance(self.body, str) else "body=bytes(…)"
            raise UsageError(f"the body of an event is bytes, not {kind}: write {how}")
        if self.key is not None and not isinstance(self.key, str):
            kind = type(self.key).__name__
            how = "key=….decode()" if isinstance(self.key, bytes) else "key=str(…)"
            raise UsageError(f"the key of an event is text, not {kind}: write {how}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Events of one partition, rising by sequence number: an Arrow batch of ``STORED_SCHEMA``."""

    partition: str
    arrow: pa.RecordBatch

    @property
    def first_sequence(self) -> int:
        """The sequence number of the first event."""
        return int(self.arrow.column(0)[0].as_py())

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last event."""
        return int(self.arrow.column(0)[len(self) - 1].as_py())

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def slice(self, start: int, length: int | None = None) -> EventBatch:
        """Return some of the events, without copying."""
        return EventBatch(partition=self.partition, arrow=self.arrow.slice(start, length))

    def events(self) -> Iterator[Event]:
        """Yield the events one by one, made as they are asked for."""
        numbers, offsets, times, keys, bodies, properties, epochs = self.arrow.columns
        rows = zip(
            numbers.to_pylist(),
            offsets.to_pylist(),
            times.cast(pa.int64()).to_pylist(),
            keys.to_pylist(),
            bodies.to_pylist(),
            properties.to_pylist(),
            epochs.to_pylist(),
            strict=True,
        )
        known_us, at = -1, _EPOCH_BEGAN
        for number, offset, enqueued_us, key, body, pairs, epoch in rows:
            if enqueued_us != known_us:  # many events share their time
                known_us, at = enqueued_us, _EPOCH_BEGAN + timedelta(microseconds=enqueued_us)
            yield Event(
                body=body,
                key=key,
                properties=dict(pairs) if pairs else {},
                sequence_number=number,
                offset=offset,
                enqueued_at=at,
                epoch=epoch,
                partition=self.partition,
            )


def joined(batches: Sequence[EventBatch]) -> EventBatch:
    """Batches of one partition that follow each other, copied into one."""
    table = pa.Table.from_batches([each.arrow for each in batches])
    [arrow] = table.combine_chunks().to_batches()
    return EventBatch(partition=batches[0].partition, arrow=arrow)


def sent_batch(what: Event | Sequence[Event] | pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return one batch of ``SENT_SCHEMA`` with all that was handed in, in its order.

    A table may lack ``key`` and ``properties``; its body may be text, which is stored as UTF-8.
    No row gives no row.
    """
    if isinstance(what, Event):
        return _from_events([what])
    if isinstance(what, pa.RecordBatch | pa.Table):
        return _from_arrow(what)
    if isinstance(what, Sequence) and not isinstance(what, str | bytes | bytearray):
        return _from_events(what)
    kind = type(what).__name__
    raise UsageError(
        f"a {kind} can not be sent: give an Event, a list of them, or an Arrow table or batch"
    )


def _from_events(events: Sequence[Event]) -> pa.RecordBatch:
    try:
        bodies = [each.body for each in events]
        keys = [each.key for each in events]
        pairs = [each.properties for each in events]
    except AttributeError as error:
        other_types = {type(each).__name__ for each in events if type(each) is not Event}
        raise UsageError(
            f"a list to be sent holds {', '.join(sorted(other_types))}: give only Event objects"
        ) from error
    columns = [_column("key", keys), _column("body", bodies)]
    if any(pairs):
        columns.append(_column("properties", _items(pairs)))
        _no_null_items(columns[2])
    else:
        columns.append(_no_properties(len(pairs)))
    return pa.RecordBatch.from_arrays(columns, schema=SENT_SCHEMA)


def _items(pairs: list[Mapping[str, str]]) -> list[list[tuple[str, str]] | None]:
    try:
        return [list(each.items()) if each else None for each in pairs]
    except AttributeError as error:
        raise _wrong_column("properties", "something else") from error


def _column(name: str, values: Sequence[object]) -> pa.Array:
    """Return one column from Python values."""
    try:
        made = pa.array(values, SENT_SCHEMA.field(name).type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _wrong_column(name, f"something else ({error})") from error
    return _in_one_piece(name, made)


def _from_arrow(table: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    unknown = [name for name in table.schema.names if name not in _EXPECTED]
    if unknown or len(set(table.schema.names)) < len(table.schema.names):
        raise UsageError(
            f"columns {', '.join(unknown) or 'of the same name'} can not be sent: an event has "
            "key, body and properties, each once; put anything else into properties"
        )
    if "body" not in table.schema.names:
        raise UsageError(f"the column body is missing: it holds {_EXPECTED['body']}")
    try:
        table.validate(full=True)  # every reader would fail on a key that is not UTF-8
    except pa.ArrowException as error:
        raise UsageError(f"the table can not be sent, its bytes are not sound: {error}") from error
    columns = [_cast_column(table, name) for name in SENT_SCHEMA.names]
    if columns[1].null_count:
        raise _wrong_column("body", f"{columns[1].null_count} nulls")
    _no_null_items(columns[2])
    return pa.RecordBatch.from_arrays(columns, schema=SENT_SCHEMA)


def _cast_column(table: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    """Return the column in the type it is stored in."""
    wanted = SENT_SCHEMA.field(name).type
    if name not in table.schema.names:
        is_map = name == "properties"
        return _no_properties(table.num_rows) if is_map else pa.nulls(table.num_rows, wanted)
    column = table.column(name)
    if column.type != wanted:
        if not _castable(name, column.type):
            raise _wrong_column(name, str(column.type))
        try:
            column = column.cast(wanted)
        except pa.ArrowException as error:
            raise _wrong_column(name, f"{column.type} ({error})") from error
    return _in_one_piece(name, column)


def _castable(name: str, kind: pa.DataType) -> bool:
    """Return whether a cast keeps the meaning: Arrow would also turn numbers into text."""
    if pa.types.is_null(kind):
        return True
    if name == "properties":
        return bool(pa.types.is_map(kind) and _text(kind.key_type) and _text(kind.item_type))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    binary = (
        pa.types.is_large_binary(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )
    return _text(kind) or (name == "body" and binary)


def _text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _in_one_piece(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes > 2**31 - 1:
        raise UsageError(
            f"the column {name} has {column.nbytes} bytes, and 2 GiB is the most that can be sent "
            "at once: send it in parts"
        )
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _no_properties(count: int) -> pa.Array:
    return _nulls(max(count, _MANY)).slice(0, count)


@lru_cache(maxsize=4)
def _nulls(count: int) -> pa.Array:
    """No properties, ``count`` times.

    Built from values: what pa.nulls makes of a map is three times as long when it is stored. Not
    before it is needed: the first pa.array of a process loads pandas, where that is installed.
    """
    return pa.array([None] * count, _PROPERTIES.type)


def _no_null_items(properties: pa.Array) -> None:
    offsets = properties.offsets  # the offsets of a slice show which items are its own
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if properties.items.slice(first, last - first).null_count:
        raise _wrong_column("properties", "a null among its values")


def _wrong_column(name: str, found: str) -> UsageError:
    return UsageError(f"the column {name} is {found}: it must be {_EXPECTED[name]}")
