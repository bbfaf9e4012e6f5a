"""The report of an audit: its records, its charts as SVG, and its HTML page. Pure.

``AuditMaterial`` is what was gathered, ``Audit`` what was found: a verdict for each claim, the
findings behind it, and what could not be checked. One finding that contradicts a claim refutes it,
and the audit. A claim is proved only if everything it covers could be checked.

The page needs no network, no script and no other file. The verdict comes first, and all names are
escaped. Colours come from its style sheet, so charts fit a light and a dark page; only holders have
fixed colours. Every mark has a title, for pointers and for screen readers.
"""

from __future__ import annotations

from collections import Counter
from colorsys import hls_to_rgb
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from leasehold.model import EndReason
from leasehold.names import in_order, last_part
from leasehold.spark.audit.tables import time_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from leasehold.events.source import PartitionEnds
    from leasehold.model import Checkpoint, Term
    from leasehold.spark.sinks.port import Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditMaterial:
    """What was recorded of a group.

    Attributes:
        store, sink: display names, without secrets.
        at: when it was gathered, by the clock of the process that gathered it; for display.
        epochs: the epoch of each partition by the store, read before the terms.
        commits: those of the sink, oldest first; None if no sink was named.
        ends: the ends of each partition; None if the stream is not one of the store's log.
        identity: of the stream as it is now; empty if that is not known.
        stored_at: when the event at each checkpoint was stored, by partition, where the log has it.
        settled: whether the sink did not change while it was read.
        rows_replaced: why there may be fewer rows than were written; else empty.
        rows_trouble, log_trouble: why rows or events could not be read; else empty.
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
    identity: str = ""
    stored_at: Mapping[str, datetime] = field(default_factory=dict)
    settled: bool = True
    rows_replaced: str = ""
    rows_trouble: str = ""
    log_trouble: str = ""

    @property
    def partitions(self) -> tuple[str, ...]:
        """All partitions that any record names, in order."""
        named = {last_part(each.key) for each in self.terms}
        named |= {last_part(each.key) for each in self.checkpoints}
        named |= {each.range.partition for each in self.commits or ()}
        return tuple(sorted({*named, *self.epochs, *(self.ends or {})}, key=in_order))

    @property
    def positions(self) -> Mapping[str, int]:
        """Where the sink is in each partition: the end of its last commit."""
        return {each.range.partition: each.range.end for each in self.commits or ()}


class Verdict(StrEnum):
    """The verdict on a claim."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"


