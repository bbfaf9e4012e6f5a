"""What a pipeline tells its hooks, in the order in which it happens to a batch.

A hook is a function that takes one of these records. It is called in the thread in which the thing
happened, and the pipeline waits for it; if it raises, that is logged and nothing else.

The progress of a pipeline in one line a second: batch time, rows/s in and processed, lag.
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
    """A partition came to this driver; its events come from ``position`` on, as ``by`` says."""

    position: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePartitionClosed(HookEvent):
    """A partition has left this driver."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEvent(HookEvent):
    """What all records of a batch have; ``rows`` are events that go in."""

    number: int
    ranges: tuple[Range, ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlanned(BatchEvent):
    """The batch is about to be transformed. ``lag_events`` of all partitions here, with these."""

    lag_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStaged(BatchEvent):
    """Its rows are written where nobody reads them; its commit comes next."""

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
    """Its commit was refused, or not tried: a partition is not ours any more. Nothing was written.

    ``by_sink``: the sink itself has refused it; else it was seen here before. Only if a commit was
    sent before without an answer (``Waiting``), it may have been written: the next owner asks.
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
    """The sink, the store or the log does not answer; it is asked again. ``what``: for what."""

    what: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDropped(HookEvent):
    """One event can not be transformed. ``action``: skip or dead letter. The batch goes on."""

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
    """What a run has done. ``refused``: batches that were not ours any more when ready."""

    batches: int = 0
    rows: int = 0
    rows_out: int = 0
    refused: int = 0
    dropped: int = 0


class Tally:
    """Counts; a hook."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.totals = PipelineCounts()

    def __call__(self, event: HookEvent) -> None:
        """Take it in."""
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
    """Writes them; a hook. Batches once a second at most, everything else when it happens."""

    def __init__(self, write: Callable[[str], None], *, clock: Clock) -> None:
        """``write`` takes a line."""
        self._write = write
        self._clock = clock
        self._last_s = -_INTERVAL_S
        self._partitions: set[str] = set()

    def __call__(self, event: HookEvent) -> None:
        """Write about it, if it is worth a line."""
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
    """How a batch went, short: its time, rows/s that came in and that were processed, the lag.

    Of the first batch nobody can tell how fast its rows came in.
    """
    came = f"{_format_number(event.in_per_s)}/s in, " if event.in_per_s else ""
    done = f"{_format_number(event.done_per_s)}/s done"
    return f"{event.batch_s:.2f} s, {came}{done}, lag {_format_number(event.lag_events)}"


def _format_number(number: float) -> str:
    """At most six characters up to ten thousand million."""
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
