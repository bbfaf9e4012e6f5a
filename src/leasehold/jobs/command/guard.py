"""The guard: a small program between a command and the wrapper that has reserved a job for it.

It starts the command in a session of its own and holds the deadline by itself. Guarantees:

- When the wrapper ends, also by ``kill -9``, all processes of the command are killed at once; also
  if the guard was stopped before.
- When the deadline comes they are killed, also if the wrapper is stopped, or hangs.
- *All* are those of the command's session, in whatever process group, and all that descend from
  the command, in whatever session: the guard is the one that orphans come to.
- It ends after the last of them.

It knows only the standard library and is run by its path, so that it starts quickly. It reads no
clock: the kernel's timers wake it, by the clock that goes on while the machine sleeps.

Orders of the wrapper, one on a line: ``D term_at kill_at`` (a new deadline), ``S n`` (a signal to
the command's process group), ``T n`` (to all processes), ``L`` (it is lost: only the command is
told), ``K`` (kill all). Reports to it: ``P pid``, or ``X errno`` if it could not be started; ``E
status`` when the command has ended; ``G`` when all are gone.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False  # the module that has it takes as long to import as all the others together
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

LOST_FD = "LEASEHOLD_LOST_FD"
_CLOCK_BOOTTIME = 7
_ABSOLUTE = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_PDEATHSIG, _SUBREAPER = 1, 36
_NS = 1_000_000_000
_LOOK_AGAIN_MS = 2
_READ_BYTES = 65536
_LAST_STANDARD = 2
_LOCALE, _PYTHONS_OWN = "LC_CTYPE", ("C.UTF-8", "C.utf8", "UTF-8")
# What the wrapper is sent it passes on; a signal to every process of a service must not end both.
_LEFT_TO_THE_WRAPPER = (
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
        """``is_dead``: it has ended, and its parent has not taken notice yet."""
        self.parent, self.session, self.is_dead = parent, session, is_dead


def processes() -> dict[int, Process]:
    """All processes of the machine that can be seen."""
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


def belonging(known: Mapping[int, Process], *, ancestor: int, session: int) -> list[int]:
    """Those that live and descend from ``ancestor`` or are of the session (0: of none)."""
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


def send(pids: Sequence[int], number: int) -> None:
    """Send each of them a signal; those that are gone, or are somebody else's, are passed over."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def adopt_orphans() -> None:
    """Have all descendants of this process that lose their parent come to it."""
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)


