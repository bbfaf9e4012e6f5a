"""The scheduler of a worker: finds the jobs that are due, reserves them and starts their runs.

Guarantees:

- A run starts only after its job is reserved and after its start is written to the store.
- Jobs that are due at the same time are read in one call, reserved in one and written in one.
- What was read before the reservation counts only if no other node had the job in between, as the
  epoch shows. Otherwise it is read again, under the reservation.
- While the store fails nothing is run; the scheduler retries with growing pauses.
- No occurrence is started, or written as started, much before its time by the store's clock: see
  ``SkewClock``.
"""

from __future__ import annotations

import heapq
import logging
import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from leasehold.core.backoff import Backoff
from leasehold.core.next_run import Overlap, RunLocation, decide
from leasehold.errors import LeaseLost, StoreError
from leasehold.jobs import operator_requests, run_log
from leasehold.jobs.run_log import Outcome, RunNote
from leasehold.jobs.worker.job_state import (
    REPLACED,
    ActiveJob,
    ReservePlan,
    ReserveReason,
    WorkerJob,
)
from leasehold.jobs.worker.planner import Planner, priority_of

if TYPE_CHECKING:
    import random
    from collections.abc import Container, Mapping, Sequence
    from datetime import datetime

    from leasehold.clock import Clock
    from leasehold.jobs.keyring import Keyring
    from leasehold.jobs.worker.job_state import RunResult
    from leasehold.jobs.worker.planner import SchedulerPace
    from leasehold.jobs.worker.runner import RunningJobs
    from leasehold.jobs.worker.skew_clock import SkewClock
    from leasehold.model import Ownership, Position
    from leasehold.ports import Store


class DueQueue:
    """Jobs by number, each with the time of its next check, in seconds since 1970."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def put(self, number: int, at_s: float) -> None:
        """Check this job at ``at_s``, and not at the time that was set before."""
        self._at[number] = at_s
        heapq.heappush(self._heap, (at_s, number))

    def set_earlier(self, number: int, at_s: float) -> None:
        """Check this job at ``at_s`` at the latest."""
        if at_s < self._at.get(number, math.inf):
            self.put(number, at_s)

    def pop_due(self, now_s: float) -> list[int]:
        """Remove and return the jobs whose time has come, earliest first."""
        found = []
        while self._heap and self._heap[0][0] <= now_s:
            at_s, number = heapq.heappop(self._heap)
            if self._at.get(number) == at_s:
                del self._at[number]
                found.append(number)
        return found

    def next_due_s(self) -> float:
        """Return the earliest time that is set; infinite if there is none."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf


log = logging.getLogger("leasehold.jobs")

STORE_BACKOFF = Backoff(base_s=2.0, max_s=15.0)
_LONGEST_SLEEP_S = 1.0  # the wall clock may be set at any time
_JUMP_S = 1.0
_TICK_S = 0.001
_RETRY_S = {ReserveReason.SERVICE: 0.5}  # a standby takes over quickly
_USUAL_RETRY_S = 1.0
_FRESH_REQUESTS_S = 1.0
_POSTPONE_S = 10.0
_NO_RUN, _CREATED = "nothing was to be done", "the schedule begins"


