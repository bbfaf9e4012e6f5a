"""A newcomer on PostgreSQL learns all about its group, in few bytes."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.support import postgres

from leasehold.clock import SystemClock
from leasehold.core.token_digest import token_digest
from leasehold.model import HandOver, KeyClaim, Lease, MemberInfo, State
from leasehold.stores.postgres import PostgresStore, open_url
from leasehold.stores.postgres.migrations import queries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.server, pytest.mark.spec("B7")]

HOUR = timedelta(hours=1)
NAMES = ["0", "10", "a b", '"', "\\", "'", "été 🚀", "x y z", "%2F", "-1", "null", "é" * 210]
GROUPS = ["partition/stream/group", "p/ é%20/ü", "partition/" + "s" * 700]
MOST_BYTES = 30


@pytest.fixture
def url() -> str:
    return postgres.empty_store()


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await open_url(url, SystemClock())
    yield store
    await store.close()


async def member(store: PostgresStore, name: str, group: str, **info: object) -> Lease:
    return await store.grant(
        holder=name,
        token=f"secret-{name}",
        group=group,
        duration=HOUR,
        info=MemberInfo(host=name, **info),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("group", GROUPS, ids=["plain", "odd", "long"])
async def test_a_newcomer_learns_what_a_reader_sees(
    url: str, store: PostgresStore, group: str
) -> None:
    """Of keys in every state, under names of every kind, whichever list they are told in."""
    keys = [f"{group}/{name}" for name in NAMES]
    with postgres.stopped_clock(url) as set_clock:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        set_clock(now)
        await store.declare([*keys, f"{group}/gone", "job/elsewhere"])
        await store.forget([f"{group}/gone"])
        leases = [await member(store, f"m{n}", group, weight=n + 0.5) for n in range(3)]
        outsider = await member(store, "outsider", "p/other")
        owned = []
        for n, key in enumerate(keys[:10]):
            lease = outsider if n == 9 else leases[n % 3]
            (own,) = await store.claim(lease, [KeyClaim(key=key, seen_epoch=0)])
            if n % 2:
                await store.release([own])
                (own,) = await store.claim(lease, [KeyClaim(key=key, seen_epoch=1)])
            owned.append(own)
        await store.ask(leases[1], KeyClaim(key=keys[0], seen_epoch=owned[0].epoch))
        await store.break_(keys[3], epoch=owned[3].epoch, after=timedelta(minutes=1))
        await store.hand_over([HandOver(ownership=owned[6], to="m1")], limit=HOUR)
        await store.release([owned[4]])
        await store.request_leave("m2")
        await store.renew(
            leases[1], info=MemberInfo(host="m1", most=3, draining=True, loads={"a": 2})
        )
        new = await member(store, "new", group)
        changes = await store.renew(new)
        found = {each.key: each for each in changes.resources if not each.forgotten}
        assert found == await store.resources(group)
        assert {each.holder: each for each in changes.members} == await store.members(group)
        versions = [each.version for each in changes.resources]
        assert versions == sorted(versions)
        # Time ends the outsider's lease before its own end is noted.
        set_clock(now + timedelta(minutes=59, seconds=59))
        for lease in (*leases, new):
            await store.renew(lease, since=changes.version)
        set_clock(now + timedelta(hours=1))
        again = {each.key: each for each in (await store.renew(new)).resources}
        assert again[keys[9]].state is State.AVAILABLE
        assert {k: v for k, v in again.items() if not v.forgotten} == await store.resources(group)


@pytest.mark.parametrize("held", [False, True])
async def test_a_newcomer_of_a_large_group_reads_few_bytes(
    url: str, store: PostgresStore, *, held: bool
) -> None:
    group, count, members = GROUPS[0], 2000, 20
    keys = [f"{group}/{n:06}" for n in range(count)]
    await store.declare(keys)
    leases = [await member(store, f"host-{n:04}-abcdef12", group) for n in range(members)]
    for number, lease in enumerate(leases if held else ()):
        part = keys[number::members]
        await store.claim(lease, [KeyClaim(key=key, seen_epoch=0) for key in part])
    lease = leases[-1]
    values = {"holder": lease.holder, "since": 0}
    with psycopg.connect(url) as connection:
        answer = connection.execute(queries()["changes"], values).pgresult
        assert answer
        received = sum(len(answer.get_value(0, n) or b"") for n in range(answer.nfields))
    assert received < MOST_BYTES * count
    assert len((await store.renew(lease)).resources) == count


@pytest.mark.parametrize("function", ["renew", "changes"])
async def test_a_client_that_reads_no_answer_holds_nobody_up(
    url: str, store: PostgresStore, function: str
) -> None:
    """It is paused while the server sends: what it settled is committed, and no lock is held."""
    group = GROUPS[0]
    keys = [f"{group}/{'n' * 300}{n:04}" for n in range(3000)]  # more than the sockets take
    with postgres.stopped_clock(url) as set_clock:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        set_clock(now)
        await store.declare(keys)
        gone = await store.grant(
            holder="gone", token="t", group=group, duration=timedelta(minutes=1), info=MemberInfo()
        )
        await store.claim(gone, [KeyClaim(key=keys[0], seen_epoch=0)])
        paused, other = await member(store, "paused", group), await member(store, "b", group)
        set_clock(now + timedelta(minutes=2))  # so that a renewal has something to settle
        values = {
            "holder": paused.holder,
            "token": token_digest(paused.token),
            "since": 0,
            "info": None,
        }
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            if function == "changes":
                connection.execute(queries()["renew"], values)
            query = psycopg.ClientCursor(connection).mogrify(queries()[function], values)
            connection.pgconn.send_query(query.encode())
            connection.pgconn.flush()
            sending = "select 1 from pg_stat_activity where wait_event = 'ClientWrite'"
            answered = "select 1 from pg_stat_activity where state = 'idle' and pid = %s"
            pid = connection.info.backend_pid
            while not postgres.execute(url, sending) and not postgres.execute(url, answered, pid):
                pass
            assert len(await store.claim(other, [KeyClaim(key=keys[0], seen_epoch=1)])) == 1
            assert len(await store.checkpoints(group)) == 0


SLOW_CLOCK = """
create or replace function leasehold.store_clock_1() returns timestamptz language plpgsql as $$
begin
    if current_setting('application_name') = 'slow' then
        perform pg_advisory_xact_lock_shared(7);
    end if;
    return (select t from leasehold.test_clock);
