"""Deciding what a worker has to reserve, by the marks in the store and the orders of operators."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.core.next_run import RunLocation, decide
from leasehold.errors import StoreUnavailable, UsageError
from leasehold.jobs import operator_requests as orders_
from leasehold.jobs import run_log as marks
from leasehold.jobs.run_log import Outcome, log_entries
from leasehold.jobs.worker.job_state import ReservePlan, ReserveReason
from leasehold.model import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from typing import TypeVar

    from leasehold.clock import Clock
    from leasehold.core.cron import Schedule
    from leasehold.jobs.keyring import Keyring
    from leasehold.jobs.operator_requests import OperatorRequests
    from leasehold.jobs.run_log import RunLogEntry, ScheduleProgress
    from leasehold.jobs.worker.job_state import WorkerJob
    from leasehold.jobs.worker.skew_clock import SkewClock
    from leasehold.model import Checkpoint, Ownership, Term
    from leasehold.ports import Store

    T = TypeVar("T")

log = logging.getLogger("leasehold.jobs")

_HELD = frozenset((State.LEASED, State.BREAKING))
_FINISHED = frozenset((Outcome.OK, Outcome.FAILED, Outcome.KILLED))
_TERMS = 20
_MAX_HISTORY_READS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPace:
    """How a scheduler goes about it.

    Attributes:
        max_concurrent: it runs so many jobs at most; None: all that it can reserve.
        look_s: how often it asks for orders of operators.
        spread_s: nodes do not all ask in the same moment, but within so much.
        late: a warning is given for an occurrence that nobody runs for so long.
    """

    max_concurrent: int | None = None
    look_s: float = 5.0
    spread_s: float = 0.02
    late: timedelta = timedelta(seconds=60)


class Planner:
    """Makes plans, and says of each job that has none when to look at it again."""

    def __init__(
        self,
        store: Store,
        keyring: Keyring,
        *,
        clock: Clock,
        almanac: SkewClock,
        pace: SchedulerPace,
        look_in: Callable[[WorkerJob, float], None],
    ) -> None:
        """``look_in`` hears in how many seconds a job is to be looked at."""
        self.orders: OperatorRequests = orders_.OperatorRequests(paused={}, wanted={})
        self.read_s = -math.inf  # what is known is as old as that, and is never made younger
        self.not_before_s = -math.inf
        self._store, self._keyring = store, keyring
        self._clock, self._almanac = clock, almanac
        self._pace, self._look_in = pace, look_in

    # ------------------------------------------------------------ what is known

    async def read_orders(self, max_old_s: float) -> None:
        """Read the orders, unless those that are known are younger than that."""
        now_s = self._clock.boottime_s()
        if now_s - self.read_s >= max_old_s:
            self.orders = await self.answered(orders_.read_requests(self._store))
            self.read_s = now_s

    async def look_for_orders(self) -> None:
        """Read the orders if it is time to: not too often, and not while there is trouble."""
        if self.next_s() <= self._clock.boottime_s():
            await self.read_orders(self._pace.look_s)

    def next_s(self) -> float:
        """When the orders are to be looked for, by the clock since boot."""
        return max(self.read_s + self._pace.look_s, self.not_before_s)

    async def answered(self, answer: Awaitable[T]) -> T:
        """Await an answer of the store for as long as makes sense.

        Raises:
            StoreUnavailable: it did not come.
        """
        try:
            return await self._clock.bounded(answer, seconds=self._pace.look_s)
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {self._pace.look_s:g} s") from None

    async def attempts(
        self, plans: Sequence[ReservePlan], won: Mapping[str, Ownership]
    ) -> dict[str, int]:
        """How often each occurrence was begun, this time included; the log knows."""
        found = {}
        for plan in plans[:_MAX_HISTORY_READS]:
            tries = [
                each.said.attempt
                for each in await self._log(plan.key)
                if each.ran and each.epoch < won[plan.key].epoch
                if each.said.occurrence == plan.occurrence
            ]
            found[plan.key] = max(tries, default=1) + 1  # it was begun before, says its mark
        return found

    async def ran_since(self, key: str, epoch: int) -> bool:
        """Whether a run came to its end in that reservation, or in a later one."""
        log_ = await self._log(key)
        return any(each.epoch >= epoch and each.outcome in _FINISHED for each in log_)

    async def newest_term(self, key: str) -> Term | None:
        """The last reservation of a job, as the store has it."""
        terms = await self.answered(self._store.history(key, limit=1))
        return terms[0] if terms else None

    async def _log(self, key: str) -> list[RunLogEntry]:
        return log_entries(await self.answered(self._store.history(key, limit=_TERMS)))

    def free_since(self, seat: WorkerJob) -> int:
        """The epoch in which the job was last known to be free: whoever takes it raises that."""
        resource = self._keyring.resource(seat.job.key)
        known = resource is not None and resource.holder is None
        return max(seat.epoch, resource.epoch if known and resource is not None else -1)

    def held_elsewhere(self, key: str) -> bool:
        """Whether somebody else had it when it was last seen."""
        resource = self._keyring.resource(key)
        if resource is None or resource.holder in (None, self._keyring.holder):
            return False
        return resource.state in _HELD

    def plans(
        self, seats: Iterable[WorkerJob], stored: Mapping[str, Checkpoint], *, fresh: bool
    ) -> list[ReservePlan]:
        """What is to be reserved now. ``fresh``: the jobs are ours, so nobody else runs them."""
        now = self._almanac.now()
        found = []
        for seat in seats:
            try:
                plan = self._plan(seat, stored.get(seat.job.key), now, fresh=fresh)
            except UsageError as error:
                log.error("job %s is not run: %s", seat.job.name, error)  # noqa: TRY400
                seat.barred = True
                continue
            if plan is not None:
                found.append(plan)
        return found

    def _plan(
        self, seat: WorkerJob, checkpoint: Checkpoint | None, now: datetime, *, fresh: bool
    ) -> ReservePlan | None:
        job = seat.job
        wish = self.orders.wanted.get(job.name)
        ran = marks.read_progress(checkpoint) if job.schedule is not None else None
        done = None if ran is None else ran.done
        if wish is not None:  # a service is one whoever wants it
            kind = ReserveReason.SERVICE if job.schedule is None else ReserveReason.BY_HAND
            return ReservePlan(seat=seat, kind=kind, done=done, wish=wish)
        if job.schedule is not None and ran is None:
            return ReservePlan(seat=seat, kind=ReserveReason.BIRTH)
        wait_s = self._wait_s(seat, now)
        if wait_s:
            self._look_in(seat, wait_s)
            return None
        if seat.starts:
            return ReservePlan(seat=seat, kind=ReserveReason.START, done=done)
        if job.schedule is None or ran is None or checkpoint is None:
            return ReservePlan(seat=seat, kind=ReserveReason.SERVICE)
        seat.compare(checkpoint)
        seat.note_ahead(ran.done, now, self._pace.late)
        return self._scheduled(seat, job.schedule, ran, now, fresh=fresh)

    def _wait_s(self, seat: WorkerJob, now: datetime) -> float:
        """How long it is to be left alone; a service that is over, for ever."""
        if seat.over:
            return math.inf
        wait_s = max(0.0, seat.not_before_s - self._clock.boottime_s())
        paused = self.orders.is_paused(seat.job.name, now=now)
        return max(wait_s, self._pace.look_s) if paused else wait_s

    def _scheduled(
        self,
        seat: WorkerJob,
        schedule: Schedule,
        ran: ScheduleProgress,
        now: datetime,
        *,
        fresh: bool,
    ) -> ReservePlan | None:
        job = seat.job
        elsewhere = not fresh and self.held_elsewhere(job.key)
        decision = decide(
            schedule,
            done=ran.done,
            started=ran.started,
            now=now,
            rules=job.policy,
            place=RunLocation.ELSEWHERE if elsewhere else RunLocation.NOWHERE,
            shift=job.shift,
        )
        if decision.look_at is not None:
            self._look_in(seat, max(0.0, (decision.look_at - now).total_seconds()))
        moment = decision.run or decision.waits
        if moment is None:
            return None
        if not elsewhere:
            seat.note_late(moment, now, self._pace.late)
        return ReservePlan(
            seat=seat,
            kind=ReserveReason.SCHEDULED,
            occurrence=moment,
            done=ran.done,
            again=decision.again,
        )

    def ordered(self, plan: ReservePlan, won: Mapping[str, Ownership], now: datetime) -> bool:
        """Whether what operators want allows it still."""
        name = plan.seat.job.name
        if plan.wish is None:
            return plan.kind is ReserveReason.BIRTH or not self.orders.is_paused(name, now=now)
        ours = orders_.request_key(orders_.RUN_GROUP, name) in won
        return ours and self.orders.wanted.get(name) == plan.wish


def priority_of(plan: ReservePlan) -> tuple[bool, float, int]:
    """Wishes first, then what has waited longest; services last, since they do not end."""
    moment = 0.0 if plan.occurrence is None else plan.occurrence.timestamp()
    if plan.kind is ReserveReason.SERVICE:
        moment = math.inf
    return (plan.wish is None, moment, plan.seat.number)
