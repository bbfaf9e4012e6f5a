"""Whole sessions of processes: a driver, its Java and its Python workers, as one.

A driver is started as the leader of a session of its own. Its workers have other process groups but
the same session, so that is what is stopped, woken and killed: nothing is left behind, and nothing
else is touched. For Linux: it reads ``/proc``.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_DEAD = frozenset("ZX")


def session_members(session: int) -> Iterator[int]:
    """The living processes of a session, in no order."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # ended while we looked
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            # The name of a program may hold anything, also blanks and brackets.
            state, _parent, _group, its = stat.rpartition(")")[2].split()[:4]
            if int(its) == session and state not in _DEAD:
                yield int(entry.name)


def signal_session(session: int, number: signal.Signals) -> int:
    """Send a signal to each process of a session; how many there were."""
    count = 0
    for pid in session_members(session):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            count += 1
    return count


def stop_session(session: int) -> int:
    """SIGSTOP for all of it, also for what was started meanwhile; how many stand still."""
    known: set[int] = set()
    while fresh := set(session_members(session)) - known:
        for pid in fresh:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        known |= fresh
    return len(known)


def kill_session(session: int) -> int:
    """SIGKILL for all of it, as a power cut would; how many there were."""
    # What stands still can not start anything while the others die.
    count = stop_session(session)
    signal_session(session, signal.SIGKILL)
    return count
