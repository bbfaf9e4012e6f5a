"""The Parquet sink on Spark: what is committed is read again as it was, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.sink_contract import GROUP, batch_of, known

from leasehold.errors import SinkUnfit, UsageError
from leasehold.spark import ParquetSink, read_parquet

ALL_TYPES = """
    id, cast(id as int) as whole, id / 3 as part, cast(id / 3 as decimal(12, 4)) as price,
    concat('word ', id) as word, cast(concat('b', id) as binary) as raw, id % 2 = 0 as is_even,
    date_add(date'2024-02-28', cast(id as int)) as day,
    timestamp'2026-01-31 23:59:59.123456' as at, timestamp_ntz'2026-01-31 01:02:03' as local,
    array(id, null) as list, map('id', id) as by_name, struct(id as a, 'b' as b) as both,
    if(id = 3, null, cast(id % 3 as string)) as bucket
"""


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[ParquetSink]:
    store = f"sqlite:///{tmp_path}/leases.db"
    made = ParquetSink(tmp_path / "all [types]", store=store, partition_by=["bucket"])
    yield made
    made.close()


def _frame(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2).selectExpr(*_columns())


def _columns() -> list[str]:
    parts, depth, current = [], 0, ""
    for character in ALL_TYPES:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current]


def _rows(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: row["id"])


@pytest.mark.spec("S4")
def test_only_what_is_committed_is_read_and_it_is_as_it_was(
    spark: SparkSession, sink: ParquetSink, tmp_path: Path
) -> None:
    path = tmp_path / "all [types]"
    sink.open(spark)
    sink.fence(GROUP, {"0": 1})
    with pytest.raises(UsageError, match="nothing was committed"):
        read_parquet(spark, path)
    empty = batch_of(("0", 0, 1, 1))
    assert sink.commit(sink.stage(_frame(spark, 0, 0), empty), empty).files == 0
    nothing = read_parquet(spark, path)
    assert nothing.columns == _frame(spark, 0, 0).columns
    assert nothing.count() == 0
    batch = batch_of(("0", 1, 2, 1))
    written = sink.commit(sink.stage(_frame(spark, 0, 7), batch), batch)
    assert (written.rows, written.files >= 4) == (7, True)
    sink.stage(_frame(spark, 7, 9), batch_of(("0", 2, 3, 1)))  # never committed
    found = read_parquet(spark, path)
    assert _rows(found) == _rows(_frame(spark, 0, 7))
    assert found.schema.simpleString() == _frame(spark, 0, 0).schema.simpleString()
    assert known(sink).position == 2
    with pytest.raises(SinkUnfit, match="'whole' is int there and bigint here"):
        sink.stage(found.withColumn("whole", found["id"]), batch)
