"""The transformation and staging of a batch, and the handling of one that fails.

A failure of a whole batch does not show which event caused it. With a policy that continues without
the event, the batch is split in two, and again, until the one event is found. A function that fails
on no events at all is broken; that stops the pipeline under every policy. So does a storage error
(``batch_errors``), unless it passes: no event is dropped for it.
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
    """A batch, the ownerships it depends on, and when it was planned, by the clock."""

    batch: Batch
    handles: Mapping[str, Handle]
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
        """Whether all its partitions are owned now."""
        return all(each.valid for each in self.handles.values())

    def event_fields(self) -> dict[str, Any]:
        """Return the fields of every event about it."""
        return {
            "holder": self.batch.holder,
            "number": self.batch.number,
            "ranges": self.ranges,
            "rows": self.batch.rows,
        }


class Staging:
    """Stages the batches of one run of a pipeline."""

    def __init__(
        self,
        context: RunContext,
        *,
        split: Callable[[tuple[Range, ...], tuple[Range, ...]], None],
        last: Callable[[], BatchCommitted | None],
    ) -> None:
        """``split`` processes two parts of a batch instead; ``last`` returns the last commit."""
        self._context = context
        self._split = split
        self._last = last
        self._spark_context = context.spark.sparkContext
        self._lock = threading.Lock()
        self._running: tuple[str, frozenset[str]] | None = None
        self._canceller = ThreadPoolExecutor(1, "leasehold-cancel")

    def staged(self, work: Work) -> Staged | None:
        """Return the rows of the batch, staged; None if it is not to be committed as it is."""
        attempt = outages = 0
        policy = self._context.options.poison
        while True:
            try:
                return self._attempt(work, attempt)
            except (SinkUnfit, SinkChanged) as error:
                name_batch(error, work.batch)
                raise
            except Exception as error:
                if not work.is_held or self._context.is_stopping():
                    self._report_refused(work)
                    return None
                storage_error = storage_error_in(error)
                if isinstance(storage_error, StoreUnavailable):  # no fault of the batch: it passes
                    outages += 1
                    self._wait(f"the sink, to stage {work.batch.label}", storage_error, outages)
                    continue
                if isinstance(error, StoreError) or self._is_gone():
                    raise
                if self._is_trimmed(work):  # while it waited: planning again handles that
                    log.warning("batch %s: retention was faster", work.batch.label)
                    return None
                attempt += 1
                event_fields = storage_error or error
                self._context.event_bus.tell(
                    BatchAttemptFailed(**work.event_fields(), attempt=attempt, error=event_fields)
                )
                if isinstance(error, _USAGE_ERRORS):  # as it is written, it can never work
                    raise _batch_failed(work, error, attempt, advice=_FIX_ADVICE) from error
                if policy.exhausted(attempt) or (work.is_part and work.batch.rows > 1):
                    return self._give_up(work, error, attempt, storage_error)
                log.warning("batch %s failed: %s", work.batch.label, reason_of(event_fields))
                self._pause(policy.pauses.pause_s(attempt, self._context.rng))

    def _is_gone(self) -> bool:
        """Return whether Spark was stopped, or its Java has ended: then no attempt can succeed."""
        gateway = getattr(self._spark_context, "_gateway", None)
        process = getattr(gateway, "proc", None)
        return self._spark_context._jsc is None or (  # noqa: SLF001
            process is not None and process.poll() is not None
        )

    def _is_trimmed(self, work: Work) -> bool:
        """Return whether retention has removed a part of it since it was planned."""
        try:
            ends = self._context.source.ends([each.partition for each in work.ranges])
        except StoreError:
            return False
        return any(each.start < ends[each.partition].first for each in work.ranges)

    def _wait(self, what: str, error: Exception, times: int) -> None:
        log.warning("waiting for %s: %s", what, error)
        self._context.event_bus.tell(
            Waiting(holder=self._context.owned.holder, what=what, error=error)
        )
        self._pause(_BACKOFF.pause_s(times, self._context.rng))

    def _pause(self, seconds: float) -> None:
        self._context.owned.pause(seconds, unless=self._context.is_stopping)

    def lost(self, key: str) -> None:
        """Cancel the running job if it reads this partition. Returns immediately."""
        with self._lock:
            running = self._running
        if running is not None and key in running[1]:
            self._canceller.submit(self._spark_context.cancelJobGroup, running[0])

    def _attempt(self, work: Work, attempt: int) -> Staged:
        if not work.is_held:
            raise next(each.lost() for each in work.handles.values() if not each.valid)
        batch, clock = work.batch, self._context.clock
        job = f"{batch.holder}-{batch.number}-{attempt}"
        self._spark_context.setJobGroup(job, self._describe(batch), interruptOnCancel=True)
        with self._lock:
            keys = (each.ownership.key for each in work.handles.values())
            self._running = (job, frozenset(keys))
        began_s = clock.boottime_s()
        try:
            staged = self._context.sink.stage(self._transform(work), batch)
        finally:
            with self._lock:
                self._running = None
        stage_s = clock.boottime_s() - began_s
        self._context.event_bus.tell(BatchStaged(**work.event_fields(), stage_s=stage_s))
        return staged

    def _describe(self, batch: Batch) -> str:
        """Return the description of the batch for Spark's UI, with the pace of the previous one."""
        text = f"{batch.group} batch {batch.number}: {batch.rows:,} events, {batch.label}"
        last = self._last()
        return text if last is None else f"{text}; batch {last.number} took {pace(last)}"

    def _transform(self, work: Work) -> DataFrame:
        return _check_frame(self._context.function(self._context.frames.of(work.ranges)))

    def _report_refused(self, work: Work) -> None:
        lost = [each for each in work.handles.values() if not each.valid]
        why = str(lost[0].lost()) if lost else "the pipeline stops"
        self._context.event_bus.tell(BatchRefused(**work.event_fields(), why=why, by_sink=False))

    def _give_up(
        self, work: Work, error: Exception, attempts: int, storage_error: StorageError | None
    ) -> Staged | None:
        policy = self._context.options.poison
        if storage_error is not None:
            raise _batch_failed(work, storage_error, attempts, advice=_DISK_ADVICE) from error
        if policy.then is PoisonAction.STOP:
            raise _batch_failed(work, error, attempts) from error
        empty = self._stage_empty_with_retry(work, attempts)
        if empty is None:
            self._report_refused(work)
            return None
        if work.batch.rows > 1:
            self._context.sink.discard(empty)
            self._split(*halves(work.ranges))
            return None
        return empty if self._drop_with_retry(work, error, attempts, empty) else None

    def _stage_empty_with_retry(self, work: Work, attempts: int) -> Staged | None:
        """Stage what the function makes of no events; return None if there was no time for it."""
        times = 0
        while work.is_held and not self._context.is_stopping():
            try:
                return self._stage_empty(work.batch)
            except Exception as broken:
                outage = storage_error_in(broken)
                if not isinstance(outage, StoreUnavailable):
                    advice = _FIX_ADVICE if outage is None else _DISK_ADVICE
                    raise _batch_failed(work, outage or broken, attempts, advice=advice) from broken
                times += 1
                self._wait(f"the sink, to look into {work.batch.label}", outage, times)
        return None

    def _stage_empty(self, batch: Batch) -> Staged:
        """Transform and stage no events; a sink that writes in ``stage`` is left alone."""
        frame = _check_frame(self._context.function(self._context.frames.empty()))
        if self._context.sink.atomic:
            return self._context.sink.stage(frame, batch)
        frame.write.format("noop").mode("overwrite").save()
        return Staged(None)

    def _drop_with_retry(self, work: Work, error: Exception, attempts: int, empty: Staged) -> bool:
        """Drop the one event; return False if there was no time left to store it."""
        times = 0
        try:
            while work.is_held and not self._context.is_stopping():
                try:
                    self._drop(work, error, attempts)
                except StoreUnavailable as outage:
                    times += 1
                    self._wait("the dead letters", outage, times)
                else:
                    return True
        except BaseException:
            self._context.sink.discard(empty)
            raise
        self._context.sink.discard(empty)
        self._report_refused(work)
        return False

    def _drop(self, work: Work, error: Exception, attempts: int) -> None:
        """Put the one event into the dead letters, if the policy says so, and report it."""
        (part,) = work.batch.shares
        event_range, action = part.range, self._context.options.poison.then
        dead_letters = self._context.options.dead_letters
        if action is PoisonAction.DEAD_LETTER and dead_letters is not None:
            source = self._context.source
            found = [
                DeadLetter(
                    event=event,
                    stream=source.name,
                    group=last_part(work.batch.group),
                    partition=event_range.partition,
                    epoch=part.epoch,
                    attempts=attempts,
                    reason=reason_of(error),
                    traceback=traceback_of(error),
                    failed_at=self._context.clock.utc_now(),
                )
                for batch in source.read(event_range.partition, event_range.start, event_range.end)
                for event in batch
            ]
            self._context.owned.call(dead_letters.send, found)
        self._context.event_bus.tell(
            EventDropped(
                holder=work.batch.holder,
                partition=event_range.partition,
                epoch=part.epoch,
                sequence_number=event_range.start,
                action=action.value,
                error=error,
            )
        )

    def close(self) -> None:
        """End its thread, and remove its properties from the caller's jobs."""
        self._canceller.shutdown()
        if not self._is_gone():
            for name in _JOB_PROPERTIES:
                self._spark_context.setLocalProperty(name, None)  # type: ignore[arg-type]


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
    """Return the error's own text, without the plan that Spark adds after it."""
    text = reason_of(error).split(";\n", maxsplit=1)[0].strip().removesuffix(".")
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…"
