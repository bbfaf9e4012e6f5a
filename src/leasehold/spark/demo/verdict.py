"""The end of the demo: the table beside the flights, the audit, and one word for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from leasehold.spark.demo.delays import Comparison
    from leasehold.spark.demo.show import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWord:
    """What the audit says: how many claims it looked at, and how many of them hold."""

    claims: int
    proved: int
    words: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all of them do."""
        return self.proved == self.claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All that was found."""

    shown: Shown
    comparison: Comparison
    audit: AuditWord

    @property
    def holds(self) -> bool:
        """Whether the demo has shown what it promised."""
        return self.comparison.equal and self.audit.holds and self.shown.refused_rows > 0

    def rows(self) -> list[tuple[str, str, bool]]:
        """What was looked at, what was found, and whether that is right."""
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


def table_of(verdict: Verdict) -> RenderableType:
    """The verdict for people."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("what was looked at")
    table.add_column("found", justify="right")
    table.add_column("")
    for what, found, right in verdict.rows():
        word = Text("yes", "green") if right else Text("NO", "bold red")
        table.add_row(what, found, word)
    return Group(table, Text(_ROWS))


def wrong(verdict: Verdict) -> list[str]:
    """What is wrong, line by line; empty if nothing is."""
    return [*verdict.comparison.examples, *verdict.audit.words]
