"""Calls into the loop of another thread: what is the loop's end, and what is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from leasehold.jobs.request import Request
from leasehold.jobs.threads import LoopOver, call_in, post
from leasehold.jobs.wish import Wish

HANDLER = "of a signal handler"


class Interrupted(asyncio.SelectorEventLoop):
    """While it is open each call into it meets a signal handler that raises."""

    def call_soon_threadsafe(self, *given: object, **named: object) -> asyncio.Handle:
        if self.is_closed():
            return super().call_soon_threadsafe(lambda: None)
        raise RuntimeError(HANDLER)


@pytest.fixture
def interrupted() -> Iterator[Interrupted]:
    loop = Interrupted()
    yield loop
    loop.close()


@pytest.fixture
def running() -> Iterator[tuple[asyncio.AbstractEventLoop, threading.Thread]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop, thread
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def answer() -> str:
    return "yes"


async def fail() -> str:
    raise ValueError("no")


async def called_off() -> str:
    raise asyncio.CancelledError


def test_the_error_of_a_signal_handler_is_not_taken_for_the_end(interrupted: Interrupted) -> None:
    with pytest.raises(RuntimeError, match=HANDLER):
        post(interrupted, lambda: None)
    with pytest.raises(RuntimeError, match=HANDLER):
        call_in(interrupted, answer, thread=None)
    interrupted.close()
    with pytest.raises(LoopOver):
        post(interrupted, lambda: None)
    with pytest.raises(LoopOver):
        call_in(interrupted, answer, thread=None)


def test_a_request_passes_it_on_and_takes_the_end_for_an_end(interrupted: Interrupted) -> None:
    wish = Wish.of(["nightly"], lease=timedelta(seconds=2))
    request = Request(wish, store="memory://")
    request._loop.close()
    request._loop = interrupted
    with pytest.raises(RuntimeError, match=HANDLER):
        request.cancel()
    interrupted.close()
    request.cancel()


def test_what_is_done_there_is_answered_here(
    running: tuple[asyncio.AbstractEventLoop, threading.Thread],
) -> None:
    loop, thread = running
    assert call_in(loop, answer, thread=thread) == "yes"
    with pytest.raises(ValueError, match="no"):
        call_in(loop, fail, thread=thread)
    with pytest.raises(LoopOver):
        call_in(loop, called_off, thread=thread)


def test_a_loop_that_ends_before_its_turn_has_done_nothing(
    running: tuple[asyncio.AbstractEventLoop, threading.Thread],
) -> None:
    loop, thread = running
    done: list[str] = []

    async def never() -> None:
        done.append("done")

    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    with pytest.raises(LoopOver):
        call_in(loop, never, thread=thread)
    loop.close()
    assert not done
