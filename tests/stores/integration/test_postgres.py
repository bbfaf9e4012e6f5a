"""What only the PostgreSQL store has to prove; the contract suite proves the rest."""

from __future__ import annotations

import os
import signal
import traceback
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from tests.support import postgres
from tests.support.condition_clock import ConditionClock

from leasehold.clock import SystemClock
from leasehold.core.token_digest import token_digest
from leasehold.errors import InvalidUrl, LeaseholdError, LeaseLost, StoreUnavailable, StoreUnusable
from leasehold.model import (
    CheckpointWrite,
    EndReason,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Position,
)
from leasehold.stores import open_store
from leasehold.stores.postgres import PostgresStore, open_url
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.migrations import migrations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.postgres_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.server, pytest.mark.spec("B7")]

GROUP = "partition/stream/group"
KEYS = [f"{GROUP}/{n}" for n in range(3)]
LONG = timedelta(seconds=120)
IN_LINE = (
    "select 1 from pg_stat_activity where datname = current_database() "
    "and cardinality(pg_blocking_pids(pid)) > 0"
)


@pytest.fixture
def url() -> Iterator[str]:
    with postgres.database() as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await open_url(url, SystemClock(), patience=LONG)
    yield store
    await store.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres.private_server() as server:
        yield server


async def member(store: PostgresStore, name: str = "a") -> Lease:
    return await store.grant(
        holder=name,
        token=f"secret-{name}",
        group=GROUP,
        duration=timedelta(minutes=5),
        info=MemberInfo(),
    )


async def owner(store: PostgresStore, name: str = "a") -> tuple[Lease, list[Ownership]]:
    await store.declare(KEYS)
    lease = await member(store, name)
    return lease, list(await store.claim(lease, [KeyClaim(key=k, seen_epoch=0) for k in KEYS]))


def mark(ownership: Ownership, at: int) -> CheckpointWrite:
    return CheckpointWrite(ownership=ownership, position=Position(sequence_number=at))


