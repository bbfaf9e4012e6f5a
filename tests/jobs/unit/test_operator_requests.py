"""Operators' orders: paused, and run it now. On simulated time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.job_scene import Scene, play

from leasehold.errors import InvalidName, JobHeld
from leasehold.jobs import operator_requests
from leasehold.jobs.operator_requests import request_key
from leasehold.model import Position


def test_a_pause_stands_until_it_is_ended_and_says_who_and_why() -> None:
    async def story(scene: Scene) -> None:
        store, clock = scene.store, scene.clock
        assert not await operator_requests.resume(store, "nightly", clock=clock)
        await operator_requests.pause(store, "nightly", by="ada", why="disks", clock=clock)
        found = await operator_requests.read_requests(store)
        order = found.paused["nightly"]
        assert (order.by, order.why, order.until) == ("ada", "disks", None)
        assert found.is_paused("nightly", now=clock.utc_now())
        assert not found.is_paused("weekly", now=clock.utc_now())
        await operator_requests.pause(store, "nightly", by="bob", why="again", clock=clock)
        assert (await operator_requests.read_requests(store)).paused["nightly"].by == "bob"
        assert await operator_requests.resume(store, "nightly", clock=clock)
        assert not (await operator_requests.read_requests(store)).paused
        assert not await operator_requests.resume(store, "nightly", clock=clock)

    play(story)


def test_a_pause_with_an_end_is_over_by_itself() -> None:
    async def story(scene: Scene) -> None:
        end = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
        await operator_requests.pause(
            scene.store, "nightly", by="ada", until=end, clock=scene.clock
        )
        found = await operator_requests.read_requests(scene.store)
        assert found.is_paused("nightly", now=end - timedelta(seconds=1))
        assert not found.is_paused("nightly", now=end)

    play(story)


def test_a_wish_is_taken_once_by_whoever_owns_its_key() -> None:
    async def story(scene: Scene) -> None:
        store, clock, key = (
            scene.store,
            scene.clock,
            request_key(operator_requests.RUN_GROUP, "nightly"),
        )
        async with scene.ring() as one, scene.ring() as two:
            for turn in (0, 2, 4):
                await operator_requests.request_run(store, "nightly", by="ada", clock=clock)
                await operator_requests.request_run(
                    store, "nightly", by="bob", clock=clock
                )  # it stands already
                order = (await operator_requests.read_requests(store)).run_requests["nightly"]
                assert (order.by, order.number) == ("ada", turn)
                assert await one.take({key: ""})
                assert await one.mark({key: operator_requests.taken_position(order)}) == {}
                await one.release({key: ""})
                # The second one saw the wish as well, and finds it taken.
                assert await two.take({key: ""})
                assert not (await operator_requests.read_requests(store)).run_requests
                assert await two.mark({key: operator_requests.taken_position(order)}) == {}
                await two.release({key: ""})

    play(story)


def test_an_order_waits_a_moment_for_one_who_is_taking_a_wish_and_not_for_ever() -> None:
    async def story(scene: Scene) -> None:
        store, clock, key = (
            scene.store,
            scene.clock,
            request_key(operator_requests.RUN_GROUP, "nightly"),
        )
        async with scene.ring(key) as ring:
            with pytest.raises(JobHeld, match=ring.holder):
                await operator_requests.request_run(store, "nightly", by="ada", clock=clock)
            wanting = asyncio.create_task(
                operator_requests.request_run(store, "nightly", by="ada", clock=clock)
            )
            await asyncio.sleep(0.5)
            await ring.release({key: ""})
            await wanting
            assert (await operator_requests.read_requests(store)).run_requests[
                "nightly"
            ].by == "ada"

    play(story)


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("maintenance", ""),
        ('"maintenance"', ""),
        ("[" * 900, ""),
        ('{"by": 7, "why": null}', ""),
        ('{"by": "ada", "until": "tomorrow"}', "ada"),
        ('{"by": "ada", "until": 7}', "ada"),
        ('{"by": "ada", "until": "0001-01-01T00:00:00+23:00"}', "ada"),
    ],
)
def test_an_order_that_can_not_be_read_stands_without_those_words(text: str, by: str) -> None:
    async def story(scene: Scene) -> None:
        keys = [
            request_key(kind, "nightly")
            for kind in (operator_requests.PAUSE_GROUP, operator_requests.RUN_GROUP)
        ]
        await scene.store.declare(keys)
        place = Position(sequence_number=0, offset=text)
        assert not await scene.store.reset(dict.fromkeys(keys, place))
        found = await operator_requests.read_requests(scene.store)
        assert found.is_paused("nightly", now=scene.clock.utc_now())
        for order in (found.paused["nightly"], found.run_requests["nightly"]):
            assert (order.by, order.why, order.until, order.number) == (by, "", None, 0)

    play(story)


def test_the_end_of_a_pause_without_a_time_zone_is_meant_as_utc() -> None:
    async def story(scene: Scene) -> None:
        key, text = (
            request_key(operator_requests.PAUSE_GROUP, "nightly"),
            '{"until": "2026-03-01T02:00"}',
        )
        await scene.store.declare([key])
        await scene.store.reset({key: Position(sequence_number=0, offset=text)})
        found = await operator_requests.read_requests(scene.store)
        assert found.paused["nightly"].until == datetime(2026, 3, 1, 2, 0, tzinfo=UTC)

    play(story)


def test_odd_names_and_long_words_are_kept_or_refused_before_anything_is_sent() -> None:
    async def story(scene: Scene) -> None:
        store, clock = scene.store, scene.clock
        await operator_requests.pause(store, "a/b ü", by="x" * 999, why="“\n" * 500, clock=clock)
        order = (await operator_requests.read_requests(store)).paused["a/b ü"]
        assert order.by == "x" * 200
        with pytest.raises(InvalidName):
            await operator_requests.pause(store, "", by="ada", clock=clock)
        with pytest.raises(InvalidName):
            await operator_requests.request_run(store, " ", by="ada", clock=clock)

    play(story)
