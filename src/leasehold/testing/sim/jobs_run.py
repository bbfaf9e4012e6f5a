"""Fault injection with jobs, one run per seed: workers, one-shot reservations and operators.

Workers run schedules (cron and intervals) and a service. Other processes reserve one job at a time,
some of them for an occurrence. Operators pause, resume, request, break and move jobs, and dismiss
workers. The processes crash, are paused for longer than their lease, leave and join; their wall
clocks are wrong by up to two hours; messages are late, lost and duplicated; the store becomes
unavailable; functions fail, are slow, and do not heed a request to stop.

At every step it is checked that

* no run begins or continues without its reservation, which the store must still grant;
* trust in a reservation never returns once it has ended, and no process that stands still acts;
* the start of an occurrence is stored before its run begins, and not much before it is due;
* no occurrence is run after it is done, and with ``ABANDON`` none begins under two epochs;
* with ``CatchUp.ALL`` no occurrence is passed over, and none is done that nobody has run;
* no occurrence is run in a term that began after operators had paused the job, and a requested run
  is run once at most;
* epochs rise by one, and no checkpoint goes back.

When the faults have stopped, all schedules, requests and services must be up to date within a time
limit. Then the workers leave, every job must be free, and the history must tell what was run.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseholdError, LeaseLost
from leasehold.jobs import (
    CatchUp,
    Done,
    Held,
    OnCrash,
    Overlap,
    Policy,
    Worker,
    job,
    operator_requests,
    try_reserve_async,
)
from leasehold.jobs.run_log import read_progress
from leasehold.names import job_key, last_part
from leasehold.runtime.loop_thread import SameLoop
from leasehold.testing.sim.checks import Checks, InvariantBroken
from leasehold.testing.sim.faults import NO_FAULTS, draw_fault_rates
from leasehold.testing.sim.host import HOST, Host, HostClock
from leasehold.testing.sim.job_checks import (
    GONE_S,
    JOB_GROUP,
    NIGHTLY,
    JobRegistry,
    JobRuns,
    JobSetting,
    SimJob,
    SimRun,
)
from leasehold.testing.sim.loop import run_simulated, simulated_sleep
from leasehold.testing.sim.store import SimServer, SimStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from leasehold.jobs import AsyncReservation, Job, Run
    from leasehold.jobs.run_log import ScheduleProgress
    from leasehold.model import Resource
    from leasehold.stores.registry import Registry

_LOCK, _SERVICE = "lock", "service"
_NIGHTLY_S = 20
_MAX_WRONG_S = 7200.0  # of a wall clock
_MAX_CATCH_UP_S = 240.0
_MAX_LEAVE_S = 60.0
_CHECK_INTERVAL_S = 0.25


class SimulatedError(Exception):
    """A function of a simulated job has failed."""


class _ProcessStore(SimStore):
    """The store as a process reaches it: one that has crashed sends nothing more."""

    async def send(self, step: Callable[[Registry], Any]) -> Any:
        if not self.host.running:
            await simulated_sleep(GONE_S)
        return await super().send(step)


# ---------------------------------------------------------------------- the world


@dataclass(slots=True, kw_only=True)
class JobProcess:
    """A process: a worker, or (without one) reservations one after the other."""

    host: Host
    worker: Worker | None
    task: asyncio.Task[None] | None = None
    is_leaving: bool = False


class JobWorld:
    """Processes, operators and a store in simulated time. Create it inside ``run_simulated``."""

    def __init__(self, setting: JobSetting, *, trace: Callable[[str], None] | None = None) -> None:
        self.setting = setting
        self.rng = random.Random(setting.seed)
        self.rates = setting.rates
        self.checks = Checks()
        self.registry = JobRegistry(self.checks, self.now_s)
        self.server = SimServer(self.registry)
        self.runs = JobRuns(setting, self.registry, self.server)
        self.processes: list[JobProcess] = []
        self.answers: Counter[str] = Counter()
        self.calm = False
        self._crashed: set[str] = set()
        self._trace = trace
        self._names = count(1)
        self._operator = Host(
            "operator", rng=random.Random(f"{setting.seed}/operator"), rates=setting.rates
        )
        self._operating = asyncio.create_task(self._operate())

    def now_s(self) -> float:
        """Return the simulated seconds: the store's clock."""
        return asyncio.get_running_loop().time()

    @property
    def running(self) -> list[JobProcess]:
        """The processes that have not crashed and not left."""
        return [each for each in self.processes if each.host.running]

    def trace(self, what: str) -> None:
        """Report a step to the ``trace`` function, if there is one."""
        if self._trace is not None:
            self._trace(f"{self.now_s():9.3f} {what}")

    # --------------------------------------------------------------- events

    def start(self, *, works: bool = True, wrong_s: float = 0.0) -> JobProcess:
        """Start a process, as a worker or for reservations; its wall clock is wrong."""
        name = f"host{next(self._names):02}"
        rng = random.Random(f"{self.setting.seed}/{name}")
        host = Host(name, rng=rng, rates=self.rates)
        host.wall_error_s = wrong_s
        store = _ProcessStore(self.server, host)
        process = JobProcess(host=host, worker=self._worker(host, store) if works else None)
        running = self._work(process) if works else self._reserve(process, store)
        context = copy_context()
        context.run(HOST.set, host)
        process.task = host.task = asyncio.create_task(running, context=context)
        self.processes.append(process)
        self.trace(f"{name} starts, {'a worker' if works else 'to reserve'}, {wrong_s:+.0f} s")
        return process

    def crash(self, host: Host) -> None:
        """End the process: it sends nothing more. What it sent is still in flight."""
        if not host.running:
            return
        self.trace(f"{host.name} crashes")
        host.running = False
        host.pause(GONE_S)
        self.runs.crashed(host)
        self._crashed.add(host.name)
        if host.task is not None:
            host.task.cancel()

    def leave(self, process: JobProcess) -> None:
        """Ask the process to leave gracefully."""
        self.trace(f"{process.host.name} is to leave")
        process.is_leaving = True
        if process.worker is not None:
            process.worker.stop()

    async def pass_time(self, seconds: float) -> None:
        """Let the world run, checking it meanwhile."""
        until_s = self.now_s() + seconds
        while (left_s := until_s - self.now_s()) > 0:
            await simulated_sleep(min(left_s, _CHECK_INTERVAL_S))
            self.check()

    def check(self) -> None:
        """Check everything that can be seen at this moment."""
        self.runs.sweep()
        self.checks.raise_if_broken()

    async def stop_faults(self) -> None:
        """End all faults, except wrong clocks, and all pauses of jobs."""
        self.trace("the faults stop")
        self.calm = True
        self.rates = NO_FAULTS
        self.server.up = True
        for host in [self._operator, *(each.host for each in self.processes)]:
            host.rates = replace(NO_FAULTS, latency_s=self.setting.rates.latency_s)
        self._operating.cancel()
        await asyncio.wait([self._operating])
        # A message may still be in flight for this long, and be followed by its copy.
        await self.pass_time(2 * self.setting.rates.max_delay_s)
        for each in self.setting.jobs:
            await operator_requests.resume(
                SimStore(self.server, self._operator),
                each.definition.name,
                clock=HostClock(self._operator),
            )
        self.start()

    async def end(self) -> None:
        """Let all processes leave, and check that they leave nothing behind."""
        for process in self.running:
            self.leave(process)
        waited_s = 0.0
        while self.running:
            await self.pass_time(_CHECK_INTERVAL_S)
            waited_s += _CHECK_INTERVAL_S
            if waited_s > _MAX_LEAVE_S:
                names = [each.host.name for each in self.running]
                raise InvariantBroken(f"{names} have not left after {waited_s:g} s")
        for key, resource in self._resources().items():
            holder = resource.holder or ""
            if holder and holder.partition("-")[0] not in self._crashed:
                self.checks.broken.append(f"{holder} has left, and still has {key}")
        self.runs.check_history()
        self.check()

    # ---------------------------------------------------------------- state

    def behind(self) -> list[str]:
        """Return what is not up to date: schedules, requested runs, services."""
        found = []
        checkpoints = self.registry.checkpoints(JOB_GROUP)
        for each in self.setting.jobs:
            definition = each.definition
            if definition.schedule is None:
                if not any(run.key == definition.key for run in self.runs.active):
                    found.append(f"nobody runs {definition.name}")
                continue
            ran = read_progress(checkpoints.get(definition.key))
            slack_s = 2 * each.interval_s + each.takes_s + definition.shift.total_seconds() + 5.0
            due = definition.schedule.previous(self.server.wall() - timedelta(seconds=slack_s))
            if ran is None or (due is not None and self._last(definition, ran) < due):
                found.append(f"{definition.name} is due since {due}, and was run up to {ran}")
        wanted = self.registry.checkpoints(operator_requests.RUN_GROUP).values()
        found += [
            f"a run of {last_part(each.key)} is requested"
            for each in wanted
            if each.position.sequence_number % 2 == 0 and last_part(each.key) != _SERVICE
        ]
        return found

    def _last(self, definition: Job, ran: ScheduleProgress) -> datetime:
        """Return how far a schedule is: what was left after a crash needs no run."""
        if ran.started is not None and definition.policy.on_crash is OnCrash.ABANDON:
            return ran.started
        return ran.done

    def _resources(self) -> Mapping[str, Resource]:
        return self.registry.resources(JOB_GROUP, self.server.now())

    # ---------------------------------------------------------------- parts

    def _worker(self, host: Host, store: SimStore) -> Worker:
        return Worker(
            [
                job(each.definition.name, **each.options)(self._function(each, host))
                for each in self.setting.jobs
            ],
            store=store,
            name=host.name,
            max_concurrent=host.rng.choice((None, None, 2)),
            stop_within=timedelta(seconds=2),
            grace=timedelta(seconds=host.rng.choice((0.0, 5.0))),
            on_stuck=lambda _name: self.crash(host),
            clock=HostClock(host),
            rng=host.rng,
            sides=SameLoop,
            identity=host.new_identity,
        )

    async def _work(self, process: JobProcess) -> None:
        assert process.worker is not None
        try:
            await process.host.gate()
            await process.worker.run()
        except Exception as error:  # noqa: BLE001 - reported as a broken promise
            self.checks.broken.append(f"{process.host.name}: the worker failed: {error!r}")
        finally:
            process.host.running = False
        self.trace(f"{process.host.name} has left")

    def _function(self, each: SimJob, host: Host) -> Callable[[Run], Coroutine[Any, Any, None]]:
        key, clock = each.definition.key, HostClock(host)

        async def function(run: Run) -> None:
            this = self.runs.begin(
                host, key, occurrence=run.occurrence, epoch=run.epoch, attempt=run.attempt
            )
            self.trace(f"{host.name} runs {run}")
            takes_s = each.takes_s
            fails = stubborn = False
            if not self.calm:
                fails = host.rng.random() < each.fails
                stubborn = host.rng.random() < each.stubborn
                takes_s *= host.rng.choice((3.0, 10.0)) if host.rng.random() < each.slow else 1.0
            how = "stopped"
            try:
                while True:
                    try:
                        check = None if each.heedless else run.check
                        await self._steps(this, check, clock, takes_s)
                        break
                    except asyncio.CancelledError:
                        if not stubborn or not host.running:
                            raise
                        stubborn = False  # it goes on once
                        this.is_stuck = True
                        takes_s = self.setting.lease_s
                if fails:
                    how = "failed"
                    raise SimulatedError
                how = "ok"
            except LeaseLost:
                how = "stopped"
                raise
            finally:
                self.runs.end(this, how)

        return function

    async def _steps(
        self, run: SimRun, check: Callable[[], None] | None, clock: HostClock, takes_s: float
    ) -> None:
        left_s = takes_s
        while left_s > 0:
            step_s = min(left_s, run.host.rng.uniform(0.2, 1.0))
            await clock.sleep(step_s)
            if check is not None:
                self.runs.act(run, check)
            left_s -= step_s

    async def _reserve(self, process: JobProcess, store: SimStore) -> None:
        host, clock = process.host, HostClock(process.host)
        try:
            while not process.is_leaving:
                await clock.sleep(host.rng.uniform(0.5, 4.0))
                occurrence = self._occurrence(clock) if host.rng.random() < 0.6 else None
                name = _LOCK if occurrence is None else NIGHTLY
                try:
                    answer = await try_reserve_async(
                        name,
                        store=store,
                        lease=timedelta(seconds=self.setting.lease_s),
                        wait=timedelta(seconds=host.rng.choice((0.0, 5.0))),
                        occurrence=occurrence,
                        on_crash=self.setting.nightly,
                        holder_name=host.name,
                        clock=clock,
                        rng=host.rng,
                        sides=SameLoop,
                        identity=host.new_identity,
                    )
                    await self._answered(host, clock, job_key(name), occurrence, answer)
                except (LeaseholdError, SimulatedError) as error:
                    self.answers[type(error).__name__] += 1
        finally:
            host.running = False

    async def _answered(
        self,
        host: Host,
        clock: HostClock,
        key: str,
        occurrence: datetime | None,
        answer: AsyncReservation | Held | Done,
    ) -> None:
        if isinstance(answer, Held | Done):
            self.answers[type(answer).__name__] += 1
            if isinstance(answer, Done) and occurrence is not None:
                self.runs.said_done(key, occurrence)
            return
        this: SimRun | None = None
        how = "stopped"
        try:
            async with answer as reservation:
                reservation.check()  # it may have been paused since it was reserved
                this = self.runs.begin(
                    host,
                    key,
                    occurrence=occurrence,
                    epoch=reservation.epoch,
                    attempt=reservation.attempt,
                )
                self.trace(f"{host.name} runs {reservation}")
                try:
                    await self._steps(this, reservation.check, clock, host.rng.uniform(0.5, 5.0))
                    if not self.calm and host.rng.random() < 0.1:
                        how = "failed"
                        raise SimulatedError
                    how = "ok"
                finally:
                    self.runs.end(this, how)
        finally:
            self.answers[f"reserved, {how}"] += 1

    def _occurrence(self, clock: HostClock) -> datetime:
        """Return the last occurrence by the wall clock of the host, as cron would start it."""
        second = int(clock.utc_now().timestamp()) // _NIGHTLY_S * _NIGHTLY_S
        return datetime.fromtimestamp(second, UTC)

    # ------------------------------------------------------------ operators

    async def _operate(self) -> None:
        host, clock = self._operator, HostClock(self._operator)
        while True:
            await simulated_sleep(host.rng.uniform(1.0, 10.0))
            with suppress(LeaseholdError, TimeoutError):
                await clock.bounded(self._step_in(host, clock), seconds=10.0)

    async def _step_in(self, host: Host, clock: HostClock) -> None:
        rng, store = host.rng, SimStore(self.server, host)
        name = rng.choice([each.definition.name for each in self.setting.jobs])
        what = rng.choice(("pause", "resume", "resume", "run", "break", "hand over", "dismiss"))
        resources = self._resources()
        members = sorted(self.registry.members(JOB_GROUP, self.server.now()))
        key = rng.choice(sorted(resources) or [""])
        self.trace(f"-- the operator: {what} {name} or {key}")
        if what == "pause":
            await operator_requests.pause(store, name, by="operator", clock=clock)
        elif what == "resume":
            await operator_requests.resume(store, name, clock=clock)
        elif what == "run":
            await operator_requests.request_run(store, name, by="operator", clock=clock)
        elif what == "break" and resources:
            after = timedelta(seconds=self.setting.lease_s * rng.uniform(1, 2))
            await store.break_(key, epoch=resources[key].epoch, after=after)
        elif what == "hand over" and resources and members:
            await store.request_hand_over(key, epoch=resources[key].epoch, to=rng.choice(members))
        elif what == "dismiss" and members and rng.random() < 0.3:
            await store.request_leave(rng.choice(members))


