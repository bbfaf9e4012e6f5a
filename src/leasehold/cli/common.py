"""What the commands share: the store, durations and sizes, and how values are shown.

Data goes to stdout and everything else to stderr. A value that nobody knows is ``-`` in a table
and ``null`` in JSON. Tables are in ``tables``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from leasehold.errors import InvalidDuration, UnknownFile, UsageError
from leasehold.printable import printable

if TYPE_CHECKING:
    from leasehold.insight import Inspector

_NUMBER = re.compile(r"([0-9]+(?:[.][0-9]+)?)\s*([A-Za-z]*)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 1000 * 365 * 86400.0
_KB = 1000
_BYTES: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{f"{letter}ib": 1 << 10 * (power + 1) for power, letter in enumerate("kmgt")},
}
_SQLITE = "sqlite:///"
_MEMORY = "memory:"
_MIN_FOLDED = 16


class Output(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


def _store_option(help_text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        "--store", envvar="LEASEHOLD_STORE", help=help_text, metavar="URL", show_default=False
    )
    return found


StoreUrl = Annotated[
    str | None,
    _store_option("The store: sqlite:///path.db, postgresql://… or azure-blob://ACCOUNT/CONTAINER"),
]
# For what needs a database: files and logs.
DatabaseUrl = Annotated[str | None, _store_option("The store: sqlite:///path.db or postgresql://…")]
LOG_MAKES = "`leasehold log create`"
JOBS_MAKE = "`leasehold run` or `leasehold worker`"
Form = Annotated[
    Output, typer.Option("--output", "-o", help="table, json or jsonl.", metavar="FORM")
]

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The name of the stream.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The name of the group.")]
PartitionId = Annotated[str, typer.Argument(metavar="PARTITION", help="The id of the partition.")]
Execute = Annotated[
    bool, typer.Option("--execute", help="Do it; else only say what would be done.", metavar="")
]


@contextmanager
def command_hints() -> Iterator[None]:
    """Replace advice for programs in the library's errors by commands to type."""
    try:
        yield
    except UnknownFile as error:
        message = str(error).replace(
            "look for the right path with list", "see `leasehold files ls`"
        )
        raise UnknownFile(message) from error
    except UsageError as error:
        if "has no volumes yet" not in str(error):
            raise
        begin = str(error).partition(": name ")[0]
        raise UsageError(
            f"{begin}: `leasehold log create STREAM --volume DIR` adds one; give --volume once for "
            "each disk"
        ) from error


def store_url(given: str | None, *, make: bool = False, maker: str = LOG_MAKES) -> str:
    """Return the URL of the store; only with ``make`` may it be a new SQLite file.

    ``maker`` names the commands that create a store.
    """
    if not given:
        raise UsageError(
            "which store? Give --store URL or set LEASEHOLD_STORE, such as sqlite:///leases.db, "
            "postgresql://user@host/database or azure-blob://account/container"
        )
    path = given[len(_SQLITE) :] if given.lower().startswith(_SQLITE) else ""
    if path and "%" not in path and not make and not Path(path).exists():
        raise UsageError(f"there is no store {given}: check the path; {maker} makes a new one")
    return given


def shared_store_url(given: str | None) -> str:
    """Return the URL of a store that other processes can use; it may be a new SQLite file."""
    url = store_url(given, make=True)
    if url.lower().startswith(_MEMORY):
        raise UsageError(
            f"{url} lives in this process alone: nothing would keep another one from running the "
            "same. Use sqlite:///leases.db on one machine, postgresql://user@host/database on more"
        )
    return url


# ------------------------------------------------------------ durations and sizes


