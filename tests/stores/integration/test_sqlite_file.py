"""The SQLite store and its file: URLs, schemas, what a call costs, what is kept."""

from __future__ import annotations

import random
import re
import sqlite3
import threading
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from leasehold.errors import InvalidUrl, LeaseLost, StoreUnusable, UsageError
from leasehold.model import CheckpointWrite, KeyClaim, Lease, MemberInfo, Ownership, Position
from leasehold.stores import open_store
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.database import LockWait, max_pause_s
from leasehold.stores.sqlite.migrations import APPLICATION_ID, migrations, queries
from leasehold.stores.validation import HISTORY_LIMIT
from leasehold.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio

GROUP = "partition/orders/billing"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@asynccontextmanager
async def opened(path: Path, boot_id: str = "boot-1") -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, clock=ManualClock(), boot_id=boot_id)
    try:
        yield store
    finally:
        await store.close()


async def granted(
    store: SqliteStore, holder: str, info: MemberInfo | None = None, *, group: str = GROUP
) -> Lease:
    return await store.grant(
        holder=holder,
        token=f"token of {holder}",
        group=group,
        duration=timedelta(seconds=10),
        info=info or MemberInfo(),
    )


def keys(count: int) -> list[str]:
    return [f"{GROUP}/{number}" for number in range(count)]


async def owned(store: SqliteStore, lease: Lease, names: Sequence[str]) -> Sequence[Ownership]:
    await store.declare(names)
    return await store.claim(lease, [KeyClaim(key=key, seen_epoch=0) for key in names])


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def content(path: Path) -> bytes:
    return path.read_bytes()


def move_away(path: Path) -> None:
    path.rename(path.with_suffix(".old"))


def raw(store: SqliteStore) -> sqlite3.Connection:
    assert store._database._connection is not None
    return store._database._connection


# ----------------------------------------------------------------------- files and URLs


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite://host/a.db", "sqlite:///a.db?mode=ro"]
)
async def test_a_url_without_a_plain_path_names_no_store(url: str) -> None:
    with pytest.raises(InvalidUrl, match=r"sqlite:///leases\.db|no options"):
        await open_store(url).__aenter__()


async def test_a_database_in_memory_is_the_memory_store() -> None:
    with pytest.raises(InvalidUrl, match="memory://"):
        await open_store("sqlite:///:memory:").__aenter__()


async def test_urls_relative_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///a%20b.db") as store:
        assert store.url == "sqlite:///a%20b.db"
        await store.declare(keys(1))
    url = f"sqlite:///{tmp_path}/a%20b.db"
    async with open_store(url) as store:
        assert store.url == url
        assert len(await store.resources(GROUP)) == 1
    async with opened(tmp_path / "a b.db") as plain:
        assert plain.url == url


async def test_a_path_that_can_not_be_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"no directory .*/none: create it"):
        await open_store(f"sqlite:///{tmp_path}/none/leases.db").__aenter__()
    with pytest.raises(StoreUnusable, match="is a directory: name a file in it"):
        await open_store(f"sqlite:///{tmp_path}").__aenter__()


async def test_what_was_written_is_there_after_opening_again(path: Path) -> None:
    loads = MappingProxyType({"k": 0.5})
    info = MemberInfo(host="h", pid=7, weight=2.5, most=3, draining=True, loads=loads)
    async with opened(path) as store:
        lease = await granted(store, "a")
        (own,) = await owned(store, lease, keys(1))
        await store.renew(lease, info=info)
        mark = CheckpointWrite(ownership=own, position=Position(sequence_number=2**62, offset="é"))
        assert await store.checkpoint([mark]) == {}
    async with opened(path) as store:
        assert (await store.members(GROUP))["a"].info == info
        assert (await store.checkpoints(GROUP))[own.key].position == mark.position
        assert (await store.resources(GROUP))[own.key].holder == "a"
        assert (await store.renew(lease, info=info)).version, "the lease is still good"
        mode = raw(store).execute("PRAGMA journal_mode").fetchone()
        assert (*mode, *raw(store).execute("PRAGMA synchronous").fetchone()) == ("wal", 2)