class Scheduler:
    """The loop of one worker: check what is due, decide, reserve, start."""

    def __init__(
        self,
        worker_jobs: Sequence[WorkerJob],
        *,
        store: Store,
        keyring: Keyring,
        me: RunNote,
        clock: Clock,
        rng: random.Random,
        pace: SchedulerPace,
        skew_clock: SkewClock,
    ) -> None:
        """Check all jobs in the first step. ``me`` is where each run note comes from."""
        self.worker_jobs = worker_jobs
        self.stopping = False
        self._store, self._keyring, self._me = store, keyring, me
        self._clock, self._rng, self._pace = clock, rng, pace
        self._numbers = {each.job.name: each.number for each in worker_jobs}
        self._due_queue = DueQueue()
        self._wake = anyio.Event()
        self._skew_clock = skew_clock
        self._planner = Planner(
            store, keyring, clock=clock, skew_clock=skew_clock, pace=pace, check_in=self._check_in
        )
        self._waiting_for_slot: set[int] = set()
        self._drift_s = 0.0
        self._in_doubt: set[str] = set()  # asked for, without an answer
        self.runs: RunningJobs

    # ------------------------------------------------------------ the loop

    async def run_loop(self) -> None:
        """Check and start jobs until ``stop``."""
        self._check_all_now()
        self._drift_s = self._drift()
        await self._ready()
        failures = 0
        while not self.stopping:
            due = [self.worker_jobs[number] for number in self._due_queue.pop_due(self._now_s())]
            try:
                await self._step(due)
                failures = 0
            except (StoreError, LeaseLost) as error:
                failures += 1
                pause_s = STORE_BACKOFF.pause_s(failures, self._rng)
                log.warning("no turn, failure %d, again in %.1f s: %s", failures, pause_s, error)
                for worker_job in due:
                    self._check_in(worker_job, pause_s)
                self._planner.not_before_s = self._clock.boottime_s() + pause_s
                with suppress(TimeoutError):
                    await self._clock.bounded(self._keyring.ready(), seconds=pause_s)
            await self._wait()

    async def _ready(self) -> None:
        while not self.stopping:
            with suppress(TimeoutError):
                await self._clock.bounded(self._keyring.ready(), seconds=_LONGEST_SLEEP_S)
                return

    def stop(self) -> None:
        """Start no further run."""
        self.stopping = True
        self._wake.set()

    def job_released(self, active_job: ActiveJob, result: RunResult) -> None:
        """Note that a job was released here: it may be run again, and a slot is free."""
        worker_job, job = active_job.worker_job, active_job.worker_job.job
        worker_job.epoch = active_job.ownership.epoch
        if active_job.plan.kind is ReserveReason.SERVICE:
            failed = result.outcome is Outcome.FAILED
            worker_job.failures = worker_job.failures + 1 if failed else 0
            worker_job.over = not job.restart
            pause_s = job.policy.pauses.pause_s(max(1, worker_job.failures), self._rng)
            worker_job.not_before_s = max(
                worker_job.not_before_s, self._clock.boottime_s() + pause_s
            )
        if result.outcome is Outcome.CRASHED:  # another node may be quicker
            self.postpone(worker_job)
        self._due_queue.put(worker_job.number, self._next_check_s(worker_job, result))
        for number in self._waiting_for_slot:
            self._due_queue.put(number, 0.0)
        self._waiting_for_slot.clear()
        self._wake.set()

    def _next_check_s(self, worker_job: WorkerJob, result: RunResult) -> float:
        """Return the time of the next occurrence if only that can be due; otherwise 0 (now)."""
        job = worker_job.job
        if job.schedule is None or result.settled is None:
            return 0.0
        following = job.schedule.next(result.settled)
        return 0.0 if following is None else (following + job.shift).timestamp()

    def postpone(self, worker_job: WorkerJob) -> None:
        """Do not reserve this job for a while: another node is to have it."""
        worker_job.not_before_s = self._clock.boottime_s() + _POSTPONE_S

    async def _wait(self) -> None:
        """Wait until a job is due, a run ends, or the clock was set."""
        left_s = min(
            self._due_queue.next_due_s() - self._now_s(),
            self._planner.next_poll_s() - self._clock.boottime_s(),
            _LONGEST_SLEEP_S,
        )
        if not self._wake.is_set() and not self.stopping:
            # Wait at least a tick: the two clocks may differ by the last digit of a second.
            with suppress(TimeoutError):
                await self._clock.bounded(self._wake.wait(), seconds=max(left_s, _TICK_S))
        if self._wake.is_set():
            self._wake = anyio.Event()
        drift_s = self._drift()
        if (
            drift_s < self._drift_s - _JUMP_S
        ):  # set back: jobs that were nearly due would be far away
            self._check_all_now()
        self._drift_s = drift_s

    def _check_all_now(self) -> None:
        for worker_job in self.worker_jobs:
            self._due_queue.put(worker_job.number, 0.0)

    def _drift(self) -> float:
        return self._now_s() - self._clock.boottime_s()

    def _now_s(self) -> float:
        return self._clock.utc_now().timestamp()

    def _check_in(self, worker_job: WorkerJob, in_s: float) -> None:
        self._due_queue.set_earlier(worker_job.number, self._now_s() + in_s)

    # ------------------------------------------------------------ checking

    async def _step(self, due: Sequence[WorkerJob]) -> None:
        any_idle = any(not worker_job.busy for worker_job in due)
        if any_idle and self._pace.spread_s:
            await self._clock.sleep(self._rng.uniform(0.0, self._pace.spread_s))
        await self._planner.poll_requests()
        numbers = (self._numbers.get(name) for name in self._planner.requests.run_requests)
        requested = {number: self.worker_jobs[number] for number in numbers if number is not None}
        checked = {**{worker_job.number: worker_job for worker_job in due}, **requested}
        idle = [
            worker_job
            for worker_job in checked.values()
            if not worker_job.busy and not worker_job.unusable
        ]
        for worker_job in checked.values():
            if worker_job.busy:
                self._check_overlap(worker_job)
        if idle:
            seen_epochs = {
                worker_job.job.key: self._planner.free_since(worker_job) for worker_job in idle
            }
            any_scheduled = any(worker_job.job.schedule is not None for worker_job in idle)
            stored = await self._keyring.checkpoints() if any_scheduled else {}
            plans = self._planner.plans(idle, stored, fresh=False)
            await self._reserve_in_order(plans, seen_epochs)

    def _check_overlap(self, worker_job: WorkerJob) -> None:
        """Stop a job that runs here if its next occurrence is to replace it."""
        active_job, job = self.runs.active.get(worker_job.job.key), worker_job.job
        if active_job is None or job.schedule is None:
            return
        # Only occurrences after its start: it was chosen over all earlier ones.
        running = max(active_job.plan.occurrence or active_job.began, active_job.began - job.shift)
        decision = decide(
            job.schedule,
            done=running,
            started=None,
            now=self._skew_clock.now(),
            rules=job.policy,
            location=RunLocation.HERE,
            shift=job.shift,
        )
        if decision.stop:
            self.runs.stop(active_job, REPLACED)
        elif decision.check_at is not None:
            self._due_queue.put(worker_job.number, decision.check_at.timestamp())

    # ------------------------------------------------------------ reserving

    async def _reserve_in_order(
        self, plans: list[ReservePlan], seen_epochs: Mapping[str, int]
    ) -> None:
        """Reserve as many jobs as there are free slots, in order; start what was reserved."""
        plans.sort(key=lambda plan: (self._planner.held_elsewhere(plan.key), *priority_of(plan)))
        # These run nothing, so they need no slot.
        creations = [plan for plan in plans if plan.kind is ReserveReason.NEW_SCHEDULE]
        plans = [plan for plan in plans if plan.kind is not ReserveReason.NEW_SCHEDULE]
        while not self.stopping and (creations or (plans and self._free_slots() > 0)):
            slots = max(0, self._free_slots())
            chunk, rest = [*creations, *plans[:slots]], plans[slots:]
            creations = []
            await self._reserve(chunk, seen_epochs)
            # The store was read: a job that another node has need not be asked for.
            plans = [plan for plan in rest if not self._planner.held_elsewhere(plan.key)]
            for plan in rest:
                self._check_in(plan.worker_job, _RETRY_S.get(plan.kind, _USUAL_RETRY_S))
        self._waiting_for_slot.update(plan.worker_job.number for plan in plans)

    def _free_slots(self) -> int:
        limit = self._pace.max_concurrent
        return len(self.worker_jobs) if limit is None else limit - len(self.runs.active)

    async def _reserve(self, plans: Sequence[ReservePlan], seen_epochs: Mapping[str, int]) -> None:
        run_notes = {plan.key: self._first_note(plan) for plan in plans}
        # The note until it has run, also if the answer to the reservation is lost.
        wanted = {
            key: replace(each, outcome=Outcome.NO_RUN).to_json() for key, each in run_notes.items()
        }
        for plan in plans:  # until more is known
            self._check_in(plan.worker_job, _RETRY_S.get(plan.kind, _USUAL_RETRY_S))
        sent, sent_s = self._clock.utc_now(), self._clock.boottime_s()
        try:
            won = dict(await self._keyring.take(wanted))
        except (StoreError, LeaseLost):
            self._in_doubt.update(wanted)
            raise
        answered_s = self._clock.boottime_s()
        created: set[str] = set()
        try:
            # In doubt it may be an older reservation: its note is of another run, and its start
            # says nothing about the clocks. It is given back.
            known = {key: each for key, each in won.items() if key not in self._in_doubt}
            await self._compare_clocks(known, sent, sent_s, answered_s)
            ours = [plan for plan in plans if plan.key in known and not self.stopping]
            # Only now: a request whose job another node has would be taken and given back forever.
            run_requests = {_request_key(plan): "" for plan in ours if plan.run_request is not None}
            if run_requests:
                won.update(await self._keyring.take(run_requests))
            created.update(await self._begin(ours, won, seen_epochs, run_notes))
        finally:
            left = [key for key in won if key not in self.runs.active]
            texts = {key: _CREATED if key in created else _NO_RUN for key in left}
            await self._release_unused(
                {
                    key: _no_run_note(run_notes[key], text) if key in run_notes else None
                    for key, text in texts.items()
                }
            )
        self._in_doubt.difference_update(wanted)
        for plan in plans:
            if plan.kind is ReserveReason.START and plan.key not in won:
                self._note_rival(plan)

    async def _compare_clocks(
        self, won: Mapping[str, Ownership], sent: datetime, sent_s: float, answered_s: float
    ) -> None:
        """Compare this clock with the store's, by the start of a reservation."""
        if not won or not self._skew_clock.outdated:
            return
        key, ownership = next(iter(won.items()))
        term = await self._planner.newest_term(key)
        if term is not None and term.epoch == ownership.epoch:
            self._skew_clock.compare(
                term.started_at, sent=sent, sent_s=sent_s, answered_s=answered_s
            )

    def _only_due(self, plans: Sequence[ReservePlan]) -> list[ReservePlan]:
        """Return the plans whose time has come, as far as the clocks are known."""
        now = self._skew_clock.now()
        early = [plan for plan in plans if plan.due is not None and plan.due > now]
        for plan in early:
            self._check_in(plan.worker_job, 0.0)
        return [plan for plan in plans if plan not in early]

    async def _release_unused(self, notes: Mapping[str, RunNote | None]) -> None:
        if notes:
            texts = {key: "" if each is None else each.to_json() for key, each in notes.items()}
            await self._keyring.release(texts)

    def _note_rival(self, plan: ReservePlan) -> None:
        """Remember the epoch under which another node has a job that is to run at the start."""
        resource = self._keyring.resource(plan.key)
        if plan.worker_job.rival_epoch is None and resource is not None:
            plan.worker_job.rival_epoch = (
                resource.epoch if self._planner.held_elsewhere(plan.key) else None
            )

    async def _still_starting(self, plans: Sequence[ReservePlan]) -> list[ReservePlan]:
        """Drop the jobs that are to run at the start and that another node has run meanwhile."""
        for plan in plans:
            worker_job = plan.worker_job
            if plan.kind is ReserveReason.START and worker_job.rival_epoch is not None:
                worker_job.run_at_start = not await self._planner.ran_since(
                    plan.key, worker_job.rival_epoch
                )
                self._check_in(worker_job, 0.0)
        return [
            plan
            for plan in plans
            if plan.kind is not ReserveReason.START or plan.worker_job.run_at_start
        ]

    async def _with_attempts(
        self,
        plans: Sequence[ReservePlan],
        won: Mapping[str, Ownership],
        run_notes: Mapping[str, RunNote],
    ) -> dict[str, RunNote]:
        """Return the notes with the attempt, after writing those to the store."""
        attempts = await self._planner.attempts([plan for plan in plans if plan.again], won)
        counted = {key: replace(run_notes[key], attempt=number) for key, number in attempts.items()}
        if counted:
            await self._keyring.annotate({key: each.to_json() for key, each in counted.items()})
        return {**run_notes, **counted}

    def _first_note(self, plan: ReservePlan) -> RunNote:
        """Return the note that the term begins with."""
        return RunNote(
            host=self._me.host,
            pid=self._me.pid,
            occurrence=plan.occurrence,
            attempt=2 if plan.again else 1,  # at least
            schedule=plan.worker_job.job.words,
        )

    async def _begin(
        self,
        plans: Sequence[ReservePlan],
        won: dict[str, Ownership],
        seen_epochs: Mapping[str, int],
        run_notes: Mapping[str, RunNote],
    ) -> set[str]:
        """Write the starts of what was reserved, and start it; the caller releases the rest.

        Return the keys whose schedule is in the store from now on.
        """
        if not plans:
            return set()
        plans = await self._verified(self._only_due(plans), won, seen_epochs)
        plans = await self._still_starting(plans)
        run_notes = await self._with_attempts(plans, won, run_notes)
        if self.stopping:
            return set()
        positions = {
            plan.key: at for plan in plans if (at := self._start_position(plan)) is not None
        }
        for plan in plans:
            if plan.run_request is not None:
                positions[_request_key(plan)] = operator_requests.taken_position(plan.run_request)
        refused = await self.runs.write_positions(positions)
        self._run([plan for plan in plans if not _refused(plan, refused)], won, run_notes)
        for plan in plans:
            if plan.kind is ReserveReason.NEW_SCHEDULE or _refused(plan, refused):
                self._check_in(plan.worker_job, 0.0)
        created = {plan.key for plan in plans if plan.kind is ReserveReason.NEW_SCHEDULE}
        return created - refused.keys()

    def _run(
        self,
        plans: Sequence[ReservePlan],
        won: Mapping[str, Ownership],
        run_notes: Mapping[str, RunNote],
    ) -> None:
        """Start the runs whose start is written, or need not be."""
        now, now_s = self._skew_clock.now(), self._clock.boottime_s()
        for plan in plans:
            # If its start is written it is run even now: with ``leave`` no other node would.
            late = self.stopping and plan.occurrence is None and plan.run_request is None
            if late or plan.kind is ReserveReason.NEW_SCHEDULE or not self._keyring.valid(plan.key):
                continue
            plan.worker_job.run_at_start = False
            note = run_notes[plan.key]
            self.runs.begin(ActiveJob(plan, won[plan.key], note=note, began=now, began_s=now_s))
            if plan.worker_job.job.policy.overlap is Overlap.REPLACE:
                self._check_in(plan.worker_job, 0.0)

    async def _verified(
        self,
        plans: Sequence[ReservePlan],
        won: Mapping[str, Ownership],
        seen_epochs: Mapping[str, int],
    ) -> list[ReservePlan]:
        """Return the plans that are still right, now that the jobs are reserved here."""
        sure = [plan for plan in plans if won[plan.key].epoch == seen_epochs[plan.key] + 1]
        unsure = [plan for plan in plans if won[plan.key].epoch != seen_epochs[plan.key] + 1]
        any_requested = any(plan.run_request is not None for plan in plans)
        await self._planner.read_requests(0.0 if any_requested else _FRESH_REQUESTS_S)
        if unsure:
            stored = await self._keyring.checkpoints()
            again = self._planner.plans([plan.worker_job for plan in unsure], stored, fresh=True)
            found = {plan.key: plan for plan in again}
            for plan in unsure:
                if found.get(plan.key) == plan:
                    sure.append(plan)
                else:
                    self._check_in(plan.worker_job, 0.0)
        now = self._skew_clock.now()
        return [plan for plan in sure if self._planner.still_requested(plan, won, now)]

    def _start_position(self, plan: ReservePlan) -> Position | None:
        if plan.kind is ReserveReason.NEW_SCHEDULE:
            return plan.worker_job.with_schedule(
                run_log.created_position(self._skew_clock.latest())
            )
        if plan.occurrence is not None:
            return plan.worker_job.with_schedule(run_log.started_position(plan.occurrence))
        return None


def _no_run_note(note: RunNote, words: str) -> RunNote:
    """Return the note of a reservation that ran nothing: it has no occurrence."""
    return replace(note, occurrence=None, outcome=Outcome.NO_RUN, words=words)


def _refused(plan: ReservePlan, keys: Container[str]) -> bool:
    return plan.key in keys or (plan.run_request is not None and _request_key(plan) in keys)


def _request_key(plan: ReservePlan) -> str:
    return operator_requests.request_key(operator_requests.RUN_GROUP, plan.worker_job.job.name)
