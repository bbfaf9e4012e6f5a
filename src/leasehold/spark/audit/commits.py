"""Commits of the sink: made by owners, in the order of their epochs, each event in one of them.

Commits are compared in the order in which the sink has them, never by the times that drivers wrote
into them. An operator's reset may move a position: what comes before it and what comes after it
are looked at apart, and the jump between them is told as something that nobody can prove.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.model import EndReason
from leasehold.spark.audit.claims import COMMITS_FENCED, COMMITS_OWNED, COMMITS_TILE
from leasehold.spark.audit.findings import found, words
from leasehold.spark.audit.record import Level

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

    from leasehold.spark.audit.tables import Tables


def findings(tables: Tables) -> list[DataFrame]:
    """All that speaks against the commits."""
    by_run = with_runs(tables.commits, tables.terms)
    return [
        strangers(tables.commits, tables.terms),
        too_old(tables.commits, tables.terms),
        late(tables.commits),
        gaps(by_run),
        overlaps(by_run),
        jumps(by_run),
        beginnings(tables.commits, tables.ends),
        beyond(tables.commits, tables.ends),
    ]


def with_runs(commits: DataFrame, terms: DataFrame) -> DataFrame:
    """Add ``run``: how many resets came before the commit, by its epoch."""
    resets = (
        terms.where(F.col("reason") == EndReason.RESET.value)
        .groupBy("partition")
        .agg(F.collect_list("epoch").alias("resets"))
    )
    epoch = F.col("epoch")
    run = F.size(F.filter(F.coalesce("resets", F.array()), lambda each: each < epoch))
    return commits.join(resets, "partition", "left").withColumn("run", run).drop("resets")


def strangers(commits: DataFrame, terms: DataFrame) -> DataFrame:
    """A commit under an epoch that nobody, or somebody else, had."""
    owners = terms.select("partition", "epoch", F.col("holder").alias("owner"))
    oldest = terms.groupBy("partition").agg(F.min("epoch").alias("oldest"))
    joined = commits.join(owners, ["partition", "epoch"], "left").join(oldest, "partition", "left")
    nobody = F.col("owner").isNull() & F.coalesce(F.col("epoch") > F.col("oldest"), F.lit(True))
    frame = joined.where(nobody | (F.col("owner") != F.col("holder")))
    what = F.when(
        nobody, words("a commit of %s is under epoch %d, which nobody had", "holder", "epoch")
    ).otherwise(
        words("a commit of %s is under epoch %d, which was that of %s", "holder", "epoch", "owner")
    )
    return found(frame, COMMITS_OWNED, what, _named())


def too_old(commits: DataFrame, terms: DataFrame) -> DataFrame:
    """Commits of terms that are not kept any more: unknown."""
    oldest = terms.groupBy("partition").agg(F.min("epoch").alias("oldest"))
    frame = (
        commits.join(oldest, "partition")
        .where(F.col("epoch") < F.col("oldest"))
        .groupBy("partition", "oldest")
        .agg(F.count("*").alias("commits"))
    )
    what = words("commits of terms that are not kept any more: %d", "commits")
    evidence = words("the oldest term has epoch %d", "oldest")
    return found(frame, COMMITS_OWNED, what, evidence, level=Level.UNKNOWN)


def late(commits: DataFrame) -> DataFrame:
    """A commit of an owner after one of its successors: a zombie came through."""
    highest = F.max(F.struct("epoch", "holder", "commit")).over(_before("partition"))
    frame = commits.withColumn("newer", highest).where(F.col("epoch") < F.col("newer.epoch"))
    what = words(
        "%s committed under epoch %d after %s had committed under epoch %d",
        *("holder", "epoch", "newer.holder", "newer.epoch"),
    )
    return found(frame, COMMITS_FENCED, what, _named())


def gaps(by_run: DataFrame) -> DataFrame:
    """Events between two commits that are in none."""
    frame = by_run.withColumn("reached", F.max("end").over(_before("partition", "run"))).where(
        F.col("start") > F.col("reached")
    )
    what = words("events %d to %d are in no commit", "reached", F.col("start") - 1)
    return found(frame, COMMITS_TILE, what, words("before %s", _named()))


def overlaps(by_run: DataFrame) -> DataFrame:
    """Events that are in two commits."""
    frame = by_run.withColumn("reached", F.max("end").over(_before("partition", "run"))).where(
        F.col("start") < F.col("reached")
    )
    last = F.least("reached", "end") - 1
    what = words("events %d to %d were committed again", "start", last)
    return found(frame, COMMITS_TILE, what, _named())


def jumps(by_run: DataFrame) -> DataFrame:
    """Where an operator's reset moved the position: unknown, since it was on purpose."""
    frame = (
        by_run.withColumn("before", F.lag("end").over(_in_order("partition")))
        .withColumn("run_before", F.lag("run").over(_in_order("partition")))
        .where((F.col("run") != F.col("run_before")) & (F.col("start") != F.col("before")))
    )
    back = F.col("start") < F.col("before")
    what = F.when(
        back, words("a reset went back from event %d to %d: they came again", "before", "start")
    ).otherwise(words("a reset went on from event %d to %d: they were left out", "before", "start"))
    return found(frame, COMMITS_TILE, what, _named(), level=Level.UNKNOWN)


def beginnings(commits: DataFrame, ends: DataFrame) -> DataFrame:
    """Events before the first commit that the log still has: unknown why."""
    begun = commits.groupBy("partition").agg(F.min_by("start", "ordinal").alias("begun"))
    first = F.coalesce("first", F.lit(0))
    frame = begun.join(ends, "partition", "left").where(F.col("begun") > first)
    what = words(
        "events %d to %d come before the first commit that is told", first, F.col("begun") - 1
    )
    evidence = F.lit("the group began there, or the sink has forgotten its oldest commits")
    return found(frame, COMMITS_TILE, what, evidence, level=Level.UNKNOWN)


def beyond(commits: DataFrame, ends: DataFrame) -> DataFrame:
    """Commits of events that the log has never had."""
    frame = commits.join(ends, "partition").where(F.col("end") > F.col("next"))
    what = words(
        "events %d to %d were committed, and the log ends before event %d",
        *(F.greatest("start", "next"), F.col("end") - 1, "next"),
    )
    return found(frame, COMMITS_TILE, what, _named())


def _named() -> Column:
    return words("commit %s: [%d, %d), epoch %d", "commit", "start", "end", "epoch")


def _in_order(*names: str) -> WindowSpec:
    return Window.partitionBy(*names).orderBy("ordinal")


def _before(*names: str) -> WindowSpec:
    return _in_order(*names).rowsBetween(Window.unboundedPreceding, -1)