async def test_a_newer_schema_is_left_alone(path: Path) -> None:
    async with opened(path) as store:
        raw(store).execute("PRAGMA user_version = 999")
    known = max(migrations())
    with pytest.raises(StoreUnusable, match=rf"schema 999, this one knows {known}\): upgrade"):
        await SqliteStore.open(path, clock=ManualClock())


async def test_leases_of_a_database_with_plain_tokens_end_when_their_time_is_over(
    path: Path,
) -> None:
    """As an earlier version wrote them: only a process of that version can go on with one."""
    clock = ManualClock()
    async with opened(path) as store:
        await store.declare(keys(1))
        lease = await granted(store, "a")
        (own,) = await store.claim(lease, [KeyClaim(key=keys(1)[0], seen_epoch=0)])
        raw(store).execute("UPDATE lease SET token = ?", (lease.token,))
    store = await SqliteStore.open(path, clock=clock, boot_id="boot-1")
    try:
        with pytest.raises(LeaseLost) as caught:
            await store.renew(lease)
        assert caught.value.reason == "holder_id_in_use"
        heir = await granted(store, "b")
        wanted = [KeyClaim(key=own.key, seen_epoch=own.epoch)]
        assert await store.claim(heir, wanted) == []
        clock.advance(9.9)
        await store.renew(heir)
        assert await store.claim(heir, wanted) == []
        clock.advance(0.1)
        assert [each.key for each in await store.claim(heir, wanted)] == [own.key]
    finally:
        await store.close()


async def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    letter = b"just a letter\n" * 100
    put(path, letter)
    with pytest.raises(StoreUnusable, match="no database") as e:
        await SqliteStore.open(path, clock=ManualClock())
    assert isinstance(e.value.__cause__, sqlite3.DatabaseError)
    assert content(path) == letter


@pytest.mark.parametrize("application_id", [0, 1234])
async def test_the_database_of_another_application_is_left_alone(
    path: Path, application_id: int
) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE lease (theirs)")
        other.execute(f"PRAGMA application_id = {application_id}")
    before = content(path)
    with pytest.raises(StoreUnusable, match="another application"):
        await SqliteStore.open(path, clock=ManualClock())
    assert content(path) == before


async def test_an_empty_file_becomes_a_store(path: Path) -> None:
    put(path, b"")
    async with opened(path) as store:
        assert raw(store).execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


async def test_a_damaged_database_is_unusable(path: Path) -> None:
    async with opened(path) as store:
        await store.declare(keys(2000))
    whole = content(path)
    put(path, whole[:4096] + b"\xa5" * (len(whole) - 4096))
    with pytest.raises(StoreUnusable, match="damaged") as e:
        await SqliteStore.open(path, clock=ManualClock())
    assert isinstance(e.value.__cause__, sqlite3.DatabaseError)


async def test_a_database_that_was_replaced_is_noticed(path: Path) -> None:
    async with opened(path) as store:
        await store.declare(keys(1))
        move_away(path)
        async with opened(path):
            with pytest.raises(StoreUnusable, match="moved or replaced"):
                await store.declare(keys(2))


# ------------------------------------------------------------------------ what a call costs

RANGES: dict[str, tuple[str, ...]] = {
    "resources_changed": ("resource_changes (grp=? AND version>?)",),
    "resources_changed_elsewhere": ("resource_owned (holder=? AND version>?)",),
    "peers_changed": ("lease_changes (grp=? AND version>?)",),
    "terms_ended": ("term_changes (holder=? AND version>?)",),
    "leases_run_out": (
        "lease_live (grp=? AND ends_at<?)",
        "SEARCH guest USING PRIMARY KEY (grp=?)",
        "SEARCH lease USING PRIMARY KEY (holder=?)",
    ),
    "next_end": (
        "lease_live (grp=?)",
        "SEARCH guest USING PRIMARY KEY (grp=?)",
        "resource_breaking (grp=? AND break_at>?)",
        "resource_handed (grp=? AND handed_to>?)",
    ),
    "resources_due": ("resource_breaking (grp=? AND break_at>? AND break_at<?)",),
    "leases_purge": ("lease_over (ends_at<?)",),
    "leases_purge_lone": ("lease_over_lone (ends_at<?)",),
    "lease_end_terms": ("term_changes (holder=? AND version=?)", "resource_owned (holder=?)"),
    "term": ("term USING PRIMARY KEY (key=? AND epoch=?)",),
    "guest_drop": ("guest_holder (holder=?)",),
    "lease_end_resources": ("resource_owned (holder=?)",),
}


