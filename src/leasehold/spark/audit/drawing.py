"""Pictures of an audit as SVG: lanes of owners, points over time, bars. Pure, and escaped.

Colours of the page come from its style sheet, so a picture fits a light and a dark one; only owners
have colours of their own. Every mark has a title, for those who point at it and those who listen.
"""

from __future__ import annotations

from colorsys import hls_to_rgb
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING

from leasehold.model import EndReason
from leasehold.names import last_part
from leasehold.spark.audit.tables import told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from leasehold.model import Term

WIDTH, LEFT, RIGHT, TOP, FOOT = 960, 64, 12, 10, 28
_LANES_HEIGHT, _TALLEST, _LOWEST, _MOST_LABELS = 480.0, 26.0, 3.0, 40
_PLOT_HEIGHT, _BAR = 180.0, 26.0
_TICKS = (0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
_TICK_GAP = 90
_LEAST_SPAN_S = 0.001
# Ends that were not in good order. The shape says which, for those who see no colours.
_MARKS = {
    EndReason.EXPIRED: ("M-4-4L4 4M-4 4L4-4", "the lease ran out: killed, paused or cut off"),
    EndReason.STOLEN: ("M0-5L5 4H-5Z", "stolen"),
    EndReason.BROKEN: ("M-5 0H5M0-5V5", "broken by an operator"),
    EndReason.RESET: ("M0-5L5 0L0 5L-5 0Z", "checkpoint reset by an operator"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The time that a picture shows."""

    since: datetime
    until: datetime

    @property
    def length_s(self) -> float:
        """Never 0, so that it can be divided by."""
        return max((self.until - self.since).total_seconds(), _LEAST_SPAN_S)

    def x(self, at: datetime) -> float:
        """Where a moment is, from left to right."""
        share = (at - self.since).total_seconds() / self.length_s
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value at a moment."""

    at: datetime
    value: float
    colour: str
    title: str


def colours(holders: Sequence[str]) -> Mapping[str, str]:
    """A colour for each holder; neighbours are far apart, however many there are."""
    found = {}
    for number, holder in enumerate(holders):
        hue = number * 137.508 % 360 / 360
        parts = hls_to_rgb(hue, 0.48 + number % 3 * 0.07, 0.55 + number % 2 * 0.15)
        found[holder] = "#" + "".join(f"{round(part * 255):02x}" for part in parts)
    return found


def lanes(
    terms: Sequence[Term], partitions: Sequence[str], span: Span, colour: Mapping[str, str]
) -> str:
    """One lane for each partition, coloured by owner; empty where nobody owned it."""
    count = max(1, len(partitions))
    lane = min(_TALLEST, max(_LOWEST, _LANES_HEIGHT / count))
    row = {partition: number for number, partition in enumerate(partitions)}
    height = lane * count
    parts = [
        f'<rect class="ground" x="{LEFT}" y="{TOP}" width="{_inside()}" height="{height:.1f}"/>'
    ]
    marks = []
    for term in terms:
        y = TOP + row[last_part(term.key)] * lane
        until = term.ended_at or span.until
        x, right = span.x(term.started_at), span.x(until)
        if term.reason is not EndReason.RESET:
            parts.append(_bar(x, y, right - x, lane, colour[term.holder], _term_title(term)))
        if term.reason in _MARKS:
            path, what = _MARKS[term.reason]
            title = f"<title>{escape(f'{_term_title(term)}: {what}')}</title>"
            marks.append(
                f'<path class="mark" transform="translate({right:.1f} {y + lane / 2:.1f})" '
                f'd="{path}">{title}</path>'
            )
    if count <= _MOST_LABELS:
        parts += [_label(each, TOP + (at + 0.5) * lane + 4) for each, at in row.items()]
    return _svg(height, [*parts, *marks, *_axis(span, TOP + height)], "Owners over time")


def plot(points: Sequence[Point], span: Span, *, unit: str, title: str) -> str:
    """Values over time, from 0 up."""
    most = _round_up(max((each.value for each in points), default=1.0) or 1.0)
    bottom = TOP + _PLOT_HEIGHT
    parts = [
        f'<rect class="ground" x="{LEFT}" y="{TOP}" width="{_inside()}" height="{_PLOT_HEIGHT}"/>'
    ]
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _PLOT_HEIGHT
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_label(f"{most * share:g} {unit}", y + 4))
    for each in points:
        x, y = span.x(each.at), bottom - each.value / most * _PLOT_HEIGHT
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{each.colour}">'
            f"<title>{escape(each.title)}</title></circle>"
        )
    return _svg(_PLOT_HEIGHT, [*parts, *_axis(span, bottom)], title)


def bars(values: Mapping[str, int], colour: Mapping[str, str], *, title: str) -> str:
    """A bar for each holder, with its number."""
    most, height = max(values.values(), default=0) or 1, _BAR * max(1, len(values))
    room = (WIDTH - LEFT - RIGHT) * 0.5
    parts = []
    for number, (name, value) in enumerate(values.items()):
        y, width = TOP + number * _BAR, value / most * room
        parts.append(_bar(LEFT, y + 4, width, _BAR - 8, colour.get(name, "#888"), name))
        words = escape(f"{value:,} · {name}")
        parts.append(f'<text x="{LEFT + width + 8:.1f}" y="{y + _BAR / 2 + 4:.1f}">{words}</text>')
    return _svg(height, parts, title)


def around(moments: Sequence[datetime], *, otherwise: datetime) -> Span:
    """The time from the first to the last of them, with a margin."""
    since, until = min(moments, default=otherwise), max(moments, default=otherwise)
    margin = max((until - since) * 0.01, timedelta(milliseconds=50))
    return Span(since=since - margin, until=until + margin)


def _term_title(term: Term) -> str:
    reason = f", {term.reason.value}" if term.reason else ""
    times = f"{told(term.started_at)} to {told(term.ended_at)}{reason}"
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


def _axis(span: Span, bottom: float) -> Iterator[str]:
    scale = _inside() / span.length_s
    step_s = next((each for each in _TICKS if each * scale >= _TICK_GAP), span.length_s / 8)
    at_s = 0.0
    while at_s <= span.length_s:
        x = LEFT + at_s * scale
        yield f'<path class="tick" d="M{x:.1f} {bottom:.1f}v5"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 19:.1f}" text-anchor="middle">{_shown(at_s)}</text>'
        at_s += step_s


def _shown(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _bar(x: float, y: float, width: float, height: float, fill: str, title: str) -> str:
    # A sliver at least: a term that was short is not a term that never was.
    size = f'width="{max(width, 0.6):.1f}" height="{height:.2f}"'
    place = f'x="{x:.1f}" y="{y:.2f}"'
    return f'<rect {place} {size} fill="{fill}"><title>{escape(title)}</title></rect>'


def _label(words: str, y: float) -> str:
    return f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">{escape(words)}</text>'


def _inside() -> int:
    return WIDTH - LEFT - RIGHT


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten, so that the axis has round numbers."""
    size = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 0.001
    while True:
        for factor in (1, 2, 5):
            if value <= factor * size:
                return factor * size
        size *= 10
