"""A retry is a run like any other: it is begun only while the job is reserved here."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest
from tests.support.worker_sim import World

from leasehold.jobs import Outcome, Run
from leasehold.jobs.run_log import log_entries
from leasehold.names import job_key
from leasehold.testing.sim.host import HostClock
from leasehold.testing.sim.loop import run_simulated

LONGER_THAN_THE_LEASE_S = 25.0


@pytest.fixture
def sleepers_wake_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause the timers of waits come first, as they may in any event loop."""
    sleep = HostClock.sleep

    async def late(clock: HostClock, seconds: float) -> None:
        await sleep(clock, seconds)
        await asyncio.sleep(0.001)

    monkeypatch.setattr(HostClock, "sleep", late)


@pytest.mark.usefixtures("sleepers_wake_last")
def test_a_worker_that_slept_through_its_lease_between_two_attempts_begins_no_other() -> None:
    world, failed = World(seed=1), asyncio.Event()

    async def fail_on_the_first_node(_: Run) -> None:
        if world.book[-1].host == "host1":
            failed.set()
            raise RuntimeError

    async def story() -> None:
        made = world.job(
            "n",
            every="60s",
            takes_s=20.0,
            then=fail_on_the_first_node,
            retries=2,
            retry_pause=timedelta(seconds=2),
        )
        first = world.start([made])
        await asyncio.sleep(61)
        world.start([made])
        await failed.wait()
        await asyncio.sleep(0.1)
        first.host.pause(LONGER_THAN_THE_LEASE_S)
        await asyncio.sleep(LONGER_THAN_THE_LEASE_S + 10.0)
        await world.stop(*world.nodes)

    run_simulated(story())
    assert [(each.host, each.attempt, each.how) for each in world.book] == [
        ("host1", 1, "RuntimeError"),
        ("host2", 2, "ok"),
    ]
    log = [each for each in log_entries(world.server.registry.history(job_key("n"), 9)) if each.ran]
    assert [(each.outcome, each.note.attempt) for each in log] == [
        (Outcome.OK, 2),
        (Outcome.EXPIRED, 1),
    ]


def test_the_log_says_killed_of_a_run_that_was_ended_with_its_process() -> None:
    world = World(seed=1)

    async def deaf(_: Run) -> None:
        while world.now_s < 140:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1.0)

    async def story() -> None:
        made = world.job("n", every="60s", then=deaf, timeout=timedelta(seconds=5))
        world.start([made], on_stuck=lambda _: world.crash(world.nodes[0]))
        await asyncio.sleep(120)
        other = world.start([world.job("m", every="1h")])
        await asyncio.sleep(30)
        await world.stop(other)

    run_simulated(story())
    terms = world.server.registry.history(job_key("n"), 9)
    (entry,) = [each for each in log_entries(terms) if each.ran]
    assert (entry.outcome, entry.note.words) == (Outcome.KILLED, "timeout: it did not stop")
