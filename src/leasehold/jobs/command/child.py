"""A command under its guard, as the wrapper sees it.

Guarantees: what was started is either gone for certain (``gone``), or still guarded. The death of
the guard itself is noticed: then this process kills what is left. A guard that was stopped is woken
with each order; ``force`` does not need it at all.
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
_MAX_CHECKS = 40  # looks at a guard that has nothing left to guard, and does not say so
_SAME_S = 0.005  # a deadline that moves by less has not moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When a command is told to stop, and when it is killed, in seconds of ``boottime_s``."""

    term_at_s: float
    kill_at_s: float

    def order(self) -> str:
        """For the guard."""
        return f"D {self.term_at_s:.6f} {self.kill_at_s:.6f}"


class Child:
    """A command that was started. ``read`` it whenever ``descriptor`` can be read.

    Attributes:
        pid: the command's process, and its process group and session; 0 before it is known.
        exit_code: its own, or 128 and the number of the signal; 126 or 127 if it could not be
            executed; None before its end.
        executed: False if it could not be.
        gone: none of its processes is left.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        deadline: Deadline,
        alone: bool = False,
    ) -> None:
        """Start it. It is killed at the deadline unless that is moved.

        ``alone``: this process has no other children. Then also those that have left the session
        are killed here, if the guard was killed.
        """
        self.pid = 0
        self.exit_code: int | None = None
        self.executed = True
        self.gone = False
        self._text = b""
        self._waits = _MAX_CHECKS
        self._alone = alone
        self._deadline = deadline
        if alone:
            guard.adopt_orphans()  # what the guard leaves if it is killed comes to us
        orders, self._orders = os.pipe()
        self.descriptor, reports = os.pipe()
        words = [str(orders), str(reports), *deadline.order().split()[1:], *command]
        try:
            self._guard = subprocess.Popen(  # noqa: S603 - what the user asked for
                [sys.executable, "-I", "-S", str(Path(guard.__file__).resolve()), *words],
                env=dict(environment),
                pass_fds=(orders, reports),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._orders)
            os.close(self.descriptor)
            raise
        finally:
            os.close(orders)
            os.close(reports)
        # A guard that does not read, since it was stopped, must not stop us.
        os.set_blocking(self._orders, False)

    def extend(self, deadline: Deadline) -> None:
        """Move the deadline."""
        moved_s = abs(deadline.kill_at_s - self._deadline.kill_at_s)
        if deadline.term_at_s == math.inf != self._deadline.term_at_s or moved_s > _SAME_S:
            self._deadline = deadline
            self._order(deadline.order())

    def send_group(self, number: int) -> None:
        """Send the command's process group a signal, as a terminal would."""
        self._order(f"S {number}")

    def send_all(self, number: int) -> None:
        """Send all its processes a signal."""
        self._order(f"T {number}")

    def tell_lost(self) -> None:
        """Close the pipe that tells the command of the loss, and do no more."""
        self._order("L")

    def kill(self) -> None:
        """Have all its processes killed."""
        self._order("K")

    def force(self) -> None:
        """Kill them from here, since the guard may be stopped; say it again until ``gone``.

        The guard goes last: while it is there, all that descends from the command is known.
        """
        left = guard.command_processes(
            guard.processes(), ancestor=self._guard.pid, session=self.pid
        )
        if left:
            guard.send_signal(left, signal.SIGKILL)
            return
        # Nothing runs any more, so there is time: if it can, the guard tells how the command ended.
        self._wake()
        self._waits -= 1
        if self._waits <= 0:
            self._guard.kill()

    @property
    def kill_at_s(self) -> float:
        """When the guard is to kill all, as it was told last."""
        return self._deadline.kill_at_s

    def read(self) -> None:
        """Take in what the guard has to say; blocks if it says nothing."""
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
        """Give back the pipes; a guard that still lives then kills all, and ends."""
        for each in (self._orders, self.descriptor):
            with suppress(OSError):
                os.close(each)
        self._wake()
        self._guard.wait()

    def _guard_ended(self) -> None:
        """See to it that nothing is left, if the guard could not."""
        self._guard.wait()
        if self.gone:
            return
        while left := self._left():
            guard.send_signal(left, signal.SIGKILL)
            select.poll().poll(_POLL_MS)
        self.gone = True
        if self.exit_code is None:
            self.exit_code = SIGNALLED + signal.SIGKILL

    def _left(self) -> list[int]:
        if self._alone:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
        ancestor = os.getpid() if self._alone else -1
        return guard.command_processes(guard.processes(), ancestor=ancestor, session=self.pid)

    def _order(self, text: str) -> None:
        with suppress(BrokenPipeError, BlockingIOError):  # then it ends all by itself
            os.write(self._orders, f"{text}\n".encode())
        self._wake()

    def _wake(self) -> None:
        """Have the guard go on: one that is stopped can not read its orders."""
        self._guard.send_signal(signal.SIGCONT)
