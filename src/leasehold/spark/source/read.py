"""Batch reads: ranges are fixed when the read is planned, and distributed to few, equal tasks.

A read contains what was in the log when it was planned; later events are not in it, however long
the tasks take and however often one is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from leasehold.errors import BeyondEnd, Trimmed, UsageError
from leasehold.events.start import StartKind
from leasehold.spark.reading import Range, freeze_garbage_collection, open_stream, split_into_tasks
from leasehold.spark.source.filters import NOTHING, push_filters
from leasehold.spark.source.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from leasehold.events.source import RangeSource
    from leasehold.events.start import Start
    from leasehold.spark.source.options import ReadOptions

_MIN_TASK_EVENTS = 2_000  # a task costs more than to read so few


class EventPartition(InputPartition):
    """The ranges of one task."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What the task reads."""
        return tuple(self.value)


class EventReader(DataSourceReader):
    """Reads the events that the options select."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._options = options
        self._layout = Layout(schema, options)
        self._pushed = NOTHING

    def partitions(self) -> list[EventPartition]:
        """Fix the ranges now, and distribute them to tasks."""
        source = open_stream(self._options.source, self._options.store)
        found = self._pushed.narrow(planned_ranges(source, self._options), source.find)
        freeze_garbage_collection()  # after the first plan: by then all is loaded that plans need
        return plan_tasks(found, self._options.tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task. An empty plan has one task without ranges."""
        if not isinstance(partition, EventPartition):
            return iter(())
        return self._layout.rows(partition.ranges, self._pushed)


class FilteringReader(EventReader):
    """A reader that applies filters itself. Spark does not get it: see ``batch_reader``."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Keep the supported filters; return the others."""
        self._pushed, rest = push_filters(filters)
        freeze_garbage_collection()
        return rest


def batch_reader(schema: StructType, options: ReadOptions) -> EventReader:
    """Return the reader for Spark, which applies all filters itself.

    Spark keeps a reader with pushed filters with the DataFrame, and uses it again for other queries
    of the same DataFrame: those would miss rows. So no session gets a reader that accepts filters,
    whatever ``spark.sql.python.filterPushdown.enabled`` is.
    """
    return EventReader(schema, options)


def plan_tasks(ranges: Sequence[Range], max_tasks: int) -> list[EventPartition]:
    """Return few tasks, with about the same number of events each."""
    total = sum(map(len, ranges))
    count = min(max_tasks, max(total // _MIN_TASK_EVENTS, 1))
    return [EventPartition(each) for each in split_into_tasks(ranges, count)]


def planned_ranges(source: RangeSource, options: ReadOptions) -> tuple[Range, ...]:
    """Return the ranges that the options select now."""
    if options.ranges is not None:
        selected_partitions(source, tuple(each.partition for each in options.ranges))
        return options.ranges
    wanted = selected_partitions(source, options.partitions, options.starts)
    ends = source.ends(wanted)
    ranges = []
    for partition in wanted:
        known = {StartKind.EARLIEST: ends[partition].first, StartKind.LATEST: ends[partition].next}
        start = find_position(source, partition, options.start_of(partition), known)
        end = find_position(source, partition, options.end, known)
        ranges.append(Range(partition=partition, start=start, end=max(start, end)))
    return tuple(ranges)


def selected_partitions(
    source: RangeSource, wanted: Sequence[str] | None, also: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the partitions to read: these, or all."""
    there = source.partitions()
    for each in (*(wanted or ()), *also):
        if each not in there:
            raise UsageError(
                f"{source.name!r} has no partition {each}: it has {there[0]} to {there[-1]}"
            )
    return tuple(there if wanted is None else wanted)


def find_position(
    source: RangeSource, partition: str, start: Start, known: dict[StartKind, int]
) -> int:
    """Return the number of the event that ``start`` means; ``known`` are those of both ends."""
    if start.kind in known:
        return known[start.kind]
    try:
        return source.find(partition, start)
    except (Trimmed, BeyondEnd) as error:
        error.args = (f"{start} of partition {partition} of {source.name!r}: {error}",)
        raise
