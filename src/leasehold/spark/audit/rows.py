"""Rows of the sink: as many as the commits wrote, and of each event as many as its commits have.

A commit whose output has as many rows as it had events is taken as one row for each event. Where a
transformation filters, joins or sums up, nobody can tell which rows there should be: then the
number of the rows stands for them. Where a row may take the place of another (``replaced`` says
why), a row that is not there speaks against nothing: it is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.spark.audit.claims import ROWS_COUNTED, ROWS_ONCE
from leasehold.spark.audit.findings import found, words
from leasehold.spark.audit.record import Level

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from leasehold.spark.audit.record import Claim

PARTITION, NUMBER = "partition", "sequence_number"
_STRAY = "events that have rows and are in no commit"
_MISSING = "events without a row, or with too few"
_DOUBLED = "events with more than one row"
_UNNAMED = "rows that do not say of which event they are"
_MADE = "events with more than one row, which a transformation may have made"


def numbered(rows: DataFrame) -> bool:
    """Whether the rows carry the partition and the number of their event."""
    return {PARTITION, NUMBER} <= set(rows.columns)


def miscounted(rows: DataFrame, commits: DataFrame, *, replaced: str = "") -> list[DataFrame]:
    """Another number of rows than the commits wrote."""
    wrote = commits.select("commit", "rows").distinct().agg(F.sum("rows").alias("wrote"))
    frame = (
        rows.agg(F.count("*").alias("has"))
        .crossJoin(wrote)
        .withColumn("wrote", F.coalesce("wrote", F.lit(0)))
        .withColumn("partition", F.lit(""))
        .where("has != wrote")
    )
    fewer = F.col("has") < F.col("wrote")
    what = F.when(
        fewer, words("rows that are missing in the sink: %d", F.col("wrote") - F.col("has"))
    ).otherwise(words("rows in the sink that no commit wrote: %d", F.col("has") - F.col("wrote")))
    evidence = words("it has %d, the commits wrote %d", "has", "wrote")
    return _by_level(frame, ROWS_COUNTED, what, evidence, fewer, replaced)


def findings(rows: DataFrame, commits: DataFrame, *, replaced: str = "") -> list[DataFrame]:
    """All that speaks against the rows, where they are numbered: by partition and kind."""
    known, exact = F.col("times") > 0, F.col("exact")
    doubled = F.col("has") > F.col("times")
    kind = (
        F.when(F.col(NUMBER).isNull(), _UNNAMED)
        .when(~known, _STRAY)
        .when((F.col("has") < F.col("times")) & exact, _MISSING)
        .when(doubled & exact, _DOUBLED)
        .when(doubled, _MADE)
    )
    unnamed, made = F.col("kind") == _UNNAMED, F.col("kind") == _MADE
    by_kind = (
        compared(rows, commits)
        .withColumn("kind", kind)
        .where("kind is not null")
        .groupBy("partition", "kind")
        .agg(
            F.count("*").alias("events"),
            F.sum("has").alias("has"),
            F.min(NUMBER).alias("low"),
            F.max(NUMBER).alias("high"),
        )
    )
    what = words("%s: %d", "kind", F.when(unnamed, F.col("has")).otherwise(F.col("events")))
    evidence = F.when(unnamed, F.lit("they have no partition or no sequence_number")).otherwise(
        words("the first is event %d, the last event %d", "low", "high")
    )
    missing = F.col("kind") == _MISSING
    return [
        *_by_level(by_kind.where(~made), ROWS_ONCE, what, evidence, missing, replaced),
        found(by_kind.where(made), ROWS_ONCE, what, evidence, level=Level.UNKNOWN),
    ]


def _by_level(
    frame: DataFrame, claim: Claim, what: Column, evidence: Column, missing: Column, replaced: str
) -> list[DataFrame]:
    """Faults; what is ``missing`` is unknown if a row may have been replaced."""
    if not replaced:
        return [found(frame, claim, what, evidence)]
    why = words("%s; %s", evidence, F.lit(replaced))
    return [
        found(frame.where(~missing), claim, what, evidence),
        found(frame.where(missing), claim, what, why, level=Level.UNKNOWN),
    ]


def compared(rows: DataFrame, commits: DataFrame) -> DataFrame:
    """For each event: how many rows it ``has``, how many ``times`` it was committed.

    ``exact``: all its commits wrote one row for each event. Rows that do not say of which event
    they are have no number.
    """
    partition = F.col(PARTITION).cast("string")
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
        F.coalesce(partition, F.lit("")).alias("partition"),
        F.when(partition.isNotNull(), F.col(NUMBER).cast("long")).alias(NUMBER),
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
