"""``Reserver``: many reservations by name, from many threads, on real stores."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest
from tests.support.postgres import empty_store

from leasehold.clock import SystemClock
from leasehold.errors import (
    InvalidDuration,
    InvalidName,
    InvalidUrl,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from leasehold.jobs import Outcome, Reserver, reserve
from leasehold.jobs.reserver import _ReserveCall
from leasehold.jobs.run_log import RunLogEntry, RunNote, log_entries
from leasehold.jobs.threads import LoopAnswer
from leasehold.jobs.wish import GROUP
from leasehold.model import KeyClaim, Lease, MemberRecord, Ownership
from leasehold.names import job_key
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(300)

T = TypeVar("T")

CLOCK = SystemClock()
LEASE = timedelta(seconds=60)
BRISK = timedelta(seconds=6)  # what others have done is heard four times in each lease
PATIENCE = timedelta(seconds=0.9)  # shorter than the shortest pause: two tries


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db" if request.param == "sqlite" else empty_store()


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


def log(url: str, name: str) -> list[RunLogEntry]:
    async def read() -> list[RunLogEntry]:
        async with open_store(url) as store:
            return log_entries(await store.history(job_key(name)))

    return anyio.run(read)


def members(url: str) -> list[MemberRecord]:
    async def read() -> list[MemberRecord]:
        async with open_store(url) as store:
            return list((await store.members(GROUP)).values())

    return anyio.run(read)


@pytest.mark.spec("J1")
def test_yes_or_no_then_ask_and_cancel_and_dispose(url: str) -> None:
    with Reserver(url, lease=LEASE) as mine, Reserver(url, lease=LEASE) as other:
        assert mine.try_reserve("nightly")
        assert mine.has_reservation("nightly")
        assert not mine.try_reserve("nightly")  # one thread has it, and so has no other
        assert not other.try_reserve("nightly")
        assert not other.has_reservation("nightly")
        assert (other.lease_id("nightly"), other.epoch("nightly")) == ("", 0)
        assert other.remaining("nightly") == timedelta(0)
        assert mine.lease_id("nightly").startswith("reserver-")
        assert mine.epoch("nightly") == 1
        assert timedelta(0) < mine.remaining("nightly") <= LEASE
        other.cancel_reservation("nightly")  # it has none: that of others is not touched
        assert mine.has_reservation("nightly")
        mine.cancel_reservation("nightly", outcome=Outcome.FAILED, words="no rows")
        mine.cancel_reservation("nightly")
        assert not mine.has_reservation("nightly")
        assert other.try_reserve("nightly")
        assert other.epoch("nightly") == 2
        assert mine.try_reserve("weekly")
        mine.dispose()
        assert not mine.has_reservation("weekly")
        assert other.try_reserve("weekly")
        with pytest.raises(LeaseLost, match="disposed"):
            mine.try_reserve("weekly")
        mine.cancel_reservation("never")
        mine.dispose()
    assert not members(url)
    assert [(run.outcome, run.note.words) for run in log(url, "nightly")] == [
        (Outcome.OK, ""),
        (Outcome.FAILED, "no rows"),
    ]


@pytest.mark.spec("J2")
def test_all_is_renewed_under_one_lease_and_a_loss_is_told(sqlite: str) -> None:
    told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    async def break_it(name: str) -> None:
        async with open_store(sqlite) as store:
            await store.break_(job_key(name), epoch=1, after=timedelta(0))

    with Reserver(sqlite, lease=BRISK, on_lost=lambda *loss: told.put(loss)) as mine:
        for name in ("one", "two", "three"):
            assert mine.try_reserve(name)
        assert len(members(sqlite)) == 1
        anyio.run(break_it, "two")
        assert told.get(timeout=100) == ("two", "broken")
        assert not mine.has_reservation("two")
        left = mine.remaining("one")
        while (now := mine.remaining("one")) <= left:  # until it is renewed
            left = now
            threading.Event().wait(0.01)
        assert mine.lease_id("one") == mine.lease_id("three")
        assert len(members(sqlite)) == 1
        assert mine.has_reservation("one")
        assert mine.has_reservation("three")
        assert told.empty()


def test_each_job_may_have_a_lease_of_its_own_length(sqlite: str) -> None:
    with Reserver(sqlite, lease=LEASE, holder_name="etl") as mine:
        assert mine.try_reserve("short", 30)
        assert mine.try_reserve("long", seconds=90)
        assert mine.try_reserve("other", seconds=90)
        assert mine.try_reserve("usual")
        assert sorted(each.duration_s for each in members(sqlite)) == [30.0, 60.0, 90.0]
        assert mine.lease_id("long") == mine.lease_id("other") != mine.lease_id("usual")
        assert mine.lease_id("long").startswith("etl-")
        mine.cancel_reservation("long")
        assert mine.try_reserve("long", 30)
        assert mine.lease_id("long") == mine.lease_id("short")
        with pytest.raises(InvalidDuration):
            mine.try_reserve("never", 0)
        with pytest.raises(InvalidName):
            mine.try_reserve("")


def test_two_nodes_with_the_same_host_name_and_pid_are_two_holders(sqlite: str) -> None:
    # As in two containers: both of these say the same host and the same pid of themselves.
    with Reserver(sqlite, lease=LEASE) as one, Reserver(sqlite, lease=LEASE) as two:
        first, second = members(sqlite)
        assert first.info == second.info
        assert first.holder != second.holder
        assert one.try_reserve("nightly")
        assert not two.try_reserve("nightly")
        two.cancel_reservation("nightly")
        two.dispose()
        assert one.has_reservation("nightly")
        with reserve("weekly", store=sqlite, lease=LEASE) as job:
            assert not one.try_reserve("weekly")
            assert job.why_lost is None


class Flaky(MemoryStore):
    """Can be away, lose its leases and give none, or take for itself the answer to a claim."""

    away = lost = False
    claims = deaf = 0

    def __init__(self) -> None:
        super().__init__(SystemClock())

    async def claim(self, lease: Lease, wanted: object, *, force: bool = False) -> list[Ownership]:
        self.claims += 1
        if self.away:
            raise StoreUnavailable("away")
        if self.lost:
            raise LeaseLost("expired", reason="expired")
        assert isinstance(wanted, list)
        given: list[KeyClaim] = wanted
        won = list(await super().claim(lease, given, force=force))
        if self.deaf:
            self.deaf -= 1
            raise StoreUnavailable("the answer is lost")
        return won

    async def grant(self, **named: Any) -> Lease:
        if self.lost:
            raise StoreUnavailable("no lease")
        return await super().grant(**named)


@pytest.mark.spec("J7")
def test_trouble_is_tried_again_and_an_error_in_the_end_but_never_a_yes() -> None:
    store = Flaky()
    with Reserver(store, lease=LEASE, patience=PATIENCE) as mine:
        assert mine.try_reserve("first")
        mine.cancel_reservation("first")
        store.away, store.claims = True, 0
        with pytest.raises(StoreUnavailable, match="'first' could not be asked for in 2 tries"):
            mine.try_reserve("first")
        assert store.claims == 2
        assert not mine.has_reservation("first")
        store.away = False
        assert mine.try_reserve("first")


@pytest.mark.spec("J3")
def test_what_was_given_and_never_heard_of_is_no_run_in_the_log() -> None:
    store = Flaky()
    with Reserver(store, lease=BRISK, patience=PATIENCE) as mine:
        assert mine.try_reserve("first")
        mine.cancel_reservation("first")
        store.deaf = 2
        with pytest.raises(StoreUnavailable, match="in 2 tries"):
            mine.try_reserve("first")
        with Reserver(store, lease=LEASE) as other:
            while not other.try_reserve("first"):  # with the next renewal at the latest
                threading.Event().wait(0.01)
    _, *unheard, first = log_entries(anyio.run(store.history, job_key("first")))
    assert {each.outcome for each in unheard} == {Outcome.NO_RUN}
    assert first.outcome is Outcome.OK


@pytest.mark.spec("J1")
def test_who_cancels_twice_does_not_end_what_another_thread_has_reserved_since() -> None:
    store = MemoryStore(SystemClock())
    with Reserver(store, lease=LEASE) as mine, ThreadPoolExecutor(1) as other:
        assert mine.try_reserve("nightly")
        mine.cancel_reservation("nightly")
        mine.cancel_reservation("nightly")  # nobody has it: harmless
        assert other.submit(mine.try_reserve, "nightly").result()
        with pytest.raises(UsageError, match=r"this thread had \(epoch 1\) is over.*epoch 2"):
            mine.cancel_reservation("nightly")
        mine.cancel_reservation("nightly", epoch=1)  # over: harmless
        assert mine.has_reservation("nightly")
        other.submit(mine.cancel_reservation, "nightly").result()
        assert not mine.has_reservation("nightly")


@pytest.mark.spec("J1")
def test_a_thread_ends_what_another_has_reserved_by_its_epoch() -> None:
    store = MemoryStore(SystemClock())
    with Reserver(store, lease=LEASE) as mine, ThreadPoolExecutor(1) as other:
        for epoch in (1, 2):
            assert mine.try_reserve("nightly")
            assert mine.epoch("nightly") == epoch
            other.submit(mine.cancel_reservation, "nightly", epoch=epoch).result()
            assert not mine.has_reservation("nightly")
        assert mine.try_reserve("nightly")
        other.submit(mine.cancel_reservation, "nightly").result()  # it never had one of its own
        assert not mine.has_reservation("nightly")


@pytest.mark.spec("J1")
def test_a_cancellation_that_comes_late_does_not_end_the_next_reservation() -> None:
    key = job_key("nightly")
    with Reserver(MemoryStore(SystemClock()), lease=LEASE) as mine:
        assert mine.try_reserve("nightly")
        late = _ReserveCall(key=key, note="", ownership=mine._held[key])  # of a thread that is slow
        mine.cancel_reservation("nightly")
        assert mine.try_reserve("nightly")
        mine._submit(late)
        assert mine.has_reservation("nightly")
        assert mine.epoch("nightly") == 2


class Waiting(SystemClock):
    """Keeps for how long things were waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        self.waits_s.append(seconds)
        return await super().bounded(answer, seconds=seconds)


