"""Reservations on real stores, in this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from tests.support.postgres import empty_store

from leasehold.clock import SystemClock
from leasehold.errors import (
    InvalidUrl,
    JobDone,
    JobHeld,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from leasehold.jobs import Done, Held, OnCrash, Outcome, Reservation, reserve, try_reserve
from leasehold.jobs.request import Request
from leasehold.jobs.run_log import log_entries
from leasehold.jobs.wish import Wish
from leasehold.model import CheckpointWrite, EndReason, KeyClaim, Lease, Ownership, Refusal, Term
from leasehold.names import job_key
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(300)

LEASE_S = 60.0
LEASE = timedelta(seconds=LEASE_S)
BRISK = timedelta(seconds=6)  # what others have done is heard four times in each lease
TWO = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    given = getattr(request, "param", "sqlite")
    return f"sqlite:///{tmp_path}/leases.db" if given == "sqlite" else empty_store()


def history(url: str) -> list[Term]:
    async def read() -> list[Term]:
        async with open_store(url) as store:
            return list(await store.history(job_key("nightly")))

    return anyio.run(read)


def had(answer: Reservation | Held | Done) -> Reservation:
    assert isinstance(answer, Reservation), str(answer)
    return answer


@pytest.mark.spec("B5")
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
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
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
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
    told = [(run.outcome, run.note.exit_code, run.note.words) for run in log_entries(history(url))]
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
        reserve("nightly", store=url, lease=LEASE, occurrence=TWO, on_crash=OnCrash.ABANDON),
    ):
        pytest.fail("it runs twice")
    assert (told.value.occurrence, told.value.holder) == (TWO.isoformat(), job.holder)
    (run,) = log_entries(history(url))
    assert (run.note.occurrence, run.note.schedule) == (TWO, "0 2 * * *")


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_a_release_wakes_the_one_that_waits(url: str) -> None:
    first = had(try_reserve("nightly", store=url, lease=LEASE))
    found: queue.SimpleQueue[Held] = queue.SimpleQueue()
    wish = Wish.of(("nightly",), lease=LEASE)
    request = Request(wish, store=url, on_waiting=found.put)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(request.ask(wait=None)))
    waiting.start()
    assert found.get(timeout=100).holder == first.holder
    first.release()
    waiting.join(100)
    assert answers
    assert answers[0] is not None
    request.release()
    assert [term.reason for term in history(url)] == [EndReason.RELEASED] * 2


def test_waiting_can_be_given_up(url: str) -> None:
    with reserve("nightly", store=url, lease=LEASE):
        told = threading.Event()
        wish = Wish.of(("nightly",), lease=LEASE)
        request = Request(wish, store=url, on_waiting=lambda _: told.set())
        answers: list[object] = []
        waiting = threading.Thread(target=lambda: answers.append(request.ask(wait=None)))
        waiting.start()
        assert told.wait(100)
        request.cancel()
        waiting.join(100)
        assert answers == [None]
    early = Request(wish, store=url)
    early.cancel()
    assert early.ask(wait=None) is None
    assert len(history(url)) == 1


def test_a_listener_that_fails_does_no_harm_and_the_loss_is_told(url: str) -> None:
    def fail(reason: str) -> None:
        raise RuntimeError(reason)

    job = had(try_reserve("nightly", store=url, lease=BRISK, on_lost=fail))

    async def break_it() -> None:
        async with open_store(url) as store:
            await store.break_(job.key, epoch=1, after=timedelta(0))

    anyio.run(break_it)
    assert job.lost.wait(100)
    assert job.why_lost == "broken"
    with pytest.raises(LeaseLost, match="broken"):
        job.check()
    job.release()


class HangingStore(MemoryStore):
    """Hears no release, and can not be called off either."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__(SystemClock())
        self._free = free

    async def revoke(self, lease: Lease, *, lapsed: bool = False) -> None:
        await anyio.to_thread.run_sync(self._free.wait)
        await super().revoke(lease, lapsed=lapsed)


def test_a_release_returns_though_the_store_hangs() -> None:
    free = threading.Event()
    job = had(try_reserve("nightly", store=HangingStore(free), lease=timedelta(seconds=1)))
    releasing = threading.Thread(target=job.release, daemon=True)
    releasing.start()
    try:
        releasing.join(100)
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
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        got = await super().claim(lease, wanted, force=force)
        self._lose("claim")
        return got

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
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
    with pytest.raises(InvalidUrl):
        try_reserve("nightly", store="nowhere://")
    with pytest.raises(StoreError):
        try_reserve("nightly", store=f"sqlite:///{tmp_path}/no/such/place/leases.db")
