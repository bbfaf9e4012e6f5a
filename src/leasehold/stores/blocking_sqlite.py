"""The blocking door to a SQLite file: one connection that writes, and one that only reads.

With two of them a reader does not wait while a commit waits for the disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.errors import StoreUnusable
from leasehold.stores.sqlite.database import Database
from leasehold.stores.sqlite.place import (
    BUSY_LIMIT_S,
    check_path,
    machine_boot_id,
    path_of,
    ready_database,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.stores.blocking import Params, Value
    from leasehold.stores.sqlite.database import Transaction

T = TypeVar("T")


class SqliteTx:
    """See ``Tx``."""

    def __init__(self, tx: Transaction, clock: Clock) -> None:
        """Over a transaction that has its lock: the clock is read now."""
        self._tx = tx
        self.now = clock.boottime_s()
        self.wall = clock.utc_now().isoformat(timespec="microseconds")

    def one(self, name: str, **params: Value) -> Any | None:
        """See ``Tx``."""
        return self._tx.one(name, **params)

    def all(self, name: str, **params: Value) -> list[Any]:
        """See ``Tx``."""
        return self._tx.all(name, **params)

    def run(self, name: str, **params: Value) -> int:
        """See ``Tx``."""
        return self._tx.run(name, **params)

    def many(self, name: str, params: Sequence[Params]) -> None:
        """See ``Tx``."""
        self._tx.many(name, params)


class BlockingSqlite:
    """See ``BlockingDatabase``."""

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
        """See ``BlockingDatabase``."""
        return self._writer.write(lambda tx: work(self._checked(tx)))

    def read(self, work: Callable[[SqliteTx], T]) -> T:
        """See ``BlockingDatabase``."""
        return self._reader.read(lambda tx: work(self._checked(tx)))

    def close(self) -> None:
        """See ``BlockingDatabase``."""
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
        return SqliteTx(tx.using(self._queries), self._clock)


def open_url(
    url: str,
    *,
    queries: Mapping[str, str],
    clock: Clock,
    guard: str | None,  # noqa: ARG001 - SQLite has a write lock of its own
) -> BlockingSqlite:
    """See ``open_blocking``."""
    path = Path(path_of(url))
    check_path(path)
    boot_id = machine_boot_id()
    writer = ready_database(path, clock, boot_id, BUSY_LIMIT_S)
    try:
        reader = Database(path, busy_limit_s=BUSY_LIMIT_S)
    except BaseException:
        writer.close()
        raise
    reader.keep_identity()
    return BlockingSqlite(writer, reader, url=url, queries=queries, clock=clock, boot_id=boot_id)
