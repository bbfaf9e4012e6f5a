"""The blocking door to a SQLite file: one connection that writes, and one that only reads.

With two of them a reader does not wait while a commit waits for the disk.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from leasehold.errors import StoreUnusable
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
    from leasehold.stores.blocking import Params
    from leasehold.stores.sqlite.database import Transaction

T = TypeVar("T")

_ROWS = "_rows"
_NO_CHARACTER = "\\u0000"  # SQLite ends a text of JSON there
_NEVER = threading.Event()  # nobody gives up a call that blocks


class SqliteTx:
    """See ``Tx``."""

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
        return self._writer.write(lambda tx: work(self._checked(tx)), _NEVER)

    def read(self, work: Callable[[SqliteTx], T]) -> T:
        """See ``BlockingDatabase``."""
        return self._reader.read(lambda tx: work(self._checked(tx)), _NEVER)

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
        return SqliteTx(tx, self._queries, self._clock)


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
