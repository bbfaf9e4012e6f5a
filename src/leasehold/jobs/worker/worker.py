"""A worker: several jobs, each run by one worker at a time, all under one lease.

Guarantees:

- It runs only jobs that it has reserved, and stands by for the others.
- An occurrence of a schedule is run once over all workers on the same store, whatever their clocks
  show. What happens after a crash depends on the policy of the job.
- The lease side has its own thread, so no function can delay a renewal.
- ``stop`` lets running jobs end, or stops them after ``grace``; then all jobs are released.
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
_MAX_EARLY = 0.25  # of the lease: how long before its time an occurrence may be run


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
        """Make a worker; nothing happens before ``run``.

        ``grace`` is how long running jobs may take to end after ``stop``; ``stop_within`` is how
        long a function may take that was asked to stop. One that takes longer is stuck.

        ``sides`` makes the lease side; by default it gets a thread. ``on_stuck`` is called with a
        job that does not stop, and must end the process: nothing else can stop a thread. Without
        it the reservation is kept until the function ends. If it cannot be kept, only the epoch
        protects what the function writes to.

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
            poll_s=seconds_of(check_interval, what="check_interval", min_s=0.1, max_s=_DAY_S),
            late=late,
        )
        self._on_stuck = on_stuck
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._identity = identity
        self._make_sides = sides
        self._sides: LoopLink | None = None
        self._stopping = False
        self._stop_event: anyio.Event | None = (
            None  # set by ``stop``, while the store is waited for
        )
        self._keyring: Keyring | None = None
        self._scheduler: Scheduler | None = None
        self._runs: RunningJobs | None = None

    # ------------------------------------------------------------ from any thread

    def stop(self) -> None:
        """Start no further run, let running jobs end, release all; then ``run`` returns."""
        self._stopping = True
        if self._sides is not None:
            self._sides.to_lease(self._stop)

    @property
    def holder(self) -> str:
        """The current holder id of this worker; empty before it has started."""
        return "" if self._keyring is None else self._keyring.holder

    def held(self) -> list[str]:
        """Return the names of the jobs that run here."""
        return [] if self._runs is None else [last_part(key) for key in list(self._runs.active)]

    def status(self) -> str:
        """Return what it runs, in one line."""
        names = self.held()
        shown = ", ".join(names[:_MAX_NAMED])
        more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
        rest = len(self.jobs) - len(names)
        holds = f"runs {shown}{more}" if names else "runs nothing now"
        return f"{holds}; stands by for {rest:,} of {len(self.jobs):,} jobs"

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Run jobs until ``stop``. Async functions run in the event loop of the caller.

        If it is cancelled it asks all running jobs to stop, without ``grace``, and releases them.

        Raises:
            StoreUnusable: the store cannot serve; raised at the start only.
        """
        if self._make_sides is not None:
            self._sides = self._make_sides()
            await self._sides.on_lease(self._run_lease_side)
            return
        loops = LoopThread(self.name)
        self._sides = loops
        living = asyncio.wrap_future(loops.start(self._run_lease_side))
        try:
            await asyncio.shield(living)
        except asyncio.CancelledError:
            loops.to_lease(self._stop_now)
            with anyio.CancelScope(shield=True):
                await asyncio.wait([living])
            raise
        finally:
            living.cancel()  # only if it was cancelled twice
            with anyio.CancelScope(shield=True):
                await loops.close()

    async def _run_lease_side(self) -> None:
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
            on_asked=self._hand_over_requested,
            identity=self._identity,
        )
        worker_jobs = [
            WorkerJob(number=number, job=job, run_at_start=job.on_start)
            for number, job in enumerate(self.jobs)
        ]
        scheduler = self._scheduler = Scheduler(
            worker_jobs,
            store=store,
            keyring=keyring,
            me=RunNote(host=host_name(), pid=os.getpid()),
            clock=self._clock,
            rng=self._rng,
            pace=self._pace,
            skew_clock=SkewClock(self._clock, max_early_s=lease.total_seconds() * _MAX_EARLY),
        )
        runs = self._runs = scheduler.runs = RunningJobs(
            keyring,
            Launcher(self._sides),
            clock=self._clock,
            rng=self._rng,
            tasks=tasks,
            stop_s=self._stop_s,
            on_released=scheduler.job_released,
            stuck=self._stuck,
        )
        if self._stopping:
            return
        tasks.start_soon(keyring.keep)
        tasks.start_soon(runs.write_results)
        tasks.start_soon(self._report)
        await scheduler.run_loop()
        await self._end(runs, keyring)

    async def _end(self, runs: RunningJobs, keyring: Keyring) -> None:
        with suppress(TimeoutError):
            await self._clock.bounded(runs.wait_until_empty(), seconds=self._grace_s)
        for active_job in list(runs.active.values()):
            runs.stop(active_job, STOPPED)
        await runs.wait_until_empty()
        self.abandoned = tuple(self.held())
        if self.abandoned:  # the lease is left to expire: a stuck job is not free
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
            yield await self._open_with_retries(self._store, stack)

    async def _open_with_retries(self, url: str, stack: AsyncExitStack) -> Store | None:
        """Open the store, with retries; None if ``stop`` came first."""
        failures, self._stop_event = 0, anyio.Event()
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
                    await self._clock.bounded(self._stop_event.wait(), seconds=pause_s)
        return None

    async def _report(self) -> None:
        """Log what runs here at intervals; that nothing runs, only when that is new."""
        last_status = ""
        while True:
            await self._clock.sleep(REPORT_S)
            status = self.status()
            if self.held() or status != last_status:
                log.info("%s %s", self.name, status)
            last_status = status

    # ------------------------------------------------------------ on the lease side

    def _stop(self) -> None:
        self._stopping = True
        if self._stop_event is not None:
            self._stop_event.set()
        if self._scheduler is not None:
            self._scheduler.stop()
        if self._runs is not None:
            for active_job in list(self._runs.active.values()):
                if active_job.plan.kind is ReserveReason.SERVICE:  # it would not end on its own
                    self._runs.stop(active_job, STOPPED)

    def _stop_now(self) -> None:
        """Stop without ``grace``."""
        self._grace_s = 0.0
        self._stop()
        if self._runs is not None:
            for active_job in list(self._runs.active.values()):
                self._runs.stop(active_job, STOPPED)

    def _lost(self, key: str, reason: str) -> None:
        if self._runs is not None:
            self._runs.lose(key, reason)

    def _hand_over_requested(self, key: str, by: str | None) -> None:
        """Give a job to the holder that an operator named; without a key, leave the group."""
        if not key:
            log.info("%s was asked to leave", self.name)
            self._stop()
            return
        active_job = None if self._runs is None else self._runs.active.get(key)
        if active_job is None or self._scheduler is None or self._runs is None:
            return
        log.info("job %s is to be had by %s", active_job.worker_job.job.name, by)
        self._scheduler.postpone(active_job.worker_job)
        if active_job.plan.kind is ReserveReason.SERVICE:  # all others end on their own
            active_job.hand_over_to = by
            self._runs.stop(active_job, STOPPED)

    def _stuck(self, active_job: ActiveJob) -> None:
        if self._on_stuck is None:
            return
        if (
            active_job.lost
        ):  # another node may have it any moment: there is no time to stop gracefully
            self._on_stuck(active_job.worker_job.job.name)
        else:
            self._stop()
