"""Judge the material of an audit: every claim that it allows, in a few Spark jobs.

Only the given frames are read. ``rows`` are the rows of the sink, ``log`` those of the log with
``partition``, ``sequence_number`` and ``enqueued_at``. Without them, claims that need them are not
made, and a note says so.

* **Terms**: one owner at a time, each under its own epoch, each end with a reason.
* **Checkpoints**: written by an owner within its term, of this stream, and never ahead of the sink
  or of the log. A checkpoint
  that an operator has set follows nothing, and is not compared with the sink.
* **Commits**: made by owners, in the order of their epochs, each event in one of them. They are
  compared in the order in which the sink has them, never by the times that drivers wrote. A reset
  by an operator may move a position: commits before and after it are checked separately, and the
  jump between them is reported as unknown.
* **Log**: each number from the first retained event to the last one, once.

The times of terms and checkpoints are the store's, so they may be compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.model import EndReason
from leasehold.spark.audit import claims
from leasehold.spark.audit import rows as sink_rows
from leasehold.spark.audit.claims import (
    CHECKPOINTS_FOLLOW,
    CHECKPOINTS_OWNED,
    CHECKPOINTS_STREAM,
    COMMITS_FENCED,
    COMMITS_OWNED,
    COMMITS_TILE,
    ENDS_TOLD,
    EPOCHS_RISE,
    LOG_WHOLE,
    TERMS_APART,
    check_of,
    fetch_findings,
    findings_frame,
    formatted,
)
from leasehold.spark.audit.report import Audit, Lag, Level, counted
from leasehold.spark.audit.tables import tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.window import WindowSpec

    from leasehold.spark.audit.report import AuditMaterial, Check, Claim
    from leasehold.spark.audit.tables import Tables


def term_findings(tables: Tables) -> list[DataFrame]:
    """Return everything that contradicts the claims about terms."""
    return [
        overlapping_terms(tables.terms),
        repeated_epochs(tables.terms),
        skipped_epochs(tables.terms),
        epochs_without_term(tables.terms, tables.epochs),
        forgotten_terms(tables.terms),
        inconsistent_ends(tables.terms),
    ]


def overlapping_terms(terms: DataFrame) -> DataFrame:
    """Find terms that began before an earlier one, by epoch, was over."""
    # A term that lasts ends later than everything that has begun.
    end = F.coalesce("ended_at", F.lit("9999-12-31 00:00:00").cast("timestamp"))
    last = F.max(F.struct(end.alias("at"), "epoch", "holder", "ended")).over(
        _by_epoch().rowsBetween(Window.unboundedPreceding, -1)
    )
    frame = terms.withColumn("last", last).where(F.col("started_at") < F.col("last.at"))
    what = formatted(
        "epoch %d of %s began before epoch %d of %s was over: two owners at once",
        *("epoch", "holder", "last.epoch", "last.holder"),
    )
    evidence = formatted("began %s, the other ended %s", "started", "last.ended")
    return findings_frame(frame, TERMS_APART, what, evidence)


def repeated_epochs(terms: DataFrame) -> DataFrame:
    """Find epochs that were given to two holders."""
    frame = (
        terms.groupBy("partition", "epoch")
        .agg(F.count("*").alias("times"), F.sort_array(F.collect_list("holder")).alias("holders"))
        .where("times > 1")
    )
    what = formatted("epoch %d was given %d times", "epoch", "times")
    return findings_frame(
        frame, EPOCHS_RISE, what, formatted("to %s", F.array_join("holders", " and "))
    )


def skipped_epochs(terms: DataFrame) -> DataFrame:
    """Find epochs between two terms that no holder had."""
    before = F.lag("epoch").over(_by_epoch())
    frame = terms.withColumn("before", before).where(F.col("epoch") > F.col("before") + 1)
    what = formatted("epoch %d follows %d: there are terms that are not told", "epoch", "before")
    return findings_frame(frame, EPOCHS_RISE, what, formatted("%s began %s", "holder", "started"))


def epochs_without_term(terms: DataFrame, epochs: DataFrame) -> DataFrame:
    """Find epochs that the store is at, and that have no term."""
    newest = terms.groupBy("partition").agg(F.max("epoch").alias("newest"))
    frame = epochs.join(newest, "partition", "left").where(
        F.col("epoch") > F.coalesce("newest", F.lit(0))
    )
    what = formatted("the store is at epoch %d, which has no term", "epoch")
    evidence = formatted("the newest term has epoch %d", F.coalesce("newest", F.lit(0)))
    return findings_frame(frame, EPOCHS_RISE, what, evidence)


def forgotten_terms(terms: DataFrame) -> DataFrame:
    """Find partitions whose first terms are no longer kept: unknown."""
    frame = terms.groupBy("partition").agg(F.min("epoch").alias("oldest")).where("oldest > 1")
    what = formatted("the terms before epoch %d are not kept any more", "oldest")
    evidence = F.lit("a store keeps the last 100 terms of a partition at least")
    return findings_frame(frame, EPOCHS_RISE, what, evidence, level=Level.UNKNOWN)


def inconsistent_ends(terms: DataFrame) -> DataFrame:
    """Find ends without a reason, reasons without an end, and ends before the start."""
    ended, reason = F.col("ended_at").isNotNull(), F.col("reason").isNotNull()
    backwards = ended & (F.col("ended_at") < F.col("started_at"))
    reset = F.col("reason") == EndReason.RESET.value
    long_reset = reset & (F.col("ended_at") > F.col("started_at"))
    frame = terms.where((ended != reason) | backwards | long_reset)
    what = (
        F.when(backwards, formatted("epoch %d of %s ended before it began", "epoch", "holder"))
        .when(long_reset, formatted("the reset of epoch %d lasted a while", "epoch"))
        .when(ended, formatted("epoch %d of %s ended without a reason", "epoch", "holder"))
        .otherwise(formatted("epoch %d of %s has a reason and no end", "epoch", "holder"))
    )
    evidence = formatted(
        "began %s, ended %s, reason %s", "started", "ended", F.coalesce("reason", F.lit("none"))
    )
    return findings_frame(frame, ENDS_TOLD, what, evidence)


def _by_epoch() -> WindowSpec:
    return Window.partitionBy("partition").orderBy("epoch", "started_at")


def log_findings(log: DataFrame, ends: DataFrame) -> list[DataFrame]:
    """Find partitions whose events are not those that the catalogue of the log lists."""
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
            formatted("events that are missing: %d", expected - F.col("numbers")),
        )
        .otherwise(F.lit("there are events outside of its ends"))
    )
    evidence = formatted(
        "%d events from %d to %d; it should have those from %d to %d",
        *("events", "low", "high", "first", F.col("next") - 1),
    )
    return [findings_frame(frame, LOG_WHOLE, what, evidence)]


def commit_lags(log: DataFrame, commits: DataFrame, material: AuditMaterial) -> tuple[Lag, ...]:
    """Return the age of the last event of each commit; for display: two clocks are involved."""
    last = commits.select("partition", (F.col("end") - 1).alias("sequence_number"), "ordinal")
    frame = log.join(F.broadcast(last), ["partition", "sequence_number"]).select(
        "ordinal", F.unix_micros("enqueued_at").alias("micros")
    )
    parts = material.commits or ()
    found_lags = []
    for row in sorted(frame.collect()):
        part = parts[row["ordinal"]]
        age_s = part.committed_at.timestamp() - row["micros"] / 1e6
        found_lags.append(
            Lag(
                partition=part.range.partition,
                committed_at=part.committed_at,
                lag_s=max(0.0, age_s),
            )
        )
    return tuple(found_lags)


def checkpoint_findings(tables: Tables, *, sink: bool) -> list[DataFrame]:
    """Return everything that contradicts the checkpoints; with a ``sink``, also by its commits."""
    by_epoch = tables.checkpoints.join(tables.terms, ["partition", "epoch"], "left")
    kept = tables.terms.groupBy("partition").agg(F.min("epoch").alias("oldest"))
    frames = [
        unknown_checkpoints(by_epoch.join(kept, "partition", "left")),
        outdated_checkpoints(by_epoch.join(kept, "partition", "left")),
        checkpoints_outside_term(by_epoch),
    ]
    return [*frames, checkpoints_ahead(by_epoch, tables.commits)] if sink else frames


def unknown_checkpoints(by_epoch: DataFrame) -> DataFrame:
    """Find checkpoints under an epoch that no holder had."""
    frame = by_epoch.where(F.col("holder").isNull()).where(
        F.col("oldest").isNull() | (F.col("epoch") > F.col("oldest"))
    )
    what = formatted("the checkpoint was written under epoch %d, which nobody had", "epoch")
    return findings_frame(frame, CHECKPOINTS_OWNED, what, formatted("written %s", "updated"))


def outdated_checkpoints(by_epoch: DataFrame) -> DataFrame:
    """Find checkpoints of a term that is no longer kept: unknown."""
    frame = by_epoch.where(F.col("holder").isNull() & (F.col("epoch") < F.col("oldest")))
    what = formatted("the checkpoint is of epoch %d, whose term is not kept any more", "epoch")
    evidence = formatted("the oldest term has epoch %d", "oldest")
    return findings_frame(frame, CHECKPOINTS_OWNED, what, evidence, level=Level.UNKNOWN)


def checkpoints_outside_term(by_epoch: DataFrame) -> DataFrame:
    """Find checkpoints that were written before their term began, or after it was over."""
    early = F.col("updated_at") < F.col("started_at")
    late = F.col("updated_at") > F.col("ended_at")
    frame = by_epoch.where(early | late)
    when = F.when(early, "before its term began").otherwise("after its term was over")
    what = formatted("the checkpoint of epoch %d of %s was written %s", "epoch", "holder", when)
    evidence = formatted("written %s, term %s to %s", "updated", "started", "ended")
    return findings_frame(frame, CHECKPOINTS_OWNED, what, evidence)


def stream_findings(tables: Tables, identity: str) -> list[DataFrame]:
    """Return everything that contradicts that the checkpoints are positions of this stream."""
    with_ends = tables.checkpoints.join(tables.ends, "partition")
    evidence = formatted("checkpoint of epoch %d, written %s", "epoch", "updated")
    elsewhere = with_ends.where((F.col("stream") != "") & (F.col("stream") != identity))
    other = formatted(
        "the checkpoint at event %d is of the stream of %s, which was deleted, and this one is of "
        f"{identity.replace('%', '%%')}: the group has done nothing of this one",
        F.col("resumes_at") - 1,
        "stream",
    )
    here = with_ends.where(F.col("stream").isin("", identity) & (F.col("resumes_at") > 0))
    beyond = formatted(
        "the checkpoint says that events up to %d are done, and the log ends before event %d: "
        "files of the stream were lost, or it was recreated",
        F.col("resumes_at") - 1,
        "next",
    )
    missed = formatted(
        "events %d to %d were removed from the log before the group was done with them",
        "resumes_at",
        F.col("first") - 1,
    )
    unnamed = formatted(
        "the checkpoint at event %d does not say of which stream it is: an older version wrote it; "
        "the next write says it",
        F.col("resumes_at") - 1,
    )
    late = F.col("stored_at") > F.col("updated_at") + F.expr(f"INTERVAL {_CLOCKS_DIFFER_S} SECONDS")
    begun_again = formatted(
        "event %d was stored after the checkpoint that says it is done: the stream has lost its "
        "files and begun again, or clocks differ by more than a minute",
        F.col("resumes_at") - 1,
    )
    return [
        findings_frame(
            here.where(late), CHECKPOINTS_STREAM, begun_again, evidence, level=Level.UNKNOWN
        ),
        findings_frame(elsewhere, CHECKPOINTS_STREAM, other, evidence),
        findings_frame(
            here.where(F.col("resumes_at") > F.col("next")), CHECKPOINTS_STREAM, beyond, evidence
        ),
        findings_frame(
            here.where(F.col("resumes_at") < F.col("first")),
            CHECKPOINTS_STREAM,
            missed,
            evidence,
            level=Level.UNKNOWN,
        ),
        findings_frame(
            here.where(F.col("stream") == ""),
            CHECKPOINTS_STREAM,
            unnamed,
            evidence,
            level=Level.UNKNOWN,
        ),
    ]


def checkpoints_ahead(by_epoch: DataFrame, commits: DataFrame) -> DataFrame:
    """Find checkpoints before which there are events that the sink does not hold."""
    held = commits.groupBy("partition").agg(F.max_by("end", "ordinal").alias("position"))
    operators = F.coalesce(F.col("reason") == EndReason.RESET.value, F.lit(False))
    position = F.coalesce("position", F.lit(0))
    frame = (
        by_epoch.where(~operators)
        .join(held, "partition", "left")
        .where(F.col("resumes_at") > position)
    )
    what = formatted(
        "the checkpoint says that events up to %d are done, and the sink holds those up to %d",
        *(F.col("resumes_at") - 1, position - 1),
    )
    evidence = formatted("checkpoint of epoch %d, written %s", "epoch", "updated")
    return findings_frame(frame, CHECKPOINTS_FOLLOW, what, evidence)


def commit_findings(tables: Tables) -> list[DataFrame]:
    """Return everything that contradicts the commits."""
    by_run = with_runs(tables.commits, tables.terms)
    return [
        unknown_commits(tables.commits, tables.terms),
        outdated_commits(tables.commits, tables.terms),
        late_commits(tables.commits),
        commit_gaps(by_run),
        overlapping_runs(by_run),
        reset_jumps(by_run),
        uncommitted_beginnings(tables.commits, tables.ends),
        commits_beyond_log(tables.commits, tables.ends),
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


def unknown_commits(commits: DataFrame, terms: DataFrame) -> DataFrame:
    """Find commits under an epoch that no holder, or another holder, had."""
    owners = terms.select("partition", "epoch", F.col("holder").alias("owner"))
    oldest = terms.groupBy("partition").agg(F.min("epoch").alias("oldest"))
    joined = commits.join(owners, ["partition", "epoch"], "left").join(oldest, "partition", "left")
    nobody = F.col("owner").isNull() & F.coalesce(F.col("epoch") > F.col("oldest"), F.lit(True))
    frame = joined.where(nobody | (F.col("owner") != F.col("holder")))
    what = F.when(
        nobody, formatted("a commit of %s is under epoch %d, which nobody had", "holder", "epoch")
    ).otherwise(
        formatted(
            "a commit of %s is under epoch %d, which was that of %s", "holder", "epoch", "owner"
        )
    )
    return findings_frame(frame, COMMITS_OWNED, what, _commit_label())


def outdated_commits(commits: DataFrame, terms: DataFrame) -> DataFrame:
    """Find commits of terms that are no longer kept: unknown."""
    oldest = terms.groupBy("partition").agg(F.min("epoch").alias("oldest"))
    frame = (
        commits.join(oldest, "partition")
        .where(F.col("epoch") < F.col("oldest"))
        .groupBy("partition", "oldest")
        .agg(F.count("*").alias("commits"))
    )
    what = formatted("commits of terms that are not kept any more: %d", "commits")
    evidence = formatted("the oldest term has epoch %d", "oldest")
    return findings_frame(frame, COMMITS_OWNED, what, evidence, level=Level.UNKNOWN)


def late_commits(commits: DataFrame) -> DataFrame:
    """Find commits of an owner after one of its successors: a fenced driver was not refused."""
    highest = F.max(F.struct("epoch", "holder", "commit")).over(_before("partition"))
    frame = commits.withColumn("newer", highest).where(F.col("epoch") < F.col("newer.epoch"))
    what = formatted(
        "%s committed under epoch %d after %s had committed under epoch %d",
        *("holder", "epoch", "newer.holder", "newer.epoch"),
    )
    return findings_frame(frame, COMMITS_FENCED, what, _commit_label())


def commit_gaps(by_run: DataFrame) -> DataFrame:
    """Find events between two commits that are in none."""
    frame = by_run.withColumn("reached", F.max("end").over(_before("partition", "run"))).where(
        F.col("start") > F.col("reached")
    )
    what = formatted("events %d to %d are in no commit", "reached", F.col("start") - 1)
    return findings_frame(frame, COMMITS_TILE, what, formatted("before %s", _commit_label()))


def overlapping_runs(by_run: DataFrame) -> DataFrame:
    """Find events that are in two commits."""
    frame = by_run.withColumn("reached", F.max("end").over(_before("partition", "run"))).where(
        F.col("start") < F.col("reached")
    )
    last = F.least("reached", "end") - 1
    what = formatted("events %d to %d were committed again", "start", last)
    return findings_frame(frame, COMMITS_TILE, what, _commit_label())


def reset_jumps(by_run: DataFrame) -> DataFrame:
    """Find positions that an operator's reset moved: unknown, since it was intended."""
    frame = (
        by_run.withColumn("before", F.lag("end").over(_in_order("partition")))
        .withColumn("run_before", F.lag("run").over(_in_order("partition")))
        .where((F.col("run") != F.col("run_before")) & (F.col("start") != F.col("before")))
    )
    back = F.col("start") < F.col("before")
    what = F.when(
        back, formatted("a reset went back from event %d to %d: they came again", "before", "start")
    ).otherwise(
        formatted("a reset went on from event %d to %d: they were left out", "before", "start")
    )
    return findings_frame(frame, COMMITS_TILE, what, _commit_label(), level=Level.UNKNOWN)


