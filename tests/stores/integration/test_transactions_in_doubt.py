"""A commit that goes on at the server after its answer was given up is not applied twice.

The server waits for a standby that is away, as it does with synchronous replication, whatever the
default of ``synchronous_commit`` is. The server's process at work on the commit is then paused, and
no other commit waits: that COMMIT is in progress for as long as the test likes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import anyio
import psycopg
import pytest
from tests.support import postgres
from tests.support.condition_clock import ConditionClock
from tests.support.postgres_proxy import proxy
from tests.support.transactions import (
    KEYS,
    awaited,
    blocking,
    in_thread,
    opened,
    owner,
    run,
    stored,
)

from leasehold.clock import SystemClock
from leasehold.errors import CheckpointBehind, StoreUnavailable
from leasehold.stores.postgres import PostgresStore, open_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.transactions import Begin

    from leasehold.model import Ownership
    from leasehold.stores.postgres.transactions import Transactions

pytestmark = [pytest.mark.anyio, pytest.mark.server]

APPLY = "insert into tally values (5)"
IN_COMMIT = "select pid from pg_stat_activity where wait_event = 'SyncRep'"
IN_LINE = "select 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with postgres.private_server() as server:
        admin = str(server.get_uri())
        postgres.execute(admin, "create database doubt")
        # Promises less than our commits need.
        postgres.execute(admin, "alter database doubt set synchronous_commit = local")
        yield postgres.url_of("doubt", admin)


@pytest.fixture
def url(server_url: str) -> Iterator[str]:
    postgres.execute(server_url, "drop schema if exists leasehold cascade")
    postgres.execute(server_url, "drop table if exists tally")
    postgres.execute(server_url, "create table tally (n integer)")
    yield server_url
    standby(server_url, away=False)
    resume()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await open_url(url, SystemClock())
    yield store
    await store.close()


@pytest.fixture(params=[awaited, blocking])
def begin(request: pytest.FixtureRequest) -> Begin:
    chosen: Begin = request.param
    return chosen


def standby(url: str, *, away: bool) -> None:
    names = "nobody" if away else ""
    postgres.execute(url, f"alter system set synchronous_standby_names = '{names}'")
    postgres.execute(url, "select pg_reload_conf()")
    shown = "show synchronous_standby_names"
    while postgres.execute(url, shown) != [(names,)]:  # a new session may be ahead of the signal
        pass


PAUSED: list[int] = []


def pause_commit(url: str) -> None:
    """Pause the commit that waits for the standby, and let the standby come back for all others."""
    ((pid,),) = postgres.execute(url, IN_COMMIT)
    os.kill(int(str(pid)), signal.SIGSTOP)
    PAUSED.append(int(str(pid)))
    standby(url, away=False)


def resume() -> None:
    while PAUSED:
        os.kill(PAUSED.pop(), signal.SIGCONT)


def tally(url: str) -> list[tuple[object, ...]]:
    return postgres.execute(url, "select n, count(*) from tally group by n")


async def until(url: str, question: str) -> None:
    """Until the server itself says that it is so."""
    with anyio.fail_after(100):
        while not await in_thread(postgres.execute, url, question):
            pass


async def leave_a_commit_under_way(url: str, begin: Begin, owned: Ownership) -> None:
    """A block at position 5 whose connection breaks while the server is at work on its commit."""
    failed: list[str] = []

    async def apply(transactions: Transactions) -> None:
        try:
            await run(begin(transactions, owned, 5), APPLY)
        except StoreUnavailable as error:
            failed.append(str(error))

    standby(url, away=True)
    with proxy(url) as door:
        async with opened(door.url) as transactions, anyio.create_task_group() as tasks:
            tasks.start_soon(apply, transactions)
            await until(url, IN_COMMIT)
            await in_thread(pause_commit, url)
            await in_thread(door.close)
    assert ["unknown: read the checkpoint" in each for each in failed] == [True]
    assert tally(url) == []


@pytest.mark.spec("C4")
@pytest.mark.parametrize(
    ("level", "refusal"),
    [
        ("read committed", CheckpointBehind),
        ("repeatable read", psycopg.errors.SerializationFailure),
        ("serializable", psycopg.errors.SerializationFailure),
    ],
)
async def test_a_block_run_again_waits_for_the_commit_in_doubt_and_is_refused(
    url: str, store: PostgresStore, begin: Begin, level: str, refusal: type[Exception]
) -> None:
    _, owned = await owner(store)
    await leave_a_commit_under_way(url, begin, owned[0])
    assert await stored(store) == {}
    again = [f"set transaction isolation level {level}", APPLY]
    refused: list[type[Exception]] = []

    async def run_again(transactions: Transactions) -> None:
        try:
            await run(begin(transactions, owned[0], 5), *again)
        except (CheckpointBehind, psycopg.Error) as error:
            refused.append(type(error))

    async with opened(url) as transactions:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_again, transactions)
            await until(url, IN_LINE)
            resume()
        assert refused == [refusal]
        with pytest.raises(CheckpointBehind, match=r"are done.*rolled back.*Do not run it again"):
            await run(begin(transactions, owned[0], 5), *again)
        assert tally(url) == [(5, 1)]
        assert await stored(store) == {KEYS[0]: 5}
        await run(begin(transactions, owned[0], 6), "insert into tally values (6)")
    assert sorted(tally(url)) == [(5, 1), (6, 1)]


async def test_a_block_that_waits_in_vain_for_a_commit_in_doubt_has_committed_nothing(
    url: str, store: PostgresStore
) -> None:
    _, owned = await owner(store)
    await leave_a_commit_under_way(url, awaited, owned[0])
    clock = ConditionClock()
    async with opened(url, clock=clock) as transactions:
        clock.over = lambda: bool(postgres.execute(url, IN_LINE))
        with pytest.raises(StoreUnavailable, match="nothing of this transaction was committed"):
            await run(awaited(transactions, owned[0], 5), APPLY)
        clock.over = lambda: False
        # Another partition of the same owner is not held up.
        await run(awaited(transactions, owned[1], 5))
    assert await stored(store) == {KEYS[1]: 5}
    assert tally(url) == []


async def test_a_connection_whose_commit_was_cancelled_is_not_lent_again(
    url: str, store: PostgresStore
) -> None:
    _, owned = await owner(store)
    pids: list[int] = []

    async def apply(transactions: Transactions, at: int) -> None:
        async with awaited(transactions, owned[0], at) as execute:
            ((pid,),) = await execute("select pg_backend_pid()")
            pids.append(pid)

    standby(url, away=True)
    async with opened(url, max_connections=1) as transactions:
        task = asyncio.create_task(apply(transactions, 5))
        await until(url, IN_COMMIT)
        task.cancel()
        # The driver cancels the commit, the server answers, and the connection looks idle.
        with pytest.raises(asyncio.CancelledError):
            await task
        standby(url, away=False)
        await apply(transactions, 6)
    assert len(set(pids)) == 2
    assert await stored(store) == {KEYS[0]: 6}
