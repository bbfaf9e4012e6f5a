"""A real PostgreSQL server for tests, and databases in it.

One server serves all workers of a test run: the first that asks starts it, the last that ends
stops and removes it. ``LEASEHOLD_TEST_POSTGRES`` (a URL with the right to create databases) names
another server to use instead.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import tempfile
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from tests.support import kinds, run_directory
from tests.support.postgres_server import Server

from leasehold.stores.postgres.migrations import migrations, queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

_NUMBERS = count(1)
_LEAVE_ALL = (
    "select pg_terminate_backend(pid, 60000) from pg_stat_activity "
    "where datname = current_database() and pid <> pg_backend_pid()"
)
# Small tables are emptied with much less work than it takes to truncate them.
_EMPTY = (
    "delete from leasehold.lease; delete from leasehold.resource; delete from leasehold.term; "
    "delete from leasehold.checkpoint; delete from leasehold.checkpoint_page; "
    "delete from leasehold.fenced; delete from leasehold.guest; delete from leasehold.long_name"
)
_CLOCK = "select pg_get_functiondef('leasehold.store_clock_1'::regproc)"
_TEST_CLOCK = (
    "create table if not exists leasehold.test_clock (t timestamptz)",
    "truncate leasehold.test_clock",
    "insert into leasehold.test_clock values (clock_timestamp())",
    """create or replace function leasehold.store_clock_1() returns timestamptz
        language sql volatile as 'select t from leasehold.test_clock'""",
)


def fresh_database(*, migrated: bool = True) -> str:
    """The URL of a new database, with our schema in it or entirely empty."""
    kinds.uses("PostgreSQL")
    name = f"leasehold_{os.getpid()}_{next(_NUMBERS)}"
    create(name, template=_joined().template if migrated else "template1")
    return url_of(name)


@contextmanager
def database(*, migrated: bool = True) -> Iterator[str]:
    """The same, dropped at the end of the block: a database takes some 8 MB of disk."""
    url = fresh_database(migrated=migrated)
    try:
        yield url
    finally:
        drop(str(conninfo_to_dict(url)["dbname"]))


def empty_store() -> str:
    """The URL of a store that is empty, and the same one at each call: quicker than a new one.

    For tests that change nothing of the database itself, and need no second one beside it.
    """
    kinds.uses("PostgreSQL")
    url = _reused()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_LEAVE_ALL)
        connection.execute(_EMPTY)
        connection.execute("drop schema public cascade; create schema public")
    return url


def url_of(database: str, server: str | None = None) -> str:
    """The URL of a database on the server that ``server`` (or the shared one) is a URL of."""
    given = conninfo_to_dict(server or _joined().url)
    host, user, port = given.get("host", ""), given.get("user", "postgres"), given.get("port")
    password = f"&password={given['password']}" if "password" in given else ""
    return f"postgresql://{user}@/{database}?host={host}&port={port or 5432}{password}"


def execute(url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Run a statement from outside, as an administrator would."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def create(name: str, *, template: str = "template1") -> None:
    """Make a database that is gone when this process, or the run, has ended."""
    with psycopg.connect(_joined().url, autocommit=True) as connection:
        _create(connection, name, template)
    if _joined().server is None:
        atexit.register(drop, name)


def drop(name: str) -> None:
    """Remove a database, whoever is still connected to it."""
    try:
        with psycopg.connect(_joined().url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )
    except psycopg.OperationalError:
        return  # the server has gone, and the database with it


@contextmanager
def stopped_clock(url: str) -> Iterator[Callable[[datetime], None]]:
    """Empties the store and stops its clock for this block; call what is given to set it."""
    with psycopg.connect(url, autocommit=True) as connection:
        ((clock,),) = connection.execute(_CLOCK).fetchall()
        connection.execute(_EMPTY)
        for statement in _TEST_CLOCK:
            connection.execute(statement)

        def set_clock(now: datetime) -> None:
            connection.execute("update leasehold.test_clock set t = %s", [now])

        try:
            yield set_clock
        finally:
            connection.execute(clock)


def clear(url: str) -> None:
    """Empty a store whose clock may be stopped."""
    execute(url, _EMPTY)


def stored(url: str) -> bytes:
    """Every row of a store as text, and the statements that the server shows of its sessions."""
    tables = execute(url, "select tablename from pg_tables where schemaname = 'leasehold'")
    found = execute(url, "select query from pg_stat_activity where datname = current_database()")
    for (name,) in tables:
        found += execute(url, f"select t::text from leasehold.{name} as t")
    return "\n".join(str(text) for (text,) in found).encode()


@contextmanager
def private_server() -> Iterator[Server]:
    """A server that a test may stop and start as it likes."""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as directory:
        server = Server(Path(directory) / "data")
        try:
            server.ensure_running()
            yield server
        finally:
            server.remove()


def start_again(server: Server) -> None:
    """Start a server that has been told to stop, as soon as it has."""
    server.wait()
    server.ensure_running()


class _Shared:
    """The server of the run, and on it a database with our schema that others are copied from.

    All that use it hold a lock on one file. Who is the last can lock it alone.
    """

    def __init__(self) -> None:
        place = run_directory.begun()
        self.server: Server | None = None
        self.template = re.sub(r"\W", "_", f"{place.name}_template")
        self._users = (place / "pg-users").open("wb")
        with (place / "pg-lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fcntl.flock(self._users, fcntl.LOCK_SH)
            self.url = os.environ.get("LEASEHOLD_TEST_POSTGRES") or self._started()
            with psycopg.connect(self.url, autocommit=True) as connection:
                known = "select 1 from pg_database where datname = %s"
                if not connection.execute(known, [self.template]).fetchall():
                    self._make_template(connection)
        atexit.register(self._leave)

    def _started(self) -> str:
        self.server = Server(run_directory.shared() / ".pg")
        self.server.ensure_running()
        return self.server.get_uri()

    def _make_template(self, admin: psycopg.Connection) -> None:
        _create(admin, f"{self.template}_new", "template1")
        url = url_of(f"{self.template}_new", self.url)
        with psycopg.connect(url, autocommit=True) as connection:
            for step in migrations():
                with connection.transaction():
                    connection.execute(step.text)
                    connection.execute(
                        queries()["migration_done"], {"number": step.number, "name": step.name}
                    )
        names = sql.Identifier(f"{self.template}_new"), sql.Identifier(self.template)
        admin.execute(sql.SQL("alter database {} rename to {}").format(*names))

    def _leave(self) -> None:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self.server is not None:
                self.server.leave()
        else:
            if self.server is not None:
                self.server.remove()
            else:
                drop(self.template)
        finally:
            self._users.close()


@cache
def _joined() -> _Shared:
    return _Shared()


@cache
def _reused() -> str:
    return fresh_database()


def _create(connection: psycopg.Connection, name: str, template: str) -> None:
    names = sql.Identifier(name), sql.Identifier(template)
    connection.execute(sql.SQL("create database {} template {}").format(*names))
