"""Rows of Spark in a Delta table: written by tasks, committed by the driver, read as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from tests.support.delta_tables import GROUP, batch, data_files

from leasehold.errors import FencedWrite, SinkUnfit, UsageError
from leasehold.spark import DeltaSink, SinkPosition, read_delta


def opened(spark: SparkSession, path: Path, **options: list[str]) -> DeltaSink:
    made = DeltaSink(path, **options)  # type: ignore[arg-type]
    made.open(spark)
    return made


def write(sink: DeltaSink, frame: DataFrame, start: int, end: int, epoch: int = 1) -> None:
    each = batch(("0", start, end, epoch))
    sink.commit(sink.stage(frame, each), each)


@pytest.mark.spec("S4")
def test_rows_of_every_type_are_read_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(3, numPartitions=2).selectExpr(
        "id",
        "cast(id as tinyint) as tiny",
        "cast(id / 3 as double) as fraction",
        "cast(id as decimal(20, 4)) as exact",
        "if(id = 1, null, concat('é', id)) as text",
        "cast('x' as binary) as bytes",
        "id = 2 as yes",
        "date '2013-01-01' as day",
        "timestamp '1969-12-31 23:59:59.999999' as moment",
        "timestamp_ntz '2013-07-01 05:00:00.000001' as local",
        "array(id, null) as many",
        "map('a', struct(id as deep, timestamp '2013-01-01 00:00:00' as at)) as named",
    )
    sink = opened(spark, tmp_path / "all")
    sink.fence(GROUP, {"0": 1})
    write(sink, frame, 0, 3)
    write(sink, frame.filter("id < 0"), 3, 5)
    found = read_delta(spark, tmp_path / "all")
    assert found.sort("id").collect() == frame.sort("id").collect()
    assert sink.fence(GROUP, {"0": 1}) == {"0": SinkPosition(position=5, epoch=1)}
    by_delta = DeltaTable(tmp_path / "all").to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in by_delta) == [0, 1, 2]
    assert {row["moment"].microsecond for row in by_delta} == {999999}


@pytest.mark.spec("B5", "S4")
def test_a_table_is_cut_by_columns_and_a_zombie_adds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "cut"
    frame = spark.range(6, numPartitions=2).selectExpr(
        "id", "array('UA', 'a:b %c', null)[id % 3] as carrier", "date '2013-01-01' as day"
    )
    sink = opened(spark, path, partition_by=["carrier", "day"])
    sink.fence(GROUP, {"0": 1})
    write(sink, frame, 0, 6)
    assert DeltaTable(path).metadata().partition_columns == ["carrier", "day"]
    assert (path / "carrier=UA" / "day=2013-01-01").is_dir()
    before = frame.sort("id").collect()
    assert read_delta(spark, path).sort("id").collect() == before
    late = batch(("0", 6, 12, 1))
    rows = sink.stage(frame, late)
    opened(spark, path).fence(GROUP, {"0": 2})
    with pytest.raises(FencedWrite):
        sink.commit(rows, late)
    files = data_files(path)
    sink.discard(rows)
    assert len(data_files(path)) == len(files) - len(rows.inside.files)
    assert read_delta(spark, path).count() == 6
    first = next(v for v in range(9) if read_delta(spark, path, version=v).count() == 6)
    assert read_delta(spark, path, version=first - 1).count() == 0


@pytest.mark.spec("S4")
def test_columns_that_do_not_fit_are_named_before_any_job_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "fit"
    sink = opened(spark, path)
    write(sink, spark.range(2).selectExpr("id", "'x' as text"), 0, 2)
    files = data_files(path)
    other = spark.range(2).selectExpr("cast(id as string) as id", "raise_error('ran') as more")
    with pytest.raises(SinkUnfit) as refused:
        sink.stage(other, batch(("0", 2, 4, 1)))
    assert "column id is string in the rows and bigint in the table" in str(refused.value)
    assert "column text (string) is missing" in str(refused.value)
    assert "column more (void) is not in the table" in str(refused.value)
    assert data_files(path) == files
    with pytest.raises(SinkUnfit, match="void, which Delta lacks"):
        opened(spark, tmp_path / "new").stage(other, batch(("0", 0, 2, 1)))
    with pytest.raises(UsageError, match="no Delta table"):
        read_delta(spark, tmp_path / "new")


@pytest.mark.spec("S4")
def test_a_null_where_the_table_takes_none_is_refused_and_leaves_no_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "strict"
    DeltaTable.create(path, Schema([Field("id", PrimitiveType("long"), nullable=False)]))
    sink = opened(spark, path)
    frame = spark.range(4, numPartitions=2).selectExpr("if(id = 3, null, id) as id")
    with pytest.raises(SinkUnfit, match="nulls in id"):
        sink.stage(frame, batch(("0", 0, 4, 1)))
    assert data_files(path) == set()
    write(sink, frame.filter("id is not null"), 0, 4)
    assert read_delta(spark, path).count() == 3


@pytest.mark.spec("S4")
def test_a_failed_job_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "failed"

    def broken(batches):  # type: ignore[no-untyped-def]
        for each in batches:
            if each.column(0)[0].as_py() >= 2:
                raise ValueError("a bad row")
            yield each

    sink = opened(spark, path)
    sink.fence(GROUP, {"0": 1})
    frame = spark.range(4, numPartitions=2).mapInArrow(broken, "id long")
    with pytest.raises(PythonException, match="a bad row"):
        sink.stage(frame, batch(("0", 0, 4, 1)))
    assert not (path / "_delta_log").exists()
    assert sink.fence(GROUP, {"0": 1}) == {"0": SinkPosition(epoch=1)}
