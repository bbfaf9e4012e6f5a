"""``SignalQueue``: signals, and wake-ups from other threads, for a thread that polls.

Guarantees: no signal is lost, and none ends the process. A signal that was ignored when the program
began stays ignored (``nohup``).
"""

from __future__ import annotations

import os
import signal
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_READ_BYTES = 4096
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
)


class StopRequested(Exception):
    """A signal has asked the program to end while it was waiting."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class SignalQueue:
    """Queues signals; ``descriptor`` is readable after a signal or a ``wake``."""

    def __init__(self) -> None:
        self._on_stop: Callable[[int], None] = _ignore
        self.descriptor, self._wake_fd = os.pipe()
        for each in (self.descriptor, self._wake_fd):
            os.set_blocking(each, False)
        self._received: deque[int] = deque()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals in this block. Only in the main thread."""
        before = {
            number: signal.getsignal(number)
            for number in (*STOP_SIGNALS, *_FORWARDED)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        for number in before:
            signal.signal(number, self._on_signal)
        # The C handler writes to it: a signal just before the poll wakes the poll.
        outer = signal.set_wakeup_fd(self._wake_fd, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(outer)
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def on_stop(self, call: Callable[[int], None]) -> Iterator[None]:
        """Call ``call`` with each signal of ``STOP_SIGNALS`` in this block, perhaps more than once.

        It is called in the signal handler, so it must not block. It is also called for a signal
        that came before the block and was not taken yet.
        """
        self._on_stop = call
        for number in list(self._received):
            if number in STOP_SIGNALS:
                call(number)
        try:
            yield
        finally:
            self._on_stop = _ignore

    def check(self) -> None:
        """Drop all queued signals; raise ``StopRequested`` if one of them asks for the end."""
        for number in self.take():
            if number in STOP_SIGNALS:
                raise StopRequested(number)

    def wake(self) -> None:
        """Wake the thread that polls; from any thread."""
        with suppress(BlockingIOError, OSError):  # it is readable already, or closed
            os.write(self._wake_fd, b"\0")

    def take(self) -> list[int]:
        """Return the signals since the last call, in order."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, _READ_BYTES)
        found = []
        while self._received:
            found.append(self._received.popleft())
        return found

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.descriptor)
        wake_fd, self._wake_fd = self._wake_fd, -1
        os.close(wake_fd)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._received.append(number)
        self.wake()
        if number in STOP_SIGNALS:
            self._on_stop(number)


def _ignore(_number: int) -> None:
    """Do nothing: outside of ``on_stop`` signals are only queued."""
