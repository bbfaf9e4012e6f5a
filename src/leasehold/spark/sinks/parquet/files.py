"""Writing the Parquet files of one task. It runs on an executor.

When the list of files is returned, their bytes and their names are safe from a power cut. A task
that fails removes what it wrote; one that is killed leaves files that no manifest names.

The columns that name a directory are in the files too, so that the directories are only a help: no
value has to be guessed from a name.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leasehold.spark.sinks.directory import written_here

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NOTHING = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_LABEL = 200
_MOST_OPEN = 32
_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file by its path in the directory of the sink."""

    path: str
    rows: int
    bytes: int


def file_name(batch: str, attempt: str, number: int) -> str:
    """What a file is called: the batch is in its name, so that a sweep can tell."""
    return f"part-{batch}-{attempt}-{number}.parquet"


def batch_of(name: str) -> str | None:
    """The batch in the name of a file, None if it is not one of ours."""
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
    """Write all rows and sync them. Without rows there are no files.

    Raises:
        VolumeUnusable: the directory can not be written here.
    """
    task = _Task(Path(directory), batch, attempt)
    with ExitStack() as undo:
        undo.callback(task.remove)
        for each in batches:
            with written_here(directory):
                for label, rows in split(each, partition_by):
                    task.add(label, rows)
        with written_here(directory):
            done = task.finished()
        undo.pop_all()
    return done


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by directory: each is in exactly one part, and they keep their order."""
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
        f"{quote(name, safe='')}={_shown(part.column(name)[0].as_py())}" for name in partition_by
    )


def _shown(value: Any) -> str:
    if value is None or value in {"", b""}:
        return NOTHING
    text = value.hex() if isinstance(value, bytes) else str(value)
    return quote(text, safe="")[:_LONGEST_LABEL]


class _Task:
    """The files of one attempt, those that are open and those that are done."""

    def __init__(self, root: Path, batch: str, attempt: str) -> None:
        self._root, self._batch, self._attempt = root, batch, attempt
        self._open: dict[str, _File] = {}
        self._all: list[_File] = []
        self._changed: set[Path] = set()

    def add(self, label: str, rows: pa.RecordBatch) -> None:
        """Write rows to the file of their directory."""
        found = self._open.pop(label, None)
        if found is None:
            if len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            found = self._created(label, rows.schema)
        self._open[label] = found  # at the end: the one that was used last
        found.add(rows)

    def finished(self) -> list[WrittenFile]:
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
        """Throw everything away."""
        for each in self._all:
            with suppress(Exception):
                each.close()
            with suppress(OSError):
                each.path.unlink()

    def _created(self, label: str, schema: pa.Schema) -> _File:
        home = self._root / label if label else self._root
        if not home.is_dir():
            # All that are between: others may be making the same at this moment.
            self._changed.update({home, *home.parents} - set(self._root.parents))
            home.mkdir(parents=True, exist_ok=True)
        self._changed.add(home)
        path = home / file_name(self._batch, self._attempt, len(self._all))
        made = _File(path, schema)
        self._all.append(made)
        return made


class _File:
    """One file. Rows wait until they are worth a row group."""

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
        """Make it whole and sync it. Again is harmless."""
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
    """Make the names in a directory safe from a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
