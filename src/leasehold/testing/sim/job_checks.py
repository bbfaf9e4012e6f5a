"""The invariants of jobs, checked at every step of a simulation: see ``jobs_run``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseLost
from leasehold.jobs import (
    CatchUp,
    OnCrash,
    Outcome,
    Overlap,
    operator_requests,
)
from leasehold.jobs.run_log import log_entries
from leasehold.model import State
from leasehold.names import job_key, last_part
from leasehold.testing.sim.checks import CheckedRegistry, Checks
from leasehold.testing.sim.host import START, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.jobs import Job
    from leasehold.model import CheckpointWrite, Position
    from leasehold.testing.sim.faults import FaultRates
    from leasehold.testing.sim.store import SimServer

JOB_GROUP = "job"
NIGHTLY = "nightly"  # a job that is reserved for each of its occurrences
_MAX_EARLY = 0.25  # of the lease: how long before its time an occurrence may begin
# Occurrences are whole seconds. A worker compares its clock every 120 s, and follows the wall clock
# by a clock since boot that is up to 5 % wrong.
_ROUNDING_S = 1.0 + 0.05 * 120.0
_MAX_OUT_OF_STEP_S = 1.0
_PAUSE_KNOWN_S = 8.0  # requests are at most 1 s old, and are read within 5 s
GONE_S = 1e9  # longer than any run
_TICK = timedelta(seconds=1)
_HELD = frozenset((State.LEASED, State.BREAKING))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """A job of the workers. ``definition`` has its schedule and policy; it is never called.

    ``fails``, ``slow``, ``stubborn``: how likely it is, while there are faults, that an attempt
    fails, is slow, and continues after a request to stop. One that is ``heedless`` asks nobody
    whether it may continue: it must be told.
    """

    definition: Job
    options: Mapping[str, Any]
    takes_s: float
    fails: float
    slow: float
    stubborn: float
    heedless: bool

    @property
    def interval_s(self) -> float:
        """The longest time between two occurrences."""
        schedule = self.definition.schedule
        if schedule is None:
            return 0.0
        first = schedule.next(START)
        following = None if first is None else schedule.next(first)
        assert first is not None and following is not None
        return (following - first).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetting:
    """The initial state of a world of jobs."""

    seed: int
    lease_s: float
    jobs: Sequence[SimJob]
    nightly: OnCrash
    rates: FaultRates


@dataclass(slots=True, kw_only=True)
class SimRun:
    """One call of a function, or the work under one reservation."""

    key: str
    occurrence: datetime | None
    epoch: int
    attempt: int
    host: Host
    began_s: float
    ended_s: float | None = None
    how: str = ""
    is_lost: bool = False
    is_stuck: bool = False


class JobRuns:
    """Records every run, and checks it. What is wrong is added to ``checks.broken``."""

    def __init__(self, setting: JobSetting, registry: JobRegistry, server: SimServer) -> None:
        self.runs: list[SimRun] = []
        self.active: list[SimRun] = []
        self.repeated = 0
        self._registry, self._server = registry, server
        self._checks = registry.checks
        self._max_early_s = setting.lease_s * _MAX_EARLY + _ROUNDING_S
        self._max_late_s = 2 * setting.lease_s
        self._jobs = {each.definition.key: each.definition for each in setting.jobs}
        self._abandons = {
            key for key, each in self._jobs.items() if each.policy.on_crash is OnCrash.ABANDON
        }
        if setting.nightly is OnCrash.ABANDON:
            self._abandons.add(job_key(NIGHTLY))
        self._timeouts = {key for key, each in self._jobs.items() if each.policy.timeout}
        self._done: dict[str, datetime] = {}
        self._started: dict[str, datetime] = {}
        self._term_began_s: dict[tuple[str, int], float] = {}
        self._by_term: dict[tuple[str, int], list[SimRun]] = {}
        self._by_occurrence: dict[tuple[str, datetime], list[SimRun]] = {}
        self._by_hand: Counter[str] = Counter()
        self._unbacked_since_s: dict[int, float] = {}
        self._slept_s: dict[str, float] = {}
        self._checks.term_began = self._term_began
        self._checks.accepted = self._accepted

    # ------------------------------------------------------------ the store

    def backed(self, key: str, epoch: int) -> bool:
        """Return whether the store grants the reservation now."""
        resource = self._registry.resources(JOB_GROUP, self._server.now()).get(key)
        return resource is not None and resource.epoch == epoch and resource.state in _HELD

    def _term_began(self, key: str, epoch: int) -> None:
        self._term_began_s[key, epoch] = self._server.now()

    def _accepted(self, write: CheckpointWrite) -> None:
        """Check the progress of a schedule that the store has accepted."""
        key, epoch = write.ownership.key, write.ownership.epoch
        if key not in self._jobs and key != job_key(NIGHTLY):
            return
        second, is_done = divmod(write.position.sequence_number, 2)
        moment = datetime.fromtimestamp(second, UTC)
        early_s = (moment - self._server.wall()).total_seconds()
        if early_s > self._max_early_s:
            self._broken(f"{key}: {moment:%H:%M:%S} was stored {early_s:.1f} s before its time")
        if write.position.offset.startswith("nothing before"):
            if -early_s > self._max_late_s:
                self._broken(f"{key}: a new schedule begins {-early_s:.1f} s in the past")
            self._done[key] = moment
            return
        if key in self._jobs and moment > max(
            self._done.get(key, moment), self._started.get(key, START)
        ):
            self._check_order(key, moment)
        if not is_done:
            self._started[key] = moment
            return
        # A run that does not stop is done too: it would not stop on other nodes either.
        runs = self._by_term.get((key, epoch), [])
        if not any(each.how or each.is_stuck for each in runs):
            self._broken(f"{key}: {moment:%H:%M:%S} is done, and epoch {epoch} has not run it")
        self._done[key] = max(moment, self._done.get(key, moment))

    def _check_order(self, key: str, moment: datetime) -> None:
        definition, done = self._jobs[key], self._done[key]
        policy, started = definition.policy, self._started.get(key)
        if policy.catch_up is not CatchUp.ALL or policy.overlap is Overlap.SKIP:
            return
        assert definition.schedule is not None
        pending = started is not None and started > done
        if pending and policy.on_crash is OnCrash.RERUN:
            expected = started
        else:
            last = max(done, started) if pending and started is not None else done
            expected = definition.schedule.next(last)
        if moment != expected:
            self._broken(f"{key}: {expected:%H:%M:%S} was passed over, for {moment:%H:%M:%S}")

    # ------------------------------------------------------------ the runs

    def begin(
        self, host: Host, key: str, *, occurrence: datetime | None, epoch: int, attempt: int
    ) -> SimRun:
        """Record and check a run that begins."""
        run = SimRun(
            key=key,
            occurrence=occurrence,
            epoch=epoch,
            attempt=attempt,
            host=host,
            began_s=self._server.now(),
        )
        name = f"{last_part(key)} epoch {epoch} on {host.name}"
        if host.is_stopped:
            self._broken(f"{name} began while the process stood still")
        if not self.backed(key, epoch):
            self._broken(f"{name} began without a reservation")
        for each in self.active:
            slept_s = self._slept_s.get(each.host.name, -GONE_S)
            awake = each.host.running and run.began_s - slept_s > _MAX_OUT_OF_STEP_S
            if each.key == key and awake:
                self._broken(f"{name} began while {each.host.name} runs it")
        if occurrence is None:
            self._check_by_hand(run, name)
        else:
            self._check_occurrence(run, occurrence, name)
        self.runs.append(run)
        self.active.append(run)
        self._by_term.setdefault((key, epoch), []).append(run)
        return run

    def _check_occurrence(self, run: SimRun, occurrence: datetime, name: str) -> None:
        key, at = run.key, f"{occurrence:%H:%M:%S}"
        done = self._done.get(key)
        if done is not None and occurrence <= done:
            self._broken(f"{name} runs {at} again, which is done")
        elif self._started.get(key) != occurrence:
            self._broken(f"{name} runs {at}, and its start is not stored")
        earlier = self._by_occurrence.setdefault((key, occurrence), [])
        others = [each for each in earlier if each.epoch != run.epoch]
        if others and key in self._abandons:
            self._broken(f"{name} runs {at} again, which was to be left after a crash")
        if others and run.attempt <= max(each.attempt for each in others):
            self._broken(f"{name} runs {at} again as attempt {run.attempt}")
        self.repeated += bool(others)
        earlier.append(run)
        paused_s = self._registry.paused_since_s.get(last_part(key))
        term_s = self._term_began_s[key, run.epoch]
        if paused_s is not None and key in self._jobs and term_s - paused_s > _PAUSE_KNOWN_S:
            self._broken(f"{name} runs {at}, and was paused {term_s - paused_s:.1f} s before")

    def _check_by_hand(self, run: SimRun, name: str) -> None:
        definition = self._jobs.get(run.key)
        if definition is None or definition.schedule is None or run.attempt > 1:
            return
        self._by_hand[run.key] += 1
        requested = self._registry.requested[last_part(run.key)]
        if self._by_hand[run.key] > requested:
            self._broken(f"{name} was requested {requested} times, and runs once more")

    def act(self, run: SimRun, check: Callable[[], None]) -> None:
        """Record a step of the work, which ``check`` has allowed; raise what it raises."""
        name = f"{last_part(run.key)} epoch {run.epoch} on {run.host.name}"
        try:
            check()
        except LeaseLost:
            run.is_lost = True
            raise
        if run.is_lost:
            self._broken(f"{name} is trusted again after its loss")
        if run.host.is_stopped:
            self._broken(f"{name} acts while the process stands still")
        if not self.backed(run.key, run.epoch):
            self._broken(f"{name} acts, and the store does not grant it any more")

    def end(self, run: SimRun, how: str) -> None:
        """Record the end of a run."""
        if run in self.active:
            self.active.remove(run)
            run.ended_s, run.how = self._server.now(), how

    def crashed(self, host: Host) -> None:
        """Record the end of all that runs on a host."""
        for run in [each for each in self.active if each.host is host]:
            self.active.remove(run)
            run.ended_s = self._server.now()

    def sweep(self) -> None:
        """Check that what runs is reserved; a process that was paused has a moment to stop."""
        now_s = self._server.now()
        found = {}
        for run in self.active:
            if run.host.paused:
                self._slept_s[run.host.name] = now_s
            if run.host.running and not run.host.paused and not self.backed(run.key, run.epoch):
                since_s = found[id(run)] = self._unbacked_since_s.get(id(run), now_s)
                if now_s - since_s > _MAX_OUT_OF_STEP_S:
                    self._broken(
                        f"{last_part(run.key)} epoch {run.epoch} still runs on {run.host.name}, "
                        "and the store does not grant it any more"
                    )
        self._unbacked_since_s = found

    def said_done(self, key: str, occurrence: datetime) -> None:
        """Check an answer that an occurrence needs no run."""
        done, started = self._done.get(key, START), self._started.get(key, START)
        begun = bool(self._by_occurrence.get((key, occurrence)))
        if max(done, started - _TICK) < occurrence and not (key in self._abandons and begun):
            self._broken(f"{key}: {occurrence:%H:%M:%S} was said to be done, and is not")

    # ------------------------------------------------------------ the end

    def check_history(self) -> None:
        """Check that the history tells what was run, for all terms that it still has."""
        for key in {each.key for each in self.runs}:
            entries = log_entries(self._registry.history(key, 1_000_000))
            for entry in entries:
                runs = self._by_term.get((key, entry.epoch), [])
                told = f"{last_part(key)} epoch {entry.epoch}: the history says {entry.outcome}"
                how = runs[-1].how if runs else "no run"
                if entry.outcome is Outcome.NO_RUN and runs:
                    self._broken(f"{told}, and it ran")
                if entry.outcome is Outcome.OK and how not in ("ok", "stopped"):
                    self._broken(f"{told}, and it was {how}")
                timed_out = how == "stopped" and key in self._timeouts
                if entry.outcome is Outcome.FAILED and how != "failed" and not timed_out:
                    self._broken(f"{told}, and it was {how}")
                if runs and entry.note.occurrence != runs[-1].occurrence:
                    self._broken(f"{told} of {entry.note.occurrence}, not {runs[-1].occurrence}")
            if entries:
                gone = {epoch for of, epoch in self._by_term if of == key}
                gone -= {each.epoch for each in entries} | set(range(entries[-1].epoch))
                if gone:
                    self._broken(f"{key}: the history knows no epoch {min(gone)}, which ran")

    def _broken(self, what: str) -> None:
        self._checks.broken.append(what)


class JobRegistry(CheckedRegistry):
    """Knows when operators have paused jobs, and how many runs they have requested."""

    def __init__(self, checks: Checks, time_s: Callable[[], float]) -> None:
        super().__init__(checks, time_s)
        self.paused_since_s: dict[str, float] = {}
        self.requested: Counter[str] = Counter()

    def reset(
        self, positions: Mapping[str, Position | None], now: float, wall: datetime
    ) -> Mapping[str, str]:
        """Reset, and record the requests of operators."""
        owners = super().reset(positions, now, wall)
        for key, position in {} if owners else positions.items():
            kind, name = key.split("/", maxsplit=1)
            if kind == operator_requests.PAUSE_GROUP and position is None:
                self.paused_since_s.pop(name, None)
            elif kind == operator_requests.PAUSE_GROUP:
                self.paused_since_s.setdefault(name, now)
            elif position is not None and position.sequence_number % 2 == 0:
                self.requested[name] += 1
        return owners
