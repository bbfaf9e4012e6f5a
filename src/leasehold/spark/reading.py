"""Ranges of events, read as Arrow inside a Spark task or anywhere else.

A ``Range`` is what a batch reads; ``split_into_tasks`` distributes ranges over tasks.
``read_events`` guarantees:

* It returns all events of the ranges, each once, those of a range in order, with the requested
  columns and exactly the Arrow schema that Spark expects. Every frame is verified by its checksum;
  if no bodies are requested, by the checksum of the rest.
* Columns are not copied out of the log. Only frames that are too small to be sent alone are joined,
  and large frames are sent in parts.
* A process opens a stream once, for all its tasks. Streams inherited by a fork are not used.
* Errors name the partition and the range.

An error that was raised in a Spark task arrives in the driver only as text;
``leasehold_error_in`` recovers it.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import threading
from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from leasehold import errors
from leasehold.errors import LeaseholdError, StoreError, UsageError
from leasehold.events.event import STORED_SCHEMA
from leasehold.events.source_urls import open_ranges, shown
from leasehold.runtime.tracebacks import reason_of
from leasehold.spark.schema import arrow_schema, select_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from leasehold.events.event import EventBatch
    from leasehold.events.source import RangeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The events of ``partition`` from ``start`` up to, and without, ``end``."""

    partition: str
    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuse invalid bounds."""
        if not 0 <= self.start <= self.end:
            raise UsageError(
                f"there are no events {self.start} to {self.end} in a partition: a range needs "
                "0 <= start <= end"
            )

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition}[{self.start}, {self.end})"

    def split_at(self, at: int) -> tuple[Range, Range]:
        """Return the part before the event ``at``, and the rest."""
        return (
            Range(partition=self.partition, start=self.start, end=at),
            Range(partition=self.partition, start=at, end=self.end),
        )


def ranges_to_json(ranges: Iterable[Range]) -> str:
    """Return the ranges as one line of JSON, for an option of Spark."""
    return json.dumps([[each.partition, each.start, each.end] for each in ranges])


def ranges_from_json(text: str) -> tuple[Range, ...]:
    """Return the ranges that ``ranges_to_json`` wrote."""
    try:
        rows = json.loads(text)
        return tuple(Range(partition=str(p), start=int(s), end=int(e)) for p, s, e in rows)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{text!r} holds no ranges ({error}): write [[partition, start, end], …], such as "
            '[["0", 0, 100]]'
        ) from error


def split_into_tasks(ranges: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """Distribute the ranges over at most ``count`` tasks of about the same number of events.

    Every event is in exactly one of them, and those of a partition are in order. A partition is
    split where its task is full: few tasks, all busy to the end, are the cheapest for Spark.
    """
    left = [each for each in ranges if len(each)]
    total = sum(map(len, left))
    if not total:
        return []
    count = max(1, min(count, total))
    tasks: list[tuple[Range, ...]] = []
    done, task, room_events = 0, list[Range](), -(-total // count)
    for whole in left:
        rest = whole
        while len(rest):
            taken, rest = rest.split_at(min(rest.start + room_events, rest.end))
            task.append(taken)
            room_events -= len(taken)
            done += len(taken)
            if not room_events:
                tasks.append(tuple(task))
                task = []
                tasks_left = count - len(tasks)
                room_events = -(-(total - done) // tasks_left) if tasks_left else 0
    if task:
        tasks.append(tuple(task))
    return tasks


_SPARK_ERRORS = (PySparkException, Py4JJavaError)
# The last line of a traceback; of several chained ones the last is the error that was raised.
_ERROR_LINE = re.compile(r"^leasehold\.errors\.(\w+)(?:: (.*))?$", re.MULTILINE)


def leasehold_error_in(error: Exception) -> tuple[str, str] | None:
    """Return name and message of the Leasehold error in a Spark error; None if there is none."""
    found = _ERROR_LINE.findall(reason_of(error)) if isinstance(error, _SPARK_ERRORS) else []
    return (found[-1][0], found[-1][1]) if found else None


def usage_error_in(error: Exception) -> UsageError | None:
    """Return the ``UsageError`` that it is or contains: retrying cannot help."""
    if isinstance(error, UsageError):
        return error
    name, message = leasehold_error_in(error) or ("", "")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, UsageError):
        return UsageError(message or name)
    return None


MIN_ROWS = 1 << 10  # fewer cost Spark more for each row
MIN_BYTES = 1 << 20  # and so does each batch, which counts where the rows are small
MAX_ROWS = 40_000
_ENOUGH_ROWS = 65_536  # larger batches are not faster
MAX_BYTES = 32 << 20
_frozen_pid = 0  # the process that settle() was called in


class _OpenStreams:
    """The streams that this process has open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._sources: dict[tuple[str, str], RangeSource] = {}

    def get(self, source: str, store: str) -> RangeSource:
        """Return the open stream; open it if necessary."""
        self._forget_inherited()
        with self._lock:
            found = self._sources.get((source, store))
            if found is None:
                found = open_ranges(source, store_url=store)
                self._sources[source, store] = found
            return found

    def close(self, source: str, store: str) -> None:
        """Close it, so that the next call opens it again after a failure."""
        self._forget_inherited()
        with self._lock:
            found = self._sources.pop((source, store), None)
        if found is not None:
            found.close()

    def _forget_inherited(self) -> None:
        """Forget what a fork inherited: it has the memory, but not the threads."""
        if self._process != os.getpid():
            self._lock, self._process, self._sources = threading.Lock(), os.getpid(), {}


