"""The report: an audit as one page that needs no network, no script and no other file. Pure.

The verdict comes first. Everything that others have named is escaped.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from leasehold.model import EndReason
from leasehold.spark.audit.drawing import Point, around, bars, colours, lanes, plot
from leasehold.spark.audit.record import Level
from leasehold.spark.audit.tables import told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from leasehold.spark.audit.drawing import Span
    from leasehold.spark.audit.record import Audit

_MARKS = (
    "Marks at the end of a term: a cross if the lease ran out (killed, paused or cut off), "
    "a triangle if it was stolen, a plus if it was broken, a diamond for a reset."
)


def page(audit: Audit) -> str:
    """The whole page."""
    known = audit.material
    form = Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    where = f"Store {known.store}; sink {known.sink or 'not named'}; gathered {told(known.at)}."
    return form.substitute(
        title=escape(f"Audit of {known.stream} {known.group}"),
        verdict=audit.verdict.value,
        headline=escape(audit.headline),
        where=escape(where),
        notes="\n".join(f'<p class="soft">Note: {escape(each)}.</p>' for each in audit.notes),
        checks=_checks(audit),
        findings=_findings(audit),
        pictures="\n".join(_pictures(audit)),
    )


def ownership(audit: Audit) -> str:
    """The lanes of all partitions, as a picture."""
    known = audit.material
    return lanes(known.terms, known.partitions, _span(audit), _colours(audit))


def _checks(audit: Audit) -> str:
    rows = [
        f'<tr><td class="verdicts {each.verdict.value}">{each.verdict.value}</td>'
        f"<td>{escape(each.claim.words)}</td>"
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


def _pictures(audit: Audit) -> Iterator[str]:
    known, colour, span = audit.material, _colours(audit), _span(audit)
    if known.terms:
        ways = Counter(each.reason.value if each.reason else "lasting" for each in known.terms)
        ended = ", ".join(f"{number:,} {way}" for way, number in ways.most_common())
        words = f"{_MARKS} Terms: {ended}. 0 s is {told(span.since)}, here and below."
        yield _picture("Who owned what", ownership(audit), words)
        yield _key(colour)
    if audit.lags:
        points = [
            Point(
                at=each.committed_at,
                value=each.lag_s,
                colour="#3f7fc1",
                title=f"partition {each.partition}, {told(each.committed_at)}: {each.lag_s:.1f} s",
            )
            for each in audit.lags
        ]
        picture = plot(points, span, unit="s", title="Lag")
        yield _picture("Lag", picture, "How old the newest event of a commit was when it was done.")
    if known.commits:
        points = [
            Point(
                at=each.committed_at,
                value=max(0.0, (each.committed_at - each.began_at).total_seconds()),
                colour=colour.get(each.holder, "#888888"),
                title=f"{each.holder}, {told(each.committed_at)}, {each.rows:,} rows",
            )
            for each in {one.commit: one for one in known.commits}.values()
        ]
        picture = plot(points, span, unit="s", title="Batch times")
        yield _picture("Batch times", picture, "From planned to committed, coloured by owner.")
        yield _picture(
            "Events per owner", bars(_events(audit), colour, title="Events per owner"), ""
        )


def _picture(title: str, drawing: str, words: str) -> str:
    said = f'<p class="soft">{escape(words)}</p>' if words else ""
    return f'<h2>{escape(title)}</h2>\n<div class="wide">{drawing}</div>{said}'


def _key(colour: Mapping[str, str]) -> str:
    items = [
        f'<li><i style="background:{fill}"></i>{escape(holder)}</li>'
        for holder, fill in colour.items()
    ]
    return f'<ul class="key">{"".join(items)}</ul>'


def _events(audit: Audit) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in audit.material.commits or ():
        found[each.holder] += len(each.range)
    return dict(found.most_common())


def _colours(audit: Audit) -> Mapping[str, str]:
    """By the order in which the holders came."""
    known = audit.material
    terms = sorted(known.terms, key=lambda each: each.started_at)
    owners = [each.holder for each in terms if each.reason is not EndReason.RESET]
    return colours(list(dict.fromkeys([*owners, *(e.holder for e in known.commits or ())])))


def _span(audit: Audit) -> Span:
    """From the first thing to the last one; up to now only where somebody owns something."""
    known = audit.material
    moments: list[datetime] = [each.started_at for each in known.terms]
    moments += [each.ended_at or known.at for each in known.terms]
    moments += [each.committed_at for each in known.commits or ()]
    return around(moments, otherwise=known.at)
