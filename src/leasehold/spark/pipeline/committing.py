"""Committing a staged batch: looked at once more, then the sink, then the checkpoint.

The look before the commit is a courtesy: a driver that slept sees by the clock that it is too late
and saves everybody the trouble. What keeps its rows out is the sink, which knows the epochs.
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
    """For one run of a pipeline; in a thread of its own. ``last``: what it committed last."""

    def __init__(self, around: RunContext) -> None:
        """Nothing is committed yet."""
        self._around = around
        self._clock = around.clock
        self._patience_s = min(around.options.drain_timeout.total_seconds(), _MAX_STOP_TIMEOUT_S)
        self._lost_in_a_row = 0
        self._unmarked: dict[str, tuple[Handle, int]] = {}
        self.last: BatchCommitted | None = None

    def commit(self, work: Work, staged: Staged) -> bool:
        """Commit the batch; False if nothing was written, and it is to be planned anew.

        That is if it is not ours any more, or if what was staged is gone.

        Raises:
            SinkChanged: the sink is not as it was left.
            SinkUnfit: the sink does not take these rows.
            BatchFailed: what was staged is gone, again and again.
            All of them name the partitions and ranges of the batch.
        """
        began_s = self._clock.boottime_s()
        try:
            written = self._written(work, staged)
        except LeaseLost as lost:
            self._around.sink.discard(staged)
            by_sink = isinstance(lost, FencedWrite)
            log.warning("batch %s was refused: %s", work.batch.label, lost)
            self._around.board.tell(BatchRefused(**work.told(), why=str(lost), by_sink=by_sink))
            return False
        except BatchFailed as gone:
            self._around.sink.discard(staged)
            self._lost_in_a_row += 1
            self._around.board.tell(
                BatchAttemptFailed(**work.told(), attempt=self._lost_in_a_row, error=gone)
            )
            if self._lost_in_a_row >= _MAX_STAGED_LOSSES:
                name_batch(gone, work.batch)
                raise
            log.warning("batch %s is staged again: %s", work.batch.label, gone)
            return False
        except BaseException as error:
            self._around.sink.discard(staged)
            if isinstance(error, (SinkChanged, SinkUnfit)):
                name_batch(error, work.batch)
            raise
        self._lost_in_a_row = 0
        self._marked(work)
        self._tell(work, written, began_s)
        return True

    def _written(self, work: Work, staged: Staged) -> Written:
        failures = 0
        stopping_s: float | None = None
        while True:
            for tenure in work.tenures.values():
                tenure.check()
            try:
                return self._around.sink.commit(staged, work.batch)
            except StoreUnavailable as error:
                # It may have been done. The sink knows, and says so when it is asked again; when
                # we stop and it stays away, the next owner asks it.
                failures += 1
                now_s = self._clock.boottime_s()
                if self._around.is_stopping():
                    stopping_s = now_s if stopping_s is None else stopping_s
                    if now_s - stopping_s > self._patience_s:
                        raise
                self._wait(f"the sink, to commit {work.batch.label}", error, failures)

    def _marked(self, work: Work) -> None:
        """Write the checkpoints. Without them a sink that keeps positions is right all the same."""
        failures = 0
        for each in work.batch.shares:
            self._unmarked[each.range.partition] = (
                work.tenures[each.range.partition],
                each.range.end,
            )
        while not self.catch_up():
            failures += 1
            if self._around.sink.atomic or not work.is_held:
                return
            error = StoreUnavailable("the checkpoint could not be written")
            self._wait("the store, to write checkpoints", error, failures)

    def catch_up(self) -> bool:
        """Write the checkpoints that could not be written so far; True if none is left."""
        self._unmarked = {
            each: (tenure, at) for each, (tenure, at) in self._unmarked.items() if tenure.valid
        }
        if not self._unmarked:
            return True
        try:
            self._around.shares.mark(self._unmarked)
        except LeaseLost:
            pass  # the partitions are closed by now; the next owner asks the sink
        except StoreError as error:
            log.warning("checkpoints could not be written: %s", error)
            return False
        self._unmarked = {}
        return True

    def _wait(self, what: str, error: Exception, times: int) -> None:
        log.warning("waiting for %s: %s", what, error)
        self._around.board.tell(Waiting(holder=self._around.shares.holder, what=what, error=error))
        self._around.shares.pause(_BACKOFF.pause_s(times, self._around.rng))

    def _tell(self, work: Work, written: Written, began_s: float) -> None:
        now_s = self._clock.boottime_s()
        batch_s = max(now_s - work.began_s, _MIN_S)
        rows = work.batch.rows
        self.last = BatchCommitted(
            **work.told(),
            rows_out=written.rows,
            plan_s=work.planned_s - work.began_s,
            stage_s=began_s - work.planned_s,
            commit_s=now_s - began_s,
            batch_s=batch_s,
            in_per_s=rows / max(work.since_s, _MIN_S) if work.since_s else 0.0,
            done_per_s=rows / batch_s,
            lag_events=max(work.lag_events - rows, 0),
        )
        self._around.board.tell(self.last)
