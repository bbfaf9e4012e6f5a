"""The rows of a PostgreSQL table as an audit sees them: all of one moment, and nothing is changed.

The driver holds a snapshot of the database, and the tasks read pages of the table in it: so they
see what the driver saw, whatever is committed meanwhile. Where the rows carry no event only their
number is asked for. No password is ever part of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias

import psycopg
import pyarrow as pa
from psycopg import sql

from leasehold.errors import LeaseholdError, StoreUnusable, UnknownResource
from leasehold.spark.audit.rows import NUMBER, PARTITION
from leasehold.spark.sinks.postgres.target import connected, identifier
from leasehold.stores.blocking import named_queries
from leasehold.stores.blocking_postgres import Connection, translated
from leasehold.stores.postgres.driver_errors import explained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.stores.postgres.address import Address

Task: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_COLUMNS = "partition string, sequence_number bigint"
_ARROW = pa.schema([(PARTITION, pa.string()), (NUMBER, pa.int64())])
_CHUNK_ROWS = 50_000
_TASK_PAGES = 8192  # 64 MiB
_BEYOND = "(4294967294,65535)"  # no row lies further on
_PATIENCE_MS = 5000
_NO_RIGHT = "42501"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMoment:
    """A table at one moment, which lasts as long as the stack it was opened with.

    Attributes:
        columns: the names of its columns.
        keys: the columns of each index by which a row could take the place of another.
        pages: how many it had; None if it is not one table in one piece.
    """

    address: Address
    schema: str
    name: str
    snapshot: str
    columns: frozenset[str]
    keys: tuple[tuple[str, ...], ...]
    pages: int | None
    connection: Connection

    @property
    def numbered(self) -> bool:
        """Whether the rows carry the partition and the number of their event."""
        return {PARTITION, NUMBER} <= self.columns

    @property
    def replaced(self) -> str:
        """Why rows may rightly be fewer than were written; empty if they may not.

        A key that holds the event keeps the rows of different events apart.
        """
        for key in self.keys:
            if not {PARTITION, NUMBER} <= set(key):
                return (
                    f"the table has a unique key ({', '.join(key)}): a later row may have taken "
                    "the place of an earlier one"
                )
        return ""

    def count(self) -> int:
        """How many rows there are."""
        statement = _composed("count", table=identifier(self.schema, self.name))
        with _told(self.address, self.name):
            row = self.connection.execute(statement).fetchone()
        return int(row[0]) if row else 0

    def shares(self, task_pages: int = _TASK_PAGES) -> list[tuple[str, str] | None]:
        """What each task reads: between two places of the table; None: all of it."""
        if self.pages is None:
            return [None]
        cuts = [f"({page},0)" for page in range(0, max(self.pages, 1), task_pages)]
        return list(zip(cuts, [*cuts[1:], _BEYOND], strict=True))

    def reader(self, shares: list[tuple[str, str] | None]) -> Task:
        """What runs on the executors, over the numbers of the shares."""
        address, schema, name, snapshot = self.address, self.schema, self.name, self.snapshot

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from _share(address, (schema, name), snapshot, shares[number])

        return read

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows: with the event of each, or else only as many as there are."""
        if not self.numbered:
            return spark.range(self.count())
        shares = self.shares()
        numbers = spark.range(0, len(shares), 1, len(shares))
        return numbers.mapInArrow(self.reader(shares), _COLUMNS)


def table_moment(address: Address, schema: str, name: str, *, until: ExitStack) -> TableMoment:
    """The table as it is now. ``until`` lets it go.

    Raises:
        UnknownResource: there is no such table.
        StoreUnusable: the user may not read it, or not all of its rows.
        StoreUnavailable: there is no answer.
    """
    written = sql.Identifier(schema, name).as_string(None)
    with _told(address, name):
        connection = _begun(address, until)
        snapshot = connection.execute(_queries()["snapshot_export"]).fetchone()
        shape = connection.execute(_queries()["shape"], {"written": written}).fetchone()
        if shape is None or snapshot is None:
            raise UnknownResource(
                f"there is no table {written} at {address.where}: it was dropped or renamed, or "
                "the user may not use its schema"
            )
        connection.execute(_composed("probe", table=identifier(schema, name)))
        keys = connection.execute(_queries()["keys"], {"written": written}).fetchall()
    return TableMoment(
        address=address,
        schema=schema,
        name=name,
        snapshot=snapshot[0],
        columns=frozenset(shape[1]),
        keys=tuple(tuple(key) for (key,) in keys),
        pages=shape[0],
        connection=connection,
    )


def _share(
    address: Address, table: tuple[str, str], snapshot: str, share: tuple[str, str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of one share, in the snapshot, a chunk at a time."""
    names = {
        "table": identifier(*table),
        "partition": identifier(PARTITION),
        "number": identifier(NUMBER),
    }
    with ExitStack() as stack, _told(address, table[1]):
        connection = _begun(address, stack, snapshot)
        cursor = stack.enter_context(connection.cursor(name="leasehold_audit"))
        if share is None:
            cursor.execute(_composed("rows", **names))
        else:
            cursor.execute(_composed("rows_of_pages", **names), {"low": share[0], "high": share[1]})
        while rows := cursor.fetchmany(_CHUNK_ROWS):
            arrays = zip(*rows, strict=True)
            columns = [
                pa.array(each, field.type) for each, field in zip(arrays, _ARROW, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _begun(address: Address, until: ExitStack, snapshot: str = "") -> Connection:
    """A connection in a transaction that only reads; closing it ends both."""
    connection = connected(address)
    until.callback(connection.close)
    connection.execute(_queries()["begin"])
    if snapshot:  # before anything else is asked in it
        connection.execute(_composed("snapshot_import", snapshot=sql.Literal(snapshot)))
    connection.execute(_queries()["session"], {"patience_ms": _PATIENCE_MS})
    return connection


@contextmanager
def _told(address: Address, table: str) -> Iterator[None]:
    """What the driver raises, in our words."""
    try:
        yield
    except psycopg.Error as error:
        raise _meaning(error, address, table) from error


def _meaning(error: psycopg.Error, address: Address, table: str) -> LeaseholdError:
    if error.sqlstate != _NO_RIGHT:
        return explained(error, address)
    words = error.diag.message_primary or "permission denied"
    return StoreUnusable(
        f"PostgreSQL at {address.where} does not let all rows of {table} be read: {words}; audit "
        "as a user who has the right to read it, and from whom no policy hides rows"
    )


def _composed(name: str, /, **parts: sql.Composable) -> sql.Composed:
    return sql.SQL(_queries()[name].decode()).format(**parts)


@cache
def _queries() -> Mapping[str, bytes]:
    text = files(__package__).joinpath("table_rows.sql").read_text(encoding="utf-8")
    return {name: translated(query) for name, query in named_queries(text).items()}
