"""``ProcessCheck``: detects use of an object with threads in a forked process.

A fork copies memory and not threads. A call that waits for such a thread would wait forever, so it
raises an error instead.
"""

from __future__ import annotations

import os

from leasehold.errors import UsageError


class ProcessCheck:
    """Remembers the process that it was made in."""

    def __init__(self, what: str) -> None:
        """``what`` is named in the error: "the log"."""
        self._what = what
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise ``UsageError`` in a process that was forked since."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self._what} was opened before this process was forked, and its threads are in "
                f"process {self._pid}: open the log again in this one"
            )
