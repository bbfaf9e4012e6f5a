"""Calls from any thread into an event loop that runs in another one, and may end meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_LOOK_S = 1.0


class LoopOver(Exception):
    """The loop has ended before there was an answer."""


class LoopAnswer(Generic[T]):
    """One answer, given in the loop and waited for in another thread.

    A future could do it too: this one costs a third, and there are many.
    """

    __slots__ = ("_error", "_result", "_wake", "begun", "cancelled", "done")

    def __init__(self) -> None:
        """Neither begun nor given."""
        self.begun = threading.Lock()
        self.cancelled = self.done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        # Taken: who takes it again waits until it is given back.
        self._wake = threading.Lock()
        self._wake.acquire()

    def begin(self) -> bool:
        """False if it was called off; from now on it can not be."""
        return self.begun.acquire(blocking=False)

    def cancel(self) -> bool:
        """Call it off; False if it has begun."""
        self.cancelled = self.cancelled or self.begun.acquire(blocking=False)
        return self.cancelled

    def give(self, result: T) -> None:
        """This is the answer, unless there is one already."""
        self._tell(result, None)

    def fail(self, error: BaseException) -> None:
        """This error is the answer, unless there is one already."""
        self._tell(None, error)

    def _tell(self, result: T | None, error: BaseException | None) -> None:
        if not self.done:
            self._result, self._error = result, error
            self.done = True
            self._wake.release()

    def of(self, thread: threading.Thread | None) -> T:
        """Wait for what is done in the loop of ``thread``.

        Raises:
            LoopOver: the loop has ended. Whether it was done is then unknown.
            Exception: what was to be done has failed.
        """
        while not self.done:
            if self._wake.acquire(timeout=_LOOK_S) or self.done:
                break
            if thread is None or not thread.is_alive():
                raise LoopOver
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


def post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have it called in the loop, from any thread and from a signal handler.

    Raises:
        LoopOver: the loop is closed.
        RuntimeError: that of a signal handler which came in between.
    """
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError as error:
        if not loop.is_closed():
            raise
        raise LoopOver from error


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
    doing: LoopAnswer[T] = LoopAnswer()
    begun: list[asyncio.Task[None]] = []  # a loop alone does not keep its tasks

    async def do() -> None:
        try:
            doing.give(await make())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            doing.fail(error)
        except BaseException:
            doing.fail(LoopOver())
            raise

    # Made there: if the loop ends before its turn, there is nothing to be called off.
    post(loop, lambda: begun.append(loop.create_task(do())))
    return doing.of(thread)
