"""All parts, or the one that is named: ``python -m bench [PART] [--json] [--small]``."""

from __future__ import annotations

import sys
from importlib import import_module

from bench.report import Part, main

PARTS = ("balance", "stores", "files", "log", "processor", "spark", "jobs", "azure")


def part(name: str) -> Part:
    """A part by its name; imported only now, since it may need what is not installed."""
    found: Part = import_module(f"bench.{name}").PART
    return found


def run(argv: list[str]) -> int:
    names = [word for word in argv if not word.startswith("-")]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"there is no part {unknown[0]!r}: choose from {', '.join(PARTS)}", file=sys.stderr)
        return 2
    rest = [word for word in argv if word not in PARTS]
    return main([part(name) for name in names or PARTS], rest)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
