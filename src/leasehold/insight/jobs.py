"""Jobs: who runs each, how the last run ended, what is due, what operators requested.

All of it is read from the store: the keys of the group ``job``, their last terms with the notes,
their checkpoints (which occurrences are done) and the requests. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.core.cron import parse_schedule
from leasehold.errors import InvalidSchedule, UnknownResource, UsageError
from leasehold.insight.groups import sample_of
from leasehold.jobs.operator_requests import read_requests
from leasehold.jobs.run_log import Outcome, log_entries, read_progress
from leasehold.jobs.wish import GROUP
from leasehold.model import State
from leasehold.names import job_key, last_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.core.cron import Schedule
    from leasehold.jobs.operator_requests import OperatorRequest, OperatorRequests
    from leasehold.jobs.run_log import RunLogEntry, ScheduleProgress
    from leasehold.model import Checkpoint, MemberRecord, Resource
    from leasehold.ports import Store

MAX_TERMS = 100  # what every store keeps
_LOOK_BACK = 10  # terms, to find the last run among resets and what ran nothing
TOLERANCE = timedelta(minutes=1)


class JobState(Enum):
    """The state of a job."""

    RUNNING = "running"
    LOST = "lost"  # its holder's lease has ended, and no other node has it yet
    HANDING_OVER = "handing_over"  # handed over, and not taken yet
    PAUSED = "paused"
    RUN_REQUESTED = "run_requested"  # an operator wants it to be run now
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job; what is not known is ``None``.

    Attributes:
        resource: its key, as the store knows it. member: the holder's lease.
        current: the run that is in progress, or was lost; last: the one that ended last, and did
            run.
        schedule: as the newest run has told it; ``None`` also if it can not be read here.
        schedule_text: the same as text; empty if the runs have none.
        ran: which occurrences are done.
        paused, run_requested: the orders that stand at this moment.
        next_at: the next moment of the schedule that is not done, if the job is not paused.
        late_s: how long an occurrence has been waiting for a run, if that is longer than a
            minute and the job is not paused.
    """

    name: str
    resource: Resource
    member: MemberRecord | None
    current: RunLogEntry | None
    last: RunLogEntry | None
    schedule: Schedule | None
    schedule_text: str
    ran: ScheduleProgress | None
    paused: OperatorRequest | None
    run_requested: OperatorRequest | None
    next_at: datetime | None
    late_s: float | None

    @property
    def held(self) -> bool:
        """Whether it has a holder."""
        return self.resource.state in (State.LEASED, State.BREAKING)

    @property
    def state(self) -> JobState:
        """The state; a job that is paused while it runs is running."""
        if self.held:
            return JobState.RUNNING
        if self.resource.state is State.EXPIRED:
            return JobState.LOST
        if self.resource.handed_to is not None:
            return JobState.HANDING_OVER
        if self.paused is not None:
            return JobState.PAUSED
        return JobState.FREE if self.run_requested is None else JobState.RUN_REQUESTED

    @property
    def lease_s(self) -> float | None:
        """How long the holder's lease is."""
        return (self.member.duration_s or None) if self.member else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobRecords:
    """What is read once for all jobs."""

    resources: Mapping[str, Resource]
    members: Mapping[str, MemberRecord]
    checkpoints: Mapping[str, Checkpoint]
    orders: OperatorRequests
    now: datetime


async def job_views(store: Store, *, now: datetime) -> Sequence[JobView]:
    """Return all jobs of a store, by name. ``now`` is the wall clock: it says what is late."""
    records = await _read_records(store, now)
    return [await _view(store, records, key) for key in sorted(records.resources, key=last_part)]


async def job_view(store: Store, name: str, *, now: datetime) -> JobView:
    """Return one job; raise ``UnknownResource`` if it was never reserved in this store."""
    key, records = job_key(name), await _read_records(store, now)
    if key not in records.resources:
        known = sample_of(sorted(last_part(each) for each in records.resources))
        raise UnknownResource(
            f"there is no job {name!r} in this store: it has {known}. A job appears when it is "
            "first reserved, or when its first worker starts"
        )
    return await _view(store, records, key)


