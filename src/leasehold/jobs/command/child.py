"""``Child``: a command under its guard, as the wrapper sees it.

Guarantees: all processes of the command have ended for certain (``gone``), or are still guarded. If
the guard itself ends, this process kills what is left. A guard that was stopped (SIGSTOP) is
resumed with each message; ``force`` does not need it.
"""

from __future__ import annotations

import errno
import math
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.jobs.command import guard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_READ_BYTES = 4096
_POLL_MS = 2
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126
SIGNALLED = 128
_MAX_CHECKS = 40  # checks of a guard that has nothing left to guard, and does not report it
_SAME_S = 0.005  # a smaller change of the deadline is not sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When a command gets SIGTERM, and when it is killed, in seconds of ``boottime_s``."""

    term_at_s: float
    kill_at_s: float

    def message(self) -> str:
        """Return the message for the guard."""
        return f"D {self.term_at_s:.6f} {self.kill_at_s:.6f}"


class Child:
    """A command that was started. ``read`` it whenever ``descriptor`` can be read.

    Attributes:
        pid: the command's process, and its process group and session; 0 before it is known.
        exit_code: its own, or 128 and the number of the signal; 126 or 127 if it could not be
            executed; None before its end.
        executed: False if it could not be.
        gone: none of its processes is left.
        crashed: the guard was killed before the command had ended, so how it would have ended is
            not known.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        deadline: Deadline,
        no_other_children: bool = False,
    ) -> None:
        """Start the command. It is killed at the deadline unless that is moved.

        ``no_other_children``: this process has no other children. If the guard is killed, this
        process then also kills those that have left the session.
        """
        self.pid = 0
        self.exit_code: int | None = None
        self.executed = True
        self.gone = False
        self.crashed = False
        self._text = b""
        self._checks_left = _MAX_CHECKS
        self._no_other_children = no_other_children
        self._deadline = deadline
        if no_other_children:
            guard.adopt_orphans()  # a killed guard leaves its children to this process
        control, self._control = os.pipe()
        self.descriptor, reports = os.pipe()
        argv = [str(control), str(reports), *deadline.message().split()[1:], *command]
        try:
            self._guard = subprocess.Popen(  # noqa: S603 - what the user asked for
                [sys.executable, "-I", "-S", str(Path(guard.__file__).resolve()), *argv],
                env=dict(environment),
                pass_fds=(control, reports),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._control)
            os.close(self.descriptor)
            raise
        finally:
            os.close(control)
            os.close(reports)
        # A guard that was stopped does not read: writing must not block then.
        os.set_blocking(self._control, False)

    def extend(self, deadline: Deadline) -> None:
        """Move the deadline."""
        moved_s = abs(deadline.kill_at_s - self._deadline.kill_at_s)
        if deadline.term_at_s == math.inf != self._deadline.term_at_s or moved_s > _SAME_S:
            self._deadline = deadline
            self._send(deadline.message())

    def send_group(self, number: int) -> None:
        """Send the command's process group a signal, as a terminal would."""
        self._send(f"S {number}")

    def send_all(self, number: int) -> None:
        """Send all its processes a signal."""
        self._send(f"T {number}")

    def report_lost(self) -> None:
        """Close the pipe that shows the command the loss; do nothing else."""
        self._send("L")

    def kill(self) -> None:
        """Have the guard kill all processes."""
        self._send("K")

    def force(self) -> None:
        """Kill them from here, since the guard may be stopped; repeat until ``gone``.

        The guard goes last: while it runs, all descendants of the command are known.
        """
        left = guard.command_processes(
            guard.processes(), ancestor=self._guard.pid, session=self.pid
        )
        if left:
            guard.send_signal(left, signal.SIGKILL)
            return
        # Nothing runs any longer, so there is time for the guard to report how the command ended.
        self._wake()
        self._checks_left -= 1
        if self._checks_left <= 0:
            self._guard.kill()

    @property
    def kill_at_s(self) -> float:
        """When the guard is to kill all, by the last message."""
        return self._deadline.kill_at_s

    def read(self) -> None:
        """Read the reports of the guard; blocks if there are none."""
        text = os.read(self.descriptor, _READ_BYTES)
        if not text:
            self._guard_ended()
            return
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            what, *rest = line.decode().split()
            if what == "P":
                self.pid = int(rest[0])
            elif what == "X":
                missing = int(rest[0]) in {errno.ENOENT, errno.ENOTDIR}
                self.exit_code = EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE
                self.executed, self.gone = False, True
            elif what == "E":
                code = os.waitstatus_to_exitcode(int(rest[0]))
                self.exit_code = code if code >= 0 else SIGNALLED - code
            elif what == "G":
                self.gone = True

    def close(self) -> None:
        """Close the pipes; a guard that still runs then kills all, and ends."""
        for each in (self._control, self.descriptor):
            with suppress(OSError):
                os.close(each)
        self._wake()
        self._guard.wait()

    def _guard_ended(self) -> None:
        """Kill what is left, if the guard could not."""
        self._guard.wait()
        if self.gone:
            return
        while left := self._left():
            guard.send_signal(left, signal.SIGKILL)
            select.poll().poll(_POLL_MS)
        self.gone = True
        if self.exit_code is None:
            self.crashed = True
            self.exit_code = SIGNALLED + signal.SIGKILL

    def _left(self) -> list[int]:
        if self._no_other_children:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
        ancestor = os.getpid() if self._no_other_children else -1
        return guard.command_processes(guard.processes(), ancestor=ancestor, session=self.pid)

    def _send(self, text: str) -> None:
        with suppress(BrokenPipeError, BlockingIOError):  # then the guard kills all on its own
            os.write(self._control, f"{text}\n".encode())
        self._wake()

    def _wake(self) -> None:
        """Resume the guard: one that is stopped cannot read its messages."""
        self._guard.send_signal(signal.SIGCONT)
