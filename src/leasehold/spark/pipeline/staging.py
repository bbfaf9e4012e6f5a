"""Transforming and staging a batch, and what becomes of one that can not be.

A failure of a whole batch says nothing about which event it was. With a policy that goes on
without the event, the batch is cut in two, and again, until the one event is found. A function that
fails on no events at all is broken; that stops the pipeline under every policy. So does what is no
fault of the events (``trouble``), unless it passes: no event is dropped for it.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from leasehold.core.backoff import Backoff
from leasehold.core.poison_policy import PoisonAction
from leasehold.errors import (
    BatchFailed,
    SinkChanged,
    SinkUnfit,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from leasehold.events.dead_letters import DeadLetter
from leasehold.names import last_part
from leasehold.runtime.tracebacks import reason_of, traceback_of
from leasehold.spark.pipeline.batch_errors import name_batch, storage_error_in
from leasehold.spark.pipeline.events import (
    BatchAttemptFailed,
    BatchRefused,
    BatchStaged,
    EventDropped,
    Waiting,
    pace,
)
from leasehold.spark.pipeline.planning import halves
from leasehold.spark.sinks.port import Staged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.lease.handle import Handle
    from leasehold.spark.pipeline.batch_errors import StorageError
    from leasehold.spark.pipeline.engine import RunContext
    from leasehold.spark.pipeline.events import BatchCommitted
    from leasehold.spark.reading import Range
    from leasehold.spark.sinks.port import Batch

log = logging.getLogger("leasehold.spark")

_BACKOFF = Backoff(base_s=0.1, max_s=5.0)
_USAGE_ERRORS = (AnalysisException, UsageError)
_MAX_ERROR_CHARS = 500
_FIX_ADVICE = "Mend the transformation and start again"
_SKIP_ADVICE = (
    f"{_FIX_ADVICE}, or let the pipeline go on without such events: "
    "PipelineOptions(poison=PoisonPolicy.dead_letter())"
)
_DISK_ADVICE = (
    "It is no fault of the events, and none was dropped: look at the disk it names (`leasehold log "
    "verify` finds damage) and start again"
)
_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A batch, the ownerships it stands on, and when it was planned, by the clock."""

    batch: Batch
    tenures: Mapping[str, Handle]
    began_s: float
    since_s: float
    planned_s: float
    lag_events: int
    is_part: bool = False  # of a batch that failed: tried once, unless it is a single event

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What it reads."""
        return tuple(each.range for each in self.batch.shares)

    @property
    def is_held(self) -> bool:
        """Whether all its partitions may be acted upon at this very moment."""
        return all(each.valid for each in self.tenures.values())

    def told(self) -> dict[str, Any]:
        """What every record about it says."""
        return {
            "holder": self.batch.holder,
            "number": self.batch.number,
            "ranges": self.ranges,
            "rows": self.batch.rows,
        }


class Staging:
    """For one run of a pipeline."""

    def __init__(
        self,
        around: RunContext,
        *,
        split: Callable[[tuple[Range, ...], tuple[Range, ...]], None],
        last: Callable[[], BatchCommitted | None],
    ) -> None:
        """``split`` has two parts of a batch done instead of it; ``last`` was committed last."""
        self._around = around
        self._split = split
        self._last = last
        self._context = around.spark.sparkContext
        self._lock = threading.Lock()
        self._running: tuple[str, frozenset[str]] | None = None
        self._canceller = ThreadPoolExecutor(1, "leasehold-cancel")

    def staged(self, work: Work) -> Staged | None:
        """The rows of the batch, staged; None if it is not to be committed as it is.

        Raises:
            BatchFailed: it can not be done, and the policy says to stop; or events can not be
                read, or rows not be written, whatever the policy says.
            SinkUnfit: its columns do not fit the sink.
            SinkChanged: the sink is not as it was left.
        """
        attempt = silent = 0
        policy = self._around.options.poison
        while True:
            try:
                return self._once(work, attempt)
            except (SinkUnfit, SinkChanged) as error:
                name_batch(error, work.batch)
                raise
            except Exception as error:
                if not work.is_held or self._around.is_stopping():
                    self._refused(work)
                    return None
                trouble = storage_error_in(error)
                if isinstance(trouble, StoreUnavailable):  # no fault of the batch: it passes
                    silent += 1
                    self._wait(f"the sink, to stage {work.batch.label}", trouble, silent)
                    continue
                if isinstance(error, StoreError) or self._is_gone():
                    raise
                if self._is_trimmed(work):  # while it waited: planned anew, which knows what to do
                    log.warning("batch %s: retention was faster", work.batch.label)
                    return None
                attempt += 1
                told = trouble or error
                self._around.board.tell(
                    BatchAttemptFailed(**work.told(), attempt=attempt, error=told)
                )
                if isinstance(error, _USAGE_ERRORS):  # as it is written, it can never work
                    raise _batch_failed(work, error, attempt, advice=_FIX_ADVICE) from error
                if policy.exhausted(attempt) or (work.is_part and work.batch.rows > 1):
                    return self._given_up(work, error, attempt, trouble)
                log.warning("batch %s failed: %s", work.batch.label, reason_of(told))
                self._pause(policy.pauses.pause_s(attempt, self._around.rng))

    def _is_gone(self) -> bool:
        """Whether Spark was stopped, or its Java has died: then no attempt can succeed."""
        gateway = getattr(self._context, "_gateway", None)
        process = getattr(gateway, "proc", None)
        return self._context._jsc is None or (process is not None and process.poll() is not None)  # noqa: SLF001

    def _is_trimmed(self, work: Work) -> bool:
        """Whether retention has removed a part of it since it was planned."""
        try:
            ends = self._around.source.ends([each.partition for each in work.ranges])
        except StoreError:
            return False
        return any(each.start < ends[each.partition].first for each in work.ranges)

    def _wait(self, what: str, error: Exception, times: int) -> None:
        log.warning("waiting for %s: %s", what, error)
        self._around.board.tell(Waiting(holder=self._around.shares.holder, what=what, error=error))
        self._pause(_BACKOFF.pause_s(times, self._around.rng))

    def _pause(self, seconds: float) -> None:
        self._around.shares.pause(seconds, unless=self._around.is_stopping)

    def lost(self, key: str) -> None:
        """Cancel the job under way if it reads this partition. Returns at once."""
        with self._lock:
            running = self._running
        if running is not None and key in running[1]:
            self._canceller.submit(self._context.cancelJobGroup, running[0])

    def _once(self, work: Work, attempt: int) -> Staged:
        if not work.is_held:
            raise next(each.lost() for each in work.tenures.values() if not each.valid)
        batch, clock = work.batch, self._around.clock
        job = f"{batch.holder}-{batch.number}-{attempt}"
        self._context.setJobGroup(job, self._described(batch), interruptOnCancel=True)
        with self._lock:
            keys = (each.ownership.key for each in work.tenures.values())
            self._running = (job, frozenset(keys))
        began_s = clock.boottime_s()
        try:
            staged = self._around.sink.stage(self._output(work), batch)
        finally:
            with self._lock:
                self._running = None
        stage_s = clock.boottime_s() - began_s
        self._around.board.tell(BatchStaged(**work.told(), stage_s=stage_s))
        return staged

    def _described(self, batch: Batch) -> str:
        """What Spark's pages show of the batch, and of how the one before it went."""
        words = f"{batch.group} batch {batch.number}: {batch.rows:,} events, {batch.label}"
        last = self._last()
        return words if last is None else f"{words}; batch {last.number} took {pace(last)}"

    def _output(self, work: Work) -> DataFrame:
        return _check_frame(self._around.function(self._around.frames.of(work.ranges)))

    def _refused(self, work: Work) -> None:
        lost = [each for each in work.tenures.values() if not each.valid]
        why = str(lost[0].lost()) if lost else "the pipeline stops"
        self._around.board.tell(BatchRefused(**work.told(), why=why, by_sink=False))

    def _given_up(
        self, work: Work, error: Exception, attempts: int, trouble: StorageError | None
    ) -> Staged | None:
        policy = self._around.options.poison
        if trouble is not None:
            raise _batch_failed(work, trouble, attempts, advice=_DISK_ADVICE) from error
        if policy.then is PoisonAction.STOP:
            raise _batch_failed(work, error, attempts) from error
        nothing = self._nothing_when_possible(work, attempts)
        if nothing is None:
            self._refused(work)
            return None
        if work.batch.rows > 1:
            self._around.sink.discard(nothing)
            self._split(*halves(work.ranges))
            return None
        return nothing if self._dropped_when_possible(work, error, attempts, nothing) else None

    def _nothing_when_possible(self, work: Work, attempts: int) -> Staged | None:
        """What the function makes of no events, staged; None if there was no time left for it.

        Raises:
            BatchFailed: it fails on no events at all.
        """
        times = 0
        while work.is_held and not self._around.is_stopping():
            try:
                return self._nothing(work.batch)
            except Exception as broken:
                away = storage_error_in(broken)
                if not isinstance(away, StoreUnavailable):
                    advice = _FIX_ADVICE if away is None else _DISK_ADVICE
                    raise _batch_failed(work, away or broken, attempts, advice=advice) from broken
                times += 1
                self._wait(f"the sink, to look into {work.batch.label}", away, times)
        return None

    def _nothing(self, batch: Batch) -> Staged:
        """No events, transformed and staged; a sink whose staging is its write is left alone."""
        frame = _check_frame(self._around.function(self._around.frames.none()))
        if self._around.sink.atomic:
            return self._around.sink.stage(frame, batch)
        frame.write.format("noop").mode("overwrite").save()
        return Staged(None)

    def _dropped_when_possible(
        self, work: Work, error: Exception, attempts: int, nothing: Staged
    ) -> bool:
        """Drop the one event; False if there was no time left to put it anywhere."""
        times = 0
        try:
            while work.is_held and not self._around.is_stopping():
                try:
                    self._dropped(work, error, attempts)
                except StoreUnavailable as away:
                    times += 1
                    self._wait("the dead letters", away, times)
                else:
                    return True
        except BaseException:
            self._around.sink.discard(nothing)
            raise
        self._around.sink.discard(nothing)
        self._refused(work)
        return False

    def _dropped(self, work: Work, error: Exception, attempts: int) -> None:
        """Put the one event into the dead letters, if the policy says so, and tell."""
        (share,) = work.batch.shares
        place, action = share.range, self._around.options.poison.then
        letters = self._around.options.dead_letters
        if action is PoisonAction.DEAD_LETTER and letters is not None:
            source = self._around.source
            found = [
                DeadLetter(
                    event=event,
                    stream=source.name,
                    group=last_part(work.batch.group),
                    partition=place.partition,
                    epoch=share.epoch,
                    attempts=attempts,
                    reason=reason_of(error),
                    traceback=traceback_of(error),
                    failed_at=self._around.clock.utc_now(),
                )
                for batch in source.read(place.partition, place.start, place.end)
                for event in batch
            ]
            self._around.shares.call(letters.send, found)
        self._around.board.tell(
            EventDropped(
                holder=work.batch.holder,
                partition=place.partition,
                epoch=share.epoch,
                sequence_number=place.start,
                action=action.value,
                error=error,
            )
        )

    def close(self) -> None:
        """End its thread, and take its words off the jobs of the caller."""
        self._canceller.shutdown()
        if not self._is_gone():
            for name in _JOB_PROPERTIES:
                self._context.setLocalProperty(name, None)  # type: ignore[arg-type]


def _check_frame(frame: object) -> DataFrame:
    if not isinstance(frame, DataFrame):
        raise UsageError(
            f"the transformation returned {type(frame).__name__}, not a DataFrame: return what is "
            "to be written"
        )
    return frame


def _batch_failed(
    work: Work, error: Exception, attempts: int, *, advice: str = _SKIP_ADVICE
) -> BatchFailed:
    times = "once" if attempts == 1 else f"{attempts} times"
    return BatchFailed(
        f"batch {work.batch.number} ({work.batch.label}) failed {times} and nothing of it was "
        f"committed: {_error_text(error)}. {advice}",
        ranges=tuple(map(str, work.ranges)),
    )


def _error_text(error: Exception) -> str:
    """The error in its own words, without the plan that Spark adds after them."""
    text = reason_of(error).split(";\n", maxsplit=1)[0].strip().removesuffix(".")
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…"
