"""Pages: what a list shows, printed once or, with ``--watch``, again and again until Ctrl-C.

A terminal is painted over. Into a pipe go one page after the other: a table, one line of JSON
(``-o json``), or one line for each row (``-o jsonl``). A failure of the store ends the command if
it is the first read; later it is shown, and the page is read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Annotated

import anyio
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from leasehold.cli.common import (
    LOG_MAKES,
    Output,
    duration,
    echo,
    shown_seconds,
    store_url,
    until_the_pipe_closes,
)
from leasehold.cli.tables import (
    err,
    out,
    print_table,
)
from leasehold.errors import InvalidDuration, StoreUnavailable
from leasehold.insight import Inspector, open_inspector
from leasehold.printable import json_text, printable

_OPTION = "--watch"
_EVERY = "2s"
_MIN_S, _MAX_S = 0.1, 86400.0
_POLL_INTERVAL_S = 0.25

Watch = Annotated[
    str | None,
    typer.Option(
        _OPTION,
        help="Look again every 2s, or as often as you say: --watch=10s. Ctrl-C ends it.",
        metavar="[=TIME]",
        show_default=False,
    ),
]

NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Ask, and do not wait until it is done.", metavar="")
]
Timeout = Annotated[str, typer.Option(help="How long to wait.", metavar="TIME")]


class Watching(TyperCommand):
    """A command whose ``--watch`` may stand alone: its value is only what follows a ``=``."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        """Give a bare ``--watch`` its value, so that it does not take the next word for it."""
        end = args.index("--") if "--" in args else len(args)
        options = [f"{_OPTION}={_EVERY}" if each == _OPTION else each for each in args[:end]]
        return super().parse_args(ctx, options + args[end:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is shown: ``data`` for programs, ``blocks`` for terminals, ``notes`` for stderr."""

    data: Sequence[Mapping[str, object]] | Mapping[str, object]
    blocks: Sequence[Table | str]
    notes: Sequence[str] = ()


PageReader = Callable[[Inspector], Awaitable[Page]]


def show(
    read_page: PageReader,
    *,
    store: str | None,
    form: Output,
    watch: str | None = None,
    maker: str = LOG_MAKES,
) -> None:
    """Print a page; with ``watch`` again after each such time, until Ctrl-C.

    ``maker`` names the commands that make a store, if there is none.
    """
    url = store_url(store, maker=maker)
    if watch is None:
        with until_the_pipe_closes():
            print_page(anyio.run(_once, url, read_page), form)
        return
    every_s = duration(watch, option=_OPTION).total_seconds()
    if not _MIN_S <= every_s <= _MAX_S:
        raise InvalidDuration(f"{_OPTION} {watch!r} must lie between 100ms and 1d")
    with suppress(KeyboardInterrupt), until_the_pipe_closes():
        anyio.run(_again, url, read_page, form, every_s)


def print_page(page: Page, form: Output) -> None:
    """Print a page once."""
    _print_notes(page.notes)
    if form is Output.TABLE:
        _print_blocks(page.blocks)
    elif form is Output.JSON:
        typer.echo(json_text(page.data, indent=2))
    else:
        _print_lines(page)


async def _once(url: str, read_page: PageReader) -> Page:
    async with open_inspector(url) as inspector:
        return await read_page(inspector)


async def _again(url: str, read_page: PageReader, form: Output, every_s: float) -> None:
    painted = form is Output.TABLE and out.is_terminal
    async with open_inspector(url) as inspector:
        page = await read_page(inspector)
        if painted:
            await _paint(inspector, read_page, page, every_s)
        shown: Sequence[str] = ()
        while True:
            if page.notes != shown:
                _print_notes(page.notes)
            shown = page.notes
            if form is Output.JSON:
                typer.echo(json_text(page.data))
            elif form is Output.JSONL:
                _print_lines(page)
            else:
                _print_blocks(page.blocks)
                echo("")
            await inspector.clock.sleep(every_s)
            page = await _next(inspector, read_page, page)


async def _paint(inspector: Inspector, read_page: PageReader, page: Page, every_s: float) -> None:
    with Live(console=out, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            at = inspector.clock.utc_now().strftime("%H:%M:%SZ")
            foot = Text(f"\n{at}, again every {shown_seconds(every_s)}; Ctrl-C ends it", "dim")
            notes = [Text(printable(each), "yellow") for each in page.notes]
            blocks = [printable(each) if isinstance(each, str) else each for each in page.blocks]
            live.update(Group(*blocks, *notes, foot), refresh=True)
            await inspector.clock.sleep(every_s)
            page = await _next(inspector, read_page, page)


async def _next(inspector: Inspector, read_page: PageReader, before: Page) -> Page:
    """Read the page again; while the store is unavailable, return the former one with a note."""
    try:
        return await read_page(inspector)
    except StoreUnavailable as error:
        return Page(data=before.data, blocks=before.blocks, notes=(f"not as it is now: {error}",))


async def wait_until_done(
    inspector: Inspector, step: Callable[[], Awaitable[str | None]], *, limit_s: float
) -> bool:
    """Call ``step`` until it returns None, and print what it returns; False: out of time.

    A store that is unavailable for a while ends nothing: the request continues without us.
    """
    until_s, shown = inspector.clock.boottime_s() + limit_s, ""
    with err.status("…") if err.is_terminal else nullcontext() as status:
        while True:
            try:
                message = await step()
            except StoreUnavailable as error:
                message = f"the store does not answer: {error}"
            if message is None:
                return True
            if status is not None:
                status.update(Text(printable(message)))
            elif message != shown:
                err.print(message)
            shown = message
            if inspector.clock.boottime_s() >= until_s:
                return False
            await inspector.clock.sleep(_POLL_INTERVAL_S)


def _print_blocks(blocks: Sequence[Table | str]) -> None:
    for block in blocks:
        if isinstance(block, str):
            echo(block)
        else:
            print_table(block)


def _print_lines(page: Page) -> None:
    for row in [page.data] if isinstance(page.data, Mapping) else page.data:
        typer.echo(json_text(row))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        err.print(note)
