"""The log: each number from the first event that is kept to the last one, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.spark.audit.claims import LOG_WHOLE
from leasehold.spark.audit.findings import found, words
from leasehold.spark.audit.record import Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from leasehold.spark.audit.material import Material


def findings(log: DataFrame, ends: DataFrame) -> list[DataFrame]:
    """Partitions whose events are not what the catalogue of the log says."""
    counts = log.groupBy("partition").agg(
        F.count("*").alias("events"),
        F.count_distinct("sequence_number").alias("numbers"),
        F.min("sequence_number").alias("low"),
        F.max("sequence_number").alias("high"),
    )
    nothing: dict[str, bool | float | int | str] = {
        "events": 0,
        "numbers": 0,
        "low": -1,
        "high": -1,
    }
    expected = F.col("next") - F.col("first")
    joined = ends.join(counts, "partition", "left").fillna(nothing)
    outside = (F.col("low") < F.col("first")) | (F.col("high") >= F.col("next"))
    wrong = (F.col("numbers") != expected) | (F.col("events") != expected)
    frame = joined.where(wrong | ((expected > 0) & outside))
    what = (
        F.when(F.col("events") > F.col("numbers"), F.lit("numbers are given twice"))
        .when(
            F.col("numbers") < expected,
            words("events that are missing: %d", expected - F.col("numbers")),
        )
        .otherwise(F.lit("there are events outside of its ends"))
    )
    evidence = words(
        "%d events from %d to %d; it should have those from %d to %d",
        *("events", "low", "high", "first", F.col("next") - 1),
    )
    return [found(frame, LOG_WHOLE, what, evidence)]


def lags(log: DataFrame, commits: DataFrame, material: Material) -> tuple[Lag, ...]:
    """How old the last event of each commit was; to be shown, since two clocks are in it."""
    last = commits.select("partition", (F.col("end") - 1).alias("sequence_number"), "ordinal")
    frame = log.join(F.broadcast(last), ["partition", "sequence_number"]).select(
        "ordinal", F.unix_micros("enqueued_at").alias("micros")
    )
    shares = material.commits or ()
    found_lags = []
    for row in sorted(frame.collect()):
        share = shares[row["ordinal"]]
        age_s = share.committed_at.timestamp() - row["micros"] / 1e6
        found_lags.append(
            Lag(
                partition=share.range.partition,
                committed_at=share.committed_at,
                lag_s=max(0.0, age_s),
            )
        )
    return tuple(found_lags)
