"""The state of a job in one worker: the job itself, a plan to reserve it, and its active run."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.core.next_run import settled_by
from leasehold.errors import LeaseLost
from leasehold.jobs.run_log import Outcome, RunNote
from leasehold.model import Position

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    import anyio

    from leasehold.jobs.operator_requests import OperatorRequest
    from leasehold.jobs.worker.definition import Job
    from leasehold.jobs.worker.run import Run
    from leasehold.model import Checkpoint, Ownership

TIMEOUT, REPLACED, STOPPED = "timeout", "replaced", "stopped"


class RunCrashed(Exception):
    """A run ended in a way that nothing is known of its work: ``on_crash`` decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What to write to the store for a run that has ended.

    ``settled`` is the time up to which the schedule is done by it. It is None if the occurrence
    stays open for another node, or if the run had none.
    """

    outcome: Outcome
    words: str = ""
    settled: datetime | None = None
    retry: bool = False


class ActiveJob:
    """A job that is reserved here and is run: once, or again if it fails."""

    def __init__(
        self,
        plan: ReservePlan,
        ownership: Ownership,
        *,
        note: RunNote,
        began: datetime,
        began_s: float,
    ) -> None:
        self.plan = plan
        self.ownership = ownership
        self.note = note
        self.began = began
        self.began_s = began_s
        self.attempt = note.attempt
        self.tries = 0
        self.run: Run | None = None
        self.running = False
        self.cancel: Callable[[], None] | None = None
        self.reason: str | None = None
        self.hand_over_to: str | None = None  # the holder that an operator named
        self.lost = False
        self.stuck = False
        self.stop_event: anyio.Event | None = (
            None  # set by ``request_stop``, during the pause before a retry
        )

    def __str__(self) -> str:
        """Show the occurrence and the attempt, to follow the name of the job."""
        occurrence = self.plan.occurrence
        when = "" if occurrence is None else f", {occurrence:%Y-%m-%d %H:%M:%S} UTC"
        return f"{when}, attempt {self.attempt}" if self.attempt > 1 else when

    @property
    def worker_job(self) -> WorkerJob:
        """The job of this worker that it is a run of."""
        return self.plan.worker_job

    @property
    def key(self) -> str:
        """The key that is reserved."""
        return self.ownership.key

    def request_stop(self, reason: str, *, lost: bool = False) -> bool:
        """Ask it to stop; False if it was asked before. A loss overrules all other reasons."""
        first = self.reason is None
        if first or (lost and not self.lost):
            self.reason = reason
        self.lost |= lost
        if self.run is not None:
            self.run.tell(reason)
        if self.stop_event is not None:
            self.stop_event.set()
        if first and self.running and self.cancel is not None:
            self.cancel()
        return first

    def final_note(self, result: RunResult) -> RunNote:
        """Return the note that the log keeps of it."""
        note = self.note
        return RunNote(
            host=note.host,
            pid=note.pid,
            occurrence=note.occurrence,
            attempt=self.attempt,
            schedule=note.schedule,
            outcome=result.outcome,
            exit_code=None if self.run is None else self.run.exit_code,
            words=result.words,
        )

    def result(self, error: BaseException | None, ended: datetime) -> RunResult:
        """Return the result, now that its function has ended."""
        if self.lost:
            return RunResult(outcome=Outcome.LOST, words=self.reason or "")
        if self.reason == REPLACED:
            return RunResult(
                outcome=Outcome.KILLED, words=REPLACED, settled=self.settled_until(ended)
            )
        if self.reason == STOPPED and error is not None:
            return self._stopped(error, ended)
        if self.reason == TIMEOUT:
            timeout = self.worker_job.job.policy.timeout
            words = "" if timeout is None else f"it took longer than {timeout.total_seconds():g} s"
            return self._failed(words, ended)
        if error is not None:
            return self._raised(error, ended)
        words = self.run.words if self.run is not None else ""
        return RunResult(outcome=Outcome.OK, words=words, settled=self.settled_until(ended))

    def _stopped(self, error: BaseException, ended: datetime) -> RunResult:
        if self.plan.kind is not ReserveReason.SERVICE:
            return RunResult(outcome=Outcome.HANDED_OVER, words="the worker was stopped")
        if isinstance(error, asyncio.CancelledError | LeaseLost):
            return RunResult(outcome=Outcome.OK, words=STOPPED)
        return self._failed(_error_text(error), ended)

    def _raised(self, error: BaseException, ended: datetime) -> RunResult:
        if isinstance(error, RunCrashed):
            return RunResult(outcome=Outcome.CRASHED, words=str(error))
        return self._failed(_error_text(error), ended)

    def _failed(self, words: str, ended: datetime) -> RunResult:
        again = self.tries <= self.worker_job.job.policy.retries and self.reason != STOPPED
        # A service is released, and any node may run it again. A stuck run is not repeated.
        again = again and self.plan.kind is not ReserveReason.SERVICE and not self.stuck
        settled = None if again else self.settled_until(ended)
        return RunResult(outcome=Outcome.FAILED, words=words, settled=settled, retry=again)

    def settled_until(self, ended: datetime) -> datetime | None:
        """Return the time up to which this run settles the schedule; None if it changes nothing."""
        job, base = self.worker_job.job, self.plan.occurrence or self.plan.done
        if job.schedule is None or base is None:
            return None
        settled = settled_by(
            job.schedule,
            base,
            began=self.began,
            ended=ended,
            rules=job.policy,
            shift=job.shift,
        )
        return None if settled == self.plan.done else settled


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


log = logging.getLogger("leasehold.jobs")

_SCHEDULE_MARKER = " by "
_LONGEST_SCHEDULE = 200


class ReserveReason(Enum):
    """Why a job is to be reserved."""

    NEW_SCHEDULE = "new schedule"  # new to the store: nothing is run
    SCHEDULED = "scheduled"
    SERVICE = "service"
    BY_HAND = "by hand"  # an operator requested a run of a job that has a schedule
    START = "start"  # the worker has started


@dataclass(slots=True, kw_only=True)
class WorkerJob:
    """One job of this worker.

    Attributes:
        number: its index among the jobs of the worker.
        busy: it runs here, or its end is not written yet.
        run_at_start: it is still to be run because the worker has started.
        rival_epoch: the epoch under which another node had it then; a run in it counts as the
            run at the start.
        over: a service that has ended here and is not run again.
        unusable: its key holds a position that no schedule has written, so it cannot be run.
        epoch: of its last reservation here.
        failures: failed runs of a service in a row.
        not_before_s: nothing is run before this time, by the clock since boot.
    """

    number: int
    job: Job
    busy: bool = False
    run_at_start: bool = False
    rival_epoch: int | None = None
    over: bool = False
    unusable: bool = False
    epoch: int = -1
    failures: int = 0
    not_before_s: float = 0.0
    _late: datetime | None = None
    _ahead: datetime | None = None
    _others: set[str] = field(default_factory=set)

    def with_schedule(self, position: Position) -> Position:
        """Return the position with the schedule that it was made by."""
        offset = f"{position.offset}{_SCHEDULE_MARKER}{_cut(self.job.words)}"
        return Position(sequence_number=position.sequence_number, offset=offset)

    def warn_if_schedules_differ(self, checkpoint: Checkpoint) -> None:
        """Warn once if another node runs this job by another schedule."""
        theirs = checkpoint.position.offset.partition(_SCHEDULE_MARKER)[2]
        if theirs and theirs != _cut(self.job.words) and theirs not in self._others:
            self._others.add(theirs)
            log.warning(
                "job %s has two schedules: %r here, and %r at another node; give both the same",
                self.job.name,
                self.job.words,
                theirs,
            )

    def warn_if_ahead(self, done: datetime, now: datetime, tolerance: timedelta) -> None:
        """Warn once if the schedule is done up to a time in the future."""
        if done == self._ahead or done - now <= tolerance:
            return
        self._ahead = done
        log.warning(
            "job %s is marked as done up to %s, which is %.0f s from now: a clock was wrong; "
            "nothing of its schedule is run before",
            self.job.name,
            done.isoformat(),
            (done - now).total_seconds(),
        )

    def warn_if_late(self, occurrence: datetime, now: datetime, tolerance: timedelta) -> None:
        """Warn once if no node has run an occurrence for a while after its time."""
        if occurrence == self._late or now - occurrence - self.job.shift <= tolerance:
            return
        self._late = occurrence
        log.warning(
            "job %s is late: nobody has run the occurrence of %s, which was due %.0f s ago",
            self.job.name,
            occurrence.isoformat(),
            (now - occurrence - self.job.shift).total_seconds(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservePlan:
    """Why a job is to be reserved.

    Attributes:
        occurrence: the occurrence to run.
        done: the schedule is done up to this time, as it was read.
        again: that run was started before.
        run_request: the request of an operator that is taken with it.
    """

    worker_job: WorkerJob
    kind: ReserveReason
    occurrence: datetime | None = None
    done: datetime | None = None
    again: bool = False
    run_request: OperatorRequest | None = None

    @property
    def key(self) -> str:
        """The key to reserve."""
        return self.worker_job.job.key

    @property
    def due(self) -> datetime | None:
        """When to run its occurrence; None if it has none."""
        return None if self.occurrence is None else self.occurrence + self.worker_job.job.shift


def _cut(text: str) -> str:
    return text[:_LONGEST_SCHEDULE]
