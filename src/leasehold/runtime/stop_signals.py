"""Signals that ask a program to stop: the first request, the same one again, or another.

``stop_on_signals`` acts on them in a thread. A handler of Python runs in the main thread only, and
only when that thread executes bytecode: a signal that arrives just before the main thread blocks in
a call would wait until the call returns. The wake-up descriptor is written by the C handler.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.clock import Clock

SAME_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_READ_BYTES = 64


class StopAsked(Enum):
    """What a stop signal means."""

    FIRST = auto()
    SAME = auto()
    AGAIN = auto()


class StopRequests:
    """Distinguishes a second request from a signal that arrives twice.

    A signal within a second of the first is the same request: `timeout`, and a terminal, signal a
    process and its group. Takes no lock, so that a signal handler may call it.
    """

    def __init__(self) -> None:
        self._first_s: float | None = None

    def heard(self, now_s: float) -> StopAsked:
        """Return what a signal at this time means."""
        if self._first_s is None:
            self._first_s = now_s
            return StopAsked.FIRST
        return StopAsked.SAME if now_s - self._first_s < SAME_S else StopAsked.AGAIN


@contextmanager
def stop_on_signals(
    *, first: Callable[[], None], again: Callable[[int], None], clock: Clock
) -> Iterator[Callable[[], None]]:
    """Call ``first`` at the first SIGTERM or Ctrl-C, and ``again`` with the number at the second.

    Both are called in other threads, even while the main thread is blocked. ``again`` is called
    even while ``first`` is running. Yields a function that installs the handlers again, in case
    other code has replaced them. Outside of the main thread nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # only the main thread may install handlers
        return
    requests = StopRequests()

    def act(number: int) -> None:
        asked = requests.heard(clock.boottime_s())
        if asked is StopAsked.FIRST:
            threading.Thread(target=first, name="stops at a signal", daemon=True).start()
        elif asked is StopAsked.AGAIN:
            again(number)

    def install() -> None:
        for number in _SIGNALS:
            signal.signal(number, _leave_to_the_thread)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    with _watched(act):
        install()
        try:
            yield install
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _watched(act: Callable[[int], None]) -> Iterator[None]:
    """Call ``act`` in a thread with each stop signal; all have been handled when this ends."""
    received, written = os.pipe()
    os.set_blocking(written, False)
    outer = signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def watch() -> None:
        while numbers := os.read(received, _READ_BYTES):
            for number in numbers:
                if number in _SIGNALS:
                    act(number)
                elif outer >= 0:
                    with suppress(OSError):  # the loop that waits for it has closed it
                        os.write(outer, bytes([number]))

    watching = threading.Thread(target=watch, name="waits for signals", daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(outer)
        os.close(written)
        watching.join()
        os.close(received)


def _leave_to_the_thread(_number: int, _frame: object) -> None:
    """Do nothing: a handler must exist, or the signal would end the process."""
