"""The guard: a small program between a command and the wrapper that has reserved a job for it.

It starts the command in its own session and enforces the deadline. Guarantees:

- When the wrapper ends, also by ``kill -9``, all processes of the command are killed immediately;
  also if the guard was stopped before.
- When the deadline comes they are killed, also if the wrapper is stopped or hangs.
- *All* are those of the command's session, in any process group, and all descendants of the
  command, in any session: the guard adopts orphans.
- It ends after the last of them.

It uses only the standard library and is run by its path, so that it starts quickly. It reads no
clock: the kernel's timers wake it, by the clock that also runs while the machine is suspended.

Control messages of the wrapper, one on a line: ``D term_at kill_at`` (a new deadline), ``S n`` (a
signal to the command's process group), ``T n`` (to all processes), ``L`` (the job is lost: only
show it to the command), ``K`` (kill all). Reports to it: ``P pid``, or ``X errno`` if it could not
be started; ``E status`` when the command has ended; ``G`` when all are gone.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False  # importing ``typing`` would take as long as all the other imports together
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

LOST_FD = "LEASEHOLD_LOST_FD"
_CLOCK_BOOTTIME = 7
_ABSOLUTE = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_PDEATHSIG, _SUBREAPER = 1, 36
_NS = 1_000_000_000
_POLL_MS = 2
_READ_BYTES = 65536
_LAST_STANDARD = 2
_LOCALE, _PYTHON_LOCALES = "LC_CTYPE", ("C.UTF-8", "C.utf8", "UTF-8")
# The wrapper forwards its signals; a signal to every process of a service must not end both.
_WRAPPER_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)

_libc = ctypes.CDLL(None, use_errno=True)


class Process:
    """A process as ``/proc`` shows it."""

    __slots__ = ("is_dead", "parent", "session")

    def __init__(self, *, parent: int, session: int, is_dead: bool) -> None:
        """``is_dead``: it has ended, and its parent has not waited for it yet."""
        self.parent, self.session, self.is_dead = parent, session, is_dead


def processes() -> dict[int, Process]:
    """Return all visible processes of the machine."""
    found = {}
    with os.scandir("/proc") as entries:
        names = [entry.name for entry in entries if entry.name.isdigit()]
    for name in names:
        with suppress(OSError):  # it has just ended
            descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            try:
                text = os.read(descriptor, 4096)
            finally:
                os.close(descriptor)
            # The name of the program may hold anything, brackets too.
            state, parent, _group, session, *_ = text[text.rindex(b")") + 2 :].split()
            found[int(name)] = Process(
                parent=int(parent), session=int(session), is_dead=state in {b"Z", b"X"}
            )
    return found


def command_processes(known: Mapping[int, Process], *, ancestor: int, session: int) -> list[int]:
    """Return those that run and descend from ``ancestor`` or are in the session (0: none)."""
    children: dict[int, list[int]] = {}
    for pid, each in known.items():
        children.setdefault(each.parent, []).append(pid)
    found = {pid for pid, each in known.items() if session and each.session == session}
    ahead = list(children.get(ancestor, ()))
    while ahead:
        pid = ahead.pop()
        found.add(pid)
        ahead.extend(children.get(pid, ()))
    return sorted(pid for pid in found - {ancestor} if pid in known and not known[pid].is_dead)


def send_signal(pids: Sequence[int], number: int) -> None:
    """Send each of them a signal; skip those that have ended or are not permitted."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs."""
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)


