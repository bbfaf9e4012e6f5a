"""Checkpoints: written by an owner within its term, and never ahead of what the sink holds.

The time of a checkpoint and those of a term are the store's, so they may be compared. A checkpoint
that an operator has put somewhere follows nothing: it is left out where it is compared to the sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.model import EndReason
from leasehold.spark.audit.claims import CHECKPOINTS_FOLLOW, CHECKPOINTS_OWNED
from leasehold.spark.audit.findings import found, words
from leasehold.spark.audit.record import Level

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from leasehold.spark.audit.tables import Tables


def findings(tables: Tables, *, sink: bool) -> list[DataFrame]:
    """All that speaks against the checkpoints; with a ``sink`` also what it says of them."""
    by_epoch = tables.checkpoints.join(tables.terms, ["partition", "epoch"], "left")
    kept = tables.terms.groupBy("partition").agg(F.min("epoch").alias("oldest"))
    frames = [
        strangers(by_epoch.join(kept, "partition", "left")),
        too_old(by_epoch.join(kept, "partition", "left")),
        untimely(by_epoch),
    ]
    return [*frames, ahead(by_epoch, tables.commits)] if sink else frames


def strangers(by_epoch: DataFrame) -> DataFrame:
    """A checkpoint under an epoch that nobody had."""
    frame = by_epoch.where(F.col("holder").isNull()).where(
        F.col("oldest").isNull() | (F.col("epoch") > F.col("oldest"))
    )
    what = words("the checkpoint was written under epoch %d, which nobody had", "epoch")
    return found(frame, CHECKPOINTS_OWNED, what, words("written %s", "updated"))


def too_old(by_epoch: DataFrame) -> DataFrame:
    """A checkpoint of a term that is not kept any more: unknown."""
    frame = by_epoch.where(F.col("holder").isNull() & (F.col("epoch") < F.col("oldest")))
    what = words("the checkpoint is of epoch %d, whose term is not kept any more", "epoch")
    evidence = words("the oldest term has epoch %d", "oldest")
    return found(frame, CHECKPOINTS_OWNED, what, evidence, level=Level.UNKNOWN)


def untimely(by_epoch: DataFrame) -> DataFrame:
    """A checkpoint that was written before its term began, or after it was over."""
    early = F.col("updated_at") < F.col("started_at")
    late = F.col("updated_at") > F.col("ended_at")
    frame = by_epoch.where(early | late)
    when = F.when(early, "before its term began").otherwise("after its term was over")
    what = words("the checkpoint of epoch %d of %s was written %s", "epoch", "holder", when)
    evidence = words("written %s, term %s to %s", "updated", "started", "ended")
    return found(frame, CHECKPOINTS_OWNED, what, evidence)


def ahead(by_epoch: DataFrame, commits: DataFrame) -> DataFrame:
    """A checkpoint behind which events are that the sink does not hold."""
    held = commits.groupBy("partition").agg(F.max_by("end", "ordinal").alias("position"))
    operators = F.coalesce(F.col("reason") == EndReason.RESET.value, F.lit(False))
    position = F.coalesce("position", F.lit(0))
    frame = (
        by_epoch.where(~operators)
        .join(held, "partition", "left")
        .where(F.col("resumes_at") > position)
    )
    what = words(
        "the checkpoint says that events up to %d are done, and the sink holds those up to %d",
        *(F.col("resumes_at") - 1, position - 1),
    )
    evidence = words("checkpoint of epoch %d, written %s", "epoch", "updated")
    return found(frame, CHECKPOINTS_FOLLOW, what, evidence)