def uncommitted_beginnings(commits: DataFrame, ends: DataFrame) -> DataFrame:
    """Find events before the first commit that the log still has: unknown why."""
    begun = commits.groupBy("partition").agg(F.min_by("start", "ordinal").alias("begun"))
    first = F.coalesce("first", F.lit(0))
    frame = begun.join(ends, "partition", "left").where(F.col("begun") > first)
    what = formatted(
        "events %d to %d come before the first commit that is told", first, F.col("begun") - 1
    )
    evidence = F.lit("the group began there, or the sink has forgotten its oldest commits")
    return findings_frame(frame, COMMITS_TILE, what, evidence, level=Level.UNKNOWN)


def commits_beyond_log(commits: DataFrame, ends: DataFrame) -> DataFrame:
    """Find commits of events that the log has never had."""
    frame = commits.join(ends, "partition").where(F.col("end") > F.col("next"))
    what = formatted(
        "events %d to %d were committed, and the log ends before event %d",
        *(F.greatest("start", "next"), F.col("end") - 1, "next"),
    )
    return findings_frame(frame, COMMITS_TILE, what, _commit_label())


def _commit_label() -> Column:
    return formatted("commit %s: [%d, %d), epoch %d", "commit", "start", "end", "epoch")


def _in_order(*names: str) -> WindowSpec:
    return Window.partitionBy(*names).orderBy("ordinal")


