"""Delta tables for tests without Spark: files are staged as a task of Spark would write them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from leasehold.spark import Batch, BatchPart, DeltaSink, Staged
from leasehold.spark.reading import Range
from leasehold.spark.sinks.delta.files import TaskWriter, parse_results
from leasehold.spark.sinks.delta.sink import StagedFiles
from leasehold.spark.sinks.delta.storage import storage_at

GROUP = "partition/flights/delays"
BEGAN_AT = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NO_SPARK = cast("SparkSession", None)  # only staging needs one
SCHEMA = t.StructType(
    [
        t.StructField("partition", t.StringType()),
        t.StructField("number", t.LongType()),
    ]
)
ARROW = pa.schema([("partition", pa.string()), ("number", pa.int64())])
_names = itertools.count()


def opened(path: Path, **options: Any) -> DeltaSink:
    made = DeltaSink(path, **options)
    made.open(NO_SPARK)
    return made


def batch(*shares: tuple[str, int, int, int], holder: str = "driver-a") -> Batch:
    """A batch of shares: partition, start, end, epoch."""
    return Batch(
        group=GROUP,
        number=0,
        shares=tuple(
            BatchPart(range=Range(partition=name, start=start, end=end), epoch=epoch)
            for name, start, end, epoch in shares
        ),
        holder=holder,
        began_at=BEGAN_AT,
    )


def staged(path: Path, of: Batch, *, name: str = "", by: Sequence[str] = ()) -> Staged:
    """One row for each event of the batch."""
    rows = [
        {"partition": each.range.partition, "number": number}
        for each in of.shares
        for number in range(each.range.start, each.range.end)
    ]
    return staged_rows(path, rows, name=name, by=by)


def staged_rows(
    path: Path, rows: list[dict[str, Any]], *, name: str = "", by: Sequence[str] = ()
) -> Staged:
    writer = TaskWriter(
        storage=storage_at(path, None), token="test", partition_by=tuple(by), required=()
    )
    name = name or f"part-leasehold-{next(_names)}"
    files, _ = parse_results([writer.write(name, iter([pa.RecordBatch.from_pylist(rows, ARROW)]))])
    return Staged(StagedFiles(schema=SCHEMA, partition_by=tuple(by), files=files))


def put(sink: DeltaSink, path: Path, *shares: tuple[str, int, int, int]) -> Batch:
    """Stage and commit; the batch."""
    made = batch(*shares)
    sink.commit(staged(path, made), made)
    return made


def numbers(path: Path, partition: str = "0") -> list[int]:
    """What a reader of the table sees of a partition, sorted."""
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(row["number"] for row in rows if row["partition"] == partition)


def data_files(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("part-leasehold-*.parquet")}
