"""What all parts share: rows, bars, the table, the JSON, the command line, the progress bar."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, overload

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH = 80

Value = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What was promised: the words, and the numbers between which it is kept."""

    words: str
    least: float = -math.inf
    most: float = math.inf

    def met(self, value: Value) -> bool:
        """Whether the value keeps the promise; a word such as "never" does not."""
        return not isinstance(value, str) and self.least <= value <= self.most


def at_most(most: float) -> Bar:
    return Bar(words=f"<= {most:,g}", most=most)


def exactly(value: float, words: str | None = None) -> Bar:
    return Bar(words=words or f"= {value:,g}", least=value, most=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a result. Where nothing was promised, nothing can be missed."""

    what: str
    ours: Value
    peer: Value | None = None
    ratio: float | None = None
    bar: str | None = None
    met: bool = True


def cost(what: str, ours: Value, peer: Value | None = None, bar: Bar | None = None) -> Row:
    """A row of something that is better when it is less; the ratio says how many times less."""
    ratio = None
    if not isinstance(ours, str) and not isinstance(peer, str | None) and ours:
        ratio = _short(peer / ours)
    return Row(
        what=what,
        ours=_short(ours),
        peer=None if peer is None else _short(peer),
        ratio=ratio,
        bar=bar.words if bar else None,
        met=bar.met(ours) if bar else True,
    )


def rate(what: str, ours: float) -> Row:
    """A row of something that is better when it is more, without a bar."""
    return Row(what=what, ours=_short(ours))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A piece of a part: what the progress bar calls it, and what it measures."""

    what: str
    run: Callable[[], Sequence[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One benchmark. ``jobs`` gives its pieces, for ``small`` with sizes that only show it runs."""

    name: str
    about: str
    jobs: Callable[[bool], Sequence[Job]]


def measure(part: Part, *, small: bool, console: Console, tell: bool = False) -> list[Row]:
    """Run the jobs of a part, with a progress bar on the console if somebody is looking.

    ``tell``: what a long run has measured is said at once, in case that it is ended early.
    """
    jobs = part.jobs(small)
    columns = (SpinnerColumn(), *Progress.get_default_columns()[:2], TimeElapsedColumn())
    rows: list[Row] = []
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(part.name, total=len(jobs))
        for job in jobs:
            progress.update(task, description=f"{part.name}: {job.what}")
            found = job.run()
            rows += found
            progress.advance(task)
            for row in found if tell else ():
                console.print(f"{row.what}: {shown(row.ours)}{_beside(row)}", highlight=False)
    return rows


def as_json(part: Part, rows: Sequence[Row]) -> str:
    return json.dumps({"part": part.name, "rows": [asdict(row) for row in rows]})


def as_table(part: Part, rows: Sequence[Row]) -> Table:
    table = Table(title=part.name, caption=part.about, caption_justify="left", width=WIDTH)
    table.box = box.SIMPLE_HEAD
    table.add_column("what", ratio=1)
    for heading in ("ours", "peer", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("bar")
    table.add_column("met")
    for row in rows:
        met = ("[green]yes" if row.met else "[bold red]NO") if row.bar else ""
        table.add_row(
            row.what, shown(row.ours), shown(row.peer), shown(row.ratio), row.bar or "", met
        )
    return table


def main(parts: Sequence[Part], argv: Sequence[str] | None = None) -> int:
    """Measure the parts and print them; 1 if a bar is not met."""
    parser = argparse.ArgumentParser(
        usage="python -m bench [PART] [--json] [--small]",
        description="Leasehold measured beside its peers: one part, or all of them.",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on one line for each part"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes: only to see that it runs")
    options = parser.parse_args(argv)
    all_met = True
    for part in parts:
        rows = measure(
            part, small=options.small, console=Console(stderr=True), tell=not options.json
        )
        all_met = all_met and all(row.met for row in rows)
        if options.json:
            print(as_json(part, rows), flush=True)
        else:
            Console(file=sys.stdout, width=WIDTH).print(as_table(part, rows))
    return 0 if all_met else 1


def _beside(row: Row) -> str:
    peer = "" if row.peer is None else f", peer {shown(row.peer)}"
    return peer if row.met else f"{peer} (bar {row.bar}: NO)"


@overload
def _short(value: float) -> float: ...
@overload
def _short(value: Value) -> Value: ...
def _short(value: Value) -> Value:
    """Three digits say enough of what was measured; what was counted is kept whole."""
    counted = not isinstance(value, float) or value.is_integer()
    return value if counted else float(f"{value:.3g}")


def shown(value: Value | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,g}" if value < 1_000 else f"{value:,.0f}"
