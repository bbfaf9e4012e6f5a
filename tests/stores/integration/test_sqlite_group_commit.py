"""Calls to a SQLite store that wait together: one transaction, and each its own answer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable, UnknownResource, UsageError
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.database import Database
from leasehold.stores.sqlite.group_commit import SqliteGroupCommit

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

KEYS = [f"job/{number}" for number in range(5)]


class Counted(Database):
    """Counts its transactions."""

    def __init__(self, path: Path, *, busy_limit_s: float) -> None:
        super().__init__(path, busy_limit_s=busy_limit_s)
        self.writes = 0
        self.begun = threading.Event()

    def write(self, work: Callable[[Any], Any], given_up: threading.Event | None = None) -> Any:
        self.writes += 1
        self.begun.set()
        return super().write(work, given_up)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@asynccontextmanager
async def opened(path: Path, *, busy_limit_s: float = 30.0) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, clock=SystemClock())
    await store.close()
    counted = Counted(path, busy_limit_s=busy_limit_s)
    store._database, store._group_commit = counted, SqliteGroupCommit(counted)
    yield store
    await store.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else can write meanwhile."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def writes(store: SqliteStore) -> int:
    assert isinstance(store._database, Counted)
    return store._database.writes


async def under_way(store: SqliteStore) -> None:
    """The first transaction waits for the lock."""
    assert isinstance(store._database, Counted)
    assert await anyio.to_thread.run_sync(store._database.begun.wait, 100)


async def test_calls_that_wait_together_are_one_transaction(path: Path) -> None:
    async with opened(path) as store:
        with locked(path):
            first = asyncio.create_task(store.declare(KEYS[:1]))
            await under_way(store)
            others = [asyncio.create_task(store.declare([key])) for key in KEYS]
            await asyncio.sleep(0)
        assert await first == 1
        assert [await each for each in others] == [0, 1, 1, 1, 1]
        assert writes(store) == 2
        assert sorted(await store.resources("job")) == KEYS


async def test_a_call_that_fails_fails_alone(path: Path) -> None:
    async with opened(path) as store:
        with locked(path):
            first = asyncio.create_task(store.declare(KEYS[:1]))
            await under_way(store)
            before = asyncio.create_task(store.declare(KEYS[1:2]))
            wrong = asyncio.create_task(store.break_("job/none", epoch=1, after=timedelta(0)))
            after = asyncio.create_task(store.declare(KEYS[1:3]))
            await asyncio.sleep(0)
        await first
        with pytest.raises(UnknownResource):
            await wrong
        assert (await before, await after) == (1, 1)
        assert sorted(await store.resources("job")) == KEYS[:3]


async def test_a_call_that_is_given_up_before_its_turn_is_not_carried_out(path: Path) -> None:
    async with opened(path) as store:
        with locked(path):
            first = asyncio.create_task(store.declare(KEYS[:1]))
            await under_way(store)
            waits = asyncio.create_task(store.declare(KEYS[1:2]))
            await asyncio.sleep(0)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
        await first
        assert sorted(await store.resources("job")) == KEYS[:1]
        assert waits.cancelled()


async def test_who_is_given_up_while_it_waits_for_the_file_keeps_nobody_waiting(path: Path) -> None:
    async with opened(path, busy_limit_s=3600.0) as store:
        with locked(path):
            first = asyncio.create_task(store.declare(KEYS))
            await under_way(store)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            # Reading needs no lock, but the connection.
            assert await asyncio.wait_for(store.resources("job"), 100) == {}


async def test_a_file_that_others_lock_is_locked_for_all_who_wait(path: Path) -> None:
    async with opened(path, busy_limit_s=0.2) as store:
        with locked(path):
            found = await asyncio.gather(
                *(store.declare([key]) for key in KEYS), return_exceptions=True
            )
        assert {type(each) for each in found} == {StoreUnavailable}
        assert len({id(each) for each in found}) == len(KEYS)
        assert all(isinstance(each.__cause__, sqlite3.Error) for each in found)  # type: ignore[union-attr]
        assert await store.declare(KEYS) == len(KEYS)


async def test_what_was_asked_for_before_a_close_is_done_and_nothing_after(path: Path) -> None:
    async with opened(path) as store:
        before = asyncio.create_task(store.declare(KEYS))
        await asyncio.sleep(0)
        await store.close()
        assert await before == len(KEYS)
        with pytest.raises(UsageError, match="open the store again"):
            await store.declare(KEYS)


async def test_a_store_serves_several_event_loops_at_once(path: Path) -> None:
    async with opened(path) as store:

        async def declare(thread: int) -> list[int]:
            keys = [f"job/{thread}-{number}" for number in range(20)]
            return await asyncio.gather(*(store.declare([key]) for key in keys))

        def run(thread: int) -> list[int]:
            return asyncio.run(declare(thread))

        with ThreadPoolExecutor(4) as pool:
            doing = [asyncio.wrap_future(pool.submit(run, thread)) for thread in range(4)]
            assert await asyncio.gather(*doing) == [[1] * 20] * 4
        assert len(await store.resources("job")) == 80
