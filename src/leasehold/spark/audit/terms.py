"""Terms: one owner at a time, each under an epoch of its own, each with an end that is told.

All times here are those of the store, so they may be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.model import EndReason
from leasehold.spark.audit.claims import ENDS_TOLD, EPOCHS_RISE, TERMS_APART
from leasehold.spark.audit.findings import found, words
from leasehold.spark.audit.record import Level

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.window import WindowSpec

    from leasehold.spark.audit.tables import Tables


def findings(tables: Tables) -> list[DataFrame]:
    """All that speaks against the terms."""
    return [
        overlaps(tables.terms),
        twice(tables.terms),
        skipped(tables.terms),
        lost(tables.terms, tables.epochs),
        forgotten(tables.terms),
        untold(tables.terms),
    ]


def overlaps(terms: DataFrame) -> DataFrame:
    """A term that began before an earlier one, by epoch, was over."""
    # A term that lasts ends later than everything that has begun.
    end = F.coalesce("ended_at", F.lit("9999-12-31 00:00:00").cast("timestamp"))
    last = F.max(F.struct(end.alias("at"), "epoch", "holder", "ended")).over(
        _in_order().rowsBetween(Window.unboundedPreceding, -1)
    )
    frame = terms.withColumn("last", last).where(F.col("started_at") < F.col("last.at"))
    what = words(
        "epoch %d of %s began before epoch %d of %s was over: two owners at once",
        *("epoch", "holder", "last.epoch", "last.holder"),
    )
    evidence = words("began %s, the other ended %s", "started", "last.ended")
    return found(frame, TERMS_APART, what, evidence)


def twice(terms: DataFrame) -> DataFrame:
    """An epoch that was given to two."""
    frame = (
        terms.groupBy("partition", "epoch")
        .agg(F.count("*").alias("times"), F.sort_array(F.collect_list("holder")).alias("holders"))
        .where("times > 1")
    )
    what = words("epoch %d was given %d times", "epoch", "times")
    return found(frame, EPOCHS_RISE, what, words("to %s", F.array_join("holders", " and ")))


def skipped(terms: DataFrame) -> DataFrame:
    """Epochs between two terms that nobody had."""
    before = F.lag("epoch").over(_in_order())
    frame = terms.withColumn("before", before).where(F.col("epoch") > F.col("before") + 1)
    what = words("epoch %d follows %d: there are terms that are not told", "epoch", "before")
    return found(frame, EPOCHS_RISE, what, words("%s began %s", "holder", "started"))


def lost(terms: DataFrame, epochs: DataFrame) -> DataFrame:
    """An epoch that the store is at, and that has no term."""
    newest = terms.groupBy("partition").agg(F.max("epoch").alias("newest"))
    frame = epochs.join(newest, "partition", "left").where(
        F.col("epoch") > F.coalesce("newest", F.lit(0))
    )
    what = words("the store is at epoch %d, which has no term", "epoch")
    evidence = words("the newest term has epoch %d", F.coalesce("newest", F.lit(0)))
    return found(frame, EPOCHS_RISE, what, evidence)


def forgotten(terms: DataFrame) -> DataFrame:
    """Partitions whose first terms are not kept any more: unknown."""
    frame = terms.groupBy("partition").agg(F.min("epoch").alias("oldest")).where("oldest > 1")
    what = words("the terms before epoch %d are not kept any more", "oldest")
    evidence = F.lit("a store keeps the last 100 terms of a partition at least")
    return found(frame, EPOCHS_RISE, what, evidence, level=Level.UNKNOWN)


def untold(terms: DataFrame) -> DataFrame:
    """Ends without a reason, reasons without an end, and ends before the start."""
    ended, reason = F.col("ended_at").isNotNull(), F.col("reason").isNotNull()
    backwards = ended & (F.col("ended_at") < F.col("started_at"))
    reset = F.col("reason") == EndReason.RESET.value
    long_reset = reset & (F.col("ended_at") > F.col("started_at"))
    frame = terms.where((ended != reason) | backwards | long_reset)
    what = (
        F.when(backwards, words("epoch %d of %s ended before it began", "epoch", "holder"))
        .when(long_reset, words("the reset of epoch %d lasted a while", "epoch"))
        .when(ended, words("epoch %d of %s ended without a reason", "epoch", "holder"))
        .otherwise(words("epoch %d of %s has a reason and no end", "epoch", "holder"))
    )
    evidence = words(
        "began %s, ended %s, reason %s", "started", "ended", F.coalesce("reason", F.lit("none"))
    )
    return found(frame, ENDS_TOLD, what, evidence)


def _in_order() -> WindowSpec:
    return Window.partitionBy("partition").orderBy("epoch", "started_at")