def _before(*names: str) -> WindowSpec:
    return _in_order(*names).rowsBetween(Window.unboundedPreceding, -1)


_SINK_CHANGED = "the sink was written while it was read: stop the drivers, then audit again"
_MAX_ERROR_CHARS = 300
_CLOCKS_DIFFER_S = 60  # the time of an event is that of its producer's machine, never proof
# Compiling code for a hundred rows takes longer than reading them: a third of the CPU.
_SMALL_QUERY_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
# Raised by Spark if an action fails: its own errors, or those of the JVM.
_SPARK_ERRORS = (PySparkException, Py4JJavaError)


def judge(
    spark: SparkSession,
    material: AuditMaterial,
    *,
    rows: DataFrame | None = None,
    log: DataFrame | None = None,
) -> Audit:
    """Judge every claim that this material allows, and note what it cannot show."""
    small, large = tables(_small_query_session(spark), material), tables(spark, material)
    sink, by_number = material.commits is not None, rows is not None and sink_rows.numbered(rows)
    frames = [*term_findings(small), *checkpoint_findings(small, sink=sink)]
    frames += stream_findings(small, material.identity)
    if sink:
        frames += commit_findings(small)
    seen = dict(fetch_findings(frames))
    try:
        seen |= fetch_findings(
            _row_findings(rows, large, material.rows_replaced, by_number=by_number)
        )
    except _SPARK_ERRORS as error:
        material = replace(material, rows_trouble=_error_text(error))
    lags: tuple[Lag, ...] = ()
    try:
        if log is not None:
            seen |= fetch_findings(log_findings(log, large.ends))
            lags = commit_lags(log, large.commits, material) if material.commits else ()
    except _SPARK_ERRORS as error:
        material = replace(material, log_trouble=_error_text(error))
    checks = tuple(
        check_of(claim, number, seen, _unseen(claim, material))
        for claim, number in _tested_claims(material, rows=rows is not None, by_number=by_number)
    )
    notes = tuple(_notes(material, checks, rows=rows is not None, by_number=by_number))
    return Audit(material=material, checks=checks, notes=notes, lags=lags)


