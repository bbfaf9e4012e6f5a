"""What workers leave in the log of a job, and what they say of themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from tests.support.worker_sim import World

from leasehold.jobs import Outcome
from leasehold.jobs.run_log import log_entries
from leasehold.names import job_key
from leasehold.testing.sim.faults import NO_FAULTS, FaultRates
from leasehold.testing.sim.host import START
from leasehold.testing.sim.loop import run_simulated


def play(story: Callable[[World], Awaitable[None]], *, seed: int = 1) -> None:
    world = World(seed=seed)

    async def main() -> None:
        await story(world)
        await world.stop(*world.nodes)

    run_simulated(main())


def test_the_log_has_as_many_runs_as_there_were_whoever_else_reserved_the_job() -> None:
    async def story(world: World) -> None:
        for latency_s in (0.02, 0.1):
            jobs = [world.job("tick", every="10s", takes_s=0.0)]
            world.start(jobs, rates=FaultRates(latency_s=latency_s))
        await asyncio.sleep(125)
        log = log_entries(await world.nodes[0].store.history(job_key("tick"), limit=100))
        assert len(log) > 18  # the other one is always a moment too late
        ran = [each.note.occurrence for each in log if each.outcome is Outcome.OK]
        assert ran == [START + timedelta(seconds=second) for second in range(120, 0, -10)]
        assert sum(each.ran for each in log) == 12
        assert not any(each.note.occurrence for each in log if not each.ran)

    play(story)


def test_what_a_store_gave_without_being_heard_is_no_run() -> None:
    async def story(world: World) -> None:
        rates = FaultRates(answer_lost=0.3)
        world.start([world.job("tick", every="10s", takes_s=0.1)], rates=rates)
        await asyncio.sleep(305)
        world.nodes[0].host.rates = NO_FAULTS
        await asyncio.sleep(20)
        log = log_entries(await world.nodes[0].store.history(job_key("tick"), limit=100))
        assert {each.outcome for each in log} >= {Outcome.OK, Outcome.NO_RUN}
        begun = {each.epoch for each in world.book}
        assert {each.epoch for each in log if each.outcome is Outcome.OK} <= begun
        assert not {each.epoch for each in log if each.outcome is Outcome.NO_RUN} & begun

    for seed in range(2):
        play(story, seed=seed)


def test_a_worker_that_holds_nothing_says_so_once_and_again_when_that_is_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        world.start(
            [world.job("tick", every="2m", takes_s=20.0), world.job("nightly", cron="0 2 * * *")]
        )
        await asyncio.sleep(230)

    with caplog.at_level(logging.INFO):
        play(story)
    found = [each.getMessage() for each in caplog.records]
    assert [each for each in found if "stands by" in each] == [
        "host1 runs nothing now; stands by for 2 of 2 jobs",
        "host1 runs tick; stands by for 1 of 2 jobs",
        "host1 runs nothing now; stands by for 2 of 2 jobs",
    ]
    (ended,) = [each for each in found if "ok after" in each]
    assert ended.startswith("job tick: ok after 20.")
    assert len(ended.split(" after ")[1].split(" s,")[0]) == len("20.00")
