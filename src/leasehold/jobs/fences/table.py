"""Transactions in PostgreSQL that only the current holder of a job can commit.

Why it is safe: the epoch is raised and committed before the block begins, and compared again under
a lock after its last statement. Raising it waits for those that have compared and not yet
committed. So everything that an older epoch wrote is committed before a newer block begins; what is
not committed by then never is, not even by a transaction that was paused since long before.

While a block runs Leasehold locks nothing, so no process waits for one that is paused in it. One
that is paused between the last check and the commit is ended by the server after 5 s.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from leasehold.errors import StoreUnusable, UsageError
from leasehold.jobs.fences.epoch import epoch_number, fenced_write
from leasehold.names import job_key
from leasehold.stores.blocking import named_queries
from leasehold.stores.blocking_postgres import translated
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.driver_errors import to_store_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from leasehold.jobs.fences.epoch import HasEpoch

Connection = psycopg.Connection[Any]

_OPEN = "open"


@cache
def _queries() -> Mapping[str, bytes]:
    text = files("leasehold.jobs.fences").joinpath("fence.sql").read_text(encoding="utf-8")
    return {name: translated(query) for name, query in named_queries(text).items()}


class _StaleEpoch(Exception):
    """A higher epoch was seen."""

    def __init__(self, seen: int) -> None:
        super().__init__(seen)
        self.seen = seen


class FencedTable:
    """Fenced transactions of one job in one database. One block at a time, from any thread.

    The schema ``leasehold_fence`` is created on first use. A connection that was passed in stays
    open; its own is closed by ``close``, or at the end of a ``with`` block.
    """

    def __init__(self, database: str | Connection, job: str) -> None:
        """``database`` is a libpq URL, or a connection that is not used elsewhere meanwhile.

        ``job`` names whose epochs these are: the same name for all writers under one reservation.

        Raises:
            InvalidName: the job is not a valid name.
            InvalidUrl: the URL cannot be read.
            UsageError: it is neither a URL nor a connection that blocks.
        """
        given: object = database
        if not isinstance(given, str | psycopg.Connection):
            raise UsageError(
                "give a URL such as postgresql://user@host/database, or a psycopg.Connection, "
                f"not {given!r}"
            )
        self.job = job
        self.key = job_key(job)
        self._owns_connection = isinstance(database, str)
        self._connection = None if isinstance(database, str) else database
        url = database if isinstance(database, str) else database.info.dsn
        self._address = DatabaseAddress.of(url)
        self._lock = threading.RLock()

    @contextmanager
    def transaction(self, epoch: int | HasEpoch) -> Iterator[psycopg.Cursor[Any]]:
        """Run one transaction; it commits at the end of the block if no higher epoch was seen.

        An error in the block rolls it back and is raised as it is. So are errors of the driver
        when it commits: if the connection breaks there, the outcome is unknown.

        Raises:
            FencedWrite: a higher epoch was seen; nothing was committed. The store counts it.
            StoreUnavailable, StoreUnusable: the database does not answer, or cannot serve.
            UsageError: the epoch is not valid; the connection is in a transaction already; the
                block has ended the transaction, or continued after a statement that failed.
        """
        number = epoch_number(epoch)
        with self._lock:
            connection = self._idle()
            try:
                self._raise_to(connection, number)
                with self._block(connection, number) as cursor:
                    yield cursor
            except _StaleEpoch as higher:
                self._query(connection, "count_refusal")
                raise fenced_write(
                    f"the transaction for {self.job!r} at {self._address.where}",
                    epoch=number,
                    highest=higher.seen,
                    key=self.key,
                    if_recreated="delete its row in leasehold_fence.fence",
                ) from None

    def highest_epoch(self) -> int:
        """Return the highest epoch so far; 0 if there was none.

        Raises:
            StoreUnavailable, StoreUnusable: the database does not answer, or cannot serve.
        """
        with self._lock:
            return self._query(self._idle(), "seen")

    def fenced_writes(self) -> int:
        """Return how many transactions were ever refused for an old epoch.

        Raises:
            StoreUnavailable, StoreUnusable: the database does not answer, or cannot serve.
        """
        with self._lock:
            return self._query(self._idle(), "refusals")

    def close(self) -> None:
        """Close its own connection. Safe to call twice; the next block opens a new one."""
        with self._lock:
            if self._owns_connection and self._connection is not None:
                self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ steps

    def _idle(self) -> Connection:
        if self._owns_connection and (self._connection is None or self._connection.closed):
            try:
                self._connection = psycopg.connect(self._address.conninfo, autocommit=True)
                self._connection.execute(_queries()["session"])
            except psycopg.Error as error:
                raise to_store_error(error, self._address) from error
        if self._connection is None or self._connection.closed:
            raise UsageError("the connection that was given is closed: give an open one")
        if self._connection.info.transaction_status is not TransactionStatus.IDLE:
            raise UsageError(
                "the connection is in a transaction already: commit it, or roll it back, before a "
                "fenced block begins; blocks can not be nested"
            )
        return self._connection

    def _raise_to(self, connection: Connection, number: int) -> None:
        """Raise the epoch, and commit that, before anything is written under it."""
        seen = self._query(connection, "seen")
        if seen < number:
            self._query(connection, "raise_token", token=number)
            seen = self._query(connection, "seen")
        if seen > number:
            raise _StaleEpoch(seen)

    @contextmanager
    def _block(self, connection: Connection, number: int) -> Iterator[psycopg.Cursor[Any]]:
        try:
            with connection.transaction():
                connection.execute(_queries()["began"])
                with connection.cursor() as cursor:
                    yield cursor
                self._conclude(connection)
                self._compare(connection, number)
        except psycopg.errors.SerializationFailure:
            # Under a snapshot, an epoch that was raised since shows as this error.
            if connection.closed or (seen := self._query(connection, "seen")) <= number:
                raise
            raise _StaleEpoch(seen) from None

    def _conclude(self, connection: Connection) -> None:
        status = connection.info.transaction_status
        if status is TransactionStatus.INERROR:
            raise UsageError(
                "a statement of this block has failed, so it can not be committed, and the error "
                "was caught in the block; nothing was committed. Put 'with "
                "cursor.connection.transaction():' around a statement that may fail"
            )
        if status is TransactionStatus.INTRANS:
            connection.execute(_queries()["durable"])
            connection.execute(_queries()["concluded"])
            if _first_value(connection, "still_open") == _OPEN:
                return
        raise UsageError(
            "the block has ended its transaction by a statement of its own (commit, rollback): "
            "what came before that was not fenced. Leave begin and commit to the block"
        )

    def _compare(self, connection: Connection, number: int) -> None:
        seen = _first_value(connection, "holds", job=self.job)
        if seen is None:
            raise UsageError(
                f"the row of {self.job!r} in leasehold_fence.fence has gone while the block ran, "
                "so nobody can tell whether it may commit; nothing was committed: run it again"
            )
        if seen > number:
            raise _StaleEpoch(seen)

    def _query(self, connection: Connection, name: str, **values: object) -> int:
        """Run one statement; 0 if it returns no row. Create the tables if there are none."""
        try:
            try:
                return self._query_once(connection, name, **values)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                with connection.transaction():
                    connection.execute(_queries()["make"])
                return self._query_once(connection, name, **values)
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreUnusable(
                f"the fence of {self.job!r} at {self._address.where} can not be used: "
                f"{error.diag.message_primary}; let somebody with the right to create schemas make "
                "leasehold_fence by a first fenced block, and grant this user usage of it and "
                "select, insert and update on its tables"
            ) from error
        except psycopg.Error as error:
            raise to_store_error(error, self._address) from error

    def _query_once(self, connection: Connection, name: str, **values: object) -> int:
        with connection.transaction():
            if name == "raise_token":
                connection.execute(_queries()["durable"])
            return _first_value(connection, name, job=self.job, **values) or 0


def _first_value(connection: Connection, name: str, **values: object) -> Any:
    """Return the first value of the answer, whatever row factory the connection has."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(_queries()[name], values or None)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None
