"""Structured Streaming reads: offsets by partition, and bounded batches.

Guarantees:

* A batch is exactly what its two offsets define: when it is repeated after a crash, the same events
  are read. Offsets never decrease, whatever the log reports: Spark would read events twice.
* New partitions are read from their first event on. One that the option ``partitions`` excludes
  keeps its offset.
* Where the events at an offset do not exist, the query fails with the partition and the range,
  unless ``onTrimmed`` is ``earliest``.
* A store that does not answer is retried for a minute before the query fails.
* No progress is published: Spark never confirms the last batch.

The offset of a partition is the number of the first event not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from leasehold.clock import SystemClock
from leasehold.errors import BeyondEnd, StoreUnavailable, Trimmed
from leasehold.events.source import PartitionEnds
from leasehold.events.source_urls import shown
from leasehold.events.start import StartKind
from leasehold.spark.reading import Range, close_stream, open_stream
from leasehold.spark.source.filters import NOTHING
from leasehold.spark.source.layout import Layout
from leasehold.spark.source.read import (
    EventPartition,
    find_position,
    plan_tasks,
    selected_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from leasehold.clock import Clock
    from leasehold.events.source import RangeSource
    from leasehold.spark.source.options import ReadOptions

Offsets = dict[str, int]


def allot_by_lag(lags: Mapping[str, int], max_events: int | None) -> Offsets:
    """Return how many events each partition may read, by its lag; ``max_events`` in all.

    In proportion to the lag all are done at about the same time, so none runs ahead of the others.
    Each gets at least one; if there are fewer events than partitions, those with the longest lag
    are first.
    """
    lagging = {name: lag for name, lag in lags.items() if lag > 0}
    total = sum(lagging.values())
    if max_events is None or total <= max_events:
        return lagging
    served = sorted(lagging, key=lambda name: -lagging[name])[:max_events]
    rest, rest_lag = max_events - len(served), total - len(served)
    granted = {name: 1 + rest * (lagging[name] - 1) // max(rest_lag, 1) for name in served}
    # What rounding has left over is less than one for each.
    spare = max_events - sum(granted.values())
    for name in [name for name in served if granted[name] < lagging[name]][:spare]:
        granted[name] += 1
    return granted


def check_available(
    start: Mapping[str, int], ends: Mapping[str, PartitionEnds], *, stream: str, skip_trimmed: bool
) -> None:
    """Return if the events from ``start`` on exist. A partition it does not know is at 0."""
    if missing := sorted(set(start) - set(ends)):
        raise BeyondEnd(
            f"the checkpoint knows partition {missing[0]}, and {stream!r} has only "
            f"{len(ends)} partitions: it was made anew, or this is the checkpoint of another query",
            end=0,
        )
    for name, known in ends.items():
        position = start.get(name, 0)
        if position > known.next:
            raise BeyondEnd(
                f"the checkpoint is at event {position} of partition {name} of {stream!r}, which "
                f"has the events [{known.first}, {known.next}): the stream was made anew, or this "
                "is the checkpoint of another one; start with a new checkpoint location",
                end=known.next,
            )
        if position < known.first and not skip_trimmed:
            raise Trimmed(
                f"events [{position}, {known.first}) of partition {name} of {stream!r} were "
                "removed by retention before they were read; to go on without them, set the "
                "option onTrimmed to earliest",
                earliest=known.first,
            )


def next_offsets(
    start: Mapping[str, int], ends: Mapping[str, PartitionEnds], max_events: int | None
) -> Offsets:
    """Return the end of the next batch; equal to ``start`` if there is nothing new."""
    begin = {name: max(start.get(name, 0), known.first) for name, known in ends.items()}
    lags = {name: known.next - begin[name] for name, known in ends.items()}
    granted = allot_by_lag(lags, max_events)
    return dict(start) | {name: begin[name] + count for name, count in granted.items()}


def ranges_between(
    start: Mapping[str, int], end: Mapping[str, int], firsts: Mapping[str, int]
) -> tuple[Range, ...]:
    """Return the ranges of a batch, without the events before ``firsts``."""
    ranges = []
    for name, last in end.items():
        first = max(start.get(name, 0), firsts.get(name, 0))
        ranges.append(Range(partition=name, start=first, end=max(first, last)))
    return tuple(ranges)


T = TypeVar("T")

_STORE_TIMEOUT_S = 60.0
_FIRST_WAIT_S = 0.1
_MAX_WAIT_S = 5.0


class EventStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs in a separate process beside the driver; each task has a copy of it."""

    def __init__(
        self, schema: StructType, options: ReadOptions, *, clock: Clock | None = None
    ) -> None:
        self._options = options
        self._layout = Layout(schema, options)
        self._clock = clock or SystemClock()
        self._target: Mapping[str, int] | None = None
        self._first: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Return where the options start. Spark asks twice, and gets the same answer."""
        if self._first is None:
            self._first = self._ask(self._begin)
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the option."""
        max_events = self._options.max_events
        return ReadAllAvailable() if max_events is None else ReadMaxRows(max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than the current end."""
        self._target = {name: known.next for name, known in self._ask(self._ends).items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return the end of the next batch."""
        options = self._options
        ends = self._ask(self._ends)
        read = {
            name: at
            for name, at in start.items()
            if options.partitions is None or name in options.partitions
        }
        check_available(read, ends, stream=shown(options.source), skip_trimmed=options.skip_trimmed)
        if self._target is not None:
            ends = _limited_to(self._target, ends)
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return next_offsets(start, ends, max_events)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """Return the end of the stream; with it Spark shows the lag of the query."""
        try:
            ends = self._ends(open_stream(self._options.source, self._options.store))
        except StoreUnavailable:
            return None  # for display only, so it does not wait
        return {name: known.next for name, known in ends.items()}

    def partitions(self, start: Offsets, end: Offsets) -> list[EventPartition]:
        """Return the tasks of a batch."""
        firsts: dict[str, int] = {}
        if self._options.skip_trimmed:
            moved = tuple(name for name, last in end.items() if last > start.get(name, 0))
            ends = self._ask(lambda source: source.ends(moved)) if moved else {}
            firsts = {name: known.first for name, known in ends.items()}
        return plan_tasks(ranges_between(start, end, firsts), self._options.tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        if not isinstance(partition, EventPartition):
            return iter(())
        return self._layout.rows(partition.ranges, NOTHING)

    def commit(self, end: Offsets) -> None:
        """Do nothing.

        Spark confirms a batch when the next one is planned, and never the last one. Progress
        published from here would always be one batch behind.
        """

    def _begin(self, source: RangeSource) -> Offsets:
        options = self._options
        wanted = selected_partitions(source, options.partitions, options.starts)
        found: Offsets = {}
        for name, known in source.ends(wanted).items():
            both = {StartKind.EARLIEST: known.first, StartKind.LATEST: known.next}
            found[name] = find_position(source, name, options.start_of(name), both)
        return found

    def _ends(self, source: RangeSource) -> Mapping[str, PartitionEnds]:
        return source.ends(selected_partitions(source, self._options.partitions))

    def _ask(self, call: Callable[[RangeSource], T]) -> T:
        """Call the stream; retry a store that does not answer."""
        source, store = self._options.source, self._options.store
        until = self._clock.boottime_s() + _STORE_TIMEOUT_S
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return call(open_stream(source, store))
            except StoreUnavailable:
                if self._clock.boottime_s() + wait_s > until:
                    raise
                close_stream(source, store)
                anyio.run(self._clock.sleep, wait_s)
                wait_s = min(2 * wait_s, _MAX_WAIT_S)


def _limited_to(
    target: Mapping[str, int], ends: Mapping[str, PartitionEnds]
) -> dict[str, PartitionEnds]:
    """Return the ends as they were at the target."""
    return {
        name: PartitionEnds(first=known.first, next=min(known.next, target[name]))
        for name, known in ends.items()
        if name in target
    }
