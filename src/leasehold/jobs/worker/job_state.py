"""A job as one worker knows it: what it does with it, and what it has said of it.

One reservation that is at work: its attempts, why it was told to stop, and what comes of it.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What is to be told to the store of a run that has ended.

    ``settled`` is up to where the schedule is done by it; None where the occurrence stays open, for
    somebody else to run, or where it had none.
    """

    outcome: Outcome
    words: str = ""
    settled: datetime | None = None
    retry: bool = False


class ActiveJob:
    """A job that is reserved here and is run, once or, if it fails, several times."""

    def __init__(
        self,
        plan: ReservePlan,
        ownership: Ownership,
        *,
        said: RunNote,
        began: datetime,
        began_s: float,
    ) -> None:
        """Reserved, and not started yet."""
        self.plan = plan
        self.ownership = ownership
        self.said = said
        self.began = began
        self.began_s = began_s
        self.attempt = said.attempt
        self.tries = 0
        self.run: Run | None = None
        self.running = False
        self.cancel: Callable[[], None] | None = None
        self.reason: str | None = None
        self.heir: str | None = None  # who is to have it next, if an operator named one
        self.lost = False
        self.stuck = False
        self.bell: anyio.Event | None = None  # rung when it is told, while somebody waits

    def __str__(self) -> str:
        """For people, behind the name of the job: which occurrence, and which attempt."""
        occurrence = self.plan.occurrence
        moment = "" if occurrence is None else f", {occurrence:%Y-%m-%d %H:%M:%S} UTC"
        return f"{moment}, attempt {self.attempt}" if self.attempt > 1 else moment

    @property
    def seat(self) -> WorkerJob:
        """Whose run it is."""
        return self.plan.seat

    @property
    def key(self) -> str:
        """What is reserved."""
        return self.ownership.key

    def tell(self, reason: str, *, lost: bool = False) -> bool:
        """Have it stop; False if it was told before. A loss overrules all other reasons."""
        first = self.reason is None
        if first or (lost and not self.lost):
            self.reason = reason
        self.lost |= lost
        if self.run is not None:
            self.run.tell(reason)
        if self.bell is not None:
            self.bell.set()
        if first and self.running and self.cancel is not None:
            self.cancel()
        return first

    def last_words(self, verdict: RunResult) -> RunNote:
        """What the log says of it in the end."""
        said = self.said
        return RunNote(
            host=said.host,
            pid=said.pid,
            occurrence=said.occurrence,
            attempt=self.attempt,
            schedule=said.schedule,
            outcome=verdict.outcome,
            exit_code=None if self.run is None else self.run.exit_code,
            words=verdict.words,
        )

    def verdict(self, error: BaseException | None, ended: datetime) -> RunResult:
        """What comes of it, now that its function has ended."""
        if self.lost:
            return RunResult(outcome=Outcome.LOST, words=self.reason or "")
        if self.reason == REPLACED:
            return RunResult(outcome=Outcome.KILLED, words=REPLACED, settled=self.done(ended))
        if self.reason == STOPPED and error is not None:
            return self._stopped(error, ended)
        if self.reason == TIMEOUT:
            limit = self.seat.job.policy.timeout
            words = "" if limit is None else f"it took longer than {limit.total_seconds():g} s"
            return self._failed(words, ended)
        if error is not None:
            return self._failed(_error_text(error), ended)
        words = self.run.words if self.run is not None else ""
        return RunResult(outcome=Outcome.OK, words=words, settled=self.done(ended))

    def _stopped(self, error: BaseException, ended: datetime) -> RunResult:
        if self.plan.kind is not ReserveReason.SERVICE:
            return RunResult(outcome=Outcome.HANDED_OVER, words="the worker was stopped")
        if isinstance(error, asyncio.CancelledError | LeaseLost):
            return RunResult(outcome=Outcome.OK, words=STOPPED)
        return self._failed(_error_text(error), ended)

    def _failed(self, words: str, ended: datetime) -> RunResult:
        again = self.tries <= self.seat.job.policy.retries and self.reason != STOPPED
        # A service is released, and run again by whoever is first. What was stuck is done with.
        again = again and self.plan.kind is not ReserveReason.SERVICE and not self.stuck
        settled = None if again else self.done(ended)
        return RunResult(outcome=Outcome.FAILED, words=words, settled=settled, retry=again)

    def done(self, ended: datetime) -> datetime | None:
        """Up to where the schedule is done by this run; None if that is nowhere new."""
        job, base = self.seat.job, self.plan.occurrence or self.plan.done
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

    BIRTH = "birth"  # the schedule is new to the store: nothing is run
    SCHEDULED = "scheduled"
    SERVICE = "service"
    BY_HAND = "by hand"  # an operator wants a run of a job that has a schedule
    START = "start"  # the worker has started


@dataclass(slots=True, kw_only=True)
class WorkerJob:
    """One job of this worker.

    Attributes:
        number: its place among the jobs of the worker.
        busy: it runs here, or its end is not settled yet.
        starts: it has still to be run because the worker has started.
        rival: the epoch in which somebody else had it then: if that is a run, it is ours too.
        over: a service that has ended here and is not run again.
        barred: the store holds something else under its name, so it can not be run.
        epoch: of its last reservation here.
        failures: of a service, in a row.
        not_before_s: by the clock since boot: nothing is run before.
    """

    number: int
    job: Job
    busy: bool = False
    starts: bool = False
    rival: int | None = None
    over: bool = False
    barred: bool = False
    epoch: int = -1
    failures: int = 0
    not_before_s: float = 0.0
    _late: datetime | None = None
    _ahead: datetime | None = None
    _others: set[str] = field(default_factory=set)

    def signed(self, position: Position) -> Position:
        """The mark with the schedule it was made by."""
        offset = f"{position.offset}{_SCHEDULE_MARKER}{_cut(self.job.words)}"
        return Position(sequence_number=position.sequence_number, offset=offset)

    def compare(self, checkpoint: Checkpoint) -> None:
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

    def note_ahead(self, done: datetime, now: datetime, tolerance: timedelta) -> None:
        """Warn once if all is done up to a moment that is still to come."""
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

    def note_late(self, occurrence: datetime, now: datetime, tolerance: timedelta) -> None:
        """Warn once if nobody has run an occurrence for a while after its time."""
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
    """What a job is to be reserved for.

    Attributes:
        occurrence: the moment it is the run of.
        done: all up to here is done, as was read.
        again: that run was started before.
        wish: the order of an operator that is to be taken with it.
    """

    seat: WorkerJob
    kind: ReserveReason
    occurrence: datetime | None = None
    done: datetime | None = None
    again: bool = False
    wish: OperatorRequest | None = None

    @property
    def key(self) -> str:
        """What is to be reserved."""
        return self.seat.job.key

    @property
    def due(self) -> datetime | None:
        """When its occurrence is to be run; None if it has none."""
        return None if self.occurrence is None else self.occurrence + self.seat.job.shift


def _cut(words: str) -> str:
    return words[:_LONGEST_SCHEDULE]
