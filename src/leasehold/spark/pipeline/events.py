"""The events of a pipeline for its hooks, in the order in which a batch causes them.

A hook is a function that takes one of these records. It is called in the thread in which the event
occurred, and the pipeline waits for it; an exception is only logged.

``Tally`` and ``ProgressLines`` are hooks: the counts of a run, and one line a second with batch
time, rows per second in and processed, and lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.processor.events import HookEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.clock import Clock
    from leasehold.spark.reading import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePartitionOpened(HookEvent):
    """This driver acquired a partition and resumes at ``position``, which ``by`` determined."""

    position: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePartitionClosed(HookEvent):
    """A partition has left this driver."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEvent(HookEvent):
    """The fields of all events of a batch; ``rows`` are input events."""

    number: int
    ranges: tuple[Range, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlanned(BatchEvent):
    """The batch is about to be transformed. ``lag_events``: of all owned partitions, with these."""

    lag_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStaged(BatchEvent):
    """Its rows are staged, where no reader sees them; its commit is next."""

    stage_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted(BatchEvent):
    """Its rows are visible and its positions have moved.

    ``in_per_s``: rows since the batch before began, by the time since then; ``done_per_s``: rows by
    the time this batch took alone; they are what Spark calls input and processing rate.
    """

    rows_out: int
    plan_s: float
    stage_s: float
    commit_s: float
    batch_s: float
    in_per_s: float
    done_per_s: float
    lag_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRefused(BatchEvent):
    """Its commit was refused, or not tried: a partition is no longer owned. Nothing was written.

    ``by_sink``: the sink has refused it; else the driver found out first. Only if a commit was sent
    before without an answer (``Waiting``), it may have been written: the next owner asks the sink.
    """

    why: str
    by_sink: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAttemptFailed(BatchEvent):
    """The transformation or the staging failed for the ``attempt``-th time."""

    attempt: int
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(HookEvent):
    """The sink, the store or the log does not answer; the driver retries. ``what``: the action."""

    what: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDropped(HookEvent):
    """One event cannot be transformed. ``action``: skip or dead letter. The batch continues."""

    sequence_number: int
    action: str
    error: BaseException


_INTERVAL_S = 1.0
_MAX_ERROR_CHARS = 60
_WIDTH = 80
_MAX_EXACT = 99_999.5
_MAX_THOUSANDS = 9_999_500


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCounts:
    """What a run has done. ``refused``: batches that were no longer owned when ready."""

    batches: int = 0
    rows: int = 0
    rows_out: int = 0
    refused: int = 0
    dropped: int = 0


class Tally:
    """Counts; a hook."""

    def __init__(self) -> None:
        self.totals = PipelineCounts()

    def __call__(self, event: HookEvent) -> None:
        """Count the event."""
        old = self.totals
        match event:
            case BatchCommitted():
                self.totals = PipelineCounts(
                    batches=old.batches + 1,
                    rows=old.rows + event.rows,
                    rows_out=old.rows_out + event.rows_out,
                    refused=old.refused,
                    dropped=old.dropped,
                )
            case BatchRefused():
                self.totals = _increased(old, refused=1)
            case EventDropped():
                self.totals = _increased(old, dropped=1)
            case _:
                pass


class ProgressLines:
    """Writes progress lines; a hook. Batches at most once a second, everything else immediately."""

    def __init__(self, write: Callable[[str], None], *, clock: Clock) -> None:
        """``write`` takes a line."""
        self._write = write
        self._clock = clock
        self._last_s = -_INTERVAL_S
        self._partitions: set[str] = set()

    def __call__(self, event: HookEvent) -> None:
        """Write a line about the event, if it has one."""
        match event:
            case PipelinePartitionOpened():
                self._partitions.add(event.partition)
                self._write(
                    f"partition {event.partition} opened at {event.position:,} "
                    f"(by {event.by}), epoch {event.epoch}"
                )
            case PipelinePartitionClosed():
                self._partitions.discard(event.partition)
                self._write(f"partition {event.partition} closed: {event.reason}")
            case BatchCommitted():
                self._batch(event)
            case BatchRefused():
                who = "the sink" if event.by_sink else "this driver"
                self._write(f"batch {event.number}: {event.rows:,} rows refused by {who}")
                self._write(f"  {event.why}")
            case BatchAttemptFailed():
                message = f"{type(event.error).__name__}: {event.error}".splitlines()[0]
                self._write(
                    f"batch {event.number} failed ({event.attempt}): {message[:_MAX_ERROR_CHARS]}"
                )
            case Waiting():
                why = str(event.error) or type(event.error).__name__
                self._write(f"waiting for {event.what}: {why.splitlines()[0]}")
            case EventDropped():
                self._write(
                    f"event {event.sequence_number} of partition {event.partition}: {event.action}"
                )
            case _:
                pass

    def _batch(self, event: BatchCommitted) -> None:
        now_s = self._clock.boottime_s()
        if now_s - self._last_s < _INTERVAL_S and event.lag_events:
            return
        self._last_s = now_s
        line = f"batch {event.number}: {event.rows:,} rows in {pace(event)}"
        more = f"{line}, {len(self._partitions)} partitions"
        self._write(more if len(more) <= _WIDTH else line)


def pace(event: BatchCommitted) -> str:
    """Return a short summary of a batch: its time, rows per second in and processed, the lag.

    For the first batch the input rate is not known.
    """
    came = f"{_format_number(event.in_per_s)}/s in, " if event.in_per_s else ""
    done = f"{_format_number(event.done_per_s)}/s done"
    return f"{event.batch_s:.2f} s, {came}{done}, lag {_format_number(event.lag_events)}"


def _format_number(number: float) -> str:
    """Return at most six characters, up to ten thousand million."""
    if number < _MAX_EXACT:
        return f"{number:,.0f}"
    return f"{number / 1e3:,.0f}k" if number < _MAX_THOUSANDS else f"{number / 1e6:,.0f}M"


def _increased(old: PipelineCounts, *, refused: int = 0, dropped: int = 0) -> PipelineCounts:
    return PipelineCounts(
        batches=old.batches,
        rows=old.rows,
        rows_out=old.rows_out,
        refused=old.refused + refused,
        dropped=old.dropped + dropped,
    )