class Level(StrEnum):
    """What a finding means for its claim."""

    FAULT = "fault"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is to be proved: a name for programs and a text for the report."""

    name: str
    text: str
    noun: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A contradiction of a claim, or something that could not be checked."""

    check: str
    partition: str
    what: str
    evidence: str
    level: Level = Level.FAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim and its result.

    Attributes:
        looked_at: how many terms, commits or events it was tested on.
        faults: how many findings contradict it; ``findings`` are the first of them.
        unknown: how many things could not be checked.
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
    """All checks of a group. ``notes``: what was not requested, and the extent of the proof."""

    material: AuditMaterial
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    lags: tuple[Lag, ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> Verdict:
        """The worst of its checks."""
        return worst(each.verdict for each in self.checks)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all checks; those that refute a claim are first."""
        found = [each for check in self.checks for each in check.findings]
        return tuple(sorted(found, key=lambda each: each.level is not Level.FAULT))

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        group = f"{self.material.stream} {self.material.group}"
        faults = sum(each.faults for each in self.checks)
        unseen = sum(each.unknown for each in self.checks)
        if faults:
            refuted = _claims_with(self, Verdict.REFUTED)
            return f"{group}: {counted(faults, 'finding')} against {refuted}"
        if unseen:
            return (
                f"{group}: nothing is wrong in what could be looked at, and "
                f"{_claims_with(self, Verdict.UNKNOWN)} could not be settled"
            )
        return f"{group}: {counted(len(self.checks), 'claim')}, none contradicted"

    def check(self, name: str) -> Check:
        """Return one of its checks, by name.

        Raises:
            KeyError: it was not asked for.
        """
        for each in self.checks:
            if each.name == name:
                return each
        raise KeyError(name)

    def html(self) -> str:
        """Return the report as one self-contained page."""
        return page(self)

    def row(self) -> dict[str, object]:
        """Return the audit as values for JSON."""
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
    """Return REFUTED before UNKNOWN before PROVED. No verdict at all is UNKNOWN."""
    seen = set(verdicts)
    if Verdict.REFUTED in seen:
        return Verdict.REFUTED
    return Verdict.PROVED if seen == {Verdict.PROVED} else Verdict.UNKNOWN


def finding_row(each: Finding) -> dict[str, object]:
    """Return a finding in values that JSON knows."""
    return {
        "check": each.check,
        "level": each.level.value,
        "partition": each.partition,
        "what": each.what,
        "evidence": each.evidence,
    }


def counted(number: int, noun: str) -> str:
    """Return ``1 term`` or ``1,000 terms``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _check_row(each: Check) -> dict[str, object]:
    return {
        "name": each.name,
        "claim": each.claim.text,
        "verdict": each.verdict.value,
        "looked_at": each.looked_at,
        "unit": each.claim.noun,
        "faults": each.faults,
        "unknown": each.unknown,
    }


def _claims_with(audit: Audit, verdict: Verdict) -> str:
    number = sum(each.verdict is verdict for each in audit.checks)
    return f"{number} of {counted(len(audit.checks), 'claim')}"


WIDTH, LEFT, RIGHT, TOP, FOOT = 960, 64, 12, 10, 28
_OWNERSHIP_HEIGHT, _MAX_ROW_HEIGHT, _MIN_ROW_HEIGHT, _MAX_LABELS = 480.0, 26.0, 3.0, 40
_PLOT_HEIGHT, _BAR = 180.0, 26.0
_TICKS = (0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
_TICK_GAP = 90
_MIN_SPAN_S = 0.001
# Ends that were not graceful. The shape tells them apart without colours.
_END_MARKS = {
    EndReason.EXPIRED: ("M-4-4L4 4M-4 4L4-4", "the lease ran out: killed, paused or cut off"),
    EndReason.LAPSED: ("M-5-3H5M-5 3H5", "given up by its holder after its local deadline"),
    EndReason.STOLEN: ("M0-5L5 4H-5Z", "stolen"),
    EndReason.BROKEN: ("M-5 0H5M0-5V5", "broken by an operator"),
    EndReason.RESET: ("M0-5L5 0L0 5L-5 0Z", "checkpoint reset by an operator"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """The time span of a chart."""

    since: datetime
    until: datetime

    @property
    def length_s(self) -> float:
        """Never 0, so that it can be divided by."""
        return max((self.until - self.since).total_seconds(), _MIN_SPAN_S)

    def x(self, at: datetime) -> float:
        """Return the horizontal position of a time."""
        fraction = (at - self.since).total_seconds() / self.length_s
        return LEFT + min(1.0, max(0.0, fraction)) * (WIDTH - LEFT - RIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at a time."""

    at: datetime
    value: float
    colour: str
    title: str


def colours(holders: Sequence[str]) -> Mapping[str, str]:
    """Return a colour for each holder; neighbours are far apart, however many there are."""
    found = {}
    for number, holder in enumerate(holders):
        hue = number * 137.508 % 360 / 360
        parts = hls_to_rgb(hue, 0.48 + number % 3 * 0.07, 0.55 + number % 2 * 0.15)
        found[holder] = "#" + "".join(f"{round(part * 255):02x}" for part in parts)
    return found


def ownership_chart(
    terms: Sequence[Term], partitions: Sequence[str], span: TimeSpan, colour: Mapping[str, str]
) -> str:
    """Draw one row for each partition, coloured by owner; empty where it had no owner."""
    count = max(1, len(partitions))
    row_height = min(_MAX_ROW_HEIGHT, max(_MIN_ROW_HEIGHT, _OWNERSHIP_HEIGHT / count))
    row = {partition: number for number, partition in enumerate(partitions)}
    height = row_height * count
    parts = [
        f'<rect class="ground" x="{LEFT}" y="{TOP}" width="{_plot_width()}" height="{height:.1f}"/>'
    ]
    marks = []
    for term in terms:
        y = TOP + row[last_part(term.key)] * row_height
        until = term.ended_at or span.until
        x, right = span.x(term.started_at), span.x(until)
        if term.reason is not EndReason.RESET:
            parts.append(_bar(x, y, right - x, row_height, colour[term.holder], _term_title(term)))
        if term.reason in _END_MARKS:
            path, what = _END_MARKS[term.reason]
            title = f"<title>{escape(f'{_term_title(term)}: {what}')}</title>"
            marks.append(
                f'<path class="mark" transform="translate({right:.1f} {y + row_height / 2:.1f})" '
                f'd="{path}">{title}</path>'
            )
    if count <= _MAX_LABELS:
        parts += [_label(each, TOP + (at + 0.5) * row_height + 4) for each, at in row.items()]
    return _svg(height, [*parts, *marks, *_axis(span, TOP + height)], "Owners over time")


def plot(points: Sequence[Point], span: TimeSpan, *, unit: str, title: str) -> str:
    """Draw values over time, from 0 up."""
    max_value = _round_up(max((each.value for each in points), default=1.0) or 1.0)
    bottom = TOP + _PLOT_HEIGHT
    parts = [
        (
            f'<rect class="ground" x="{LEFT}" y="{TOP}" '
            f'width="{_plot_width()}" height="{_PLOT_HEIGHT}"/>'
        )
    ]
    for fraction in (0.0, 0.5, 1.0):
        y = bottom - fraction * _PLOT_HEIGHT
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_label(f"{max_value * fraction:g} {unit}", y + 4))
    for each in points:
        x, y = span.x(each.at), bottom - each.value / max_value * _PLOT_HEIGHT
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{each.colour}">'
            f"<title>{escape(each.title)}</title></circle>"
        )
    return _svg(_PLOT_HEIGHT, [*parts, *_axis(span, bottom)], title)


def bars(values: Mapping[str, int], colour: Mapping[str, str], *, title: str) -> str:
    """Draw a bar for each holder, with its number."""
    max_value, height = max(values.values(), default=0) or 1, _BAR * max(1, len(values))
    max_width = (WIDTH - LEFT - RIGHT) * 0.5
    parts = []
    for number, (name, value) in enumerate(values.items()):
        y, width = TOP + number * _BAR, value / max_value * max_width
        parts.append(_bar(LEFT, y + 4, width, _BAR - 8, colour.get(name, "#888"), name))
        caption = escape(f"{value:,} · {name}")
        parts.append(
            f'<text x="{LEFT + width + 8:.1f}" y="{y + _BAR / 2 + 4:.1f}">{caption}</text>'
        )
    return _svg(height, parts, title)


def span_of(moments: Sequence[datetime], *, otherwise: datetime) -> TimeSpan:
    """Return the time from the first to the last of them, with a margin."""
    since, until = min(moments, default=otherwise), max(moments, default=otherwise)
    margin = max((until - since) * 0.01, timedelta(milliseconds=50))
    return TimeSpan(since=since - margin, until=until + margin)


def _term_title(term: Term) -> str:
    reason = f", {term.reason.value}" if term.reason else ""
    times = f"{time_text(term.started_at)} to {time_text(term.ended_at)}{reason}"
    return f"partition {last_part(term.key)}, epoch {term.epoch}, {term.holder}: {times}"


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    box = f"0 0 {WIDTH} {TOP + height + FOOT:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">',
            f"<title>{escape(title)}</title>",
            *parts,
            "</svg>",
        ]
    )


def _axis(span: TimeSpan, bottom: float) -> Iterator[str]:
    scale = _plot_width() / span.length_s
    step_s = next((each for each in _TICKS if each * scale >= _TICK_GAP), span.length_s / 8)
    at_s = 0.0
    while at_s <= span.length_s:
        x = LEFT + at_s * scale
        yield f'<path class="tick" d="M{x:.1f} {bottom:.1f}v5"/>'
        text = _duration_text(at_s)
        yield f'<text x="{x:.1f}" y="{bottom + 19:.1f}" text-anchor="middle">{text}</text>'
        at_s += step_s


def _duration_text(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _bar(x: float, y: float, width: float, height: float, fill: str, title: str) -> str:
    # A sliver at least: a term that was short is not a term that never was.
    size = f'width="{max(width, 0.6):.1f}" height="{height:.2f}"'
    position = f'x="{x:.1f}" y="{y:.2f}"'
    return f'<rect {position} {size} fill="{fill}"><title>{escape(title)}</title></rect>'


def _label(caption: str, y: float) -> str:
    return f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">{escape(caption)}</text>'


def _plot_width() -> int:
    return WIDTH - LEFT - RIGHT


def _round_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten, so that the axis has round numbers."""
    size = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 0.001
    while True:
        for factor in (1, 2, 5):
            if value <= factor * size:
                return factor * size
        size *= 10


_LEGEND = (
    "Marks at the end of a term: a cross if the lease ran out (killed, paused or cut off), "
    "a triangle if it was stolen, a plus if it was broken, a diamond for a reset."
)


def page(audit: Audit) -> str:
    """Return the whole page."""
    known = audit.material
    form = Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    where = (
        f"Store {known.store}; sink {known.sink or 'not named'}; gathered {time_text(known.at)}."
    )
    return form.substitute(
        title=escape(f"Audit of {known.stream} {known.group}"),
        verdict=audit.verdict.value,
        headline=escape(audit.headline),
        where=escape(where),
        notes="\n".join(f'<p class="soft">Note: {escape(each)}.</p>' for each in audit.notes),
        checks=_checks(audit),
        findings=_findings(audit),
        charts="\n".join(_chart_sections(audit)),
    )


def ownership(audit: Audit) -> str:
    """Draw the ownership chart of an audit."""
    known = audit.material
    return ownership_chart(known.terms, known.partitions, _span(audit), _colours(audit))


def _checks(audit: Audit) -> str:
    rows = [
        f'<tr><td class="verdicts {each.verdict.value}">{each.verdict.value}</td>'
        f"<td>{escape(each.claim.text)}</td>"
        f'<td class="number">{each.looked_at:,}&#160;{escape(each.claim.noun)}s</td>'
        f'<td class="number">{each.faults:,}</td></tr>'
        for each in audit.checks
    ]
    head = '<th>verdict</th><th>claim</th><th class="number">tested on</th>'
    return _table(f'{head}<th class="number">against</th>', rows)


def _findings(audit: Audit) -> str:
    if not audit.findings:
        return "<p>None.</p>"
    rows = [
        f'<tr><td class="{"REFUTED" if each.level is Level.FAULT else "UNKNOWN"}">'
        f"{escape(each.check)}</td><td>{escape(each.partition)}</td>"
        f'<td>{escape(each.what)}</td><td class="soft">{escape(each.evidence)}</td></tr>'
        for each in audit.findings
    ]
    table = _table("<th>check</th><th>partition</th><th>what</th><th>evidence</th>", rows)
    more = sum(each.faults + each.unknown for each in audit.checks) - len(rows)
    return table + (f'<p class="soft">And {more:,} more.</p>' if more > 0 else "")


def _table(head: str, rows: Sequence[str]) -> str:
    return f"<table><tr>{head}</tr>\n" + "\n".join(rows) + "</table>"


def _chart_sections(audit: Audit) -> Iterator[str]:
    known, colour, span = audit.material, _colours(audit), _span(audit)
    if known.terms:
        reasons = Counter(each.reason.value if each.reason else "lasting" for each in known.terms)
        ended = ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common())
        caption = f"{_LEGEND} Terms: {ended}. 0 s is {time_text(span.since)}, here and below."
        yield _chart_section("Who owned what", ownership(audit), caption)
        yield _holder_legend(colour)
    if audit.lags:
        points = [
            Point(
                at=each.committed_at,
                value=each.lag_s,
                colour="#3f7fc1",
                title=(
                    f"partition {each.partition}, {time_text(each.committed_at)}: "
                    f"{each.lag_s:.1f} s"
                ),
            )
            for each in audit.lags
        ]
        chart = plot(points, span, unit="s", title="Lag")
        yield _chart_section(
            "Lag", chart, "How old the newest event of a commit was when it was done."
        )
    if known.commits:
        points = [
            Point(
                at=each.committed_at,
                value=max(0.0, (each.committed_at - each.began_at).total_seconds()),
                colour=colour.get(each.holder, "#888888"),
                title=f"{each.holder}, {time_text(each.committed_at)}, {each.rows:,} rows",
            )
            for each in {one.commit: one for one in known.commits}.values()
        ]
        chart = plot(points, span, unit="s", title="Batch times")
        yield _chart_section("Batch times", chart, "From planned to committed, coloured by owner.")
        yield _chart_section(
            "Events per owner", bars(_events_by_holder(audit), colour, title="Events per owner"), ""
        )


def _chart_section(title: str, drawing: str, caption: str) -> str:
    paragraph = f'<p class="soft">{escape(caption)}</p>' if caption else ""
    return f'<h2>{escape(title)}</h2>\n<div class="wide">{drawing}</div>{paragraph}'


def _holder_legend(colour: Mapping[str, str]) -> str:
    items = [
        f'<li><i style="background:{fill}"></i>{escape(holder)}</li>'
        for holder, fill in colour.items()
    ]
    return f'<ul class="key">{"".join(items)}</ul>'


def _events_by_holder(audit: Audit) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in audit.material.commits or ():
        found[each.holder] += len(each.range)
    return dict(found.most_common())


def _colours(audit: Audit) -> Mapping[str, str]:
    """Return the colour of each holder, in the order of their first terms."""
    known = audit.material
    terms = sorted(known.terms, key=lambda each: each.started_at)
    owners = [each.holder for each in terms if each.reason is not EndReason.RESET]
    return colours(list(dict.fromkeys([*owners, *(e.holder for e in known.commits or ())])))


def _span(audit: Audit) -> TimeSpan:
    """Return the span of all records; up to now only if a partition is owned."""
    known = audit.material
    moments: list[datetime] = [each.started_at for each in known.terms]
    moments += [each.ended_at or known.at for each in known.terms]
    moments += [each.committed_at for each in known.commits or ()]
    return span_of(moments, otherwise=known.at)
