"""A PostgreSQL table as a sink: rows and position in one transaction of the table's own database.

Tasks copy their rows into a staging table that no reader uses. The commit is one transaction: it
locks and compares the positions, inserts the staged rows into the table, moves the positions,
stores the commit and drops the staging table. The ledger is in the schema ``leasehold_sink`` of the
table's database, wherever the leases are.

A staging table is unlogged: it is empty after a crash of the server. So the rows are counted before
a commit counts as one. All rows of a task attempt are copied in one transaction and carry the
attempt's id. Only attempts that answered are inserted, so Spark may run a task twice or kill it.
Each Arrow batch becomes CSV in one call; a row is never a Python object.

The first part decides whether the columns of a frame fit those of the table. It is pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv
from pyspark.sql import types

from leasehold.clock import new_suffix, new_token
from leasehold.errors import (
    BatchFailed,
    LeaseholdError,
    SinkChanged,
    SinkUnfit,
    StoreUnavailable,
    UnknownResource,
    UsageError,
)
from leasehold.spark.reading import freeze_garbage_collection
from leasehold.spark.sinks.commit_ledger import CommitLedger
from leasehold.spark.sinks.port import Staged, Written
from leasehold.spark.sinks.postgres.target import (
    PATIENCE_S,
    SCHEMA,
    SinkDatabase,
    SinkTransaction,
    composed,
    connected,
    identifier,
    identifiers,
    schema_script,
    stage_name,
    to_leasehold_error,
)
from leasehold.stores.postgres.address import DatabaseAddress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from leasehold.spark.sinks.port import Batch, Commit, SinkPosition
    from leasehold.spark.sinks.postgres.target import SinkTransaction

_WHOLE = ("int2", "int4", "int8", "numeric")
# For each Spark type: the type to create, and those (as in pg_type) into which no value is bent.
_KINDS: dict[type[types.DataType], tuple[str, tuple[str, ...]]] = {
    types.BooleanType: ("boolean", ("bool",)),
    types.ByteType: ("smallint", (*_WHOLE, "float4", "float8")),
    types.ShortType: ("smallint", (*_WHOLE, "float4", "float8")),
    types.IntegerType: ("integer", (*_WHOLE[1:], "float8")),
    types.LongType: ("bigint", _WHOLE[2:]),
    types.FloatType: ("real", ("float4", "float8")),
    types.DoubleType: ("double precision", ("float8",)),
    types.DecimalType: ("numeric", ("numeric",)),
    types.BinaryType: ("bytea", ("bytea",)),
    types.DateType: ("date", ("date", "timestamp")),
    types.TimestampType: ("timestamptz", ("timestamptz", "timestamp")),
    types.TimestampNTZType: ("timestamp", ("timestamp",)),
    types.StringType: ("text", ()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of the table. ``kind``: its SQL type; ``base``: its name in pg_type."""

    name: str
    kind: str
    base: str
    is_needed: bool


def kind_for(field: types.StructField) -> str | None:
    """Return the type for a new column; None if there is none."""
    for spark_type, (kind, _) in _KINDS.items():
        if isinstance(field.dataType, spark_type):
            if isinstance(field.dataType, types.DecimalType):
                return f"{kind}({field.dataType.precision},{field.dataType.scale})"
            return kind
    return None


def check_known(schema: types.StructType, *, sink: str, key: Sequence[str]) -> None:
    """Refuse columns that no table could have."""
    names = Counter(field.name for field in schema.fields)
    wrong = [f"{name!r} is there twice" for name, count in names.items() if count > 1]
    wrong += [] if names else ["there is no column"]
    wrong += [f"{name!r} is in key and no column" for name in key if name not in names]
    wrong += [
        f"{field.name!r} is {field.dataType.simpleString()}: write to_json(…) of it, or cast it"
        for field in schema.fields
        if kind_for(field) is None
    ]
    if wrong:
        raise _unfit(sink, wrong)


def check_fit(schema: types.StructType, columns: Sequence[TableColumn], *, sink: str) -> None:
    """Refuse a frame whose rows the table could not take unchanged."""
    if wrong := list(differences(schema, columns)):
        raise _unfit(sink, wrong)


