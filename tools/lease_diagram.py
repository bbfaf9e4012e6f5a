"""Write the generated parts of docs/lease-states.md: the diagram and the table of the lease.

`python tools/lease_diagram.py` writes them, from `leasehold.core.lease_rules`; with `--check` it
writes nothing and the exit code is 1 when they are stale. All outside the markers stays as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from leasehold.core import lease_rules

PAGE = Path(__file__).resolve().parent.parent / "docs" / "lease-states.md"


def parts() -> dict[str, str]:
    """The generated parts, by the name that is in their markers."""
    return {
        "diagram": f"```mermaid\n{lease_rules.mermaid()}```\n",
        "table": lease_rules.markdown(),
    }


def filled(page: str) -> str:
    """Return the page with every generated part as it should be.

    Raises:
        LookupError: the markers of a part are not there.
    """
    for name, text in parts().items():
        begin = f"<!-- begin {name}: made by tools/lease_diagram.py -->\n"
        end = f"<!-- end {name} -->\n"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise LookupError(f"{PAGE.name} needs the lines {begin.strip()} and {end.strip()}")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is stale."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {Path(__file__).name} [--check]")
        return 2
    old = PAGE.read_text(encoding="utf-8")
    new = filled(old)
    if arguments and old != new:
        print(f"{PAGE.name} is stale: run python tools/{Path(__file__).name}")
        return 1
    if not arguments:
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