_STREAMS = _OpenStreams()


def open_stream(source: str, store: str) -> RangeSource:
    """Return the stream, open in this process and shared by all callers; do not close it."""
    return _STREAMS.get(source, store)


def close_stream(source: str, store: str) -> None:
    """Close the shared stream, if it is open; the next call of ``open_stream`` opens it again."""
    _STREAMS.close(source, store)


def read_events(
    source: str,
    store: str,
    ranges: Iterable[Range],
    columns: Sequence[str] | pa.Schema,
    *,
    min_rows: int = MIN_ROWS,
    min_bytes: int = MIN_BYTES,
    max_rows: int = MAX_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Return the events of the ranges. ``columns``: names, or the Arrow schema with these names."""
    freeze_garbage_collection()
    schema = columns if isinstance(columns, pa.Schema) else arrow_schema(select_columns(columns))
    select_columns(schema.names)
    pieces = _read_pieces(source, store, ranges, schema, max_rows=max_rows)
    return _join_small(pieces, min_rows=min_rows, min_bytes=min_bytes)


def freeze_garbage_collection() -> None:
    """Exclude what is loaded by now from garbage collection; in a Spark worker, once.

    Spark's workers collect after every task and every plan, and most objects are those of modules.
    Other processes are left alone.
    """
    global _frozen_pid  # noqa: PLW0603 - of the process, as what it is about
    # A flag, not gc.get_freeze_count(): that one counts, and there is much to count.
    if _frozen_pid == os.getpid():
        return
    _frozen_pid = os.getpid()
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(main, "name", "").startswith("pyspark."):
        gc.collect()
        gc.freeze()


def _read_pieces(
    source: str, store: str, ranges: Iterable[Range], schema: pa.Schema, *, max_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the events as stored, with the requested columns, none with too many rows."""
    indexes = tuple(_COLUMN_INDEXES.get(name) for name in schema.names)
    bodies = "body" in schema.names
    for each in ranges:
        try:
            found = open_stream(source, store)
            for batch in found.read(each.partition, each.start, each.end, bodies=bodies):
                whole = _select(batch, indexes, schema)
                rows = _max_rows(whole, max_rows)
                for first in range(0, whole.num_rows, rows):
                    yield whole if rows >= whole.num_rows else whole.slice(first, rows)
        except LeaseholdError as error:
            if isinstance(error, StoreError):
                close_stream(source, store)
            error.args = (f"events {each} of {shown(source)!r} can not be read: {error}",)
            raise


def _max_rows(batch: pa.RecordBatch, max_rows: int) -> int:
    """Return how many of its rows are sent together, so that they have about ``MAX_BYTES``."""
    size = _size_bytes(batch)
    if size <= MAX_BYTES:
        return max_rows
    return max(min(max_rows, int(MAX_BYTES * batch.num_rows // size)), 1)


def _size_bytes(batch: pa.RecordBatch) -> int:
    """Return its size; of a slice that is neither small nor large, perhaps that of the whole frame.

    ``nbytes`` reads the offsets, and takes as long as everything else that is done for a batch: it
    is used only where a slice could be taken for a large frame.
    """
    size = int(batch.get_total_buffer_size())
    exact = batch.num_rows < MIN_ROWS or size > MAX_BYTES
    return int(batch.nbytes) if exact else size


def _select(batch: EventBatch, indexes: Sequence[int | None], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns with these indexes; None is the partition, which is not stored."""
    stored = batch.arrow
    return pa.RecordBatch.from_arrays(
        [
            _partition_column(batch.partition, stored.num_rows)
            if index is None
            else stored.column(index)
            for index in indexes
        ],
        schema=schema,
    )


_COLUMN_INDEXES = {name: index for index, name in enumerate(STORED_SCHEMA.names)}


def _partition_column(partition: str, count: int) -> pa.Array:
    """Return the id of the partition, ``count`` times."""
    size = max(1 << 12, 1 << (count - 1).bit_length())
    return _repeat(partition, size).slice(0, count)


@lru_cache(maxsize=64)
def _repeat(partition: str, size: int) -> pa.Array:
    """Return the partition ``size`` times, from bytes: ``pa.scalar`` would load pandas."""
    name = partition.encode()
    indexes = array("i", range(0, (size + 1) * len(name), len(name)))
    return pa.Array.from_buffers(
        pa.utf8(), size, [None, pa.py_buffer(indexes), pa.py_buffer(name * size)]
    )


def _join_small(
    pieces: Iterator[pa.RecordBatch], *, min_rows: int, min_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the same, with small consecutive batches copied into one."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        waiting.append(piece)
        rows += piece.num_rows
        size += _size_bytes(piece)
        enough = rows >= min_rows and (size >= min_bytes or rows >= _ENOUGH_ROWS)
        if enough or size >= MAX_BYTES:
            yield _concat(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _concat(waiting)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
