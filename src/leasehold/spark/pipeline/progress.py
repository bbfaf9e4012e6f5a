"""The progress of a pipeline in one line a second: batch time, rows/s in and processed, lag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.spark.pipeline.events import (
    BatchCommitted,
    BatchRefused,
    BatchTried,
    EventDropped,
    ShareClosed,
    ShareOpened,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.clock import Clock
    from leasehold.processor.events import HookEvent

_EVERY_S = 1.0
_MOST_WORDS = 60
_WIDTH = 80
_EXACT = 99_999.5
_THOUSANDS = 9_999_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
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
        self.totals = Totals()

    def __call__(self, event: HookEvent) -> None:
        """Take it in."""
        old = self.totals
        match event:
            case BatchCommitted():
                self.totals = Totals(
                    batches=old.batches + 1,
                    rows=old.rows + event.rows,
                    rows_out=old.rows_out + event.rows_out,
                    refused=old.refused,
                    dropped=old.dropped,
                )
            case BatchRefused():
                self.totals = _plus(old, refused=1)
            case EventDropped():
                self.totals = _plus(old, dropped=1)
            case _:
                pass


class ProgressLines:
    """Writes them; a hook. Batches once a second at most, everything else when it happens."""

    def __init__(self, write: Callable[[str], None], *, clock: Clock) -> None:
        """``write`` takes a line."""
        self._write = write
        self._clock = clock
        self._last_s = -_EVERY_S
        self._partitions: set[str] = set()

    def __call__(self, event: HookEvent) -> None:
        """Write about it, if it is worth a line."""
        match event:
            case ShareOpened():
                self._partitions.add(event.partition)
                self._write(
                    f"partition {event.partition} opened at {event.position:,} "
                    f"(by {event.by}), epoch {event.epoch}"
                )
            case ShareClosed():
                self._partitions.discard(event.partition)
                self._write(f"partition {event.partition} closed: {event.reason}")
            case BatchCommitted():
                self._batch(event)
            case BatchRefused():
                who = "the sink" if event.by_sink else "this driver"
                self._write(f"batch {event.number}: {event.rows:,} rows refused by {who}")
                self._write(f"  {event.why}")
            case BatchTried():
                words = f"{type(event.error).__name__}: {event.error}".splitlines()[0]
                self._write(f"batch {event.number} failed ({event.attempt}): {words[:_MOST_WORDS]}")
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
        if now_s - self._last_s < _EVERY_S and event.lag_events:
            return
        self._last_s = now_s
        line = f"batch {event.number}: {event.rows:,} rows in {pace(event)}"
        more = f"{line}, {len(self._partitions)} partitions"
        self._write(more if len(more) <= _WIDTH else line)


def pace(event: BatchCommitted) -> str:
    """How a batch went, short: its time, rows/s that came in and that were processed, the lag.

    Of the first batch nobody can tell how fast its rows came in.
    """
    came = f"{_short(event.in_per_s)}/s in, " if event.in_per_s else ""
    done = f"{_short(event.done_per_s)}/s done"
    return f"{event.batch_s:.2f} s, {came}{done}, lag {_short(event.lag_events)}"


def _short(number: float) -> str:
    """At most six characters up to ten thousand million."""
    if number < _EXACT:
        return f"{number:,.0f}"
    return f"{number / 1e3:,.0f}k" if number < _THOUSANDS else f"{number / 1e6:,.0f}M"


def _plus(old: Totals, *, refused: int = 0, dropped: int = 0) -> Totals:
    return Totals(
        batches=old.batches,
        rows=old.rows,
        rows_out=old.rows_out,
        refused=old.refused + refused,
        dropped=old.dropped + dropped,
    )
