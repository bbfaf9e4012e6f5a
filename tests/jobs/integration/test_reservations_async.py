"""Reservations from asyncio, on a real store."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.postgres import empty_store

from leasehold.clock import SystemClock
from leasehold.errors import JobDone, JobHeld, LeaseLost
from leasehold.jobs import (
    AsyncReservation,
    Done,
    Held,
    Outcome,
    reserve_async,
    try_reserve,
    try_reserve_async,
)
from leasehold.jobs.run_log import RunLogEntry, log_entries
from leasehold.jobs.wish import GROUP
from leasehold.names import job_key
from leasehold.ports import Store
from leasehold.stores import open_store

pytestmark = pytest.mark.timeout(300)

LEASE = timedelta(seconds=60)
BRISK = timedelta(seconds=6)  # renewed after a quarter of it
TWO = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    given = getattr(request, "param", "sqlite")
    return f"sqlite:///{tmp_path}/leases.db" if given == "sqlite" else empty_store()


async def log(url: str) -> list[RunLogEntry]:
    async with open_store(url) as store:
        return log_entries(await store.history(job_key("nightly")))


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_one_has_it_at_a_time_and_the_log_tells(url: str) -> None:
    async def main() -> None:
        async with reserve_async("nightly", store=url, lease=LEASE, occurrence=TWO) as job:
            assert (job.name, job.epoch, job.occurrence) == ("nightly", 1, TWO)
            assert (job.attempt, job.why_lost) == (1, None)
            assert timedelta(0) < job.remaining() <= LEASE
            job.check()
            await job.progress("half of it")
            held = await try_reserve_async("nightly", store=url, lease=LEASE, occurrence=TWO)
            assert isinstance(held, Held)
            assert held.holder == job.holder == job.lease_id
            assert isinstance(try_reserve("nightly", store=url, lease=LEASE), Held)
            with pytest.raises(JobHeld):
                async with reserve_async("nightly", store=url, lease=LEASE, wait=timedelta(0)):
                    pytest.fail("two have it")
            assert not job.lost.is_set()
        with pytest.raises(LeaseLost, match="released"):
            job.check()
        done = await try_reserve_async("nightly", store=url, lease=LEASE, occurrence=TWO)
        assert isinstance(done, Done)
        with pytest.raises(JobDone):
            async with reserve_async("nightly", store=url, lease=LEASE, occurrence=TWO):
                pytest.fail("it runs twice")
        with pytest.raises(ValueError, match="odd"):
            async with reserve_async("nightly", store=url, lease=LEASE):
                raise ValueError("odd")
        told = [(run.outcome, run.note.words) for run in await log(url)]
        assert told == [(Outcome.FAILED, "ValueError: odd"), (Outcome.OK, "half of it")]

    asyncio.run(main())


def test_an_event_loop_that_is_blocked_does_not_keep_the_lease_from_being_renewed(url: str) -> None:
    async def main() -> None:
        async with reserve_async("nightly", store=url, lease=BRISK) as job:
            left = job.remaining()
            while (now := job.remaining()) <= left:
                left = now
                threading.Event().wait(0.01)
            job.check()
            await job.mark(1)
        assert [run.outcome for run in await log(url)] == [Outcome.OK]

    asyncio.run(main())


@pytest.mark.spec("J2")
def test_the_loss_can_be_awaited(url: str) -> None:
    async def main() -> None:
        job = await try_reserve_async("nightly", store=url, lease=BRISK)
        assert isinstance(job, AsyncReservation)
        async with open_store(url) as store:
            await store.break_(job.key, epoch=1, after=timedelta(0))
        async with asyncio.timeout(100):
            await job.lost.wait()
        assert job.why_lost == "broken"
        with pytest.raises(LeaseLost):
            await job.progress("too late")
        await job.release()
        assert "broken" in repr(job)

    asyncio.run(main())


def test_who_is_called_off_while_it_waits_or_works_leaves_nothing_behind(url: str) -> None:
    async def work(begun: asyncio.Event) -> None:
        async with reserve_async("nightly", store=url, lease=BRISK) as job:
            begun.set()
            await job.lost.wait()

    async def renewed(store: Store, members: int) -> None:
        """Until so many have renewed their lease: then each has heard that it has one."""
        left_s, found = dict[str, float](), set[str]()
        async with asyncio.timeout(100):
            while len(found) < members:
                for holder, peer in (await store.members(GROUP)).items():
                    if peer.remaining_s > left_s.get(holder, peer.remaining_s):
                        found.add(holder)
                    left_s[holder] = peer.remaining_s
                await SystemClock().sleep(0.01)

    async def main() -> None:
        begun, never = asyncio.Event(), asyncio.Event()
        working = asyncio.create_task(work(begun))
        await begun.wait()
        waiting = asyncio.create_task(work(never))
        async with open_store(url) as store:
            await renewed(store, 2)
            for task in (waiting, working):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert not await store.members(GROUP)
        assert not never.is_set()
        assert [run.outcome for run in await log(url)] == [Outcome.KILLED]

    asyncio.run(main())
