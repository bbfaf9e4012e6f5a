"""``df.writeStream.format("leasehold")``: each batch once, refused to drivers of the past."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.log_publisher import STREAM, counted, left_over, make_log

from leasehold.clock import new_token
from leasehold.model import KeyClaim, MemberInfo
from leasehold.names import job_key
from leasehold.spark import register
from leasehold.stores import open_store


@pytest.fixture
def url(tmp_path: Path, spark: SparkSession) -> str:
    register(spark)
    made = f"sqlite:///{tmp_path}/store.db"
    make_log(made, tmp_path)
    (tmp_path / "in").mkdir()
    return made


def put(directory: Path, name: str, count: int = 20) -> None:
    """A file for the query to read."""
    text = "\n".join(json.dumps({"k": i % 7, "n": i, "name": name}) for i in range(count))
    (directory / "in" / f"{name}.json").write_text(text + "\n")


def start(spark: SparkSession, directory: Path, url: str, **options: str) -> StreamingQuery:
    """A query that takes one file at a time and ends with the last."""
    result = {"checkpointLocation": str(directory / "checkpoint")} | options
    read = spark.readStream.schema("k int, n int, name string").option("maxFilesPerTrigger", "1")
    return (
        read.json(str(directory / "in"))
        .select(
            f.col("k").cast("string").alias("key"),
            f.concat_ws(":", "name", "n").alias("body"),
        )
        .writeStream.format("leasehold")
        .option("store", url)
        .options(**{name: value for name, value in result.items() if value})
        .trigger(availableNow=True)
        .start(STREAM)
    )


def run(spark: SparkSession, directory: Path, url: str, **options: str) -> None:
    query = start(spark, directory, url, **options)
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    assert query.exception() is None


@pytest.mark.spec("S1", "S2", "S4")
def test_each_batch_is_stored_once_though_it_is_run_again(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    put(tmp_path, "a")
    put(tmp_path, "b")
    run(spark, tmp_path, url)
    assert counted(url) == {"a": 20, "b": 20}
    # As after a crash between the sink's commit and Spark's own.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    put(tmp_path, "c")
    run(spark, tmp_path, url)
    assert counted(url) == {"a": 20, "b": 20, "c": 20}
    assert left_over(tmp_path) == []


@pytest.mark.spec("S4")
def test_a_batch_that_fails_leaves_nothing_and_is_run_again(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    put(tmp_path, "a")
    (tmp_path / "volume.staging").write_text("not a directory")
    with pytest.raises(PySparkException, match="staging"):
        run(spark, tmp_path, url)
    (tmp_path / "volume.staging").unlink()
    run(spark, tmp_path, url)
    assert counted(url) == {"a": 20}


def test_a_query_must_be_known_again(spark: SparkSession, url: str, tmp_path: Path) -> None:
    put(tmp_path, "a")
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        with pytest.raises(PySparkException, match=r"option\(.*name"):
            run(spark, tmp_path, url, checkpointLocation="")
        run(spark, tmp_path, url, checkpointLocation="", name="by name")
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert counted(url) == {"a": 20}


@pytest.mark.spec("S5", "B5")
def test_a_driver_whose_fence_is_over_writes_nothing(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    key = job_key("copy")
    asyncio.run(_hold(url, key))
    put(tmp_path, "a")
    fence = {"fence.key": key, "name": "copy"}
    run(spark, tmp_path, url, **fence, **{"fence.epoch": "1"})
    asyncio.run(_hold(url, key, seen=1, holder="b-1"))
    put(tmp_path, "b")
    with pytest.raises(PySparkException, match="FencedWrite"):
        run(spark, tmp_path, url, **fence, **{"fence.epoch": "1"})
    assert counted(url) == {"a": 20}
    assert left_over(tmp_path) == []
    run(spark, tmp_path, url, **fence, **{"fence.epoch": "2"})
    assert counted(url) == {"a": 20, "b": 20}


async def _hold(url: str, key: str, *, seen: int = 0, holder: str = "a-1") -> None:
    async with open_store(url) as store:
        await store.declare([key])
        lease = await store.grant(
            holder=holder,
            token=new_token(),
            group="job",
            duration=timedelta(minutes=5),
            info=MemberInfo(),
        )
        await store.claim(lease, [KeyClaim(key=key, seen_epoch=seen)], force=True)