async def job_log(store: Store, name: str) -> Sequence[RunLogEntry]:
    """Return the reservations of a job that the store keeps, newest first; not all were runs."""
    key = job_key(name)
    log = log_entries(await store.history(key, limit=MAX_TERMS))
    resource = (await store.resources(GROUP)).get(key)
    if not log and resource is None:
        raise UnknownResource(f"there is no job {name!r} in this store: see `leasehold jobs ls`")
    return log if resource is None else [_judged(each, resource) for each in log]


def schedule_of(text: str) -> Schedule:
    """Parse the schedule of a run's note: its text, followed by the time zone if there is one."""
    line, _, zone = text.rpartition(" ")
    try:
        return parse_schedule(text)
    except InvalidSchedule:
        if not line:
            raise
        return parse_schedule(line, tz=zone.strip("[]()"))


async def _read_records(store: Store, now: datetime) -> _JobRecords:
    return _JobRecords(
        resources=await store.resources(GROUP),
        members=await store.members(GROUP),
        checkpoints=await store.checkpoints(GROUP),
        orders=await read_requests(store),
        now=now,
    )


async def _view(store: Store, records: _JobRecords, key: str) -> JobView:
    name, resource = last_part(key), records.resources[key]
    log = await _recent(store, key)
    text = next((each.note.schedule for each in log if each.note.schedule), "")
    schedule, carried_out = _readable(text), _ran(records.checkpoints.get(key))
    is_paused = records.orders.is_paused(name, now=records.now)
    held = resource.state in (State.LEASED, State.BREAKING)
    return JobView(
        name=name,
        resource=resource,
        member=records.members.get(resource.holder or ""),
        current=_current(log, resource),
        last=_last(log),
        schedule=schedule,
        schedule_text=text,
        ran=carried_out,
        paused=records.orders.paused[name] if is_paused else None,
        run_requested=records.orders.run_requests.get(name),
        next_at=None if is_paused else _next_at(schedule, carried_out, records.now),
        late_s=None if is_paused or held else _late_s(schedule, carried_out, records.now),
    )


def _judged(entry: RunLogEntry, resource: Resource) -> RunLogEntry:
    """Return the entry as expired if its lease has ended and the store has not recorded it yet."""
    lost = entry.ended_at is None and resource.state is State.EXPIRED
    return replace(entry, outcome=Outcome.EXPIRED, timed_out=True) if lost else entry


def _current(log: Sequence[RunLogEntry], resource: Resource) -> RunLogEntry | None:
    """Return the entry of the holder that the store knows, alive or not."""
    owned = resource.state in (State.LEASED, State.BREAKING, State.EXPIRED)
    return next((each for each in log if owned and each.epoch == resource.epoch), None)


async def _recent(store: Store, key: str) -> Sequence[RunLogEntry]:
    """Return the newest entries; all of them if no ended run is among the first ones."""
    terms = await store.history(key, limit=_LOOK_BACK)
    log = log_entries(terms)
    if _last(log) is None and len(terms) == _LOOK_BACK:
        log = log_entries(await store.history(key, limit=MAX_TERMS))
    return log


def _last(log: Sequence[RunLogEntry]) -> RunLogEntry | None:
    return next((each for each in log if each.ended_at is not None and each.ran), None)


def _readable(text: str) -> Schedule | None:
    try:
        return schedule_of(text) if text else None
    except InvalidSchedule:
        return None  # of a newer version, or in a time zone that this machine does not know


def _ran(checkpoint: Checkpoint | None) -> ScheduleProgress | None:
    try:
        return read_progress(checkpoint)
    except UsageError:
        return None  # it has positions of its own, and no schedule


def _next_at(
    schedule: Schedule | None, carried_out: ScheduleProgress | None, now: datetime
) -> datetime | None:
    """Return the next occurrence; what is done is not run again, even in the future."""
    if schedule is None:
        return None
    return schedule.next(max(now, carried_out.done) if carried_out else now)


def _late_s(
    schedule: Schedule | None, carried_out: ScheduleProgress | None, now: datetime
) -> float | None:
    if schedule is None or carried_out is None:
        return None
    due = carried_out.started or schedule.next(carried_out.done)
    if due is None or now - due <= TOLERANCE:
        return None
    return (now - due).total_seconds()
