"""Write the map of the packages in CONTRIBUTING.md from the first lines of their docstrings.

`.venv/bin/python tools/layout_map.py` puts the map between its two marks.
`tests/project/unit/test_names.py` fails if the file does not hold the current one.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- map: tools/layout_map.py writes what follows -->\n```\n"
END = "\n```\n<!-- end of the map -->"
WIDTH = 100
INDENT = 24


def layout_map(source: Path) -> str:
    """Return one entry for each module of the root package, and for each package below it."""
    lines = ["src/leasehold/"]
    modules = sorted(path for path in source.glob("*.py") if path.name != "__init__.py")
    for path in modules:
        lines += _entry(path.name, path, depth=1)
    for path in sorted(source.glob("*/__init__.py")):
        lines += _entry(f"{path.parent.name}/", path, depth=1)
        for below in sorted(path.parent.glob("*/__init__.py")):
            lines += _entry(f"{below.parent.name}/", below, depth=2)
    return "\n".join(lines)


def page_with_map(page: str, shown: str) -> str:
    """Return the page with this map between its marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost the marks of the map")
    return head + begin + shown + end + tail


def _entry(name: str, path: Path, *, depth: int) -> list[str]:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(said.partition("\n\n")[0].split())
    head = f"{'  ' * depth}{name}".ljust(INDENT)
    return textwrap.wrap(
        first.removesuffix("."), WIDTH, initial_indent=head, subsequent_indent=" " * INDENT
    ) or [head.rstrip()]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page_with_map(text, layout_map(ROOT / "src" / "leasehold")), encoding="utf-8")
