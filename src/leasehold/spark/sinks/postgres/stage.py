"""The statements of a PostgreSQL sink over its table and its staging tables, each in a transaction.

A staging table is unlogged: it is empty after a crash of the server. So the rows are counted before
a commit counts as one.

Copying the rows of one task into a staging table. It runs on an executor.

All rows of an attempt come in one transaction and carry the attempt's id. Only those of attempts
that answered are taken later, so it does no harm if Spark runs a task twice or kills it halfway.

A row is never a Python object: each Arrow batch becomes CSV in one call, and the server reads that.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from leasehold.errors import BatchFailed, SinkChanged, SinkUnfit
from leasehold.spark.sinks.postgres.columns import Column, check_fit, kind_for
from leasehold.spark.sinks.postgres.target import (
    SCHEMA,
    composed,
    connected,
    identifier,
    identifiers,
    meaning,
    stage_name,
)
from leasehold.stores.postgres.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.types import StructType

    from leasehold.spark.sinks.port import Batch
    from leasehold.spark.sinks.postgres.target import TargetTx

ATTEMPT = "leasehold attempt"
_UTC = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What became of an attempt.

    ``refused``: why the server does not take the rows; ``away``: why it could not be asked.
    """

    attempt: str
    rows: int
    refused: str | None = None
    away: str | None = None


def copy_rows(batches: Iterable[pa.RecordBatch], *, url: str, batch: str, attempt: str) -> Copied:
    """Copy all rows and commit them. Without rows nobody is asked."""
    address = Address.of(url)
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
        found = meaning(error, address)
        if isinstance(found, SinkUnfit):
            return Copied(attempt=attempt, rows=0, refused=str(found))
        return Copied(attempt=attempt, rows=0, away=str(found))
    return Copied(attempt=attempt, rows=rows)


def to_csv(batch: pa.RecordBatch, attempt: str) -> memoryview:
    """The rows as COPY reads them: null is nothing, an empty text has quotes."""
    columns = [_plain(column) for column in batch.columns]
    columns.append(pa.repeat(pa.scalar(attempt, pa.string()), batch.num_rows))
    table = pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, ATTEMPT])
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False))
    return memoryview(sink.getvalue())


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        return to_hex(column)
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(_UTC)  # the same moments; a column without a zone shall hold UTC
    return column


def to_hex(column: pa.BinaryArray) -> pa.StringArray:
    r"""Bytes as PostgreSQL writes them, ``\x0aff``: one conversion for all of them."""
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
    """The user's table. ``key``: the columns by which rows are found again; none: only inserts."""

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


def created(tx: TargetTx, table: Table, schema: StructType) -> str:
    """The statement that makes the table for such rows."""
    columns = [
        composed("column", name=identifier(field.name), kind=_raw(kind_for(field) or "text"))
        for field in schema.fields
    ]
    if table.key:
        columns.append(composed("primary_key", key=identifiers(table.key)))
    listed = sql.SQL(", ").join(columns)
    return composed("table_make", table=table.sql, columns=listed).as_string(tx.connection)


def check_table(tx: TargetTx, table: Table, schema: StructType, *, create: bool) -> None:
    """Let the rows fit, or say why not. The table is made if it is missing and ``create`` is true.

    Raises:
        SinkUnfit: no table, or one that does not take them.
    """
    if tx.one("table_find", written=table.written) is None:
        statement = created(tx, table, schema)
        if not create:
            raise SinkUnfit(
                f"there is no table for {table.sink}: make it, with\n    "
                f"{statement.replace('%%', '%')};\nor with create=True"
            )
        tx.run("alone")
        tx.do(sql.Composed([_raw(statement)]))
    columns = [
        Column(name=name, kind=kind, base=base, is_needed=is_needed)
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


def make_stage(tx: TargetTx, table: Table, name: str, columns: Sequence[str], batch: Batch) -> None:
    """Make the staging table of a batch, with the types of the table.

    ``name`` is the batch's alone. Again is harmless, also when only the answer was lost.
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


def take(
    tx: TargetTx,
    table: Table,
    name: str,
    *,
    columns: Sequence[str],
    attempts: Sequence[str],
    expected: int,
) -> int:
    """Put the staged rows of these attempts into the table; return how many it took.

    Raises:
        BatchFailed: staged rows are gone.
        SinkChanged: the table is gone.
        SinkUnfit: the table does not take them.
    """
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


def drop_stage(tx: TargetTx, name: str) -> None:
    """Drop a staging table, or mark it if a task that nobody waits for still writes into it."""
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


def drop_old_stages(tx: TargetTx, table: Table, age_s: float) -> int:
    """Drop what dead batches have left: older than this, or under an epoch that is over."""
    dropped = 0
    for name, group, epochs, is_old in tx.all("stages", sink=table.id, age_s=age_s):
        known = {part: epoch for part, epoch, _ in tx.all("positions", sink=table.id, grp=group)}
        is_over = any(known.get(part, 0) > epoch for part, epoch in json.loads(epochs).items())
        if is_old or is_over:
            drop_stage(tx, name)
            dropped += 1
    return dropped


def _raw(text: str) -> sql.SQL:
    """A text of ours that is SQL already."""
    return sql.SQL(text)
