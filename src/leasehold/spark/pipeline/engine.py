"""The loop of a pipeline: plan, stage, commit; and what happens when one of them can not be done.

One thread plans and stages; another one commits the batch before. A batch is committed only after
the one before it, so that the positions of a partition move in order. If a commit is refused, what
was staged after it is thrown away, and the positions are asked from the sink anew.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.core.backoff import Backoff
from leasehold.errors import LeaseLost, StoreError, StoreUnavailable
from leasehold.spark.pipeline.committing import Committing
from leasehold.spark.pipeline.events import BatchPlanned, PipelinePartitionOpened, Waiting
from leasehold.spark.pipeline.planning import next_ranges
from leasehold.spark.pipeline.staging import Staging, Work
from leasehold.spark.pipeline.takeover import Takeover
from leasehold.spark.sinks.port import Batch, BatchPart

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.clock import Clock
    from leasehold.events.source import PartitionEnds, RangeSource
    from leasehold.lease.handle import Handle
    from leasehold.processor.events import EventBus
    from leasehold.spark.pipeline.options import PipelineOptions
    from leasehold.spark.pipeline.owned_partitions import OwnedPartitions
    from leasehold.spark.pipeline.planning import BatchFrames
    from leasehold.spark.pipeline.takeover import ResumePoint
    from leasehold.spark.reading import Range
    from leasehold.spark.sinks.port import Sink, Staged

log = logging.getLogger("leasehold.spark")

_IDLE_BACKOFF = Backoff(base_s=0.01, max_s=0.25)
_BACKOFF = Backoff(base_s=0.1, max_s=5.0)
_CHECK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all parts of a running pipeline share."""

    spark: SparkSession
    frames: BatchFrames
    function: Callable[[DataFrame], DataFrame]
    sink: Sink
    shares: OwnedPartitions
    source: RangeSource
    options: PipelineOptions
    board: EventBus
    clock: Clock
    rng: random.Random
    is_stopping: Callable[[], bool]


