"""``Pipeline``: several Spark drivers share a stream, each event goes into the sink once.

The docstring of ``leasehold.spark`` has the design.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from leasehold.clock import SystemClock, system_random
from leasehold.errors import UsageError
from leasehold.events.source_urls import open_ranges
from leasehold.names import check_name, last_part
from leasehold.printable import printable
from leasehold.processor.events import EventBus
from leasehold.runtime.stop_signals import stop_on_signals
from leasehold.spark.pipeline.engine import Engine, RunContext
from leasehold.spark.pipeline.events import PipelinePartitionClosed, ProgressLines, Tally
from leasehold.spark.pipeline.options import PipelineOptions
from leasehold.spark.pipeline.owned_partitions import OwnedPartitions
from leasehold.spark.pipeline.planning import BatchFrames
from leasehold.spark.sessions import check_workers
from leasehold.spark.sinks.foreach import ForeachSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.clock import Clock
    from leasehold.model import Ownership
    from leasehold.processor.events import Hook
    from leasehold.spark.pipeline.events import PipelineCounts
    from leasehold.spark.sinks.foreach import OnBatch
    from leasehold.spark.sinks.port import Sink


class Pipeline:
    """One driver of a group. It can be run once.

    Guarantees: with an atomic sink, every event of the stream is in the output of exactly one
    committed batch, whatever drivers are killed, paused, added or stopped. A driver that resumes
    too late after a pause commits nothing. Partitions move between drivers between two batches.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        store: str,
        group: str,
        *,
        source_store: str | None = None,
        options: PipelineOptions | None = None,
        hooks: Sequence[Hook] = (),
        name: str = "driver",
        clock: Clock | None = None,
    ) -> None:
        """Nothing is done yet. ``source``: ``log:STREAM``; ``store``: URL of the leases.

        ``source_store``: the database in which the log is, if it is another one.

        Raises:
            UsageError, InvalidName: with what is wrong.
        """
        self.group = check_name(group, what="group")
        self.name = check_name(name, what="pipeline name")
        self.options = options or PipelineOptions()
        self._spark = spark
        self._source = source
        self._store = store
        self._source_store = source_store or store
        self._clock = clock or SystemClock()
        self._hooks = tuple(hooks)
        self._functions: list[Callable[[DataFrame], DataFrame]] = []
        self._sink: Sink | None = None
        self._tally = Tally()
        self._owned: OwnedPartitions | None = None
        self._is_stopping = False
        self._has_run = False

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Self:
        """Put each batch of events through the function. Several functions are applied in order.

        It is called once for each batch, and sees that batch only: aggregates are those of the
        batch.
        """
        if not callable(function):
            raise UsageError(f"transform takes a function of a DataFrame, not {function!r}")
        self._functions.append(function)
        return self

    def write_to(self, sink: Sink) -> Self:
        """Commit the output to the sink, together with the positions."""
        if self._sink is not None:
            raise UsageError("a pipeline has one sink: its positions are committed with it")
        self._sink = sink
        return self

    def foreach_batch(self, function: OnBatch) -> Self:
        """Call ``function(frame, batch)`` instead of a sink: at least once for each event."""
        return self.write_to(ForeachSink(function))

    @property
    def totals(self) -> PipelineCounts:
        """What was done so far."""
        return self._tally.totals

    def stop(self) -> None:
        """Finish the batch in progress, hand the partitions over, and return from ``run``.

        Returns immediately. From any thread.
        """
        self._is_stopping = True
        if self._owned is not None:
            self._owned.wake()

    def run(self, *, until_caught_up: bool = False, show: bool | None = None) -> PipelineCounts:
        """Work until ``stop``, SIGINT or SIGTERM; a second signal exits immediately.

        The second signal drains nothing; one within a second of the first is the same request.
        ``until_caught_up``: return when everything that was in the stream at the time of this call
        is committed, by any driver. ``show``: write progress to stderr; by default if that is a
        terminal.

        Raises:
            BatchFailed: a batch cannot be transformed, and the policy is to stop.
            SinkUnfit, SinkChanged: the sink cannot take the rows, or was changed by others.
            PositionLost: the position to resume at is not in the log, or is that of another
                stream of the same name.
            UnknownStream, StoreUnusable, UsageError: it cannot begin.
        """
        if self._has_run:
            raise UsageError("a pipeline can be run once: make another one")
        if self._sink is None:
            raise UsageError("a pipeline needs a sink: call write_to(…) or foreach_batch(…)")
        self._has_run = True
        hooks: list[Hook] = [self._tally, *self._hooks]
        if show or (show is None and sys.stderr.isatty()):
            hooks.insert(0, ProgressLines(_to_stderr, clock=self._clock))
        signals = stop_on_signals(first=self.stop, again=leave_immediately, clock=self._clock)
        with signals, ExitStack() as stack:
            engine = self._engine(self._sink, EventBus(hooks), stack)
            engine.run(until_caught_up=until_caught_up)
        return self.totals

    def _engine(self, sink: Sink, event_bus: EventBus, stack: ExitStack) -> Engine:
        source = open_ranges(
            self._source, store_url=self._source_store, name=self.name, pinned=True
        )
        stack.callback(source.close)
        if (getattr(sink, "stream", None), getattr(sink, "store", None)) == (
            source.name,
            self._source_store,
        ):
            raise UsageError(
                f"the pipeline reads {source.name!r} and would write to it: what it writes would "
                "come back to it, without end; write to another stream"
            )
        frames = BatchFrames(
            self._spark,
            self._source,
            self._source_store,
            columns=self.options.columns,
            local_events=self.options.local_events,
            task_count=self.options.tasks,
        )
        check_workers(self._spark)
        stack.callback(sink.close)
        sink.open(self._spark)
        engines: list[Engine] = []

        def on_lost(ownership: Ownership, reason: str) -> None:
            for each in engines:
                each.lost(ownership.key)
            event_bus.tell(
                PipelinePartitionClosed(
                    holder=ownership.holder,
                    partition=last_part(ownership.key),
                    epoch=ownership.epoch,
                    reason=reason,
                )
            )

        owned = self._owned = stack.enter_context(
            OwnedPartitions(
                self._store,
                stream=source.name,
                group=self.group,
                name=self.name,
                options=self.options,
                clock=self._clock,
                on_lost=on_lost,
                identity=source.identity,
            )
        )
        context = RunContext(
            spark=self._spark,
            frames=frames,
            function=self._transform,
            sink=sink,
            owned=owned,
            source=source,
            options=self.options,
            event_bus=event_bus,
            clock=self._clock,
            rng=system_random(),
            is_stopping=lambda: self._is_stopping,
        )
        engines.append(Engine(context))
        owned.join(source.partitions())
        return engines[0]

    def _transform(self, frame: DataFrame) -> DataFrame:
        for each in self._functions:
            frame = each(frame)
        return frame


def leave_immediately(number: int) -> None:
    """End this process, with 128 and the number of the signal; Spark's own one ends with it."""
    os._exit(128 + number)


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")
