"""Two versions side by side: ``make bench BASE=<commit>`` measures that commit and this tree.

Each part runs at the commit, then here, on the same machine within minutes; the table shows both
and the ratio. The commit is checked out into ``.bench/`` and uses the environment of this tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import WIDTH, shown
from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent


def compare(commit: str, parts: Sequence[str], rest: Sequence[str]) -> int:
    """Measure and print the parts; 1 if one of them could not be measured."""
    try:
        base = checkout(commit)
    except subprocess.CalledProcessError:
        print(f"there is no commit {commit!r} in this repository", file=sys.stderr)
        return 2
    complete = True
    for part in parts:
        old, new = (rows_of(root, part, rest) for root in (base, ROOT))
        complete = complete and bool(old and new)
        Console(file=sys.stdout, width=WIDTH).print(table_of(part, base.name, old, new))
    return 0 if complete else 1


def checkout(commit: str) -> Path:
    """Return a work tree of the commit."""
    name = _git("rev-parse", "--verify", "--short=12", f"{commit}^{{commit}}")
    place = ROOT / ".bench" / name
    if not place.is_dir():
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", "--force", str(place), name)
    return place


def rows_of(root: Path, part: str, rest: Sequence[str]) -> dict[str, Any]:
    """Run one part of the version in ``root``; return what it measured, by name."""
    path = os.pathsep.join((str(root / "src"), str(root)))
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "bench", part, "--json", *rest],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    found = json.loads(lines[-1])["rows"] if lines else []
    return {row["what"]: row["ours"] for row in found}


def table_of(part: str, name: str, old: dict[str, Any], new: dict[str, Any]) -> Table:
    """Return the rows of both; what only one of them has is shown without a ratio."""
    table = Table(title=part, width=WIDTH, box=box.SIMPLE_HEAD)
    table.add_column("what", ratio=1)
    for heading in (name, "this tree", "ratio"):
        table.add_column(heading, justify="right")
    for what in {**old, **new}:
        before, now = old.get(what), new.get(what)
        ratio = ""
        if isinstance(before, (int, float)) and isinstance(now, (int, float)) and before:
            ratio = f"{now / before:.2f}"
        table.add_row(what, shown(before), shown(now), ratio)
    return table


def _git(*words: str) -> str:
    command = [shutil.which("git") or "git", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()
