"""Workers on simulated time, rule by rule. Nothing here waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from tests.support.worker_sim import Node, World

from leasehold.errors import LeaseLost
from leasehold.jobs import CatchUp, Outcome, Overlap, Run, operator_requests
from leasehold.jobs.run_log import RunLogEntry, log_entries
from leasehold.model import Position
from leasehold.names import job_key
from leasehold.testing.sim.host import START, HostClock
from leasehold.testing.sim.loop import run_simulated

FOR_EVER_S = 1e6


def play(story: Callable[[World], Awaitable[None]]) -> World:
    world = World(seed=1)

    async def main() -> None:
        await story(world)
        await world.stop(*(node for node in world.nodes if node.host.running))

    run_simulated(main())
    return world


async def log_of(node: Node, name: str) -> list[RunLogEntry]:
    found = log_entries(await node.store.history(job_key(name), limit=50))
    return [each for each in found if each.ran]


def seconds(world: World, name: str) -> list[float]:
    return sorted(second for _, second in world.ran(name).elements())


# ------------------------------------------------------------ several workers


@pytest.mark.spec("J4")
def test_each_worker_runs_the_first_job_it_can_reserve_and_stands_by_for_the_others() -> None:
    async def story(world: World) -> None:
        jobs = [world.job(name, takes_s=FOR_EVER_S) for name in ("a", "b", "c")]
        for _ in range(3):
            world.start(jobs, max_concurrent=1)
            await asyncio.sleep(5)
        assert [node.worker.held() for node in world.nodes] == [["a"], ["b"], ["c"]]
        before_s = world.now_s
        await world.stop(world.nodes.pop(0))
        assert not {"a"} & {name for node in world.nodes for name in node.worker.held()}
        world.start(jobs, max_concurrent=1)
        await asyncio.sleep(1.0)
        assert world.nodes[-1].worker.held() == ["a"]
        began = [each.began_s for each in world.book if each.name == "a"]
        assert began[-1] - before_s < 1.0

    play(story)


@pytest.mark.spec("J5")
def test_a_stop_hands_a_service_to_the_standby_at_once() -> None:
    async def story(world: World) -> None:
        jobs = [world.job("svc", takes_s=FOR_EVER_S)]
        for _ in range(2):
            world.start(jobs)
            await asyncio.sleep(3)
        stopped_s = world.now_s
        await world.stop(world.nodes[0])
        await asyncio.sleep(2)
        first, second = world.book
        assert (first.host, second.host) == ("host1", "host2")
        assert second.began_s - stopped_s < 1.0
        log = await log_of(world.nodes[1], "svc")
        assert [each.outcome for each in log] == [None, Outcome.OK]
        await world.stop(world.nodes.pop(0))

    play(story)


def test_a_standby_takes_over_from_a_worker_that_died_when_its_lease_ends() -> None:
    async def story(world: World) -> None:
        jobs = [world.job("svc", takes_s=FOR_EVER_S, lease=timedelta(seconds=10))]
        for _ in range(2):
            world.start(jobs)
            await asyncio.sleep(3)
        died_s = world.now_s
        world.crash(world.nodes[0])
        await asyncio.sleep(15)
        assert world.book[-1].host == "host2"
        assert world.book[-1].began_s - died_s <= 13.0
        log = await log_of(world.nodes[1], "svc")
        assert log[1].outcome is Outcome.EXPIRED

    play(story)


def test_jobs_that_are_due_together_are_reserved_marked_and_released_in_one_call_each() -> None:
    async def story(world: World) -> None:
        node = world.start([world.job(f"job{n}", every="60s", takes_s=1.0) for n in range(100)])
        await asyncio.sleep(50)
        node.store.calls.clear()
        await asyncio.sleep(15)
        assert len(world.book) == 100
        assert node.store.calls["claim"] == 1
        assert node.store.calls["checkpoint"] == 2
        assert node.store.calls["release"] == 1

    play(story)


# ------------------------------------------------------------ orders of operators


def test_a_paused_job_is_not_run_and_a_wish_is_carried_out_once_nevertheless() -> None:
    async def story(world: World) -> None:
        jobs = [world.job("tick", every="10s", takes_s=0.1)]
        for _ in range(3):
            world.start(jobs)
        node, clock = world.nodes[0], HostClock(world.nodes[0].host)
        await asyncio.sleep(35)
        await operator_requests.pause(node.store, "tick", by="me", clock=clock)
        await asyncio.sleep(60)
        await operator_requests.request_run(node.store, "tick", by="me", clock=clock)
        await asyncio.sleep(30)
        by_hand = [each for each in world.book if each.occurrence is None]
        assert len(by_hand) == 1
        assert await operator_requests.resume(node.store, "tick", clock=clock)
        await asyncio.sleep(20)

    world = play(story)
    ran = seconds(world, "tick")
    assert ran[:3] == [10, 20, 30]
    assert ran[3] in {110, 120, 130}  # the last one of those that were missed
    assert len(ran) == len(set(ran))


def test_a_wish_waits_for_the_run_that_is_under_way() -> None:
    async def story(world: World) -> None:
        world.start([world.job("slow", every="1h", takes_s=30.0)])
        node = world.nodes[0]
        clock = HostClock(node.host)
        await asyncio.sleep(3605)
        await operator_requests.request_run(node.store, "slow", by="me", clock=clock)
        await asyncio.sleep(100)
        assert [each.how for each in world.book] == ["ok", "ok"]
        assert world.book[1].occurrence is None
        assert world.book[0].ended_s is not None
        assert 0 <= world.book[1].began_s - world.book[0].ended_s < 10

    play(story)


# ------------------------------------------------------------ how a run ends


def test_a_failure_is_tried_again_with_growing_pauses_and_then_counts_as_done() -> None:
    async def fail(run: Run) -> None:
        run.exit_code = 10 + run.attempt
        raise ValueError(f"no {run.attempt}")

    async def story(world: World) -> None:
        job = world.job("bad", every="1h", then=fail, retries=2, retry_pause=timedelta(seconds=4))
        node = world.start([job])
        await asyncio.sleep(3700)
        attempts = [each.attempt for each in world.book]
        assert attempts == [1, 2, 3]
        gaps = [b.began_s - a.began_s for a, b in zip(world.book, world.book[1:], strict=False)]
        assert 2 <= gaps[0] <= 5
        assert 4 <= gaps[1] <= 9
        (entry,) = await log_of(node, "bad")
        assert entry.outcome is Outcome.FAILED
        assert entry.note.words == "ValueError: no 3"
        assert entry.note.attempt == 3
        assert entry.note.exit_code == 13

    play(story)


def test_a_run_that_takes_too_long_is_stopped_and_has_failed() -> None:
    async def story(world: World) -> None:
        node = world.start(
            [world.job("slow", every="1h", takes_s=500.0, timeout=timedelta(seconds=20))]
        )
        await asyncio.sleep(3700)
        (run,) = world.book
        assert run.how == "CancelledError"
        assert run.ended_s is not None
        assert 20 <= run.ended_s - run.began_s <= 21
        (entry,) = await log_of(node, "slow")
        assert (entry.outcome, entry.note.words) == (Outcome.FAILED, "it took longer than 20 s")

    play(story)


@pytest.mark.parametrize(
    ("overlap", "ran", "killed"),
    [
        (Overlap.SKIP, [10, 40, 70], 0),
        (Overlap.QUEUE, [10, 20, 30], 0),
        (Overlap.REPLACE, [], 8),
    ],
)
def test_a_run_longer_than_its_interval(overlap: Overlap, ran: list[float], killed: int) -> None:
    async def story(world: World) -> None:
        job = world.job("slow", every="10s", takes_s=25.0, overlap=overlap, catch_up=CatchUp.ALL)
        world.start([job])
        await asyncio.sleep(97)
        assert seconds(world, "slow")[:4] == ran[:4]
        stopped = [each for each in world.book if each.how == "CancelledError"]
        assert len(stopped) == killed
        if killed:
            log = await log_of(world.nodes[0], "slow")
            assert {each.outcome for each in log[1:]} == {Outcome.KILLED}

    play(story)


def test_a_stop_lets_a_run_end_within_the_grace_and_leaves_a_longer_one_to_others() -> None:
    async def story(world: World) -> None:
        jobs = [
            world.job("short", every="100s", takes_s=5.0),
            world.job("long", every="100s", takes_s=60.0),
        ]
        world.start(jobs, grace=timedelta(seconds=10))
        await asyncio.sleep(102)
        world.start(jobs)
        await asyncio.sleep(1)
        await world.stop(world.nodes[0])
        assert 112 <= world.now_s <= 115
        await asyncio.sleep(80)
        assert seconds(world, "short") == [100]
        assert [(each.host, each.attempt, each.how) for each in world.book if each.name == "long"][
            :2
        ] == [("host1", 1, "CancelledError"), ("host2", 2, "ok")]
        log = await log_of(world.nodes[1], "long")
        assert [each.outcome for each in log] == [Outcome.OK, Outcome.HANDED_OVER]
        world.nodes.pop(0)

    play(story)


@pytest.mark.spec("J2")
def test_a_job_that_is_broken_is_told_and_stopped_and_taken_again() -> None:
    heard: list[str | None] = []

    async def story(world: World) -> None:
        async def wait(run: Run) -> None:
            try:
                await asyncio.sleep(FOR_EVER_S)
            finally:
                heard.append(run.why_lost)
                with pytest.raises(LeaseLost):
                    run.check()

        world.start([world.job("svc", then=wait)])
        await asyncio.sleep(10)
        node = world.nodes[0]
        await node.store.break_(job_key("svc"), epoch=1, after=timedelta(seconds=20))
        await asyncio.sleep(60)
        assert heard[0] == "broken"
        log = await log_of(node, "svc")
        assert log[1].outcome in {Outcome.BROKEN, Outcome.LOST}
        assert node.worker.held() == ["svc"]

    play(story)


def test_what_does_not_stop_though_its_lease_is_lost_is_said_before_others_are_let_in() -> None:
    stuck: list[tuple[str, float]] = []

    async def story(world: World) -> None:
        async def deaf(_: Run) -> None:
            while world.now_s < 200:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(1.0)

        job = world.job("deaf", then=deaf, lease=timedelta(seconds=10))
        world.start([job], on_stuck=lambda name: stuck.append((name, world.now_s)))
        await asyncio.sleep(20)
        world.server.up = False
        await asyncio.sleep(20)
        world.server.up = True
        await asyncio.sleep(200)

    play(story)
    ((name, when_s),) = stuck
    assert name == "deaf"
    assert 20 < when_s < 30


def test_a_service_that_returns_is_run_again_unless_that_is_not_wanted() -> None:
    async def story(world: World) -> None:
        world.start(
            [
                world.job("again", takes_s=10.0),
                world.job("once", takes_s=10.0, restart=False),
            ]
        )
        await asyncio.sleep(100)
        times = [each.name for each in world.book]
        assert times.count("once") == 1
        assert times.count("again") >= 7

    play(story)


# ------------------------------------------------------------ schedules


@pytest.mark.spec("J6")
def test_a_job_may_also_run_when_its_worker_starts() -> None:
    async def story(world: World) -> None:
        world.start([world.job("nightly", cron="0 30 2 * * *", tz="Europe/Berlin", on_start=True)])
        await asyncio.sleep(7200)
        first, second = world.book
        assert first.occurrence is None
        assert first.began_s < 5
        assert second.occurrence == START + timedelta(hours=1, minutes=30)
        assert second.began_s == pytest.approx(5400, abs=0.5)

    play(story)


def test_a_new_schedule_begins_now_and_not_in_1970() -> None:
    async def story(world: World) -> None:
        for _ in range(3):
            world.start([world.job("tick", every="10s", catch_up=CatchUp.ALL)])
        await asyncio.sleep(15)
        assert seconds(world, "tick") == [10]
        log = log_entries(await world.nodes[0].store.history(job_key("tick"), limit=50))
        idle = [each for each in log if not each.ran]
        words = [each.note.words for each in idle]
        assert words.count("the schedule begins") == 1
        assert set(words) <= {"the schedule begins", "nothing was to be done"}
        assert {each.note.occurrence for each in idle} == {None}
        assert [each.outcome for each in log if each.ran] == [Outcome.OK]

    play(story)


def test_two_nodes_with_different_schedules_are_both_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        world.start([world.job("tick", every="20s")])
        await asyncio.sleep(30)
        world.start([world.job("tick", every="30s")])
        await asyncio.sleep(300)

    with caplog.at_level(logging.WARNING):
        play(story)
    found = [each.getMessage() for each in caplog.records if "two schedules" in each.getMessage()]
    assert len(found) == 2
    assert any("'every 20s UTC' here" in each for each in found)
    assert any("'every 30s UTC' here" in each for each in found)


def test_an_occurrence_that_nobody_runs_is_late(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        jobs = [
            world.job("hog", takes_s=800.0),
            world.job("tick", every="10m", catch_up=CatchUp.ALL),
        ]
        world.start([jobs[1]])
        await asyncio.sleep(2)
        await world.stop(world.nodes.pop())
        world.start(jobs, max_concurrent=1)
        await asyncio.sleep(1000)

    with caplog.at_level(logging.WARNING):
        play(story)
    found = [each.getMessage() for each in caplog.records if "is late" in each.getMessage()]
    assert len(found) == 1
    assert "job tick is late" in found[0]


def test_a_job_with_positions_of_its_own_can_have_no_schedule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        node = world.start([world.job("other", every="10s"), world.job("tick", every="10s")])
        await node.store.declare([job_key("other")])
        await node.store.reset({job_key("other"): Position(sequence_number=3, offset="mine")})
        await asyncio.sleep(35)
        assert {each.name for each in world.book} == {"tick"}

    with caplog.at_level(logging.ERROR):
        play(story)
    assert len([each for each in caplog.records if "is not run" in each.getMessage()]) == 1


def test_a_clock_that_is_set_back_or_forth_runs_nothing_twice() -> None:
    async def story(world: World) -> None:
        node = world.start([world.job("tick", every="10s", takes_s=0.1)])
        await asyncio.sleep(55)
        node.host.wall_error_s = -30.0
        await asyncio.sleep(60)
        node.host.wall_error_s = 3600.0
        await asyncio.sleep(30)

    world = play(story)
    ran = seconds(world, "tick")
    assert ran[:7] == [10, 20, 30, 40, 50, 60, 70]
    assert len(ran) == len(set(ran))
    assert ran[-1] == 140  # what lies ahead of the store's clock is not run yet


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    async def story(world: World) -> None:
        async def then(_: Run) -> None:
            if len(world.book) == 5:  # in the pause before it is run again
                asyncio.get_running_loop().call_later(0.5, set_back)

        def set_back() -> None:
            node.host.wall_error_s = -3600.0

        node = world.start([world.job("again", takes_s=1.0, then=then)])
        await asyncio.sleep(60)
        assert node.host.wall_error_s
        assert len(world.book) > 15

    play(story)


# ------------------------------------------------------------ what it tells


def test_progress_is_found_in_the_log_while_the_job_runs() -> None:
    async def story(world: World) -> None:
        async def work(run: Run) -> None:
            for part in range(100):
                run.progress(f"part {part}")
                await asyncio.sleep(1.0)

        node = world.start([world.job("svc", then=work)])
        await asyncio.sleep(30)
        (entry,) = await log_of(node, "svc")
        assert entry.outcome is None
        assert entry.note.words in {f"part {part}" for part in range(26, 31)}
        assert node.store.calls["annotate"] <= 31

    play(story)


@pytest.mark.spec("J4")
def test_a_worker_says_every_15_s_what_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        world.start([world.job("svc", takes_s=FOR_EVER_S), world.job("nightly", cron="0 2 * * *")])
        await asyncio.sleep(50)

    with caplog.at_level(logging.INFO):
        play(story)
    said = [each.getMessage() for each in caplog.records if "stands by" in each.getMessage()]
    assert said == ["host1 runs svc; stands by for 1 of 2 jobs"] * 3


def test_an_operator_can_send_a_worker_away() -> None:
    async def story(world: World) -> None:
        jobs = [world.job("svc", takes_s=FOR_EVER_S)]
        for _ in range(2):
            world.start(jobs)
            await asyncio.sleep(3)
        leaving = world.nodes.pop(0)
        (holder,) = [each for each in await leaving.store.members("job") if "host1" in each]
        assert await leaving.store.request_leave(holder)
        await asyncio.wait_for(leaving.task, 30)
        await asyncio.sleep(2)
        assert world.book[-1].host == "host2"

    play(story)


def test_an_operator_can_have_a_service_moved_to_another_worker() -> None:
    async def story(world: World) -> None:
        jobs = [world.job("svc", takes_s=FOR_EVER_S)]
        for _ in range(2):
            world.start(jobs)
            await asyncio.sleep(3)
        store = world.nodes[0].store
        (other,) = [each for each in await store.members("job") if "host2" in each]
        assert await store.request_hand_over(job_key("svc"), epoch=1, to=other)
        await asyncio.sleep(6)
        assert [each.host for each in world.book] == ["host1", "host2"]
        assert [node.worker.held() for node in world.nodes] == [[], ["svc"]]

    play(story)
