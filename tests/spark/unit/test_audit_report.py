"""The pure parts of the audit: verdicts, pictures, the page, and the names of sinks."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from tests.support import audit_material as a

from leasehold.errors import UsageError
from leasehold.model import EndReason
from leasehold.spark.audit import Audit, Check, Finding, Verdict, claims
from leasehold.spark.audit.claims import MAX_SHOWN_FINDINGS, ClaimFindings, check_of
from leasehold.spark.audit.report import Lag, Level, ownership, page, worst
from leasehold.spark.audit.rows import sink_of

NASTY = "<script>alert('x')</script>&\"$title"
FAULT = Finding(check="terms-apart", partition="0", what="two owners", evidence="at noon")


def found(*checks: Check, **changes: object) -> Audit:
    whole = Audit(material=a.CLEAN, checks=checks)
    return replace(whole, **changes)  # type: ignore[arg-type]


def check(faults: int = 0, unknown: int = 0, *findings: Finding) -> Check:
    return Check(
        claim=claims.TERMS_APART, looked_at=3, faults=faults, unknown=unknown, findings=findings
    )


@pytest.mark.parametrize(
    ("checks", "verdict", "message"),
    [
        ((check(), check()), Verdict.PROVED, "2 claims, none contradicted"),
        ((check(), check(2, 1)), Verdict.REFUTED, "2 findings against 1 of 2 claims"),
        ((check(), check(0, 1)), Verdict.UNKNOWN, "1 of 2 claims could not be settled"),
    ],
)
def test_the_verdict_is_the_worst_of_all(
    checks: tuple[Check, ...], verdict: Verdict, message: str
) -> None:
    whole = found(*checks)
    assert (whole.verdict, message in whole.headline) == (verdict, True)
    assert whole.row()["verdict"] == verdict.value


def test_an_audit_of_nothing_proves_nothing() -> None:
    assert worst([]) is Verdict.UNKNOWN


def test_what_was_found_counts_though_only_the_first_are_kept() -> None:
    seen = {
        ("terms-apart", Level.FAULT): ClaimFindings(count=500, first=(FAULT,) * MAX_SHOWN_FINDINGS)
    }
    made = check_of(claims.TERMS_APART, 900, seen)
    assert (made.faults, len(made.findings), made.verdict) == (
        500,
        MAX_SHOWN_FINDINGS,
        Verdict.REFUTED,
    )
    assert check_of(claims.EPOCHS_RISE, 900, seen).verdict is Verdict.PROVED
    unseen = check_of(claims.EPOCHS_RISE, 900, {}, ["the dog ate it"])
    assert (unseen.verdict, unseen.findings[0].what) == (Verdict.UNKNOWN, "the dog ate it")


def test_faults_come_before_what_is_unknown() -> None:
    unknown = replace(FAULT, level=Level.UNKNOWN)
    assert [each.level for each in found(check(1, 1, unknown, FAULT)).findings] == [
        Level.FAULT,
        Level.UNKNOWN,
    ]


def test_the_page_escapes_what_others_have_named() -> None:
    terms = tuple(replace(each, holder=NASTY) for each in a.TERMS)
    commits = tuple(replace(each, holder=NASTY, commit=NASTY) for each in a.COMMITS)
    material = replace(a.CLEAN, terms=terms, commits=commits, sink=NASTY, stream=NASTY, store=NASTY)
    finding = Finding(check=NASTY, partition=NASTY, what=NASTY, evidence=NASTY)
    text = page(found(check(1, 0, finding), material=material, notes=(NASTY,)))
    assert "<script" not in text
    assert "alert(&#x27;x&#x27;)" in text
    root = ET.fromstring(text.partition("\n")[2])  # well-formed, once the doctype is gone
    assert root.tag == "html"


def test_the_page_is_alone_in_the_world_and_says_the_verdict_first() -> None:
    lags = tuple(
        Lag(partition="0", committed_at=each.committed_at, lag_s=0.4) for each in a.COMMITS
    )
    text = page(found(check(1, 0, FAULT), lags=lags))
    links = re.findall(r"(?:src|href)=|url\(|@import|<script|<link", text)
    assert links == []
    body = text.partition("<body>")[2]
    assert body.index("REFUTED") < body.index("Claims") < body.index("Who owned what")
    assert text.count("<svg ") == 4
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_lanes_show_every_term_and_how_it_ended() -> None:
    terms = (*a.TERMS, a.term("1", 9, "operator", 30, 30, EndReason.RESET))
    picture = ownership(found(check(), material=replace(a.CLEAN, terms=terms)))
    root = ET.fromstring(picture)
    shapes = [each.tag.rpartition("}")[2] for each in root]
    assert shapes.count("rect") == 1 + 3, "the ground, and each term but the reset"
    marks = [each for each in root if each.get("class") == "mark"]
    assert len(marks) == 2
    title = "".join(marks[0].itertext())
    assert "partition 0, epoch 1, a" in title
    assert "the lease ran out" in title


def test_a_page_of_a_group_without_any_past_can_be_drawn() -> None:
    empty = replace(
        a.CLEAN, terms=(), checkpoints=(), epochs={}, commits=None, ends=None, sink=None
    )
    assert "<svg" not in page(found(check(), material=empty))


@pytest.mark.parametrize("text", ["delta:", "tables", "s3:bucket", "postgresql://host/database"])
def test_a_sink_that_is_none_says_how_it_is_written(text: str) -> None:
    with pytest.raises(UsageError, match=r"delta:PATH|#TABLE"):
        sink_of(text, store="sqlite:///leases.db")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("delta:/data/t", "DeltaSink"),
        ("parquet:/data/t", "ParquetSink"),
        ("log:orders", "LogSink"),
        ("postgresql://host/database#public.t", "PostgresSink"),
    ],
)
def test_every_sink_has_a_name_in_the_command(text: str, kind: str) -> None:
    assert type(sink_of(text, store="sqlite:///leases.db")).__name__ == kind