def plan(store: SqliteStore, name: str) -> list[str]:
    text = queries()[name]
    values = {param: "[]" if param == "keys" else 1 for param in re.findall(r":(\w+)", text)}
    return [row[3] for row in raw(store).execute(f"EXPLAIN QUERY PLAN {text}", values)]


@pytest.mark.spec("B1")
@pytest.mark.parametrize("analysed", [False, True])
async def test_queries_read_ranges_of_indexes(path: Path, analysed: bool) -> None:
    async with opened(path) as store:
        leases = [await granted(store, f"holder {number}") for number in range(50)]
        await owned(store, leases[0], keys(500))
        if analysed:
            raw(store).execute("ANALYZE")
        for name, expected in RANGES.items():
            lines = plan(store, name)
            for part in expected:
                assert any(part in line for line in lines), (name, lines)
            assert not any(line.startswith("SCAN") for line in lines), (name, lines)


async def cost_of_a_quiet_renewal(path: Path, count: int, *, guest: bool) -> tuple[int, int]:
    """How many rows it writes, and how many instructions SQLite's machine needs for it.

    All keys are owned by the one that renews, or by a guest of its group.
    """
    async with opened(path) as store:
        info = MemberInfo(host="h", loads=dict.fromkeys(keys(count), 1.0))
        lease = await granted(store, "a", info)
        owner = await granted(store, "b", group="") if guest else lease
        assert len(await owned(store, owner, keys(count))) == count
        known = (await store.renew(lease)).version
        instructions, rows = 0, raw(store).total_changes

        def count_one() -> int:
            nonlocal instructions
            instructions += 1
            return 0

        raw(store).set_progress_handler(count_one, 1)
        changes = await store.renew(lease, since=known)
        raw(store).set_progress_handler(None, 1)
        assert (changes.version, changes.resources, changes.members) == (known, (), ())
        return raw(store).total_changes - rows, instructions


@pytest.mark.spec("B1")
@pytest.mark.parametrize("guest", [False, True])
async def test_a_quiet_renewal_is_one_row_whatever_is_owned(tmp_path: Path, guest: bool) -> None:
    small = await cost_of_a_quiet_renewal(tmp_path / "small.db", 1, guest=guest)
    large = await cost_of_a_quiet_renewal(tmp_path / "large.db", 10_000, guest=guest)
    assert small[0] == large[0] == 1
    assert 0 < large[1] <= small[1] * 1.2


@pytest.mark.spec("L5", "B10")
async def test_thousands_of_keys_in_one_step(path: Path) -> None:
    async with opened(path) as store:
        lease = await granted(store, "a")
        taken = await owned(store, lease, keys(3000))
        assert [each.key for each in taken] == keys(3000)
        position = Position(sequence_number=1)
        assert (
            await store.checkpoint([CheckpointWrite(ownership=o, position=position) for o in taken])
            == {}
        )
        assert len(await store.checkpoints(GROUP)) == 3000
        assert await store.release(taken) == keys(3000)
        assert len((await store.renew(lease)).ended) == 3000
        versions = {each.version for each in (await store.resources(GROUP)).values()}
        assert len(versions) == 1, "one step, one version"


async def test_a_number_beyond_64_bits_is_refused(path: Path) -> None:
    async with opened(path) as store:
        (own,) = await owned(store, await granted(store, "a"), keys(1))
        with pytest.raises(UsageError, match="64 bits"):
            await store.checkpoint(
                [CheckpointWrite(ownership=own, position=Position(sequence_number=2**63))]
            )
        assert await store.checkpoints(GROUP) == {}


# ------------------------------------------------------------------------------ what is kept


async def test_an_epoch_survives_a_row_deleted_by_hand(path: Path) -> None:
    async with opened(path) as store:
        lease = await granted(store, "a")
        taken = await owned(store, lease, keys(1))
        await store.release(taken)
        raw(store).execute("DELETE FROM resource")
        assert await store.declare(keys(1)) == 1
        (again,) = await store.claim(lease, [KeyClaim(key=taken[0].key, seen_epoch=1)])
        assert again.epoch == 2


