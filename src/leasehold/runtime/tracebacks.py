"""The traceback of a handler's error, from the first line of the user's code on."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path

import anyio

_LEASEHOLD = Path(__file__).parents[1]
_OURS = (str(_LEASEHOLD), *(str(Path(each.__path__[0])) for each in (anyio, asyncio)))


def reason_of(error: BaseException) -> str:
    """Return the type of the error and its message. Never raises, whatever the error does."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as second:  # noqa: BLE001
        return f"{name}: (no message: asked for it, it raised {type(second).__name__})"


def traceback_of(error: BaseException) -> str:
    """Return the traceback without Leasehold's first lines. Never raises."""
    try:
        steps = traceback.TracebackException.from_exception(error)
        theirs = (at for at, step in enumerate(steps.stack) if not step.filename.startswith(_OURS))
        steps.stack = traceback.StackSummary.from_list(steps.stack[next(theirs, 0) :])
        return "".join(steps.format())
    except Exception:  # noqa: BLE001
        return reason_of(error)