async def in_thread(*arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(*arguments)


async def refusal(url: str, kind: type[LeaseholdError]) -> str:
    """The text of the error that opening ends with; no secret may be in it or below it."""
    with pytest.raises(kind) as caught:
        await open_url(url, SystemClock())
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


# -------------------------------------------------------------------------------------- tokens


@pytest.mark.spec("L2")
async def test_no_file_of_the_server_has_a_token() -> None:
    """Neither its tables nor its write-ahead log, nor a log of every statement and parameter."""
    with postgres.private_server() as server:
        await _check_files(server)


async def _check_files(server: Server) -> None:
    postgres.execute(server.get_uri(), "alter database postgres set log_min_duration_statement = 0")
    store = await open_url(server.get_uri(), SystemClock(), patience=LONG)
    lease, owned = await owner(store)
    await store.renew(lease)
    assert await store.checkpoint([mark(each, 1) for each in owned]) == {}
    await store.release(owned)
    await store.revoke(lease)
    await store.close()
    server.stop()
    kept = [file.read_bytes() for file in server.pgdata.rglob("*") if file.is_file()]
    log = (server.pgdata / "log").read_bytes()
    assert b"leasehold.renew_" in log
    assert b"= 'secret-" not in log
    assert b"= 'a'" in log, "parameters are in the log"
    assert not any(lease.token.encode() in each for each in kept)


async def test_leases_of_a_database_with_plain_tokens_end_when_their_time_is_over(
    url: str,
) -> None:
    """As an earlier version wrote them: only a process of that version can go on with one."""
    with postgres.stopped_clock(url) as set_clock:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        set_clock(now)
        store = await open_url(url, SystemClock(), patience=LONG)
        lease, owned = await owner(store)
        await store.close()
        postgres.execute(url, "update leasehold.lease set token = %s", lease.token)
        store = await open_url(url, SystemClock(), patience=LONG)
        try:
            with pytest.raises(LeaseLost) as caught:
                await store.renew(lease)
            assert caught.value.reason == "holder_id_in_use"
            heir = await member(store, "b")
            wanted = [KeyClaim(key=each.key, seen_epoch=each.epoch) for each in owned]
            assert await store.claim(heir, wanted) == []
            set_clock(now + timedelta(seconds=299))
            await store.renew(heir)
            assert await store.claim(heir, wanted) == []
            set_clock(now + timedelta(seconds=300))
            assert len(await store.claim(heir, wanted)) == len(KEYS)
        finally:
            await store.close()


# ------------------------------------------------------------------------------------- opening


async def test_hosts_open_an_empty_database_at_once() -> None:
    with postgres.database(migrated=False) as url:
        async with anyio.create_task_group() as hosts:
            for _ in range(5):
                hosts.start_soon(_open_and_declare, url)
        applied = postgres.execute(url, "select number from leasehold.migration order by number")
        assert applied == [(step.number,) for step in migrations()]


async def _open_and_declare(url: str) -> None:
    async with open_store(url) as store:
        await store.declare(KEYS)


async def test_opening_what_is_current_only_reads(url: str) -> None:
    name = url.split("/")[3].split("?", maxsplit=1)[0]
    postgres.execute(url, f"alter database {name} set default_transaction_read_only = on")
    async with open_store(url) as store:
        assert await store.resources(GROUP) == {}


async def test_a_newer_schema_is_refused(url: str) -> None:
    postgres.execute(url, "insert into leasehold.migration (number, name) values (999, 'later')")
    text = await refusal(url, StoreUnusable)
    assert f"migration 999, this one knows {len(migrations())}" in text
    assert "upgrade" in text


async def test_a_schema_that_an_administrator_made_is_used() -> None:
    with postgres.database(migrated=False) as url:
        role = f"leasehold_{os.getpid()}_user"
        postgres.execute(url, f"create role {role} login")
        try:
            theirs = url.replace("postgres@", f"{role}@")
            text = await refusal(theirs, StoreUnusable)
            assert "permission denied" in text
            postgres.execute(url, f"create schema leasehold authorization {role}")
            async with open_store(theirs) as store:
                assert await store.declare(KEYS) == len(KEYS)
        finally:
            postgres.execute(url, "drop schema leasehold cascade")
            postgres.execute(url, f"drop role {role}")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u:s3cret@127.0.0.1:1/db", "127.0.0.1:1, database db"),
        ("postgres://u@/db?host=/nowhere&password=s3cret", "/nowhere, database db"),
        ("postgresql://u:s3cret@no-such-host.invalid/db", "no-such-host.invalid, database db"),
    ],
)
async def test_an_unreachable_server(url: str, said: str) -> None:
    text = await refusal(url, StoreUnavailable)
    assert said in text
    assert "see that the server runs" in text


async def test_a_missing_database(url: str) -> None:
    text = await refusal(url.replace("/leasehold_", "/missing_"), StoreUnavailable)
    assert "does not exist" in text


