"""How the wrapper of a command ends: the exit code, and the reason for people and programs.

====  ================================================================
code  meaning
====  ================================================================
n     the command's own; 128 and the number if a signal ended it
0     held by somebody else, or done, and ``skip`` was asked for
64    the wrapper was called wrongly
69    the store can not be reached: nothing was run
75    held by somebody else
79    the reservation was lost, or given away: the command was stopped
80    the run of this occurrence is done
81    the job is paused
124   the command ended with 0 after it was stopped by the time-out
126   the command can not be executed
127   there is no such command
====  ================================================================
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class Exit(IntEnum):
    """The codes that are the wrapper's own; those below 79 are known from ``sysexits.h``."""

    OK = 0
    USAGE = 64
    UNREACHABLE = 69
    HELD = 75
    LOST = 79
    DONE = 80
    PAUSED = 81


class Reason(Enum):
    """Why the wrapper ended."""

    ENDED = "ended"  # the command, by itself
    TIMED_OUT = "timed out"
    NOT_EXECUTED = "not executed"
    HELD = "held"
    DONE = "done"
    PAUSED = "paused"
    LOST = "lost"
    HANDED_OVER = "handed over"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    USAGE = "usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the wrapper ends with.

    Attributes:
        reason: why.
        code: the exit code.
        message: for people; empty if there is nothing to say.
        token: the epoch of the last reservation; 0 if there was none.
        occurrence: whose run it was.
        attempt: how many times the command was started.
    """

    reason: Reason
    code: int
    message: str = ""
    token: int = 0
    occurrence: datetime | None = None
    attempt: int = 0

    def line(self, job: str) -> str:
        """One JSON object for programs."""
        return json.dumps(
            {
                "job": job,
                "reason": self.reason.value,
                "exit_code": self.code,
                "message": self.message,
                "token": self.token or None,
                "occurrence": self.occurrence.isoformat() if self.occurrence else None,
                "attempts": self.attempt,
            },
            ensure_ascii=False,
        )
