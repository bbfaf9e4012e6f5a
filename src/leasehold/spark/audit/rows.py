"""Rows of the sink: as many as the commits wrote, and of each event as many as its commits have.

A commit whose output has as many rows as it had events is taken as one row for each event. Where a
transformation filters, joins or sums up, nobody can tell which rows there should be: then the
number of the rows stands for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.spark.audit.claims import ROWS_COUNTED, ROWS_ONCE
from leasehold.spark.audit.findings import found, words
from leasehold.spark.audit.record import Level

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITION, NUMBER = "partition", "sequence_number"
_STRAY = "events that have rows and are in no commit"
_MISSING = "events without a row, or with too few"
_DOUBLED = "events with more than one row"
_MADE = "events with more than one row, which a transformation may have made"


def numbered(rows: DataFrame) -> bool:
    """Whether the rows carry the partition and the number of their event."""
    return {PARTITION, NUMBER} <= set(rows.columns)


def miscounted(rows: DataFrame, commits: DataFrame) -> DataFrame:
    """Another number of rows than the commits wrote."""
    wrote = commits.select("commit", "rows").distinct().agg(F.sum("rows").alias("wrote"))
    frame = (
        rows.agg(F.count("*").alias("has"))
        .crossJoin(wrote)
        .withColumn("wrote", F.coalesce("wrote", F.lit(0)))
        .withColumn("partition", F.lit(""))
        .where("has != wrote")
    )
    what = F.when(
        F.col("has") < F.col("wrote"),
        words("rows that are missing in the sink: %d", F.col("wrote") - F.col("has")),
    ).otherwise(
        words("rows in the sink that no commit wrote: %d", F.col("has") - F.col("wrote")),
    )
    evidence = words("it has %d, the commits wrote %d", "has", "wrote")
    return found(frame, ROWS_COUNTED, what, evidence)


def findings(rows: DataFrame, commits: DataFrame) -> list[DataFrame]:
    """All that speaks against the rows, where they are numbered: by partition and kind."""
    known, exact = F.col("times") > 0, F.col("exact")
    doubled = F.col("has") > F.col("times")
    kind = (
        F.when(~known, _STRAY)
        .when((F.col("has") < F.col("times")) & exact, _MISSING)
        .when(doubled & exact, _DOUBLED)
        .when(doubled, _MADE)
    )
    by_kind = (
        compared(rows, commits)
        .withColumn("kind", kind)
        .where("kind is not null")
        .groupBy("partition", "kind")
        .agg(F.count("*").alias("events"), F.min(NUMBER).alias("low"), F.max(NUMBER).alias("high"))
    )
    what = words("%s: %d", "kind", "events")
    evidence = words("the first is event %d, the last event %d", "low", "high")
    made = F.col("kind") == _MADE
    return [
        found(by_kind.where(~made), ROWS_ONCE, what, evidence),
        found(by_kind.where(made), ROWS_ONCE, what, evidence, level=Level.UNKNOWN),
    ]


def compared(rows: DataFrame, commits: DataFrame) -> DataFrame:
    """For each event: how many rows it ``has``, how many ``times`` it was committed.

    ``exact``: all its commits wrote one row for each event.
    """
    events = commits.groupBy("commit").agg(F.sum(F.col("end") - F.col("start")).alias("events"))
    ranges = commits.join(events, "commit").where(F.col("end") > F.col("start"))
    expected = ranges.select(
        F.col("partition"),
        F.explode(F.sequence(F.col("start"), F.col("end") - 1)).alias(NUMBER),
        F.lit(1).alias("times"),
        (F.col("rows") == F.col("events")).alias("exact"),
        F.lit(0).alias("has"),
    )
    there = rows.select(
        F.col(PARTITION).cast("string").alias("partition"),
        F.col(NUMBER).cast("long").alias(NUMBER),
        F.lit(0).alias("times"),
        F.lit(True).alias("exact"),
        F.lit(1).alias("has"),
    )
    # A union and one shuffle: cheaper than a full join of two aggregates.
    return (
        expected.unionByName(there)
        .groupBy("partition", NUMBER)
        .agg(
            F.sum("times").alias("times"),
            F.bool_and("exact").alias("exact"),
            F.sum("has").alias("has"),
        )
    )
