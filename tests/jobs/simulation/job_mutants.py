"""Bugs in workers and reservations, each put into the real code by replacing one part of it.

The fault runs must find every one of them, each for what it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tests.lease.simulation.mutants import TRUST, unfenced_writes
from tests.support.replaced import Replacement, replaces

from leasehold.core.cron import Schedule
from leasehold.core.lease_timing import LeaseTiming
from leasehold.core.next_run import RunLocation, RunRules
from leasehold.jobs import OnCrash, Outcome, Policy, Run
from leasehold.jobs.operator_requests import OperatorRequest, OperatorRequests
from leasehold.jobs.run_log import RunNote
from leasehold.jobs.worker.job_state import ActiveJob, ReservePlan, RunResult
from leasehold.jobs.worker.planner import Planner
from leasehold.jobs.worker.runner import RunningJobs
from leasehold.jobs.worker.scheduler import Scheduler
from leasehold.jobs.worker.skew_clock import SkewClock
from leasehold.model import Ownership, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMutant:
    """A bug: what it is called, as what it has to be found, and the part that has it."""

    name: str
    found_as: str
    part: Replacement


# ------------------------------------------------------------------ trust


@replaces(TRUST)
def trusts_forever(_original: Any) -> Any:
    """Reserved once, reserved for good."""

    def trusted_until(self: LeaseTiming, sent_at_s: float) -> float:
        del self, sent_at_s
        return math.inf

    return trusted_until


@replaces("leasehold.jobs.worker.run:Run.check")
def checks_nothing(_original: Any) -> Any:
    """The function asks whether it may continue, and is never told that it must not."""

    def check(self: Run) -> None:
        del self

    return check


@replaces("leasehold.jobs.worker.runner:RunningJobs.lose")
def keeps_the_loss_to_itself(_original: Any) -> Any:
    """The worker knows of the loss, and does not stop the function."""

    def lose(self: RunningJobs, key: str, reason: str) -> None:
        del self, key, reason

    return lose


@replaces("leasehold.jobs.worker.runner:RunningJobs.stop")
def releases_before_the_end(original: Any) -> Any:
    """A job is released when its function was asked to stop, not when it has ended."""

    def stop(self: RunningJobs, active_job: ActiveJob, reason: str) -> None:
        original(self, active_job, reason)
        now = self._ended_at(active_job)
        self._finish(active_job, active_job.result(asyncio.CancelledError(), now))

    return stop


# ------------------------------------------------------------------ occurrences


@replaces("leasehold.jobs.worker.scheduler:Scheduler._start_position")
def starts_unseen(original: Any) -> Any:
    """The start of an occurrence is not stored before its run begins."""

    def start_position(self: Scheduler, plan: ReservePlan) -> Position | None:
        position: Position | None = original(self, plan)
        return position if plan.occurrence is None else None

    return start_position


@replaces("leasehold.jobs.run_log:done_position")
def never_done(_original: Any) -> Any:
    """The end of an occurrence is stored like its start."""

    def done_position(occurrence: datetime) -> Position:
        return Position(
            sequence_number=2 * int(occurrence.timestamp()),
            offset=f"occurrence {occurrence.isoformat()}",
        )

    return done_position


@replaces("leasehold.jobs.worker.planner:decide")
def runs_again_after_a_crash(original: Any) -> Any:
    """``on_crash`` is ignored."""

    def decide(
        schedule: Schedule,
        *,
        done: datetime,
        started: datetime | None,
        now: datetime,
        rules: RunRules,
        location: RunLocation = RunLocation.NOWHERE,
        shift: timedelta = timedelta(0),
    ) -> Any:
        assert isinstance(rules, Policy)
        again = replace(rules, on_crash=OnCrash.RERUN)
        return original(
            schedule,
            done=done,
            started=started,
            now=now,
            rules=again,
            location=location,
            shift=shift,
        )

    return decide


@replaces("leasehold.core.next_run:_due")
def passes_over_what_was_missed(_original: Any) -> Any:
    """Only the latest of the missed occurrences is run, whatever ``catch_up`` says."""

    def due(
        schedule: Schedule, first: datetime, now: datetime, rules: RunRules, shift: timedelta
    ) -> datetime | None:
        del rules
        return schedule.previous(now - shift) or first

    return due


@replaces("leasehold.jobs.worker.job_state:settled_by")
def counts_what_came_meanwhile_as_done(_original: Any) -> Any:
    """What came while a run lasted is done, also where it has to be run."""

    def settled_by(
        schedule: Schedule,
        occurrence: datetime,
        *,
        began: datetime,
        ended: datetime,
        rules: RunRules,
        shift: timedelta = timedelta(0),
    ) -> datetime:
        del began, rules
        return max(occurrence, schedule.previous(ended - shift) or occurrence)

    return settled_by


@replaces("leasehold.jobs.worker.planner:Planner.attempts")
def counts_no_attempts(_original: Any) -> Any:
    """Every try of an occurrence is the first one."""

    async def attempts(
        self: Planner, plans: Sequence[ReservePlan], won: Mapping[str, Ownership]
    ) -> dict[str, int]:
        del self, won
        return {plan.key: 1 for plan in plans}

    return attempts


# ------------------------------------------------------------------ clocks


@replaces("leasehold.jobs.worker.skew_clock:SkewClock.now")
def follows_its_own_clock(_original: Any) -> Any:
    """What is due is decided by the wall clock of the node."""

    def now(self: SkewClock) -> datetime:
        return self._clock.utc_now()

    return now


@replaces("leasehold.jobs.worker.skew_clock:SkewClock.latest")
def begins_in_the_past(_original: Any) -> Any:
    """A new schedule begins by the clock of the node, which may be behind."""

    def latest(self: SkewClock) -> datetime:
        return self.now()

    return latest


@replaces("leasehold.jobs.worker.scheduler:Scheduler._compare_clocks")
def compares_no_clocks(_original: Any) -> Any:
    """The clock is never compared with the store's."""

    async def compare_clocks(
        self: Scheduler,
        won: Mapping[str, Ownership],
        sent: datetime,
        sent_s: float,
        answered_s: float,
    ) -> None:
        del self, won, sent, sent_s, answered_s

    return compare_clocks