@pytest.mark.spec("J7")
def test_a_lease_that_is_lost_while_asking_is_waited_for_within_the_same_patience() -> None:
    clock, patience = Waiting(), timedelta(seconds=0.90625)
    store = Flaky()
    with Reserver(store, lease=LEASE, patience=patience, clock=clock) as mine:
        store.lost = True
        with pytest.raises(StoreUnavailable, match="in 2 tries: the store gave no lease"):
            mine.try_reserve("first")
        # Once for the lease of the beginning. Then it was waited for what was left.
        assert clock.waits_s.count(patience.total_seconds()) == 1
        store.lost = False


@pytest.mark.spec("J2")
@pytest.mark.parametrize("seconds", [None, 30.0])
def test_after_a_loss_no_thread_of_the_program_has_it_before_the_loser_has_cancelled(
    sqlite: str, seconds: float | None
) -> None:
    told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    async def break_it() -> None:
        async with open_store(sqlite) as store:
            await store.break_(job_key("nightly"), epoch=1, after=timedelta(0))

    with Reserver(sqlite, lease=BRISK, on_lost=lambda *loss: told.put(loss)) as mine:
        assert mine.try_reserve("nightly")
        anyio.run(break_it)
        assert told.get(timeout=100) == ("nightly", "broken")
        # Another thread asks. If it had it, the loser would take that for its own, and free it.
        assert not mine.try_reserve("nightly", seconds)
        assert not mine.has_reservation("nightly")
        mine.cancel_reservation("nightly")
        assert mine.try_reserve("nightly", seconds)
        assert mine.epoch("nightly") == 2


