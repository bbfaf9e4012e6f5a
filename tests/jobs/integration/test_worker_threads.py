"""Plain functions in threads of their own, on a real store and real time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres import empty_store

from leasehold.errors import LeaseLost, StoreUnusable
from leasehold.jobs import Job, Outcome, Run, Worker, job
from leasehold.jobs.run_log import log_entries
from leasehold.names import job_key
from leasehold.stores import open_store

LEASE = timedelta(seconds=60)
BRISK = timedelta(seconds=6)  # what others have done is heard four times in each lease


def url_in(directory: Path) -> str:
    return f"sqlite:///{directory / 'leases.db'}"


def play(
    directory: Path, jobs: list[Job], story: Callable[[Worker], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        worker = Worker(jobs, store=url_in(directory), **options)
        task = asyncio.create_task(worker.run())
        try:
            await story(worker)
        finally:
            worker.stop()
            await asyncio.wait_for(task, 100)

    asyncio.run(main())


async def set_(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 100)


async def outcomes(directory: Path, name: str) -> list[Outcome | None]:
    async with open_store(url_in(directory)) as store:
        return [each.outcome for each in log_entries(await store.history(job_key(name)))]


@pytest.mark.spec("J2")
def test_a_thread_is_told_why_it_must_stop_and_its_job_is_released(tmp_path: Path) -> None:
    begun, heard = threading.Event(), list[object]()

    @job("service", lease=LEASE)
    def service(run: Run) -> None:
        run.progress("at work")
        assert timedelta(0) < run.remaining() <= LEASE
        begun.set()
        run.lost.wait(100)
        heard.append(run.why_lost)
        run.check()

    async def story(worker: Worker) -> None:
        await set_(begun)
        assert worker.held() == ["service"]

    play(tmp_path, [service], story)
    assert heard == ["stopped"]
    assert asyncio.run(outcomes(tmp_path, "service")) == [Outcome.OK]


def test_a_thread_that_does_not_stop_is_said_to_be_stuck_and_keeps_its_reservation(
    tmp_path: Path,
) -> None:
    stuck, leave, named = threading.Event(), threading.Event(), list[str]()

    @job("deaf", lease=LEASE, timeout=timedelta(seconds=0.05))
    def deaf() -> None:
        leave.wait(100)

    def on_stuck(name: str) -> None:
        named.append(name)
        stuck.set()

    async def story(worker: Worker) -> None:
        await set_(stuck)
        async with open_store(url_in(tmp_path)) as store:
            resource = (await store.resources("job"))[job_key("deaf")]
            (term,) = await store.history(job_key("deaf"))
        assert resource.holder is not None
        assert '"outcome":"killed"' in term.note
        assert worker.abandoned == ("deaf",)

    play(tmp_path, [deaf], story, on_stuck=on_stuck, stop_within=timedelta(seconds=0.1))
    leave.set()
    assert named == ["deaf"]


@pytest.mark.spec("B5")
def test_a_thread_whose_job_is_broken_may_write_nothing_any_more(tmp_path: Path) -> None:
    begun, refused = threading.Event(), threading.Event()

    @job("service", lease=BRISK, restart=False)
    def service(run: Run) -> None:
        begun.set()
        run.lost.wait(100)
        with pytest.raises(LeaseLost):
            run.progress("still here")
        refused.set()

    async def story(_: Worker) -> None:
        await set_(begun)
        async with open_store(url_in(tmp_path)) as store:
            await store.break_(job_key("service"), epoch=1, after=timedelta(0))
        await set_(refused)

    play(tmp_path, [service], story)
    assert asyncio.run(outcomes(tmp_path, "service"))[-1] is Outcome.BROKEN


@pytest.mark.server
@pytest.mark.spec("J6")
def test_three_workers_on_postgresql_run_each_second_once() -> None:
    ran, enough = list[datetime | None](), threading.Event()

    def made() -> Job:
        @job("tick", every="1s", lease=LEASE, catch_up="all", overlap="queue")
        def tick(run: Run) -> None:
            ran.append(run.occurrence)
            if len(ran) > 1:
                enough.set()

        return tick

    async def main(url: str) -> None:
        workers = [Worker([made()], store=url, name=f"worker{number}") for number in range(3)]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        await set_(enough)
        for worker in workers:
            worker.stop()
        await asyncio.wait_for(asyncio.gather(*tasks), 100)

    asyncio.run(main(empty_store()))
    moments = [each for each in ran if each is not None]
    assert moments == [moments[0] + timedelta(seconds=number) for number in range(len(ran))]


def test_a_store_that_can_not_serve_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "leases.db").write_bytes(b"this is no database, and never was one" * 100)
    worker = Worker([job("any")(lambda: None)], store=url_in(tmp_path))
    with pytest.raises(StoreUnusable):
        asyncio.run(worker.run())
