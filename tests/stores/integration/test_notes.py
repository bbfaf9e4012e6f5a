"""Notes of terms where a store has more to prove than the contract: upgrades and locks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
import psycopg
import pytest
from tests.support import postgres

from leasehold.clock import SystemClock
from leasehold.core.token_digest import token_digest
from leasehold.model import EndReason, HandOver, KeyClaim, MemberInfo, Note
from leasehold.stores import open_store
from leasehold.stores.postgres.migrations import migrations as postgres_migrations
from leasehold.stores.postgres.migrations import queries as postgres_queries
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.migrations import APPLICATION_ID
from leasehold.stores.sqlite.migrations import migrations as sqlite_migrations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leasehold.model import Lease, Ownership
    from leasehold.ports import Store

pytestmark = [pytest.mark.anyio, pytest.mark.spec("B7")]

KEY = "job/nightly"
LONG = timedelta(minutes=5)


async def _holder(store: Store, name: str) -> Lease:
    return await store.grant(
        holder=name, token=f"secret-{name}", group="", duration=LONG, info=MemberInfo()
    )


async def _told(store: Store) -> list[tuple[str, str, EndReason | None]]:
    terms = await store.history(KEY)
    return [(term.holder, term.note, term.reason) for term in reversed(terms)]


# ------------------------------------------------------------------------- SQLite

# As a program of the release before says it, which may be running while the file is migrated.
_OLD_BEGIN = "INSERT INTO term (key, epoch, holder, started_at) VALUES (?, ?, ?, ?)"
_OLD_END = "UPDATE term SET ended_at = ?, reason = ?, version = ? WHERE key = ? AND epoch = ?"
_OLD_HISTORY = "SELECT key, epoch, holder, started_at, ended_at, reason FROM term WHERE key = ?"
_WHEN = "2026-01-01T00:00:00+00:00"


async def test_a_sqlite_file_of_the_last_version_is_taken_on(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        for number in range(1, 7):
            older.executescript(sqlite_migrations()[number])
        older.execute("UPDATE meta SET version = 1, boot_id = 'boot-1'")
        older.execute(
            "INSERT INTO resource (key, grp, epoch, forgotten, version) VALUES (?, 'job', 2, 0, 1)",
            (KEY,),
        )
        older.execute(_OLD_BEGIN, (KEY, 1, "old", _WHEN))
        older.execute(_OLD_END, (_WHEN, "released", 1, KEY, 1))
        older.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        older.execute("PRAGMA user_version = 6")
        store = await SqliteStore.open(path, clock=SystemClock(), boot_id="boot-1")
        older.execute(_OLD_BEGIN, (KEY, 2, "old", _WHEN))
        older.execute(_OLD_END, (_WHEN, "released", 2, KEY, 2))
        lease = await _holder(store, "new")
        wanted = KeyClaim(key=KEY, seen_epoch=2, note="begun")
        assert len(await store.claim(lease, [wanted])) == 1
        # What the older program ends keeps the note that the newer one gave it.
        older.execute(_OLD_END, (_WHEN, "expired", 3, KEY, 3))
        assert len(older.execute(_OLD_HISTORY, (KEY,)).fetchall()) == 3
        assert await _told(store) == [
            ("old", "", EndReason.RELEASED),
            ("old", "", EndReason.RELEASED),
            ("new", "begun", EndReason.EXPIRED),
        ]
        await store.close()


# --------------------------------------------------------------------- PostgreSQL


def _migrate(url: str, *, upto: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for step in postgres_migrations()[:upto]:
            with connection.transaction():
                connection.execute(step.text)
                connection.execute(
                    postgres_queries()["migration_done"],
                    {"number": step.number, "name": step.name},
                )


class _Older:
    """A program of the release before: it calls the functions that it knows, and reads them."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, call: str, *values: object) -> object:
        ((answer,),) = postgres.execute(self._url, f"select {call}", *values)
        return answer

    def claim(self, epoch: int) -> object:
        call = "epochs from leasehold.claim_1('old', 'secret-old', %s, %s, false, 100)"
        return self.ask(call, [KEY], [epoch])

    def release(self, epoch: int) -> object:
        call = "leasehold.release_1(%s, %s, '{old}', '{secret-old}', '{released}')"
        return self.ask(call, [KEY], [epoch])

    def hand_over(self, epoch: int, to: str) -> object:
        call = "leasehold.hand_over_1(%s, %s, '{old}', '{secret-old}', %s, 60)"
        return self.ask(call, [KEY], [epoch], [to])

    def fields(self, call: str, *values: object) -> set[str]:
        terms = self.ask(call, *values)
        assert isinstance(terms, list)
        return {name for term in terms for name in term}


