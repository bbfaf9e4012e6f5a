"""The plan of a batch: the ranges it reads (pure), and a DataFrame over them.

Each batch gets a new DataFrame: Spark may answer from the first run of one whose input has changed
since. A small batch is read by the driver and handed to Spark; a large one is read by tasks. That
was measured, and costs less than planning through the data source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.spark.reading import (
    Range,
    ranges_from_json,
    ranges_to_json,
    read_events,
    split_into_tasks,
)
from leasehold.spark.schema import EVENTS, arrow_schema, select_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession


def next_ranges(
    positions: Mapping[str, int], ends: Mapping[str, int], *, max_events: int
) -> tuple[Range, ...]:
    """Return the next events of each partition, at most ``max_events`` in all.

    All partitions get the same; what one does not need goes to those that have more. So a long
    backlog in one partition never delays the others. None of the ranges is empty.
    """
    backlog = {
        partition: ends[partition] - position
        for partition, position in positions.items()
        if ends.get(partition, 0) > position
    }
    granted = dict.fromkeys(backlog, 0)
    remaining, by_backlog = max_events, sorted(backlog, key=lambda partition: backlog[partition])
    for turn, partition in enumerate(
        by_backlog
    ):  # the least hungry first: what it leaves is shared
        fair_events = -(-remaining // (len(by_backlog) - turn))
        granted[partition] = min(backlog[partition], fair_events)
        remaining -= granted[partition]
    return tuple(
        Range(partition=each, start=positions[each], end=positions[each] + granted[each])
        for each in positions
        if granted.get(each)
    )


def halves(ranges: tuple[Range, ...]) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """Return the ranges in two parts of similar size; both are empty if there is only one event."""
    total = sum(map(len, ranges))
    if total <= 1:
        return (), ()
    if len(ranges) > 1:
        middle = len(ranges) // 2
        return ranges[:middle], ranges[middle:]
    first, second = ranges[0].split_at(ranges[0].start + total // 2)
    return (first,), (second,)


_MAX_LOCAL_BYTES = 8 << 20


class BatchFrames:
    """Makes the DataFrames of one stream."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        store: str,
        *,
        columns: Sequence[str] = (),
        local_events: int = 0,
        task_count: int | None = None,
    ) -> None:
        """``columns``: of ``EVENTS``, all by default."""
        self._spark = spark
        self._source = source
        self._store = store
        self.schema = select_columns(columns) if columns else EVENTS
        self._arrow = arrow_schema(self.schema)
        self._local_events = local_events
        self._tasks = task_count or spark.sparkContext.defaultParallelism

    def of(self, ranges: Sequence[Range]) -> DataFrame:
        """Return the events of the ranges."""
        if sum(map(len, ranges)) <= self._local_events:
            table = self._read_locally(ranges)
            if table is not None:
                return self._spark.createDataFrame(table, schema=self.schema)
        task_ranges = [ranges_to_json(each) for each in split_into_tasks(ranges, self._tasks)]
        numbers = self._spark.range(0, len(task_ranges), 1, len(task_ranges))
        reader = task_reader(self._source, self._store, task_ranges, self._arrow)
        return numbers.mapInArrow(reader, self.schema)

    def empty(self) -> DataFrame:
        """Return a DataFrame without events, with the same columns."""
        return self._spark.createDataFrame(self._arrow.empty_table(), schema=self.schema)

    def _read_locally(self, ranges: Sequence[Range]) -> pa.Table | None:
        """Return the events as a table; None if they are too big to go through the driver."""
        batches, size = [], 0
        for batch in read_events(self._source, self._store, ranges, self._arrow):
            batches.append(batch)
            size += batch.nbytes
            if size > _MAX_LOCAL_BYTES:
                return None
        return pa.Table.from_batches(batches, schema=self._arrow)


def task_reader(
    source: str, store: str, task_ranges: Sequence[str], schema: pa.Schema
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` over the numbers of the tasks."""

    def read_tasks(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_events(source, store, ranges_from_json(task_ranges[number]), schema)

    return read_tasks
