"""A blocking door to the database of a store: SQL steps written once, for SQLite and PostgreSQL.

A step is a function of a ``Tx``. It runs in one transaction under the write lock, all of it or
nothing, and is durable when its answer is there. It may be run again: after a lock that somebody
held, or on a new connection when one broke and nobody knows whether the commit was done. So a step
must give the same answer when it finds that it was done before.

The statements are in a subset of SQL that both databases know, with ``:name`` for values. Calls
block and are for threads; any number of threads may call at once.

The blocking door to a SQLite file: one connection that writes, and one that only reads.

With two of them a reader does not wait while a commit waits for the disk.
"""

from __future__ import annotations

import json
import re
import threading
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from leasehold.errors import InvalidUrl, StoreUnusable
from leasehold.stores.sqlite.database import Database
from leasehold.stores.sqlite.location import (
    BUSY_LIMIT_S,
    check_path,
    machine_boot_id,
    path_of,
    ready_database,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.stores.sqlite.database import Transaction

T = TypeVar("T")
Value = str | int | float | None
Params = dict[str, Value]

_MODULES = {
    "sqlite": "leasehold.stores.blocking",
    "postgresql": "leasehold.stores.blocking_postgres",
    "postgres": "leasehold.stores.blocking_postgres",
}
_EXAMPLES = "sqlite:///path/to/leases.db or postgresql://user@host/database"
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Tx(Protocol):
    """One open transaction. Statements are known by name."""

    @property
    def now(self) -> float:
        """Seconds of the store's clock, read once, after the lock was had."""
        ...

    @property
    def wall(self) -> str:
        """The same moment for people: ISO 8601, UTC, always with microseconds."""
        ...

    def one(self, name: str, **params: Value) -> Any | None:
        """The first row of the answer."""
        ...

    def all(self, name: str, **params: Value) -> list[Any]:
        """All rows of the answer, as tuples."""
        ...

    def run(self, name: str, **params: Value) -> int:
        """Run a statement that changes something; return how many rows it changed."""
        ...

    def many(self, name: str, params: Sequence[Params]) -> None:
        """Run a statement once for each set of values."""
        ...


class BlockingDatabase(Protocol):
    """A database, open. Safe to use from several threads; not in a forked process."""

    @property
    def url(self) -> str:
        """The URL, without its secrets."""
        ...

    def write(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` in one transaction under the write lock; it is durable on return.

        Raises:
            StoreUnavailable: no answer, or no lock, in time. It may or may not have been done.
            StoreUnusable: read-only, full, damaged, or not the database that was opened.
            UsageError: closed, or opened before a fork.
        """
        ...

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run ``work`` on one consistent state of the database, without the write lock.

        Raises:
            StoreUnavailable: no answer in time.
            StoreUnusable: damaged, or not the database that was opened.
            UsageError: closed, or opened before a fork.
        """
        ...

    def close(self) -> None:
        """Give everything back. Again is harmless."""
        ...


def open_blocking(
    url: str, *, queries: Mapping[str, str], clock: Clock, guard: str | None, create: bool = True
) -> BlockingDatabase:
    """Open the database that ``url`` names; with ``create``, made or brought up to date.

    ``guard`` names the query that takes the write lock on PostgreSQL, by the lock of a row. SQLite
    has a write lock of its own, and ``clock`` is the store's clock there.

    Raises:
        InvalidUrl: the URL names no such database; the message says what to write instead.
        UsageError: there is no store in it yet, without ``create``.
        StoreUnavailable: there is no answer.
        StoreUnusable: it can not serve: read-only, full, damaged, or of a newer version.
    """
    scheme = urlsplit(url).scheme.lower()
    if scheme == "memory":
        raise InvalidUrl(
            f"memory:// is gone with its process, and files are not: for files write {_EXAMPLES}"
        )
    if scheme == "azure-blob":
        raise InvalidUrl(
            "a log, or files, can not be kept in Azure Blob, which keeps leases and checkpoints: "
            f"write {_EXAMPLES}"
        )
    if scheme not in _MODULES:
        raise InvalidUrl(f"a URL of scheme {scheme!r} names no database: write {_EXAMPLES}")
    # Imported when it is asked for: the driver may not be installed.
    try:
        module = import_module(_MODULES[scheme])
    except ImportError as error:
        raise InvalidUrl(
            f"the {scheme} store needs the package {error.name!r}: "
            "pip install 'leasehold[postgres]'"
        ) from error
    opened: BlockingDatabase = module.open_url(
        url, queries=queries, clock=clock, guard=guard, create=create
    )
    return opened


def named_queries(text: str) -> Mapping[str, str]:
    """The statements of a ``.sql`` file, each by the name in the line ``-- name: …`` above it."""
    _, *parts = _NAME.split(text)
    bare = (part.strip().removesuffix(";") for part in parts[1::2])
    return MappingProxyType(dict(zip(parts[::2], bare, strict=True)))


_ROWS = "_rows"
_NO_CHARACTER = "\\u0000"  # SQLite ends a text of JSON there
_NEVER = threading.Event()  # nobody gives up a call that blocks


class SqliteTx:
    """A transaction of SQLite."""

    def __init__(self, tx: Transaction, queries: Mapping[str, str], clock: Clock) -> None:
        """Over a transaction that has its lock: the clock is read now."""
        self._tx = tx.using(queries)
        self._queries = queries
        self.one = self._tx.one
        self.all = self._tx.all
        self.run = self._tx.run
        self.now = clock.boottime_s()
        self.wall = clock.utc_now().isoformat(timespec="microseconds")

    def many(self, name: str, params: Sequence[Params]) -> None:
        """See ``Tx``. One statement for all, where there is one: the interpreter waits once."""
        if len(params) == 1:
            self.run(name, **params[0])
            return
        if params and name + _ROWS in self._queries:
            rows = json.dumps(params, ensure_ascii=False)
            if _NO_CHARACTER not in rows:
                self.run(name + _ROWS, rows=rows)
                return
        self._tx.many(name, params)


class BlockingSqlite:
    """A SQLite file, for threads."""

    def __init__(
        self,
        writer: Database,
        reader: Database,
        *,
        url: str,
        queries: Mapping[str, str],
        clock: Clock,
        boot_id: str,
    ) -> None:
        """Over two connections to one file that is ready; ``open_url`` makes them."""
        self.url = url
        self._writer = writer
        self._reader = reader
        self._queries = queries
        self._clock = clock
        self._boot_id = boot_id

    def write(self, work: Callable[[SqliteTx], T]) -> T:
        return self._writer.write(lambda tx: work(self._checked(tx)), _NEVER)

    def read(self, work: Callable[[SqliteTx], T]) -> T:
        return self._reader.read(lambda tx: work(self._checked(tx)), _NEVER)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _checked(self, tx: Transaction) -> SqliteTx:
        _, boot_id = tx.meta()
        if boot_id != self._boot_id:
            raise StoreUnusable(
                f"{self._writer.path} is being used from another machine or after a restart of "
                "this one: its times mean nothing here; SQLite serves one machine, and "
                "PostgreSQL several"
            )
        return SqliteTx(tx, self._queries, self._clock)


def open_url(
    url: str,
    *,
    queries: Mapping[str, str],
    clock: Clock,
    guard: str | None,  # noqa: ARG001 - SQLite has a write lock of its own
    create: bool = True,
) -> BlockingSqlite:
    """Open the database that the URL names; ``open_blocking`` calls this."""
    path = Path(path_of(url))
    check_path(path)
    boot_id = machine_boot_id()
    writer = ready_database(path, clock, boot_id, BUSY_LIMIT_S, create=create)
    try:
        reader = Database(path, busy_limit_s=BUSY_LIMIT_S)
    except BaseException:
        writer.close()
        raise
    reader.keep_identity()
    return BlockingSqlite(writer, reader, url=url, queries=queries, clock=clock, boot_id=boot_id)
