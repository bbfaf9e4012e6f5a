"""Reservations on real stores, in this process and in others, with real signals."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.pausing import pause
from tests.support.postgres import database

from leasehold.clock import SystemClock
from leasehold.errors import (
    JobDone,
    JobHeld,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    UnknownStore,
    UsageError,
)
from leasehold.jobs import Done, Held, OnCrash, Reservation, reserve, try_reserve
from leasehold.jobs.entry import Outcome, entries
from leasehold.jobs.request import Request
from leasehold.jobs.wish import Wish
from leasehold.model import Lease, Mark, MarkRefusal, Ownership, Term, Wanted
from leasehold.names import job_key
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(120)

LEASE_S = 2.0
LEASE = timedelta(seconds=LEASE_S)
TWO = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/leases.db"
    else:
        with database() as made:
            yield made


class Worker:
    """See ``job_process``."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "tests.support.job_process", url, str(LEASE_S)]
        self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def says(self, event: str) -> dict[str, Any]:
        """Read on until it says this."""
        assert self._popen.stdout is not None
        heard: list[dict[str, Any]] = []
        for line in self._popen.stdout:
            heard.append(json.loads(line))
            if heard[-1]["event"] == event:
                return heard[-1]
        pytest.fail(f"it never says {event}: {heard}", pytrace=False)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def end(self) -> None:
        self._popen.kill()
        self._popen.communicate()


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Worker, Worker]]:
    """One that works, and one that waits for the same job."""
    with ExitStack() as undo:
        first = Worker(url)
        undo.callback(first.end)
        assert first.says("reserved")["epoch"] == 1
        second = Worker(url)
        undo.callback(second.end)
        second.says("ready")
        yield first, second


def history(url: str) -> list[Term]:
    async def read() -> list[Term]:
        async with open_store(url) as store:
            return list(await store.history(job_key("nightly")))

    return anyio.run(read)


def reasons(url: str) -> list[str | None]:
    return [term.reason.value if term.reason else None for term in history(url)]


def had(answer: Reservation | Held | Done) -> Reservation:
    assert isinstance(answer, Reservation), str(answer)
    return answer


@pytest.mark.spec("B5")
def test_one_has_it_at_a_time_and_everybody_hears_who(url: str) -> None:
    with reserve("nightly", store=url, lease=LEASE) as job:
        assert (job.name, job.epoch, job.key) == ("nightly", 1, job_key("nightly"))
        assert timedelta(0) < job.remaining() <= LEASE
        job.check()
        job.mark(5, note="five")
        held = try_reserve("nightly", store=url, lease=LEASE)
        assert isinstance(held, Held)
        assert held.holder == job.holder
        with (
            pytest.raises(JobHeld, match=f"held by {job.holder}") as told,
            reserve("nightly", store=url, lease=LEASE, wait=timedelta(seconds=0.1)),
        ):
            pytest.fail("two have it")
        assert isinstance(told.value, TimeoutError)
        assert (told.value.holder, told.value.epoch) == (job.holder, 1)
        assert 0 < told.value.ends_in_s <= LEASE_S
    with pytest.raises(LeaseLost, match="released; epoch 1"):
        job.check()
    with pytest.raises(LeaseLost):
        job.mark(6)
    assert job.remaining() == timedelta(0)
    assert not job.lost.is_set()  # it was given back, not lost
    with had(try_reserve("nightly", store=url, lease=LEASE)) as again:
        assert again.epoch == 2
    again.release()  # again is harmless


@pytest.mark.spec("J3")
def test_the_log_tells_of_each_run_how_far_it_was_and_how_it_ended(url: str) -> None:
    with reserve("nightly", store=url, lease=LEASE) as job:
        job.progress("half of it")
        assert job.lease_id == job.holder
        assert (job.occurrence, job.attempt) == (None, 1)
    with (
        pytest.raises(RuntimeError, match="no space"),
        reserve("nightly", store=url, lease=LEASE),
    ):
        raise RuntimeError("no space")
    had(try_reserve("nightly", store=url, lease=LEASE)).release(
        outcome=Outcome.KILLED, exit_code=137, words="too slow"
    )
    with (
        pytest.raises(KeyboardInterrupt),
        reserve("nightly", store=url, lease=LEASE, also=["other"]),
    ):
        raise KeyboardInterrupt
    with pytest.raises(LeaseLost):
        job.progress("too late")
    told = [(run.outcome, run.said.exit_code, run.said.words) for run in entries(history(url))]
    assert told == [
        (Outcome.KILLED, None, "KeyboardInterrupt"),
        (Outcome.KILLED, 137, "too slow"),
        (Outcome.FAILED, None, "RuntimeError: no space"),
        (Outcome.OK, None, "half of it"),
    ]


def test_the_run_of_a_moment_is_had_once_over_all(url: str) -> None:
    with reserve("nightly", store=url, lease=LEASE, occurrence=TWO, schedule="0 2 * * *") as job:
        assert (job.occurrence, job.attempt) == (TWO, 1)
        with pytest.raises(UsageError, match="which occurrences are done"):
            job.mark(1)
    answer = try_reserve("nightly", store=url, lease=LEASE, occurrence=TWO)
    assert isinstance(answer, Done)
    assert answer.holder == job.holder
    with (
        pytest.raises(JobDone, match="is done by") as told,
        reserve("nightly", store=url, lease=LEASE, occurrence=TWO, on_crash=OnCrash.LEAVE),
    ):
        pytest.fail("it runs twice")
    assert (told.value.occurrence, told.value.holder) == (TWO.isoformat(), job.holder)
    (run,) = entries(history(url))
    assert (run.said.occurrence, run.said.schedule) == (TWO, "0 2 * * *")


