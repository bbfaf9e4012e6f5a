"""How the process of a standby is left: in order at the first signal, at once at the second.

``leave_stuck`` ends the process whatever hangs in it: nobody else may begin while it could write.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from leasehold.clock import SystemClock
from leasehold.runtime.stop_signals import Asked, StopRequests
from leasehold.spark.queries.running import kill_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from leasehold.clock import Clock

EXIT_STUCK = 75
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENOUGH = 0


@contextmanager
def stopped_by_signals(
    stop: Callable[[], None], *, clock: Clock | None = None
) -> Iterator[Callable[[], None]]:
    """Have ``stop`` called at the first SIGTERM or Ctrl-C, in another thread.

    The second one ends the process at once, with 128 and its number; what comes within a second
    of the first is the same request. Gives a function that takes the signals again, from whoever
    took them meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # signals come to the main thread only
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    numbers = queue.SimpleQueue[int]()
    requests, time = StopRequests(), clock or SystemClock()

    def wait() -> None:
        if numbers.get() != _ENOUGH:
            stop()

    def handle(number: int, _frame: object) -> None:
        asked = requests.heard(time.boottime_s())
        if asked is Asked.AGAIN:
            kill_java()
            os._exit(128 + number)
        if asked is Asked.FIRST:
            # The stop takes locks, and the main thread may have them: this handler runs in it.
            numbers.put(number)

    def hold() -> None:
        for number in _SIGNALS:
            signal.signal(number, handle)

    threading.Thread(target=wait, name="waits for signals", daemon=True).start()
    hold()
    try:
        yield hold
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        numbers.put(_ENOUGH)


def leave_stuck(last_words: Callable[[], None], *, within_s: float) -> NoReturn:
    """End the process at once, with everything: what still runs could write.

    The words are said in a thread of their own: who listens may hang as well.
    """
    kill_java()

    def say() -> None:
        last_words()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()

    saying = threading.Thread(target=say, daemon=True)
    saying.start()
    saying.join(within_s)
    os._exit(EXIT_STUCK)
