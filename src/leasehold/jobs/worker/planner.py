"""Decides what a worker has to reserve, by stored progress and the requests of operators."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.core.next_run import RunLocation, decide
from leasehold.errors import StoreUnavailable, UsageError
from leasehold.jobs import operator_requests
from leasehold.jobs.run_log import Outcome, log_entries, read_progress
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
    """The limits and intervals of a scheduler.

    Attributes:
        max_concurrent: how many jobs it runs at the same time; None: all that it can reserve.
        poll_s: how often it reads the requests of operators.
        spread_s: the nodes spread their calls at random over this time.
        late: it warns if no node runs an occurrence for this long after its time.
    """

    max_concurrent: int | None = None
    poll_s: float = 5.0
    spread_s: float = 0.02
    late: timedelta = timedelta(seconds=60)


class Planner:
    """Plans what to reserve, and when to check a job again that has no plan."""

    def __init__(
        self,
        store: Store,
        keyring: Keyring,
        *,
        clock: Clock,
        skew_clock: SkewClock,
        pace: SchedulerPace,
        check_in: Callable[[WorkerJob, float], None],
    ) -> None:
        """``check_in`` is called with a job and the seconds until it is to be checked again."""
        self.requests: OperatorRequests = operator_requests.OperatorRequests(
            paused={}, run_requests={}
        )
        self.read_s = -math.inf  # when the requests were read, by the clock since boot
        self.not_before_s = -math.inf
        self._store, self._keyring = store, keyring
        self._clock, self._skew_clock = clock, skew_clock
        self._pace, self._check_in = pace, check_in

    # ------------------------------------------------------------ reading

    async def read_requests(self, max_age_s: float) -> None:
        """Read the requests, unless those that are known are younger than ``max_age_s``."""
        now_s = self._clock.boottime_s()
        if now_s - self.read_s >= max_age_s:
            self.requests = await self.answered(operator_requests.read_requests(self._store))
            self.read_s = now_s

    async def poll_requests(self) -> None:
        """Read the requests if it is time to: not too often, and not while the store fails."""
        if self.next_poll_s() <= self._clock.boottime_s():
            await self.read_requests(self._pace.poll_s)

    def next_poll_s(self) -> float:
        """Return when the requests are to be read next, by the clock since boot."""
        return max(self.read_s + self._pace.poll_s, self.not_before_s)

    async def answered(self, answer: Awaitable[T]) -> T:
        """Await an answer of the store, at most for the poll interval."""
        try:
            return await self._clock.bounded(answer, seconds=self._pace.poll_s)
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {self._pace.poll_s:g} s") from None

    async def attempts(
        self, plans: Sequence[ReservePlan], won: Mapping[str, Ownership]
    ) -> dict[str, int]:
        """Return how often each occurrence was started, this time included, by the log."""
        found = {}
        for plan in plans[:_MAX_HISTORY_READS]:
            tries = [
                each.note.attempt
                for each in await self._log(plan.key)
                if each.ran and each.epoch < won[plan.key].epoch
                if each.note.occurrence == plan.occurrence
            ]
            found[plan.key] = (
                max(tries, default=1) + 1
            )  # it was started before, as its progress shows
        return found

    async def ran_since(self, key: str, epoch: int) -> bool:
        """Return whether a run finished in that reservation or in a later one."""
        history = await self._log(key)
        return any(each.epoch >= epoch and each.outcome in _FINISHED for each in history)

    async def newest_term(self, key: str) -> Term | None:
        """Return the last reservation of a job, as the store has it."""
        terms = await self.answered(self._store.history(key, limit=1))
        return terms[0] if terms else None

    async def _log(self, key: str) -> list[RunLogEntry]:
        return log_entries(await self.answered(self._store.history(key, limit=_TERMS)))

    def free_since(self, worker_job: WorkerJob) -> int:
        """Return the epoch at which the job was last known to be free; the next owner raises it."""
        resource = self._keyring.resource(worker_job.job.key)
        known = resource is not None and resource.holder is None
        return max(worker_job.epoch, resource.epoch if known and resource is not None else -1)

    def held_elsewhere(self, key: str) -> bool:
        """Return whether another node had the job when it was last read."""
        resource = self._keyring.resource(key)
        if resource is None or resource.holder in (None, self._keyring.holder):
            return False
        return resource.state in _HELD

    def plans(
        self, worker_jobs: Iterable[WorkerJob], stored: Mapping[str, Checkpoint], *, fresh: bool
    ) -> list[ReservePlan]:
        """Return what to reserve now. ``fresh``: the jobs are reserved here already."""
        now = self._skew_clock.now()
        found = []
        for worker_job in worker_jobs:
            try:
                plan = self._plan(worker_job, stored.get(worker_job.job.key), now, fresh=fresh)
            except UsageError as error:
                log.error("job %s is not run: %s", worker_job.job.name, error)  # noqa: TRY400
                worker_job.unusable = True
                continue
            if plan is not None:
                found.append(plan)
        return found

    def _plan(
        self, worker_job: WorkerJob, checkpoint: Checkpoint | None, now: datetime, *, fresh: bool
    ) -> ReservePlan | None:
        job = worker_job.job
        run_request = self.requests.run_requests.get(job.name)
        ran = read_progress(checkpoint) if job.schedule is not None else None
        done = None if ran is None else ran.done
        if run_request is not None:  # a service is run as one, also on request
            kind = ReserveReason.SERVICE if job.schedule is None else ReserveReason.BY_HAND
            return ReservePlan(worker_job=worker_job, kind=kind, done=done, run_request=run_request)
        if job.schedule is not None and ran is None:
            return ReservePlan(worker_job=worker_job, kind=ReserveReason.NEW_SCHEDULE)
        wait_s = self._wait_s(worker_job, now)
        if wait_s:
            self._check_in(worker_job, wait_s)
            return None
        if worker_job.run_at_start:
            return ReservePlan(worker_job=worker_job, kind=ReserveReason.START, done=done)
        if job.schedule is None or ran is None or checkpoint is None:
            return ReservePlan(worker_job=worker_job, kind=ReserveReason.SERVICE)
        worker_job.warn_if_schedules_differ(checkpoint)
        worker_job.warn_if_ahead(ran.done, now, self._pace.late)
        return self._scheduled(worker_job, job.schedule, ran, now, fresh=fresh)

    def _wait_s(self, worker_job: WorkerJob, now: datetime) -> float:
        """Return how long not to run the job; infinite for a service that has ended."""
        if worker_job.over:
            return math.inf
        wait_s = max(0.0, worker_job.not_before_s - self._clock.boottime_s())
        paused = self.requests.is_paused(worker_job.job.name, now=now)
        return max(wait_s, self._pace.poll_s) if paused else wait_s

    def _scheduled(
        self,
        worker_job: WorkerJob,
        schedule: Schedule,
        ran: ScheduleProgress,
        now: datetime,
        *,
        fresh: bool,
    ) -> ReservePlan | None:
        job = worker_job.job
        elsewhere = not fresh and self.held_elsewhere(job.key)
        decision = decide(
            schedule,
            done=ran.done,
            started=ran.started,
            now=now,
            rules=job.policy,
            location=RunLocation.ELSEWHERE if elsewhere else RunLocation.NOWHERE,
            shift=job.shift,
        )
        if decision.check_at is not None:
            self._check_in(worker_job, max(0.0, (decision.check_at - now).total_seconds()))
        moment = decision.run or decision.waiting
        if moment is None:
            return None
        if not elsewhere:
            worker_job.warn_if_late(moment, now, self._pace.late)
        return ReservePlan(
            worker_job=worker_job,
            kind=ReserveReason.SCHEDULED,
            occurrence=moment,
            done=ran.done,
            again=decision.again,
        )

    def still_requested(
        self, plan: ReservePlan, won: Mapping[str, Ownership], now: datetime
    ) -> bool:
        """Return whether the requests of operators still allow the plan."""
        name = plan.worker_job.job.name
        if plan.run_request is None:
            return plan.kind is ReserveReason.NEW_SCHEDULE or not self.requests.is_paused(
                name, now=now
            )
        ours = operator_requests.request_key(operator_requests.RUN_GROUP, name) in won
        return ours and self.requests.run_requests.get(name) == plan.run_request


def priority_of(plan: ReservePlan) -> tuple[bool, float, int]:
    """Sort requested runs first, then what has waited longest; services last: they do not end."""
    moment = 0.0 if plan.occurrence is None else plan.occurrence.timestamp()
    if plan.kind is ReserveReason.SERVICE:
        moment = math.inf
    return (plan.run_request is None, moment, plan.worker_job.number)