def test_a_release_wakes_the_one_that_waits(url: str) -> None:
    first = had(try_reserve("nightly", store=url, lease=LEASE))
    found: queue.SimpleQueue[Held] = queue.SimpleQueue()
    wish = Wish.of(("nightly",), lease=LEASE)
    request = Request(wish, store=url, on_waiting=found.put)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(request.ask(wait=None)))
    waiting.start()
    assert found.get(timeout=30).holder == first.holder
    first.release()
    waiting.join(30)
    assert answers
    assert answers[0] is not None
    request.release()
    assert reasons(url) == ["released", "released"]


def test_waiting_can_be_given_up(url: str) -> None:
    with reserve("nightly", store=url, lease=LEASE):
        told = threading.Event()
        wish = Wish.of(("nightly",), lease=LEASE)
        request = Request(wish, store=url, on_waiting=lambda _: told.set())
        answers: list[object] = []
        waiting = threading.Thread(target=lambda: answers.append(request.ask(wait=None)))
        waiting.start()
        assert told.wait(30)
        request.cancel()
        waiting.join(30)
        assert answers == [None]
    early = Request(wish, store=url)
    early.cancel()
    assert early.ask(wait=None) is None
    assert len(history(url)) == 1


def test_a_listener_that_fails_does_no_harm_and_the_loss_is_told(url: str) -> None:
    def fail(reason: str) -> None:
        raise RuntimeError(reason)

    job = had(try_reserve("nightly", store=url, lease=LEASE, on_lost=fail))

    async def break_it() -> None:
        async with open_store(url) as store:
            await store.break_(job.key, epoch=1, after=timedelta(0))

    anyio.run(break_it)
    assert job.lost.wait(30)
    assert job.why_lost == "broken"
    with pytest.raises(LeaseLost, match="broken"):
        job.check()
    job.release()


class HangingStore(MemoryStore):
    """Hears no release, and can not be called off either."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__(SystemClock())
        self._free = free

    async def revoke(self, lease: Lease) -> None:
        await anyio.to_thread.run_sync(self._free.wait)
        await super().revoke(lease)


def test_a_release_returns_though_the_store_hangs() -> None:
    free = threading.Event()
    job = had(try_reserve("nightly", store=HangingStore(free), lease=timedelta(seconds=1)))
    releasing = threading.Thread(target=job.release, daemon=True)
    releasing.start()
    try:
        releasing.join(30)
        assert not releasing.is_alive()
    finally:
        free.set()


class Deaf(MemoryStore):
    """Does what it is asked for, and the first answer of one kind is lost."""

    def __init__(self, kind: str) -> None:
        super().__init__(SystemClock())
        self._kind = kind

    def _lose(self, kind: str) -> None:
        if kind == self._kind:
            self._kind = ""
            raise StoreUnavailable(f"{kind}: the answer is lost")

    async def claim(
        self, lease: Lease, wanted: Sequence[Wanted], *, force: bool = False
    ) -> Sequence[Ownership]:
        got = await super().claim(lease, wanted, force=force)
        self._lose("claim")
        return got

    async def checkpoint(self, marks: Sequence[Mark]) -> Mapping[str, MarkRefusal]:
        refused = await super().checkpoint(marks)
        self._lose("checkpoint")
        return refused


@pytest.mark.parametrize("kind", ["claim", "checkpoint"])
def test_after_an_answer_that_was_lost_nobody_waits_for_a_whole_lease(kind: str) -> None:
    store, hour = Deaf(kind), timedelta(hours=1)
    with pytest.raises(StoreUnavailable, match="lost"):
        try_reserve("nightly", store=store, lease=hour, occurrence=TWO)
    with reserve("nightly", store=store, lease=hour, occurrence=TWO, wait=timedelta(0)) as job:
        assert job.epoch == 2


def test_a_store_that_can_not_be_asked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownStore):
        try_reserve("nightly", store="nowhere://")
    with pytest.raises(StoreError):
        try_reserve("nightly", store=f"sqlite:///{tmp_path}/no/such/place/leases.db")


@pytest.mark.spec("B5")
def test_after_kill_9_the_next_one_has_it_when_the_lease_has_ended(
    pair: tuple[Worker, Worker], url: str
) -> None:
    first, second = pair
    first.send(signal.SIGKILL)
    assert second.says("reserved")["epoch"] == 2
    assert reasons(url) == [None, "expired"]


def test_after_a_stop_in_good_order_the_next_one_has_it(
    pair: tuple[Worker, Worker], url: str
) -> None:
    first, second = pair
    first.send(signal.SIGTERM)
    released = first.says("released")
    reserved = second.says("reserved")
    assert reserved["when_s"] >= released["when_s"] - LEASE_S
    assert reasons(url) == [None, "released"]


@pytest.mark.spec("B5")
def test_one_that_was_paused_past_its_lease_is_told_and_can_write_nothing(
    pair: tuple[Worker, Worker], url: str
) -> None:
    first, second = pair
    pause(first.pid, url)
    assert second.says("reserved")["epoch"] == 2
    first.send(signal.SIGCONT)
    refused = first.says("refused")
    assert refused["kind"] in {"LeaseLost", "FencedWrite"}
    assert refused["lost"]  # the event was set as well
    first.says("released")
    # Neither did it sign its run: it left the block without an error, which would be "ok".
    runs = entries(history(url))
    assert [run.outcome for run in runs] == [None, Outcome.EXPIRED]
    assert runs[1].said.outcome is None
    assert runs[1].ended_at is not None
