"""The loop of a pipeline: plan, stage, commit, and what follows if one of them fails.

One thread plans and stages; another one commits the previous batch. A batch is committed only after
the one before it, so that the positions of a partition move in order. If a commit is refused, what
was staged after it is discarded, and the positions are read from the sink again.

``Takeover``: at the takeover of a partition the sink is fenced first, then asked for its position.
In this order no commit can slip between: when the sink has answered, no former owner can commit.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.backoff import Backoff
from leasehold.core.resume_position import (
    PositionOrigin,
    check_same_stream,
    resumed,
    resumed_by_checkpoint,
)
from leasehold.errors import LeaseLost, PositionLost, SinkChanged, StoreError, StoreUnavailable
from leasehold.events.start import Start
from leasehold.processor.options import OnTrimmed
from leasehold.spark.pipeline.committing import Committing
from leasehold.spark.pipeline.events import BatchPlanned, PipelinePartitionOpened, Waiting
from leasehold.spark.pipeline.planning import next_ranges
from leasehold.spark.pipeline.staging import Staging, Work
from leasehold.spark.sinks.port import Batch, BatchPart, SinkPosition

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.clock import Clock
    from leasehold.core.resume_position import ResumePosition
    from leasehold.events.source import PartitionEnds, RangeSource
    from leasehold.lease.handle import Handle
    from leasehold.model import Checkpoint
    from leasehold.processor.events import EventBus
    from leasehold.spark.pipeline.options import PipelineOptions
    from leasehold.spark.pipeline.owned_partitions import OwnedPartitions
    from leasehold.spark.pipeline.planning import BatchFrames
    from leasehold.spark.reading import Range
    from leasehold.spark.sinks.port import Sink, Staged

_SET_AT_TAKEOVER = frozenset((PositionOrigin.START, PositionOrigin.OPERATOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a partition resumes, and what determined that."""

    position: int
    by: str


