"""The drivers of the demo as processes: started, stopped, resumed and killed.

A driver leads a session of processes: its Java and its Python workers have other process groups but
the same session, so the session is what is signalled. Nothing else is touched. Guarantee: after
``end`` no process of a driver is left. Linux only: it reads ``/proc``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.spark.demo.screen import DriverReport, LineKind, WaitPoint, heard

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_DEAD = frozenset("ZX")


def session_members(session: int) -> Iterator[int]:
    """Yield the living processes of a session, in no order."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # ended in the meantime
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
    """Send SIGSTOP to all of it, also to what is started meanwhile; return how many are stopped."""
    known: set[int] = set()
    while fresh := set(session_members(session)) - known:
        for pid in fresh:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        known |= fresh
    return len(known)


def kill_session(session: int) -> int:
    """Send SIGKILL to all of it; return how many processes there were."""
    # A stopped process cannot start another one while the others are killed.
    count = stop_session(session)
    signal_session(session, signal.SIGKILL)
    return count


_MODULE = "leasehold.spark.demo.driver"
_LAST_LINES = 15
_LAST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """What a driver needs to know."""

    name: str
    url: str
    stream: str
    group: str
    table: str
    lease_s: float
    interval_s: float

    def written(self) -> str:
        """Return the settings as the one argument of the driver's program."""
        return json.dumps(asdict(self))


class Driver:
    """One driver, from its start to its end."""

    def __init__(self, settings: DriverSettings, logs: Path) -> None:
        """Start it; its output goes to files in ``logs``."""
        self.name = settings.name
        self.state = "starts"
        self._said: list[DriverReport] = []
        self._errors = logs / f"driver-{self.name}.log"
        self._story = logs / f"driver-{self.name}.jsonl"
        with self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", _MODULE, settings.written()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._reading = threading.Thread(target=self._read, name=f"hears {self.name}", daemon=True)
        self._reading.start()

    @property
    def pid(self) -> int:
        """Of the driver's Python, and the number of its session."""
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """Its exit code; ``None`` while it lives."""
        return self._popen.poll()

    def said(self, kind: LineKind) -> list[DriverReport]:
        """Return all its reports of this kind, in order."""
        return [each for each in list(self._said) if each.kind is kind]

    def halt_at(self, moment: WaitPoint, *, min_rows: int) -> None:
        """Pause its next batch of at least ``min_rows`` rows there; it then reports ``WAITS``."""
        self._write(f"halt {moment} {min_rows}")

    def pause(self) -> int:
        """Send SIGSTOP to the driver, its Java and its workers; return how many are stopped.

        If it is paused at a point, it resumes from there when it is woken.
        """
        count = stop_session(self.pid)
        self._write("go")
        return count

    def wake(self) -> None:
        """Send SIGCONT to all of them."""
        signal_session(self.pid, signal.SIGCONT)

    def kill(self) -> int:
        """Send SIGKILL to all of them; return how many processes there were."""
        count = kill_session(self.pid)
        self._popen.wait()
        return count

    def leave(self) -> None:
        """Send SIGTERM: it ends its batch, hands its partitions over, and exits."""
        if self.code is None:
            self._popen.terminate()

    def end(self, *, wait_s: float = 0.0) -> None:
        """Kill what is left of it, after waiting ``wait_s`` for it to exit."""
        if wait_s:
            try:
                self._popen.wait(wait_s)
            except subprocess.TimeoutExpired:
                self.state = "killed"
        while any(True for _ in session_members(self.pid)):
            kill_session(self.pid)
            self._popen.poll()
        self._popen.wait()
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        self._reading.join(_LAST_WAIT_S)

    def last_words(self) -> str:
        """Return the end of its log."""
        lines = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])

    def _write(self, line: str) -> None:
        if self._popen.stdin is not None and self.code is None:
            try:
                self._popen.stdin.write(line + "\n")
                self._popen.stdin.flush()
            except BrokenPipeError:  # it has just ended, which ``code`` shows
                return

    def _read(self) -> None:
        if self._popen.stdout is None:
            return
        with self._story.open("w", encoding="utf-8") as story, self._popen.stdout as lines:
            for line in lines:
                story.write(line)
                story.flush()
                said = heard(line)
                if said is not None:
                    self._said.append(said)