def differences(schema: types.StructType, columns: Sequence[TableColumn]) -> Iterator[str]:
    """Yield each difference as text. The order of columns is ignored."""
    there = {column.name: column for column in columns}
    given = {field.name for field in schema.fields}
    for field in schema.fields:
        shown = field.dataType.simpleString()
        if field.name not in there:
            yield f"the table has no column {field.name!r} ({shown})"
        elif not _fits(field, there[field.name]):
            column = there[field.name]
            yield f"{field.name!r} is {column.kind} in the table and {shown} here: cast it"
    for column in columns:
        if column.is_needed and column.name not in given:
            yield f"{column.name!r} ({column.kind}) may not be null, has no default and is missing"


def _fits(field: types.StructField, column: TableColumn) -> bool:
    if isinstance(field.dataType, types.StringType):
        return column.base != "bytea"  # the server reads each type from its text
    return any(
        isinstance(field.dataType, spark_type) and column.base in bases
        for spark_type, (_, bases) in _KINDS.items()
    )


def _unfit(sink: str, wrong: Sequence[str]) -> SinkUnfit:
    return SinkUnfit(f"these rows do not fit {sink}: {'; '.join(wrong)}. Nothing was written")


ATTEMPT = "leasehold attempt"
_UTC = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """The result of an attempt.

    ``refused``: why the server does not take the rows; ``away``: why it did not answer.
    """

    attempt: str
    rows: int
    refused: str | None = None
    away: str | None = None


def copy_rows(
    batches: Iterable[pa.RecordBatch], *, url: str, batch: str, attempt: str
) -> CopyResult:
    """Copy all rows and commit them. Without rows the server is not asked."""
    address = DatabaseAddress.of(url)
    rows = 0
    try:
        with ExitStack() as stack:
            copy: psycopg.Copy | None = None
            for each in batches:
                if not each.num_rows:
                    continue
                if copy is None:
                    connection = stack.enter_context(connected(address))
                    stack.enter_context(connection.transaction())
                    cursor = stack.enter_context(connection.cursor())
                    statement = composed(
                        "copy",
                        stage=sql.Identifier(stage_name(batch)),
                        columns=sql.SQL(", ").join(map(sql.Identifier, each.schema.names)),
                        attempt=sql.Identifier(ATTEMPT),
                    )
                    copy = stack.enter_context(cursor.copy(statement))
                copy.write(to_csv(each, attempt))
                rows += each.num_rows
    except psycopg.Error as error:
        found = to_leasehold_error(error, address)
        if isinstance(found, SinkUnfit):
            return CopyResult(attempt=attempt, rows=0, refused=str(found))
        return CopyResult(attempt=attempt, rows=0, away=str(found))
    return CopyResult(attempt=attempt, rows=rows)


def to_csv(batch: pa.RecordBatch, attempt: str) -> memoryview:
    """Return the rows as COPY reads them: null is nothing, an empty text has quotes."""
    columns = [_csv_column(column) for column in batch.columns]
    columns.append(pa.repeat(pa.scalar(attempt, pa.string()), batch.num_rows))
    table = pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, ATTEMPT])
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False))
    return memoryview(sink.getvalue())


