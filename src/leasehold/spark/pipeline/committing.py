"""The commit of a staged batch: the lease is checked, then the sink commits, then the checkpoint.

The check before the commit only saves work: a driver that was paused sees by the clock that it is
too late. What keeps its rows out is the sink, which knows the epochs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasehold.core.backoff import Backoff
from leasehold.errors import (
    BatchFailed,
    FencedWrite,
    LeaseLost,
    SinkChanged,
    SinkUnfit,
    StoreError,
    StoreUnavailable,
)
from leasehold.spark.pipeline.batch_errors import name_batch
from leasehold.spark.pipeline.events import (
    BatchAttemptFailed,
    BatchCommitted,
    BatchRefused,
    Waiting,
)

if TYPE_CHECKING:
    from leasehold.lease.handle import Handle
    from leasehold.spark.pipeline.engine import RunContext
    from leasehold.spark.pipeline.staging import Work
    from leasehold.spark.sinks.port import Staged, Written

log = logging.getLogger("leasehold.spark")

_BACKOFF = Backoff(base_s=0.05, max_s=1.0)
_MIN_S = 1e-6
_MAX_STAGED_LOSSES = 3
_MAX_STOP_TIMEOUT_S = 30.0


class Committing:
    """Commits the batches of one run, in a separate thread. ``last``: its last commit."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._clock = context.clock
        self._stop_timeout_s = min(
            context.options.drain_timeout.total_seconds(), _MAX_STOP_TIMEOUT_S
        )
        self._consecutive_losses = 0
        self._pending_checkpoints: dict[str, tuple[Handle, int]] = {}
        self.last: BatchCommitted | None = None

    def commit(self, work: Work, staged: Staged) -> bool:
        """Commit the batch; return False if nothing was written, and it must be planned again.

        That is the case if it is no longer owned, or if what was staged is gone.
        """
        began_s = self._clock.boottime_s()
        try:
            written = self._commit(work, staged)
        except LeaseLost as lost:
            self._context.sink.discard(staged)
            by_sink = isinstance(lost, FencedWrite)
            log.warning("batch %s was refused: %s", work.batch.label, lost)
            self._context.event_bus.tell(
                BatchRefused(**work.event_fields(), why=str(lost), by_sink=by_sink)
            )
            return False
        except BatchFailed as gone:
            self._context.sink.discard(staged)
            self._consecutive_losses += 1
            self._context.event_bus.tell(
                BatchAttemptFailed(
                    **work.event_fields(), attempt=self._consecutive_losses, error=gone
                )
            )
            if self._consecutive_losses >= _MAX_STAGED_LOSSES:
                name_batch(gone, work.batch)
                raise
            log.warning("batch %s is staged again: %s", work.batch.label, gone)
            return False
        except BaseException as error:
            self._context.sink.discard(staged)
            if isinstance(error, (SinkChanged, SinkUnfit)):
                name_batch(error, work.batch)
            raise
        self._consecutive_losses = 0
        self._write_checkpoints(work)
        self._report(work, written, began_s)
        return True

    def _commit(self, work: Work, staged: Staged) -> Written:
        failures = 0
        stopping_s: float | None = None
        while True:
            for handle in work.handles.values():
                handle.check()
            try:
                return self._context.sink.commit(staged, work.batch)
            except StoreUnavailable as error:
                # It may have been done. The sink finds out when it is asked again; when
                # we stop and it stays away, the next owner asks it.
                failures += 1
                now_s = self._clock.boottime_s()
                if self._context.is_stopping():
                    stopping_s = now_s if stopping_s is None else stopping_s
                    if now_s - stopping_s > self._stop_timeout_s:
                        raise
                self._wait(f"the sink, to commit {work.batch.label}", error, failures)

    def _write_checkpoints(self, work: Work) -> None:
        """Write the checkpoints. If that fails, a sink that keeps positions is still right."""
        failures = 0
        for each in work.batch.shares:
            self._pending_checkpoints[each.range.partition] = (
                work.handles[each.range.partition],
                each.range.end,
            )
        while not self.write_pending_checkpoints():
            failures += 1
            if self._context.sink.atomic or not work.is_held:
                return
            error = StoreUnavailable("the checkpoint could not be written")
            self._wait("the store, to write checkpoints", error, failures)

    def write_pending_checkpoints(self) -> bool:
        """Write the checkpoints that could not be written so far; return whether none is left."""
        self._pending_checkpoints = {
            each: (handle, at)
            for each, (handle, at) in self._pending_checkpoints.items()
            if handle.valid
        }
        if not self._pending_checkpoints:
            return True
        try:
            self._context.owned.write_checkpoints(self._pending_checkpoints)
        except LeaseLost:
            pass  # the partitions are closed by now; the next owner asks the sink
        except StoreError as error:
            log.warning("checkpoints could not be written: %s", error)
            return False
        self._pending_checkpoints = {}
        return True

    def _wait(self, what: str, error: Exception, attempts: int) -> None:
        log.warning("waiting for %s: %s", what, error)
        self._context.event_bus.tell(
            Waiting(holder=self._context.owned.holder, what=what, error=error)
        )
        self._context.owned.pause(_BACKOFF.pause_s(attempts, self._context.rng))

    def _report(self, work: Work, written: Written, began_s: float) -> None:
        now_s = self._clock.boottime_s()
        batch_s = max(now_s - work.began_s, _MIN_S)
        rows = work.batch.rows
        self.last = BatchCommitted(
            **work.event_fields(),
            rows_out=written.rows,
            plan_s=work.planned_s - work.began_s,
            stage_s=began_s - work.planned_s,
            commit_s=now_s - began_s,
            batch_s=batch_s,
            in_per_s=rows / max(work.since_s, _MIN_S) if work.since_s else 0.0,
            done_per_s=rows / batch_s,
            lag_events=max(work.lag_events - rows, 0),
        )
        self._context.event_bus.tell(self.last)