# ------------------------------------------------------------------ operators


@replaces("leasehold.jobs.operator_requests:OperatorRequests.is_paused")
def ignores_pauses(_original: Any) -> Any:
    """A job runs although operators have paused it."""

    def is_paused(self: OperatorRequests, name: str, *, now: datetime) -> bool:
        del self, name, now
        return False

    return is_paused


@replaces("leasehold.jobs.operator_requests:taken_position")
def takes_a_request_again(_original: Any) -> Any:
    """A run that was requested is not marked as taken."""

    def taken_position(request: OperatorRequest) -> Position:
        return Position(sequence_number=request.number, offset="{}")

    return taken_position


# ------------------------------------------------------------------ the store, the history


@replaces("leasehold.jobs.worker.job_state:ActiveJob.final_note")
def all_is_well(original: Any) -> Any:
    """The history says of every run that it was ok."""

    def final_note(self: ActiveJob, result: RunResult) -> RunNote:
        note: RunNote = original(self, result)
        return replace(note, outcome=Outcome.OK)

    return final_note


MUTANTS = [
    JobMutant(name=name, found_as=found_as, part=part)
    for name, found_as, part in (
        ("trusts forever", "the store does not grant it any more", trusts_forever),
        ("checks nothing", "acts, and the store does not grant", checks_nothing),
        ("keeps the loss to itself", "still runs on", keeps_the_loss_to_itself),
        ("releases before the end", "still runs on|began while", releases_before_the_end),
        ("starts unseen", "its start is not stored", starts_unseen),
        ("never done", "not up to date", never_done),
        ("runs again after a crash", "to be left after a crash", runs_again_after_a_crash),
        ("passes over what was missed", "was passed over", passes_over_what_was_missed),
        (
            "counts what came meanwhile as done",
            "was passed over",
            counts_what_came_meanwhile_as_done,
        ),
        ("counts no attempts", "again as attempt 1", counts_no_attempts),
        ("follows its own clock", "s before its time", follows_its_own_clock),
        ("begins in the past", "s in the past", begins_in_the_past),
        ("compares no clocks", "s before its time|s in the past", compares_no_clocks),
        ("ignores pauses", "and was paused", ignores_pauses),
        ("takes a request again", "and runs once more", takes_a_request_again),
        ("all is well", "the history says Outcome.OK", all_is_well),
        ("unfenced checkpoints", "a write of epoch", unfenced_writes),
    )
]
