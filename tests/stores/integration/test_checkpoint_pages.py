"""Checkpoints that share a row on PostgreSQL read, end and are fenced as those that do not.

A key's position moves to a page at its second checkpoint in a term, and back when the term ends.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import psycopg
import pytest
from tests.support import postgres
from tests.support.transactions import awaited, in_thread, opened, run

from leasehold.clock import SystemClock
from leasehold.core.token_digest import token_digest
from leasehold.errors import CheckpointBehind, FencedWrite, StoreUnusable
from leasehold.model import (
    CheckpointWrite,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Position,
    Refusal,
)
from leasehold.stores import open_store
from leasehold.stores.postgres import PostgresStore, open_url
from leasehold.stores.postgres.migrations import migrations, queries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

pytestmark = [pytest.mark.anyio, pytest.mark.server, pytest.mark.spec("B7")]

GROUP = "partition/stream/group"
MANY = 70  # more than two pages
HOUR = timedelta(hours=1)
PLACED = "select key from leasehold.checkpoint where page is not null order by key"
PAGES = "select taken from leasehold.checkpoint_page order by taken"
BEFORE_PAGES = 13
IN_LINE = (
    "select 1 from pg_stat_activity where datname = current_database() "
    "and cardinality(pg_blocking_pids(pid)) > 0"
)


@pytest.fixture
def url() -> str:
    return postgres.empty_store()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await open_url(url, SystemClock())
    yield store
    await store.close()


def keys(count: int = MANY) -> list[str]:
    return [f"{GROUP}/{n:03}" for n in range(count)]


async def member(store: PostgresStore, name: str, *, lasts: timedelta = HOUR) -> Lease:
    return await store.grant(
        holder=name, token=f"secret-{name}", group=GROUP, duration=lasts, info=MemberInfo()
    )


async def owner(
    store: PostgresStore, name: str = "a", *, count: int = MANY, lasts: timedelta = HOUR
) -> tuple[Lease, list[Ownership]]:
    await store.declare(keys(count))
    lease = await member(store, name, lasts=lasts)
    return lease, await claimed(store, lease, keys(count))


async def claimed(
    store: PostgresStore, lease: Lease, wanted: Sequence[str], *, force: bool = False
) -> list[Ownership]:
    seen = await store.resources(GROUP)
    claims = [KeyClaim(key=key, seen_epoch=seen[key].epoch) for key in wanted]
    return list(await store.claim(lease, claims, force=force))


async def written(
    store: PostgresStore, owned: Sequence[Ownership], at: int, *, offset: str = ""
) -> dict[str, Refusal]:
    position = Position(sequence_number=at, offset=offset)
    return dict(
        await store.checkpoint([CheckpointWrite(ownership=o, position=position) for o in owned])
    )


async def stored(store: PostgresStore) -> dict[str, int]:
    found = await store.checkpoints(GROUP)
    return {key: each.position.sequence_number for key, each in found.items()}


def placed(url: str) -> list[str]:
    return [str(key) for (key,) in postgres.execute(url, PLACED)]


def row_versions(url: str, table: str) -> set[tuple[object, ...]]:
    return set(postgres.execute(url, f"select ctid::text, xmin::text from leasehold.{table}"))


# ---------------------------------------------------------------------------- reading and writing


async def test_from_the_second_on_a_call_changes_one_row_for_32_keys(
    url: str, store: PostgresStore
) -> None:
    _, owned = await owner(store)
    await written(store, owned, 1)
    assert placed(url) == []
    await written(store, owned, 2)
    assert placed(url) == keys()
    assert postgres.execute(url, PAGES) == [(6,), (32,), (32,)]
    rows, pages = row_versions(url, "checkpoint"), row_versions(url, "checkpoint_page")
    assert await written(store, owned, 3) == {}
    assert row_versions(url, "checkpoint") == rows
    assert len(row_versions(url, "checkpoint_page") - pages) == 3
    assert await stored(store) == dict.fromkeys(keys(), 3)


@pytest.mark.parametrize("offset", ["", "0", "17", "9" * 18])
async def test_positions_in_pages_are_exact(url: str, store: PostgresStore, offset: str) -> None:
    """Steps that do not fit move the base: forward far, to the largest, and after hours."""
    with postgres.stopped_clock(url) as set_clock:
        now = datetime(2026, 1, 1, 12, 0, 0, 123457, tzinfo=UTC)
        set_clock(now)
        _, owned = await owner(store, count=2, lasts=timedelta(days=2))
        for at in (0, 1, 2, 2**31, 2**31 + 1, 2**32 + 2**31, 2**40, 2**63 - 1):
            now += timedelta(hours=1, microseconds=1)
            set_clock(now)
            assert await written(store, owned, at, offset=offset) == {}
            for found in (await store.checkpoints(GROUP)).values():
                assert (found.position.sequence_number, found.position.offset) == (at, offset)
                assert found.updated_at == now
        assert placed(url) == keys(2)


@pytest.mark.parametrize("offset", ["007", "-1", "9" * 19, "a", "x" * 1024, "été 🚀", " 7", "1e3"])
async def test_offsets_that_are_not_plain_numbers_stay_as_they_are(
    url: str, store: PostgresStore, offset: str
) -> None:
    _, owned = await owner(store, count=3)
    for at in range(3):
        await written(store, owned, at, offset=offset)
        assert placed(url) == []
    for at, said in enumerate(["5", "6", offset, "7", "8"], start=3):
        assert await written(store, owned, at, offset=said) == {}
        found = await store.checkpoints(GROUP)
        assert {each.position.offset for each in found.values()} == {said}
    assert placed(url) == keys(3)


async def test_a_key_that_comes_twice_is_judged_in_order(store: PostgresStore) -> None:
    _, (first, second) = await owner(store, count=2)
    for at in (1, 2):
        await written(store, [first, second], at)

    async def call(*positions: tuple[Ownership, int]) -> dict[str, Refusal]:
        return dict(
            await store.checkpoint(
                [
                    CheckpointWrite(ownership=each, position=Position(sequence_number=at))
                    for each, at in positions
                ]
            )
        )

    assert await call((first, 5), (first, 9), (first, 7)) == {first.key: Refusal.BEHIND}
    assert await call((first, 8), (second, 3), (first, 9)) == {first.key: Refusal.BEHIND}
    assert await call((first, 9), (second, 2)) == {second.key: Refusal.BEHIND}
    assert await stored(store) == {first.key: 9, second.key: 3}


async def test_positions_of_a_stream_with_an_identity_share_rows(
    url: str, store: PostgresStore
) -> None:
    """Those of an event log have one; another stream of the same name has another."""
    lease, owned = await owner(store, count=4)

    async def put(at: int, stream: str, some: Sequence[Ownership] = owned) -> None:
        position = Position(sequence_number=at, offset=str(at * 10), stream=stream)
        assert (
            await store.checkpoint([CheckpointWrite(ownership=o, position=position) for o in some])
            == {}
        )

    async def found() -> list[tuple[int, str, str]]:
        each = [each.position for each in (await store.checkpoints(GROUP)).values()]
        return [(each.sequence_number, each.offset, each.stream) for each in each]

    for at in (1, 2, 3):
        await put(at, "one")
    assert placed(url) == keys(4)
    assert await found() == [(3, "30", "one")] * 4
    await put(4, "two", owned[:2])
    assert placed(url) == keys(4)[2:]
    await put(5, "two", owned[:2])
    assert placed(url) == keys(4)
    expected = [(5, "50", "two")] * 2 + [(3, "30", "one")] * 2
    assert await found() == expected
    await store.revoke(lease)
    assert placed(url) == []
    assert await found() == expected


@pytest.mark.parametrize("offsets", [("2", "xyz"), ("xyz", "2")], ids=" then ".join)
async def test_a_key_that_comes_twice_keeps_its_last_offset(
    url: str, store: PostgresStore, offsets: tuple[str, str]
) -> None:
    """One of both is no number, and does not fit into a page; its term ends as any other."""
    lease, owned = await owner(store, count=2)
    await written(store, owned, 1, offset="1")
    last = [Position(sequence_number=at, offset=each) for at, each in enumerate(offsets, start=2)]
    calls = [CheckpointWrite(ownership=owned[0], position=each) for each in last]
    assert await store.checkpoint(calls) == {}
    position = (await store.checkpoints(GROUP))[owned[0].key].position
    assert (position.sequence_number, position.offset) == (3, offsets[1])
    await store.revoke(lease)
    assert (await store.checkpoints(GROUP))[owned[0].key].position == position


async def test_a_page_without_an_offset_does_not_keep_a_term_from_its_end(
    url: str, store: PostgresStore
) -> None:
    """As a call with the same key twice left it before."""
    lease, owned = await owner(store, count=2)
    for at in (1, 2):
        await written(store, owned, at, offset="7")
    postgres.execute(url, "update leasehold.checkpoint_page set steps[3] = null, bases[3] = null")
    await store.revoke(lease)
    found = [each.position for each in (await store.checkpoints(GROUP)).values()]
    assert [(each.sequence_number, each.offset) for each in found] == [(2, "7")] * 2


async def test_calls_with_few_keys_each_share_pages_once_they_come_together(
    url: str, store: PostgresStore
) -> None:
    _, owned = await owner(store, count=30)
    for at in (1, 2):
        for each in owned:
            await written(store, [each], at)
    assert len(postgres.execute(url, PAGES)) == 30
    await written(store, owned, 3)
    assert postgres.execute(url, PAGES) == [(30,)]
    before = row_versions(url, "checkpoint")
    for at, each in enumerate(owned, start=4):
        await written(store, [each], at)
    assert row_versions(url, "checkpoint") == before
    assert postgres.execute(url, PAGES) == [(30,)]
    assert await stored(store) == {each.key: at for at, each in enumerate(owned, start=4)}


async def test_keys_that_are_gained_fill_the_pages(url: str, store: PostgresStore) -> None:
    lease, owned = await owner(store, count=10)
    for at in (1, 2):
        await written(store, owned, at)
    await store.release(owned[:5])
    await store.declare(keys(40))
    owned = owned[5:] + await claimed(store, lease, keys(40)[:5] + keys(40)[10:])
    for at in (3, 4):
        assert await written(store, owned, at) == {}
    assert sum(int(str(taken)) for (taken,) in postgres.execute(url, PAGES)) == 40
    assert len(postgres.execute(url, PAGES)) == 2
    assert await stored(store) == dict.fromkeys(keys(40), 4)


# ------------------------------------------------------------------------------------ ends of terms


async def ended(
    how: str,
    store: PostgresStore,
    url: str,
    leases: tuple[Lease, Lease],
    some: Sequence[Ownership],
) -> None:
    """End the terms of some keys, or let time do it afterwards."""
    match how:
        case "release":
            await store.release(some)
        case "hand_over":
            given = [HandOver(ownership=each, to=leases[1].holder) for each in some]
            assert len(await store.hand_over(given, limit=HOUR)) == len(some)
        case "revoke":
            await store.revoke(leases[0])
        case "break" | "break_later":
            after = timedelta(seconds=30 if how == "break_later" else 0)
            for each in some:
                await store.break_(each.key, epoch=each.epoch, after=after)
        case "delete":
            names = "{" + ",".join(each.key for each in some) + "}"
            postgres.execute(url, "delete from leasehold.resource where key = any(%s)", names)
            await store.declare([each.key for each in some])


@pytest.mark.spec("L7")
@pytest.mark.parametrize(
    "end", ["release", "hand_over", "revoke", "expire", "steal", "break", "break_later", "delete"]
)
async def test_a_position_survives_each_end_of_its_term(
    url: str, store: PostgresStore, end: str
) -> None:
    """And nothing of the former owner, which knew its place in a page, comes through."""
    with postgres.stopped_clock(url) as set_clock:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        set_clock(now)
        lease, owned = await owner(store, count=40, lasts=timedelta(minutes=1))
        other = await member(store, "b")
        for at in (1, 2, 7):
            await written(store, owned, at)
        assert len(placed(url)) == 40
        some, whole_lease = owned[:20], end in {"revoke", "expire"}
        await ended(end, store, url, (lease, other), some)
        if end in {"expire", "break_later"}:
            set_clock(now + timedelta(minutes=2 if whole_lease else 0, seconds=40))
            await store.renew(other)
        assert await stored(store) == dict.fromkeys(keys(40), 7)
        taken = await claimed(store, other, [each.key for each in some], force=end == "steal")
        assert len(taken) == 20
        assert await written(store, some, 9) == dict.fromkeys(
            [each.key for each in some], Refusal.FENCED
        )
        assert await written(store, taken, 6) == dict.fromkeys(
            [each.key for each in some], Refusal.BEHIND
        )
        for at in (8, 9, 10):
            assert await written(store, taken, at) == {}
        rest = await written(store, owned[20:], 11)
        assert set(rest.values()) == ({Refusal.FENCED} if whole_lease else set())
        found = await stored(store)
        assert {found[each.key] for each in some} == {10}
        assert {found[each.key] for each in owned[20:]} == {7 if whole_lease else 11}
        assert len(placed(url)) == (20 if whole_lease else 40)
        pages = [int(str(each)) for (each,) in postgres.execute(url, PAGES)]
        assert sum(pages) == len(placed(url))


@pytest.mark.spec("C2")
async def test_a_reset_finds_the_position_of_the_last_term(url: str, store: PostgresStore) -> None:
    lease, owned = await owner(store, count=2)
    for at in (1, 2, 7):
        await written(store, owned, at)
    assert await store.reset({owned[0].key: Position(sequence_number=1)}) == {owned[0].key: "a"}
    await store.release(owned)
    assert await store.reset({owned[0].key: Position(sequence_number=1), owned[1].key: None}) == {}
    assert await stored(store) == {owned[0].key: 1}
    owned = await claimed(store, lease, keys(2))
    for at in (3, 4):
        assert await written(store, owned, at) == {}
    assert await stored(store) == dict.fromkeys(keys(2), 4)
    assert placed(url) == keys(2)


# ------------------------------------------------------------------------------------ other writers


@pytest.mark.spec("C4")
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
async def test_a_callers_transaction_takes_its_key_out_of_the_page(
    url: str, store: PostgresStore, level: str
) -> None:
    _, owned = await owner(store, count=3)
    for at in (1, 2, 7):
        await written(store, owned, at)
    begins = f"set transaction isolation level {level}"
    async with opened(url) as transactions:
        for at in (6, 7):
            with pytest.raises(CheckpointBehind):
                await run(awaited(transactions, owned[0], at), begins)
        assert len(placed(url)) == 3
        await run(awaited(transactions, owned[0], 8), begins)
        assert placed(url) == keys(3)[1:]
        assert await written(store, owned, 9) == {}
        await run(awaited(transactions, owned[0], 10), begins)
        await claimed(store, await member(store, "b"), keys(1), force=True)
        with pytest.raises(FencedWrite):
            await run(awaited(transactions, owned[0], 11), begins)
    assert await stored(store) == {keys(3)[0]: 10, keys(3)[1]: 9, keys(3)[2]: 9}


async def test_transactions_of_one_holder_do_not_wait_for_each_other(
    url: str, store: PostgresStore
) -> None:
    _, owned = await owner(store, count=3)
    for at in (1, 2):
        await written(store, owned[:1], at)
    token = token_digest("secret-a")
    write = "select leasehold.checkpoint_1(%s, '{1}', '{a}', %s, '{7}', '{x}')"
    async with await psycopg.AsyncConnection.connect(url) as first:
        await first.execute(write, [[owned[1].key], [token]])
        async with await psycopg.AsyncConnection.connect(url) as second:
            await second.execute("set lock_timeout = '1ms'")
            await second.execute(write, [[owned[0].key], [token]])
            await second.execute(write, [[owned[2].key], [token]])
    assert await stored(store) == dict.fromkeys(keys(3), 7)


async def test_a_program_of_an_older_version_finds_its_positions_in_the_rows(
    url: str, store: PostgresStore
) -> None:
    _, owned = await owner(store, count=2)
    for at in (1, 2, 7):
        await written(store, owned, at)
    found = postgres.execute(
        url,
        "select leasehold.checkpoint_1(%s, '{1,1}', '{a,a}', %s, '{8,8}', '{x,\"\"}')",
        keys(2),
        [token_digest("secret-a")] * 2,
    )
    assert found == [((None, None),)]
    in_rows = "select sequence_number, position_offset from leasehold.checkpoint order by key"
    assert postgres.execute(url, in_rows) == [(8, "x"), (8, "")]
    assert postgres.execute(url, PAGES) == []


@pytest.mark.spec("C1")
@pytest.mark.parametrize("earlier", ["checkpoint_1", "checkpoint_2"])
@pytest.mark.parametrize("later", ["checkpoint_1", "checkpoint_2"])
async def test_writers_of_one_page_wait_for_each_other(
    url: str, store: PostgresStore, earlier: str, later: str
) -> None:
    """Else the second would write the whole page, with positions from before the first."""
    _, owned = await owner(store, count=4)
    for at in (1, 2):
        await written(store, owned, at)

    async def call(
        connection: psycopg.AsyncConnection, function: str, at: int, *which: int
    ) -> object:
        n = len(which)
        values = [[owned[i].key for i in which], [1] * n, ["a"] * n]
        values += [[token_digest("secret-a")] * n, [at] * n, ["5"] * n]
        statement = f"select places from leasehold.{function}(%s, %s, %s, %s, %s, %s)"
        (found,) = await (await connection.execute(statement.encode(), values)).fetchone() or ()
        return found

    answers: list[object] = []

    async def second() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            answers.append(await call(connection, later, 8, 1, 2, 3))

    async with await psycopg.AsyncConnection.connect(url) as first:
        assert await call(first, earlier, 9, 0, 1) is None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second)
            with anyio.fail_after(100):
                while not await in_thread(postgres.execute, url, IN_LINE):
                    pass
            assert answers == []
            await first.commit()
    assert answers == [[1]]
    found = await stored(store)
    assert [found[each.key] for each in owned] == [9, 9, 8, 8]


async def block_after_block(
    url: str, part: Sequence[Ownership], note: Callable[[Ownership, int], None]
) -> None:
    async with opened(url) as transactions:
        for at in range(1, 40, 3):
            for each in part:
                with suppress(CheckpointBehind, FencedWrite):
                    await run(awaited(transactions, each, at))
                    note(each, at)


async def test_writers_of_all_kinds_at_the_same_time_lose_nothing(
    url: str, store: PostgresStore
) -> None:
    """Every acknowledged position is stored or passed, however the calls meet."""
    lease, owned = await owner(store, count=12)
    acknowledged: dict[str, int] = {}

    def note(each: Ownership, at: int) -> None:
        acknowledged[each.key] = max(acknowledged.get(each.key, -1), at)

    async def whole_calls() -> None:
        for at in range(2, 40, 2):
            refused = await written(store, owned, at)
            for each in owned:
                if each.key not in refused:
                    note(each, at)

    async def handed_round() -> None:
        for each in 10 * owned[8:]:
            await store.release([each])
            epoch = (await store.resources(GROUP))[each.key].epoch
            await store.claim(lease, [KeyClaim(key=each.key, seen_epoch=epoch)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(whole_calls)
        tasks.start_soon(block_after_block, url, owned[:3], note)
        tasks.start_soon(block_after_block, url, owned[3:6], note)
        tasks.start_soon(handed_round)
    found = await stored(store)
    assert {key: found[key] for key in acknowledged if found[key] < acknowledged[key]} == {}
    pages = sum(int(str(each)) for (each,) in postgres.execute(url, PAGES))
    assert pages == len(placed(url))


# ---------------------------------------------------------------------------- crashes and upgrades


@pytest.mark.spec("C1")
async def test_what_was_acknowledged_survives_a_crash_of_the_server() -> None:
    with postgres.private_server() as server:
        url = str(server.get_uri())
        store = await open_url(url, SystemClock(), patience=timedelta(minutes=2))
        _, owned = await owner(store)
        for at in (1, 2, 7):
            await written(store, owned, at)
        server.stop()
        postgres.start_again(server)
        assert await stored(store) == dict.fromkeys(keys(), 7)
        assert await written(store, owned, 6) == dict.fromkeys(keys(), Refusal.BEHIND)
        assert await written(store, owned, 8) == {}
        await store.close()


async def test_a_database_of_the_version_before_is_upgraded_while_it_is_used() -> None:
    with postgres.database(migrated=False) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for step in migrations()[:BEFORE_PAGES]:
                with connection.transaction():
                    connection.execute(step.text)
                    connection.execute(
                        queries()["migration_done"], {"number": step.number, "name": step.name}
                    )
            token = token_digest("secret-a")
            values = {
                "keys": keys(2),
                "token": token,
                "tokens": [token] * 2,
                "group": GROUP,
                "at": [5, 6],
            }
            for statement in (
                "select leasehold.declare_1(%(keys)s, '{}', '{}')",
                "select leasehold.grant_1('a', %(token)s, %(group)s, 3600, '{}', 1, 1, '{}', '{}')",
                "select leasehold.claim_1('a', %(token)s, %(keys)s, '{0,0}', false, 9)",
                "select leasehold.checkpoint_1(%(keys)s,'{1,1}','{a,a}',%(tokens)s,%(at)s,'{5,x}')",
            ):
                connection.execute(statement.encode(), values)
        with pytest.raises(StoreUnusable, match="older"):
            async with open_store(url, create=False):
                pass
        async with open_store(url) as store:
            assert isinstance(store, PostgresStore)
            assert await stored(store) == {keys(2)[0]: 5, keys(2)[1]: 6}
            owned = [Ownership(key=key, epoch=1, holder="a", token="secret-a") for key in keys(2)]
            assert await written(store, owned, 5, offset="7") == {keys(2)[1]: Refusal.BEHIND}
            for at in (7, 8, 9):
                assert await written(store, owned, at, offset="7") == {}
            assert len(placed(url)) == 2
            assert await stored(store) == dict.fromkeys(keys(2), 9)
