"""The database of a PostgreSQL sink: whole transactions, retried when a connection breaks.

A step may be run again after a break, also when its commit was done and only the answer was lost:
so it must find that out, as the ledger does. Several threads may use it at the same time.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql

from leasehold.clock import SystemClock
from leasehold.errors import LeaseholdError, SinkUnfit, StoreUnavailable, StoreUnusable, UsageError
from leasehold.runtime.process_check import ProcessCheck
from leasehold.spark.sinks.commit_ledger import ledger_queries, sql_of
from leasehold.stores.blocking_postgres import Connection, PostgresTx, translated
from leasehold.stores.postgres.driver_errors import is_transient, to_store_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from leasehold.stores.postgres.address import DatabaseAddress

T = TypeVar("T")

SCHEMA = "leasehold_sink"
PATIENCE_S = 5.0
# Shorter than the patience: those that wait for a lock are to see the end of a stopped holder.
_IDLE_TIMEOUT_S = 3.0
_FIRST_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.5
_ENDED_WHILE_IDLE = "25P03"
# Rows twice in one upsert, no such unique index, a column that is always generated, other types.
_UNFIT = ("21000", "42P10", "428C9", "42804")


@cache
def queries() -> Mapping[str, bytes]:
    """Return all statements of the PostgreSQL sink, as the driver wants them."""
    both = {**ledger_queries(f"{SCHEMA}."), **sql_of("target.sql")}
    return {name: translated(text) for name, text in both.items()}


def schema_script() -> bytes:
    """Return what makes the schema."""
    return files("leasehold.spark.sinks").joinpath("sql", "target_schema.sql").read_bytes()


def composed(name: str, /, **parts: sql.Composable) -> sql.Composed:
    """Return a statement with its identifiers; execute it with parameters, even with none."""
    return sql.SQL(queries()[name].decode()).format(**parts)


def identifier(*names: str) -> sql.Identifier:
    """Return a name, or one with its schema, quoted."""
    return sql.Identifier(*(name.replace("%", "%%") for name in names))


def identifiers(names: Iterable[str]) -> sql.Composed:
    """Return a list of names."""
    return sql.SQL(", ").join(map(identifier, names))


def stage_name(batch: str) -> str:
    """Return the table with the staged rows of a batch."""
    return f"stage_{batch}"


class SinkTransaction(PostgresTx):
    """One open transaction; see ``Tx``."""

    def __init__(self, connection: Connection, now: float) -> None:
        super().__init__(connection, queries(), now)
        self.connection = connection

    def do(self, statement: sql.Composed, **values: object) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement with identifiers in it."""
        return self.connection.execute(statement, values)


class SinkDatabase:
    """A database. Connects on first use."""

    def __init__(self, address: DatabaseAddress, *, patience_s: float = PATIENCE_S) -> None:
        """``patience_s``: how long to try again, and to wait for a lock."""
        self.address = address
        self._patience_s = patience_s
        self._idle: list[Connection] = []
        self._stopwatch = SystemClock().boottime_s  # how long a call waits is real time
        self._process_check = ProcessCheck(address.url)
        self._closed = threading.Event()

    def write(self, work: Callable[[SinkTransaction], T]) -> T:
        """Run ``work`` in one transaction; it is durable on return."""
        until_s, pause_s = self._stopwatch() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                with self._borrowed() as connection, connection.transaction():
                    row = connection.execute(queries()["clock"]).fetchone()
                    return work(SinkTransaction(connection, float(row[0]) if row else 0.0))
            except psycopg.Error as error:
                if not is_transient(error) and error.sqlstate != _ENDED_WHILE_IDLE:
                    raise to_leasehold_error(error, self.address) from error
                if self._stopwatch() + pause_s >= until_s or self._closed.wait(pause_s):
                    raise StoreUnavailable(
                        f"{to_store_error(error, self.address)} (given up after "
                        f"{self._patience_s:g} s; what was asked for may have been done)"
                    ) from error
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def close(self) -> None:
        """Close what is idle now, and the rest when its call ends."""
        if self._process_check.forked:
            return  # the connections belong to the process that made them
        self._closed.set()
        self._drop_idle()

    @contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        self._process_check.check()
        if self._closed.is_set():
            raise UsageError(f"{self.address.url} is closed: open the sink again")
        connection = self._pop_idle() or self._connect()
        try:
            yield connection
        except BaseException as error:
            status = connection.info.transaction_status
            if connection.closed or status is not psycopg.pq.TransactionStatus.IDLE:
                connection.close()
                self._drop_idle()  # the others may be just as broken
            elif isinstance(error, LeaseholdError):
                self._idle.append(connection)  # rolled back, and sound
            else:
                connection.close()
            raise
        self._idle.append(connection)
        if self._closed.is_set():
            self._drop_idle()

    def _connect(self) -> Connection:
        connection = connected(self.address)
        try:
            limits = {
                "patience_ms": int(self._patience_s * 1000),
                "idle_ms": int(_IDLE_TIMEOUT_S * 1000),
            }
            connection.execute(queries()["session"], limits)
        except BaseException:
            connection.close()
            raise
        return connection

    def _pop_idle(self) -> Connection | None:
        try:
            return self._idle.pop()  # other threads may take one at the same time
        except IndexError:
            return None

    def _drop_idle(self) -> None:
        while (connection := self._pop_idle()) is not None:
            connection.close()


def connected(address: DatabaseAddress) -> Connection:
    """Return a new connection; its texts are UTF-8, as Arrow's are."""
    return psycopg.Connection.connect(address.conninfo, autocommit=True, client_encoding="UTF8")


def to_leasehold_error(error: psycopg.Error, address: DatabaseAddress) -> LeaseholdError:
    """Return the error to raise: what, why (as the server reports it), and what to do."""
    code = error.sqlstate or ""
    unfit = isinstance(error, psycopg.DataError | psycopg.IntegrityError) or code in _UNFIT
    if not unfit and code != "42501":
        return to_store_error(error, address)
    message = error.diag.message_primary or str(error)
    if code == "42501":
        return StoreUnusable(
            f"PostgreSQL at {address.where} refused: {message}; the sink's user needs the right to "
            f"insert into the table (and to update it, with key=), to use the schema {SCHEMA} and "
            "create tables in it, and on first use to create that schema"
        )
    where = (error.diag.context or "").partition("\n")[0]
    advice = "rows with the same key came twice in one batch: group by the key first; "
    return SinkUnfit(
        f"PostgreSQL at {address.where} refused the rows: {message}"
        f"{f' ({where})' if where else ''}; {advice if code == '21000' else ''}"
        "nothing was committed"
    )
