"""Setups for ``sink_contract``: a Parquet directory and a PostgreSQL table, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from tests.support.local_frames import local_frame
from tests.support.postgres import execute
from tests.support.sink_contract import Row

from leasehold.spark import ParquetSink, PostgresSink, committed_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = count(1)


class LocalSetup:
    """Frames in this process."""

    def __init__(self) -> None:
        self.stack = ExitStack()

    def frame(self, rows: Sequence[Row], *, names: Sequence[str] = ("id", "word")) -> DataFrame:
        return local_frame(f"{names[0]} bigint, {names[1]} string", rows)

    def close(self) -> None:
        self.stack.close()


class ParquetSetup(LocalSetup):
    def __init__(self, directory: Path, store: str, *, partition_by: Sequence[str] = ()) -> None:
        super().__init__()
        self.directory, self.store, self.partition_by = directory, store, partition_by

    def sink(self) -> ParquetSink:
        sink = ParquetSink(self.directory, store=self.store, partition_by=self.partition_by)
        sink.open()
        self.stack.callback(sink.close)
        return sink

    def rows(self) -> list[Row]:
        if not (self.directory / "_leasehold.json").exists():
            return []
        found = []
        for path in committed_files(self.directory, self.store):
            table = pq.ParquetFile(path).read()
            found += [(row["id"], row["word"]) for row in table.to_pylist()]
        return sorted(found)


class PostgresSetup(LocalSetup):
    def __init__(self, url: str, *, key: Sequence[str] | None = None) -> None:
        super().__init__()
        self.url, self.key = url, key
        self.table = f"words_{next(_NUMBERS)}"
        execute(url, f"create table {self.table} (id bigint, word text)")
        if key:
            execute(url, f"create unique index on {self.table} ({', '.join(key)})")

    def sink(self) -> PostgresSink:
        sink = PostgresSink(self.url, self.table, key=self.key)
        sink.open()
        self.stack.callback(sink.close)
        return sink

    def rows(self) -> list[Row]:
        rows = execute(self.url, f"select id, word from {self.table} order by id, word")
        return [(int(str(number)), str(word)) for number, word in rows]


SETUPS = ("parquet, sqlite", "parquet, postgres", "parquet, in directories", "postgres", "by key")


def served(kind: str) -> bool:
    """Whether it needs PostgreSQL."""
    return kind not in {"parquet, sqlite", "parquet, in directories"}


def setup(kind: str, tmp_path: Path, url: str) -> ParquetSetup | PostgresSetup:
    """One of ``SETUPS``; ``url`` is a PostgreSQL database that they may share."""
    directory, file = tmp_path / "words", f"sqlite:///{tmp_path}/leases.db"
    if kind == "parquet, sqlite":
        return ParquetSetup(directory, file)
    if kind == "parquet, in directories":
        return ParquetSetup(directory, file, partition_by=("word",))
    if kind == "parquet, postgres":
        return ParquetSetup(directory, url)
    return PostgresSetup(url, key=["id"] if kind == "by key" else None)
