"""The claims of an audit, in reading order, and their findings as DataFrames.

Each check makes a DataFrame of findings; all of them are fetched in one job. Of many findings of
one check and level only the first are fetched, and all are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.spark.audit.report import Check, Claim, Finding, Level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

TERMS_APART = Claim(
    name="terms-apart", text="No two terms of a partition overlap in time.", noun="term"
)
EPOCHS_RISE = Claim(
    name="epochs-rise", text="Epochs rise by one, and none was given twice.", noun="term"
)
ENDS_TOLD = Claim(name="ends-told", text="Every term that ended says why.", noun="term")
CHECKPOINTS_OWNED = Claim(
    name="checkpoints-owned",
    text="Every checkpoint was written by an owner, within its term.",
    noun="checkpoint",
)
CHECKPOINTS_STREAM = Claim(
    name="checkpoints-stream",
    text="Every checkpoint is a position of this stream, and of no other one of its name.",
    noun="checkpoint",
)
CHECKPOINTS_FOLLOW = Claim(
    name="checkpoints-follow", text="No checkpoint is ahead of the sink.", noun="checkpoint"
)
COMMITS_OWNED = Claim(
    name="commits-owned",
    text="Every commit was made by the owner of its epoch.",
    noun="commit",
)
COMMITS_FENCED = Claim(
    name="commits-fenced",
    text="No commit of an older epoch came after one of a newer epoch.",
    noun="commit",
)
COMMITS_TILE = Claim(
    name="commits-tile",
    text="The commits hold every event once: no gap, no overlap.",
    noun="commit",
)
ROWS_COUNTED = Claim(
    name="rows-counted", text="The sink has as many rows as its commits wrote.", noun="row"
)
ROWS_ONCE = Claim(
    name="rows-once", text="The rows of the sink hold every event once.", noun="event"
)
LOG_WHOLE = Claim(
    name="log-whole", text="The log has every event once, numbered without a gap.", noun="event"
)

ALL = (
    TERMS_APART,
    EPOCHS_RISE,
    ENDS_TOLD,
    CHECKPOINTS_OWNED,
    CHECKPOINTS_STREAM,
    CHECKPOINTS_FOLLOW,
    COMMITS_OWNED,
    COMMITS_FENCED,
    COMMITS_TILE,
    ROWS_COUNTED,
    ROWS_ONCE,
    LOG_WHOLE,
)


MAX_SHOWN_FINDINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFindings:
    """All findings of a claim and level: how many, and the first of them."""

    count: int
    first: tuple[Finding, ...]


def findings_frame(
    frame: DataFrame, claim: Claim, what: Column, evidence: Column, *, level: Level = Level.FAULT
) -> DataFrame:
    """Return each row of ``frame``, which has a ``partition``, becomes a finding."""
    return frame.select(
        F.lit(claim.name).alias("check"),
        F.lit(level.value).alias("level"),
        F.col("partition"),
        what.alias("what"),
        evidence.alias("evidence"),
    )


def formatted(form: str, *columns: Column | str) -> Column:
    """Return text with values in it, as ``printf`` formats them."""
    return F.format_string(form, *columns)


def fetch_findings(frames: Sequence[DataFrame]) -> Mapping[tuple[str, Level], ClaimFindings]:
    """Fetch all findings, in one job."""
    if not frames:
        return {}
    # In one task: what is found is little, and each exchange would cost more than it.
    union = reduce(lambda one, other: one.unionByName(other), frames).coalesce(1)
    kind = Window.partitionBy("check", "level")
    order = kind.orderBy(F.length("partition"), "partition", "what", "evidence")
    ranked = union.select(
        "*", F.count("*").over(kind).alias("total"), F.row_number().over(order).alias("rank")
    )
    seen: dict[tuple[str, Level], list[Finding]] = {}
    totals: dict[tuple[str, Level], int] = {}
    rows = ranked.where(F.col("rank") <= MAX_SHOWN_FINDINGS).collect()
    for row in sorted(rows, key=lambda each: (each["check"], each["level"], each["rank"])):
        key = (row["check"], Level(row["level"]))
        totals[key] = row["total"]
        seen.setdefault(key, []).append(
            Finding(
                check=row["check"],
                level=key[1],
                partition=row["partition"],
                what=row["what"],
                evidence=row["evidence"],
            )
        )
    return {key: ClaimFindings(count=totals[key], first=tuple(each)) for key, each in seen.items()}


def check_of(
    claim: Claim,
    looked_at: int,
    seen: Mapping[tuple[str, Level], ClaimFindings],
    unseen: Sequence[str] = (),
) -> Check:
    """Return the check of a claim. ``unseen``: what could not be checked, besides findings."""
    empty = ClaimFindings(count=0, first=())
    faults = seen.get((claim.name, Level.FAULT), empty)
    unknown = seen.get((claim.name, Level.UNKNOWN), empty)
    more = tuple(
        Finding(check=claim.name, partition="", what=each, evidence="", level=Level.UNKNOWN)
        for each in unseen
    )
    return Check(
        claim=claim,
        looked_at=looked_at,
        faults=faults.count,
        unknown=unknown.count + len(more),
        findings=(*faults.first, *unknown.first, *more),
    )
