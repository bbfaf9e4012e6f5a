"""A blocking door to the database of a store: SQL steps written once, for SQLite and PostgreSQL.

A step is a function of a ``Tx``. It runs in one transaction under the write lock, all of it or
nothing, and is durable when its answer is there. It may be run again: after a lock that somebody
held, or on a new connection when one broke and nobody knows whether the commit was done. So a step
must give the same answer when it finds that it was done before.

The statements are in a subset of SQL that both databases know, with ``:name`` for values. Calls
block and are for threads; any number of threads may call at once.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from leasehold.errors import UnknownStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.clock import Clock

T = TypeVar("T")
Value = str | int | float | None
Params = dict[str, Value]

_MODULES = {
    "sqlite": "leasehold.stores.blocking_sqlite",
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
    url: str, *, queries: Mapping[str, str], clock: Clock, guard: str | None
) -> BlockingDatabase:
    """Open the database that ``url`` names, made or brought up to date where needed.

    ``guard`` names the query that takes the write lock on PostgreSQL, by the lock of a row. SQLite
    has a write lock of its own, and ``clock`` is the store's clock there.

    Raises:
        UnknownStore: the URL names no such database; the message says what to write instead.
        StoreUnavailable: there is no answer.
        StoreUnusable: it can not serve: read-only, full, damaged, or of a newer version.
    """
    scheme = urlsplit(url).scheme.lower()
    if scheme == "memory":
        raise UnknownStore(
            f"memory:// is gone with its process, and files are not: for files write {_EXAMPLES}"
        )
    if scheme == "azure-blob":
        raise UnknownStore(
            "a log, or files, can not be kept in Azure Blob, which keeps leases and checkpoints: "
            f"write {_EXAMPLES}"
        )
    if scheme not in _MODULES:
        raise UnknownStore(f"a URL of scheme {scheme!r} names no database: write {_EXAMPLES}")
    # Imported when it is asked for: the driver may not be installed.
    try:
        module = import_module(_MODULES[scheme])
    except ImportError as error:
        raise UnknownStore(
            f"the {scheme} store needs the package {error.name!r}: "
            "pip install 'leasehold[postgres]'"
        ) from error
    opened: BlockingDatabase = module.open_url(url, queries=queries, clock=clock, guard=guard)
    return opened


def named_queries(text: str) -> Mapping[str, str]:
    """The statements of a ``.sql`` file, each by the name in the line ``-- name: …`` above it."""
    _, *parts = _NAME.split(text)
    bare = (part.strip().removesuffix(";") for part in parts[1::2])
    return MappingProxyType(dict(zip(parts[::2], bare, strict=True)))
