"""Errors of ours that were raised in Spark's tasks and readers: only their text arrives."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from leasehold import errors
from leasehold.errors import UsageError
from leasehold.sources.tracebacks import reason_of

_FROM_SPARK = (PySparkException, Py4JJavaError)
# The last line of a traceback; of several tracebacks in a row the last one tells what was raised.
_RAISED = re.compile(r"^leasehold\.errors\.(\w+)(?:: (.*))?$", re.MULTILINE)


def raised_in(error: Exception) -> tuple[str, str] | None:
    """The name of an error of ours that Spark tells of, and its words; None if it is another."""
    found = _RAISED.findall(reason_of(error)) if isinstance(error, _FROM_SPARK) else []
    return (found[-1][0], found[-1][1]) if found else None


def wrong_use_in(error: Exception) -> UsageError | None:
    """The ``UsageError`` that it is or tells of: what was given can not work, however often."""
    if isinstance(error, UsageError):
        return error
    name, words = raised_in(error) or ("", "")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, UsageError):
        return UsageError(words or name)
    return None
