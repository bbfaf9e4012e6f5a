"""A worker: several jobs, each run by one worker at a time, all under one lease.

Guarantees:

- It runs what it can reserve and stands by for the rest. Whatever it runs it has reserved.
- An occurrence of a schedule is run once over all workers on the same store, whatever their clocks
  say; what happens after a crash is up to the policy of the job.
- The lease side has a thread of its own, so that no function can keep it from renewing.
- ``stop`` lets what runs end, or stops it after a grace; all is released at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from leasehold.clock import SystemClock, host_name, system_random
from leasehold.errors import InvalidOptions, StoreUnavailable
from leasehold.jobs.keyring import Keyring
from leasehold.jobs.run_log import RunNote
from leasehold.jobs.worker.definition import check_jobs
from leasehold.jobs.worker.job_state import STOPPED, ReserveReason, WorkerJob
from leasehold.jobs.worker.planner import SchedulerPace
from leasehold.jobs.worker.runner import Launcher, RunningJobs
from leasehold.jobs.worker.scheduler import STORE_BACKOFF, Scheduler
from leasehold.jobs.worker.skew_clock import SkewClock
from leasehold.names import check_name, last_part, seconds_of
from leasehold.runtime.loop_thread import LoopThread
from leasehold.stores import open_store

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterable

    from leasehold.clock import Clock
    from leasehold.jobs.worker.definition import Job
    from leasehold.jobs.worker.job_state import ActiveJob
    from leasehold.ports import Store
    from leasehold.runtime.loop_thread import LoopLink

log = logging.getLogger("leasehold.jobs")

REPORT_S = 15.0
_DAY_S = 86400.0
_MAX_NAMED = 8
_MAX_TRIES = 10
_MAX_EARLY = 0.25  # of the lease: so much before its time an occurrence may be run


class Worker:
    """Runs jobs as one of any number of workers. ``run`` it once."""

    def __init__(
        self,
        jobs: Iterable[Job],
        *,
        store: str | Store,
        name: str | None = None,
        max_concurrent: int | None = None,
        grace: timedelta = timedelta(seconds=10),
        stop_within: timedelta = timedelta(seconds=5),
        check_interval: timedelta = timedelta(seconds=5),
        late: timedelta = timedelta(seconds=60),
        on_stuck: Callable[[str], None] | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        sides: Callable[[], LoopLink] | None = None,
        identity: Callable[[], tuple[str, str]] | None = None,
    ) -> None:
        """Nothing happens before ``run``.

        ``grace`` is how long what runs may take to end after ``stop``, and ``stop_within`` how long
        a function may take that was told to stop; one that takes longer is stuck.

        ``sides`` says where the lease side lives; else it gets a thread. ``on_stuck`` hears of a
        job that does not stop, and must end the process: nothing else can stop a thread. Without
        it the reservation is kept until the function ends by itself; if it can not be kept, only
        the epoch protects what the function writes to.

        Raises:
            UsageError: no job, or two of one name.
            InvalidName, InvalidDuration, InvalidOptions: with what is wrong and what to write.
        """
        self.jobs = check_jobs(jobs)
        self.abandoned: tuple[str, ...] = ()
        if max_concurrent is not None and max_concurrent < 1:
            raise InvalidOptions(f"max_concurrent must be 1 or more, not {max_concurrent}")
        self.name = check_name(name or "worker", what="holder name")
        self._store = store
        self._grace_s = seconds_of(grace, what="grace", min_s=0.0, max_s=_DAY_S)
        self._stop_s = seconds_of(stop_within, what="stop_within", min_s=0.01, max_s=_DAY_S)
        self._pace = SchedulerPace(
            max_concurrent=max_concurrent,
            look_s=seconds_of(check_interval, what="check_interval", min_s=0.1, max_s=_DAY_S),
            late=late,
        )
        self._on_stuck = on_stuck
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._identity = identity
        self._make_sides = sides
        self._sides: LoopLink | None = None
        self._stopping = False
        self._bell: anyio.Event | None = None  # rung by a stop, while the store is waited for
        self._keyring: Keyring | None = None
        self._scheduler: Scheduler | None = None
        self._runs: RunningJobs | None = None

    # ------------------------------------------------------------ from any thread

    def stop(self) -> None:
        """Begin nothing new, let what runs end, release all; then ``run`` returns."""
        self._stopping = True
        if self._sides is not None:
            self._sides.to_lease(self._stop)

    @property
    def holder(self) -> str:
        """Who this worker is to the others at this moment; empty before it has begun."""
        return "" if self._keyring is None else self._keyring.holder

    def held(self) -> list[str]:
        """The names of the jobs that run here."""
        return [] if self._runs is None else [last_part(key) for key in list(self._runs.active)]

    def status(self) -> str:
        """What it holds, in one line."""
        names = self.held()
        shown = ", ".join(names[:_MAX_NAMED])
        more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
        rest = len(self.jobs) - len(names)
        holds = f"runs {shown}{more}" if names else "runs nothing now"
        return f"{holds}; stands by for {rest:,} of {len(self.jobs):,} jobs"

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Run jobs until ``stop``. Async functions run in the event loop of the caller.

        If it is cancelled it tells all that runs to stop, without a grace, and releases it first.

        Raises:
            StoreUnusable: the store can not serve; said at the start only.
        """
        if self._make_sides is not None:
            self._sides = self._make_sides()
            await self._sides.on_lease(self._live)
            return
        two = LoopThread(self.name)
        self._sides = two
        living = asyncio.wrap_future(two.start(self._live))
        try:
            await asyncio.shield(living)
        except asyncio.CancelledError:
            two.to_lease(self._hurry)
            with anyio.CancelScope(shield=True):
                await asyncio.wait([living])
            raise
        finally:
            living.cancel()  # only if it was cancelled twice
            with anyio.CancelScope(shield=True):
                await two.close()

    async def _live(self) -> None:
        try:
            async with self._opened() as store, anyio.create_task_group() as tasks:
                if store is not None:
                    await self._work(store, tasks)
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:
            first: BaseException = group
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None

    async def _work(self, store: Store, tasks: anyio.abc.TaskGroup) -> None:
        assert self._sides is not None  # noqa: S101 - run sets it
        lease = min(job.lease for job in self.jobs)
        keyring = self._keyring = Keyring(
            store,
            name=self.name,
            lease=lease,
            clock=self._clock,
            rng=self._rng,
            on_lost=self._lost,
            on_asked=self._asked,
            identity=self._identity,
        )
        seats = [
            WorkerJob(number=number, job=job, starts=job.on_start)
            for number, job in enumerate(self.jobs)
        ]
        scheduler = self._scheduler = Scheduler(
            seats,
            store=store,
            keyring=keyring,
            me=RunNote(host=host_name(), pid=os.getpid()),
            clock=self._clock,
            rng=self._rng,
            pace=self._pace,
            almanac=SkewClock(self._clock, max_early_s=lease.total_seconds() * _MAX_EARLY),
        )
        runs = self._runs = scheduler.runs = RunningJobs(
            keyring,
            Launcher(self._sides),
            clock=self._clock,
            rng=self._rng,
            tasks=tasks,
            stop_s=self._stop_s,
            freed=scheduler.freed,
            stuck=self._stuck,
        )
        if self._stopping:
            return
        tasks.start_soon(keyring.keep)
        tasks.start_soon(runs.settle)
        tasks.start_soon(self._report)
        await scheduler.turns()
        await self._end(runs, keyring)

    async def _end(self, runs: RunningJobs, keyring: Keyring) -> None:
        with suppress(TimeoutError):
            await self._clock.bounded(runs.emptied(), seconds=self._grace_s)
        for activity in list(runs.active.values()):
            runs.stop(activity, STOPPED)
        await runs.emptied()
        self.abandoned = tuple(self.held())
        if self.abandoned:  # the lease is left to time: what is stuck is not free
            if self._on_stuck is not None:
                self._on_stuck(self.abandoned[0])
            return
        await keyring.leave()
        log.info("%s: stopped, all is released", keyring.holder)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Store | None]:
        if not isinstance(self._store, str):
            yield self._store
            return
        async with AsyncExitStack() as stack:
            yield await self._patiently(self._store, stack)

    async def _patiently(self, url: str, stack: AsyncExitStack) -> Store | None:
        """The store, as soon as it is there; None if there was a stop before."""
        failures, self._bell = 0, anyio.Event()
        while not self._stopping:
            try:
                return await stack.enter_async_context(open_store(url, clock=self._clock))
            except StoreUnavailable as error:
                failures += 1
                if failures == _MAX_TRIES:
                    raise
                log.warning("the store can not be opened, failure %d: %s", failures, error)
                pause_s = STORE_BACKOFF.pause_s(failures, self._rng)
                with suppress(TimeoutError):
                    await self._clock.bounded(self._bell.wait(), seconds=pause_s)
        return None

    async def _report(self) -> None:
        """Say what is held, again and again; that it is nothing, only when that is new."""
        said = ""
        while True:
            await self._clock.sleep(REPORT_S)
            status = self.status()
            if self.held() or status != said:
                log.info("%s %s", self.name, status)
            said = status

    # ------------------------------------------------------------ what it is told

    def _stop(self) -> None:
        self._stopping = True
        if self._bell is not None:
            self._bell.set()
        if self._scheduler is not None:
            self._scheduler.stop()
        if self._runs is not None:
            for activity in list(self._runs.active.values()):
                if activity.plan.kind is ReserveReason.SERVICE:  # it would never end by itself
                    self._runs.stop(activity, STOPPED)

    def _hurry(self) -> None:
        """Stop, and let nothing have a grace."""
        self._grace_s = 0.0
        self._stop()
        if self._runs is not None:
            for activity in list(self._runs.active.values()):
                self._runs.stop(activity, STOPPED)

    def _lost(self, key: str, reason: str) -> None:
        if self._runs is not None:
            self._runs.lose(key, reason)

    def _asked(self, key: str, by: str | None) -> None:
        """An operator wants somebody else to have a job, or this worker to leave."""
        if not key:
            log.info("%s was asked to leave", self.name)
            self._stop()
            return
        activity = None if self._runs is None else self._runs.active.get(key)
        if activity is None or self._scheduler is None or self._runs is None:
            return
        log.info("job %s is to be had by %s", activity.seat.job.name, by)
        self._scheduler.asked(activity.seat)
        if activity.plan.kind is ReserveReason.SERVICE:  # all others end by themselves
            activity.heir = by
            self._runs.stop(activity, STOPPED)

    def _stuck(self, activity: ActiveJob) -> None:
        if self._on_stuck is None:
            return
        if activity.lost:  # others may have it any moment: there is no time for order
            self._on_stuck(activity.seat.job.name)
        else:
            self._stop()