def duration(text: str, *, option: str, at_least: str = "", at_most: str = "") -> timedelta:
    """Parse ``60s``, ``5m``, ``2h``, ``7d``; ``at_least`` and ``at_most`` are its range."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in _SECONDS:
        raise InvalidDuration(
            f"{option} {text!r} is no duration: write a number and ms, s, m, h or d, such as "
            "60s, 5m, 2h or 7d"
        )
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _LONGEST_S:
        raise InvalidDuration(f"{option} {text!r} is longer than 1000 years: choose less")
    found = timedelta(seconds=seconds)
    if at_least and found < duration(at_least, option=option):
        raise InvalidDuration(f"{option} {text} is too short: it must be {at_least} at least")
    if at_most and found > duration(at_most, option=option):
        raise InvalidDuration(f"{option} {text} is too long: it may be {at_most} at most")
    return found


def size(text: str, *, option: str) -> int:
    """Parse ``64MB``, ``10GB`` (powers of 1,000), ``512KiB`` (powers of 1,024) or bytes."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in _BYTES:
        raise UsageError(
            f"{option} {text!r} is no size: write a number and kB, MB, GB, TB, KiB, MiB, GiB or "
            "TiB, such as 64MB or 512KiB"
        )
    return round(float(match[1]) * _BYTES[match[2].lower()])


def shown_bytes(number: int) -> str:
    """Format a size: ``512 B``, ``64.0 MB``."""
    value, unit = float(number), "B"
    for each in ("kB", "MB", "GB", "TB"):
        if value < _KB - 0.05:
            break
        value, unit = value / _KB, each
    return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"


def shown_size(number: int) -> str:
    """Format a size exactly: ``64 MiB``, ``10 GB``, ``4,097 B``."""
    found = [(number, "B")]
    for power, letter in enumerate("kMGT", start=1):
        for unit, name in ((1000**power, f"{letter}B"), (1024**power, f"{letter.upper()}iB")):
            if number and number % unit == 0:
                found.append((number // unit, name))
    count, unit = min(found, key=lambda each: each[0])
    return f"{count:,} {unit}"


def shown_seconds(seconds: float) -> str:
    """Format a duration: ``0.4s``, ``59s``, ``5m``, ``2h``, ``7d``: the unit that fits."""
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.1f}s"
    for unit, next_unit in (("s", "m"), ("m", "h"), ("h", "d")):
        # From two of the next unit on, it says enough.
        if seconds < 2 * _SECONDS[next_unit]:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds / _SECONDS['d']:.0f}d"


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: ``1 file``, ``1,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown_time(at: str) -> str:
    """Format an ISO 8601 time of the store, without fractions of seconds."""
    return f"{at[:19].replace('T', ' ')}Z" if at else "-"


def bytes_cell(value: object) -> str:
    """Format a size for a table."""
    return shown_bytes(value) if isinstance(value, int) else str(value)


def size_cell(value: object) -> str:
    """Format a size exactly for a table."""
    return shown_size(value) if isinstance(value, int) else str(value)


def count_cell(value: object) -> str:
    """Format a number for a table."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def seconds_cell(value: object) -> str:
    """Format a duration for a table."""
    return shown_seconds(value) if isinstance(value, float) else str(value)


def yes_no_cell(value: object) -> str:
    """Format a truth value for a table."""
    return "yes" if value else "no"


def time_cell(value: object) -> str:
    """Format a time for a table."""
    return shown_time(str(value))


# ------------------------------------------------------------------------ printing


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: the value it shows, and how. Only one that folds is ever broken.

    ``none`` stands for a value that does not exist. ``min_width`` is how narrow a column that folds
    may become.
    """

    name: str
    title: str = ""
    justify: Literal["left", "right"] = "left"
    shown: Callable[[object], str] = str
    fold: bool = False
    none: str = "-"
    min_width: int = _MIN_FOLDED


def row_of(record: Any) -> dict[str, object]:
    """Return the fields of a frozen record, as values that JSON knows."""
    return {each.name: _plain(getattr(record, each.name)) for each in fields(record)}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    return round(value, 3) if isinstance(value, float) else value


def cell(value: object, column: Column) -> str:
    """Return a value as a column shows it, printable."""
    return column.none if value is None or value == "" else printable(column.shown(value))


def echo(text: str) -> None:
    """Print one line on stdout; what is not printable in it is shown as an escape."""
    typer.echo(printable(text))


@contextmanager
def until_the_pipe_closes() -> Iterator[None]:
    """Let ``… | head`` end the command quietly when the reader closes the pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffers has to go somewhere when the program ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def unknown_heads(inspector: Inspector) -> list[str]:
    """Return a note on why heads and lags are not known, or nothing if they are."""
    return [f"heads and lags are not known: {inspector.failure}"] if inspector.failure else []