def fill_standard() -> None:
    """Have no later descriptor be 0, 1 or 2: those that were closed are for nobody.

    Programs that are started from here find them closed, as they were.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        continue
    os.close(descriptor)


def environment() -> dict[str, str]:
    """The environment, without the locale that Python gives itself if it was given none."""
    found = dict(os.environ)
    if found.get(_LOCALE) in _PYTHONS_OWN:
        with (
            suppress(OSError),
            os.fdopen(os.open("/proc/self/environ", os.O_RDONLY), "rb") as given,
        ):
            names = {each.partition(b"=")[0] for each in given.read().split(b"\0")}
            if _LOCALE.encode() not in names:
                del found[_LOCALE]
    return found


class Timer:
    """Wakes at a moment of CLOCK_BOOTTIME, if its descriptor is polled."""

    def __init__(self) -> None:
        """Have it made; it never wakes before ``set``."""
        self.descriptor: int = _libc.timerfd_create(_CLOCK_BOOTTIME, _NONBLOCK_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_s: float) -> None:
        """Wake then; a moment that has passed is now, and infinity never."""
        at_ns = 0 if math.isinf(at_s) else max(1, int(at_s * _NS))
        spec = (ctypes.c_long * 4)(0, 0, at_ns // _NS, at_ns % _NS)
        if _libc.timerfd_settime(self.descriptor, _ABSOLUTE, spec, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def rang(self) -> bool:
        """Whether the moment has come; said once."""
        with suppress(BlockingIOError):
            return bool(os.read(self.descriptor, 8))
        return False


class CommandGuard:
    """One command from its start to the end of its last process."""

    def __init__(self, *, orders: int, reports: int) -> None:
        """``orders`` is read, ``reports`` is written."""
        self._orders, self._reports = orders, reports
        self._text = b""
        self._term, self._kill = Timer(), Timer()
        self._child = 0
        self._killing = False
        self._told, self._news = os.pipe()  # for the command: its end says that the job is lost
        self._awake, wake = os.pipe()
        for each in (orders, self._awake, wake):
            os.set_blocking(each, False)
        for each in (orders, reports):  # else the end of the guard would not be seen
            os.set_inheritable(each, False)
        # Those that were ignored from the start are ignored by the command as well: nohup.
        self._ignored = {
            each for each in _LEFT_TO_THE_WRAPPER if signal.getsignal(each) is signal.SIG_IGN
        }
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _LEFT_TO_THE_WRAPPER:
            signal.signal(number, signal.SIG_IGN)

    def run(self, command: Sequence[str], *, term_at_s: float, kill_at_s: float) -> None:
        """Start the command, and see it and all its processes to their end."""
        adopt_orphans()
        # If the wrapper ends while we are stopped: we could not see it.
        _libc.prctl(_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
        self._term.set(term_at_s)
        self._kill.set(kill_at_s)
        if self._kill.rang():  # it took so long to get here that there is no time left
            self._report(f"E {int(signal.SIGKILL)}")
            self._report("G")
            return
        failure = self._start(command)
        if failure:
            self._report(f"X {failure}")
            return
        self._report(f"P {self._child}")
        self._hide()
        while self._reap():
            if self._killing:
                send(self._all(), signal.SIGKILL)
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
        os.close(self._told)
        with os.fdopen(failed, "rb") as answer:
            return int(answer.read() or 0)

    def _become(self, command: Sequence[str], guard: int, failing: int) -> NoReturn:
        try:
            os.setsid()
            _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:  # it died before that was said
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
                if number not in self._ignored and signal.getsignal(number) is not None:
                    signal.signal(number, signal.SIG_DFL)
            os.set_inheritable(self._told, True)
            given = {**environment(), LOST_FD: str(self._told)}
            os.execvpe(command[0], list(command), given)  # noqa: S606 - what the user asked for
        except OSError as error:
            os.write(failing, str(error.errno).encode())
        finally:
            os._exit(127)

    @staticmethod
    def _hide() -> None:
        """Keep no pipe of the command open: who reads its output waits for the end of it."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(nothing, descriptor)

    # ------------------------------------------------------------ what happens

    def _wait(self) -> None:
        poll = select.poll()
        for each in (self._awake, self._term.descriptor, self._kill.descriptor):
            poll.register(each, select.POLLIN)
        if self._orders >= 0:
            poll.register(self._orders, select.POLLIN)
        poll.poll(_LOOK_AGAIN_MS if self._killing else None)
        with suppress(BlockingIOError):
            os.read(self._awake, _READ_BYTES)
        # Orders first: one that is there already may move the deadline.
        self._obey()
        if self._term.rang():
            self._lose()
            self._tell_all(signal.SIGTERM)
        if self._kill.rang():
            self._kill_all()

    def _obey(self) -> None:
        if self._orders < 0:
            return
        try:
            text = os.read(self._orders, _READ_BYTES)
        except BlockingIOError:
            return
        if not text:  # the wrapper is gone
            os.close(self._orders)
            self._orders = -1
            self._kill_all()
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            self._follow(line.decode().split())

    def _follow(self, order: Sequence[str]) -> None:
        what, *rest = order
        if what == "D":
            term_at_s, kill_at_s = map(float, rest)
            self._term.set(term_at_s)
            self._kill.set(kill_at_s)
        elif what == "S":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, int(rest[0]))
        elif what == "T":
            self._tell_all(int(rest[0]))
        elif what == "L":
            self._lose()
        elif what == "K":
            self._kill_all()

    def _lose(self) -> None:
        if self._news >= 0:
            os.close(self._news)
            self._news = -1

    def _kill_all(self) -> None:
        self._lose()
        self._killing = True

    def _tell_all(self, number: int) -> None:
        everyone = self._all()
        send(everyone, number)
        if number == signal.SIGTERM:  # one that is stopped could not hear it
            send(everyone, signal.SIGCONT)

    def _all(self) -> list[int]:
        return belonging(processes(), ancestor=os.getpid(), session=self._child)

    def _reap(self) -> bool:
        """Take notice of those that ended; False if none is left: an orphan would be ours."""
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
        with suppress(OSError):  # nobody reads it any more
            os.write(self._reports, f"{text}\n".encode())


def main(words: Sequence[str]) -> None:
    """``ORDERS REPORTS TERM_AT KILL_AT COMMAND...``."""
    fill_standard()
    orders, reports, term_at, kill_at, *command = words
    guard = CommandGuard(orders=int(orders), reports=int(reports))
    guard.run(command, term_at_s=float(term_at), kill_at_s=float(kill_at))


if __name__ == "__main__":
    main(sys.argv[1:])