def fill_standard() -> None:
    """Fill closed standard descriptors, so that no later one is 0, 1 or 2.

    Programs that are started from here find them closed, as they were.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        continue
    os.close(descriptor)


def environment() -> dict[str, str]:
    """Return the environment, without the locale that Python sets if there was none."""
    found = dict(os.environ)
    if found.get(_LOCALE) in _PYTHON_LOCALES:
        with (
            suppress(OSError),
            os.fdopen(os.open("/proc/self/environ", os.O_RDONLY), "rb") as given,
        ):
            names = {each.partition(b"=")[0] for each in given.read().split(b"\0")}
            if _LOCALE.encode() not in names:
                del found[_LOCALE]
    return found


class Timer:
    """A timer by CLOCK_BOOTTIME; its descriptor can be polled."""

    def __init__(self) -> None:
        """Create the timer; it never expires before ``set``."""
        self.descriptor: int = _libc.timerfd_create(_CLOCK_BOOTTIME, _NONBLOCK_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_s: float) -> None:
        """Expire at ``at_s``: now if that has passed, never if it is infinite."""
        at_ns = 0 if math.isinf(at_s) else max(1, int(at_s * _NS))
        spec = (ctypes.c_long * 4)(0, 0, at_ns // _NS, at_ns % _NS)
        if _libc.timerfd_settime(self.descriptor, _ABSOLUTE, spec, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def expired(self) -> bool:
        """Return whether the time has come; True once."""
        with suppress(BlockingIOError):
            return bool(os.read(self.descriptor, 8))
        return False


class CommandGuard:
    """One command from its start to the end of its last process."""

    def __init__(self, *, control: int, reports: int) -> None:
        """Messages are read from ``control``, reports are written to ``reports``."""
        self._control, self._reports = control, reports
        self._text = b""
        self._term, self._kill = Timer(), Timer()
        self._child = 0
        self._killing = False
        self._lost_read, self._lost_write = (
            os.pipe()
        )  # the command sees the read end closed when the job is lost
        self._wake_read, wake_write = os.pipe()
        for each in (control, self._wake_read, wake_write):
            os.set_blocking(each, False)
        for each in (control, reports):  # otherwise the end of the guard would not be noticed
            os.set_inheritable(each, False)
        # Signals that were ignored from the start are ignored by the command as well: nohup.
        self._ignored = {
            each for each in _WRAPPER_SIGNALS if signal.getsignal(each) is signal.SIG_IGN
        }
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _WRAPPER_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def run(self, command: Sequence[str], *, term_at_s: float, kill_at_s: float) -> None:
        """Start the command, and wait for the end of all its processes."""
        adopt_orphans()
        # A guard that is stopped could not notice the end of the wrapper: resume it then.
        _libc.prctl(_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
        self._term.set(term_at_s)
        self._kill.set(kill_at_s)
        if self._kill.expired():  # the start took so long that no time is left
            self._report(f"E {int(signal.SIGKILL)}")
            self._report("G")
            return
        failure = self._start(command)
        if failure:
            self._report(f"X {failure}")
            return
        self._report(f"P {self._child}")
        self._detach_stdio()
        while self._reap():
            if self._killing:
                send_signal(self._all_pids(), signal.SIGKILL)
            self._wait()
        self._report("G")

    def _start(self, command: Sequence[str]) -> int:
        """Fork and execute; 0, or the number of the error."""
        failed, failing = os.pipe()
        guard = os.getpid()
        self._child = os.fork()
        if not self._child:
            self._become(command, guard, failing)
        os.close(failing)
        os.close(self._lost_read)
        with os.fdopen(failed, "rb") as answer:
            return int(answer.read() or 0)

    def _become(self, command: Sequence[str], guard: int, failing: int) -> NoReturn:
        try:
            os.setsid()
            _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:  # the guard ended before the call
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
                if number not in self._ignored and signal.getsignal(number) is not None:
                    signal.signal(number, signal.SIG_DFL)
            os.set_inheritable(self._lost_read, True)
            given = {**environment(), LOST_FD: str(self._lost_read)}
            os.execvpe(command[0], list(command), given)  # noqa: S606 - what the user asked for
        except OSError as error:
            os.write(failing, str(error.errno).encode())
        finally:
            os._exit(127)

    @staticmethod
    def _detach_stdio() -> None:
        """Close its copies of the command's pipes: readers wait for the end of all copies."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(nothing, descriptor)

    # ------------------------------------------------------------ events

    def _wait(self) -> None:
        poll = select.poll()
        for each in (self._wake_read, self._term.descriptor, self._kill.descriptor):
            poll.register(each, select.POLLIN)
        if self._control >= 0:
            poll.register(self._control, select.POLLIN)
        poll.poll(_POLL_MS if self._killing else None)
        with suppress(BlockingIOError):
            os.read(self._wake_read, _READ_BYTES)
        # Messages first: one may move the deadline.
        self._read_control()
        if self._term.expired():
            self._report_lost()
            self._signal_all(signal.SIGTERM)
        if self._kill.expired():
            self._kill_all()

    def _read_control(self) -> None:
        if self._control < 0:
            return
        try:
            text = os.read(self._control, _READ_BYTES)
        except BlockingIOError:
            return
        if not text:  # the wrapper is gone
            os.close(self._control)
            self._control = -1
            self._kill_all()
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            self._handle_message(line.decode().split())

    def _handle_message(self, message: Sequence[str]) -> None:
        what, *rest = message
        if what == "D":
            term_at_s, kill_at_s = map(float, rest)
            self._term.set(term_at_s)
            self._kill.set(kill_at_s)
        elif what == "S":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, int(rest[0]))
        elif what == "T":
            self._signal_all(int(rest[0]))
        elif what == "L":
            self._report_lost()
        elif what == "K":
            self._kill_all()

    def _report_lost(self) -> None:
        if self._lost_write >= 0:
            os.close(self._lost_write)
            self._lost_write = -1

    def _kill_all(self) -> None:
        self._report_lost()
        self._killing = True

    def _signal_all(self, number: int) -> None:
        pids = self._all_pids()
        send_signal(pids, number)
        if number == signal.SIGTERM:  # a stopped process would not handle it
            send_signal(pids, signal.SIGCONT)

    def _all_pids(self) -> list[int]:
        return command_processes(processes(), ancestor=os.getpid(), session=self._child)

    def _reap(self) -> bool:
        """Wait for those that ended; False if none is left, orphans included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._child:
                self._report(f"E {status}")

    def _report(self, text: str) -> None:
        with suppress(OSError):  # the wrapper has ended
            os.write(self._reports, f"{text}\n".encode())


def main(argv: Sequence[str]) -> None:
    """Run with the arguments ``CONTROL REPORTS TERM_AT KILL_AT COMMAND...``."""
    fill_standard()
    control, reports, term_at, kill_at, *command = argv
    guard = CommandGuard(control=int(control), reports=int(reports))
    guard.run(command, term_at_s=float(term_at), kill_at_s=float(kill_at))


if __name__ == "__main__":
    main(sys.argv[1:])