async def test_a_wrong_password(server: Server) -> None:
    uri, hba = server.get_uri(), server.pgdata / "pg_hba.conf"
    postgres.execute(uri, "create role guarded login password 'right'")
    hba.write_text("local all guarded scram-sha-256\n" + hba.read_text())
    postgres.execute(uri, "select pg_reload_conf()")
    theirs = postgres.url_of("postgres", uri).replace("postgres@", "guarded:s3cret@")
    assert "password authentication failed" in await refusal(theirs, StoreUnavailable)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cret/x@host/db",
        "postgresql://u:s3cret%zz@h/db",
        "postgresql://h/d?a=s3cret",
    ],
)
async def test_a_url_that_can_not_be_read(url: str) -> None:
    assert "postgresql://user@host" in await refusal(url, InvalidUrl)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://u:s3cret@h:5433/db?sslmode=disable", "postgresql://u@h:5433/db"),
        ("postgres://u@h/db?password=s3cret", "postgresql://u@h/db"),
        ("postgresql://u:s3cret@/db?host=/run/pg", "postgresql://u@/db?host=/run/pg"),
        ("postgresql://u@a:1,b:2/db", "postgresql://u@/db?host=a,b&port=1,2"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_what_is_shown_of_a_url(given: str, shown: str) -> None:
    address = DatabaseAddress.of(given)
    assert address.url == shown
    assert "s3cret" not in f"{address} {address.where}"


# ------------------------------------------------------------------------------------- trouble


async def test_a_server_that_is_killed_and_comes_back(server: Server) -> None:
    store = await open_url(server.get_uri(), SystemClock(), patience=LONG)
    lease, (ownership, *_) = await owner(store)
    async with anyio.create_task_group() as tasks:
        for at in range(60):
            if at == 20:
                os.kill(server.get_pid() or 0, signal.SIGQUIT)  # at once, as in a crash
                tasks.start_soon(in_thread, postgres.start_again, server)
            assert await store.checkpoint([mark(ownership, at)]) == {}
            await store.renew(lease)
    assert (await store.resources(GROUP))[ownership.key].epoch == 1
    await store.close()


async def test_a_server_that_stays_away(server: Server) -> None:
    clock = ConditionClock()
    store = await open_url(server.get_uri(), clock, patience=LONG)
    await in_thread(server.stop)
    try:
        clock.over = lambda: clock.pauses > 1
        with pytest.raises(StoreUnavailable, match=r"database postgres.*after 120 s") as no:
            await store.resources(GROUP)
        assert isinstance(no.value.__cause__, psycopg.OperationalError)
    finally:
        clock.over = lambda: False
        await in_thread(postgres.start_again, server)
    assert await store.resources("other/group") == {}
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.resources(GROUP)


async def test_a_server_that_became_read_only(url: str, store: PostgresStore) -> None:
    lease, _ = await owner(store)
    name = url.split("/")[3].split("?", maxsplit=1)[0]
    postgres.execute(url, f"alter database {name} set default_transaction_read_only = on")
    await store.close()
    async with open_store(url) as store_now:
        assert len(await store_now.resources(GROUP)) == len(KEYS)
        with pytest.raises(StoreUnusable, match="target_session_attrs=read-write"):
            await store_now.renew(lease)


async def test_waiting_is_bounded_and_can_be_cancelled(url: str, store: PostgresStore) -> None:
    clock = ConditionClock()
    hasty = await open_url(url, clock, patience=LONG)
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("select 1 from leasehold.meta for update")
        clock.over = lambda: bool(postgres.execute(url, IN_LINE))
        with pytest.raises(StoreUnavailable, match="given up"):
            await hasty.declare(KEYS)
        clock.over = lambda: False
        for _ in range(8):  # more than there are connections
            with anyio.move_on_after(0.05) as scope:
                await store.declare(KEYS)
            assert scope.cancelled_caught
    assert await store.declare([*KEYS, "job/x"]) in {1, len(KEYS) + 1}  # unknown means unknown
    assert await hasty.declare(KEYS) == 0
    await hasty.close()


# ------------------------------------------------------------------------------------- steps


@pytest.mark.spec("B1")
async def test_a_quiet_renewal_writes_one_row_and_waits_for_nobody(
    url: str, store: PostgresStore
) -> None:
    lease, (first, *_) = await owner(store)
    await member(store, "b")
    version = (await store.renew(lease)).version
    before = _row_versions(url)
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("select 1 from leasehold.meta for update")
        await other.execute("select 1 from leasehold.resource for update")
        assert (await store.renew(lease, since=version)).version == version
        assert await store.checkpoint([mark(first, 1)]) == {}
        assert len(await store.members(GROUP)) == 2
    changed = _row_versions(url) ^ before
    assert {row[:2] for row in changed} == {("lease", "a"), ("checkpoint", first.key)}


def _row_versions(url: str) -> set[tuple[object, ...]]:
    names = {
        "lease": "holder",
        "resource": "key",
        "term": "key",
        "checkpoint": "key",
        "meta": "one",
    }
    return {
        (table, name, xmin)
        for table, column in names.items()
        for name, xmin in postgres.execute(
            url, f"select {column}, xmin::text from leasehold.{table}"
        )
    }


@pytest.mark.spec("B1")
async def test_quiet_renewals_touch_no_index(url: str, store: PostgresStore) -> None:
    lease, _ = await owner(store)
    for _ in range(100):
        await store.renew(lease)
    await store.close()  # a connection that ends hands in its statistics
    counts = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'lease'"
    written: Any = 0
    hot: Any = 0
    for _ in range(2000):
        ((written, hot),) = postgres.execute(url, counts)
        if written == 100:
            break
        await anyio.sleep(0.05)
    # One that finds its page full goes to another: when a snapshot elsewhere holds up the pruning.
    assert (written, hot >= 90) == (100, True)


@pytest.mark.spec("L7")
async def test_a_claim_waits_for_a_checkpoint_under_way(url: str, store: PostgresStore) -> None:
    _, (first, *_) = await owner(store)
    thief = await member(store, "thief")
    wanted, stolen = [KeyClaim(key=first.key, seen_epoch=1)], anyio.Event()

    async def steal() -> None:
        assert len(await store.claim(thief, wanted, force=True)) == 1
        stolen.set()

    other = await psycopg.AsyncConnection.connect(url)
    await other.execute(
        "select leasehold.checkpoint_1(%s, '{1}', '{a}', %s, '{7}', '{x}')",
        [[first.key], [token_digest("secret-a")]],
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(steal)
        with anyio.fail_after(100):
            while not await in_thread(postgres.execute, url, IN_LINE):
                pass
        assert not stolen.is_set()
        await other.commit()
    await other.close()
    assert (await store.checkpoints(GROUP))[first.key].position.sequence_number == 7
    assert list(await store.checkpoint([mark(first, 8)])) == [first.key]


async def test_a_lease_ends_by_the_servers_own_clock_and_not_before(store: PostgresStore) -> None:
    clock, lasts = SystemClock(), timedelta(seconds=0.5)
    begun_s = clock.boottime_s()
    await store.grant(holder="a", token="t", group=GROUP, duration=lasts, info=MemberInfo())
    while await store.members(GROUP):  # noqa: ASYNC110 - the server tells nobody
        await anyio.sleep(0.01)
    assert clock.boottime_s() - begun_s >= lasts.total_seconds()


async def test_the_epoch_survives_a_row_deleted_by_hand(url: str, store: PostgresStore) -> None:
    lease, (first, *_) = await owner(store)
    known = (await store.renew(lease)).version
    postgres.execute(url, "delete from leasehold.resource where key = %s", first.key)
    assert await store.declare([first.key]) == 1
    (ended,) = (await store.renew(lease, since=known)).ended
    assert (ended.key, ended.epoch, ended.reason) == (first.key, 1, EndReason.BROKEN)
    (again,) = await store.claim(lease, [KeyClaim(key=first.key, seen_epoch=1)])
    assert again.epoch == 2
    await store.checkpoint([mark(again, 1)])
    postgres.execute(url, "truncate leasehold.resource, leasehold.term")
    assert await store.declare([first.key]) == 1
    assert (await store.resources(GROUP))[first.key].epoch == 2


async def test_an_answer_is_durable_whatever_the_default(url: str, store: PostgresStore) -> None:
    await owner(store)
    with psycopg.connect(url) as connection:
        connection.execute("set synchronous_commit = off")
        connection.execute("select leasehold.renew_1('a', 'secret-a', 0, null)")
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)


async def test_tokens_stay_where_they_are(store: PostgresStore) -> None:
    lease, _ = await owner(store)
    other = await member(store, "b")
    answers = [await store.renew(other), await store.resources(GROUP), await store.members(GROUP)]
    assert lease.token not in repr(answers)
