"""The measurements of Spark run, in small, and have both sides in each row."""

from __future__ import annotations

from bench import spark_batches, spark_reading
from bench.report import Row
from pyspark.sql import SparkSession


def compared(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.peer is not None]


def test_reading_is_measured_on_both_sides(spark: SparkSession) -> None:
    rows = compared(list(spark_reading.reading(events=400, rounds=1)))
    assert [row.what for row in rows if row.bar] == [
        "whole rows, thrown away: s",
        "whole rows, count: s",
        "whole rows, group by key: s",
        "whole rows, JSON: mean: s",
        '.schema("key string"); peer: the whole row: s',
    ]
    assert all(isinstance(row.ours, float | int) and row.ours > 0 for row in rows)


def test_batches_and_backlogs_are_measured_on_both_sides(spark: SparkSession) -> None:
    small = compared(list(spark_batches.fixed_cost(batches=3, rounds=1)))
    backlog = compared(list(spark_batches.sustained(events=2_000, rounds=1, batch_events=1_000)))
    assert [row.bar for row in (*small, *backlog)] == ["<= 0.8 x", None, ">= 0.7 x", None]