class Takeover:
    """Finds the positions to resume at, for one pipeline."""

    def __init__(
        self, *, sink: Sink, owned: OwnedPartitions, source: RangeSource, options: PipelineOptions
    ) -> None:
        self._sink = sink
        self._owned = owned
        self._source = source
        self._options = options

    def resume_points(self, handles: Mapping[str, Handle]) -> dict[str, ResumePoint]:
        """Return the position of each partition; those that turn out to be lost are omitted.

        When it returns, sink and checkpoint both have that position: a start by the options is
        fixed once for the group, and an operator's reset is done once it is carried out.
        """
        known = self.fence_sink(handles)
        checkpoints = self._owned.checkpoints()
        ends = self._source.ends(list(known))
        resume_points: dict[str, ResumePoint] = {}
        moves: dict[str, SinkPosition] = {}
        checkpoints_to_write: dict[str, tuple[Handle, int]] = {}
        for partition, sink_position in known.items():
            handle = handles[partition]
            checkpoint = checkpoints.get(handle.ownership.key)
            done = None if checkpoint is None else checkpoint.resumes_at
            if checkpoint is not None:  # a sink that has a position has a checkpoint beside it
                check_same_stream(
                    checkpoint.position.stream,
                    self._source.identity,
                    stream=self._source.name,
                    partition=partition,
                    resumes_at=done,
                )
            found = self._resumed(handle, checkpoint, sink_position)
            if found.by is PositionOrigin.NOBODY:
                raise self._contradiction(partition, done, sink_position)
            position = self._in_log(partition, found, ends[partition])
            resume_points[partition] = ResumePoint(position=position, by=found.by.value)
            if found.by in _SET_AT_TAKEOVER or found.position != position:
                moves[partition] = SinkPosition(position=position, epoch=handle.ownership.epoch)
            if found.by in _SET_AT_TAKEOVER or done != position:
                checkpoints_to_write[partition] = (handle, position)
        if moves and self._sink.atomic:
            self._sink.move(self._owned.group, moves)
        if (
            checkpoints_to_write
        ):  # after the sink: a reset counts until a checkpoint was written after it
            self._owned.write_checkpoints(checkpoints_to_write)
        return resume_points

    def fence_sink(self, handles: Mapping[str, Handle]) -> dict[str, SinkPosition]:
        """Fence the sink for these, and return what it knows. What is lost already is omitted."""
        epochs = {each: handle.ownership.epoch for each, handle in handles.items()}
        known = self._sink.fence(self._owned.group, epochs) if self._sink.atomic else {}
        found = {}
        for partition, epoch in epochs.items():
            sink_position = known.get(partition, SinkPosition())
            if sink_position.epoch > epoch:
                self._give_up(handles[partition], sink_position.epoch)
            else:
                found[partition] = sink_position
        return found

    def _give_up(self, handle: Handle, sink_epoch: int) -> None:
        """End an ownership that the sink knows to be over; raise if the store does not."""
        owned = handle.ownership
        if self._owned.epoch(owned.key) == owned.epoch:
            raise SinkChanged(
                f"{self._sink.name} has heard of epoch {sink_epoch} of partition "
                f"{handle.partition} for {self._owned.group!r}, and the store is at "
                f"{owned.epoch}: a group of this name in another store writes to it, or the store "
                "was made anew. Use another name for the group"
            )
        self._owned.fenced(handle)

    def _resumed(
        self, handle: Handle, checkpoint: Checkpoint | None, sink_position: SinkPosition
    ) -> ResumePosition:
        done = None if checkpoint is None else checkpoint.resumes_at
        if not self._sink.atomic:
            return resumed_by_checkpoint(done)
        reset_epoch = self._owned.reset_epoch(handle.ownership.key)
        is_reset = reset_epoch > (0 if checkpoint is None else checkpoint.epoch - 1)
        return resumed(checkpoint=done, sink_position=sink_position.position, is_reset=is_reset)

    def _in_log(self, partition: str, found: ResumePosition, ends: PartitionEnds) -> int:
        if found.position is None:
            return self._source.find(partition, self._options.start)
        if found.position > ends.next:
            raise PositionLost(
                f"partition {partition} of {self._source.name!r} is to go on at event "
                f"{found.position}, as the {found.by.value} says, and ends before event "
                f"{ends.next}: the stream was made anew, or is another one; use another group, or "
                "reset the checkpoint (leasehold checkpoints reset)"
            )
        if found.position >= ends.first:
            return found.position
        match self._options.on_trimmed:
            case OnTrimmed.EARLIEST:
                return ends.first
            case OnTrimmed.LATEST:
                return self._source.find(partition, Start.latest())
            case _:
                raise PositionLost(
                    f"events {found.position} to {ends.first - 1} of partition {partition} of "
                    f"{self._source.name!r} were removed by retention before they were processed: "
                    "go on without them with on_trimmed=OnTrimmed.EARLIEST"
                )

    def _contradiction(
        self, partition: str, checkpoint: int | None, sink_position: SinkPosition
    ) -> SinkChanged:
        knows = (
            "nothing"
            if sink_position.position is None
            else f"events up to {sink_position.position - 1}"
        )
        return SinkChanged(
            f"{self._sink.name} holds {knows} of partition {partition} of {self._source.name!r}, "
            f"and the checkpoint says that events up to {(checkpoint or 0) - 1} were committed: it "
            "was made anew, restored, or is another one. Nothing was written. Use a new group for "
            "a new sink, or say where it is to go on: leasehold checkpoints reset"
        )


log = logging.getLogger("leasehold.spark")

