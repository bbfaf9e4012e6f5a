"""List the tests that import private modules, by room: `python tools/private_imports.py [-v]`.

A module is public if the manual shows it, or is a contract that others implement: the package
itself, the vocabulary and the contracts beside it, the packages below it, the test kit, and every
module that the README, a page of ``docs`` or an example names.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PACKAGES = (
    *("adapters", "files", "hub", "insight", "jobs", "log", "processor", "sources", "spark"),
    "stores",
)


def shown() -> set[str]:
    """Return every module that the README, a page or an example names."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = {each.rstrip(".") for each in re.findall(r"\bleasehold(?:\.[a-z_]+)+", text)}
    return {each for each in named if _is_module(each)}


def _is_module(name: str) -> bool:
    path = ROOT.joinpath("src", *name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


PUBLIC = {
    *shown(),
    "leasehold",
    *(f"leasehold.{name}" for name in ("clock", "errors", "model", "names", "ports", *PACKAGES)),
    "leasehold.azure.interop",
    "leasehold.cli",
    "leasehold.jobs.fences",
    "leasehold.azure.eventhubs",
    "leasehold.azure.blob_store",
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
    package: Counter[str] = Counter()
    several: Counter[str] = Counter()
    for path in sorted(TESTS.rglob("test_*.py")):
        room = path.relative_to(TESTS).parts[0]
        files[room] += 1
        found = private(path.read_text(encoding="utf-8"))
        one[room] += len(found) == 1
        around = {each.rpartition(".")[0] for each in found}
        package[room] += len(found) > 1 and len(around) == 1
        several[room] += len(around) > 1
        if found and "-v" in argv:
            print(f"{path.relative_to(TESTS)}: {', '.join(sorted(found))}")
    print(f"{'room':12} {'files':>6} {'one private module':>19} {'one package':>12} {'several':>8}")
    counts = (files, one, package, several)
    for room, row in [
        *((room, [each[room] for each in counts]) for room in sorted(files)),
        ("all", [each.total() for each in counts]),
    ]:
        print("{:12} {:6} {:19} {:12} {:8}".format(room, *row))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
