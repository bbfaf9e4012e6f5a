"""Names of a package that load their module when they are first used.

A command or a child process then loads only what it needs: a reservation needs no Arrow, whose
import takes longer than the rest of a command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a module's ``__getattr__`` that takes each name from the module in ``homes``.

    Give it to a package under ``if not TYPE_CHECKING``, so that a type checker sees the imports
    instead and reports names that do not exist.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return load
