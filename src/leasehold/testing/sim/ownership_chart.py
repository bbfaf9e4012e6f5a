"""Draws ownership over time: as sparklines for the terminal, and as SVG."""

from __future__ import annotations

from bisect import bisect_right
from colorsys import hls_to_rgb
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leasehold.testing.sim.scenario import ScenarioRun

_BLOCKS = " ▁▂▃▄▅▆▇█"
_MARGIN_S = 3.0
_SVG_WIDTH, _SVG_HEIGHT, _LEFT, _TOP = 960, 512, 48, 40
_LEGEND_COLUMNS, _LEGEND_ROW, _TICK_GAP = 8, 18, 60


def host_of(holder: str) -> str:
    """Return the host's name inside a holder id."""
    return holder.rsplit("-", 2)[0]


def window(run: ScenarioRun) -> tuple[float, float]:
    """Return the first and the last second to draw."""
    return max(0.0, run.began_s - _MARGIN_S), run.ended_s + _MARGIN_S


def sparklines(run: ScenarioRun, *, columns: int) -> list[tuple[str, str, int]]:
    """Return for each host its name, how much it owned over time, and at the end."""
    began_s, ended_s = window(run)
    step_s = (ended_s - began_s) / columns
    moments = [began_s + step_s * (column + 1) for column in range(columns)]
    counts = {host: [0] * columns for host in [*run.hosts, ""]}
    for _key, host, since_s, until_s in _spells(run):
        first, last = bisect_right(moments, since_s), bisect_right(moments, until_s)
        for column in range(first, last):
            counts[host][column] += 1
    max_count = max(max(row) for host, row in counts.items() if host) or 1
    lines = [(host, _line(counts[host], max_count), counts[host][-1]) for host in run.hosts]
    return [*lines, ("no owner", _line(counts[""], max_count), counts[""][-1])]


def svg(run: ScenarioRun) -> str:
    """Return an SVG with one row per key, coloured by owner; white where it had none."""
    began_s, ended_s = window(run)
    scale = (_SVG_WIDTH - _LEFT - 10) / (ended_s - began_s)
    lane = _SVG_HEIGHT / len(run.keys)
    row = {key: number for number, key in enumerate(run.keys)}
    colour = {host: _colour(number) for number, host in enumerate(run.hosts)}
    legend_rows = -(-len(run.hosts) // _LEGEND_COLUMNS)
    height = _TOP + _SVG_HEIGHT + 40 + legend_rows * _LEGEND_ROW
    box = f"0 0 {_SVG_WIDTH} {height}"
    font = 'font-family="sans-serif" font-size="12" shape-rendering="crispEdges"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" {font}>',
        f"<title>{escape(_title(run))}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(_title(run))}</text>',
        _rect(_LEFT, _TOP, _SVG_WIDTH - _LEFT - 10, _SVG_HEIGHT, "#f4f4f4"),
    ]
    for key, host, since_s, until_s in _spells(run):
        left, right = max(since_s, began_s), min(until_s, ended_s)
        if host and right > left:
            x, width = _LEFT + (left - began_s) * scale, (right - left) * scale
            parts.append(_rect(x, _TOP + row[key] * lane, width, lane, colour[host]))
    parts += [*_axis(began_s, ended_s, scale), *_legend(run.hosts, colour), "</svg>"]
    return "\n".join(parts) + "\n"


def _title(run: ScenarioRun) -> str:
    m = run.measured
    return (
        f"{m.scenario}: {m.hosts} hosts, {m.partitions} partitions, {m.strategy}, seed {m.seed} "
        "(one lane per partition, colour = owner)"
    )


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    size = f'width="{width:.1f}" height="{height:.2f}"'
    return f'<rect x="{x:.1f}" y="{y:.2f}" {size} fill="{fill}"/>'


def _axis(began_s: float, ended_s: float, scale: float) -> Iterator[str]:
    step_s = next(s for s in (1, 2, 5, 10, 20, 50, 100, 500, 5000) if s * scale >= _TICK_GAP)
    second = -(-int(began_s) // step_s) * step_s
    bottom = _TOP + _SVG_HEIGHT
    while second <= ended_s:
        x = _LEFT + (second - began_s) * scale
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="#444"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{second} s</text>'
        second += step_s


def _legend(hosts: Sequence[str], colour: dict[str, str]) -> Iterator[str]:
    width = (_SVG_WIDTH - _LEFT) / _LEGEND_COLUMNS
    for number, host in enumerate(hosts):
        x = _LEFT + number % _LEGEND_COLUMNS * width
        y = _TOP + _SVG_HEIGHT + 36 + number // _LEGEND_COLUMNS * _LEGEND_ROW
        yield _rect(x, y - 9, 11, 11, colour[host])
        yield f'<text x="{x + 16:.1f}" y="{y + 1}">{escape(host)}</text>'


def _spells(run: ScenarioRun) -> Iterator[tuple[str, str, float, float]]:
    """Yield every ownership of every key: key, host ("" for none), from, until."""
    story: dict[str, list[tuple[float, str]]] = {key: [(0.0, "")] for key in run.keys}
    for change in run.changes:
        story[change.key].append((change.at_s, host_of(change.holder) if change.holder else ""))
    end_s = window(run)[1]
    for key, spells in story.items():
        for (since_s, host), (until_s, _) in pairwise([*spells, (end_s + 1.0, "")]):
            yield key, host, since_s, until_s


def _line(counts: Sequence[int], max_count: int) -> str:
    # Something is never drawn as nothing: one key of a thousand still shows.
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[-(-count * steps // max_count) if count else 0] for count in counts)


def _colour(number: int) -> str:
    # Steps of the golden angle keep neighbours apart, however many there are. Written as hex,
    # which every viewer understands.
    hue = number * 137.508 % 360 / 360
    parts = hls_to_rgb(hue, 0.45 + number % 4 * 0.08, 0.60 + number % 3 * 0.12)
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)
