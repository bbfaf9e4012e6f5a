"""Transactions in PostgreSQL that only the current holder of a job can commit.

Why it is safe: the epoch is raised and committed before the block begins, and compared once more
under a lock after its last statement. Whoever raises it waits for those that have compared and not
yet committed. So all that an older epoch wrote is committed before a newer block begins, and what
is not committed by then never is: also a transaction that was begun long before, and slept.

While a block runs nothing is locked on our behalf, so nobody waits for a process that stands still
in it. One that stands still between the last check and the commit is ended by the server after 5 s.
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
from leasehold.jobs.fences.token import epoch_of, refusal
from leasehold.names import job_key
from leasehold.stores.blocking import named_queries
from leasehold.stores.blocking_postgres import translated
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.driver_errors import explained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from leasehold.jobs.fences.token import HasEpoch

Connection = psycopg.Connection[Any]

_OPEN = "open"


@cache
def _queries() -> Mapping[str, bytes]:
    text = files("leasehold.jobs.fences").joinpath("fence.sql").read_text(encoding="utf-8")
    return {name: translated(query) for name, query in named_queries(text).items()}


class _StaleEpoch(Exception):
    """A higher epoch was seen."""

    def __init__(self, seen: int) -> None:
        """Keep it."""
        super().__init__(seen)
        self.seen = seen


class FencedTable:
    """Fenced transactions of one job in one database. One block at a time; any thread may ask.

    The schema ``leasehold_fence`` is made on first use. A connection that was given stays open; one
    of our own is closed by ``close``, or at the end of a ``with`` block.
    """

    def __init__(self, database: str | Connection, job: str) -> None:
        """``database``: a URL as libpq knows it, or a connection that nobody else uses meanwhile.

        ``job`` is what the epochs are of: the same name for all that write under one reservation.

        Raises:
            InvalidName: the job is no name.
            InvalidUrl: the URL can not be read.
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
        self._ours = isinstance(database, str)
        self._connection = None if isinstance(database, str) else database
        url = database if isinstance(database, str) else database.info.dsn
        self._address = DatabaseAddress.of(url)
        self._turn = threading.RLock()

    @contextmanager
    def transaction(self, epoch: int | HasEpoch) -> Iterator[psycopg.Cursor[Any]]:
        """One transaction, committed at the end of the block if no higher epoch was seen by then.

        An error in the block rolls it back and is raised as it is. So are errors of the driver
        when it commits: if the connection breaks there, the outcome is unknown.

        Raises:
            FencedWrite: a higher epoch was seen; nothing was committed. It is counted.
            StoreUnavailable, StoreUnusable: the database does not answer, or can not serve.
            UsageError: the epoch is none; the connection is in a transaction already; the block has
                ended the transaction by itself, or has gone on after a statement that failed.
        """
        number = epoch_of(epoch)
        with self._turn:
            connection = self._idle()
            try:
                self._raise_to(connection, number)
                with self._block(connection, number) as cursor:
                    yield cursor
            except _StaleEpoch as higher:
                self._ask(connection, "count_refusal")
                raise refusal(
                    f"the transaction for {self.job!r} at {self._address.where}",
                    epoch=number,
                    highest=higher.seen,
                    key=self.key,
                    made_anew="delete its row in leasehold_fence.fence",
                ) from None

    def highest_epoch(self) -> int:
        """Return the highest epoch that was shown; 0 if there was none.

        Raises:
            StoreUnavailable, StoreUnusable: the database does not answer, or can not serve.
        """
        with self._turn:
            return self._ask(self._idle(), "seen")

    def fenced_writes(self) -> int:
        """Return how many transactions were ever refused for an old epoch.

        Raises:
            StoreUnavailable, StoreUnusable: the database does not answer, or can not serve.
        """
        with self._turn:
            return self._ask(self._idle(), "refusals")

    def close(self) -> None:
        """Close the connection if it is ours. Again is harmless; the next block opens a new one."""
        with self._turn:
            if self._ours and self._connection is not None:
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
        if self._ours and (self._connection is None or self._connection.closed):
            try:
                self._connection = psycopg.connect(self._address.conninfo, autocommit=True)
            except psycopg.Error as error:
                raise explained(error, self._address) from error
        if self._connection is None or self._connection.closed:
            raise UsageError("the connection that was given is closed: give an open one")
        if self._connection.info.transaction_status is not TransactionStatus.IDLE:
            raise UsageError(
                "the connection is in a transaction already: commit it, or roll it back, before a "
                "fenced block begins; blocks can not be nested"
            )
        return self._connection

    def _raise_to(self, connection: Connection, number: int) -> None:
        """Show the epoch, for all to see, before anything is written under it."""
        seen = self._ask(connection, "seen")
        if seen < number:
            self._ask(connection, "raise_token", token=number)
            seen = self._ask(connection, "seen")
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
            # Under a snapshot an epoch that has risen since is seen in this way.
            if connection.closed or (seen := self._ask(connection, "seen")) <= number:
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
            connection.execute(_queries()["concluded"])
            if _first(connection, "still_open") == _OPEN:
                return
        raise UsageError(
            "the block has ended its transaction by a statement of its own (commit, rollback): "
            "what came before that was not fenced. Leave begin and commit to the block"
        )

    def _compare(self, connection: Connection, number: int) -> None:
        seen = _first(connection, "holds", job=self.job)
        if seen is None:
            raise UsageError(
                f"the row of {self.job!r} in leasehold_fence.fence has gone while the block ran, "
                "so nobody can tell whether it may commit; nothing was committed: run it again"
            )
        if seen > number:
            raise _StaleEpoch(seen)

    def _ask(self, connection: Connection, name: str, **values: object) -> int:
        """A statement of its own; 0 if it has no answer. Makes the tables if there are none."""
        try:
            try:
                return self._asked(connection, name, **values)
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                with connection.transaction():
                    connection.execute(_queries()["make"])
                return self._asked(connection, name, **values)
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreUnusable(
                f"the fence of {self.job!r} at {self._address.where} can not be used: "
                f"{error.diag.message_primary}; let somebody with the right to create schemas make "
                "leasehold_fence by a first fenced block, and grant this user usage of it and "
                "select, insert and update on its tables"
            ) from error
        except psycopg.Error as error:
            raise explained(error, self._address) from error

    def _asked(self, connection: Connection, name: str, **values: object) -> int:
        with connection.transaction():
            return _first(connection, name, job=self.job, **values) or 0


def _first(connection: Connection, name: str, **values: object) -> Any:
    """The first value of the answer, whatever rows the caller's connection makes."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(_queries()[name], values or None)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None
