"""Workers over simulated hours: what is due is run, once, whatever happens to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from bench.jobs_schedulers import Day
from tests.support.seeds import seeded
from tests.support.worker_sim import Node, Ran, World

from leasehold.jobs import CatchUp, OnCrash, Overlap
from leasehold.testing.sim.faults import FaultRates, draw_fault_rates
from leasehold.testing.sim.loop import run_simulated

HOUR_S = 3600.0
HOURS = 0.4  # of many crashes
ALL: dict[str, Any] = {"catch_up": CatchUp.ALL, "overlap": Overlap.QUEUE}
SKEWS_S = (-5.0, 0.0, 5.0)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    run_simulated(main())


def expected(names: list[str], every_s: int, until_s: float) -> set[tuple[str, float]]:
    """All occurrences from the second one on: when the first one is due the job may be new."""
    seconds = range(2 * every_s, int(until_s), every_s)
    return {(name, float(second)) for name in names for second in seconds}


def never_two_at_once(book: list[Ran]) -> None:
    for name in {each.name for each in book}:
        runs = sorted((each for each in book if each.name == name), key=lambda each: each.epoch)
        for before, after in pairwise(runs):
            assert before.ended_s is not None
            assert before.ended_s <= after.began_s, (before, after)


@pytest.mark.spec("J6")
def test_orderly_nodes_with_wrong_clocks_run_each_occurrence_exactly_once() -> None:
    world, names = World(seed=1), [f"job{number}" for number in range(20)]
    jobs = [world.job(name, every="60s", takes_s=0.5, **ALL) for name in names]

    async def story() -> None:
        for skew_s in SKEWS_S:
            world.start(jobs, skew_s=skew_s)
        for round_ in range(6):  # one after the other is replaced, in good order
            await asyncio.sleep(HOUR_S / 6 - 7.3)
            old = world.nodes[round_]
            world.start(jobs, skew_s=SKEWS_S[round_ % 3])
            await world.stop(old)
        await world.stop(*world.nodes[6:])

    play(story)
    ran = world.ran()
    assert set(ran.values()) == {1}
    assert expected(names, 60, HOUR_S - 60) <= set(ran)
    never_two_at_once(world.book)


async def live_and_die(world: World, jobs: list[Callable[..., object]], hours: float) -> None:
    """Nodes crash all the time, and others are started."""
    rng = random.Random(world.seed)
    nodes: list[Node] = [world.start(jobs, skew_s=skew_s) for skew_s in SKEWS_S]  # type: ignore[arg-type]
    while world.now_s < hours * HOUR_S:
        await asyncio.sleep(rng.uniform(5.0, 120.0))
        node = nodes.pop(rng.randrange(3))
        if rng.random() < 0.7:
            world.crash(node)
        else:
            await world.stop(node)
        nodes.append(world.start(jobs, skew_s=rng.uniform(-5, 5)))  # type: ignore[arg-type]
    await asyncio.sleep(300.0)
    await world.stop(*nodes)


@pytest.mark.spec("J5")
def test_nodes_that_crash_run_each_occurrence_at_least_once() -> None:
    world, names = World(seed=2), [f"job{number}" for number in range(10)]
    jobs = [world.job(name, every="30s", takes_s=8.0, **ALL) for name in names]
    play(lambda: live_and_die(world, jobs, HOURS))  # type: ignore[arg-type]
    assert expected(names, 30, HOURS * HOUR_S) <= set(world.ran())
    assert any(each.attempt > 1 for each in world.book)
    assert {each.how for each in world.book} > {"ok"}
    twice = sum(count - 1 for count in world.ran().values())
    assert twice <= len([node for node in world.nodes if not node.host.running]) * len(names)


def test_what_is_to_be_left_after_a_crash_is_begun_at_most_once() -> None:
    world, names = World(seed=3), [f"job{number}" for number in range(10)]
    jobs = [
        world.job(name, every="30s", takes_s=8.0, on_crash=OnCrash.ABANDON, **ALL) for name in names
    ]
    play(lambda: live_and_die(world, jobs, HOURS))  # type: ignore[arg-type]
    begun = [(each.name, each.occurrence) for each in world.book]
    assert len(begun) == len(set(begun))
    assert len(begun) > 0.9 * len(expected(names, 30, HOURS * HOUR_S))


@pytest.mark.spec("J7")
@seeded(2)
def test_a_bad_store_loses_no_occurrence_and_never_runs_two_at_once(seed: int) -> None:
    rates = draw_fault_rates(random.Random(seed))
    calm = FaultRates(  # a process that stands still runs nothing, so it is another test
        **{
            name: getattr(rates, name)
            for name in FaultRates.__dataclass_fields__
            if name not in {"pause", "drain_s", "clock_rate_error"}
        }
    )
    world, names = World(seed=seed, rates=calm), [f"job{number}" for number in range(5)]
    jobs = [world.job(name, every="60s", takes_s=3.0, **ALL) for name in names]

    async def story() -> None:
        for skew_s in SKEWS_S:
            world.start(jobs, skew_s=skew_s)
        await asyncio.sleep(HOUR_S)
        for node in world.nodes:
            node.host.rates = FaultRates()
        await asyncio.sleep(300.0)
        await world.stop(*world.nodes)

    play(story)
    assert expected(names, 60, HOUR_S) <= set(world.ran())
    never_two_at_once(world.book)


def test_a_node_that_stands_still_loses_no_occurrence() -> None:
    world, names = World(seed=5), [f"job{number}" for number in range(5)]
    jobs = [world.job(name, every="60s", takes_s=3.0, **ALL) for name in names]
    rng = random.Random(5)

    async def story() -> None:
        for skew_s in SKEWS_S:
            world.start(jobs, skew_s=skew_s)
        while world.now_s < HOUR_S:
            await asyncio.sleep(rng.uniform(10, 60))
            world.nodes[rng.randrange(3)].host.pause(rng.uniform(1, 60))
        await asyncio.sleep(300.0)
        await world.stop(*world.nodes)

    play(story)
    assert expected(names, 60, HOUR_S) <= set(world.ran())


@pytest.mark.spec("J5")
def test_a_rolling_restart_runs_each_of_200_seconds_exactly_once() -> None:
    world = World(seed=6)
    jobs = [world.job("tick", every="1s", takes_s=0.3, **ALL)]

    async def story() -> None:
        for _ in range(3):
            world.start(jobs)
        for number in range(20):
            await asyncio.sleep(10.37)
            world.start(jobs)
            await world.stop(world.nodes[number])
        await world.stop(*world.nodes[20:])

    play(story)
    ran = world.ran()
    assert set(ran.values()) == {1}
    assert expected(["tick"], 1, 201.0) <= set(ran)
    never_two_at_once(world.book)


@pytest.mark.parametrize("leases", [0.5, 0.9, 2.0])
def test_a_store_that_is_away_is_waited_for_and_nothing_runs_without_it(leases: float) -> None:
    world = World(seed=7)
    jobs = [world.job("tick", every="10s", takes_s=4.0, **ALL)]
    away_s = 15.0 * leases

    async def story() -> None:
        for _ in range(2):
            world.start(jobs)
        await asyncio.sleep(102.0)
        world.server.up = False
        await asyncio.sleep(away_s)
        world.server.up = True
        await asyncio.sleep(120.0)
        await world.stop(*world.nodes)

    play(story)
    begun = [each for each in world.book if 103.0 < each.began_s < 102.0 + away_s]
    assert not begun
    assert expected(["tick"], 10, 220.0) <= set(world.ran())
    never_two_at_once(world.book)


def test_losers_do_not_hammer_the_store() -> None:
    world = World(seed=8)
    jobs = [world.job(f"job{number}", every="60s", takes_s=0.2) for number in range(200)]

    async def story() -> None:
        for _ in range(3):
            world.start(jobs)
        await asyncio.sleep(600.0)
        await world.stop(*world.nodes)

    play(story)
    for node in world.nodes:
        assert node.store.calls.total() / 600.0 < 1.0, node.store.calls
    assert sum(node.store.calls["claim"] for node in world.nodes) < 60
    assert set(world.ran().values()) == {1}


def test_the_simulated_day_of_the_benchmark_loses_and_doubles_nothing() -> None:
    day = Day(jobs=50, hours=0.2)
    assert sum(each.total() for each in day.ran) >= 50 * 12
    assert (day.doubled, day.lost) == (0, 0)
    assert day.calls_per_node_and_second < 1.0
