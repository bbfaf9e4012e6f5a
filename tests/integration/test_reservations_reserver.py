"""``Reserver``: many reservations by name, from many threads, on real stores."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from tests.support.postgres import database

from leasehold.clock import SystemClock
from leasehold.errors import (
    InvalidDuration,
    InvalidName,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    UnknownStore,
)
from leasehold.jobs import Outcome, Reserver, reserve
from leasehold.jobs.entry import Entry, entries
from leasehold.jobs.wish import GROUP
from leasehold.model import Lease, Ownership, Peer, Wanted
from leasehold.names import job_key
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(120)

LEASE = timedelta(seconds=2)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/leases.db"
    else:
        with database() as made:
            yield made


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


def log(url: str, name: str) -> list[Entry]:
    async def read() -> list[Entry]:
        async with open_store(url) as store:
            return entries(await store.history(job_key(name)))

    return anyio.run(read)


def members(url: str) -> list[Peer]:
    async def read() -> list[Peer]:
        async with open_store(url) as store:
            return list((await store.peers(GROUP)).values())

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
    assert [(run.outcome, run.said.words) for run in log(url, "nightly")] == [
        (Outcome.OK, ""),
        (Outcome.FAILED, "no rows"),
    ]


@pytest.mark.spec("J2")
def test_all_is_renewed_under_one_lease_and_a_loss_is_told(sqlite: str) -> None:
    told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    lease = timedelta(seconds=0.6)

    async def break_it(name: str) -> None:
        async with open_store(sqlite) as store:
            await store.break_(job_key(name), epoch=1, after=timedelta(0))

    with Reserver(sqlite, lease=lease, on_lost=lambda *loss: told.put(loss)) as mine:
        for name in ("one", "two", "three"):
            assert mine.try_reserve(name)
        assert len(members(sqlite)) == 1
        anyio.run(break_it, "two")
        assert told.get(timeout=30) == ("two", "broken")
        assert not mine.has_reservation("two")
        # Twice the lease later the others are still there.
        threading.Event().wait(2 * lease.total_seconds())
        assert mine.has_reservation("one")
        assert mine.has_reservation("three")
        assert told.empty()


def test_each_job_may_have_a_lease_of_its_own_length(sqlite: str) -> None:
    with Reserver(sqlite, lease=LEASE, holder_name="etl") as mine:
        assert mine.try_reserve("short", 1.5)
        assert mine.try_reserve("long", seconds=60)
        assert mine.try_reserve("other", seconds=60)
        assert mine.try_reserve("usual")
        assert sorted(each.duration_s for each in members(sqlite)) == [1.5, 2.0, 60.0]
        assert mine.lease_id("long") == mine.lease_id("other") != mine.lease_id("usual")
        assert mine.lease_id("long").startswith("etl-")
        mine.cancel_reservation("long")
        assert mine.try_reserve("long", 1.5)
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
    """Can be away."""

    away = False
    claims = 0

    def __init__(self) -> None:
        super().__init__(SystemClock())

    async def claim(self, lease: Lease, wanted: object, *, force: bool = False) -> list[Ownership]:
        self.claims += 1
        if self.away:
            raise StoreUnavailable("away")
        assert isinstance(wanted, list)
        given: list[Wanted] = wanted
        return list(await super().claim(lease, given, force=force))


@pytest.mark.spec("J7")
def test_trouble_is_tried_again_and_an_error_in_the_end_but_never_a_yes() -> None:
    store = Flaky()
    with Reserver(store, lease=LEASE, patience=timedelta(seconds=0.3)) as mine:
        assert mine.try_reserve("first")
        mine.cancel_reservation("first")
        store.away, store.claims = True, 0
        with pytest.raises(StoreUnavailable, match="'first' could not be asked for in 2 tries"):
            mine.try_reserve("first")
        assert store.claims == 2
        assert not mine.has_reservation("first")
        store.away = False
        assert mine.try_reserve("first")


def test_a_store_that_can_not_be_asked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownStore):
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
        doing = [pool.submit(work, each, name, 20) for each in (one, two) for name in "aab"]
        doing += [pool.submit(work_alone, name, 3) for name in "ab"]
        for each in doing:
            each.result()
    assert counts == {"a": 83, "b": 43}