@pytest.mark.server
async def test_an_older_program_goes_on_beside_a_newer_one() -> None:
    with postgres.database(migrated=False) as url:
        _migrate(url, upto=10)
        older = _Older(url)
        older.ask("leasehold.declare_1(%s, '{}', '{}')", [KEY])
        older.ask("leasehold.grant_1('old', 'secret-old', '', 300, '{}', 1, 1, '{}', '{}')")
        assert (older.claim(0), older.release(1)) == ([1], [1])
        ended = "ended from leasehold.renew_2('old', 'secret-old', 0, null)"
        history = "leasehold.history_1(%s, 10)"
        known = older.fields(history, KEY)
        assert older.fields(ended) == known
        async with open_store(url) as store:
            assert (older.claim(1), older.hand_over(2, "new")) == ([2], [1])
            lease = await _holder(store, "new")
            assert (older.claim(2), older.hand_over(3, "new")) == ([3], [1])
            wanted = KeyClaim(key=KEY, seen_epoch=3, note="begun")
            (mine,) = await store.claim(lease, [wanted])
            await store.release([mine], notes={KEY: "done"})
            assert (older.claim(4), older.release(5)) == ([5], [1])
            assert await _told(store) == [
                ("old", "", EndReason.RELEASED),
                ("old", "", EndReason.HANDED_OVER),
                ("old", "", EndReason.HANDED_OVER),
                ("new", "done", EndReason.RELEASED),
                ("old", "", EndReason.RELEASED),
            ]
            # It knows these and no more: a field that it does not know might end it.
            assert older.fields(history, KEY) == older.fields(ended) == known


@pytest.mark.server
@pytest.mark.spec("B5")
async def test_the_end_of_a_term_waits_for_a_note_under_way() -> None:
    """So that no note is written after the end, nor lost that its holder was told of."""
    with postgres.database() as url:
        async with open_store(url) as store:
            await store.declare([KEY])
            lease = await _holder(store, "a")
            (mine,) = await store.claim(lease, [KeyClaim(key=KEY, seen_epoch=0)])
            async with await psycopg.AsyncConnection.connect(url) as writer:
                await writer.execute(
                    "select leasehold.annotate_1(%s, '{1}', '{a}', %s, '{half done}')",
                    [[KEY], [token_digest("secret-a")]],
                )
                with anyio.fail_after(100):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(store.release, [mine])
                        while not _waiting(url):  # noqa: ASYNC110 - the server tells nobody
                            await anyio.sleep(0.01)
                        await writer.commit()
            assert await _told(store) == [("a", "half done", EndReason.RELEASED)]
            assert list(await store.annotate([Note(ownership=mine, text="late")])) == [KEY]


@pytest.mark.server
async def test_thousands_of_notes_go_in_one_step() -> None:
    keys = [f"job/{number}" for number in range(2000)]
    with postgres.database() as url:
        async with open_store(url) as store:
            await store.declare(keys)
            lease, heir = await _holder(store, "a"), await _holder(store, "b")
            wanted = [KeyClaim(key=key, seen_epoch=0, note=f"begun {key}") for key in keys]
            owned = await store.claim(lease, wanted)
            said = [Note(ownership=each, text=f"at {each.key}") for each in owned[:1000]]
            assert list(await store.annotate([*said, *_stale(owned)])) == keys
            passed = [HandOver(ownership=each, to=heir.holder, note=each.key) for each in owned[:9]]
            assert len(await store.hand_over(passed, limit=LONG)) == 9
            notes = {each.key: f"done {each.key}" for each in owned[9:500]}
            assert len(await store.release(owned[9:], notes=notes)) == 1991
            found = [(await store.history(keys[at]))[0].note for at in (0, 9, 500, 1000)]
            assert found == ["job/0", "done job/9", "at job/500", "begun job/1000"]
            assert await store.fenced_writes("job") == 2000


def _stale(owned: Sequence[Ownership]) -> list[Note]:
    return [Note(ownership=replace(each, epoch=9), text="stale") for each in owned]


def _waiting(url: str) -> bool:
    """Whether a call of ours waits for a lock."""
    return bool(
        postgres.execute(
            url,
            "select 1 from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock'",
        )
    )