class Alarm(RuntimeError):
    """What a signal handler raises."""


class Interrupting(MemoryStore):
    """Interrupts the main thread before it answers to a claim, and answers afterwards."""

    armed = False

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.goes_on, self.given_back = threading.Event(), threading.Event()
        self.notes: Mapping[str, str] | None = None

    async def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        if self.armed:
            self.armed = False
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            await anyio.to_thread.run_sync(self.goes_on.wait)
        return await super().claim(lease, wanted, force=force)

    async def release(
        self, ownerships: Sequence[Ownership], *, notes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        refused = await super().release(ownerships, notes=notes)
        self.notes = notes
        self.given_back.set()
        return refused


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring(_number: int, _frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, ring)
    yield
    signal.signal(signal.SIGUSR1, before)


def soon_reserved(reserver: Reserver, name: str) -> None:
    """Reserve it; until the reserver knows that it was given back, it says that it has it."""
    end_s = CLOCK.boottime_s() + 100
    while not reserver.try_reserve(name):
        assert CLOCK.boottime_s() < end_s, "it was not given back"
        threading.Event().wait(0.005)


@pytest.mark.usefixtures("alarm")
def test_who_is_interrupted_while_asking_leaves_nothing_reserved() -> None:
    store = Interrupting()
    with Reserver(store, lease=LEASE) as mine, Reserver(store, lease=LEASE) as other:
        store.armed = True
        with pytest.raises(Alarm):
            mine.try_reserve("nightly")
        store.goes_on.set()
        assert store.given_back.wait(100)
        assert RunNote.of((store.notes or {})["job/nightly"]).outcome is Outcome.NO_RUN
        assert not mine.has_reservation("nightly")
        assert other.try_reserve("nightly")
        other.cancel_reservation("nightly")
        soon_reserved(mine, "nightly")


def test_who_is_interrupted_in_the_moment_of_the_answer_leaves_nothing_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, waits = Interrupting(), LoopAnswer.of

    def interrupted(doing: LoopAnswer[Any], thread: threading.Thread) -> bool:
        monkeypatch.undo()
        assert thread.is_alive()
        assert waits(doing, thread)
        raise Alarm

    with Reserver(store, lease=LEASE) as mine, Reserver(store, lease=LEASE) as other:
        monkeypatch.setattr(LoopAnswer, "of", interrupted)
        with pytest.raises(Alarm):
            mine.try_reserve("nightly")
        assert store.given_back.wait(100)
        assert other.try_reserve("nightly")
        other.cancel_reservation("nightly")
        soon_reserved(mine, "nightly")


def test_who_is_interrupted_while_calling_the_thread_keeps_nobody_else_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_self: Reserver) -> None:
        monkeypatch.undo()
        raise Alarm

    with Reserver(Interrupting(), lease=LEASE) as mine:
        monkeypatch.setattr(Reserver, "_post_dispatch", interrupted)
        with pytest.raises(Alarm):
            mine.try_reserve("nightly")
        assert mine.try_reserve("nightly")