class Engine:
    """For one run. ``run`` is for the thread that called the pipeline."""

    def __init__(self, around: RunContext) -> None:
        """Nothing is begun."""
        self._around = around
        self._shares = around.shares
        self._options = around.options
        self._clock = around.clock
        self._opening = Takeover(
            sink=around.sink, shares=around.shares, source=around.source, options=around.options
        )
        self._committing = Committing(around)
        self._staging = Staging(around, split=self._split, last=lambda: self._committing.last)
        self._committer = ThreadPoolExecutor(1, "leasehold-commit")
        self._under_way: tuple[Work, Future[bool]] | None = None
        self._done: dict[str, int] = {}  # committed
        self._ahead: dict[str, int] = {}  # planned
        self._unsure: dict[str, Handle] = {}  # held, but where they stand has to be asked
        self._backlog: deque[tuple[Range, ...]] = deque()
        self._number = 0
        self._idle = 0
        self._began_s: float | None = None
        self._looked_s = self._grown_s = self._clock.boottime_s()
        self._targets: dict[str, int] = {}

    def run(self, *, until_caught_up: bool) -> None:
        """Work until asked to stop, or sent away, or everything that was there is done."""
        if until_caught_up:
            source = self._around.source
            self._targets = {
                each: ends.next for each, ends in source.ends(source.partitions()).items()
            }
        try:
            while not self._around.is_stopping() and not self._shares.left:
                self._shares.check()
                self._take_in()
                self._look_for_partitions()
                work = self._next()
                if work is not None:
                    self._do(work)
                elif until_caught_up and self._is_caught_up():
                    return
                else:
                    self._settle()
                    self._committing.catch_up()
                    self._rest()
            self._shares.check()
        finally:
            try:
                self._settle()
            finally:
                self._committer.shutdown()
                self._staging.close()

    def lost(self, key: str) -> None:
        """A partition was lost: cancel the job that reads it. From any thread."""
        self._staging.lost(key)

    # ------------------------------------------------------------- planning

    def _take_in(self) -> None:
        """Open the partitions that came."""
        fresh = self._shares.fresh()
        taken = dict(fresh)
        try:
            if fresh or self._unsure:
                self._settle()
            for partition, tenure in self._unsure.items():
                if partition not in taken and self._shares.begin([tenure]):
                    taken[partition] = tenure
            self._unsure = {}
            if not taken:
                return
            places = self._opened(taken)
        finally:
            self._shares.end(list(taken.values()))
        self._backlog.clear()
        for partition in taken:
            self._done.pop(partition, None)
        for partition, place in places.items():
            self._done[partition] = place.position
            if partition in fresh:
                self._tell_opened(partition, fresh[partition], place)
        self._ahead = dict(self._done)

    def _tell_opened(self, partition: str, tenure: Handle, place: ResumePoint) -> None:
        self._around.board.tell(
            PipelinePartitionOpened(
                holder=tenure.ownership.holder,
                partition=partition,
                epoch=tenure.ownership.epoch,
                position=place.position,
                by=place.by,
            )
        )

    def _opened(self, fresh: dict[str, Handle]) -> dict[str, ResumePoint]:
        failures = 0
        while True:
            held = {each: tenure for each, tenure in fresh.items() if tenure.valid}
            try:
                return self._opening.places(held) if held else {}
            except LeaseLost as lost:  # while they were being opened: the others go on
                log.info("lost while it was opened: %s", lost)
                failures += 1
            except StoreUnavailable as error:
                failures += 1
                self._wait("the sink or the store, to open partitions", error)
            pause_s = _BACKOFF.pause_s(failures, self._around.rng)
            self._shares.pause(pause_s, unless=self._around.is_stopping)
            if self._around.is_stopping():
                return {}

    def _next(self) -> Work | None:
        """The next batch, or None if there is nothing to do."""
        began_s = self._clock.boottime_s()
        if self._too_early_s(began_s) > 0:
            return None
        usable = self._shares.usable()
        positions = {each: self._ahead[each] for each in usable if each in self._ahead}
        try:
            ends = self._around.source.ends(list(positions)) if positions else {}
        except StoreUnavailable as error:
            self._wait("the log", error)
            return None
        found = {each: end.next for each, end in ends.items()}
        lag = sum(found[each] - positions[each] for each in positions)
        is_part = bool(self._backlog)
        if is_part:
            ranges = self._backlog.popleft()
            if any(positions.get(each.partition) != each.start for each in ranges):
                self._again()  # something was lost since it was cut
                return None
        else:
            off = [each for each, at in positions.items() if not _is_readable(at, ends[each])]
            if off:  # trimmed, or made anew: opened again, which knows what to do
                self._unsure.update({each: usable[each] for each in off})
                return None
            ranges = next_ranges(positions, found, max_events=self._options.batch_events)
        if not ranges:
            return None
        return self._work(ranges, usable, began_s=began_s, lag=lag, is_part=is_part)

    def _work(
        self,
        ranges: Sequence[Range],
        usable: dict[str, Handle],
        *,
        began_s: float,
        lag: int,
        is_part: bool,
    ) -> Work:
        tenures = {each.partition: usable[each.partition] for each in ranges}
        shares = tuple(
            BatchPart(range=each, epoch=tenures[each.partition].ownership.epoch) for each in ranges
        )
        batch = Batch(
            group=self._shares.group,
            number=self._number,
            shares=shares,
            holder=next(iter(tenures.values())).ownership.holder,
            began_at=self._clock.utc_now(),
        )
        self._number += 1
        since_s = 0.0 if self._began_s is None else began_s - self._began_s
        self._began_s = began_s
        return Work(
            batch=batch,
            tenures=tenures,
            began_s=began_s,
            since_s=since_s,
            planned_s=self._clock.boottime_s(),
            lag_events=lag,
            is_part=is_part,
        )

    # --------------------------------------------------------------- doing

    def _do(self, work: Work) -> None:
        """Stage the batch while the one before is committed; then begin to commit it."""
        self._idle = 0
        tenures = list(work.tenures.values())
        if not self._shares.begin(tenures):
            self._settle()
            self._again()
            return
        self._around.board.tell(BatchPlanned(**work.told(), lag_events=work.lag_events))
        staged: Staged | None = None
        ours = False
        waiting = len(self._backlog)
        try:
            staged = self._staging.staged(work)
            ours = self._settle()
            if staged is not None and ours:
                for share in work.batch.shares:
                    self._ahead[share.range.partition] = share.range.end
                future = self._committer.submit(self._committing.commit, work, staged)
                self._under_way = (work, future)
                return
        finally:
            if self._under_way is None or self._under_way[0] is not work:
                if staged is not None:
                    self._around.sink.discard(staged)
                self._shares.end(tenures)
        if ours and len(self._backlog) <= waiting:  # it was not cut in two, but given up
            self._again()

    def _settle(self) -> bool:
        """Wait for the commit under way; False if it was refused: then all is planned anew."""
        if self._under_way is None:
            return True
        (work, future), self._under_way = self._under_way, None
        try:
            committed = future.result()
        finally:
            self._shares.end(list(work.tenures.values()))
        if committed:
            for share in work.batch.shares:
                self._done[share.range.partition] = share.range.end
        else:
            self._again(work)
        return committed

    def _again(self, refused: Work | None = None) -> None:
        """Plan anew from what is committed; after a refusal the sink is asked what that is."""
        self._backlog.clear()
        if refused is not None and self._around.sink.atomic:
            self._unsure.update(refused.tenures)
            for partition in refused.tenures:
                self._done.pop(partition, None)
        self._ahead = dict(self._done)

    def _split(self, first: tuple[Range, ...], second: tuple[Range, ...]) -> None:
        """Do these two next, in this order."""
        self._backlog.extendleft((second, first))

    # -------------------------------------------------------------- waiting

    def _rest(self) -> None:
        self._idle += 1
        pause_s = _IDLE_BACKOFF.pause_s(self._idle, self._around.rng)
        left_s = self._too_early_s(self._clock.boottime_s())
        self._shares.wait(
            min(max(pause_s, left_s), _IDLE_BACKOFF.max_s), unless=self._around.is_stopping
        )

    def _too_early_s(self, now_s: float) -> float:
        """How long it is until the next batch may begin."""
        if self._began_s is None:
            return 0.0
        return self._began_s + self._options.interval.total_seconds() - now_s

    def _look_for_partitions(self) -> None:
        now_s = self._clock.boottime_s()
        if now_s - self._grown_s >= self._options.discovery_interval.total_seconds():
            self._grown_s = now_s
            try:
                self._shares.join(self._around.source.partitions())
            except StoreUnavailable as error:
                self._wait("the store, to look for partitions", error)

    def _wait(self, what: str, error: Exception) -> None:
        """Say that something is waited for."""
        log.warning("waiting for %s: %s", what, error)
        self._around.board.tell(Waiting(holder=self._shares.holder, what=what, error=error))

    def _is_caught_up(self) -> bool:
        """Whether all that was there at the start is committed, by whomever."""
        self._settle()
        usable = self._shares.usable()
        open_targets = {
            each: target
            for each, target in self._targets.items()
            if each not in usable or self._done.get(each, -1) < target
        }
        if not open_targets:
            return True
        now_s = self._clock.boottime_s()
        if now_s - self._looked_s < _CHECK_INTERVAL_S:
            return False
        self._looked_s = now_s
        try:
            found = self._shares.done()
            firsts = self._around.source.ends(list(open_targets))
        except StoreError:
            return False
        return all(
            found.get(each, firsts[each].first) >= target for each, target in open_targets.items()
        )


def _is_readable(position: int, ends: PartitionEnds) -> bool:
    """Whether the partition can be read on from there."""
    return ends.first <= position <= ends.next
