"""``df.write.format("leasehold")``: rows become events, all of them or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.support.log_publisher import STREAM, bodies, counted, left_over, make_log

from leasehold.log import Log
from leasehold.spark import register


@pytest.fixture
def url(tmp_path: Path, spark: SparkSession) -> str:
    register(spark)
    made = f"sqlite:///{tmp_path}/store.db"
    make_log(made, tmp_path)
    return made


def rows(spark: SparkSession, count: int, name: str = "a") -> DataFrame:
    number = f.col("id").cast("string")
    return spark.range(0, count, 1, 3).select(
        f.concat(f.lit("k"), (f.col("id") % 7).cast("string")).alias("key"),
        f.concat(f.lit(f"{name}:"), number).alias("body"),
        f.create_map(f.lit("id"), number).alias("properties"),
    )


def save(frame: DataFrame, url: str, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("leasehold").option("store", url).options(**options)
    writer.mode(mode).save(STREAM)


@pytest.mark.spec("S1", "S2", "S4")
def test_all_rows_are_events_when_save_returns(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    save(rows(spark, 1000), url)
    assert counted(url) == {"a": 1000}
    with Log.open(url) as log, log.reader(STREAM, 0) as reader:
        events = [event for batch in reader.batches() for event in batch]
    for event in events:
        number = event.body.decode().partition(":")[2]
        assert event.key == f"k{int(number) % 7}"
        assert event.properties == {"id": number}
    assert left_over(tmp_path) == []
    assert not any((tmp_path / "volume.staging" / STREAM).iterdir())


def test_a_body_may_be_bytes_and_a_key_and_properties_may_be_missing(
    spark: SparkSession, url: str
) -> None:
    frame = rows(spark, 50).select(f.col("body").cast("binary").alias("body"))
    save(frame, url)
    save(rows(spark, 50, "b").select("properties", "body").where("false"), url)
    assert counted(url) == {"a": 50}


@pytest.mark.spec("S4")
def test_a_failed_job_leaves_nothing(spark: SparkSession, url: str, tmp_path: Path) -> None:
    number = f.split("body", ":").getItem(1).cast("int")
    broken = rows(spark, 3000).withColumn(
        "body",
        f.when(number == 2900, f.raise_error(f.lit("no such flight"))).otherwise(f.col("body")),
    )
    with pytest.raises(PySparkException, match="no such flight"):
        save(broken, url)
    assert bodies(url) == []
    assert left_over(tmp_path) == []
    with pytest.raises(PySparkException, match="body is 1 nulls"):
        save(rows(spark, 10).withColumn("body", f.when(number != 4, f.col("body"))), url)
    assert bodies(url) == []
    save(rows(spark, 10), url)
    assert counted(url) == {"a": 10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.withColumn("price", f.lit(1)), "columns price can not be sent"),
        (
            lambda frame: frame.withColumn("properties", f.create_map(f.lit("a"), f.lit(1))),
            "column properties is map",
        ),
    ],
    ids=["strange column", "map of numbers"],
)
def test_columns_that_are_not_those_of_events_are_refused_before_any_task(
    spark: SparkSession, url: str, change: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(change(rows(spark, 10)), url)
    assert bodies(url) == []
    assert not (tmp_path / "volume.staging").exists()  # no task was even planned


def test_what_makes_no_sense_is_refused_with_what_to_do(spark: SparkSession, url: str) -> None:
    frame = rows(spark, 10)
    with pytest.raises(PySparkException, match=r"never overwritten.*append"):
        save(frame, url, mode="overwrite")
    with pytest.raises(PySparkException, match=f"there are: '{STREAM}'"):
        frame.write.format("leasehold").option("store", url).mode("append").save("nothing")
    with pytest.raises(PySparkException, match="did you mean staging"):
        save(frame, url, stageing="/tmp")
    with pytest.raises(PySparkException, match="no store is named"):
        frame.write.format("leasehold").mode("append").save(STREAM)
    with pytest.raises(PySparkException, match="InvalidUrl"):
        save(frame, "nothing:///x")
    assert bodies(url) == []


def test_an_event_that_no_segment_can_hold_is_refused(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    with Log.open(url) as log:
        log.create("small", segment_bytes=8192)
    big = rows(spark, 10).withColumn("body", f.repeat(f.lit("x"), 9000))
    writer = big.write.format("leasehold").option("store", url).mode("append")
    with pytest.raises(PySparkException, match="one of 'small' may have 8192"):
        writer.save("small")
    assert left_over(tmp_path) == []


def test_staging_may_be_anywhere_that_all_see(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    save(rows(spark, 10), url, staging=str(tmp_path / "shared"))
    assert counted(url) == {"a": 10}
    assert (tmp_path / "shared" / STREAM).is_dir()
    assert not (tmp_path / "volume.staging").exists()
