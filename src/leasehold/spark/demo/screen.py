"""The display of the demo: a live screen on a terminal, else one line for each event.

Drivers report in lines of JSON (``DriverReport``), but the screen shows only what the store knows:
which driver owns what, and the progress of each (``GroupLook``, ``Rates``). ``Story`` turns changes
into lines: which driver takes what from which, and how long it took. A line of more than 80 columns
is folded.
"""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leasehold.model import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console, RenderableType

    from leasehold.insight import GroupView, PartitionView


class WaitPoint(StrEnum):
    """Where a driver can be paused."""

    STAGED = "staged"  # rows are written and invisible, the commit is the next call
    COMMITTED = "committed"  # the table has them, the store does not know yet


class LineKind(StrEnum):
    """The kinds of reports."""

    READY = "ready"
    STAGED = "staged"
    COMMITTED = "committed"
    REFUSED = "refused"
    WAITS = "waits"  # at the requested point
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """One line of a driver. ``rows``: events of the batch; ``epochs``: of its partitions."""

    kind: LineKind
    rows: int = 0
    epochs: dict[str, int]
    words: str = ""

    def line(self) -> str:
        """Return the report as a line of JSON."""
        return json.dumps(asdict(self))


def heard(line: str) -> DriverReport | None:
    """Return the line as a record; ``None`` for whatever else a program prints."""
    try:
        fields = json.loads(line)
        return DriverReport(
            kind=LineKind(fields["kind"]),
            rows=int(fields["rows"]),
            epochs={str(key): int(epoch) for key, epoch in fields["epochs"].items()},
            words=str(fields["words"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLook:
    """A partition. ``owner`` is ``None`` while no lease covers it; ``done`` counts events."""

    partition: str
    owner: str | None
    epoch: int
    done: int
    head: int
    done_epoch: int

    @property
    def waiting(self) -> int:
        """How many events are in the log, and not yet in the table for all that the store knows."""
        return max(0, self.head - self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """The group at ``at_s``."""

    at_s: float
    parts: tuple[PartitionLook, ...] = ()

    @property
    def done(self) -> int:
        """Events that are in the table, for all that the store knows."""
        return sum(each.done for each in self.parts)

    @property
    def stored(self) -> int:
        """Events in the log."""
        return sum(each.head for each in self.parts)

    def owned_by(self, name: str) -> tuple[str, ...]:
        """Return the partitions of a driver."""
        return tuple(each.partition for each in self.parts if each.owner == name)

    @property
    def all_owned(self) -> bool:
        """Whether each partition has an owner."""
        return bool(self.parts) and all(each.owner is not None for each in self.parts)


def driver_of(holder: str) -> str:
    """Return the name of a driver in the id under which the group knows it: ``A-host-1f2e3d4c``."""
    return holder.partition("-")[0]


def look_of(view: GroupView, *, at_s: float) -> GroupLook:
    """Return the view of a group, as the demo needs it."""
    return GroupLook(at_s=at_s, parts=tuple(map(_part, view.partitions)))


def _part(view: PartitionView) -> PartitionLook:
    held = view.state in (State.LEASED, State.BREAKING) and view.owner is not None
    return PartitionLook(
        partition=view.partition,
        owner=driver_of(view.owner) if held and view.owner else None,
        epoch=view.epoch,
        done=0 if view.checkpoint is None else view.checkpoint + 1,
        head=0 if view.head is None else view.head + 1,
        done_epoch=view.checkpoint_epoch or 0,
    )


@dataclass(slots=True)
class Rates:
    """Events per second of each driver of late, by the checkpoints of its partitions."""

    _seen: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)
    _totals: dict[str, int] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)

    def add(self, look: GroupLook) -> None:
        """Add a further look."""
        for part in look.parts:
            moved = part.done - self._done.get(part.partition, 0)
            if moved > 0 and part.owner is not None:
                self._totals[part.owner] = self._totals.get(part.owner, 0) + moved
            self._done[part.partition] = part.done
        self._seen.append((look.at_s, dict(self._totals)))
        while len(self._seen) > 2 and self._seen[1][0] <= look.at_s - _WINDOW_S:  # noqa: PLR2004
            self._seen.popleft()

    def total(self, name: str) -> int:
        """Return all events of a driver."""
        return self._totals.get(name, 0)

    def per_s(self, name: str) -> float:
        """Return its rate now."""
        if not self._seen:
            return 0.0
        (began_s, before), (now_s, now) = self._seen[0], self._seen[-1]
        moved = now.get(name, 0) - before.get(name, 0)
        return moved / (now_s - began_s) if now_s > began_s else 0.0


def listed(partitions: Sequence[str]) -> str:
    """Return ``partition 3`` or ``partitions 0, 2, 5``."""
    noun = "partition" if len(partitions) == 1 else "partitions"
    return f"{noun} {', '.join(partitions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryLine:
    """One thing that happened. ``tone``: good, bad or plain, for its colour."""

    at_s: float
    words: str
    tone: str = "plain"


@dataclass(slots=True)
class Story:
    """All that happened so far."""

    lines: list[StoryLine] = field(default_factory=list)
    _owners: dict[str, str] = field(default_factory=dict)
    _gone: dict[str, tuple[float, str]] = field(default_factory=dict)

    def tell(self, at_s: float, words: str, tone: str = "plain") -> StoryLine:
        """Add a line on what the demo did or learned."""
        line = StoryLine(at_s=at_s, words=words, tone=tone)
        self.lines.append(line)
        return line

    def lost(self, name: str, at_s: float, how: str) -> None:
        """Note that a driver does not work: ``how`` is ``was killed`` or ``was stopped``."""
        self._gone[name] = (at_s, how)

    def back(self, name: str) -> None:
        """Note that it works again."""
        self._gone.pop(name, None)

    def see(self, look: GroupLook) -> list[StoryLine]:
        """Add a line for partitions that have changed their owner since the last look."""
        moved: dict[tuple[str, str], list[str]] = defaultdict(list)
        for part in look.parts:
            before = self._owners.get(part.partition, "")
            if part.owner is not None and part.owner != before:
                moved[before, part.owner].append(part.partition)
                self._owners[part.partition] = part.owner
        return [
            self.tell(look.at_s, self._words(before, now, parts, look.at_s))
            for (before, now), parts in moved.items()
        ]

    def _words(self, before: str, now: str, parts: list[str], at_s: float) -> str:
        if not before:
            return f"{now} takes {listed(parts)}"
        if before in self._gone:
            since_s, how = self._gone[before]
            return f"{now} takes {listed(parts)}, {at_s - since_s:.1f} s after {before} {how}"
        return f"{before} hands {listed(parts)} over to {now}"


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
class ScreenContents:
    """Everything that is shown at one time."""

    look: GroupLook
    drivers: tuple[DriverLine, ...]
    sent: int
    total: int


class Screen:
    """``with`` begins and ends the display; ``show`` refreshes it, ``tell`` adds a line."""

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

    def tell(self, line: StoryLine) -> None:
        """Print a line of the story; on a terminal it stays above the live display."""
        words = folded(line.words, width=self._width)
        self._console.print(
            Text.assemble((f"{line.at_s:5.1f} s  ", "dim"), (words, _STYLES[line.tone])),
            soft_wrap=self._live is None,
        )

    def show(self, picture: ScreenContents) -> None:
        """Refresh the display; without a terminal, print the progress now and then."""
        if self._live is not None:
            self._live.update(painted(picture), refresh=True)
        elif picture.look.at_s >= self._told_s + _TOLD_EVERY_S:
            self._told_s = picture.look.at_s
            words = folded(progress_words(picture), width=self._width)
            # A console for text of other parties would show the line breaks of a str as escapes.
            self._console.print(Text(f"{picture.look.at_s:5.1f} s  {words}"), soft_wrap=True)

    @property
    def _width(self) -> int:
        return _WIDEST if self._live is None else min(_WIDEST, self._console.width)


def folded(words: str, *, width: int = _WIDEST) -> str:
    """Return the text after a time, in as many lines as it needs. Paths are not broken."""
    lines = textwrap.wrap(
        words, width=max(1, width - _TIME), break_long_words=False, break_on_hyphens=False
    )
    return f"\n{' ' * _TIME}".join(lines)


def progress_words(picture: ScreenContents) -> str:
    """Return the progress as one line."""
    shares = ", ".join(
        f"{each.name} {each.state}"
        + (f" ({each.partitions} partitions, {each.per_s:,.0f}/s)" if each.partitions else "")
        for each in picture.drivers
    )
    return (
        f"sent {picture.sent:,}, in the table {picture.look.done:,} of {picture.total:,}; {shares}"
    )


def painted(picture: ScreenContents) -> RenderableType:
    """Return the display for a terminal of 80 columns."""
    sides = Table.grid(padding=(0, 3))
    sides.add_row(_partitions(picture.look), _drivers(picture.drivers))
    return Group(_bars(picture), Text(), sides)


def _bars(picture: ScreenContents) -> Table:
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


def _partitions(look: GroupLook) -> Table:
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
