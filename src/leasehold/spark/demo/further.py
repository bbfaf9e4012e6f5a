"""What to do after the demo: commands that can be copied as they are printed.

Guarantees: the commands are those of the environment that ran the demo, quoted for a shell. A line
of more than 80 columns is broken between options, with a backslash, and goes on below.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from leasehold.spark.demo.delays import GROUP
from leasehold.spark.demo.flights import STREAM

if TYPE_CHECKING:
    from pathlib import Path

    from leasehold.spark.demo.place import Place

_WIDEST = 80
_INDENT = "  "
_MORE = "      "


def further(place: Place, *, programs: Path, cwd: Path) -> list[str]:
    """Lines to print; ``programs``: the directory of ``sys.executable``."""
    leasehold = called("leasehold", programs=programs, cwd=cwd)
    python = called("python", programs=programs, cwd=cwd)
    store = ["--store", place.url]
    return [
        *command([leasehold, "groups", "describe", STREAM, GROUP], store),
        *command([leasehold, "audit", STREAM, GROUP], ["--sink", f"delta:{place.table}"], store),
        f"{_INDENT}# the same on your own data, in a clone of the repository:",
        *command([python, "examples/spark_pipeline.py", "YOUR.csv"]),
    ]


def called(name: str, *, programs: Path, cwd: Path) -> str:
    """How to call a program from ``cwd``: ``.venv/bin/leasehold``, or its name alone."""
    program = programs / name
    if not program.exists():
        return name
    return str(program.relative_to(cwd) if program.is_relative_to(cwd) else program)


def command(*parts: list[str]) -> list[str]:
    """One command in lines that fit, if no part alone is longer than a line."""
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
