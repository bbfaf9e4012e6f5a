"""The data files of a Delta table, written by Spark's tasks and invisible before the commit.

Each attempt of a task has its own file names. Spark returns the files of one attempt for each task;
the files of other attempts, failed jobs and killed executors are named nowhere, and swept later.
Returned files are complete and synced.

Readers skip files by their statistics, which come from the Parquet footer. A bound may be too wide
and never too narrow. Long text, and numbers with a fraction (NaN is above all bounds for Spark and
in none for Parquet), have none.
"""

from __future__ import annotations

import json
import struct
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from leasehold.errors import StoreUnavailable
from leasehold.spark.reading import freeze_garbage_collection
from leasehold.spark.sinks.directory import volume_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from leasehold.spark.sinks.delta.storage import Storage

_MAX_COLUMNS = 32
_MAX_TEXT_CHARS = 64
_MILLISECOND = timedelta(milliseconds=1)


def stats_of(footer: Any) -> str:
    """Return the statistics of the file with this footer (a ``FileMetaData``), as JSON."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index, name in _flat_columns(footer):
        parts = [footer.row_group(i).column(index).statistics for i in range(footer.num_row_groups)]
        if any(part is None for part in parts):
            continue
        if all(part.has_null_count for part in parts):
            nulls[name] = sum(part.null_count for part in parts)
        parts = [part for part in parts if part.num_values]
        if not parts or not all(part.has_min_max for part in parts):
            continue
        low = _bound(min((part.min for part in parts), key=_order), up=False)
        high = _bound(max((part.max for part in parts), key=_order), up=True)
        if low is not None and high is not None:
            lows[name], highs[name] = low, high
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": nulls,
        }
    )


def _flat_columns(footer: Any) -> Iterator[tuple[int, str]]:
    """Yield the first columns that are not nested."""
    for index in range(min(footer.num_columns, _MAX_COLUMNS)):
        column = footer.schema.column(index)
        if column.path == column.name and column.max_repetition_level == 0:
            yield index, column.name


def _order(value: Any) -> Any:
    return value if not isinstance(value, str) else value.encode("utf-8")


def _bound(value: Any, *, up: bool) -> Any:
    """Return the value as Delta writes it; None if it is of a kind that has no bound."""
    match value:
        case bool():
            return None
        case int():
            return value
        case str():
            return value if len(value) <= _MAX_TEXT_CHARS else None
        case datetime():
            return _timestamp_bound(value, up=up)
        case date():
            return value.isoformat()
        case _:
            return None


def _timestamp_bound(value: datetime, *, up: bool) -> str | None:
    """Return milliseconds, as Delta keeps them: cut off below, rounded up above."""
    rest = timedelta(microseconds=value.microsecond % 1000)
    try:
        cut = value - rest + (_MILLISECOND if up and rest else timedelta(0))
    except OverflowError:
        return None
    zone = "" if value.tzinfo is None else "Z"
    if cut.tzinfo is not None:
        cut = cut.astimezone(UTC).replace(tzinfo=None)
    return cut.isoformat(timespec="milliseconds") + zone


PREFIX = "part-leasehold-"
RESULT = "written string"
# Half the bytes of snappy for 1.2 times its CPU on events of JSON.
_COMPRESSION, _LEVEL = "zstd", 1
_GROUP_BYTES = 64 << 20
_FILE_BYTES = 512 << 20
_MAX_OPEN = 64
_NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
_ROW_NUMBER = "leasehold row"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A written file. ``cut``: the values of the partitioning columns."""

    path: str
    size_bytes: int
    rows: int
    cut: tuple[tuple[str, str | None], ...]
    stats: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWriter:
    """What a task does with its rows; for ``mapInArrow``. Its result is a line of JSON.

    ``required`` names columns that take no null. If there is one, the result names the column: an
    exception would only make Spark retry.
    """

    storage: Storage
    token: str
    partition_by: tuple[str, ...]
    required: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows of the task."""
        freeze_garbage_collection()
        task = TaskContext.get()
        number, attempt = (task.partitionId(), task.taskAttemptId()) if task else (0, 0)
        name = f"{PREFIX}{number:05d}-{self.token}-{attempt}"
        yield _result_row(self.write(name, batches))

    def write(self, name: str, batches: Iterator[pa.RecordBatch]) -> str:
        """Write the rows to files whose names begin with ``name``; return the result."""
        files = TaskFiles(self.storage, name, self.partition_by)
        try:
            for batch in batches:
                for column in self.required:
                    if batch.column(batch.schema.get_field_index(column)).null_count:
                        files.abandon()
                        return json.dumps({"refused": column})
                with self._storage_errors():
                    files.add(batch)
            with self._storage_errors():
                return json.dumps({"files": [asdict(each) for each in files.finish()]})
        except BaseException:
            files.abandon()
            raise

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Distinguish failures of the storage from failures of the rows."""
        if self.storage.local is not None:
            with volume_errors(self.storage.name):
                yield
            return
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"rows can not be written to {self.storage.name} ({error}): look at the network "
                "and the storage options; it is tried again"
            ) from error


