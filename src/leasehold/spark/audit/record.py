"""What an audit says: a verdict for each claim, the findings behind it, what was not seen. Pure.

One finding that contradicts a claim refutes it, and the whole. A claim is proved only if all that
it speaks of could be looked at.

What an audit looks at, as plain records: nothing here asks anybody.

``commits`` is None if no sink was named, ``ends`` if the stream is none of the store's log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from leasehold.names import in_order, last_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from leasehold.model import Checkpoint, Term
    from leasehold.sources.port import PartitionEnds
    from leasehold.spark.sinks.port import Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What was written down of a group.

    Attributes:
        store, sink: for people, without secrets.
        at: when it was gathered, by the clock of whoever gathered it; to be shown.
        epochs: the epoch of each partition as the store says it, read before the terms.
        commits: of the sink, oldest first.
        settled: whether the sink stood still while it was read.
        rows_replaced: why rows may rightly be fewer than were written; else empty.
        rows_trouble, log_trouble: why rows or events could not be looked at; else empty.
    """

    stream: str
    group: str
    store: str
    at: datetime
    terms: tuple[Term, ...]
    checkpoints: tuple[Checkpoint, ...]
    epochs: Mapping[str, int]
    sink: str | None = None
    commits: tuple[Commit, ...] | None = None
    ends: Mapping[str, PartitionEnds] | None = None
    settled: bool = True
    rows_replaced: str = ""
    rows_trouble: str = ""
    log_trouble: str = ""

    @property
    def partitions(self) -> tuple[str, ...]:
        """All that anything speaks of, in order."""
        named = {last_part(each.key) for each in self.terms}
        named |= {last_part(each.key) for each in self.checkpoints}
        named |= {each.range.partition for each in self.commits or ()}
        return tuple(sorted({*named, *self.epochs, *(self.ends or {})}, key=in_order))

    @property
    def positions(self) -> Mapping[str, int]:
        """Where the sink is in each partition: the end of its last commit."""
        return {each.range.partition: each.range.end for each in self.commits or ()}


class Verdict(StrEnum):
    """What can be said of a claim."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"


class Level(StrEnum):
    """What a finding means for its claim."""

    FAULT = "fault"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is to be proved: its name for programs, its words for people."""

    name: str
    words: str
    noun: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that contradicts a claim, or something that could not be looked at."""

    check: str
    partition: str
    what: str
    evidence: str
    level: Level = Level.FAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim and what became of it.

    Attributes:
        looked_at: how many terms, commits or events it was tested on.
        faults: how many findings contradict it; ``findings`` are the first of them.
        unknown: how many things could not be looked at.
    """

    claim: Claim
    looked_at: int
    faults: int = 0
    unknown: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """Of the claim."""
        return self.claim.name

    @property
    def verdict(self) -> Verdict:
        """A fault weighs more than something unseen."""
        if self.faults:
            return Verdict.REFUTED
        return Verdict.UNKNOWN if self.unknown else Verdict.PROVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How old the last event of a commit was, by the clocks of the log and of the driver."""

    partition: str
    committed_at: datetime
    lag_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All of it. ``notes`` say what was not asked for, and how far the proof reaches."""

    material: Material
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    lags: tuple[Lag, ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> Verdict:
        """The worst of its checks."""
        return worst(each.verdict for each in self.checks)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all checks; those that refute come first."""
        found = [each for check in self.checks for each in check.findings]
        return tuple(sorted(found, key=lambda each: each.level is not Level.FAULT))

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        group = f"{self.material.stream} {self.material.group}"
        faults = sum(each.faults for each in self.checks)
        unseen = sum(each.unknown for each in self.checks)
        if faults:
            return f"{group}: {counted(faults, 'finding')} against {_claims(self, Verdict.REFUTED)}"
        if unseen:
            return (
                f"{group}: nothing is wrong in what could be looked at, and "
                f"{_claims(self, Verdict.UNKNOWN)} could not be settled"
            )
        return f"{group}: {counted(len(self.checks), 'claim')}, none contradicted"

    def check(self, name: str) -> Check:
        """One of its checks, by name.

        Raises:
            KeyError: it was not asked for.
        """
        for each in self.checks:
            if each.name == name:
                return each
        raise KeyError(name)

    def html(self) -> str:
        """The report: one page that needs nothing else."""
        from leasehold.spark.audit.report import page  # noqa: PLC0415 - it knows this module

        return page(self)

    def row(self) -> dict[str, object]:
        """In values that JSON knows."""
        known = self.material
        return {
            "verdict": self.verdict.value,
            "headline": self.headline,
            "stream": known.stream,
            "group": known.group,
            "store": known.store,
            "sink": known.sink,
            "at": known.at.isoformat(),
            "checks": [_check_row(each) for each in self.checks],
            "findings": [finding_row(each) for each in self.findings],
            "notes": list(self.notes),
        }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """REFUTED before UNKNOWN before PROVED. Nothing at all is UNKNOWN."""
    seen = set(verdicts)
    if Verdict.REFUTED in seen:
        return Verdict.REFUTED
    return Verdict.PROVED if seen == {Verdict.PROVED} else Verdict.UNKNOWN


def finding_row(each: Finding) -> dict[str, object]:
    """A finding in values that JSON knows."""
    return {
        "check": each.check,
        "level": each.level.value,
        "partition": each.partition,
        "what": each.what,
        "evidence": each.evidence,
    }


def counted(number: int, noun: str) -> str:
    """``1 term``, ``1,000 terms``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _check_row(each: Check) -> dict[str, object]:
    return {
        "name": each.name,
        "claim": each.claim.words,
        "verdict": each.verdict.value,
        "looked_at": each.looked_at,
        "unit": each.claim.noun,
        "faults": each.faults,
        "unknown": each.unknown,
    }


def _claims(audit: Audit, verdict: Verdict) -> str:
    number = sum(each.verdict is verdict for each in audit.checks)
    return f"{number} of {counted(len(audit.checks), 'claim')}"