# ------------------------------------------------------------------------ a seed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """The result of a seed: equal in every run. ``story`` digests every step.

    ``runs``: calls of functions, and work under reservations; ``repeated``: runs of occurrences
    that had begun before; ``answers``: of one-shot reservations.
    """

    seed: int
    hosts: int
    jobs: int
    simulated_s: float
    runs: int
    repeated: int
    changes: int
    writes_accepted: int
    writes_refused: int
    answers: Mapping[str, int]
    story: str


def run_job_faults(seed: int, *, trace: Callable[[str], None] | None = None) -> JobRun:
    """Run one seed; ``trace`` is called with each step, as text.

    Raises ``InvariantBroken`` with the seed, which repeats the run exactly.
    """
    try:
        with _logger_disabled():
            return run_simulated(_run_phases(seed, trace))
    except InvariantBroken as broken:
        raise InvariantBroken(f"seed {seed}: {broken}") from broken


def draw_setting(seed: int) -> JobSetting:
    """Draw the setting of a run."""
    rng = random.Random(f"{seed}/jobs")
    lease_s = rng.choice((6.0, 10.0, 15.0))
    jobs = [_draw_job(rng, f"job{number}", lease_s) for number in range(rng.randint(1, 4))]
    if rng.random() < 0.5:
        jobs.append(_sim_job(rng, _SERVICE, {}, takes_s=1e6, lease_s=lease_s))
    return JobSetting(
        seed=seed,
        lease_s=lease_s,
        jobs=jobs,
        nightly=rng.choice(list(OnCrash)),
        rates=replace(draw_fault_rates(rng), max_delay_s=8.0, max_pause_s=15.0, drain_s=0.0),
    )


def _draw_job(rng: random.Random, name: str, lease_s: float) -> SimJob:
    second = rng.choice((5, 10, 20, 30))
    schedule = {"every": f"{second}s"} if rng.random() < 0.5 else {"cron": f"*/{second} * * * * *"}
    policy = Policy(
        on_crash=rng.choice(list(OnCrash)),
        catch_up=rng.choice((*CatchUp, CatchUp.ALL)),
        overlap=rng.choice((*Overlap, Overlap.QUEUE)),
        jitter=timedelta(seconds=rng.choice((0.0, 0.0, 3.0))),
        timeout=timedelta(seconds=rng.choice((4.0, 30.0))) if rng.random() < 0.2 else None,
        retries=rng.choice((0, 0, 2)),
        retry_pause=timedelta(seconds=0.5),
    )
    return _sim_job(
        rng,
        name,
        {**schedule, "policy": policy},
        takes_s=rng.choice((0.1, 1.0, 2.0)),
        lease_s=lease_s,
    )


def _sim_job(
    rng: random.Random, name: str, options: dict[str, Any], *, takes_s: float, lease_s: float
) -> SimJob:
    options["lease"] = timedelta(seconds=lease_s)
    return SimJob(
        definition=job(name, **options)(_never_called),
        options=options,
        takes_s=takes_s,
        fails=rng.choice((0.0, 0.2)),
        slow=rng.choice((0.0, 0.2)),
        stubborn=rng.choice((0.0, 0.0, 0.3)),
        heedless=rng.random() < 0.3,
    )


def _never_called() -> None:
    """Stand for the function of a job, of which only the definition is needed."""


async def _run_phases(seed: int, trace: Callable[[str], None] | None) -> JobRun:
    setting = draw_setting(seed)
    world = JobWorld(setting, trace=trace)
    await _inject_faults(world)
    await world.stop_faults()
    await _wait_until_up_to_date(world)
    await world.end()
    return JobRun(
        seed=seed,
        hosts=len(world.processes),
        jobs=len(setting.jobs),
        simulated_s=world.now_s(),
        runs=len(world.runs.runs),
        repeated=world.runs.repeated,
        changes=len(world.checks.changes),
        writes_accepted=world.checks.writes_accepted,
        writes_refused=world.checks.writes_refused,
        answers=dict(sorted(world.answers.items())),
        story=_digest(world),
    )


async def _inject_faults(world: JobWorld) -> None:
    rng, lease_s = world.rng, world.setting.lease_s
    for _ in range(rng.randint(1, 3)):
        _start(world, works=True)
    for _ in range(rng.randint(1, 2)):
        _start(world, works=False)
    for _ in range(rng.randint(2, 6)):
        await world.pass_time(rng.uniform(0.5, 1.5 * lease_s))
        await _inject_one(world)
    await world.pass_time(rng.uniform(0.0, 2 * lease_s))


def _start(world: JobWorld, *, works: bool) -> None:
    wrong_s = world.rng.choice((0.0, 1.0, 5.0, _MAX_WRONG_S))
    world.start(works=works, wrong_s=world.rng.uniform(-wrong_s, wrong_s))


async def _inject_one(world: JobWorld) -> None:
    rng, running, lease_s = world.rng, world.running, world.setting.lease_s
    what = rng.choice(("start", "crash", "restart", "leave", "pause", "outage", "clock", "cut"))
    world.trace(f"-- {what}")
    if what == "start" or len(running) < 2:
        _start(world, works=rng.random() < 0.7)
        return
    process = rng.choice(running)
    if what in ("crash", "restart"):
        world.crash(process.host)
        if what == "restart":
            _start(world, works=process.worker is not None)
    elif what == "leave":
        world.leave(process)
    elif what == "pause":
        process.host.pause(rng.uniform(0.5, 3.0) * lease_s)
    elif what == "outage":
        world.server.up = False
        await world.pass_time(rng.uniform(0.0, 2 * lease_s))
        world.server.up = True
    elif what == "cut":  # its requests arrive, and no answer comes back, until the faults stop
        process.host.rates = replace(process.host.rates, answer_lost=1.0)
    else:  # the wall clock is set
        process.host.wall_error_s = rng.choice((0.0, rng.uniform(-_MAX_WRONG_S, _MAX_WRONG_S)))


async def _wait_until_up_to_date(world: JobWorld) -> None:
    waited_s = 0.0
    while behind := world.behind():
        await world.pass_time(1.0)
        waited_s += 1.0
        if waited_s > _MAX_CATCH_UP_S:
            raise InvariantBroken(
                f"not up to date {waited_s:g} s after the faults stopped: {'; '.join(behind)}"
            )


def _digest(world: JobWorld) -> str:
    """Return all changes of owner and all runs with their times, in a few characters."""
    changes = [(change.at_s, change.key, change.holder) for change in world.checks.changes]
    runs = [
        (each.key, str(each.occurrence), each.epoch, each.attempt, each.began_s, each.how)
        for each in world.runs.runs
    ]
    return hashlib.sha256(repr((changes, runs)).encode()).hexdigest()[:16]


@contextmanager
def _logger_disabled() -> Iterator[None]:
    """Disable the logger of jobs: they fail by the hundred here."""
    log = logging.getLogger("leasehold.jobs")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before
