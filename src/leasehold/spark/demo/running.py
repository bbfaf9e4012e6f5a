"""The demo from its first flight to its verdict, and the commands to try afterwards.

The verdict compares the table with the flights and includes the audit. The commands are those of
the environment that ran the demo, quoted for a shell; a line of more than 80 columns is broken
between options, with a backslash.
"""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from deltalake import DeltaTable
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from leasehold.spark.audit import Verdict as AuditVerdict
from leasehold.spark.audit import audit
from leasehold.spark.demo.delays import (
    GROUP,
    STREAM,
    compare,
    events_of,
    flights_file,
    read_flights,
)
from leasehold.spark.demo.screen import Screen
from leasehold.spark.demo.show import Show, ShowOptions
from leasehold.spark.sessions import session
from leasehold.spark.sinks.delta.sink import DeltaSink

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark.sql import SparkSession
    from rich.console import Console, RenderableType

    from leasehold.clock import Clock
    from leasehold.spark.demo.delays import Comparison
    from leasehold.spark.demo.demo_files import DemoFiles
    from leasehold.spark.demo.show import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWord:
    """The result of the audit: how many claims it tested, and how many of them hold."""

    claims: int
    proved: int
    words: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all of them do."""
        return self.proved == self.claims


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVerdict:
    """All that was found."""

    shown: Shown
    comparison: Comparison
    audit: AuditWord

    @property
    def holds(self) -> bool:
        """Whether the demo has shown what it promised."""
        return self.comparison.equal and self.audit.holds and self.shown.refused_rows > 0

    def rows(self) -> list[tuple[str, str, bool]]:
        """Return what was checked, what was found, and whether that is right."""
        comparison, audit = self.comparison, self.audit
        found = f"{comparison.in_table:,} of {comparison.flights:,}"
        groups = f"{comparison.groups - comparison.unequal:,} of {comparison.groups:,}"
        sums = f"{comparison.delay_found_min:,} of {comparison.delay_min:,} min"
        return [
            ("flights in the table", found, comparison.in_table == comparison.flights),
            ("flights that are missing", f"{comparison.missing:,}", not comparison.missing),
            ("flights that are there twice", f"{comparison.twice:,}", not comparison.twice),
            (
                "carriers, routes and hours as by pandas",
                groups,
                not (comparison.unequal or comparison.strange),
            ),
            (
                "sum of the departure delays",
                sums,
                comparison.delay_found_min == comparison.delay_min,
            ),
            (
                f"late commit, after a pause of {self.shown.paused_s:.1f} s",
                f"{self.shown.refused_rows:,} flights refused",
                self.shown.refused_rows > 0,
            ),
            ("claims of the audit that hold", f"{audit.proved} of {audit.claims}", audit.holds),
        ]


_ROWS = "A row of the table holds the sums of one batch, by carrier, route and hour."


def table_of(verdict: DemoVerdict) -> RenderableType:
    """Return the verdict as a table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("what was looked at")
    table.add_column("found", justify="right")
    table.add_column("")
    for what, found, right in verdict.rows():
        word = Text("yes", "green") if right else Text("NO", "bold red")
        table.add_row(what, found, word)
    return Group(table, Text(_ROWS))


def wrong(verdict: DemoVerdict) -> list[str]:
    """Return what is wrong, line by line; empty if nothing is."""
    return [*verdict.comparison.examples, *verdict.audit.words]


_WIDEST = 80
_INDENT = "  "
_MORE = "      "


def further(place: DemoFiles, *, programs: Path, cwd: Path) -> list[str]:
    """Return lines to print; ``programs``: the directory of ``sys.executable``."""
    leasehold = called("leasehold", programs=programs, cwd=cwd)
    python = called("python", programs=programs, cwd=cwd)
    store = ["--store", place.url]
    return [
        *command([leasehold, "groups", "show", STREAM, GROUP], store),
        *command([leasehold, "audit", STREAM, GROUP], ["--sink", f"delta:{place.table}"], store),
        f"{_INDENT}# the same on your own data, in a clone of the repository:",
        *command([python, "examples/spark_pipeline.py", "YOUR.csv"]),
    ]


def called(name: str, *, programs: Path, cwd: Path) -> str:
    """Return how to call a program from ``cwd``: ``.venv/bin/leasehold``, or its name alone."""
    program = programs / name
    if not program.exists():
        return name
    return str(program.relative_to(cwd) if program.is_relative_to(cwd) else program)


def command(*parts: list[str]) -> list[str]:
    """Return one command in lines that fit, if no part alone is longer than a line."""
    lines: list[str] = []
    line = _INDENT
    for number, part in enumerate(map(shlex.join, parts)):
        longer = f"{line} {part}" if number else f"{line}{part}"
        rest = 0 if number == len(parts) - 1 else len(" \\")
        if number and len(longer) + rest > _WIDEST:
            lines.append(f"{line} \\")
            longer = f"{_MORE}{part}"
        line = longer
    return [*lines, line]


_SPARK = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """``flights``: how many of them; ``None``: the whole year. The rest is of the show."""

    show: ShowOptions
    flights: int | None = None


def run_demo(
    place: DemoFiles, options: DemoOptions, *, console: Console, clock: Clock
) -> DemoVerdict:
    """Run the demo; it takes about two minutes."""
    flights = read_flights(flights_file(), most=options.flights)
    with ThreadPoolExecutor(1, "spark of the audit") as pool:
        begun: list[Future[SparkSession]] = []
        show = Show(
            place,
            events_of(flights),
            options=options.show,
            screen=Screen(console),
            clock=clock,
            # A Spark takes seconds to start: that of the audit does while the drivers still work.
            before_the_end=lambda: begun.append(pool.submit(_audit_session)),
        )
        try:
            shown = anyio.run(show.run)
            spark = begun[0].result()
            console.print("the audit begins, and the comparison with pandas")
            compared = compare(flights, DeltaTable(str(place.table)).to_pyarrow_table())
            return DemoVerdict(shown=shown, comparison=compared, audit=_audited(spark, place))
        finally:
            for each in begun:
                each.result().stop()


def _audit_session() -> SparkSession:
    return session("audit of the demo", master="local[2]", settings=_SPARK)


def _audited(spark: SparkSession, place: DemoFiles) -> AuditWord:
    """Audit the group, and write the report."""
    found = audit(spark, store=place.url, stream=STREAM, group=GROUP, sink=DeltaSink(place.table))
    place.report.write_text(found.html(), encoding="utf-8")
    return AuditWord(
        claims=len(found.checks),
        proved=sum(each.verdict is AuditVerdict.PROVED for each in found.checks),
        words=tuple(
            f"{each.check}, partition {each.partition}: {each.what} ({each.evidence})"
            for each in found.findings
        ),
    )
