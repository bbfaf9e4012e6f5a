"""Judge the material: every claim that it allows, in a few Spark jobs. Nothing is read but frames.

``rows`` are the rows of the sink, ``log`` those of the log with ``partition``, ``sequence_number``
and ``enqueued_at``; without them what needs them is not claimed, and a note says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from leasehold.spark.audit import checkpoints, claims, commits, logs, terms
from leasehold.spark.audit import rows as sink_rows
from leasehold.spark.audit.findings import check_of, fetched
from leasehold.spark.audit.record import Audit, counted
from leasehold.spark.audit.tables import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.audit.material import Material
    from leasehold.spark.audit.record import Check, Claim, Lag
    from leasehold.spark.audit.tables import Tables

_LIVE = "the sink was written while it was read: stop the drivers, then audit again"
_LONGEST = 300
# To compile code for a hundred rows takes longer than to look at them: a third of the CPU.
_SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
# What Spark raises if an action fails: of its own, or as it comes from the JVM.
_TROUBLE = (PySparkException, Py4JJavaError)


def judge(
    spark: SparkSession,
    material: Material,
    *,
    rows: DataFrame | None = None,
    log: DataFrame | None = None,
) -> Audit:
    """Every claim that can be judged on this material, and what it can not say."""
    small, made = tables(_quick(spark), material), tables(spark, material)
    sink, by_number = material.commits is not None, rows is not None and sink_rows.numbered(rows)
    frames = [*terms.findings(small), *checkpoints.findings(small, sink=sink)]
    if sink:
        frames += commits.findings(small)
    seen = dict(fetched(frames))
    try:
        seen |= fetched(_of_the_rows(rows, made, material.rows_replaced, by_number=by_number))
    except _TROUBLE as error:
        material = replace(material, rows_trouble=_short(error))
    lags: tuple[Lag, ...] = ()
    try:
        if log is not None:
            seen |= fetched(logs.findings(log, made.ends))
            lags = logs.lags(log, made.commits, material) if material.commits else ()
    except _TROUBLE as error:
        material = replace(material, log_trouble=_short(error))
    checks = tuple(
        check_of(claim, number, seen, _unseen(claim, material))
        for claim, number in _asked(material, rows=rows is not None, by_number=by_number)
    )
    notes = tuple(_notes(material, checks, rows=rows is not None, by_number=by_number))
    return Audit(material=material, checks=checks, notes=notes, lags=lags)


def _quick(spark: SparkSession) -> SparkSession:
    """A session for many small queries, beside the caller's, whose settings stay as they are.

    Whoever makes a DataFrame with it must make one with the caller's own next: the session that
    made the last one is the active one.
    """
    found = spark.newSession()
    for key, value in _SMALL.items():
        found.conf.set(key, value)
    return found


def _of_the_rows(
    rows: DataFrame | None, made: Tables, replaced: str, *, by_number: bool
) -> list[DataFrame]:
    if rows is None:
        return []
    frames = sink_rows.miscounted(rows, made.commits, replaced=replaced)
    if by_number:
        frames += sink_rows.findings(rows, made.commits, replaced=replaced)
    return frames


def _short(error: Exception) -> str:
    """The line that says what happened, without the stack of the JVM."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("leasehold.errors.")]
    causes = [line for line in lines if line.startswith((": ", "Caused by: "))]
    return (ours or causes or lines or [type(error).__name__])[-1].lstrip(": ")[:_LONGEST]


def _asked(material: Material, *, rows: bool, by_number: bool) -> list[tuple[Claim, int]]:
    """The claims that are made, and on how many things each was tested."""
    held, marks = len(material.terms), len(material.checkpoints)
    asked = [
        (claims.TERMS_APART, held),
        (claims.EPOCHS_RISE, held),
        (claims.ENDS_TOLD, held),
        (claims.CHECKPOINTS_OWNED, marks),
    ]
    if material.sink is not None:
        shares = material.commits or ()
        number = len({each.commit for each in shares})
        asked += [
            (claims.CHECKPOINTS_FOLLOW, marks),
            (claims.COMMITS_OWNED, number),
            (claims.COMMITS_FENCED, number),
            (claims.COMMITS_TILE, number),
        ]
        if rows or material.rows_trouble:
            wrote = {each.commit: each.rows for each in shares}
            asked.append((claims.ROWS_COUNTED, sum(wrote.values())))
        if by_number:
            asked.append((claims.ROWS_ONCE, sum(len(each.range) for each in shares)))
    if material.ends is not None or material.log_trouble:
        events = sum(each.next - each.first for each in (material.ends or {}).values())
        asked.append((claims.LOG_WHOLE, events))
    return asked


def _unseen(claim: Claim, material: Material) -> list[str]:
    """What could not be looked at, for this claim, besides what the checks find."""
    if material.rows_trouble and claim in (claims.ROWS_COUNTED, claims.ROWS_ONCE):
        return [f"the rows of the sink could not be read: {material.rows_trouble}"]
    if material.log_trouble and claim is claims.LOG_WHOLE:
        return [f"the log could not be read: {material.log_trouble}"]
    if not material.settled and claim in (claims.ROWS_COUNTED, claims.ROWS_ONCE):
        return [_LIVE]
    return []


def _notes(
    material: Material, checks: tuple[Check, ...], *, rows: bool, by_number: bool
) -> list[str]:
    """What was not asked for, and how far the proof reaches."""
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


def _reach(material: Material) -> str:
    held = sum(len(each.range) for each in material.commits or ())
    waiting = sum(
        max(0, each.next - material.positions.get(partition, each.first))
        for partition, each in (material.ends or {}).items()
    )
    return f"the commits hold {counted(held, 'event')}; {counted(waiting, 'event')} of the log wait"
