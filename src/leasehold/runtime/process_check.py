"""The process that something with threads was made in: it works nowhere else.

A fork copies memory and not threads. Whoever would wait for one of them waits for ever, so those
who were made before a fork say so instead.
"""

from __future__ import annotations

import os

from leasehold.errors import UsageError


class ProcessCheck:
    """The process it was made in."""

    def __init__(self, what: str) -> None:
        """``what`` is named in the refusal: "the log"."""
        self._what = what
        self._pid = os.getpid()

    def check(self) -> None:
        """Return if this is that process.

        Raises:
            UsageError: it was forked from it.
        """
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self._what} was opened before this process was forked, and its threads are in "
                f"process {self._pid}: open the log again in this one"
            )
