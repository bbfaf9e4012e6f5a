"""Whole sessions of processes, as ``setsid`` makes them: found, stopped, resumed and killed.

A Spark driver is a Python, a JVM, and Python workers in process groups of their own; what they have
in common is the session. So is an executor with its workers, in the session of its worker.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from leasehold.clock import SystemClock

CLOCK = SystemClock()
PATIENCE_S = 100.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One of them. ``cpu_s``: its own and that of its children that have ended."""

    pid: int
    parent: int
    session: int
    state: str
    cpu_s: float

    @property
    def command(self) -> str:
        """Its whole command line; empty if it has ended."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            return ""


def everything() -> list[Process]:
    """All processes that we can see, in the order of their ids."""
    found = (_process(int(each.name)) for each in Path("/proc").iterdir() if each.name.isdigit())
    return sorted((each for each in found if each is not None), key=lambda each: each.pid)


def processes(session: int) -> list[Process]:
    """All of a session that have not ended."""
    mine = [each for each in everything() if each.session == session]
    return [each for each in mine if each.state not in "ZX"]


def below(root: int, among: list[Process]) -> list[Process]:
    """The process ``root`` and all that descend from it."""
    found = [each for each in among if each.pid == root]
    for each in found:  # it grows while we go
        found += [child for child in among if child.parent == each.pid]
    return found


def cpu_s(session: int) -> float:
    """What all of them have used so far, in seconds of CPU."""
    return sum(each.cpu_s for each in processes(session))


def kill(session: int) -> None:
    """SIGKILL to all of them, and to what they start meanwhile; returns when none is left."""
    _until_none(lambda: processes(session), signal.SIGKILL)


def stop(session: int) -> None:
    """SIGSTOP to all of them; returns when all stand still."""
    _until_none(lambda: [p for p in processes(session) if p.state not in "Tt"], signal.SIGSTOP)


def go_on(session: int) -> None:
    """SIGCONT to all of them."""
    for each in processes(session):
        send(each.pid, signal.SIGCONT)


def send(pid: int, number: signal.Signals) -> None:
    """A signal to one process; one that has ended is left alone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _until_none(look: Callable[[], list[Process]], number: signal.Signals) -> None:
    end_s = CLOCK.boottime_s() + PATIENCE_S
    while left := look():
        assert CLOCK.boottime_s() < end_s, f"{number.name} does not reach {left}"
        for each in left:
            send(each.pid, number)
        threading.Event().wait(0.005)


def _process(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may itself have brackets and blanks.
    rest = text.rpartition(")")[2].split()
    return Process(
        pid=pid,
        parent=int(rest[1]),
        session=int(rest[3]),
        state=rest[0],
        cpu_s=sum(map(int, rest[11:15])) / _TICKS,
    )
