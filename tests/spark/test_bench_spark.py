"""The measurements of Spark run, in small, and have both sides in each row."""

from __future__ import annotations

from bench import spark_batches, spark_reading
from bench.report import Row
from bench.spark_scene import scene
from pyspark.sql import SparkSession


def compared(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.peer is not None]


def test_both_sides_read_the_same_rows_and_a_column_cut_is_measured(spark: SparkSession) -> None:
    with scene(events=400) as made:
        sides = (
            lambda: made.read().where(spark_reading.EVERY_COLUMN),
            lambda: made.parquet().where(spark_reading.EVERY_COLUMN),
        )
        ours, peer = (sorted(map(tuple, spark_reading.grouped(each)())) for each in sides)
        rows = spark_reading.cut(made, rounds=1)
    assert ours == peer
    assert sum(count for _, count in ours) == 400
    assert [row.bar for row in rows] == [">= 2.5 x", None]
    assert len(compared(rows)) == 2


def test_batches_and_backlogs_are_measured_on_both_sides(spark: SparkSession) -> None:
    small = compared(list(spark_batches.fixed_cost(batches=3, rounds=1)))
    backlog = compared(list(spark_batches.sustained(events=2_000, rounds=1, batch_events=1_000)))
    assert [row.bar for row in (*small, *backlog)] == ["<= 0.8 x", None, ">= 0.7 x", None]
