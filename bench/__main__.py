"""All parts, or the one that is named: ``python -m bench [PART] [--json] [--small]``.

With ``--base COMMIT`` each part is measured at that commit too, and the ratio printed.
"""

from __future__ import annotations

import sys
from importlib import import_module

from bench.base import compare
from bench.report import Part, main

PARTS = ("balance", "stores", "files", "log", "processor", "spark", "jobs", "azure")


def part(name: str) -> Part:
    """A part by its name; imported only now, since it may need what is not installed."""
    found: Part = import_module(f"bench.{name}").PART
    return found


def run(argv: list[str]) -> int:
    words, base = list(argv), ""
    if "--base" in words:
        at = words.index("--base")
        base = words[at + 1] if at + 1 < len(words) else ""
        if not base:
            print("--base needs a commit", file=sys.stderr)
            return 2
        del words[at : at + 2]
    names = [word for word in words if not word.startswith("-")]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"there is no part {unknown[0]!r}: choose from {', '.join(PARTS)}", file=sys.stderr)
        return 2
    rest = [word for word in words if word not in PARTS]
    if base:
        return compare(base, names or PARTS, rest)
    return main([part(name) for name in names or PARTS], rest)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
