"""Parts of the real code, replaced by mutants while a simulation runs.

A mutant names the part that it replaces. If that part is gone or has other parameters, the run
fails and says so: a mutant whose target was moved must not look like one that was caught.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """``make`` gets the original part, ``module:name`` or ``module:Class.name``, and gives another.

    A part is a function, a method or a property.
    """

    target: str
    make: Callable[[Any], Any]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put it in, and take it out at the end.

        Raises:
            LookupError: there is no such part, or it takes other arguments by now.
        """
        owner, name, original = self._find()
        replacement = self.make(original)
        if _parameters(replacement) != _parameters(original):
            raise LookupError(
                f"{self.target} takes {_parameters(original)} by now, and the mutant replaces a "
                f"part that takes {_parameters(replacement)}: change the mutant"
            )
        inherited = name not in vars(owner)
        setattr(owner, name, replacement)
        try:
            yield
        finally:
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    def _find(self) -> tuple[Any, str, Any]:
        module, _, path = self.target.partition(":")
        around, _, name = path.rpartition(".")
        try:
            found: Any = import_module(module)
            owner = attrgetter(around)(found) if around else found
            return owner, name, inspect.getattr_static(owner, name)
        except (ImportError, AttributeError) as gone:
            raise LookupError(
                f"there is no {self.target}: let the mutant replace the part that decides this now"
            ) from gone


def replaces(target: str) -> Callable[[Callable[[Any], Any]], Replacement]:
    """Make a replacement of the function below: it gets the original and returns another."""
    return lambda make: Replacement(target=target, make=make)


@contextmanager
def replaced(replacements: tuple[Replacement, ...]) -> Iterator[None]:
    """Put all of them in place."""
    with ExitStack() as stack:
        for each in replacements:
            stack.enter_context(each.in_place())
        yield


def _parameters(part: Any) -> list[str]:
    if isinstance(part, property):
        return ["property"]
    return list(inspect.signature(part).parameters)
