"""The log as a sink of a pipeline, by the contract of sinks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.support.log_publisher import (
    GROUP,
    STREAM,
    batch_part,
    bodies,
    counted,
    left_over,
    make_log,
)

from leasehold.errors import FencedWrite, SinkChanged, SinkUnfit, UnknownStream, UsageError
from leasehold.spark import Batch, BatchPart, LogSink, SinkPosition

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/store.db"
    make_log(made, tmp_path)
    return made


@pytest.fixture
def sink(url: str, spark: SparkSession) -> Iterator[LogSink]:
    made = LogSink(f"log:{STREAM}", store=url)
    made.open(spark)
    yield made
    made.close()


def batch(*shares: BatchPart, number: int = 0, holder: str = "driver-1") -> Batch:
    return Batch(group=GROUP, number=number, shares=shares, holder=holder, began_at=BEGAN)


def rows(spark: SparkSession, name: str, count: int = 100) -> DataFrame:
    number = f.col("id").cast("string")
    return spark.range(0, count, 1, 2).select(
        (f.col("id") % 7).cast("string").alias("key"),
        f.concat(f.lit(f"{name}:"), number).alias("body"),
    )


@pytest.mark.spec("S4")
def test_rows_and_positions_of_several_partitions_are_committed_together(
    spark: SparkSession, sink: LogSink, url: str, tmp_path: Path
) -> None:
    assert sink.fence(GROUP, {"0": 1, "1": 4}) == {"0": SinkPosition(), "1": SinkPosition()}
    first = batch(batch_part("0", 10, 20, 1), batch_part("1", 0, 7, 4))
    staged = sink.stage(rows(spark, "a"), first)
    assert bodies(url) == []
    written = sink.commit(staged, first)
    assert (written.rows, written.files) == (100, 2)
    assert counted(url) == {"a": 100}
    assert sink.fence(GROUP, {"0": 1, "1": 4, "2": 1}) == {
        "0": SinkPosition(position=20, epoch=1),
        "1": SinkPosition(position=7, epoch=4),
        "2": SinkPosition(),
    }
    # The same commit again, as after a lost answer: with these files, and with others.
    assert sink.commit(staged, first).rows == 100
    assert sink.commit(sink.stage(rows(spark, "a"), first), first).rows == 100
    empty = batch(batch_part("0", 20, 25, 1), number=1)
    assert sink.commit(sink.stage(rows(spark, "none", 0), empty), empty).rows == 0
    assert counted(url) == {"a": 100}
    found = list(sink.commits(GROUP))
    assert [(str(each.range), each.epoch, each.rows) for each in found] == [
        ("0[10, 20)", 1, 100),
        ("1[0, 7)", 4, 100),
        ("0[20, 25)", 1, 0),
    ]
    assert found[0].commit == found[1].commit != found[2].commit
    assert {each.began_at for each in found} == {BEGAN}
    assert all(each.committed_at.tzinfo and each.holder == "driver-1" for each in found)
    assert left_over(tmp_path) == []


@pytest.mark.spec("S4", "B5")
def test_a_driver_that_wakes_up_late_commits_nothing(
    spark: SparkSession, sink: LogSink, url: str, tmp_path: Path
) -> None:
    sink.fence(GROUP, {"0": 1, "1": 1})
    first = batch(batch_part("0", 0, 5), batch_part("1", 0, 5))
    sink.commit(sink.stage(rows(spark, "a", 10), first), first)
    late = batch(batch_part("0", 5, 9), batch_part("1", 5, 9))
    staged = sink.stage(rows(spark, "late", 10), late)
    other = LogSink(STREAM, store=url)
    other.open(spark)
    assert other.fence(GROUP, {"1": 2}) == {"1": SinkPosition(position=5, epoch=1)}
    with pytest.raises(FencedWrite) as caught:
        sink.commit(staged, late)
    assert caught.value.key == "1"
    sink.discard(staged)
    # The other goes on from there, and so does the first with what it still owns.
    new, mine = batch(batch_part("1", 5, 8, 2)), batch(batch_part("0", 5, 9))
    other.commit(other.stage(rows(spark, "new", 10), new), new)
    sink.commit(sink.stage(rows(spark, "mine", 10), mine), mine)
    with pytest.raises(SinkChanged, match=r"up to 8"):
        other.commit(other.stage(rows(spark, "x", 10), new), batch(batch_part("1", 5, 9, 2)))
    other.close()
    assert counted(url) == {"a": 10, "new": 10, "mine": 10}


def test_what_can_not_be_used_is_refused(spark: SparkSession, sink: LogSink, url: str) -> None:
    with pytest.raises(SinkUnfit, match="columns id can not be sent"):
        sink.stage(spark.range(3), batch(batch_part("0", 0, 3)))
    with pytest.raises(UnknownStream, match=STREAM):
        LogSink("nothing", store=url).open(spark)
    with pytest.raises(UsageError, match="not open"):
        LogSink(STREAM, store=url).fence(GROUP, {"0": 1})
    sink.fence(GROUP, {"0": 3})
    with pytest.raises(FencedWrite):
        sink.move(GROUP, {"0": SinkPosition(position=1, epoch=2)})
    assert bodies(url) == []
