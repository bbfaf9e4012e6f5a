"""The blocking door to PostgreSQL: a few connections, asked again when one breaks.

The write lock is that of one row, which the query named ``guard`` takes before anything else in a
transaction. The clock is the server's, read after the lock was had.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable, UsageError
from leasehold.stores import postgres
from leasehold.stores.blocking import named_queries
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.driver_errors import is_transient, to_store_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.stores.blocking import Params, Value

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

_PATIENCE_S = 5.0
# Shorter than the patience: those that wait for the lock are to see the end of a stopped holder.
_IDLE_LIMIT_S = 3.0
_ENDED_WHILE_IDLE = "25P03"
_MAX_CONNECTIONS = 4
_PREPARE_AFTER = 2
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
# A text, a comment, or a value by name. The two colons of a cast are neither.
_PLACES = re.compile(r"'[^']*'|--[^\n]*|(?<![:\w]):([a-z_]\w*)")


def translated(text: str) -> bytes:
    """A statement with ``:name`` for values, as the driver wants it: ``%(name)s``."""

    def place(found: re.Match[str]) -> str:
        return f"%({found[1]})s" if found[1] else found[0]

    return _PLACES.sub(place, text.replace("%", "%%")).encode()


@cache
def _own_queries() -> Mapping[str, bytes]:
    text = files("leasehold.stores").joinpath("blocking.sql").read_text(encoding="utf-8")
    return {name: translated(query) for name, query in named_queries(text).items()}


class PostgresTx:
    """A transaction of PostgreSQL."""

    def __init__(self, connection: Connection, queries: Mapping[str, bytes], now: float) -> None:
        """Over a transaction that has its lock; ``now`` was read after that."""
        self._connection = connection
        self._queries = queries
        self.now = now

    @property
    def wall(self) -> str:
        return datetime.fromtimestamp(self.now, UTC).isoformat(timespec="microseconds")

    def one(self, name: str, **params: Value) -> Any | None:
        return self._connection.execute(self._queries[name], params).fetchone()

    def all(self, name: str, **params: Value) -> list[Any]:
        return self._connection.execute(self._queries[name], params).fetchall()

    def run(self, name: str, **params: Value) -> int:
        return self._connection.execute(self._queries[name], params).rowcount

    def many(self, name: str, params: Sequence[Params]) -> None:
        if len(params) == 1:
            self.run(name, **params[0])
        elif params:
            with self._connection.cursor() as cursor:
                cursor.executemany(self._queries[name], params)


class BlockingPostgres:
    """A PostgreSQL database, for threads."""

    def __init__(
        self, address: DatabaseAddress, queries: Mapping[str, str], guard: str | None
    ) -> None:
        """Connect to nothing yet: each connection is made by the first call that needs it."""
        self._address = address
        given = {key: str(value) for key, value in conninfo_to_dict(address.conninfo).items()}
        # A server that has vanished without a word is noticed in about this time.
        own = {"tcp_user_timeout": str(int(_PATIENCE_S * 1000))}
        self._conninfo = make_conninfo(**own | given)
        self._queries = {name: translated(text) for name, text in queries.items()}
        self._guard = guard
        self._idle: list[Connection] = []
        self._room = threading.Semaphore(_MAX_CONNECTIONS)
        self._pid = os.getpid()
        # How long a call waits is real time, whatever clock the leases go by.
        self._stopwatch = SystemClock().boottime_s
        self._closed = threading.Event()

    @property
    def url(self) -> str:
        return self._address.url

    def write(self, work: Callable[[PostgresTx], T]) -> T:
        def guarded(connection: Connection) -> T:
            with connection.transaction():
                if self._guard is not None:
                    connection.execute(self._queries[self._guard])
                return work(self._tx(connection))

        return self._patiently(guarded)

    def read(self, work: Callable[[PostgresTx], T]) -> T:
        def consistent(connection: Connection) -> T:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            try:
                with connection.transaction():
                    return work(self._tx(connection))
            finally:
                if not connection.closed:
                    connection.isolation_level = None

        return self._patiently(consistent)

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # the connections belong to the process that opened them
        self._closed.set()
        self._drop_idle()

    # ------------------------------------------------------------- parts

    def _tx(self, connection: Connection) -> PostgresTx:
        row = connection.execute(_own_queries()["clock"]).fetchone()
        return PostgresTx(connection, self._queries, float(row[0]) if row else 0.0)

    def _patiently(self, action: Callable[[Connection], T]) -> T:
        until_s, pause_s = self._stopwatch() + _PATIENCE_S, _FIRST_PAUSE_S
        while True:
            try:
                with self._borrowed() as connection:
                    return action(connection)
            except psycopg.Error as error:
                if not _passes(error):
                    raise to_store_error(error, self._address) from error
                if self._stopwatch() + pause_s >= until_s or self._closed.wait(pause_s):
                    raise StoreUnavailable(
                        f"{to_store_error(error, self._address)} (given up after {_PATIENCE_S:g} s)"
                    ) from error
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        """A connection for this block alone. After an error of the driver it is closed."""
        self._check_usable()
        if not self._room.acquire(timeout=_PATIENCE_S):
            raise StoreUnavailable(
                f"other calls of this process kept all {_MAX_CONNECTIONS} connections to "
                f"{self._address.where} busy for {_PATIENCE_S:g} s"
            )
        try:
            connection = self._taken() or self._connected()
            try:
                yield connection
            except BaseException as error:
                # Ours are raised in a sound transaction, which is rolled back by now.
                if isinstance(error, psycopg.Error) or not _sound(connection):
                    connection.close()
                    if isinstance(error, psycopg.Error) and _passes(error):
                        # The others were made before the trouble and may be just as broken.
                        self._drop_idle()
                else:
                    self._idle.append(connection)
                raise
            self._idle.append(connection)
        finally:
            self._room.release()
            if self._closed.is_set():
                self._drop_idle()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self.url} was opened before this process was forked: a connection must not be "
                "shared with a child; open it again in each process"
            )
        if self._closed.is_set():
            raise UsageError(f"{self.url} is closed: open it again")

    def _taken(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connected(self) -> Connection:
        connection = psycopg.Connection.connect(
            self._conninfo, autocommit=True, prepare_threshold=_PREPARE_AFTER
        )
        try:
            limits = {
                "patience_ms": int(_PATIENCE_S * 1000),
                "idle_ms": int(_IDLE_LIMIT_S * 1000),
            }
            connection.execute(_own_queries()["session"], limits)
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop_idle(self) -> None:
        while (connection := self._taken()) is not None:
            connection.close()


def _passes(error: psycopg.Error) -> bool:
    """As everywhere; and the server has ended us because we stood still in a transaction."""
    return is_transient(error) or error.sqlstate == _ENDED_WHILE_IDLE


def _sound(connection: Connection) -> bool:
    status = connection.info.transaction_status
    return not connection.closed and status is psycopg.pq.TransactionStatus.IDLE


def open_url(
    url: str,
    *,
    queries: Mapping[str, str],
    clock: Clock,  # noqa: ARG001 - the server's clock decides
    guard: str | None,
    create: bool = True,
) -> BlockingPostgres:
    """Open the database that the URL names; ``open_blocking`` calls this."""
    _prepare(url, create=create)
    return BlockingPostgres(DatabaseAddress.of(url), queries, guard)


def _prepare(url: str, *, create: bool) -> None:
    """Migrate, or check without ``create``, as the store does.

    In a thread: the caller may be inside an event loop.
    """
    failed: list[BaseException] = []

    async def opened() -> None:
        await (await postgres.open_url(url, SystemClock(), create=create)).close()

    def run() -> None:
        try:
            anyio.run(opened)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that asked
            failed.append(error)

    thread = threading.Thread(target=run, name="leasehold-migration")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
