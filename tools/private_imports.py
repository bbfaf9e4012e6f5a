"""List the tests that import private modules, by room: `python tools/private_imports.py [-v]`.

A module is public if the manual may show it: the package itself, the vocabulary and the contracts
beside it, the packages below it, and the test kit.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
PACKAGES = ("adapters", "files", "hub", "jobs", "log", "processor", "sources", "spark", "stores")
PUBLIC = {
    "leasehold",
    *(f"leasehold.{name}" for name in ("clock", "errors", "model", "names", "ports", *PACKAGES)),
    "leasehold.adapters.azure",
    "leasehold.cli",
    "leasehold.jobs.fences",
    "leasehold.sources.eventhubs",
    "leasehold.stores.azure_blob",
    "leasehold.stores.memory",
    "leasehold.stores.postgres",
    "leasehold.stores.sqlite",
}


def private(text: str) -> set[str]:
    """Return the private modules that a test file imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    ours = {each for each in found if each.partition(".")[0] == "leasehold"}
    return {each for each in ours - PUBLIC if not each.startswith("leasehold.testing")}


def main(argv: list[str]) -> int:
    """Print a row for each room; with ``-v`` each file and what it imports."""
    files: Counter[str] = Counter()
    one: Counter[str] = Counter()
    several: Counter[str] = Counter()
    for path in sorted(TESTS.rglob("test_*.py")):
        room = path.relative_to(TESTS).parts[0]
        files[room] += 1
        found = private(path.read_text(encoding="utf-8"))
        one[room] += len(found) == 1
        several[room] += len(found) > 1
        if found and "-v" in argv:
            print(f"{path.relative_to(TESTS)}: {', '.join(sorted(found))}")
    print(f"{'room':12} {'files':>6} {'one private module':>19} {'several':>8}")
    for room in sorted(files):
        print(f"{room:12} {files[room]:6} {one[room]:19} {several[room]:8}")
    print(f"{'all':12} {files.total():6} {one.total():19} {several.total():8}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
