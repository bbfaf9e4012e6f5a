"""A node whose clock is wrong takes nothing from the others, and says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from tests.support.worker_sim import Node, World

from leasehold.errors import StoreUnavailable
from leasehold.jobs import CatchUp, Overlap
from leasehold.model import KeyClaim, Lease, Ownership
from leasehold.testing.sim.host import START
from leasehold.testing.sim.loop import run_simulated

DAY_S = 86400.0
EARLY_S = 15.0 / 4  # of the usual lease


def lose_one_answer(node: Node) -> None:
    """Have its next reservation arrive, and the answer lost."""
    claim = node.store.claim

    async def lost(
        lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        node.store.claim = claim  # type: ignore[method-assign]
        await claim(lease, wanted, force=force)
        raise StoreUnavailable("the answer was lost")

    node.store.claim = lost  # type: ignore[method-assign]


def words_of(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if words in each.getMessage()]


@pytest.mark.parametrize("overlap", Overlap)
def test_a_node_that_is_a_day_ahead_silences_no_schedule(
    overlap: Overlap, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(seed=1)

    async def story() -> None:
        jobs = [
            world.job("n", every="60s", takes_s=0.1, overlap=overlap),
            world.job("all", every="60s", takes_s=0.1, overlap=overlap, catch_up=CatchUp.ALL),
        ]
        first = world.start(jobs)
        await asyncio.sleep(290)
        wrong = world.start(jobs, skew_s=DAY_S)
        await asyncio.sleep(200)
        await world.stop(wrong)
        await asyncio.sleep(410)
        await world.stop(first)

    with caplog.at_level(logging.WARNING, "leasehold.jobs"):
        run_simulated(story())
    every_minute = {float(second): 1 for second in range(60, 900, 60)}
    for name in ("n", "all"):
        assert {second: count for (_, second), count in world.ran(name).items()} == every_minute
    for each in world.book:
        assert each.occurrence is not None
        assert (each.occurrence - START).total_seconds() - each.began_s <= EARLY_S + 0.1
    assert len(words_of(caplog, "s ahead of that of the store")) == 1
    assert not words_of(caplog, "is marked as done")


def test_a_schedule_that_is_new_begins_now_though_its_first_node_is_a_day_ahead() -> None:
    world = World(seed=1)

    async def story() -> None:
        jobs = [world.job("n", every="60s", takes_s=0.1)]
        wrong = world.start(jobs, skew_s=DAY_S)
        await asyncio.sleep(10)
        await world.stop(wrong)
        right = world.start(jobs)
        await asyncio.sleep(240)
        await world.stop(right)

    run_simulated(story())
    assert sorted(second for _, second in world.ran("n")) == [60, 120, 180, 240]


def test_a_schedule_that_is_new_begins_now_though_its_first_node_is_a_day_behind() -> None:
    world = World(seed=1)

    async def story() -> None:
        jobs = [world.job("n", every="60s", takes_s=0.1, catch_up=CatchUp.ALL)]
        wrong = world.start(jobs, skew_s=-DAY_S)
        await asyncio.sleep(10)
        await world.stop(wrong)
        right = world.start(jobs)
        await asyncio.sleep(240)
        await world.stop(right)

    run_simulated(story())
    assert sorted(second for _, second in world.ran("n")) == [60, 120, 180, 240]


@pytest.mark.parametrize("seed", range(5))
def test_a_node_that_is_a_day_ahead_runs_nothing_early_after_an_answer_was_lost(seed: int) -> None:
    """The reservation that it gets then may be older, so its start says nothing of the clocks."""
    world = World(seed=seed)

    async def story() -> None:
        jobs = [world.job("n", every="60s", takes_s=0.1, catch_up=CatchUp.ALL)]
        right = world.start(jobs)
        await asyncio.sleep(30)
        await world.stop(right)
        wrong = world.start(jobs, skew_s=DAY_S)
        lose_one_answer(wrong)
        await asyncio.sleep(150)
        await world.stop(wrong)

    run_simulated(story())
    assert sorted(second for _, second in world.ran("n")) == [60, 120, 180]
    for each in world.book:
        assert each.occurrence is not None
        assert (each.occurrence - START).total_seconds() - each.began_s <= EARLY_S + 0.1


def test_a_clock_that_is_set_while_it_is_compared_is_seen_through() -> None:
    """It is set after the request for the reservation was sent, and before the answer comes."""
    world = World(seed=1)

    async def story() -> None:
        node = world.start([world.job("n", every="60s", takes_s=0.1, catch_up=CatchUp.ALL)])
        claim = node.store.claim

        async def set_meanwhile(
            lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
        ) -> Sequence[Ownership]:
            found = await claim(lease, wanted, force=force)
            node.host.wall_error_s = DAY_S
            return found

        node.store.claim = set_meanwhile  # type: ignore[method-assign]
        await asyncio.sleep(110)
        await world.stop(node)

    run_simulated(story())
    assert sorted(second for _, second in world.ran("n")) == [60]


def test_a_node_that_is_behind_is_warned_once_and_runs_what_is_due_by_its_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(seed=1)

    async def story() -> None:
        node = world.start([world.job("n", every="60s", takes_s=0.1)], skew_s=-20.0)
        await asyncio.sleep(500)
        await world.stop(node)

    with caplog.at_level(logging.WARNING, "leasehold.jobs"):
        run_simulated(story())
    assert sum(world.ran("n").values()) == len(world.ran("n")) >= 7
    (words,) = words_of(caplog, "that of the store")
    assert "s behind that of the store" in words


def test_a_clock_that_is_set_ahead_while_the_worker_runs_is_seen_through() -> None:
    world = World(seed=1)

    async def story() -> None:
        node = world.start([world.job("n", every="10s", takes_s=0.1)])
        await asyncio.sleep(35)
        node.host.wall_error_s = DAY_S
        await asyncio.sleep(30)
        node.host.wall_error_s = 0.0
        await asyncio.sleep(30)
        await world.stop(node)

    run_simulated(story())
    assert sorted(second for _, second in world.ran("n")) == list(range(10, 100, 10))


def test_what_is_marked_as_done_far_ahead_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    world = World(seed=1)

    async def story() -> None:
        jobs = [world.job("n", every="60s", takes_s=0.1)]
        first = world.start(jobs)
        await asyncio.sleep(100)
        await world.stop(first)
        slow = world.start(jobs, skew_s=-DAY_S)
        await asyncio.sleep(100)
        await world.stop(slow)

    with caplog.at_level(logging.WARNING, "leasehold.jobs"):
        run_simulated(story())
    (words,) = words_of(caplog, "is marked as done up to")
    assert "86" in words
