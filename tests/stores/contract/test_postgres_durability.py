"""An answer of the PostgreSQL store is durable whatever ``synchronous_commit`` is by default."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from tests.support import postgres

from leasehold.clock import SystemClock
from leasehold.jobs.fences import FencedTable
from leasehold.model import MemberInfo
from leasehold.spark.sinks.postgres.target import SinkDatabase
from leasehold.stores import open_store
from leasehold.stores.blocking import open_blocking
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.connections import Connections
from leasehold.stores.postgres.transactions import AsyncPool, BlockingPool, PoolOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.server

SHOW = "select current_setting('synchronous_commit')"
WEAK = "set synchronous_commit = off"
WEAK_HERE = "set local synchronous_commit = local"
GROUP = "partition/orders/billing"
LEVELS = {
    "off": "on",
    "local": "on",
    "remote_write": "on",
    "on": "on",
    "remote_apply": "remote_apply",
}
PLACES = ("database", "role", "options")
# Called inside the transaction whose commit is the answer.
RECORD = """create function public.record() returns trigger language plpgsql as $$
begin
    insert into public.recorded values (tg_table_name, current_setting('synchronous_commit'));
    return null;
end $$"""


@pytest.fixture(
    scope="module",
    params=[(level, "database") for level in LEVELS] + [("local", place) for place in PLACES[1:]],
    ids=str,
)
def setting(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A database with that default, and what a commit of ours must have instead."""
    level, place = request.param
    with postgres.database() as made:
        url = made
        name = sql.Identifier(str(conninfo_to_dict(made)["dbname"]))
        with psycopg.connect(made, autocommit=True) as connection:
            if place == "options":
                url = f"{made}&options=-csynchronous_commit%3D{level}"
            else:
                target = sql.SQL("database {}").format(name)
                if place == "role":
                    target = sql.SQL("role current_user in database {}").format(name)
                connection.execute(
                    sql.SQL("alter {} set synchronous_commit = {}").format(target, level)
                )
        assert postgres.execute(url, SHOW) == [(level,)]
        yield url, LEVELS[level]


@pytest.mark.anyio
async def test_a_stores_connections_commit_durably(setting: tuple[str, str]) -> None:
    url, expected = setting
    connections = Connections(DatabaseAddress.of(url), SystemClock(), patience_s=60.0, most=1)
    async with connections.borrowed() as connection:
        assert await (await connection.execute(SHOW)).fetchone() == (expected,)
    await connections.close()


@pytest.mark.anyio
async def test_each_step_raises_the_setting_itself(setting: tuple[str, str]) -> None:
    """So does a program that runs since before, and a check in a caller's transaction."""
    url, expected = setting
    async with open_store(url) as store:
        await store.grant(
            holder="a", token="t", group=GROUP, duration=timedelta(hours=1), info=MemberInfo()
        )
    steps = (
        "select leasehold.renew_1('a', 't', 0, null)",
        "select leasehold.declare_1('{p/o/b/0}', '{}', '{}')",
        "select leasehold.checkpoint_1('{p/o/b/0}', '{1}', '{a}', '{t}', '{1}', '{}')",
        "select leasehold.annotate_1('{p/o/b/0}', '{1}', '{a}', '{t}', '{x}')",
    )
    for step in steps:
        with psycopg.connect(url) as connection:
            connection.execute(step.encode())
            assert connection.execute(SHOW).fetchone() == (expected,)


def test_blocking_databases_commit_durably(setting: tuple[str, str]) -> None:
    url, expected = setting
    database = open_blocking(url, queries={"show": SHOW}, clock=SystemClock(), guard=None)
    sink = SinkDatabase(DatabaseAddress.of(url))
    try:
        assert database.write(lambda tx: tx.one("show")) == (expected,)
        assert sink.write(lambda tx: tx.connection.execute(SHOW).fetchone()) == (expected,)
    finally:
        database.close()
        sink.close()


@pytest.mark.anyio
async def test_lent_connections_begin_durable_again(setting: tuple[str, str]) -> None:
    """Also one on which a block before has lowered the setting."""
    url, expected = setting
    pool, blocking = AsyncPool(options(url)), BlockingPool(options(url))
    try:
        for _ in range(2):
            async with pool.connection() as connection:
                assert await (await connection.execute(SHOW)).fetchone() == (expected,)
                await connection.execute(WEAK)
            with blocking.connection() as lent:
                assert lent.execute(SHOW).fetchone() == (expected,)
                lent.execute(WEAK)
    finally:
        await pool.close()
        blocking.close()


@pytest.mark.parametrize("passed_in", [False, True])
@pytest.mark.parametrize("lowered", ["", WEAK, WEAK_HERE])
def test_a_fenced_table_commits_durably(
    setting: tuple[str, str], lowered: str, *, passed_in: bool
) -> None:
    """The epoch that it raises, and the block, on its own connection or one that was passed in."""
    url, expected = setting
    with FencedTable(url, "nightly") as first:
        first.highest_epoch()  # makes the tables
    postgres.execute(url, "drop schema public cascade; create schema public")
    postgres.execute(url, "create table public.recorded (name text, level text)")
    postgres.execute(url, "create table public.mine (n integer)")
    postgres.execute(url, RECORD)
    for table in ("public.mine", "leasehold_fence.fence"):
        postgres.execute(
            url,
            f"create constraint trigger record after insert or update on {table} "
            "deferrable initially deferred for each row execute function public.record()",
        )
    job = f"nightly{lowered}{passed_in}"  # each raises the epoch for the first time
    lent = psycopg.connect(url, autocommit=True)
    if lowered == WEAK:
        lent.execute(WEAK)
    with lent, FencedTable(lent if passed_in else url, job) as fenced:
        with fenced.transaction(1) as cursor:
            if lowered:
                cursor.execute(lowered)
            cursor.execute("insert into public.mine values (1)")
        assert fenced.highest_epoch() == 1
    found = {row[0]: row[1] for row in postgres.execute(url, "table public.recorded")}
    # Each trigger is deferred: it shows the setting at the end of its transaction.
    raised = expected if not lowered or not passed_in else "on"
    assert found["fence"] == (raised if lowered == WEAK else expected)
    assert found["mine"] == ("on" if lowered else expected)
    postgres.execute(url, "drop trigger record on leasehold_fence.fence")


def options(url: str) -> PoolOptions:
    return PoolOptions(
        address=DatabaseAddress.of(url),
        clock=SystemClock(),
        max_connections=1,
        timeout_s=60.0,
        pool_timeout_s=60.0,
    )
