"""Commands that read create nothing: no table, no file, no upgrade of a schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import psycopg
import pytest
from tests.support import postgres
from tests.support.command import CommandLine

from leasehold import open_store
from leasehold.errors import UsageError
from leasehold.stores.postgres import migrations as on_postgres
from leasehold.stores.sqlite import migrations as on_sqlite

OBJECTS = "select count(*) from pg_class where relnamespace = to_regnamespace('leasehold')"

READING = (
    "groups ls",
    "groups show orders billing",
    "partitions ls orders billing",
    "partitions break orders billing 0 --epoch 1",
    "partitions move orders billing 0 --to a",
    "partitions history orders billing 0",
    "members ls orders billing",
    "members drain host-a",
    "checkpoints ls orders billing",
    "checkpoints reset orders billing --to latest",
    "jobs ls",
    "jobs show nightly",
    "jobs history nightly",
    "jobs check-epoch nightly 1",
    "jobs next nightly",
    "jobs pause nightly",
    "jobs resume nightly",
    "jobs trigger nightly",
    "jobs cancel-trigger nightly",
    "jobs break nightly --epoch 1",
    "jobs move nightly",
    "files ls",
    "files show /a",
    "files cat /a",
    "files verify",
    "files rm /a",
    "files recover /a",
    "files volumes",
    "log ls",
    "log show orders",
    "log cat orders",
    "log tail orders",
    "log verify orders",
    "log trim orders --older-than 7d",
    "log rm orders",
    "log grow orders --partitions 8",
)


@pytest.fixture
def leasehold(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> CommandLine:
    return CommandLine(monkeypatch, capfdbinary, "sqlite:///none.db")


def refused(leasehold: CommandLine, url: str, reason: str, *, code: int) -> None:
    for words in READING:
        done = leasehold(*words.split(), "--store", url)
        assert (done.code, done.raw) == (code, b""), (words, done)
        assert reason in done.err, (words, done.err)
        assert "leasehold worker`" in done.err or "makes a new one" in done.err


def schema_objects(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(OBJECTS).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.server
def test_on_an_empty_postgresql_database(leasehold: CommandLine) -> None:
    with postgres.database(migrated=False) as url:
        refused(leasehold, url, "there is no store at", code=2)
        assert schema_objects(url) == 0


@pytest.mark.server
def test_on_an_older_schema_of_postgresql(leasehold: CommandLine) -> None:
    with postgres.database() as url:
        newest = on_postgres.migrations()[-1].number
        before = schema_objects(url)
        postgres.execute(url, "delete from leasehold.migration where number = %s", newest)
        refused(leasehold, url, "has the schema of an older Leasehold", code=5)
        assert schema_objects(url) == before
        with psycopg.connect(url) as connection:
            found = connection.execute("select max(number) from leasehold.migration").fetchone()
        assert found == (newest - 1,)


def test_on_no_file_and_on_an_empty_one(leasehold: CommandLine, tmp_path: Path) -> None:
    missing, empty = tmp_path / "mis%sing.db", tmp_path / "empty.db"
    refused(leasehold, f"sqlite:///{tmp_path}/mis%25sing.db", "there is no store", code=2)
    assert not missing.exists()
    empty.touch()
    refused(leasehold, f"sqlite:///{empty}", "there is no store", code=2)
    assert empty.read_bytes() == b""
    assert sorted(tmp_path.iterdir()) == [empty]


def test_on_an_older_schema_of_sqlite(leasehold: CommandLine, tmp_path: Path) -> None:
    path, newest = tmp_path / "leases.db", max(on_sqlite.migrations())

    async def made() -> None:
        async with open_store(f"sqlite:///{path}"):
            pass

    anyio.run(made)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma user_version = {newest - 1}")
    refused(leasehold, f"sqlite:///{path}", "has the schema of an older Leasehold", code=5)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma user_version").fetchone() == (newest - 1,)


def test_a_current_store_is_read_without_a_write(leasehold: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "leases.db"

    async def made() -> None:
        async with open_store(f"sqlite:///{path}") as store:
            await store.declare(["partition/orders/billing/0"])

    anyio.run(made)
    before = path.read_bytes()
    assert leasehold("groups", "ls", "--store", f"sqlite:///{path}").code == 0
    assert leasehold("log", "ls", "--store", f"sqlite:///{path}").code == 2  # it has no volumes
    assert path.read_bytes() == before


@pytest.mark.anyio
async def test_open_store_without_create(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with pytest.raises(UsageError, match="there is no store at"):
        async with open_store(url, create=False):
            pass
    async with open_store(url) as store:
        await store.declare(["job/nightly"])
    async with open_store(url, create=False) as store:
        assert await store.groups() == ["job"]
