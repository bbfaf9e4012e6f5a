"""The material of an audit as DataFrames, with the text of times beside them for findings.

Times become text here, because a session may show them in any time zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.names import last_part

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.audit.report import AuditMaterial

_TIME = pa.timestamp("us", tz="UTC")
_TERMS = pa.schema(
    [
        ("partition", pa.string()),
        ("epoch", pa.int64()),
        ("holder", pa.string()),
        ("started_at", _TIME),
        ("ended_at", _TIME),
        ("reason", pa.string()),
        ("started", pa.string()),
        ("ended", pa.string()),
    ]
)
_CHECKPOINTS = pa.schema(
    [
        ("partition", pa.string()),
        ("epoch", pa.int64()),
        ("resumes_at", pa.int64()),
        ("stream", pa.string()),
        ("stored_at", _TIME),
        ("updated_at", _TIME),
        ("updated", pa.string()),
    ]
)
_COMMITS = pa.schema(
    [
        ("partition", pa.string()),
        ("ordinal", pa.int64()),
        ("commit", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("epoch", pa.int64()),
        ("holder", pa.string()),
        ("rows", pa.int64()),
        ("committed", pa.string()),
    ]
)
_EPOCHS = pa.schema([("partition", pa.string()), ("epoch", pa.int64())])
_ENDS = pa.schema([("partition", pa.string()), ("first", pa.int64()), ("next", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """One DataFrame for each kind of record; those that could not be read are empty."""

    terms: DataFrame
    checkpoints: DataFrame
    commits: DataFrame
    epochs: DataFrame
    ends: DataFrame


def tables(spark: SparkSession, material: AuditMaterial) -> Tables:
    """Make them; no job runs."""

    def made(rows: list[dict[str, object]], schema: pa.Schema) -> DataFrame:
        # All that is written down of a group is little: in one partition nothing is ever shuffled.
        return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema)).coalesce(1)

    return Tables(
        terms=made(_terms(material), _TERMS),
        checkpoints=made(_checkpoints(material), _CHECKPOINTS),
        commits=made(_commits(material), _COMMITS),
        epochs=made([{"partition": p, "epoch": e} for p, e in material.epochs.items()], _EPOCHS),
        ends=made(
            [
                {"partition": partition, "first": each.first, "next": each.next}
                for partition, each in (material.ends or {}).items()
            ],
            _ENDS,
        ),
    )


def _terms(material: AuditMaterial) -> list[dict[str, object]]:
    return [
        {
            "partition": last_part(each.key),
            "epoch": each.epoch,
            "holder": each.holder,
            "started_at": each.started_at,
            "ended_at": each.ended_at,
            "reason": each.reason.value if each.reason else None,
            "started": time_text(each.started_at),
            "ended": time_text(each.ended_at),
        }
        for each in material.terms
    ]


def _checkpoints(material: AuditMaterial) -> list[dict[str, object]]:
    return [
        {
            "partition": last_part(each.key),
            "epoch": each.epoch,
            "resumes_at": each.resumes_at,
            "stream": each.position.stream,
            "stored_at": material.stored_at.get(last_part(each.key)),
            "updated_at": each.updated_at,
            "updated": time_text(each.updated_at),
        }
        for each in material.checkpoints
    ]


def _commits(material: AuditMaterial) -> list[dict[str, object]]:
    return [
        {
            "partition": each.range.partition,
            "ordinal": ordinal,
            "commit": each.commit,
            "start": each.range.start,
            "end": each.range.end,
            "epoch": each.epoch,
            "holder": each.holder,
            "rows": each.rows,
            "committed": time_text(each.committed_at),
        }
        for ordinal, each in enumerate(material.commits or ())
    ]


def time_text(at: datetime | None) -> str:
    """Return a time to the millisecond; ``now`` for an end that has not been reached."""
    if at is None:
        return "now"
    text = at.isoformat(sep=" ", timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"
