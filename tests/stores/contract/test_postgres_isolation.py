"""The PostgreSQL store keeps its promises whatever isolation level the server has by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta

import anyio
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from tests.support import postgres

from leasehold.clock import SystemClock
from leasehold.errors import UsageError
from leasehold.jobs.fences import FencedTable
from leasehold.model import CheckpointWrite, KeyClaim, MemberInfo, Ownership, Position
from leasehold.ports import Store
from leasehold.spark.sinks.postgres.target import SinkDatabase
from leasehold.stores import open_store
from leasehold.stores.blocking import open_blocking
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.transactions import AsyncPool, BlockingPool, PoolOptions

pytestmark = pytest.mark.server

ROUNDS = 6
GROUP = "partition/orders/billing"


@pytest.fixture(scope="module", params=["read committed", "repeatable read", "serializable"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with postgres.database() as made:
        name = sql.Identifier(str(conninfo_to_dict(made)["dbname"]))
        with psycopg.connect(made, autocommit=True) as connection:
            connection.execute(
                sql.SQL("alter database {} set default_transaction_isolation = {}").format(
                    name, sql.Literal(request.param)
                )
            )
        yield made


async def owner(store: Store, key: str, holder: str) -> Ownership:
    lease = await store.grant(
        holder=holder, token=holder, group=GROUP, duration=timedelta(hours=1), info=MemberInfo()
    )
    epoch = (await store.resources(GROUP))[key].epoch
    (won,) = await store.claim(lease, [KeyClaim(key=key, seen_epoch=epoch)], force=True)
    return won


async def race(url: str, number: int, steal_first: bool) -> None:
    """A checkpoint of the former owner either comes before the steal, or is refused."""
    key, old, new = f"{GROUP}/{number}", f"old-{number}", f"new-{number}"
    seen: list[Position | None] = []
    async with AsyncExitStack() as opened:
        stores = [await opened.enter_async_context(open_store(url)) for _ in range(2)]
        await stores[0].declare([key])
        former = await owner(stores[0], key, old)
        write = CheckpointWrite(ownership=former, position=Position(sequence_number=5))

        async def steal() -> None:
            await owner(stores[1], key, new)
            found = await stores[1].checkpoints(GROUP)
            seen.append(found[key].position if key in found else None)

        async def write_late() -> None:
            await stores[0].checkpoint([write])

        steps = (steal, write_late) if steal_first else (write_late, steal)
        with psycopg.connect(url) as blocker:  # both wait for it, so that they meet
            blocker.execute("select 1 from leasehold.lease where holder = %s for update", [old])
            async with anyio.create_task_group() as tasks:
                for count, start in enumerate(steps, start=1):
                    tasks.start_soon(start)
                    await anyio.to_thread.run_sync(_until_waiting, url, count)
                blocker.rollback()
        found = await stores[1].checkpoints(GROUP)
        after = found[key].position if key in found else None
    assert after == seen[0], "a former owner's checkpoint was accepted after the steal"


def _until_waiting(url: str, count: int) -> None:
    waiting = (
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and wait_event_type = 'Lock'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(2_000):
            row = connection.execute(waiting).fetchone()
            if row and row[0] >= count:
                return
            connection.execute("select pg_sleep(0.005)")


@pytest.mark.spec("B5")
def test_a_former_owners_checkpoint_is_refused(url: str) -> None:
    for number in range(ROUNDS):
        anyio.run(race, url, number, number % 2 == 0)


def test_own_connections_read_what_is_committed(url: str) -> None:
    """The blocking database of journals, ledgers and fences has the same rule."""
    shown = {"level": "SELECT current_setting('transaction_isolation')"}
    database = open_blocking(url, queries=shown, clock=SystemClock(), guard=None)
    try:
        assert database.write(lambda tx: tx.one("level")) == ("read committed",)
    finally:
        database.close()


LEVEL = "select current_setting('transaction_isolation')"


@pytest.mark.anyio
async def test_a_callers_block_begins_in_read_committed(url: str) -> None:
    """On a new connection, and on one that a block before has set to another level."""
    pool = AsyncPool(pool_options(url))
    try:
        for _ in range(2):
            async with pool.connection() as connection:
                row = await (await connection.execute(LEVEL)).fetchone()
                assert row == ("read committed",)
                await connection.execute("set default_transaction_isolation = 'serializable'")
    finally:
        await pool.close()


def test_a_callers_blocking_block_begins_in_read_committed(url: str) -> None:
    pool = BlockingPool(pool_options(url))
    try:
        for _ in range(2):
            with pool.connection() as connection:
                assert connection.execute(LEVEL).fetchone() == ("read committed",)
                connection.execute("set default_transaction_isolation = 'serializable'")
    finally:
        pool.close()


def test_a_fenced_table_begins_in_read_committed(url: str) -> None:
    with FencedTable(url, "nightly") as table, table.transaction(1) as cursor:
        assert cursor.execute(LEVEL).fetchone() == ("read committed",)


def test_pools_refuse_a_process_that_was_forked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, sink = BlockingPool(pool_options(url)), SinkDatabase(DatabaseAddress.of(url))
    with pool.connection() as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    sink.write(lambda _tx: None)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(UsageError, match="before this process was forked"), pool.connection():
            pass
        with pytest.raises(UsageError, match="before this process was forked"):
            sink.write(lambda _tx: None)
        pool.close()  # of the child: the parent's connections stay open
        sink.close()
    with pool.connection() as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    pool.close()
    sink.close()


def pool_options(url: str) -> PoolOptions:
    return PoolOptions(
        address=DatabaseAddress.of(url),
        clock=SystemClock(),
        max_connections=1,
        timeout_s=30.0,
        pool_timeout_s=30.0,
    )
