"""The files of a Parquet sink: what one task writes, and the pointer to the manifest.

``write_files`` runs on an executor. When it returns, the bytes and names of its files are synced. A
task that fails removes what it wrote; one that is killed leaves files that no manifest names. The
partitioning columns are in the files too: no value has to be guessed from the name of a directory.

The file ``_leasehold.json`` in the directory names the sink and the store, without secrets. The
directory may be moved: the paths in the manifest are relative to it.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leasehold.clock import new_suffix, new_token
from leasehold.errors import SinkChanged, UsageError
from leasehold.spark.sinks.commit_ledger import ledger_queries, sql_of
from leasehold.spark.sinks.directory import POINTER, make_directory, sink_errors, volume_errors
from leasehold.stores.blocking import open_blocking
from leasehold.stores.sqlite.location import path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.stores.blocking import BlockingDatabase, Tx

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The sink and the store that a directory names."""

    sink: str
    store: str


@cache
def queries() -> Mapping[str, str]:
    """Return all statements that a Parquet sink needs."""
    return MappingProxyType({**ledger_queries(), **sql_of("manifest.sql")})


def directory_of(path: str | os.PathLike[str]) -> Path:
    """Return the directory as an absolute path."""
    text = os.fspath(path).removeprefix("file://")
    if "://" in text:
        raise UsageError(
            f"{text!r} is no directory: the Parquet sink writes to a path that the driver and all "
            "executors see, such as a local disk or a shared file system"
        )
    return Path(text).absolute()


def open_manifest(url: str, *, clock: Clock) -> BlockingDatabase:
    """Return the database of the store, ready."""
    return open_blocking(url, queries=queries(), clock=clock, guard="guard")


def without_secrets(url: str, database: BlockingDatabase) -> str:
    """Return the store's URL without secrets, valid from any working directory."""
    if urlsplit(url).scheme.lower() == "sqlite":
        return "sqlite:///" + quote(str(Path(path_of(url)).absolute()), safe="/")
    return database.url


def read_pointer(directory: Path) -> Pointer | None:
    """Return the pointer of the directory; None if there is none."""
    path = directory / POINTER
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise SinkChanged(f"{path} was written by a newer Leasehold: upgrade this one")
        return Pointer(sink=str(found["sink"]), store=str(found["store"]))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise SinkChanged(
            f"{path} can not be read ({error}): it names the sink and its store; bring it back "
            "from a backup"
        ) from error


def write_pointer(directory: Path, pointer: Pointer) -> None:
    """Write the pointer, completely or not at all."""
    text = json.dumps({"format": _FORMAT, "sink": pointer.sink, "store": pointer.store}, indent=2)
    draft = directory / f".{POINTER}.{new_suffix()}"
    with draft.open("x", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / POINTER)
    sync_directory(directory)


def ensure_sink(directory: Path, database: BlockingDatabase, store: str) -> str:
    """Return the id of the sink in this directory; the first caller makes it a sink."""
    name = f"parquet:{directory}"
    make_directory(directory, sink=name)
    pointer = read_pointer(directory)
    if pointer is not None:
        if database.read(lambda tx: tx.one("home_get", sink=pointer.sink)) is None:
            raise unknown_here(directory, pointer, database)
        return pointer.sink
    place = str(directory.resolve())

    def step(tx: Tx) -> tuple[str, bool]:
        tx.run("home_put", sink=new_sink, place=place, wall=tx.wall)
        (sink,) = tx.one("home_at", place=place) or (new_sink,)
        return sink, tx.one("home_used", sink=sink) is not None

    new_sink = new_token()
    sink, used = database.write(step)
    if used and read_pointer(directory) is None:
        raise SinkChanged(
            f"{directory} was emptied or made anew: {database.url} knows of commits to it, and "
            f"{POINTER} is not in it. Bring the directory back, or write to another one"
        )
    with sink_errors(name, "written"):
        write_pointer(directory, Pointer(sink=sink, store=store))
    return str(sink)


def unknown_here(directory: Path, pointer: Pointer, database: BlockingDatabase) -> SinkChanged:
    """Return the error for a store that does not know this directory."""
    return SinkChanged(
        f"{directory} is a sink whose manifest lies in {pointer.store}, and {database.url} does "
        "not know it: give the store it was written with, or write to another directory"
    )


NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
_MAX_LABEL_CHARS = 200
_MAX_OPEN = 32
_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file by its path in the directory of the sink."""

    path: str
    rows: int
    bytes: int


def file_name(batch: str, attempt: str, number: int) -> str:
    """Return the name of a file: the batch is in its name, for sweeps."""
    return f"part-{batch}-{attempt}-{number}.parquet"


def batch_of(name: str) -> str | None:
    """Return the batch in the name of a file, None if it is not a file of this sink."""
    parts = name.removesuffix(".parquet").split("-")
    ours = name.endswith(".parquet") and len(parts) == 4 and parts[0] == "part"  # noqa: PLR2004
    return parts[1] if ours else None


def write_files(
    batches: Iterable[pa.RecordBatch],
    *,
    directory: str,
    batch: str,
    attempt: str,
    partition_by: Sequence[str],
) -> list[WrittenFile]:
    """Write all rows and sync them. Without rows there are no files."""
    task = _ParquetTask(Path(directory), batch, attempt)
    with ExitStack() as undo:
        undo.callback(task.remove)
        for each in batches:
            with volume_errors(directory):
                for label, rows in split(each, partition_by):
                    task.add(label, rows)
        with volume_errors(directory):
            done = task.finish()
        undo.pop_all()
    return done


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows by directory: each is in exactly one part, and they keep their order."""
    if not batch.num_rows:
        return
    if not partition_by:
        yield "", batch
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    for name in partition_by:
        coded = pc.dictionary_encode(batch.column(name), null_encoding="encode")
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
        # Numbers in a row again: with many columns the product could become too large.
        codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    order = np.argsort(codes, kind="stable")
    sorted_rows = batch.take(pa.array(order))
    ends = np.cumsum(np.bincount(codes))
    start = 0
    for end in ends.tolist():
        part = sorted_rows.slice(start, end - start)
        yield _label(part, partition_by), part
        start = end


def _label(part: pa.RecordBatch, partition_by: Sequence[str]) -> str:
    return "/".join(
        f"{quote(name, safe='')}={_directory_value(part.column(name)[0].as_py())}"
        for name in partition_by
    )


def _directory_value(value: Any) -> str:
    if value is None or value in {"", b""}:
        return NULL_DIRECTORY
    text = value.hex() if isinstance(value, bytes) else str(value)
    return quote(text, safe="")[:_MAX_LABEL_CHARS]


class _ParquetTask:
    """The files of one attempt, those that are open and those that are done."""

    def __init__(self, root: Path, batch: str, attempt: str) -> None:
        self._root, self._batch, self._attempt = root, batch, attempt
        self._open: dict[str, _ParquetFile] = {}
        self._all: list[_ParquetFile] = []
        self._changed: set[Path] = set()

    def add(self, label: str, rows: pa.RecordBatch) -> None:
        """Write rows to the file of their directory."""
        found = self._open.pop(label, None)
        if found is None:
            if len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            found = self._create(label, rows.schema)
        self._open[label] = found  # at the end: the one that was used last
        found.add(rows)

    def finish(self) -> list[WrittenFile]:
        """Close and sync all, files first and then their names."""
        for each in self._all:
            each.close()
        for directory in sorted(self._changed, reverse=True):
            sync_directory(directory)
        return [
            WrittenFile(
                path=str(each.path.relative_to(self._root)), rows=each.rows, bytes=each.bytes
            )
            for each in self._all
        ]

    def remove(self) -> None:
        """Delete all files."""
        for each in self._all:
            with suppress(Exception):
                each.close()
            with suppress(OSError):
                each.path.unlink()

    def _create(self, label: str, schema: pa.Schema) -> _ParquetFile:
        home = self._root / label if label else self._root
        if not home.is_dir():
            # All directories in between: other tasks may be making the same now.
            self._changed.update({home, *home.parents} - set(self._root.parents))
            home.mkdir(parents=True, exist_ok=True)
        self._changed.add(home)
        path = home / file_name(self._batch, self._attempt, len(self._all))
        made = _ParquetFile(path, schema)
        self._all.append(made)
        return made


class _ParquetFile:
    """One file. Rows are buffered until they fill a row group."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = self.bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._schema = schema
        self._file = path.open("xb")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._waiting.append(rows)
        if (
            sum(each.num_rows for each in self._waiting) >= _GROUP_ROWS
            or sum(each.nbytes for each in self._waiting) >= _GROUP_BYTES
        ):
            self._flush()

    def close(self) -> None:
        """Complete and sync it. Safe to call twice."""
        if self._file.closed:
            return
        with self._file:
            self._flush()
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self.bytes = self._file.tell()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting = []


def sync_directory(path: Path) -> None:
    """Sync the names in a directory."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
