"""The read model of jobs: states, lateness and schedules, on a store in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from leasehold.clock import SystemClock
from leasehold.errors import InvalidName, InvalidSchedule, UnknownResource
from leasehold.insight.jobs import JobState, JobView, job_log, job_view, job_views, schedule_of
from leasehold.jobs import Outcome, operator_requests, run_log
from leasehold.jobs.run_log import RunNote
from leasehold.model import (
    CheckpointWrite,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Position,
)
from leasehold.stores.memory import MemoryStore
from leasehold.testing.clock import ManualClock

pytestmark = pytest.mark.anyio
LONG = timedelta(minutes=10)
CLOCK = SystemClock()
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=CLOCK)


async def join(store: MemoryStore, holder: str) -> Lease:
    await store.declare(["job/nightly"])
    return await store.grant(
        holder=holder, token=holder, group="job", duration=LONG, info=MemberInfo(host="web1", pid=1)
    )


async def take(store: MemoryStore, holder: str, note: RunNote) -> Ownership:
    lease = await join(store, holder)
    seen = (await store.resources("job"))["job/nightly"].epoch
    wanted = KeyClaim(key="job/nightly", seen_epoch=seen, note=note.to_json())
    [owned] = await store.claim(lease, [wanted])
    return owned


async def look(store: MemoryStore, *, now: datetime | None = None) -> JobView:
    return await job_view(store, "nightly", now=now or CLOCK.utc_now())


async def test_a_job_that_runs_is_running_whatever_was_ordered(store: MemoryStore) -> None:
    owned = await take(store, "a", RunNote(words="at it"))
    await operator_requests.pause(store, "nightly", by="ann", clock=CLOCK)
    await operator_requests.request_run(store, "nightly", by="ann", clock=CLOCK)
    running = await look(store)
    assert running.state is JobState.RUNNING
    assert running.current is not None
    assert (running.current.note.words, running.last, running.lease_s) == ("at it", None, 600.0)
    await store.release([owned])
    paused = await look(store)
    assert (paused.state, paused.current) == (JobState.PAUSED, None)
    await operator_requests.resume(store, "nightly", clock=CLOCK)
    wanted = await look(store)
    assert wanted.state is JobState.RUN_REQUESTED
    assert wanted.last is not None
    assert wanted.last.outcome is Outcome.OK


async def test_a_run_whose_node_died_is_lost_and_not_running_when_its_lease_has_ended() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await take(store, "a", RunNote(host="web1", pid=7, words="at it"))
    alive = await look(store)
    assert (alive.state, (await job_log(store, "nightly"))[0].outcome) == (JobState.RUNNING, None)
    clock.advance(LONG.total_seconds() + 1)
    lost = await look(store)
    assert (lost.state, lost.held) == (JobState.LOST, False)
    assert lost.current is not None
    assert lost.current.note.words == "at it"
    assert (lost.resource.holder, lost.resource.epoch) == ("a", 1)
    [entry] = await job_log(store, "nightly")
    assert (entry.outcome, entry.ended_at, entry.duration) == (Outcome.EXPIRED, None, None)
    owned = await take(store, "b", RunNote())
    running, expired = await job_log(store, "nightly")
    assert (running.outcome, expired.outcome) == (None, Outcome.EXPIRED)
    assert expired.ended_at is not None
    assert (await look(store)).state is JobState.RUNNING
    await store.release([owned])
    assert (await look(store)).state is JobState.FREE


async def test_a_job_that_was_handed_over_is_kept_until_it_is_taken(store: MemoryStore) -> None:
    owned = await take(store, "a", RunNote())
    await join(store, "b")
    await store.hand_over([HandOver(ownership=owned, to="b")], limit=LONG)
    kept = await look(store)
    assert (kept.state, kept.held) == (JobState.HANDING_OVER, False)


async def test_a_pause_whose_time_is_over_is_none(store: MemoryStore) -> None:
    await join(store, "a")
    until = NOON + timedelta(hours=1)
    await operator_requests.pause(store, "nightly", by="ann", until=until, clock=CLOCK)
    assert (await look(store, now=NOON)).state is JobState.PAUSED
    assert (await look(store, now=until)).state is JobState.FREE


@pytest.mark.parametrize(
    ("position", "late_s"),
    [
        (run_log.done_position(NOON - timedelta(hours=1)), None),  # the next one is due right now
        (run_log.done_position(NOON - timedelta(hours=2)), 3600.0),
        (run_log.started_position(NOON - timedelta(hours=3)), 3 * 3600.0),  # its node has died
        (run_log.done_position(NOON), None),
        (Position(sequence_number=7, offset="its own"), None),
    ],
)
async def test_an_occurrence_that_waits_for_longer_than_a_minute_is_late(
    store: MemoryStore, position: Position, late_s: float | None
) -> None:
    owned = await take(store, "a", RunNote(schedule="0 * * * * UTC"))
    await store.checkpoint([CheckpointWrite(ownership=owned, position=position)])
    assert (await look(store, now=NOON)).late_s is None  # somebody is at it
    await store.release([owned])
    free = await look(store, now=NOON)
    assert free.late_s == late_s
    assert free.next_at == NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("position", "next_at"),
    [
        (run_log.done_position(NOON + timedelta(hours=3)), NOON + timedelta(hours=4)),
        (run_log.created_position(NOON + timedelta(hours=2.5)), NOON + timedelta(hours=3)),
        # It has begun and is not done: it is run again.
        (run_log.started_position(NOON + timedelta(hours=3)), NOON + timedelta(hours=3)),
    ],
)
async def test_the_next_moment_is_one_that_is_not_done(
    store: MemoryStore, position: Position, next_at: datetime
) -> None:
    owned = await take(store, "a", RunNote(schedule="0 * * * * UTC"))
    await store.checkpoint([CheckpointWrite(ownership=owned, position=position)])
    await store.release([owned])
    view = await look(store, now=NOON)
    assert (view.next_at, view.late_s) == (next_at, None)


async def test_nothing_is_next_for_a_job_that_is_paused(store: MemoryStore) -> None:
    owned = await take(store, "a", RunNote(schedule="0 * * * * UTC"))
    await store.release([owned])
    assert (await look(store, now=NOON)).next_at == NOON + timedelta(hours=1)
    await operator_requests.pause(store, "nightly", by="ann", clock=CLOCK)
    assert (await look(store, now=NOON)).next_at is None


async def test_a_minute_is_tolerated(store: MemoryStore) -> None:
    owned = await take(store, "a", RunNote(schedule="every 1h UTC"))
    mark = CheckpointWrite(
        ownership=owned, position=run_log.done_position(NOON - timedelta(hours=1))
    )
    await store.checkpoint([mark])
    await store.release([owned])
    minute = timedelta(minutes=1)
    assert (await look(store, now=NOON + minute)).late_s is None
    assert (await look(store, now=NOON + minute * 1.5)).late_s == 90.0


async def test_the_schedule_is_that_of_the_newest_run_that_told_one(store: MemoryStore) -> None:
    for schedule in ("0 1 * * * UTC", "0 2 * * * UTC", ""):
        await store.release([await take(store, "a", RunNote(schedule=schedule))])
    view = await look(store)
    assert view.schedule_text == "0 2 * * * UTC"
    assert view.schedule is not None
    assert view.schedule.text == "0 2 * * *"


async def test_what_an_operator_reset_is_no_run(store: MemoryStore) -> None:
    await store.release([await take(store, "a", RunNote(outcome=Outcome.FAILED))])
    await store.reset({"job/nightly": Position(sequence_number=1)})
    view = await look(store)
    assert view.last is not None
    assert (view.last.holder, view.last.outcome) == ("a", Outcome.FAILED)
    assert [each.holder for each in await job_log(store, "nightly")] == ["a"]


@pytest.mark.parametrize("idle", [1, 15])
async def test_the_last_run_is_one_that_did_run(store: MemoryStore, idle: int) -> None:
    nothing = RunNote(outcome=Outcome.NO_RUN)
    await store.release([await take(store, "a", nothing)])  # the schedule begins
    assert (await look(store)).last is None
    await store.release([await take(store, "b", RunNote(outcome=Outcome.FAILED))])
    for _ in range(idle):
        await store.release([await take(store, "c", nothing)])
    last = (await look(store)).last
    assert last is not None
    assert (last.holder, last.outcome) == ("b", Outcome.FAILED)


async def test_jobs_are_in_the_order_of_their_names(store: MemoryStore) -> None:
    await store.declare(["job/b", "job/a%20b", "job/c", "partition/x/y/0"])
    assert [each.name for each in await job_views(store, now=NOON)] == ["a b", "b", "c"]


async def test_a_job_that_is_not_there_is_unknown(store: MemoryStore) -> None:
    with pytest.raises(UnknownResource, match="it has none"):
        await look(store)
    with pytest.raises(UnknownResource):
        await job_log(store, "nightly")
    with pytest.raises(InvalidName):
        await job_view(store, "", now=NOON)


@pytest.mark.parametrize(
    ("text", "line", "zone"),
    [
        ("0 30 2 * * * Europe/Berlin", "0 30 2 * * *", "Europe/Berlin"),
        ("30 2 * * * UTC", "30 2 * * *", "UTC"),
        ("30 2 * * FRI America/New_York", "30 2 * * FRI", "America/New_York"),
        ("30 2 * * *", "30 2 * * *", "UTC"),
        ("every 30s UTC", "every 30s", "UTC"),
        ("@daily Asia/Kolkata", "@daily", "Asia/Kolkata"),
        ("@hourly", "@hourly", "UTC"),
    ],
)
def test_a_schedule_is_read_with_its_zone(text: str, line: str, zone: str) -> None:
    found = schedule_of(text)
    assert (found.text, found.tz.key) == (line, zone)


@pytest.mark.parametrize("text", ["", "nonsense", "0 2 * * * Nowhere/Land", "1 2 3 UTC"])
def test_what_is_no_schedule_is_said(text: str) -> None:
    with pytest.raises(InvalidSchedule):
        schedule_of(text)