def test_a_store_that_can_not_be_asked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidUrl):
        Reserver("nowhere://")
    with pytest.raises(StoreError):
        Reserver(f"sqlite:///{tmp_path}/no/such/place/leases.db")
    with pytest.raises(InvalidDuration):
        Reserver("memory:", lease=timedelta(0))


def test_an_unprotected_counter_is_exact(sqlite: str) -> None:
    """The fuzz test of ShedLock: 8 threads, 2 names, read, wait a moment, write."""
    counts, moment = {"a": 0, "b": 0}, threading.Event()

    def work(reserver: Reserver, name: str, times: int) -> None:
        for _ in range(times):
            while not reserver.try_reserve(name):
                moment.wait(0.001)
            seen = counts[name]
            moment.wait(0.001)
            assert reserver.has_reservation(name)
            counts[name] = seen + 1
            reserver.cancel_reservation(name)

    def work_alone(name: str, times: int) -> None:
        for _ in range(times):
            with reserve(name, store=sqlite, lease=LEASE):
                seen = counts[name]
                moment.wait(0.001)
                counts[name] = seen + 1

    with (
        Reserver(sqlite, lease=LEASE) as one,
        Reserver(sqlite, lease=LEASE) as two,
        ThreadPoolExecutor(8) as pool,
    ):
        doing = [pool.submit(work, each, name, 10) for each in (one, two) for name in "aab"]
        doing += [pool.submit(work_alone, name, 3) for name in "ab"]
        for each in doing:
            each.result()
    assert counts == {"a": 43, "b": 23}
