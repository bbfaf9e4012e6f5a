"""What people see while the demo runs: a picture on a terminal, else one line for each event.

A line of more than 80 columns is folded, and goes on below its words.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console, RenderableType

    from leasehold.spark.demo.looks import Look
    from leasehold.spark.demo.story import Line

_TOLD_EVERY_S = 10.0
_WIDTH = 78
_WIDEST = 80
_TIME = 9  # columns of the time before each line
_STYLES = {"good": "green", "bad": "red", "plain": ""}
_DRIVER_STYLES = {"A": "cyan", "B": "magenta", "C": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLine:
    """A driver: what it is doing, and what the store knows of it."""

    name: str
    state: str
    partitions: int
    per_s: float
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is shown at one moment."""

    look: Look
    drivers: tuple[DriverLine, ...]
    sent: int
    total: int


class Screen:
    """``with`` begins and ends the picture; ``show`` paints it anew, ``tell`` adds a line."""

    def __init__(self, console: Console) -> None:
        """On a terminal it is painted over and over; else lines follow each other."""
        self._console = console
        self._live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )
        self._told_s = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, line: Line) -> None:
        """A new line of the story; a terminal gets it above the picture, to stay."""
        words = folded(line.words, width=self._width)
        self._console.print(
            Text.assemble((f"{line.at_s:5.1f} s  ", "dim"), (words, _STYLES[line.tone])),
            soft_wrap=self._live is None,
        )

    def show(self, picture: Picture) -> None:
        """Paint the picture; without a terminal a line now and then says how far it is."""
        if self._live is not None:
            self._live.update(painted(picture), refresh=True)
        elif picture.look.at_s >= self._told_s + _TOLD_EVERY_S:
            self._told_s = picture.look.at_s
            words = folded(progress_words(picture), width=self._width)
            self._console.print(f"{picture.look.at_s:5.1f} s  {words}", soft_wrap=True)

    @property
    def _width(self) -> int:
        return _WIDEST if self._live is None else min(_WIDEST, self._console.width)


def folded(words: str, *, width: int = _WIDEST) -> str:
    """The words behind a time, in as many lines as they need. A path is never broken."""
    lines = textwrap.wrap(
        words, width=max(1, width - _TIME), break_long_words=False, break_on_hyphens=False
    )
    return f"\n{' ' * _TIME}".join(lines)


def progress_words(picture: Picture) -> str:
    """How far it is."""
    shares = ", ".join(
        f"{each.name} {each.state}"
        + (f" ({each.partitions} partitions, {each.per_s:,.0f}/s)" if each.partitions else "")
        for each in picture.drivers
    )
    return (
        f"sent {picture.sent:,}, in the table {picture.look.done:,} of {picture.total:,}; {shares}"
    )


def painted(picture: Picture) -> RenderableType:
    """The picture for a terminal of 80 columns."""
    sides = Table.grid(padding=(0, 3))
    sides.add_row(_partitions(picture.look), _drivers(picture.drivers))
    return Group(_bars(picture), Text(), sides)


def _bars(picture: Picture) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=9)
    grid.add_column(width=_WIDTH - 9 - 19 - 2)
    grid.add_column(width=19, justify="right")
    for name, count in (("sent", picture.sent), ("in table", picture.look.done)):
        grid.add_row(
            name,
            ProgressBar(total=max(1, picture.total), completed=count),
            f"{count:,} of {picture.total:,}",
        )
    return grid


def _partitions(look: Look) -> Table:
    table = _plain_table()
    for title in ("part", "owner", "epoch", "done", "waits"):
        table.add_column(title, justify="left" if title == "owner" else "right", no_wrap=True)
    for part in look.parts:
        table.add_row(
            part.partition,
            Text(part.owner, _style(part.owner)) if part.owner else Text("nobody", "red"),
            str(part.epoch),
            f"{part.done:,}",
            f"{part.waiting:,}",
        )
    return table


def _drivers(drivers: Sequence[DriverLine]) -> Table:
    table = _plain_table()
    for title in ("driver", "state", "owns", "per s", "events"):
        left = title in {"driver", "state"}
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for each in drivers:
        table.add_row(
            Text(each.name, _style(each.name)),
            each.state,
            str(each.partitions),
            f"{each.per_s:,.0f}",
            f"{each.total:,}",
        )
    return table


def _style(name: str) -> str:
    return _DRIVER_STYLES.get(name, "")


def _plain_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
