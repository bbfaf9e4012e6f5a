"""An operator names who is to have a service next: nobody else gets it in between."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.worker_sim import World

from leasehold.jobs import Outcome, operator_requests
from leasehold.jobs.run_log import RunLogEntry, log_entries
from leasehold.model import EndReason
from leasehold.names import job_key
from leasehold.testing.sim.host import HostClock
from leasehold.testing.sim.loop import run_simulated

FOR_EVER_S = 1e6
KEY = job_key("svc")


async def moved(world: World, host: str) -> None:
    """Ask for the service to be had by that node, and give it time."""
    store = world.nodes[0].store
    (heir,) = [each for each in await store.members("job") if each.startswith(host)]
    epoch = (await store.resources("job"))[KEY].epoch
    assert await store.request_hand_over(KEY, epoch=epoch, to=heir)
    await asyncio.sleep(8)


def runs_of(world: World) -> list[RunLogEntry]:
    return [each for each in log_entries(world.server.registry.history(KEY, 50)) if each.ran]


@pytest.mark.parametrize("seed", range(4))
def test_a_service_goes_to_the_worker_that_was_named(seed: int) -> None:
    world = World(seed=seed)

    async def story() -> None:
        for _ in range(3):
            world.start([world.job("svc", takes_s=FOR_EVER_S)])
            await asyncio.sleep(3)
        for host in ("host3", "host2", "host3", "host1"):
            await moved(world, host)
        assert [each.host for each in world.book] == ["host1", "host3", "host2", "host3", "host1"]
        terms = world.server.registry.history(KEY, 50)
        assert [each.reason for each in terms] == [None, *[EndReason.HANDED_OVER] * 4]
        assert [each.outcome for each in runs_of(world)] == [None, *[Outcome.OK] * 4]
        await world.stop(*world.nodes)

    run_simulated(story())


def test_a_service_whose_named_receiver_is_gone_is_had_by_one_that_lives() -> None:
    world = World(seed=1)

    async def story() -> None:
        for _ in range(3):
            world.start([world.job("svc", takes_s=FOR_EVER_S)])
            await asyncio.sleep(3)
        world.crash(world.nodes[2])
        await moved(world, "host3")
        await asyncio.sleep(30)
        last = world.book[-1]
        assert len(world.book) == 2
        assert (last.host in {"host1", "host2"}, last.ended_s) == (True, None)
        await world.stop(*world.nodes[:2])

    run_simulated(story())


def test_a_service_that_was_begun_by_hand_can_be_handed_over_and_stops_at_once() -> None:
    world = World(seed=1)

    async def story() -> None:
        first = world.start([world.job("svc", takes_s=FOR_EVER_S)])
        await operator_requests.request_run(
            first.store, "svc", by="me", clock=HostClock(first.host)
        )
        await asyncio.sleep(8)
        world.start([world.job("svc", takes_s=FOR_EVER_S)])
        await asyncio.sleep(5)
        await moved(world, "host2")
        assert [node.worker.held() for node in world.nodes] == [[], ["svc"]]
        await moved(world, "host1")
        stopped_s = world.now_s
        await world.stop(*world.nodes)
        assert world.now_s - stopped_s < 2.0

    run_simulated(story())


def test_a_service_that_is_begun_by_hand_stops_at_once_with_its_worker() -> None:
    world = World(seed=1)

    async def story() -> None:
        only = world.start([world.job("svc", takes_s=FOR_EVER_S)])
        await operator_requests.request_run(only.store, "svc", by="me", clock=HostClock(only.host))
        await asyncio.sleep(8)
        assert only.worker.held() == ["svc"]
        stopped_s = world.now_s
        await world.stop(only)
        assert world.now_s - stopped_s < 2.0
        (run,) = runs_of(world)
        assert (run.outcome, run.note.words) == (Outcome.OK, "stopped")

    run_simulated(story())
