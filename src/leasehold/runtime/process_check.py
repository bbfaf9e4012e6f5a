"""``ProcessCheck``: detects use of an object in a process that was forked since it was made.

A fork copies memory, but neither threads nor the other end of a connection. A call that waits for
such a thread would wait forever; two processes that share a connection read each other's answers.
Such an object raises an error in the child instead.
"""

from __future__ import annotations

import os

from leasehold.errors import UsageError


class ProcessCheck:
    """Remembers the process that it was made in."""

    def __init__(self, what: str) -> None:
        """``what`` is named in the error: "the log", or a URL without secrets."""
        self._what = what
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that it was made in."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise ``UsageError`` in a process that was forked since."""
        if self.forked:
            raise UsageError(
                f"{self._what} was opened before this process was forked, and belongs to process "
                f"{self._pid}: open it again in this one"
            )
