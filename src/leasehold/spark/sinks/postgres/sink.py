"""A PostgreSQL table as a sink: rows and position in one transaction of the table's own database.

Tasks copy their rows into a staging table that nobody reads. The commit is one transaction: it
locks the positions and compares them, puts the staged rows into the table, moves the positions,
remembers the commit and drops the staging table. What it remembers lies beside the table, in the
schema ``leasehold_sink``, wherever the leases are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, TypeAlias

import psycopg
import pyarrow as pa

from leasehold.clock import new_suffix, new_token
from leasehold.errors import (
    LeaseholdError,
    SinkUnfit,
    StoreUnavailable,
    UnknownResource,
    UsageError,
)
from leasehold.spark.reading import settle
from leasehold.spark.sinks.commit_ledger import Ledger
from leasehold.spark.sinks.port import Staged, Written
from leasehold.spark.sinks.postgres.columns import check_known
from leasehold.spark.sinks.postgres.stage import (
    Copied,
    Table,
    check_table,
    copy_rows,
    drop_old_stages,
    drop_stage,
    make_stage,
    take,
)
from leasehold.spark.sinks.postgres.target import PATIENCE_S, Target, TargetTx, schema_script
from leasehold.stores.postgres.address import Address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.sinks.port import Batch, Commit, Sunk

Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ANSWER = "attempt string, rows bigint, refused string, away string"
_ANSWER_ARROW = pa.schema(
    [
        ("attempt", pa.string()),
        ("rows", pa.int64()),
        ("refused", pa.string()),
        ("away", pa.string()),
    ]
)
_OLD_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    batch: str
    columns: tuple[str, ...]
    attempts: tuple[str, ...]
    rows: int


class PostgresSink:
    """See ``Sink``."""

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
        """Nothing is asked yet.

        ``url``: the database of the table; executors connect to it too. ``table``: as in SQL, with
        or without its schema. ``key``: columns with a unique index; a row whose key is there takes
        the place of the other. ``create``: make the table for the first batch if there is none.

        Raises:
            UnknownStore: the URL can not be read.
            UsageError: ``key`` is one text.
        """
        if isinstance(key, str):
            raise UsageError(f"key is a list of columns: write key=[{key!r}]")
        self._url = url
        self._address = Address.of(url)
        self._written = table
        self._key = tuple(key or ())
        self._create = create
        self._patience_s = patience_s
        self.name = f"postgres:{self._address.url} {table}"
        self._target: Target | None = None
        self._table = Table(schema="", name=table, sink=self.name, key=self._key)
        self._ledger = Ledger(sink="", name=self.name)

    def open(self, spark: SparkSession | None = None) -> None:
        """See ``Sink``. Spark is not asked for anything."""
        del spark
        with ExitStack() as undo:
            undo.callback(self.close)
            self._connect(_make_ready)
            self._opened().write(lambda tx: drop_old_stages(tx, self._table, _OLD_S))
            undo.pop_all()

    def open_to_read(self) -> None:
        """Get ready for ``commits`` and no more. Nothing is made, and nothing removed.

        Raises:
            UnknownResource: no sink has ever written to this database.
        """
        self._connect(self._refuse_unready)

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, Sunk]:
        """See ``Sink``."""
        return self._opened().write(lambda tx: self._ledger.fence(tx, group, epochs))

    def move(self, group: str, places: Mapping[str, Sunk]) -> None:
        """See ``Sink``."""
        self._opened().write(lambda tx: self._ledger.move(tx, group, places))

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """See ``Sink``."""
        schema, name = frame.schema, new_token()
        check_known(schema, sink=self.name, key=self._key)

        def step(tx: TargetTx) -> None:
            check_table(tx, self._table, schema, create=self._create)
            make_stage(tx, self._table, name, schema.names, batch)

        self._opened().write(step)
        try:
            rows = frame.mapInArrow(_task(self._url, name), _ANSWER).collect()
            copied = [
                Copied(attempt=attempt, rows=count, refused=refused, away=away)
                for attempt, count, refused, away in rows
            ]
            self._check(copied, batch)
        except BaseException:
            self._drop(name)
            raise
        return Staged(
            _Staged(
                batch=name,
                columns=tuple(schema.names),
                attempts=tuple(each.attempt for each in copied if each.rows),
                rows=sum(each.rows for each in copied),
            )
        )

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """See ``Sink``.

        Raises:
            BatchFailed: the staged rows are gone; stage the batch again.
            SinkUnfit: the table does not take the rows; nothing was committed.
        """
        inside: _Staged = staged.inside

        def step(tx: TargetTx) -> Written:
            done = self._ledger.done(tx, inside.batch, batch)
            if done is None:
                rows = take(
                    tx,
                    self._table,
                    inside.batch,
                    columns=inside.columns,
                    attempts=inside.attempts,
                    expected=inside.rows,
                )
                done = Written(rows=rows)
                self._ledger.record(tx, inside.batch, batch, done)
            drop_stage(tx, inside.batch)
            return done

        return self._opened().write(step)

    def discard(self, staged: Staged) -> None:
        """See ``Sink``."""
        self._drop(staged.inside.batch)

    def commits(self, group: str) -> Iterator[Commit]:
        """See ``Sink``."""
        return iter(self._opened().write(lambda tx: self._ledger.commits(tx, group)))

    def close(self) -> None:
        """See ``Sink``."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    # ------------------------------------------------------------- parts

    def _opened(self) -> Target:
        if self._target is None:
            raise UsageError(f"{self.name} is not open: call open() first")
        return self._target

    def _connect(self, ready: Callable[[TargetTx], None]) -> None:
        with ExitStack() as undo:
            target = Target(self._address, patience_s=self._patience_s)
            undo.callback(target.close)
            target.write(ready)
            schema, name = target.write(self._found)
            undo.pop_all()
        self._table = Table(schema=schema, name=name, sink=self.name, key=self._key)
        self._ledger = Ledger(sink=self._table.id, name=self.name)
        self._target = target

    def _refuse_unready(self, tx: TargetTx) -> None:
        if tx.one("is_ready") != (True,):
            raise UnknownResource(
                f"no pipeline has ever written to {self.name}: look at the URL and the database"
            )

    def _found(self, tx: TargetTx) -> tuple[str, str]:
        """The schema and the name of the table, or what they will be."""
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

    def _check(self, copied: Sequence[Copied], batch: Batch) -> None:
        for each in copied:
            if each.refused:
                raise SinkUnfit(f"{batch.label} does not fit {self.name}: {each.refused}")
        for each in copied:
            if each.away:
                raise StoreUnavailable(f"a task could not write to {self.name}: {each.away}")

    def _drop(self, name: str) -> None:
        with suppress(LeaseholdError):
            self._opened().write(lambda tx: drop_stage(tx, name))


def _make_ready(tx: TargetTx) -> None:
    """Make the schema if it is not there. Who may not create one needs it made by somebody else."""
    if tx.one("is_ready") != (True,):
        tx.run("alone")
        tx.connection.execute(schema_script())


def _task(url: str, batch: str) -> Task:
    """What runs on the executors. It holds only what can be sent there."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        copied = copy_rows(batches, url=url, batch=batch, attempt=new_suffix())
        arrays = [
            pa.array([value], field.type)
            for value, field in zip(astuple(copied), _ANSWER_ARROW, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ANSWER_ARROW)

    return write
