"""Deciding what a worker runs, reserving it, and beginning it.

Guarantees:

- Nothing is begun without the reservation, and without the mark that it was begun.
- All that is due at one moment is read in one call, reserved in one, and marked in one.
- What was read before the reservation is believed only if nobody had the job in between: the epoch
  says so. Else it is read once more, under the reservation.
- A store in trouble is waited for with growing pauses. Nothing is run meanwhile.
- No occurrence is begun, or marked, much before its time by the store's clock: see ``SkewClock``.

When each job is to be looked at next, by the wall clock. One moment for each.
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
from leasehold.core.next_run import Overlap, RunPlace, decide
from leasehold.errors import LeaseLost, StoreError
from leasehold.jobs import operator_requests as orders_
from leasehold.jobs import run_log as marks
from leasehold.jobs.run_log import Outcome, RunNote
from leasehold.jobs.worker.job_state import (
    REPLACED,
    JobActivity,
    ReservePlan,
    ReserveReason,
    WorkerJob,
)
from leasehold.jobs.worker.planner import Planner, order_of

if TYPE_CHECKING:
    import random
    from collections.abc import Container, Mapping, Sequence
    from datetime import datetime

    from leasehold.clock import Clock
    from leasehold.jobs.keyring import Keyring
    from leasehold.jobs.worker.job_state import RunVerdict
    from leasehold.jobs.worker.planner import SchedulerPace
    from leasehold.jobs.worker.runner import RunningJobs
    from leasehold.jobs.worker.skew_clock import SkewClock
    from leasehold.model import Ownership, Position
    from leasehold.ports import Store


class Agenda:
    """Jobs by number, each with the moment (in seconds since 1970) of its next look."""

    def __init__(self) -> None:
        """Nothing is planned."""
        self._at: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def put(self, number: int, at_s: float) -> None:
        """Look at this one then, and not when it was planned before."""
        self._at[number] = at_s
        heapq.heappush(self._heap, (at_s, number))

    def hasten(self, number: int, at_s: float) -> None:
        """Look at this one then at the latest."""
        if at_s < self._at.get(number, math.inf):
            self.put(number, at_s)

    def due(self, now_s: float) -> list[int]:
        """Those whose moment has come, earliest first; nothing is planned for them any more."""
        found = []
        while self._heap and self._heap[0][0] <= now_s:
            at_s, number = heapq.heappop(self._heap)
            if self._at.get(number) == at_s:
                del self._at[number]
                found.append(number)
        return found

    def next_s(self) -> float:
        """The first moment that is planned; infinite if there is none."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf


log = logging.getLogger("leasehold.jobs")

TROUBLE = Backoff(base_s=2.0, max_s=15.0)
_LONGEST_SLEEP_S = 1.0  # the wall clock may be set at any moment
_JUMP_S = 1.0
_TICK_S = 0.001
_WAIT_S = {ReserveReason.SERVICE: 0.5}  # a standby is to be there at once
_USUAL_WAIT_S = 1.0
_FRESH_ORDERS_S = 1.0
_ASKED_S = 10.0
_NOTHING, _BORN = "nothing was to be done", "the schedule begins"


