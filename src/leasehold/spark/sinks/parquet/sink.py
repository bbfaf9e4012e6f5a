"""A directory of Parquet files as a sink, with the manifest of the committed ones in the store.

Tasks write files that no reader sees yet; the commit is one transaction of the store's database: it
names the files, moves the positions and stores the commit. ``read_parquet`` returns complete
commits and nothing else. Files are never changed. All batches of a sink have the same columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql import types

from leasehold.clock import SystemClock, new_suffix, new_token
from leasehold.errors import BatchFailed, LeaseholdError, SinkUnfit, UsageError
from leasehold.spark import reading
from leasehold.spark.sinks.commit_ledger import CommitLedger
from leasehold.spark.sinks.directory import DELTA, refuse_incomplete, refuse_taken
from leasehold.spark.sinks.parquet.files import (
    WrittenFile,
    batch_of,
    directory_of,
    ensure_sink,
    open_manifest,
    read_pointer,
    unknown_here,
    without_secrets,
    write_files,
)
from leasehold.spark.sinks.port import Staged, Written

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from leasehold.clock import Clock
    from leasehold.spark.sinks.port import Batch, Commit, SinkPosition
    from leasehold.stores.blocking import BlockingDatabase, Tx

_PLAIN = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.StringType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)


def check_columns(schema: types.StructType, *, sink: str, partition_by: Sequence[str]) -> None:
    """Refuse rows that could not be read back unchanged."""
    wrong = []
    lower = [field.name.lower() for field in schema.fields]
    if not lower:
        wrong.append("there is no column")
    for field in schema.fields:
        if lower.count(field.name.lower()) > 1:
            wrong.append(f"{field.name!r} is there twice (upper and lower case are alike)")
        if bad := ", ".join(sorted(set(_unsupported_types(field.dataType)))):
            wrong.append(f"{field.name!r} holds {bad}, which can not be kept: cast it")
    for name in partition_by:
        found = [field for field in schema.fields if field.name == name]
        if not found:
            wrong.append(f"{name!r} is in partition_by and no column")
        elif not isinstance(found[0].dataType, _PLAIN):
            wrong.append(f"{name!r} is in partition_by and of many values: take a plain column")
    if wrong:
        raise SinkUnfit(f"these rows do not fit {sink}: {'; '.join(wrong)}. Nothing was written")


def check_same(there: types.StructType, here: types.StructType, *, sink: str) -> None:
    """Refuse rows with other columns than those of the first commit. Their order may differ."""
    if found := list(differences(there, here)):
        raise SinkUnfit(
            f"these rows do not fit {sink}: {'; '.join(found)}. All batches of a sink have the "
            "same columns: cast or rename them, or write to another directory. Nothing was written"
        )


def differences(there: types.StructType, here: types.StructType) -> Iterator[str]:
    """Yield each difference as text. Nullability is ignored."""
    held = {field.name: field.dataType.simpleString() for field in there.fields}
    given = {field.name: field.dataType.simpleString() for field in here.fields}
    for name, kind in held.items():
        if name not in given:
            yield f"{name!r} ({kind}) is missing"
        elif given[name] != kind:
            yield f"{name!r} is {kind} there and {given[name]} here"
    for name, kind in given.items():
        if name not in held:
            yield f"{name!r} ({kind}) is new"


def to_text(schema: types.StructType) -> str:
    """Return the columns as JSON, for the manifest."""
    bare = types.StructType(
        [types.StructField(field.name, field.dataType) for field in schema.fields]
    )
    return bare.json()


def from_text(text: str) -> types.StructType:
    """Return the columns that ``to_text`` wrote."""
    return types.StructType.fromJson(json.loads(text))


def quoted(name: str) -> str:
    """Return a column's name quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


