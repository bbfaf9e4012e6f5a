"""The public surface as text: every public name, with the parameters of what can be called.

``tests/golden/surface.json`` holds it. A change of the surface shows in that file, so that nobody
changes it without knowing. To record it anew::

    .venv/bin/python -m tests.support.surface
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "golden" / "surface.json"
PACKAGES = ("azure", "events", "files", "insight", "jobs", "log", "processor", "spark")
# These have no ``__all__``: all that they define is public.
DEFINING = ("leasehold.clock", "leasehold.errors", "leasehold.model", "leasehold.ports")
MODULES = ("leasehold", *DEFINING, *(f"leasehold.{name}" for name in PACKAGES))
_IMPORT = re.compile(r"^\s*from (leasehold[\w.]*) import (\([^)]*\)|[^\n(]+)", re.MULTILINE)


def surface() -> list[str]:
    """Return a line for each public name, sorted."""
    lines = {line for module, name in public_names() for line in _lines(module, name)}
    return sorted(lines)


def public_names() -> set[tuple[str, str]]:
    """Return the names of the public modules, and all that the manual imports."""
    shown = set(names_in_the_manual())
    modules = {*MODULES, *(module for module, _ in shown)}
    return shown | {(module, name) for module in modules for name in _listed(module)}


def names_in_the_manual() -> Iterator[tuple[str, str]]:
    """Yield each module and name that README, a page or an example imports."""
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")):
        for module, names in _IMPORT.findall(page.read_text(encoding="utf-8")):
            for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"#.*", "", names)):
                if name not in ("as", "noqa"):
                    yield module, name


def _listed(module: str) -> list[str]:
    found = import_module(module)
    defined = [
        name
        for name, each in vars(found).items()
        if not name.startswith("_") and getattr(each, "__module__", "") == module
    ]
    return list(getattr(found, "__all__", defined if module in DEFINING else ()))


def _lines(module: str, name: str) -> Iterator[str]:
    found = getattr(import_module(module), name)
    at = f"{module}.{name}"
    if inspect.ismodule(found):
        yield f"{at}  module"
        return
    if isinstance(found, type):
        if issubclass(found, Enum):
            yield f"{at}  {' '.join(repr(each.value) for each in found)}"
        else:
            yield f"{at}{_parameters(found)}"
        for method, part in inspect.getmembers_static(found):
            if not method.startswith("_") and _is_ours(found, method):
                yield f"{at}.{method}{_parameters(part)}"
    else:
        yield f"{at}{_parameters(found)}"


def _is_ours(kind: type, method: str) -> bool:
    owner = next((each for each in kind.__mro__ if method in vars(each)), kind)
    return owner.__module__.startswith("leasehold")


def _parameters(part: object) -> str:
    while isinstance(part, (staticmethod, classmethod)):
        part = part.__func__
    if not callable(part):
        return ""
    try:
        return f"({', '.join(inspect.signature(part).parameters)})"
    except (TypeError, ValueError):
        return "(...)"


if __name__ == "__main__":
    RECORD.write_text(json.dumps(surface(), indent=0) + "\n", encoding="utf-8")
    print(f"{RECORD.relative_to(ROOT)}: {len(surface())} names")
