"""Transactions when others come in between, connections break, and answers are lost."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import psycopg
import pytest
from psycopg.rows import dict_row
from tests.support import postgres
from tests.support.condition_clock import ConditionClock
from tests.support.postgres_proxy import Proxy, proxy
from tests.support.transactions import (
    GROUP,
    INSERT_5,
    KEYS,
    MINUTE,
    awaited,
    blocking,
    in_thread,
    opened,
    owner,
    rows,
    run,
    sessions,
    stored,
    take_over,
    with_sink,
)

from leasehold.clock import SystemClock
from leasehold.errors import InvalidUrl, StoreUnavailable, UsageError
from leasehold.model import Ownership, Position
from leasehold.stores import open_transactions
from leasehold.stores.postgres import PostgresStore, open_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.transactions import Begin

    from leasehold.stores.postgres.transactions import Transactions

pytestmark = [pytest.mark.anyio, pytest.mark.server]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MY_PID = "select pg_backend_pid()"


@pytest.fixture
def url() -> str:
    return with_sink()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await open_url(url, SystemClock())
    yield store
    await store.close()


@pytest.fixture
async def transactions(url: str) -> AsyncIterator[Transactions]:
    async with opened(url) as made:
        yield made


@pytest.fixture
def door(url: str) -> Iterator[Proxy]:
    with proxy(url) as door:
        yield door


@pytest.fixture(params=[awaited, blocking])
def begin(request: pytest.FixtureRequest) -> Begin:
    chosen: Begin = request.param
    return chosen


async def until_a_claim_waits(url: str) -> None:
    """The server itself tells who waits for whom."""
    blocked: list[Any] = []
    while not blocked:
        blocked = await in_thread(
            postgres.execute,
            url,
            "select 1 from pg_stat_activity where datname = current_database() "
            "and query like '%%leasehold.claim_%%' "
            "and cardinality(pg_blocking_pids(pid)) > %s",
            0,
        )


# ------------------------------------------------- between the check and the commit


@pytest.mark.spec("B5")
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
async def test_a_steal_between_check_and_commit_waits_and_sees_the_checkpoint(
    url: str, store: PostgresStore, door: Proxy, begin: Begin, level: str
) -> None:
    _, owned = await owner(store)
    door.at_commit = "hold"
    taken: list[Ownership] = []
    seen: list[dict[str, int]] = []

    async def steal() -> None:
        taken.append(await take_over(store))
        seen.append(await stored(store))

    async with opened(door.url) as transactions, anyio.create_task_group() as tasks:
        block = begin(transactions, owned[0], 5)
        tasks.start_soon(run, block, f"set transaction isolation level {level}", INSERT_5)
        assert await in_thread(door.seen.wait, 120)
        tasks.start_soon(steal)
        await until_a_claim_waits(url)
        assert (rows(url), await stored(store), taken) == ([], {}, [])
        door.go.set()
    assert rows(url) == [5]
    assert [each.epoch for each in taken] == [2]
    assert seen == [{KEYS[0]: 5}]


@pytest.mark.spec("B5")
async def test_a_lease_that_runs_out_between_check_and_commit_is_claimed_after_it(
    url: str, store: PostgresStore, door: Proxy, begin: Begin
) -> None:
    door.at_commit = "hold"
    seen: list[dict[str, int]] = []

    async def claim() -> None:
        await take_over(store, force=False)
        seen.append(await stored(store))

    with postgres.stopped_clock(url) as set_clock:
        set_clock(NOON)
        _, owned = await owner(store)
        async with opened(door.url) as transactions, anyio.create_task_group() as tasks:
            tasks.start_soon(run, begin(transactions, owned[0], 5), INSERT_5)
            assert await in_thread(door.seen.wait, 120)
            set_clock(NOON + 2 * MINUTE)
            tasks.start_soon(claim)
            await until_a_claim_waits(url)
            door.go.set()
    assert rows(url) == [5]
    assert seen == [{KEYS[0]: 5}]


@pytest.mark.spec("B5")
async def test_a_host_that_stands_still_between_check_and_commit_holds_nobody_up(
    url: str, store: PostgresStore, door: Proxy, begin: Begin
) -> None:
    _, owned = await owner(store)
    door.at_commit = "hold"
    async with opened(door.url) as transactions:
        failed: list[Exception] = []

        async def stand_still() -> None:
            try:
                await run(begin(transactions, owned[0], 5), INSERT_5)
            except StoreUnavailable as error:
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stand_still)
            assert await in_thread(door.seen.wait, 120)
            taken = await take_over(store)  # when the server has ended the other's session
            assert await in_thread(door.over.wait, 120)
            door.go.set()
    assert taken.epoch == 2
    assert ["nothing of this transaction was committed" in str(each) for each in failed] == [True]
    assert rows(url) == []
    assert await stored(store) == {}


# ------------------------------------------------------------------- lost answers


@pytest.mark.parametrize(
    ("cut", "committed"), [("cut_after", [5]), ("cut_before", [])], ids=["after", "before"]
)
async def test_a_commit_without_an_answer_is_unknown_and_whole(
    url: str, store: PostgresStore, door: Proxy, begin: Begin, cut: str, committed: list[int]
) -> None:
    _, owned = await owner(store)
    async with opened(door.url) as transactions:
        door.at_commit = cut
        with pytest.raises(StoreUnavailable, match="unknown: read the checkpoint") as caught:
            await run(begin(transactions, owned[0], 5), INSERT_5)
        assert isinstance(caught.value.__cause__, psycopg.Error)
        assert rows(url) == committed
        assert list((await stored(store)).values()) == committed
        door.at_commit = "pass"
        door.seen.clear()
        await run(begin(transactions, owned[0], 6), "insert into sink values (6)")
    assert rows(url) == [*committed, 6]


async def test_a_commit_that_the_server_never_answers_is_given_up_as_unknown(
    store: PostgresStore, door: Proxy
) -> None:
    _, owned = await owner(store)
    door.at_commit = "hold"
    clock = ConditionClock()
    clock.over = door.seen.is_set
    async with opened(door.url, clock=clock) as transactions:
        with pytest.raises(StoreUnavailable, match="unknown: read the checkpoint"):
            await run(awaited(transactions, owned[0], 5), INSERT_5)


async def test_a_connection_that_breaks_in_the_block_has_committed_nothing(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)

    async def unlucky() -> None:
        async with begin(transactions, owned[0], 5) as execute:
            ((pid,),) = await execute(MY_PID)
            await execute(INSERT_5)
            postgres.execute(url, "select pg_terminate_backend(%s, 5000)", pid)
            await execute("select 1")

    with pytest.raises(StoreUnavailable, match="nothing of this transaction was committed"):
        await unlucky()
    assert rows(url) == []
    assert await stored(store) == {}
    await run(begin(transactions, owned[0], 5), INSERT_5)
    assert rows(url) == [5]


async def test_a_connection_that_broke_unnoticed_in_the_block_has_committed_nothing(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)

    async def unlucky() -> None:
        async with begin(transactions, owned[0], 5) as execute:
            ((pid,),) = await execute(MY_PID)
            await execute(INSERT_5)
            postgres.execute(url, "select pg_terminate_backend(%s, 5000)", pid)

    with pytest.raises(StoreUnavailable, match="nothing of this transaction was committed"):
        await unlucky()
    assert rows(url) == []


async def test_a_connection_that_broke_while_idle_is_replaced(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    async with begin(transactions, owned[0], 4) as execute:
        ((pid,),) = await execute(MY_PID)
    postgres.execute(url, "select pg_terminate_backend(%s, 5000)", pid)
    await run(begin(transactions, owned[0], 5), INSERT_5)
    assert rows(url) == [5]


async def test_a_cancelled_block_is_rolled_back(
    url: str, store: PostgresStore, transactions: Transactions
) -> None:
    _, owned = await owner(store)
    with anyio.CancelScope() as scope:
        await run(
            awaited(transactions, owned[0], 5), INSERT_5, scope.cancel, anyio.lowlevel.checkpoint
        )
    assert scope.cancelled_caught
    await run(awaited(transactions, owned[0], 6), "insert into sink values (6)")
    assert rows(url) == [6]
    assert await stored(store) == {KEYS[0]: 6}


# -------------------------------------------------------------------- connections


async def test_two_blocks_at_once_on_two_partitions_do_not_wait_for_each_other(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    both = threading.Barrier(2)

    async def work(part: int) -> None:
        block = begin(transactions, owned[part], 5)
        await run(block, f"insert into sink values ({part})", lambda: in_thread(both.wait, 120))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, 0)
        tasks.start_soon(work, 1)
    assert rows(url) == [0, 1]
    assert await stored(store) == {KEYS[0]: 5, KEYS[1]: 5}


async def test_there_are_never_more_connections_than_allowed(
    url: str, store: PostgresStore, begin: Begin
) -> None:
    _, owned = await owner(store)
    before = len(sessions(url))
    async with opened(url, max_connections=1, pool_timeout=timedelta(seconds=0.05)) as transactions:
        async with begin(transactions, owned[0], 5) as execute:
            with pytest.raises(StoreUnavailable, match="kept all 1 connections"):
                await run(begin(transactions, owned[1], 5))
            await execute(INSERT_5)
        await run(begin(transactions, owned[1], 5))
        assert len(sessions(url)) == before + 1
    assert await stored(store) == {KEYS[0]: 5, KEYS[1]: 5}


async def test_a_connection_comes_back_clean(
    url: str, store: PostgresStore, transactions: Transactions, begin: Begin
) -> None:
    _, owned = await owner(store)
    postgres.execute(url, "grant all on schema leasehold to pg_monitor")
    postgres.execute(url, "grant all on all tables in schema leasehold to pg_monitor")
    shown = (
        "select pg_backend_pid(), current_setting('work_mem'), current_user::text, "
        "to_regclass('pg_temp.left_over')::text, current_setting('default_transaction_isolation'), "
        "current_setting('idle_in_transaction_session_timeout'), "
        "(select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())"
    )
    async with begin(transactions, owned[0], 4) as execute:
        before = await execute(shown)
        await execute("set work_mem = '7MB'")
        await execute("create temp table left_over (n integer)")
        await execute("select pg_advisory_lock(1)")
        await execute("set default_transaction_isolation = serializable")
        await execute("set role pg_monitor")
    async with begin(transactions, owned[0], 5) as execute:
        assert await execute(shown) == before


async def test_the_shape_of_rows_is_the_callers_own_affair(
    store: PostgresStore, transactions: Transactions
) -> None:
    _, owned = await owner(store)

    def first() -> Position:
        return Position(sequence_number=5)

    def second() -> Position:
        return Position(sequence_number=6)

    async with transactions.begin(owned[0], first) as connection:
        connection.row_factory = dict_row  # type: ignore[assignment]
    with transactions.begin_blocking(owned[1], first) as blocks:
        blocks.row_factory = dict_row  # type: ignore[assignment]
    assert await stored(store) == {KEYS[0]: 5, KEYS[1]: 5}
    async with transactions.begin(owned[0], second) as connection:
        assert await (await connection.execute("select 1")).fetchone() == (1,)
    with transactions.begin_blocking(owned[1], second) as blocks:
        assert blocks.execute("select 1").fetchone() == (1,)


async def test_nothing_stays_open_after_the_close(
    url: str, store: PostgresStore, begin: Begin
) -> None:
    _, owned = await owner(store)
    before = sessions(url)
    async with opened(url) as transactions:
        async with begin(transactions, owned[0], 5):
            await transactions.close()
        with pytest.raises(UsageError, match="open them anew"):
            await run(begin(transactions, owned[0], 6))
    postgres.execute(url, "select pg_stat_clear_snapshot()")
    while sessions(url) != before:
        await anyio.lowlevel.checkpoint()
    assert await stored(store) == {KEYS[0]: 5}


async def test_a_server_that_is_not_there_is_told_without_the_password(begin: Begin) -> None:
    owned = Ownership(key=KEYS[0], epoch=1, holder="a", token="secret-a")
    url = "postgresql://me:hunter2@127.0.0.1:1/db"
    async with opened(url, timeout=timedelta(seconds=0.05)) as transactions:
        with pytest.raises(StoreUnavailable, match="no transaction was begun") as caught:
            await run(begin(transactions, owned, 5))
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"
    assert "secret-a" not in str(caught.value)


# ------------------------------------------------------------------------ by URL


@pytest.mark.parametrize("url", ["memory://", "sqlite:////tmp/leases.db"])
async def test_other_stores_say_what_to_do_instead(url: str) -> None:
    with pytest.raises(UsageError, match=r"postgresql://.*docs/exactly-once\.md"):
        open_transactions(url)


async def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(InvalidUrl, match="names no store"):
        open_transactions("redis://me:hunter2@host")
    with pytest.raises(UsageError, match="1 or more"):
        open_transactions("postgresql://host/db", max_connections=0)


@pytest.mark.spec("C4")
async def test_the_url_of_the_store_is_enough(url: str, store: PostgresStore) -> None:
    _, owned = await owner(store)
    made = open_transactions(url)
    await run(awaited(made, owned[0], 5), INSERT_5)
    await made.close()
    assert rows(url) == [5]
    assert await store.fenced_writes(GROUP) == 0