def _unsupported_types(kind: types.DataType) -> Iterator[str]:
    match kind:
        case types.ArrayType():
            yield from _unsupported_types(kind.elementType)
        case types.MapType():
            yield from _unsupported_types(kind.keyType)
            yield from _unsupported_types(kind.valueType)
        case types.StructType():
            for field in kind.fields:
                yield from _unsupported_types(field.dataType)
        case _ if not isinstance(kind, _PLAIN):
            yield kind.simpleString()


Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_RESULT = "path string, rows bigint, bytes bigint"
_RESULT_ARROW = pa.schema([("path", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
_ONE_DAY = timedelta(days=1)
_GLOB = re.compile(r"([\\{}\[\]*?])")  # what Spark would take for a pattern in a path


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagedParquet:
    batch: str
    columns: StructType
    files: tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep has removed."""

    files: int
    bytes: int


class ParquetSink:
    """A sink of Parquet files. ``path``: a directory that the driver and all executors see."""

    atomic = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        store: str,
        partition_by: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        """Name the directory; nothing is touched yet.

        ``store``: the URL of the store whose database keeps the manifest: SQLite or PostgreSQL.
        ``partition_by``: columns by whose values the files are distributed to directories.

        Raises:
            UsageError: the path is a URL, or ``partition_by`` is a string.
        """
        if isinstance(partition_by, str):
            raise UsageError(
                f"partition_by is a list of columns: write partition_by=[{partition_by!r}]"
            )
        self._directory = directory_of(path)
        self._store = store
        self._partition_by = tuple(partition_by)
        self._clock = clock or SystemClock()
        self._database: BlockingDatabase | None = None
        self.name = f"parquet:{self._directory}"
        self._ledger = CommitLedger(sink="", name=self.name)

    def open(self, spark: SparkSession | None = None) -> None:
        """Open the sink. Spark is not used; ``sweep`` needs none.

        Raises:
            SinkUnfit: the directory cannot be made, or contains a Delta table.
            SinkChanged: the directory is not the one that the store knows.
            InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be opened.
        """
        del spark
        refuse_taken(self._directory, sink=self.name, other=DELTA)
        with ExitStack() as undo:
            database = open_manifest(self._store, clock=self._clock)
            undo.callback(database.close)
            sink = ensure_sink(self._directory, database, without_secrets(self._store, database))
            undo.pop_all()
        self._ledger = CommitLedger(sink=sink, name=self.name)
        self._database = database

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Raise the epochs and return what was known before."""
        return self._opened().write(lambda tx: self._ledger.fence(tx, group, epochs))

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Set the positions."""
        self._opened().write(lambda tx: self._ledger.move(tx, group, places))

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """Stage the rows of the batch."""
        columns = frame.schema
        held = self._opened().read(self._columns)
        if held is not None:
            check_same(held, columns, sink=self.name)
        check_columns(columns, sink=self.name, partition_by=self._partition_by)
        if held is not None and held.names != columns.names:
            frame = frame.select(*map(quoted, held.names))
        name = new_token()
        task = _task(str(self._directory), name, self._partition_by)
        rows = frame.mapInArrow(task, _RESULT).collect()
        files = tuple(WrittenFile(path=path, rows=n, bytes=size) for path, n, size in rows)
        self._check_visible(files, batch)
        return Staged(_StagedParquet(batch=name, columns=held or columns, files=files))

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """Commit the staged rows together with the positions.

        Raises:
            BatchFailed: its files were swept in the meantime, or one is missing or has another
                size; stage it again.
            SinkUnfit: another process was first, with other columns.
        """
        inside: _StagedParquet = staged.inside

        def step(tx: Tx) -> tuple[Written, bool]:
            committed = self._ledger.find_commit(tx, inside.batch, batch)
            if committed is not None:
                return committed, False
            self._check_not_swept(tx, inside, batch)
            sizes = ((each.path, each.bytes) for each in inside.files)
            refuse_incomplete(self.name, batch, sizes, self._size_bytes)
            self._keep_columns(tx, inside.columns)
            tx.many(
                "file_put",
                [
                    {
                        "sink": self._ledger.sink,
                        "path": each.path,
                        "id": inside.batch,
                        "rows": each.rows,
                        "bytes": each.bytes,
                    }
                    for each in inside.files
                ],
            )
            written = Written(
                rows=sum(each.rows for each in inside.files),
                bytes=sum(each.bytes for each in inside.files),
                files=len(inside.files),
            )
            self._ledger.record(tx, inside.batch, batch, written)
            return written, True

        written, is_new = self._opened().write(step)
        if not is_new:
            self.discard(staged)  # the same events were committed from other files
        return written

    def discard(self, staged: Staged) -> None:
        """Remove the staged files, unless they turn out to be committed."""
        inside: _StagedParquet = staged.inside
        with suppress(LeaseholdError, OSError):
            if self._opened().write(lambda tx: self._forbid(tx, [inside.batch])):
                for each in inside.files:
                    (self._directory / each.path).unlink(missing_ok=True)

    def commits(self, group: str) -> Iterator[Commit]:
        """Return the commits of the group, oldest first."""
        return iter(self._opened().read(lambda tx: self._ledger.commits(tx, group)))

    def sweep(self, *, older_than: timedelta = _ONE_DAY) -> Swept:
        """Remove files that were never committed, and older than this; forbid committing them.

        A driver that still holds such files gets ``BatchFailed`` at its commit and loses nothing.

        Raises:
            StoreUnavailable, StoreUnusable: nothing was removed.
        """
        limit_s = self._clock.utc_now().timestamp() - older_than.total_seconds()
        old = [
            (path, batch)
            for path in sorted(self._directory.rglob("*.parquet"))
            if (batch := batch_of(path.name)) and _modified_s(path) <= limit_s
        ]
        if not old:
            return Swept(files=0, bytes=0)

        def step(tx: Tx) -> set[str]:
            # Of a batch that was committed there may be files too that a failed task has left.
            self._forbid(tx, sorted({batch for _, batch in old}))
            return {path for (path,) in tx.all("files", sink=self._ledger.sink)}

        kept = self._opened().write(step)
        files = size = 0
        for path, _ in old:
            if str(path.relative_to(self._directory)) not in kept:
                with suppress(FileNotFoundError):  # another process sweeps too
                    found = path.stat().st_size
                    path.unlink()
                    files, size = files + 1, size + found
        return Swept(files=files, bytes=size)

    def close(self) -> None:
        """Close the sink."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    # ------------------------------------------------------------- parts

    def _opened(self) -> BlockingDatabase:
        if self._database is None:
            raise UsageError(f"{self.name} is not open: call open() first")
        return self._database

    def _forbid(self, tx: Tx, batches: Sequence[str]) -> list[str]:
        """Forbid committing these batches; return those that were not committed before."""
        uncommitted = [each for each in batches if tx.one("commit_get", id=each) is None]
        tx.many("swept_put", [{"id": each, "wall": tx.wall} for each in uncommitted])
        return uncommitted

    def _check_not_swept(self, tx: Tx, inside: _StagedParquet, batch: Batch) -> None:
        if (row := tx.one("swept_get", id=inside.batch)) is not None:
            raise BatchFailed(
                f"the files of {batch.label} were swept away at {row[0]}, before their commit: "
                f"nothing was committed to {self.name}; stage the batch again",
                ranges=tuple(str(each.range) for each in batch.shares),
            )

    def _size_bytes(self, path: str) -> int | None:
        try:
            return (self._directory / path).stat().st_size
        except FileNotFoundError:
            return None

    def _columns(self, tx: Tx) -> StructType | None:
        row = tx.one("home_get", sink=self._ledger.sink)
        return from_text(row[1]) if row and row[1] else None

    def _keep_columns(self, tx: Tx, columns: StructType) -> None:
        tx.run("columns_put", sink=self._ledger.sink, columns=to_text(columns))
        held = self._columns(tx)
        if held is not None:
            check_same(held, columns, sink=self.name)

    def _check_visible(self, files: Sequence[WrittenFile], batch: Batch) -> None:
        """Refuse a directory that is not the same for the executors and the driver."""
        for each in files:
            if not (self._directory / each.path).is_file():
                raise SinkUnfit(
                    f"a task has written {each.path} for {batch.label}, and the driver does not "
                    f"find it in {self._directory}: give a directory that the driver and all "
                    "executors share"
                )


def _task(directory: str, batch: str, partition_by: tuple[str, ...]) -> Task:
    """Return the function that runs on the executors; it holds only what can be pickled."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reading.freeze_garbage_collection()
        files = write_files(
            batches,
            directory=directory,
            batch=batch,
            attempt=new_suffix(),
            partition_by=partition_by,
        )
        columns = zip(*map(astuple, files), strict=True) if files else ((), (), ())
        arrays = [
            pa.array(list(values), field.type)
            for values, field in zip(columns, _RESULT_ARROW, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=_RESULT_ARROW)

    return write


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")  # it is gone


def read_parquet(
    spark: SparkSession, path: str | os.PathLike[str], store: str | None = None
) -> DataFrame:
    """Return the rows of all commits up to now; later commits do not show.

    ``store``: only needed where the URL in ``_leasehold.json`` lacks a password or has moved.

    Raises:
        UsageError: the directory is not a sink, or nothing was ever committed to it.
        SinkChanged: the store does not know it.
        InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be opened.
    """
    directory, columns, files = _read_manifest(path, store)
    if columns is None:
        raise UsageError(
            f"nothing was committed to {directory} yet, so its columns are not known: wait for "
            "the first commit"
        )
    if not files:
        return spark.createDataFrame([], columns)
    # As they are: no columns are to be guessed from the names of directories.
    reader = spark.read.schema(columns).option("recursiveFileLookup", "true")
    return reader.parquet(*(_GLOB.sub(r"\\\1", each) for each in files))


def committed_files(path: str | os.PathLike[str], store: str | None = None) -> list[str]:
    """Return the same files by their paths, for other programs.

    Raises:
        UsageError, SinkChanged, InvalidUrl, StoreError: see ``read_parquet``.
    """
    return _read_manifest(path, store)[2]


def _read_manifest(
    path: str | os.PathLike[str], store: str | None
) -> tuple[Path, StructType | None, list[str]]:
    directory = directory_of(path)
    pointer = read_pointer(directory)
    if pointer is None:
        raise UsageError(f"{directory} is no Parquet sink: there is no _leasehold.json in it")
    database = open_manifest(store or pointer.store, clock=SystemClock())
    try:
        home, rows = database.read(
            lambda tx: (
                tx.one("home_get", sink=pointer.sink),
                tx.all("files", sink=pointer.sink),
            )
        )
        if home is None:
            raise unknown_here(directory, pointer, database)
    finally:
        database.close()
    columns = from_text(home[1]) if home[1] else None
    return directory, columns, [str(directory / path) for (path,) in rows]
