"""Signals and words of other threads, for one who polls.

Guarantees: no signal is forgotten, and none ends the process by itself. A signal that was ignored
when the program began stays ignored (``nohup``).
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
    """A signal has asked the program to end, while it waits."""

    def __init__(self, number: int) -> None:
        """``number`` of the signal."""
        super().__init__(signal.Signals(number).name)
        self.number = number


class SignalQueue:
    """Rings for signals and for ``ring``; ``descriptor`` can be read then."""

    def __init__(self) -> None:
        """Hear nothing yet: ``hearing`` does."""
        self._on_stop: Callable[[int], None] = _ignore
        self.descriptor, self._rope = os.pipe()
        for each in (self.descriptor, self._rope):
            os.set_blocking(each, False)
        self._heard: deque[int] = deque()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Hear signals in this block. Only the main thread may do so."""
        before = {
            number: signal.getsignal(number)
            for number in (*STOP_SIGNALS, *_FORWARDED)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def on_stop(self, call: Callable[[int], None]) -> Iterator[None]:
        """In this block each signal of ``STOP_SIGNALS`` is told to ``call``, more than once perhaps.

        It is told in the handler, so ``call`` must return at once. One that came before the block,
        and that nobody has looked at yet, is told as well.
        """
        self._on_stop = call
        for number in list(self._heard):
            if number in STOP_SIGNALS:
                call(number)
        try:
            yield
        finally:
            self._on_stop = _ignore

    def check(self) -> None:
        """Forget all signals but one that asks for the end.

        Raises:
            Stopped: there was one since the last look.
        """
        for number in self.heard():
            if number in STOP_SIGNALS:
                raise StopRequested(number)

    def ring(self) -> None:
        """Wake the one who polls; from any thread."""
        with suppress(BlockingIOError, OSError):  # it rings already, or nobody listens any more
            os.write(self._rope, b"\0")

    def heard(self) -> list[int]:
        """The signals since the last call, in order."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, _READ_BYTES)
        found = []
        while self._heard:
            found.append(self._heard.popleft())
        return found

    def close(self) -> None:
        """Give back the pipe."""
        os.close(self.descriptor)
        rope, self._rope = self._rope, -1
        os.close(rope)

    def _hear(self, number: int, _frame: object) -> None:
        self._heard.append(number)
        self.ring()
        if number in STOP_SIGNALS:
            self._on_stop(number)


def _ignore(_number: int) -> None:
    """Nobody wants to be told at once."""