_IDLE_BACKOFF = Backoff(base_s=0.01, max_s=0.25)
_BACKOFF = Backoff(base_s=0.1, max_s=5.0)
_CHECK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all parts of a running pipeline use."""

    spark: SparkSession
    frames: BatchFrames
    function: Callable[[DataFrame], DataFrame]
    sink: Sink
    owned: OwnedPartitions
    source: RangeSource
    options: PipelineOptions
    event_bus: EventBus
    clock: Clock
    rng: random.Random
    is_stopping: Callable[[], bool]


class Engine:
    """Runs a pipeline once. ``run`` is for the thread that called the pipeline."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._owned = context.owned
        self._options = context.options
        self._clock = context.clock
        self._takeover = Takeover(
            sink=context.sink, owned=context.owned, source=context.source, options=context.options
        )
        self._committing = Committing(context)
        self._staging = Staging(context, split=self._split, last=lambda: self._committing.last)
        self._committer = ThreadPoolExecutor(1, "leasehold-commit")
        self._in_flight: tuple[Work, Future[bool]] | None = None
        self._committed: dict[str, int] = {}  # committed
        self._planned: dict[str, int] = {}  # planned
        self._unconfirmed: dict[
            str, Handle
        ] = {}  # held, but their positions have to be read from the sink
        self._backlog: deque[tuple[Range, ...]] = deque()
        self._number = 0
        self._idle_rounds = 0
        self._began_s: float | None = None
        self._checked_s = self._discovered_s = self._clock.boottime_s()
        self._targets: dict[str, int] = {}

    def run(self, *, until_caught_up: bool) -> None:
        """Work until asked to stop, or sent away, or caught up."""
        if until_caught_up:
            source = self._context.source
            self._targets = {
                each: ends.next for each, ends in source.ends(source.partitions()).items()
            }
        try:
            while not self._context.is_stopping() and not self._owned.has_left:
                self._owned.check()
                self._take_over()
                self._discover_partitions()
                work = self._plan()
                if work is not None:
                    self._process(work)
                elif until_caught_up and self._is_caught_up():
                    return
                else:
                    self._await_commit()
                    self._committing.write_pending_checkpoints()
                    self._wait_idle()
            self._owned.check()
        finally:
            try:
                self._await_commit()
            finally:
                self._committer.shutdown()
                self._staging.close()

    def lost(self, key: str) -> None:
        """Cancel the job that reads a lost partition. From any thread."""
        self._staging.lost(key)

    # ------------------------------------------------------------- planning

    def _take_over(self) -> None:
        """Open the partitions that were acquired."""
        fresh = self._owned.take_new()
        taken = dict(fresh)
        try:
            if fresh or self._unconfirmed:
                self._await_commit()
            for partition, handle in self._unconfirmed.items():
                if partition not in taken and self._owned.begin([handle]):
                    taken[partition] = handle
            self._unconfirmed = {}
            if not taken:
                return
            resume_points = self._resume_points(taken)
        finally:
            self._owned.end(list(taken.values()))
        self._backlog.clear()
        for partition in taken:
            self._committed.pop(partition, None)
        for partition, resume_point in resume_points.items():
            self._committed[partition] = resume_point.position
            if partition in fresh:
                self._report_opened(partition, fresh[partition], resume_point)
        self._planned = dict(self._committed)

    def _report_opened(self, partition: str, handle: Handle, resume_point: ResumePoint) -> None:
        self._context.event_bus.tell(
            PipelinePartitionOpened(
                holder=handle.ownership.holder,
                partition=partition,
                epoch=handle.ownership.epoch,
                position=resume_point.position,
                by=resume_point.by,
            )
        )

    def _resume_points(self, fresh: dict[str, Handle]) -> dict[str, ResumePoint]:
        failures = 0
        while True:
            held = {each: handle for each, handle in fresh.items() if handle.valid}
            try:
                return self._takeover.resume_points(held) if held else {}
            except LeaseLost as lost:  # while they were being opened: the others continue
                log.info("lost while it was opened: %s", lost)
                failures += 1
            except StoreUnavailable as error:
                failures += 1
                self._report_waiting("the sink or the store, to open partitions", error)
            pause_s = _BACKOFF.pause_s(failures, self._context.rng)
            self._owned.pause(pause_s, unless=self._context.is_stopping)
            if self._context.is_stopping():
                return {}

    def _plan(self) -> Work | None:
        """Return the next batch, or None if there is nothing to do."""
        began_s = self._clock.boottime_s()
        if self._until_next_batch_s(began_s) > 0:
            return None
        usable = self._owned.usable()
        positions = {each: self._planned[each] for each in usable if each in self._planned}
        try:
            ends = self._context.source.ends(list(positions)) if positions else {}
        except StoreUnavailable as error:
            self._report_waiting("the log", error)
            return None
        found = {each: end.next for each, end in ends.items()}
        lag = sum(found[each] - positions[each] for each in positions)
        is_part = bool(self._backlog)
        if is_part:
            ranges = self._backlog.popleft()
            if any(positions.get(each.partition) != each.start for each in ranges):
                self._replan()  # something was lost since it was cut
                return None
        else:
            unreadable = [
                each for each, at in positions.items() if not _is_readable(at, ends[each])
            ]
            if unreadable:  # trimmed, or recreated: taking it over again handles that
                self._unconfirmed.update({each: usable[each] for each in unreadable})
                return None
            ranges = next_ranges(positions, found, max_events=self._options.batch_events)
        if not ranges:
            return None
        return self._make_work(ranges, usable, began_s=began_s, lag=lag, is_part=is_part)

    def _make_work(
        self,
        ranges: Sequence[Range],
        usable: dict[str, Handle],
        *,
        began_s: float,
        lag: int,
        is_part: bool,
    ) -> Work:
        handles = {each.partition: usable[each.partition] for each in ranges}
        shares = tuple(
            BatchPart(range=each, epoch=handles[each.partition].ownership.epoch) for each in ranges
        )
        batch = Batch(
            group=self._owned.group,
            number=self._number,
            shares=shares,
            holder=next(iter(handles.values())).ownership.holder,
            began_at=self._clock.utc_now(),
        )
        self._number += 1
        since_s = 0.0 if self._began_s is None else began_s - self._began_s
        self._began_s = began_s
        return Work(
            batch=batch,
            handles=handles,
            began_s=began_s,
            since_s=since_s,
            planned_s=self._clock.boottime_s(),
            lag_events=lag,
            is_part=is_part,
        )

    # --------------------------------------------------------------- doing

    def _process(self, work: Work) -> None:
        """Stage the batch while the previous one is committed; then begin to commit it."""
        self._idle_rounds = 0
        handles = list(work.handles.values())
        if not self._owned.begin(handles):
            self._await_commit()
            self._replan()
            return
        self._context.event_bus.tell(
            BatchPlanned(**work.event_fields(), lag_events=work.lag_events)
        )
        staged: Staged | None = None
        is_owned = False
        backlog_length = len(self._backlog)
        try:
            staged = self._staging.staged(work)
            is_owned = self._await_commit()
            if staged is not None and is_owned:
                for part in work.batch.shares:
                    self._planned[part.range.partition] = part.range.end
                future = self._committer.submit(self._committing.commit, work, staged)
                self._in_flight = (work, future)
                return
        finally:
            if self._in_flight is None or self._in_flight[0] is not work:
                if staged is not None:
                    self._context.sink.discard(staged)
                self._owned.end(handles)
        if is_owned and len(self._backlog) <= backlog_length:  # it was not cut in two, but given up
            self._replan()

    def _await_commit(self) -> bool:
        """Wait for the commit in flight; return False if it was refused and all is replanned."""
        if self._in_flight is None:
            return True
        (work, future), self._in_flight = self._in_flight, None
        try:
            committed = future.result()
        finally:
            self._owned.end(list(work.handles.values()))
        if committed:
            for part in work.batch.shares:
                self._committed[part.range.partition] = part.range.end
        else:
            self._replan(work)
        return committed

    def _replan(self, refused: Work | None = None) -> None:
        """Plan again from what is committed; after a refusal the sink is asked for its position."""
        self._backlog.clear()
        if refused is not None and self._context.sink.atomic:
            self._unconfirmed.update(refused.handles)
            for partition in refused.handles:
                self._committed.pop(partition, None)
        self._planned = dict(self._committed)

    def _split(self, first: tuple[Range, ...], second: tuple[Range, ...]) -> None:
        """Process these two next, in this order."""
        self._backlog.extendleft((second, first))

    # -------------------------------------------------------------- waiting

    def _wait_idle(self) -> None:
        self._idle_rounds += 1
        pause_s = _IDLE_BACKOFF.pause_s(self._idle_rounds, self._context.rng)
        left_s = self._until_next_batch_s(self._clock.boottime_s())
        self._owned.wait(
            min(max(pause_s, left_s), _IDLE_BACKOFF.max_s), unless=self._context.is_stopping
        )

    def _until_next_batch_s(self, now_s: float) -> float:
        """Return the time until the next batch may begin."""
        if self._began_s is None:
            return 0.0
        return self._began_s + self._options.interval.total_seconds() - now_s

    def _discover_partitions(self) -> None:
        now_s = self._clock.boottime_s()
        if now_s - self._discovered_s >= self._options.discovery_interval.total_seconds():
            self._discovered_s = now_s
            try:
                self._owned.join(self._context.source.partitions())
            except StoreUnavailable as error:
                self._report_waiting("the store, to look for partitions", error)

    def _report_waiting(self, what: str, error: Exception) -> None:
        """Report that something is waited for."""
        log.warning("waiting for %s: %s", what, error)
        self._context.event_bus.tell(Waiting(holder=self._owned.holder, what=what, error=error))

    def _is_caught_up(self) -> bool:
        """Return whether all events that existed at the start are committed, by any driver."""
        self._await_commit()
        usable = self._owned.usable()
        open_targets = {
            each: target
            for each, target in self._targets.items()
            if each not in usable or self._committed.get(each, -1) < target
        }
        if not open_targets:
            return True
        now_s = self._clock.boottime_s()
        if now_s - self._checked_s < _CHECK_INTERVAL_S:
            return False
        self._checked_s = now_s
        try:
            found = self._owned.checkpointed_positions()
            firsts = self._context.source.ends(list(open_targets))
        except StoreError:
            return False
        return all(
            found.get(each, firsts[each].first) >= target for each, target in open_targets.items()
        )


def _is_readable(position: int, ends: PartitionEnds) -> bool:
    """Return whether the partition can be read from there."""
    return ends.first <= position <= ends.next
