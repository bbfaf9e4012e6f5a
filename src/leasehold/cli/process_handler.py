"""Load the handler that ``MODULE:HANDLER`` names, or report which part is wrong.

The current directory is searched first, as with ``python -m``. A module that fails while it is
imported is shown with its own traceback, without the lines of the import itself.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from leasehold.errors import LeaseholdError, UsageError
from leasehold.processor.handlers import check_handler

_HOW = "write MODULE:HANDLER, such as billing.events:handle for `def handle` in billing/events.py"
_LEASEHOLD = str(Path(__file__).parents[1])
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def load_handler(text: str, *, batch: bool) -> Callable[..., Any]:
    """Return the function that ``text`` names; it takes a context and an event, or a batch."""
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(f"{text!r} names no handler: {_HOW}")
    if module_name.endswith(".py") or "/" in module_name:
        raise UsageError(f"{module_name!r} is a file, and a module is wanted: {_HOW}")
    if not _NAME.fullmatch(module_name) or not _NAME.fullmatch(name):
        raise UsageError(f"{text!r} can not be the name of a handler: {_HOW}")
    found: Any = imported(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise _missing(found, part, module_name)
        found = getattr(found, part)
    _check(found, text, batch=batch)
    return found  # type: ignore[no-any-return]


def imported(name: str, *, how: str = _HOW) -> ModuleType:
    """Import the module, also from the current directory.

    ``how`` says what to write, if there is none.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # Its own name, or that of a package it lies in: else the module itself misses something.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"there is no module {error.name!r} here ({here}) or where Python looks: change "
                f"into the directory it lies in, or set PYTHONPATH; {how}"
            ) from error
        raise _broken(name, error) from error
    except UsageError as error:
        raise UsageError(f"{_line_of(error, name)}: {error}") from error
    except SystemExit as error:
        raise LeaseholdError(
            f"module {name!r} ended the program while it was imported: put what it should do as a "
            'program under `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        raise _broken(name, error) from error


def _line_of(error: Exception, name: str) -> str:
    """Return the last line outside Leasehold: the error is there."""
    steps = traceback.extract_tb(error.__traceback__)
    ours = (_LEASEHOLD, "<frozen importlib", import_module.__code__.co_filename)
    own = [step for step in steps if not step.filename.startswith(ours)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else f"module {name!r}"


def _broken(name: str, error: Exception) -> LeaseholdError:
    """Print where the module failed; return the error to raise."""
    steps = traceback.TracebackException.from_exception(error)
    ours = (__file__, "<frozen importlib", import_module.__code__.co_filename)
    own = [step for step in steps.stack if not step.filename.startswith(ours)]
    steps.stack = traceback.StackSummary.from_list(own)
    from leasehold.cli.tables import err, lines_of  # noqa: PLC0415 - rich takes its time

    err.print(lines_of("".join(steps.format()).rstrip()))
    return LeaseholdError(
        f"module {name!r} can not be imported: {type(error).__name__}: {error}. Its traceback is "
        "above"
    )


def _missing(owner: object, name: str, module: str) -> UsageError:
    there = [each for each in vars(owner) if not each.startswith("_")]
    functions = [each for each in there if inspect.isroutine(getattr(owner, each, None))]
    close = difflib.get_close_matches(name, there, n=1) or functions[:5]
    hint = f": did you mean {' or '.join(close)}?" if close else ": it defines no function"
    return UsageError(f"module {module!r} has no {name!r}{hint}")


def _check(found: object, text: str, *, batch: bool) -> None:
    """Refuse what would fail at the first event, or do nothing at all."""
    wanted = f"def handle(context, {'batch' if batch else 'event'})"
    if isinstance(found, type):
        raise UsageError(f"{text} is a class: name a function of yours, such as `{wanted}`")
    flag = "with --batch " if batch else ""
    values = ("context", "batch" if batch else "event")
    check_handler(found, what=text, values=values, how=f"{flag}a handler is `{wanted}`")