def _small_query_session(spark: SparkSession) -> SparkSession:
    """Return a session for many small queries; the caller's settings stay as they are.

    After making a DataFrame with it, make the next one with the caller's session: the session that
    made the last DataFrame is the active one.
    """
    quick = spark.newSession()
    for key, value in _SMALL_QUERY_SETTINGS.items():
        quick.conf.set(key, value)
    return quick


def _row_findings(
    rows: DataFrame | None, large: Tables, replaced: str, *, by_number: bool
) -> list[DataFrame]:
    if rows is None:
        return []
    frames = sink_rows.miscounted(rows, large.commits, replaced=replaced)
    if by_number:
        frames += sink_rows.findings(rows, large.commits, replaced=replaced)
    return frames


def _error_text(error: Exception) -> str:
    """Return the line that names the failure, without the JVM's stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("leasehold.errors.")]
    causes = [line for line in lines if line.startswith((": ", "Caused by: "))]
    return (ours or causes or lines or [type(error).__name__])[-1].lstrip(": ")[:_MAX_ERROR_CHARS]


def _tested_claims(
    material: AuditMaterial, *, rows: bool, by_number: bool
) -> list[tuple[Claim, int]]:
    """Return the claims that can be tested, and the number of things each was tested on."""
    terms, checkpoints = len(material.terms), len(material.checkpoints)
    tested = [
        (claims.TERMS_APART, terms),
        (claims.EPOCHS_RISE, terms),
        (claims.ENDS_TOLD, terms),
        (claims.CHECKPOINTS_OWNED, checkpoints),
    ]
    if material.ends is not None:
        tested.append((claims.CHECKPOINTS_STREAM, checkpoints))
    if material.sink is not None:
        parts = material.commits or ()
        number = len({each.commit for each in parts})
        tested += [
            (claims.CHECKPOINTS_FOLLOW, checkpoints),
            (claims.COMMITS_OWNED, number),
            (claims.COMMITS_FENCED, number),
            (claims.COMMITS_TILE, number),
        ]
        if rows or material.rows_trouble:
            wrote = {each.commit: each.rows for each in parts}
            tested.append((claims.ROWS_COUNTED, sum(wrote.values())))
        if by_number:
            tested.append((claims.ROWS_ONCE, sum(len(each.range) for each in parts)))
    if material.ends is not None or material.log_trouble:
        events = sum(each.next - each.first for each in (material.ends or {}).values())
        tested.append((claims.LOG_WHOLE, events))
    return tested


def _unseen(claim: Claim, material: AuditMaterial) -> list[str]:
    """Return what could not be checked for this claim, besides the findings."""
    if material.rows_trouble and claim in (claims.ROWS_COUNTED, claims.ROWS_ONCE):
        return [f"the rows of the sink could not be read: {material.rows_trouble}"]
    if material.log_trouble and claim is claims.LOG_WHOLE:
        return [f"the log could not be read: {material.log_trouble}"]
    if not material.settled and claim in (claims.ROWS_COUNTED, claims.ROWS_ONCE):
        return [_SINK_CHANGED]
    return []


def _notes(
    material: AuditMaterial, checks: tuple[Check, ...], *, rows: bool, by_number: bool
) -> list[str]:
    """Return notes on what was not requested, and on the extent of the proof."""
    notes = []
    if material.sink is None:
        notes.append("no sink was named: of commits and rows nothing is claimed")
    elif not rows and not material.rows_trouble:
        notes.append("the rows of the sink were not read: its commits stand for them")
    elif rows and not by_number:
        notes.append(
            "the rows carry no partition and sequence_number: that every event is there once is "
            "shown by the commits, and by the number of rows"
        )
    if material.ends is None and not material.log_trouble:
        notes.append("the stream is none of the store's log: its events were not read")
    elif material.ends is not None and material.commits is not None:
        notes.append(_reach(material))
    if any(each.unknown for each in checks):
        notes.append("what could not be looked at is listed with the findings")
    return notes


def _reach(material: AuditMaterial) -> str:
    committed = sum(len(each.range) for each in material.commits or ())
    waiting = sum(
        max(0, each.next - material.positions.get(partition, each.first))
        for partition, each in (material.ends or {}).items()
    )
    held, left = counted(committed, "event"), counted(waiting, "event")
    return f"the commits hold {held}; {left} of the log wait"
