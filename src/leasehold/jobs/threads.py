"""Calls from any thread into an event loop that runs in another one, and may end meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

_LOOK_S = 1.0


class LoopOver(Exception):
    """The loop has ended before there was an answer."""


def call_in(
    loop: asyncio.AbstractEventLoop,
    make: Callable[[], Coroutine[Any, Any, T]],
    *,
    thread: threading.Thread | None,
) -> T:
    """Do something in the loop of ``thread``, and wait for the answer.

    Raises:
        LoopOver: the loop has ended. Whether it was done is then unknown.
        Exception: what was to be done has failed.
    """
    made = make()
    try:
        doing = asyncio.run_coroutine_threadsafe(made, loop)
    except RuntimeError as error:  # it is closed
        made.close()
        raise LoopOver from error
    try:
        return answer_of(doing, thread=thread)
    except LoopOver:
        made.close()
        raise


def answer_of(doing: Future[T], *, thread: threading.Thread | None) -> T:
    """Wait for what is done in the loop of ``thread``.

    Raises:
        LoopOver: the loop has ended. Whether it was done is then unknown.
        Exception: what was to be done has failed.
    """
    while True:
        try:
            return doing.result(_LOOK_S)
        except CancelledError as error:
            raise LoopOver from error
        except TimeoutError as error:
            if doing.done():  # then it is the answer
                return doing.result()
            if thread is None or not thread.is_alive():
                raise LoopOver from error
