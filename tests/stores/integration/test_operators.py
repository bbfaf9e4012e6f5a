"""Operators' calls where a store has more to prove than the contract: upgrades, locks, numbers."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
import psycopg
import pytest
from tests.support import postgres

from leasehold.clock import SystemClock
from leasehold.errors import LeaseLost
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
from leasehold.stores.postgres.migrations import migrations as postgres_migrations
from leasehold.stores.postgres.migrations import queries as postgres_queries
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.migrations import APPLICATION_ID
from leasehold.stores.sqlite.migrations import migrations as sqlite_migrations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from leasehold.ports import Store

pytestmark = [pytest.mark.anyio, pytest.mark.spec("B7")]

GROUP = "partition/stream/group"
KEY = f"{GROUP}/0"
LONG = timedelta(minutes=5)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with AsyncExitStack() as stack:
        urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/leases.db"}
        if request.param == "postgres":
            urls["postgres"] = stack.enter_context(postgres.database())
        yield await stack.enter_async_context(open_store(urls[request.param]))


@pytest.fixture
def url() -> Iterator[str]:
    with postgres.database() as url:
        yield url


async def _member(store: Store, name: str) -> Lease:
    return await store.grant(
        holder=name, token=f"secret-{name}", group=GROUP, duration=LONG, info=MemberInfo()
    )


async def test_a_member_of_the_operators_name_has_no_part_in_a_reset(store: Store) -> None:
    await store.declare([KEY])
    lease = await _member(store, "operator")
    version = (await store.renew(lease)).version
    await store.reset({KEY: Position(sequence_number=3)})
    changes = await store.renew(lease, since=version)
    assert ([each.epoch for each in changes.resources], changes.ended) == ([1], ())
    assert (await store.renew(lease)).ended == ()
    reset = Ownership(key=KEY, epoch=1, holder=lease.holder, token=lease.token)
    mark = CheckpointWrite(ownership=reset, position=Position(sequence_number=9))
    assert [each.value for each in (await store.checkpoint([mark])).values()] == ["fenced"]
    assert list(await store.release([reset])) == []
    await store.revoke(lease)
    assert [term.reason for term in await store.history(KEY)] == [EndReason.RESET]


async def test_thousands_of_keys_are_reset_in_one_step(store: Store) -> None:
    keys = [f"{GROUP}/{number}" for number in range(2000)]
    await store.declare(keys)
    wanted = {key: Position(sequence_number=n) for n, key in enumerate(keys)}
    assert await store.reset(wanted) == {}
    stored = await store.checkpoints(GROUP)
    assert {key: each.position for key, each in stored.items()} == wanted
    lease = await _member(store, "a")
    await store.claim(lease, [KeyClaim(key=keys[-1], seen_epoch=1)])
    assert await store.reset(dict.fromkeys(keys)) == {keys[-1]: "a"}
    assert await store.checkpoints(GROUP) == stored


# ------------------------------------------------------------------------- SQLite


async def test_a_sqlite_file_of_the_last_version_is_taken_on(tmp_path: Path) -> None:
    path, clock = tmp_path / "leases.db", SystemClock()
    with closing(sqlite3.connect(path)) as connection:
        for number in (1, 2, 3):
            connection.executescript(sqlite_migrations()[number])
        connection.execute("UPDATE meta SET version = 1, boot_id = 'boot-1'")
        connection.execute(
            "INSERT INTO lease"
            " (holder, token, grp, duration_s, granted_at, ends_at, heard, version)"
            " VALUES ('a', 'secret-a', ?, 300.0, '', ?, 0, 1)",
            (GROUP, clock.boottime_s() + 300.0),
        )
        connection.execute("INSERT INTO member (holder, info) VALUES ('a', '{}')")
        connection.execute("PRAGMA user_version = 3")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.commit()
    store = await SqliteStore.open(path, clock=clock, boot_id="boot-1")
    lease = Lease(holder="a", token="secret-a", group=GROUP, duration_s=300.0)
    with pytest.raises(LeaseLost):  # its token is not a digest: it is for an older program
        await store.renew(lease)
    peer = (await store.members(GROUP))["a"]
    assert (peer.alive, peer.leave_requested, peer.duration_s) == (True, False, 300.0)
    assert await store.request_leave("a")
    await store.close()
    async with _sqlite(path) as anew:
        assert (await anew.members(GROUP))["a"].leave_requested


@asynccontextmanager
async def _sqlite(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, clock=SystemClock(), boot_id="boot-1")
    yield store
    await store.close()


# --------------------------------------------------------------------- PostgreSQL


@pytest.mark.server
async def test_an_older_program_goes_on_beside_a_newer_one() -> None:
    with postgres.database(migrated=False) as url:
        _migrate(url, upto=7)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as older:
            await older.execute(
                "select leasehold.grant_1("
                '\'old\', \'secret-old\', %s, 300, \'{"draining": false, "host": "h", "pid": 1,'
                ' "weight": 1, "most": null, "loads": {}}\', 1, 1, \'{}\', \'{}\')',
                [GROUP],
            )
            before = await _peers_of_old(older)
            async with open_store(url) as store:
                await _member(store, "new")
                assert await store.request_leave("old")
                members = await store.members(GROUP)
                assert {name: each.leave_requested for name, each in members.items()} == {
                    "old": True,
                    "new": False,
                }
                after = await _peers_of_old(older)
            assert {each["holder"] for each in after} == {"old", "new"}
            # It knows these and no more: a field that it does not know would end it.
            assert {name for each in after for name in each} == set(before[0])


def _migrate(url: str, *, upto: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for step in postgres_migrations()[:upto]:
            with connection.transaction():
                connection.execute(step.text)
                connection.execute(
                    postgres_queries()["migration_done"],
                    {"number": step.number, "name": step.name},
                )


async def _peers_of_old(
    older: psycopg.AsyncConnection[tuple[object, ...]],
) -> list[dict[str, object]]:
    cursor = await older.execute(
        "select peers from leasehold.renew_1('old', 'secret-old', 0, null)"
    )
    ((members,),) = await cursor.fetchall()
    assert isinstance(members, list)
    return members


@pytest.mark.server
@pytest.mark.spec("B5", "C2")
async def test_a_reset_waits_for_a_checkpoint_under_way(url: str) -> None:
    """The owner's time is over while its write is on its way: the write comes first, or not."""
    with postgres.stopped_clock(url) as set_clock:
        clock = SystemClock()
        start = clock.utc_now()
        set_clock(start)
        async with open_store(url) as store, open_store(url) as outside:
            await store.declare([KEY])
            lease = await _member(store, "a")
            await store.claim(lease, [KeyClaim(key=KEY, seen_epoch=0)])
            done = anyio.Event()

            async def reset() -> None:
                assert await outside.reset({KEY: Position(sequence_number=3)}) == {}
                done.set()

            async with await psycopg.AsyncConnection.connect(url) as writer:
                await writer.execute(
                    "select leasehold.checkpoint_1(%s, '{1}', '{a}', '{secret-a}', '{50}', '{x}')",
                    [[KEY]],
                )
                set_clock(start + 2 * LONG)
                with anyio.fail_after(100):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(reset)
                        while not _waiting(url):  # noqa: ASYNC110 - the server tells nobody
                            await anyio.sleep(0.01)
                        assert not done.is_set()
                        await writer.commit()
            stored = (await store.checkpoints(GROUP))[KEY]
            assert (stored.position.sequence_number, stored.epoch) == (3, 2)
            reasons = [term.reason for term in await store.history(KEY)]
            assert reasons == [EndReason.RESET, EndReason.EXPIRED]


def _waiting(url: str) -> bool:
    """Whether a call of ours waits for a lock."""
    return bool(
        postgres.execute(
            url,
            "select 1 from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock'",
        )
    )