@pytest.mark.spec("B10")
async def test_history_is_bounded_and_no_end_is_lost_before_it_was_heard(path: Path) -> None:
    async with opened(path) as store:
        a, b = await granted(store, "a"), await granted(store, "b")
        (own,) = await owned(store, a, keys(1))
        epoch = own.epoch
        for _ in range(HISTORY_LIMIT + 20):
            (own,) = await store.claim(b, [KeyClaim(key=own.key, seen_epoch=epoch)], force=True)
            await store.release([own])
            epoch = own.epoch
            since = (await store.renew(b)).version
            await store.renew(b, since=since)
        terms = await store.history(own.key, limit=1000)
        assert [each.epoch for each in terms] == list(range(epoch, epoch - HISTORY_LIMIT, -1))
        stored = raw(store).execute("SELECT epoch FROM term ORDER BY epoch").fetchall()
        assert len(stored) == HISTORY_LIMIT + 1
        assert stored[0] == (1,), "a has not heard yet that b robbed it"
        told = await store.renew(a)
        assert [each.epoch for each in told.ended] == [1]
        await store.renew(a, since=told.version)
        await store.claim(b, [KeyClaim(key=own.key, seen_epoch=epoch)])
        left = raw(store).execute("SELECT count(*) FROM term").fetchone()
        assert left == (HISTORY_LIMIT,)


@pytest.mark.parametrize("group", ["", "job"])
async def test_a_guest_is_one_row_until_its_lease_ends(path: Path, group: str) -> None:
    async with opened(path) as store:
        guest = await granted(store, "a", group=group)
        member = await granted(store, "b")
        await owned(store, member, keys(1))
        taken = await owned(store, guest, [*keys(3)[1:], "job/x"])
        expected = [(grp, "a") for grp in (GROUP, "job") if grp != group]
        rows = raw(store).execute("SELECT grp, holder FROM guest ORDER BY grp DESC").fetchall()
        assert rows == expected, "one for each group but its own, whatever it owns"
        await store.release(taken)
        await store.revoke(guest)
        assert raw(store).execute("SELECT count(*) FROM guest").fetchone() == (0,)
        other = await granted(store, "c", group=group)
        await store.claim(other, [KeyClaim(key=taken[0].key, seen_epoch=1)])
        assert raw(store).execute("SELECT * FROM guest").fetchall() == [(GROUP, "c")]
    async with opened(path, boot_id="boot-2") as store:
        assert raw(store).execute("SELECT count(*) FROM guest").fetchone() == (0,)


@pytest.mark.spec("B10")
async def test_repetitions_are_known_only_from_the_history(path: Path) -> None:
    async with opened(path) as store:
        a, b = await granted(store, "a"), await granted(store, "b")
        (first,) = await owned(store, a, keys(1))
        own, again = first, []
        await store.release([first])
        for _ in range(HISTORY_LIMIT):
            again.append(await store.release([first]))
            (own,) = await store.claim(b, [KeyClaim(key=own.key, seen_epoch=own.epoch)])
            await store.release([own])
        assert again == [[first.key]] * HISTORY_LIMIT
        stored = raw(store).execute("SELECT min(epoch) FROM term").fetchone()
        assert stored == (1,), "kept, for a has not heard of it"
        assert await store.release([first]) == [], "but no longer part of the history"


# --------------------------------------------------------------------------------- patience


async def test_who_has_waited_longest_asks_most_often() -> None:
    pauses = [max_pause_s(waited / 10) for waited in range(50)]
    assert pauses == sorted(pauses, reverse=True)
    assert pauses[0] >= 10 * pauses[-1] > 0


async def test_patience_ends_at_its_limit_or_when_given_up() -> None:
    now = 0.0
    patience = LockWait(5.0, rng=random.Random(1), stopwatch=lambda: now)
    given_up = threading.Event()
    assert patience.pause(given_up)
    now = 5.0
    assert not patience.pause(given_up)
    given_up.set()
    assert not LockWait(5.0, rng=random.Random(1), stopwatch=lambda: now).pause(given_up)
