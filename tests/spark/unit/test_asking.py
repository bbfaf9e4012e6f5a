"""One signal that is heard twice is one request; a later one is another."""

from __future__ import annotations

import asyncio
import ctypes
import os
import queue
import signal
import threading
from collections.abc import Callable

import pytest

from leasehold.runtime.stop_signals import SAME_S, StopAsked, StopRequests, stop_on_signals
from leasehold.spark import standby_query
from leasehold.spark.pipeline import pipeline
from leasehold.testing.clock import ManualClock

LATER = [(0.0, []), (0.9, []), (1.0, [143]), (60.0, [143])]


def test_the_first_is_obeyed_its_echo_is_not_and_a_later_one_is_another() -> None:
    requests = StopRequests()
    heard = [requests.heard(now_s) for now_s in (5.0, 5.0, 5.9, 6.0, 7.0)]
    assert heard == [
        StopAsked.FIRST,
        StopAsked.SAME,
        StopAsked.SAME,
        StopAsked.AGAIN,
        StopAsked.AGAIN,
    ]


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes with which the process would have ended."""
    found: list[int] = []
    monkeypatch.setattr(os, "_exit", found.append)
    monkeypatch.setattr(standby_query, "kill_java", lambda: None)
    return found


@pytest.mark.parametrize("again", [pipeline.leave_immediately, standby_query.leave_immediately])
@pytest.mark.parametrize(("later_s", "left"), LATER)
def test_a_driver_leaves_at_once_only_if_it_is_asked_later(
    codes: list[int], again: Callable[[int], None], later_s: float, left: list[int]
) -> None:
    clock, stopped = ManualClock(), queue.SimpleQueue[bool]()
    with stop_on_signals(first=lambda: stopped.put(True), again=again, clock=clock):
        signal.raise_signal(signal.SIGTERM)
        assert stopped.get(timeout=60)
        clock.advance(later_s)
        signal.raise_signal(signal.SIGTERM)
    assert codes == left  # the block ends when all signals before its end have been handled
    assert stopped.empty()


def test_a_signal_is_heard_while_the_main_thread_is_blocked_in_a_call() -> None:
    """The call is one that a signal does not interrupt, so no handler of Python can run."""
    received, written = os.pipe()
    missed = threading.Timer(60, os.write, (written, b"x"))
    missed.start()
    buffer, libc = ctypes.create_string_buffer(1), ctypes.CDLL(None)
    clock = ManualClock()

    def first() -> None:
        clock.advance(SAME_S)
        os.kill(os.getpid(), signal.SIGTERM)

    def again(number: int) -> None:
        os.write(written, bytes([number]))

    sending = threading.Timer(0, os.kill, (os.getpid(), signal.SIGTERM))
    with stop_on_signals(first=first, again=again, clock=clock):
        signal.siginterrupt(signal.SIGTERM, False)
        sending.start()
        libc.read(received, buffer, 1)
    missed.cancel()
    for timer in (missed, sending):
        timer.join()
    for end in (received, written):
        os.close(end)
    assert buffer.value == bytes([signal.SIGTERM])


def test_a_signal_of_others_reaches_the_loop_that_waited_for_it_before() -> None:
    async def run() -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, heard.set)
        with stop_on_signals(first=lambda: None, again=print, clock=ManualClock()):
            signal.raise_signal(signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 60)
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(run())
