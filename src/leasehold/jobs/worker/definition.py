"""The definition of a job: a function, its schedule, and the policy of its runs.

A definition is checked when it is made, not at the first run.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from leasehold.core.cron import Dialect, Schedule, parse_schedule
from leasehold.core.lease_timing import LeaseTiming
from leasehold.core.next_run import CatchUp, OnCrash, Overlap, shift_of
from leasehold.errors import InvalidOptions, InvalidSchedule, UsageError
from leasehold.jobs.policy import Policy
from leasehold.jobs.wish import DEFAULT_LEASE
from leasehold.names import job_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from zoneinfo import ZoneInfo

_SIGNATURES = "a job is `def work()` or `def work(run)`, plain or async"


class PolicyOptions(TypedDict, total=False):
    """The options of a policy, one by one; see ``Policy``. An enum may be given as its value."""

    on_crash: OnCrash | str
    catch_up: CatchUp | str
    max_age: timedelta | None
    overlap: Overlap | str
    jitter: timedelta
    timeout: timedelta | None
    retries: int
    retry_pause: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A function under a name. It can still be called as the function that it is.

    Attributes:
        name: the same on all nodes; the node that has it reserved may run it.
        key: the key that is reserved.
        function: takes a ``Run``, or nothing.
        takes_run: whether it takes a ``Run``.
        is_async: whether it runs in the event loop or in its own thread.
        schedule: None for a service, which runs whenever it can be reserved.
        policy: what to do about runs that crash, fail, overlap or are missed.
        lease: how long others wait for a node that crashed; a worker uses the shortest of its jobs.
        on_start: whether each worker also runs it when it starts.
        restart: whether a service that has ended is run again here.
        shift: how much later than scheduled it begins.
    """

    name: str
    key: str
    function: Callable[..., Any]
    takes_run: bool
    is_async: bool
    schedule: Schedule | None
    policy: Policy
    lease: timedelta
    on_start: bool
    restart: bool
    shift: timedelta

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function itself, without a reservation."""
        return self.function(*given, **named)

    @property
    def words(self) -> str:
        """The schedule with its zone, as nodes compare it; empty for a service."""
        return "" if self.schedule is None else f"{self.schedule.text} {self.schedule.tz.key}"


def job(
    name: str,
    *,
    cron: str | None = None,
    every: str | None = None,
    tz: str | ZoneInfo = "UTC",
    dialect: Dialect | None = None,
    lease: timedelta = DEFAULT_LEASE,
    policy: Policy | None = None,
    on_start: bool = False,
    restart: bool = True,
    **single: Unpack[PolicyOptions],
) -> Callable[[Callable[..., Any]], Job]:
    """Make a function a job: by a cron line, ``every="30s"``, or neither: a service.

    ``single`` are options of the policy, in place of those in ``policy``.

    Raises:
        InvalidSchedule: the text cannot be read, or names no time.
        InvalidName, InvalidDuration, InvalidOptions: with what is wrong and what to write.
        UsageError: what is decorated cannot be a job.
    """
    schedule = _schedule(cron, every, tz, dialect)
    treated = _policy(policy or Policy(), single)
    if schedule is None and on_start:
        raise InvalidOptions(
            f"job {name!r} has no schedule, so it runs from the start in any case: leave on_start "
            "out, or give it cron= or every="
        )
    LeaseTiming.of(lease=lease)  # rejects a lease that is not valid
    key = job_key(name)

    def made(function: Callable[..., Any]) -> Job:
        return Job(
            name=name,
            key=key,
            function=function,
            takes_run=_takes_run(function),
            is_async=_is_async(function),
            schedule=schedule,
            policy=treated,
            lease=lease,
            on_start=on_start,
            restart=restart,
            shift=shift_of(name, treated.jitter),
        )

    return made


def check_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs of one worker, checked."""
    found: dict[str, Job] = {}
    for each in jobs:
        if not isinstance(each, Job):
            raise UsageError(f"{each!r} is no job: put @job(…) above the function")
        if found.setdefault(each.key, each) is not each:
            raise UsageError(f"there are two jobs named {each.name!r}: give one another name")
    if not found:
        raise UsageError("a worker needs one job at least: put @job(…) above a function")
    return list(found.values())


def _schedule(
    cron: str | None, every: str | None, tz: str | ZoneInfo, dialect: Dialect | None
) -> Schedule | None:
    if cron is not None and every is not None:
        raise InvalidOptions("a job has cron= or every=, not both: leave one of them out")
    if every is not None:
        if not isinstance(every, str):
            raise InvalidSchedule(f"every must be text such as '30s', '5m' or '2h', not {every!r}")
        return parse_schedule(f"every {every}", tz=tz)
    return None if cron is None else parse_schedule(cron, tz=tz, dialect=dialect)


def _policy(policy: Policy, single: PolicyOptions) -> Policy:
    unknown = set(single) - set(PolicyOptions.__annotations__)
    if unknown:
        raise InvalidOptions(
            f"a job has no option {min(unknown)!r}: see docs/workers.md for those there are"
        )
    return replace(policy, **cast("Any", single))


def _takes_run(function: Callable[..., Any]) -> bool:
    found: object = function
    if isinstance(found, type) or not callable(found):
        raise UsageError(f"{function!r} is no function: {_SIGNATURES}")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(f"{function!r} yields, and nobody would take that: {_SIGNATURES}")
    named = inspect.signature(function).parameters.values()
    plain = [
        each for each in named if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    needed = [
        each
        for each in named
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(needed) > 1 or (needed and needed[0] not in plain):
        raise UsageError(f"{function!r} wants {len(needed)} arguments: {_SIGNATURES}")
    return bool(plain)


def _is_async(function: Callable[..., Any]) -> bool:
    called = getattr(function, "__call__", None)  # noqa: B004 - of an object that is callable
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
