"""The statements of a PostgreSQL sink over its table and its staging tables, each in a transaction.

A staging table is unlogged: it is empty after a crash of the server. So the rows are counted before
a commit counts as one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from leasehold.errors import BatchFailed, SinkChanged, SinkUnfit
from leasehold.spark.sinks.postgres.columns import Column, check_fit, kind_for
from leasehold.spark.sinks.postgres.copy import ATTEMPT
from leasehold.spark.sinks.postgres.target import (
    SCHEMA,
    composed,
    identifier,
    identifiers,
    stage_name,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from leasehold.spark.sinks.port import Batch
    from leasehold.spark.sinks.postgres.target import TargetTx


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