end
$$"""


async def test_a_server_that_is_slow_to_read_its_clock_ends_no_lease(
    url: str, store: PostgresStore
) -> None:
    """Renewed while an answer is made; told as ended, it would stay so for that reader."""
    key = f"{GROUPS[0]}/0"
    with postgres.stopped_clock(url) as set_clock:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        set_clock(now)
        await store.declare([key])
        newcomer = await member(store, "newcomer", GROUPS[0])
        owner = await member(store, "owner", GROUPS[0])
        await store.claim(owner, [KeyClaim(key=key, seen_epoch=0)])
        postgres.execute(url, SLOW_CLOCK)
        set_clock(now + HOUR / 2)
        await store.renew(newcomer)
        values = {"holder": newcomer.holder, "since": 0}
        with (
            closing(psycopg.connect(url, autocommit=True)) as gate,
            closing(psycopg.connect(url, autocommit=True, application_name="slow")) as slow,
        ):
            gate.execute("select pg_advisory_lock(7)")
            query = psycopg.ClientCursor(slow).mogrify(queries()["changes"], values)
            slow.pgconn.send_query(query.encode())
            slow.pgconn.flush()
            waiting = "select 1 from pg_stat_activity where pid = %s and wait_event = 'advisory'"
            while not postgres.execute(url, waiting, slow.info.backend_pid):
                pass
            await store.renew(owner)
            set_clock(now + HOUR)
            gate.execute("select pg_advisory_unlock(7)")
            answer = slow.pgconn.get_result()
            assert answer
            _, _, keys, _, members, peers, _ = (answer.get_value(0, n) for n in range(7))
        assert peers is None
        assert {each[0] for each in json.loads(members or b"[]")} == {"newcomer", "owner"}
        assert [each[:2] for each in json.loads(keys or b"[]")] == [["owner", "leased"]]
