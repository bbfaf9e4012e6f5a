"""Tables, records and progress, as rich draws them: what the commands print.

A table fits into the terminal as far as its columns may fold. Off a terminal no line is broken, and
the layout is one that fits into 80 columns, if there is one. Commands that print no table leave
this module alone: rich takes its time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from leasehold.cli.common import Column, Output, cell, seconds_cell, size_cell, time_cell
from leasehold.printable import json_text, printable


class SafeConsole(Console):
    """A console for names, notes and bytes of other parties: nothing in them is markup or control.

    A text is one line: its line breaks are shown as escapes too. ``lines_of`` makes text that may
    have several lines.
    """

    def __init__(self, **options: Any) -> None:
        """``options`` are those of ``Console``."""
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; each text in ``objects`` as one line."""
        shown = (printable(each) if isinstance(each, str) else each for each in objects)
        super().print(*shown, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield what is drawn; whatever it is made of, its text is printable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)

    def on_broken_pipe(self) -> None:
        """Leave it to the command what the end of its pipe means."""
        raise  # noqa: PLE0704 - called while the error is being handled


def lines_of(text: str) -> Text:
    """Return text of several lines, such as a traceback, to be printed."""
    return Text(printable(text.expandtabs(), keep="\n"))


out = SafeConsole()
err = SafeConsole(stderr=True, soft_wrap=True)

_NO_LIMIT = 100_000  # columns, where the output is not a terminal
_GAP = 2  # between two columns


def print_rows(
    rows: Iterable[Mapping[str, object]], form: Output, columns: Iterable[Column], title: str = ""
) -> None:
    """Print rows; as JSON with all they have, as a table only its ``columns``."""
    if form is Output.JSONL:
        for row in rows:
            typer.echo(json_text(row))
    elif form is Output.JSON:
        typer.echo(json_text(list(rows), indent=2))
    else:
        print_table(table_of(rows, columns, title))


def line_width() -> int:
    """Return the columns of a line: without limit off a terminal, unless COLUMNS is set."""
    return out.width if out.is_terminal or "COLUMNS" in os.environ else _NO_LIMIT


def print_table(table: Table) -> None:
    """Print a table: what must not be broken may be wider than the terminal."""
    width = line_width() if _fits(table) else _NO_LIMIT
    # A new console, because a console prints nothing that is wider than itself.
    SafeConsole(width=width).print(table)


def fitting_table(
    rows: Iterable[Mapping[str, object]], layouts: Sequence[Sequence[Column]], title: str = ""
) -> Table:
    """Return the table in the first layout that needs no folding, else in the last.

    Off a terminal too: a layout leaves columns out, and JSON has them all.
    """
    rows, endless = list(rows), SafeConsole(width=_NO_LIMIT)
    tables = [table_of(rows, each, title) for each in layouts]
    width = min(line_width(), out.width)
    return next((each for each in tables if endless.measure(each).maximum <= width), tables[-1])


def _fits(table: Table) -> bool:
    needed = sum((column.min_width or 0) + _GAP for column in table.columns)
    return needed <= line_width()


def table_of(
    rows: Iterable[Mapping[str, object]], columns: Iterable[Column], title: str = ""
) -> Table:
    """Return a table that hides nothing and breaks lines only in columns that fold."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=printable(title) or None,
        title_justify="left",
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    columns = list(columns)
    cells = [[cell(row[column.name], column) for column in columns] for row in rows]
    for at, column in enumerate(columns):
        title = column.title or column.name
        width = max((cell_len(row[at]) for row in cells), default=0)
        table.add_column(
            title,
            justify=column.justify,
            overflow="fold",
            no_wrap=not column.fold,
            min_width=max(min(width, column.min_width) if column.fold else width, len(title)),
        )
    for row in cells:
        table.add_row(*row)
    return table


def print_record(record: Mapping[str, object], form: Output) -> None:
    """Print one thing: a line for each of its values, or one JSON object."""
    if form is not Output.TABLE:
        typer.echo(json_text(record, indent=2 if form is Output.JSON else None))
        return
    print_table(record_table(record))


def record_table(record: Mapping[str, object], columns: Iterable[Column] = ()) -> Table:
    """Return a table with a line for each value; ``columns`` say how some are shown."""
    known = {column.name: column for column in columns}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in record.items():
        column = known.get(name)
        if column is None:
            table.add_row(*map(printable, _named(name, value)))
        else:
            table.add_row(column.title or column.name, cell(value, column))
    return table


def _named(name: str, value: object) -> tuple[str, str]:
    """Return a name without its unit, and its value with the unit."""
    for unit, shown in _UNITS.items():
        if name.endswith(unit):
            plain = name.removesuffix(unit).replace("_", " ")
            return plain, cell(value, Column(name=name, shown=shown))
    return name.replace("_", " "), cell(value, Column(name=name))


_UNITS = {"_bytes": size_cell, "_s": seconds_cell, "_at": time_cell}


@contextmanager
def byte_progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr that counts bytes, if stderr is a terminal."""
    if not err.is_terminal:
        yield lambda _count: None
        return
    from rich.progress import (  # noqa: PLC0415 - it takes its time
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    parts = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*parts, TimeRemainingColumn(), console=err, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