class Scheduler:
    """The turns of one worker: look, decide, reserve, begin."""

    def __init__(
        self,
        seats: Sequence[WorkerJob],
        *,
        store: Store,
        keyring: Keyring,
        me: RunNote,
        clock: Clock,
        rng: random.Random,
        pace: SchedulerPace,
        almanac: SkewClock,
    ) -> None:
        """All jobs are looked at in the first turn. ``me``: what each note begins with."""
        self.seats = seats
        self.stopping = False
        self._store, self._keyring, self._me = store, keyring, me
        self._clock, self._rng, self._pace = clock, rng, pace
        self._numbers = {each.job.name: each.number for each in seats}
        self._agenda = Agenda()
        self._bell = anyio.Event()
        self._almanac = almanac
        self._planner = Planner(
            store, keyring, clock=clock, almanac=almanac, pace=pace, look_in=self._look
        )
        self._crowded: set[int] = set()
        self._drift_s = 0.0
        self._in_trouble = False
        self.runs: RunningJobs

    # ------------------------------------------------------------ turns

    async def turns(self) -> None:
        """Take turns until ``stop``."""
        self._look_at_all()
        self._drift_s = self._drift()
        await self._ready()
        failures = 0
        while not self.stopping:
            due = [self.seats[number] for number in self._agenda.due(self._now_s())]
            try:
                await self._turn(due)
                failures, self._in_trouble = 0, False
            except (StoreError, LeaseLost) as error:
                failures, self._in_trouble = failures + 1, True
                pause_s = TROUBLE.pause_s(failures, self._rng)
                log.warning("no turn, failure %d, again in %.1f s: %s", failures, pause_s, error)
                for seat in due:
                    self._look(seat, pause_s)
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
        """Begin nothing any more."""
        self.stopping = True
        self._bell.set()

    def freed(self, activity: JobActivity, verdict: RunVerdict) -> None:
        """A job has been released here: it may be run again, and there is room for another one."""
        seat, job = activity.seat, activity.seat.job
        seat.epoch = activity.ownership.epoch
        if activity.plan.kind is ReserveReason.SERVICE:
            failed = verdict.outcome is Outcome.FAILED
            seat.failures = seat.failures + 1 if failed else 0
            seat.over = not job.restart
            pause_s = job.policy.pauses.pause_s(max(1, seat.failures), self._rng)
            seat.not_before_s = max(seat.not_before_s, self._clock.boottime_s() + pause_s)
        self._agenda.put(seat.number, self._next_s(seat, verdict))
        for number in self._crowded:
            self._agenda.put(number, 0.0)
        self._crowded.clear()
        self._bell.set()

    def _next_s(self, seat: WorkerJob, verdict: RunVerdict) -> float:
        """The next occurrence after a run of ours, if that is all there can be; else at once."""
        job = seat.job
        if job.schedule is None or verdict.settled is None:
            return 0.0
        following = job.schedule.next(verdict.settled)
        return 0.0 if following is None else (following + job.shift).timestamp()

    def asked(self, seat: WorkerJob) -> None:
        """Somebody else is to have this one: leave it alone for a while."""
        seat.not_before_s = self._clock.boottime_s() + _ASKED_S

    async def _wait(self) -> None:
        """Until something is due, something ends, or the clock was set."""
        left_s = min(
            self._agenda.next_s() - self._now_s(),
            self._planner.next_s() - self._clock.boottime_s(),
            _LONGEST_SLEEP_S,
        )
        if not self._bell.is_set() and not self.stopping:
            # Never not at all: two ways to count may differ by the last digit of a second.
            with suppress(TimeoutError):
                await self._clock.bounded(self._bell.wait(), seconds=max(left_s, _TICK_S))
        if self._bell.is_set():
            self._bell = anyio.Event()
        drift_s = self._drift()
        if drift_s < self._drift_s - _JUMP_S:  # set back: what was to be soon would be far away
            self._look_at_all()
        self._drift_s = drift_s

    def _look_at_all(self) -> None:
        for seat in self.seats:
            self._agenda.put(seat.number, 0.0)

    def _drift(self) -> float:
        return self._now_s() - self._clock.boottime_s()

    def _now_s(self) -> float:
        return self._clock.utc_now().timestamp()

    def _look(self, seat: WorkerJob, in_s: float) -> None:
        self._agenda.hasten(seat.number, self._now_s() + in_s)

    # ------------------------------------------------------------ looking

    async def _turn(self, due: Sequence[WorkerJob]) -> None:
        fires = any(not seat.busy for seat in due)
        if fires and self._pace.spread_s:
            await self._clock.sleep(self._rng.uniform(0.0, self._pace.spread_s))
        await self._planner.look_for_orders()
        wanted = (self._numbers.get(name) for name in self._planner.orders.wanted)
        called = {number: self.seats[number] for number in wanted if number is not None}
        looked = {**{seat.number: seat for seat in due}, **called}
        idle = [seat for seat in looked.values() if not seat.busy and not seat.barred]
        for seat in looked.values():
            if seat.busy:
                self._beside(seat)
        if idle:
            seen = {seat.job.key: self._planner.free_since(seat) for seat in idle}
            timed = any(seat.job.schedule is not None for seat in idle)
            stored = await self._keyring.checkpoints() if timed else {}
            plans = self._planner.plans(idle, stored, fresh=False)
            await self._fire(plans, seen)

    def _beside(self, seat: WorkerJob) -> None:
        """It runs here: perhaps it has to make room for its own next occurrence."""
        activity, job = self.runs.active.get(seat.job.key), seat.job
        if activity is None or job.schedule is None:
            return
        # Only what comes after it began: it was chosen before all that had come by then.
        running = max(activity.plan.occurrence or activity.began, activity.began - job.shift)
        decision = decide(
            job.schedule,
            done=running,
            started=None,
            now=self._almanac.now(),
            rules=job.policy,
            place=RunPlace.HERE,
            shift=job.shift,
        )
        if decision.stop:
            self.runs.stop(activity, REPLACED)
        elif decision.look_at is not None:
            self._agenda.put(seat.number, decision.look_at.timestamp())

    # ------------------------------------------------------------ reserving

    async def _fire(self, plans: list[ReservePlan], seen: Mapping[str, int]) -> None:
        """Reserve what there is room for, the first ones first; begin what was won."""
        plans.sort(key=lambda plan: (self._planner.held_elsewhere(plan.key), *order_of(plan)))
        births = [plan for plan in plans if plan.kind is ReserveReason.BIRTH]  # they run nothing
        plans = [plan for plan in plans if plan.kind is not ReserveReason.BIRTH]
        while not self.stopping and (births or (plans and self._room() > 0)):
            room = max(0, self._room())
            chunk, rest = [*births, *plans[:room]], plans[room:]
            births = []
            await self._reserve(chunk, seen)
            # The store was looked at: what somebody else has needs no question of its own.
            plans = [plan for plan in rest if not self._planner.held_elsewhere(plan.key)]
            for plan in rest:
                self._look(plan.seat, _WAIT_S.get(plan.kind, _USUAL_WAIT_S))
        self._crowded.update(plan.seat.number for plan in plans)

    def _room(self) -> int:
        most = self._pace.max_concurrent
        return len(self.seats) if most is None else most - len(self.runs.active)

    async def _reserve(self, plans: Sequence[ReservePlan], seen: Mapping[str, int]) -> None:
        said = {plan.key: self._said(plan) for plan in plans}
        # Until it has run that is what is to be said of it, also by a store that gave it unheard.
        wanted = {key: replace(each, outcome=Outcome.NO_RUN).note() for key, each in said.items()}
        for plan in plans:  # until more is known
            self._look(plan.seat, _WAIT_S.get(plan.kind, _USUAL_WAIT_S))
        sent = self._clock.utc_now()
        won = dict(await self._keyring.take(wanted))
        answered = self._clock.utc_now()
        born: set[str] = set()
        try:
            await self._compare_clocks(won, sent, answered)
            ours = [plan for plan in plans if plan.key in won and not self.stopping]
            # Only now: a wish whose job somebody else has would be taken and given back for ever.
            wishes = {_order_key(plan): "" for plan in ours if plan.wish is not None}
            if wishes:
                won.update(await self._keyring.take(wishes))
            born.update(await self._begin(ours, won, seen, said))
        finally:
            left = [key for key in won if key not in self.runs.active]
            notes = {key: _BORN if key in born else _NOTHING for key in left}
            await self._give_back(
                {
                    key: _idle(said[key], words) if key in said else None
                    for key, words in notes.items()
                }
            )
        for plan in plans:
            if plan.kind is ReserveReason.START and plan.key not in won:
                self._meet(plan)

    async def _compare_clocks(
        self, won: Mapping[str, Ownership], sent: datetime, answered: datetime
    ) -> None:
        """The store knows when a reservation began. After trouble it may be one of before."""
        if not won or self._in_trouble or not self._almanac.outdated:
            return
        key, proof = next(iter(won.items()))
        term = await self._planner.newest_term(key)
        if term is not None and term.epoch == proof.epoch:
            self._almanac.compare(term.started_at, sent=sent, answered=answered)

    def _timely(self, plans: Sequence[ReservePlan]) -> list[ReservePlan]:
        """Those whose time has come, as far as the clocks are known by now."""
        now = self._almanac.now()
        early = [plan for plan in plans if plan.due is not None and plan.due > now]
        for plan in early:
            self._look(plan.seat, 0.0)
        return [plan for plan in plans if plan not in early]

    async def _give_back(self, said: Mapping[str, RunNote | None]) -> None:
        if said:
            notes = {key: "" if each is None else each.note() for key, each in said.items()}
            await self._keyring.release(notes)

    def _meet(self, plan: ReservePlan) -> None:
        """Somebody has what was to be run at the start: perhaps a run, perhaps a dead one."""
        resource = self._keyring.resource(plan.key)
        if plan.seat.rival is None and resource is not None:
            plan.seat.rival = resource.epoch if self._planner.held_elsewhere(plan.key) else None

    async def _still_starting(self, plans: Sequence[ReservePlan]) -> list[ReservePlan]:
        """Without those that are run at the start, and which somebody else has run then."""
        for plan in plans:
            seat = plan.seat
            if plan.kind is ReserveReason.START and seat.rival is not None:
                seat.starts = not await self._planner.ran_since(plan.key, seat.rival)
                self._look(seat, 0.0)
        return [plan for plan in plans if plan.kind is not ReserveReason.START or plan.seat.starts]

    async def _counted(
        self,
        plans: Sequence[ReservePlan],
        won: Mapping[str, Ownership],
        said: Mapping[str, RunNote],
    ) -> dict[str, RunNote]:
        """What is said of them, with the attempt; in the store too, before anything is run."""
        attempts = await self._planner.attempts([plan for plan in plans if plan.again], won)
        counted = {key: replace(said[key], attempt=number) for key, number in attempts.items()}
        if counted:
            await self._keyring.annotate({key: each.note() for key, each in counted.items()})
        return {**said, **counted}

    def _said(self, plan: ReservePlan) -> RunNote:
        """What the term begins with."""
        return RunNote(
            host=self._me.host,
            pid=self._me.pid,
            occurrence=plan.occurrence,
            attempt=2 if plan.again else 1,  # at least
            schedule=plan.seat.job.words,
        )

    async def _begin(
        self,
        plans: Sequence[ReservePlan],
        won: dict[str, Ownership],
        seen: Mapping[str, int],
        said: Mapping[str, RunNote],
    ) -> set[str]:
        """Mark what was won as begun, and begin it; the rest is given back by the caller.

        Returns those whose schedule is in the store from now on.
        """
        if not plans:
            return set()
        plans = await self._verified(self._timely(plans), won, seen)
        plans = await self._still_starting(plans)
        said = await self._counted(plans, won, said)
        if self.stopping:
            return set()
        positions = {plan.key: mark for plan in plans if (mark := self._mark(plan)) is not None}
        for plan in plans:
            if plan.wish is not None:
                positions[_order_key(plan)] = orders_.taken(plan.wish)
        refused = await self.runs.mark(positions)
        self._run([plan for plan in plans if not _refused(plan, refused)], won, said)
        for plan in plans:
            if plan.kind is ReserveReason.BIRTH or _refused(plan, refused):
                self._look(plan.seat, 0.0)
        return {plan.key for plan in plans if plan.kind is ReserveReason.BIRTH} - refused.keys()

    def _run(
        self,
        plans: Sequence[ReservePlan],
        won: Mapping[str, Ownership],
        said: Mapping[str, RunNote],
    ) -> None:
        """Begin what is marked as begun, or needs no mark."""
        now, now_s = self._almanac.now(), self._clock.boottime_s()
        for plan in plans:
            # What has its mark by now is run nevertheless: with ``leave`` nobody else would.
            late = self.stopping and plan.occurrence is None and plan.wish is None
            if late or plan.kind is ReserveReason.BIRTH or not self._keyring.valid(plan.key):
                continue
            plan.seat.starts = False
            told = said[plan.key]
            self.runs.begin(JobActivity(plan, won[plan.key], said=told, began=now, began_s=now_s))
            if plan.seat.job.policy.overlap is Overlap.REPLACE:
                self._look(plan.seat, 0.0)

    async def _verified(
        self, plans: Sequence[ReservePlan], won: Mapping[str, Ownership], seen: Mapping[str, int]
    ) -> list[ReservePlan]:
        """Those plans that still stand, now that the jobs are ours."""
        sure = [plan for plan in plans if won[plan.key].epoch == seen[plan.key] + 1]
        unsure = [plan for plan in plans if won[plan.key].epoch != seen[plan.key] + 1]
        wishes = any(plan.wish is not None for plan in plans)
        await self._planner.read_orders(0.0 if wishes else _FRESH_ORDERS_S)
        if unsure:
            stored = await self._keyring.checkpoints()
            again = self._planner.plans([plan.seat for plan in unsure], stored, fresh=True)
            found = {plan.key: plan for plan in again}
            for plan in unsure:
                if found.get(plan.key) == plan:
                    sure.append(plan)
                else:
                    self._look(plan.seat, 0.0)
        now = self._almanac.now()
        return [plan for plan in sure if self._planner.ordered(plan, won, now)]

    def _mark(self, plan: ReservePlan) -> Position | None:
        if plan.kind is ReserveReason.BIRTH:
            return plan.seat.signed(marks.born(self._almanac.now()))
        if plan.occurrence is not None:
            return plan.seat.signed(marks.started(plan.occurrence))
        return None


def _idle(said: RunNote, words: str) -> RunNote:
    """What is said of a reservation that ran nothing: it is the run of no occurrence."""
    return replace(said, occurrence=None, outcome=Outcome.NO_RUN, words=words)


def _refused(plan: ReservePlan, keys: Container[str]) -> bool:
    return plan.key in keys or (plan.wish is not None and _order_key(plan) in keys)


def _order_key(plan: ReservePlan) -> str:
    return orders_.order_key(orders_.WANTED, plan.seat.job.name)