class TaskFiles:
    """The files of one attempt of a task: one for each set of partition values."""

    def __init__(self, storage: Storage, name: str, partition_by: Sequence[str]) -> None:
        self._storage = storage
        self._fs = storage.open_fs()
        self._name = name
        self._partition_by = tuple(partition_by)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._open: dict[tuple[str | None, ...], _DeltaFile] = {}
        self._done: list[DataFile] = []
        self._started: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take these rows."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> list[DataFile]:
        """Return all files, complete and synced."""
        self._flush()
        self._close_all()
        self._storage.finish([each.path for each in self._done])
        return self._done

    def abandon(self) -> None:
        """Delete what was written, as far as that is possible."""
        for each in self._open.values():
            with suppress(OSError, pa.ArrowException):
                each.close()
        self._storage.remove(self._started)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        for values, rows in _split_by_values(table, self._partition_by):
            if values not in self._open and len(self._open) >= _MAX_OPEN:
                self._close_all()
            file = self._open.get(values) or self._start(values, rows.schema)
            file.writer.write_table(rows)
            if file.stream.tell() >= _FILE_BYTES:
                self._done.append(self._open.pop(values).close())

    def _start(self, values: tuple[str | None, ...], schema: pa.Schema) -> _DeltaFile:
        cut = tuple(zip(self._partition_by, values, strict=True))
        directory = "".join(f"{name}={_directory_value(value)}/" for name, value in cut)
        path = f"{directory}{self._name}-{len(self._started)}.{_COMPRESSION}.parquet"
        self._started.append(path)
        if self._storage.local is not None:
            (self._storage.local / directory).mkdir(parents=True, exist_ok=True)
        file = _DeltaFile(path, cut, self._fs.open_output_stream(path), schema)
        self._open[values] = file
        return file

    def _close_all(self) -> None:
        while self._open:
            self._done.append(self._open.pop(next(iter(self._open))).close())


class _DeltaFile:
    """A Parquet file that is being written."""

    def __init__(
        self, path: str, cut: tuple[tuple[str, str | None], ...], stream: Any, schema: pa.Schema
    ) -> None:
        self.path = path
        self.cut = cut
        self.stream = stream
        self._footers: list[Any] = []
        self.writer = pq.ParquetWriter(
            stream,
            schema,
            compression=_COMPRESSION,
            compression_level=_LEVEL,
            store_schema=False,  # what a reader needs is in Parquet's own types
            metadata_collector=self._footers,
        )

    def close(self) -> DataFile:
        self.writer.close()
        size_bytes = self.stream.tell()
        self.stream.close()
        (footer,) = self._footers
        return DataFile(
            path=self.path,
            size_bytes=size_bytes,
            rows=footer.num_rows,
            cut=self.cut,
            stats=stats_of(footer),
        )


def parse_results(lines: Iterable[str]) -> tuple[tuple[DataFile, ...], list[str]]:
    """Return the files of all tasks, and the columns in which a null was refused."""
    results = [json.loads(line) for line in lines]
    files = [file for each in results for file in each.get("files", ())]
    refused = {each["refused"] for each in results if "refused" in each}
    return tuple(
        DataFile(**file | {"cut": tuple((name, value) for name, value in file["cut"])})
        for file in files
    ), sorted(refused)


def _result_row(text: str) -> pa.RecordBatch:
    """Return one row with the text, from bytes: ``pa.array`` would import pandas."""
    data = text.encode("utf-8")
    ends = pa.py_buffer(struct.pack("<ii", 0, len(data)))
    array = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([array], ["written"])


def _split_by_values(
    table: pa.Table, by: tuple[str, ...]
) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Yield the rows for each set of values; the partitioning columns are not in the files."""
    if not by:
        yield (), table
        return
    numbered = table.select(by).append_column(
        _ROW_NUMBER, pa.array(range(table.num_rows), pa.int64())
    )
    groups = numbered.group_by(list(by)).aggregate([(_ROW_NUMBER, "list")])
    rest = table.drop_columns(list(by))
    for group in range(groups.num_rows):
        values = tuple(_partition_text(groups.column(name)[group].as_py()) for name in by)
        rows = groups.column(f"{_ROW_NUMBER}_list")[group].values
        yield values, rest.take(rows)


def _partition_text(value: Any) -> str | None:
    """Return a value as Delta writes it. Delta writes empty text as null here."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None or value == "" else str(value)


def _directory_value(value: str | None) -> str:
    return _NULL_DIRECTORY if value is None else quote(value, safe="")
