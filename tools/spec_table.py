"""Print each behaviour of docs/spec.md with its tests: `python tools/spec_table.py REPORT.json`.

The report is what `pytest --spec-report REPORT.json` wrote. The exit code is 1 when a behaviour
that is built has no test, no passing test, or a failing one.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

SPEC = Path(__file__).resolve().parent.parent / "docs" / "spec.md"
WIDTH = 80
_ROW = re.compile(r"^\| (?P<id>[A-Z]\d+) \| .+ \| (?P<built>yes|later) \|$", re.MULTILINE)
_BAD = ("FAILED", "missing")


def read_spec(text: str) -> dict[str, bool]:
    """Return every id of the spec in its order, and whether it is built."""
    return {row["id"]: row["built"] == "yes" for row in _ROW.finditer(text)}


def judge(outcomes: list[str], *, built: bool) -> str:
    """Say in one word how a behaviour stands, from the outcomes of its tests."""
    if "failed" in outcomes:
        return "FAILED"
    if "passed" in outcomes:
        return "passed"
    return "missing" if built else "later"


def table(spec: dict[str, bool], report: dict[str, list[dict[str, str]]]) -> tuple[list[str], int]:
    """Return the lines to print and how many behaviours are not as they should be."""
    lines = ["id   tests  result   first test", "-" * WIDTH]
    results = []
    for spec_id, built in spec.items():
        tests = report.get(spec_id, [])
        result = judge([test["outcome"] for test in tests], built=built)
        results.append(result)
        names = [test["test"].removeprefix("tests/") for test in tests]
        line = (
            f"{spec_id:<4} {len(tests) or '-':>5}  {result:<7}  {min(names, default='')}".rstrip()
        )
        lines.append(line if len(line) <= WIDTH else line[: WIDTH - 3] + "...")
    counts = ", ".join(
        f"{results.count(word)} {word}"
        for word in ("passed", "later", *_BAD)
        if word in results or word == "passed"
    )
    lines += ["-" * WIDTH, f"{len(spec)} behaviours: {counts}"]
    return lines, sum(result in _BAD for result in results)


def main(arguments: list[str]) -> int:
    """Print the table; 1 when something built is not proved."""
    match arguments:
        case [name] if Path(name).exists():
            report = json.loads(Path(name).read_text(encoding="utf-8"))
        case _:
            print(f"usage: {Path(__file__).name} REPORT.json (from pytest --spec-report)")
            return 2
    lines, bad = table(read_spec(SPEC.read_text(encoding="utf-8")), report)
    print("\n".join(lines))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
