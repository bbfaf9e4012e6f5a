"""Operators' orders: paused, and run it now. On simulated time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.job_scene import Scene, play

from leasehold.errors import InvalidName, JobHeld
from leasehold.jobs import orders
from leasehold.jobs.orders import order_key


def test_a_pause_stands_until_it_is_ended_and_says_who_and_why() -> None:
    async def story(scene: Scene) -> None:
        store, clock = scene.store, scene.clock
        assert not await orders.resume(store, "nightly", clock=clock)
        await orders.pause(store, "nightly", by="ada", why="disks", clock=clock)
        found = await orders.standing(store)
        order = found.paused["nightly"]
        assert (order.by, order.why, order.until) == ("ada", "disks", None)
        assert found.is_paused("nightly", now=clock.utc_now())
        assert not found.is_paused("weekly", now=clock.utc_now())
        await orders.pause(store, "nightly", by="bob", why="again", clock=clock)
        assert (await orders.standing(store)).paused["nightly"].by == "bob"
        assert await orders.resume(store, "nightly", clock=clock)
        assert not (await orders.standing(store)).paused
        assert not await orders.resume(store, "nightly", clock=clock)

    play(story)


def test_a_pause_with_an_end_is_over_by_itself() -> None:
    async def story(scene: Scene) -> None:
        end = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
        await orders.pause(scene.store, "nightly", by="ada", until=end, clock=scene.clock)
        found = await orders.standing(scene.store)
        assert found.is_paused("nightly", now=end - timedelta(seconds=1))
        assert not found.is_paused("nightly", now=end)

    play(story)


def test_a_wish_is_taken_once_by_whoever_owns_its_key() -> None:
    async def story(scene: Scene) -> None:
        store, clock, key = scene.store, scene.clock, order_key(orders.WANTED, "nightly")
        async with scene.ring() as one, scene.ring() as two:
            for turn in (0, 2, 4):
                await orders.want(store, "nightly", by="ada", clock=clock)
                await orders.want(store, "nightly", by="bob", clock=clock)  # it stands already
                order = (await orders.standing(store)).wanted["nightly"]
                assert (order.by, order.number) == ("ada", turn)
                assert await one.take({key: ""})
                assert await one.mark({key: orders.taken(order)}) == {}
                await one.release({key: ""})
                # The second one saw the wish as well, and finds it taken.
                assert await two.take({key: ""})
                assert not (await orders.standing(store)).wanted
                assert await two.mark({key: orders.taken(order)}) == {}
                await two.release({key: ""})

    play(story)


def test_an_order_waits_a_moment_for_one_who_is_taking_a_wish_and_not_for_ever() -> None:
    async def story(scene: Scene) -> None:
        store, clock, key = scene.store, scene.clock, order_key(orders.WANTED, "nightly")
        async with scene.ring(key) as ring:
            with pytest.raises(JobHeld, match=ring.holder):
                await orders.want(store, "nightly", by="ada", clock=clock)
            wanting = asyncio.create_task(orders.want(store, "nightly", by="ada", clock=clock))
            await asyncio.sleep(0.5)
            await ring.release({key: ""})
            await wanting
            assert (await orders.standing(store)).wanted["nightly"].by == "ada"

    play(story)


def test_odd_names_and_long_words_are_kept_or_refused_before_anything_is_sent() -> None:
    async def story(scene: Scene) -> None:
        store, clock = scene.store, scene.clock
        await orders.pause(store, "a/b ü", by="x" * 999, why="“\n" * 500, clock=clock)
        order = (await orders.standing(store)).paused["a/b ü"]
        assert order.by == "x" * 200
        with pytest.raises(InvalidName):
            await orders.pause(store, "", by="ada", clock=clock)
        with pytest.raises(InvalidName):
            await orders.want(store, " ", by="ada", clock=clock)

    play(story)