def _csv_column(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        return to_hex(column)
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(_UTC)  # the same moments; a column without a zone shall hold UTC
    return column


def to_hex(column: pa.BinaryArray) -> pa.StringArray:
    r"""Return bytes as PostgreSQL writes them, ``\x0aff``: one conversion for all of them."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    inside = b"" if data is None else memoryview(data)[offsets[0] : offsets[-1]].hex().encode()
    moved = ((offsets - offsets[0]) * 2).astype(np.int32)
    text = pa.StringArray.from_buffers(len(column), pa.py_buffer(moved), pa.py_buffer(inside))
    marked = pc.binary_join_element_wise("\\x", text, "")
    return pc.if_else(column.is_valid(), marked, pa.scalar(None, pa.string()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The user's table. ``key``: the columns that identify a row; none: only inserts."""

    schema: str
    name: str
    sink: str
    key: tuple[str, ...]

    @property
    def id(self) -> str:
        """As the ledger knows it."""
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> sql.Identifier:
        """Quoted, with its schema."""
        return identifier(self.schema, self.name)

    @property
    def written(self) -> str:
        """Quoted, as a text that the server can read."""
        return sql.Identifier(self.schema, self.name).as_string(None)


def create_statement(tx: SinkTransaction, table: Table, schema: StructType) -> str:
    """Return the statement that creates the table for such rows."""
    columns = [
        composed("column", name=identifier(field.name), kind=_raw(kind_for(field) or "text"))
        for field in schema.fields
    ]
    if table.key:
        columns.append(composed("primary_key", key=identifiers(table.key)))
    listed = sql.SQL(", ").join(columns)
    return composed("table_make", table=table.sql, columns=listed).as_string(tx.connection)


def check_table(tx: SinkTransaction, table: Table, schema: StructType, *, create: bool) -> None:
    """Refuse rows that do not fit. With ``create``, create a missing table."""
    if tx.one("table_find", written=table.written) is None:
        statement = create_statement(tx, table, schema)
        if not create:
            raise SinkUnfit(
                f"there is no table for {table.sink}: make it, with\n    "
                f"{statement.replace('%%', '%')};\nor with create=True"
            )
        tx.run("alone")
        tx.do(sql.Composed([_raw(statement)]))
    columns = [
        TableColumn(name=name, kind=kind, base=base, is_needed=is_needed)
        for name, kind, base, is_needed in tx.all("table_columns", written=table.written)
    ]
    check_fit(schema, columns, sink=table.sink)
    if table.key and set(table.key) not in [
        set(names) for (names,) in tx.all("table_keys", written=table.written)
    ]:
        index = composed("unique_index", table=table.sql, key=identifiers(table.key))
        raise SinkUnfit(
            f"{table.sink} has no unique index on its key ({', '.join(table.key)}): make one, "
            f"with {index.as_string(tx.connection).replace('%%', '%')}"
        )


def make_stage(
    tx: SinkTransaction, table: Table, name: str, columns: Sequence[str], batch: Batch
) -> None:
    """Create the staging table of a batch, with the types of the table.

    ``name`` is unique to the batch. Safe to call twice, also when only the answer was lost.
    """
    epochs = {each.range.partition: each.epoch for each in batch.shares}
    tx.run("stage_put", id=name, sink=table.id, grp=batch.group, epochs=json.dumps(epochs))
    tx.do(
        composed(
            "stage_make",
            stage=identifier(stage_name(name)),
            columns=identifiers(columns),
            attempt=identifier(ATTEMPT),
            table=table.sql,
        )
    )


def insert_staged(
    tx: SinkTransaction,
    table: Table,
    name: str,
    *,
    columns: Sequence[str],
    attempts: Sequence[str],
    expected: int,
) -> int:
    """Insert the staged rows of these attempts into the table; return how many it took."""
    if not expected:
        return 0
    stage = {"stage": identifier(stage_name(name)), "attempt": identifier(ATTEMPT)}
    written = sql.Identifier(SCHEMA, stage_name(name)).as_string(None)
    if tx.one("stage_is_there", written=written) != (True,):
        raise BatchFailed(f"the staging table of {table.sink} was dropped: stage the batch again")
    parts = {**stage, "table": table.sql, "columns": identifiers(columns)}
    if table.key:
        changed = [each for each in columns if each not in table.key] or list(table.key)
        parts["key"] = identifiers(table.key)
        changes = [composed("change", name=identifier(each)) for each in changed]
        parts["changes"] = sql.SQL(", ").join(changes)
    statement = composed("take_by_key" if table.key else "take", **parts)
    try:
        taken = tx.do(statement, attempts=list(attempts)).rowcount
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise SinkChanged(
            f"{table.sink} is not as it was when the rows were staged "
            f"({error.diag.message_primary}): nothing was committed. Bring the table back"
        ) from error
    if taken != expected:
        # Triggers and rules of the table may skip rows; but none may be missing in the stage.
        row = tx.do(composed("stage_count", **stage), attempts=list(attempts)).fetchone()
        found = row[0] if row else 0
        if found != expected:
            raise BatchFailed(
                f"{expected} rows were staged for {table.sink} and {found} are there: the server "
                "was restarted after a crash, which empties staging tables. Nothing was "
                "committed; stage the batch again"
            )
    return taken


def drop_stage(tx: SinkTransaction, name: str) -> None:
    """Drop a staging table, or mark it if an abandoned task is still writing into it."""
    stage = identifier(stage_name(name))
    try:
        with tx.connection.transaction():
            tx.do(composed("stage_lock", stage=stage))
            tx.do(composed("stage_drop", stage=stage))
            tx.run("stage_forget", id=name)
    except psycopg.errors.LockNotAvailable:
        tx.run("stage_done", id=name)
    except psycopg.errors.UndefinedTable:
        tx.run("stage_forget", id=name)


def drop_old_stages(tx: SinkTransaction, table: Table, age_s: float) -> int:
    """Drop what crashed batches have left: older than this, or under an epoch that is over."""
    dropped = 0
    for name, group, epochs, is_old in tx.all("stages", sink=table.id, age_s=age_s):
        known = {part: epoch for part, epoch, _ in tx.all("positions", sink=table.id, grp=group)}
        is_over = any(known.get(part, 0) > epoch for part, epoch in json.loads(epochs).items())
        if is_old or is_over:
            drop_stage(tx, name)
            dropped += 1
    return dropped


def _raw(text: str) -> sql.SQL:
    """Return internal text that is SQL already."""
    return sql.SQL(text)


Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_RESULT = "attempt string, rows bigint, refused string, away string"
_RESULT_ARROW = pa.schema(
    [
        ("attempt", pa.string()),
        ("rows", pa.int64()),
        ("refused", pa.string()),
        ("away", pa.string()),
    ]
)
_OLD_STAGE_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagedRows:
    batch: str
    columns: tuple[str, ...]
    attempts: tuple[str, ...]
    rows: int


class PostgresSink:
    """A sink that writes to a PostgreSQL table."""

    atomic = True

    def __init__(
        self,
        url: str,
        table: str,
        *,
        key: Sequence[str] | None = None,
        create: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Name the table; the server is not asked yet.

        ``url``: the database of the table; executors connect to it too. ``table``: as in SQL, with
        or without its schema. ``key``: columns with a unique index; a row replaces the one with the
        same key. ``create``: create the table for the first batch if there is none.

        Raises:
            InvalidUrl: the URL is not valid.
            UsageError: ``key`` is a string.
        """
        if isinstance(key, str):
            raise UsageError(f"key is a list of columns: write key=[{key!r}]")
        self._url = url
        self._address = DatabaseAddress.of(url)
        self._written = table
        self._key = tuple(key or ())
        self._create = create
        self._patience_s = patience_s
        self.name = f"postgres:{self._address.url} {table}"
        self._target: SinkDatabase | None = None
        self._table = Table(schema="", name=table, sink=self.name, key=self._key)
        self._ledger = CommitLedger(sink="", name=self.name)

    def open(self, spark: SparkSession | None = None) -> None:
        """Open the sink. Spark is not used."""
        del spark
        with ExitStack() as undo:
            undo.callback(self.close)
            self._connect(_ensure_schema)
            self._opened().write(lambda tx: drop_old_stages(tx, self._table, _OLD_STAGE_S))
            undo.pop_all()

    def open_to_read(self) -> None:
        """Open the sink only for ``commits``. Nothing is created or removed.

        Raises:
            UnknownResource: no sink has ever written to this database.
        """
        self._connect(self._refuse_unready)

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Raise the epochs and return what was known before."""
        return self._opened().write(lambda tx: self._ledger.fence(tx, group, epochs))

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Set the positions."""
        self._opened().write(lambda tx: self._ledger.move(tx, group, places))

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """Stage the rows of the batch."""
        schema, name = frame.schema, new_token()
        check_known(schema, sink=self.name, key=self._key)

        def step(tx: SinkTransaction) -> None:
            check_table(tx, self._table, schema, create=self._create)
            make_stage(tx, self._table, name, schema.names, batch)

        self._opened().write(step)
        try:
            rows = frame.mapInArrow(_task(self._url, name), _RESULT).collect()
            results = [
                CopyResult(attempt=attempt, rows=count, refused=refused, away=away)
                for attempt, count, refused, away in rows
            ]
            self._check(results, batch)
        except BaseException:
            self._drop(name)
            raise
        return Staged(
            _StagedRows(
                batch=name,
                columns=tuple(schema.names),
                attempts=tuple(each.attempt for each in results if each.rows),
                rows=sum(each.rows for each in results),
            )
        )

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """Commit the staged rows together with the positions.

        Raises:
            BatchFailed: the staged rows are gone; stage the batch again.
            SinkUnfit: the table does not take the rows; nothing was committed.
        """
        inside: _StagedRows = staged.inside

        def step(tx: SinkTransaction) -> Written:
            committed = self._ledger.find_commit(tx, inside.batch, batch)
            if committed is None:
                rows = insert_staged(
                    tx,
                    self._table,
                    inside.batch,
                    columns=inside.columns,
                    attempts=inside.attempts,
                    expected=inside.rows,
                )
                committed = Written(rows=rows)
                self._ledger.record(tx, inside.batch, batch, committed)
            drop_stage(tx, inside.batch)
            return committed

        return self._opened().write(step)

    def discard(self, staged: Staged) -> None:
        """Remove the staged rows."""
        self._drop(staged.inside.batch)

    def commits(self, group: str) -> Iterator[Commit]:
        """Return the commits of the group, oldest first."""
        return iter(self._opened().write(lambda tx: self._ledger.commits(tx, group)))

    def close(self) -> None:
        """Close the sink."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    # ------------------------------------------------------------- parts

    def _opened(self) -> SinkDatabase:
        if self._target is None:
            raise UsageError(f"{self.name} is not open: call open() first")
        return self._target

    def _connect(self, ready: Callable[[SinkTransaction], None]) -> None:
        with ExitStack() as undo:
            target = SinkDatabase(self._address, patience_s=self._patience_s)
            undo.callback(target.close)
            target.write(ready)
            schema, name = target.write(self._table_name)
            undo.pop_all()
        self._table = Table(schema=schema, name=name, sink=self.name, key=self._key)
        self._ledger = CommitLedger(sink=self._table.id, name=self.name)
        self._target = target

    def _refuse_unready(self, tx: SinkTransaction) -> None:
        if tx.one("is_ready") != (True,):
            raise UnknownResource(
                f"no pipeline has ever written to {self.name}: look at the URL and the database"
            )

    def _table_name(self, tx: SinkTransaction) -> tuple[str, str]:
        """Return the schema and the name of the table, or what they will be."""
        try:
            parts, current = tx.one("table_parts", written=self._written) or ([], None)
        except psycopg.DataError as error:
            raise SinkUnfit(
                f"{self._written!r} is no name of a table ({error.diag.message_primary}): write it "
                'as in SQL, such as delays, reports.delays or "My Delays"'
            ) from error
        row = tx.one("table_find", written=self._written)
        if row is not None:
            return str(row[0]), str(row[1])
        schema = parts[-2] if len(parts) > 1 else current or "public"
        return str(schema), str(parts[-1])

    def _check(self, results: Sequence[CopyResult], batch: Batch) -> None:
        for each in results:
            if each.refused:
                raise SinkUnfit(f"{batch.label} does not fit {self.name}: {each.refused}")
        for each in results:
            if each.away:
                raise StoreUnavailable(f"a task could not write to {self.name}: {each.away}")

    def _drop(self, name: str) -> None:
        with suppress(LeaseholdError):
            self._opened().write(lambda tx: drop_stage(tx, name))


def _ensure_schema(tx: SinkTransaction) -> None:
    """Create the schema if it does not exist; a user without that right needs it created before."""
    if tx.one("is_ready") != (True,):
        tx.run("alone")
        tx.connection.execute(schema_script())


def _task(url: str, batch: str) -> Task:
    """Return the function that runs on the executors; it holds only what can be pickled."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_garbage_collection()
        results = copy_rows(batches, url=url, batch=batch, attempt=new_suffix())
        arrays = [
            pa.array([value], field.type)
            for value, field in zip(astuple(results), _RESULT_ARROW, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_RESULT_ARROW)

    return write
