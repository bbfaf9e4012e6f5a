"""Workers in trouble, on simulated time: what goes wrong once must not go wrong twice."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest
from tests.support.worker_sim import Node, World

from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable
from leasehold.jobs import Job, Outcome, Run, Worker, job, operator_requests
from leasehold.jobs.run_log import RunLogEntry, log_entries
from leasehold.jobs.worker import worker as worker_module
from leasehold.jobs.worker.job_state import RunCrashed
from leasehold.jobs.worker.runner import Launcher
from leasehold.model import KeyClaim, MemberInfo, Ownership
from leasehold.names import job_key
from leasehold.ports import Store
from leasehold.runtime.loop_thread import SameLoop
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim.faults import NO_FAULTS, FaultRates
from leasehold.testing.sim.host import START, Host, HostClock
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.store import SimStore

FOR_EVER_S = 1e6
CUT_OFF = FaultRates(refused=1.0)


def play(story: Callable[[World], Awaitable[None]], *, seed: int = 1) -> World:
    world = World(seed=seed)

    async def main() -> None:
        await story(world)
        await world.stop(*(node for node in world.nodes if node.host.running))

    run_simulated(main())
    return world


class Operator:
    """Somebody with a way of their own to the store."""

    def __init__(self, world: World) -> None:
        host = Host("operator", rng=random.Random(1), rates=NO_FAULTS)
        self.store, self.clock = SimStore(world.server, host), HostClock(host)

    async def reserve(self, name: str) -> list[Ownership]:
        lease = await self.store.grant(
            holder="operator",
            token="secret",
            group="job",
            duration=timedelta(hours=1),
            info=MemberInfo(host="operator", pid=1),
        )
        seen = (await self.store.resources("job"))[job_key(name)]
        return list(
            await self.store.claim(lease, [KeyClaim(key=seen.key, seen_epoch=seen.epoch)]),
        )


def log_of(world: World, name: str) -> list[RunLogEntry]:
    """The reservations that ran something, oldest first."""
    found = log_entries(world.server.registry.history(job_key(name), 100))
    return [each for each in reversed(found) if each.outcome is not Outcome.NO_RUN]


def second_of(run: Run) -> float:
    assert run.occurrence is not None
    return (run.occurrence - START).total_seconds()


# ------------------------------------------------------------ wishes


@pytest.mark.parametrize("seed", range(12))
def test_a_wish_is_carried_out_once_though_a_node_was_cut_off_when_it_was_taken(seed: int) -> None:
    async def story(world: World) -> None:
        operator = Operator(world)
        for _ in range(2):
            world.start([world.job("n", every="1h", takes_s=1.0)])
        await asyncio.sleep(8)
        theirs = await operator.reserve("n")
        await operator_requests.request_run(operator.store, "n", by="me", clock=operator.clock)
        await asyncio.sleep(10)
        cut = world.nodes[1].host
        cut.rates = CUT_OFF
        await asyncio.sleep(20)
        await operator.store.release(theirs)
        await asyncio.sleep(40)
        assert len(world.book) == 1
        cut.rates = NO_FAULTS
        await asyncio.sleep(60)
        assert len(world.book) == 1

    play(story, seed=seed)


def test_a_wish_whose_job_somebody_has_is_left_where_it_is_until_the_job_is_free() -> None:
    async def story(world: World) -> None:
        operator = Operator(world)
        for _ in range(3):
            world.start([world.job("n", every="1h", takes_s=1.0)])
        await asyncio.sleep(8)
        theirs = await operator.reserve("n")
        await operator_requests.request_run(operator.store, "n", by="me", clock=operator.clock)
        key = operator_requests.request_key(operator_requests.RUN_GROUP, "n")
        before = (await operator.store.resources(operator_requests.RUN_GROUP))[key].epoch
        await asyncio.sleep(60)
        assert (await operator.store.resources(operator_requests.RUN_GROUP))[key].epoch == before
        assert not world.book
        await operator.store.release(theirs)
        await asyncio.sleep(3)
        assert len(world.book) == 1

    play(story)


# ------------------------------------------------------------ functions


def test_a_job_that_exits_has_failed_and_its_worker_goes_on() -> None:
    async def story(world: World) -> None:
        async def leave(_: Run) -> None:
            raise SystemExit(0)

        world.start(
            [world.job("bad", every="10s", then=leave), world.job("good", takes_s=FOR_EVER_S)]
        )
        await asyncio.sleep(25)
        assert world.nodes[0].worker.held() == ["good"]
        found = [(each.outcome, each.note.words) for each in log_of(world, "bad")]
        assert found == [(Outcome.FAILED, "SystemExit: 0")] * 2

    play(story)


def test_a_thread_that_can_not_be_started_is_the_failure_of_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> BaseException | None:
        ended: asyncio.Future[BaseException | None] = asyncio.Future()
        made = job("plain")(lambda: None)
        launcher = Launcher(SameLoop())
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            assert launcher.start(made, None, ended.set_result) is None  # type: ignore[arg-type]
        return await ended

    assert str(run_simulated(main())) == "can't start new thread"


@pytest.mark.parametrize("lease_s", [1.0, 2.0])
def test_what_does_not_stop_is_said_before_others_are_let_in_however_short_the_lease(
    lease_s: float,
) -> None:
    stuck: list[float] = []

    async def story(world: World) -> None:
        async def deaf(_: Run) -> None:
            while world.now_s < 40:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(1.0)

        made = world.job("deaf", then=deaf, lease=timedelta(seconds=lease_s))
        world.start([made], on_stuck=lambda _: stuck.append(world.now_s))
        await asyncio.sleep(10)
        world.start([made])
        await asyncio.sleep(5)
        world.nodes[0].host.rates = CUT_OFF
        await asyncio.sleep(20)
        world.nodes[0].host.rates = NO_FAULTS
        began_s = next(each.began_s for each in world.book if each.host == "host2")
        assert 15 < stuck[0] < began_s
        await asyncio.sleep(10)

    play(story)


# ------------------------------------------------------------ attempts, clocks


def test_attempts_are_counted_however_often_an_occurrence_crashes() -> None:
    async def story(world: World) -> None:
        made = world.job("n", every="10m", takes_s=30.0)
        for _ in range(3):
            world.start([made])
        await asyncio.sleep(605)
        for _ in range(4):
            alive = [each for each in world.nodes if each.host.running]
            world.crash(next(each for each in alive if each.worker.held()))
            world.start([made])
            await asyncio.sleep(22)
        await asyncio.sleep(100)
        assert [each.attempt for each in world.book] == [1, 2, 3, 4, 5]
        assert world.book[-1].how == "ok"
        assert [each.note.attempt for each in log_of(world, "n")] == [1, 2, 3, 4, 5]

    play(story)


def test_a_clock_that_jumps_during_a_run_passes_nothing_over() -> None:
    async def story(world: World) -> None:
        async def jump(run: Run) -> None:
            if second_of(run) == 180:
                world.nodes[0].host.wall_error_s = 3600.0
                asyncio.get_running_loop().call_later(0.001, jump_back)

        def jump_back() -> None:
            world.nodes[0].host.wall_error_s = 0.0

        world.start([world.job("n", every="60s", takes_s=1.0, then=jump)])
        await asyncio.sleep(330)

    assert sorted(second for _, second in play(story).ran("n")) == [60, 120, 180, 240, 300]


# ------------------------------------------------------------ stopping


def test_a_service_that_was_not_begun_when_the_worker_was_stopped_is_not_begun() -> None:
    for late_ms in range(0, 400, 10):

        async def story(world: World, late_s: float = late_ms / 1000) -> None:
            node = world.start([world.job("svc", takes_s=FOR_EVER_S)])
            await asyncio.sleep(late_s)
            stopped_s, begun = world.now_s, len(world.book)
            await world.stop(node)
            assert len(world.book) == begun
            assert world.now_s - stopped_s < 2
            world.nodes.clear()

        play(story)


def test_an_occurrence_that_is_marked_as_begun_when_the_worker_is_stopped_is_run() -> None:
    for late_ms in range(0, 400, 20):

        async def story(world: World, late_s: float = late_ms / 1000) -> None:
            made = world.job("n", every="60s", takes_s=0.1, on_crash="abandon")
            node = world.start([made])
            await asyncio.sleep(60 + late_s)
            await world.stop(node)
            world.nodes.clear()
            world.start([made])
            await asyncio.sleep(30)

        assert play(story).ran("n") == {("n", 60): 1}


@pytest.mark.parametrize(("on_crash", "runs"), [("rerun", 2), ("abandon", 1)])
def test_after_a_run_that_crashed_on_crash_decides(on_crash: str, runs: int) -> None:
    async def crash_first(run: Run) -> None:
        if run.attempt == 1:
            raise RunCrashed("the guard was killed")

    async def story(world: World) -> None:
        world.start([world.job("n", every="60s", then=crash_first, on_crash=on_crash, retries=3)])
        await asyncio.sleep(115)

    world = play(story)
    assert [each.attempt for each in world.book] == [1, 2][:runs]
    assert [each.outcome for each in log_of(world, "n")] == [Outcome.CRASHED, Outcome.OK][:runs]


def test_a_stop_while_the_store_is_away_is_an_orderly_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def away(url: str, **_: object) -> AsyncIterator[Store]:
        raise StoreUnavailable(f"{url} can not be reached")
        yield  # which makes it what it is to be

    monkeypatch.setattr(worker_module, "open_store", away)

    async def main() -> None:
        host = Host("host", rng=random.Random(1), rates=NO_FAULTS)
        worker = Worker(
            [job("plain")(lambda: None)],
            store="sqlite:///away.db",
            clock=HostClock(host),
            rng=host.rng,
            sides=SameLoop,
        )
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, worker.stop)
        await worker.run()
        assert loop.time() < 0.2

    run_simulated(main())


def test_a_worker_that_is_cancelled_stops_what_runs_and_releases_it() -> None:
    async def main() -> None:
        store, heard, begun = MemoryStore(SystemClock()), list[str | None](), asyncio.Event()

        @job("service")
        async def service(run: Run) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                heard.append(run.why_lost)

        task = asyncio.create_task(Worker([service], store=store).run())
        await asyncio.wait_for(begun.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert heard == ["stopped"]
        assert (await store.resources("job"))[job_key("service")].holder is None

    asyncio.run(main())


# ------------------------------------------------------------ replacing


def test_what_was_missed_is_not_replaced_by_what_was_missed_too() -> None:
    async def story(world: World) -> None:
        made = world.job("n", every="10s", takes_s=0.3, overlap="replace", catch_up="all")
        await world.stop(await _started(world, made))
        await asyncio.sleep(42)
        world.start([made])
        await asyncio.sleep(30)

    world = play(story)
    assert {each.how for each in world.book} <= {"ok"}
    ran = sorted(second for _, second in world.ran("n"))
    assert ran[:5] == [10, 20, 30, 40, 50]


async def _started(world: World, made: Callable[[Host], Job]) -> Node:
    node = world.start([made])
    await asyncio.sleep(5)
    world.nodes.clear()
    return node


def test_a_run_that_is_replaced_in_the_pause_before_its_next_try_is_done() -> None:
    async def fail(_: Run) -> None:
        raise ValueError("no")

    async def story(world: World) -> None:
        pause = timedelta(seconds=60)
        made = world.job(
            "n", every="10s", then=fail, overlap="replace", retries=3, retry_pause=pause
        )
        world.start([made])
        await asyncio.sleep(45)
        found = [(each.outcome, each.note.words) for each in log_of(world, "n")]
        assert found[:3] == [(Outcome.FAILED, "ValueError: no")] * 3

    world = play(story)
    assert sorted(second for _, second in world.ran("n", how="ValueError")) == [10, 20, 30, 40]
    assert {each.attempt for each in world.book} == {1}


# ------------------------------------------------------------ starting


def test_a_dead_one_is_not_taken_for_the_run_at_the_start() -> None:
    async def story(world: World) -> None:
        made = world.job("warm", cron="0 0 1 1 *", takes_s=5.0, on_start=True)
        world.crash(world.start([made]))
        world.start([made])
        await asyncio.sleep(4)
        world.crash(world.nodes[1])
        world.start([made])
        await asyncio.sleep(60)
        assert [(each.host, each.how) for each in world.book if each.how == "ok"] == [
            ("host3", "ok")
        ]

    play(story)


def test_a_run_elsewhere_that_comes_to_its_end_is_the_run_at_the_start() -> None:
    async def story(world: World) -> None:
        made = world.job("warm", cron="0 0 1 1 *", takes_s=30.0, on_start=True)
        for _ in range(3):
            world.start([made])
            await asyncio.sleep(4)
        await asyncio.sleep(100)
        assert [(each.host, each.how) for each in world.book] == [("host1", "ok")]

    play(story)


def test_schedules_begin_together_however_few_jobs_may_run_at_once() -> None:
    async def story(world: World) -> None:
        made = [world.job(f"job{number}", every="1h") for number in range(20)]
        node = world.start(made, max_concurrent=1)
        await asyncio.sleep(10)
        assert len(await node.store.checkpoints("job")) == 20
        assert node.store.calls["checkpoint"] == 1

    play(story)
