"""Calls that come while one is under way wait, and go together in the next: group commit."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

A = TypeVar("A")
R = TypeVar("R")

# For how long, as a part of the call before, the next one waits for those who were answered.
_LINGER = 0.25


class Lane(Generic[A, R]):
    """One call at a time. Whoever asks may be called off: the call goes on for the others."""

    def __init__(
        self,
        send: Callable[[Sequence[A]], Awaitable[Sequence[R | Exception]]],
        *,
        unclaimed: Callable[[R], None] = lambda _: None,
        weigh: Callable[[A], int] = lambda _: 1,
    ) -> None:
        """``send`` answers to each of what it is given, in order: a result, or its error.

        ``unclaimed`` hears a result that nobody waits for any more. ``weigh``: how many have asked
        together.
        """
        self._send = send
        self._unclaimed, self._weigh = unclaimed, weigh
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._serving: asyncio.Task[None] | None = None
        self._weight = self._enough = 0
        self._full = asyncio.Event()

    async def ask(self, what: A) -> R:
        """Wait for the answer to this.

        Raises:
            Exception: what ``send`` gave for it, or raised.
        """
        answer = self._put(what)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._unclaimed(answer.result())  # it came in the very moment of the calling off
            raise

    def post(self, what: A) -> None:
        """Have it sent, and hear nothing of it."""
        self._put(what).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _put(self, what: A) -> asyncio.Future[R]:
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((what, answer))
        self._weight += self._weigh(what)
        if self._enough and self._weight >= self._enough:
            self._full.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return answer

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, weight, began_s = list(self._waiting), self._weight, loop.time()
                self._waiting.clear()
                self._weight = 0
                await self._answer(batch)
                await self._linger(weight, (loop.time() - began_s) * _LINGER)
        finally:
            self._serving = None

    async def _linger(self, enough: int, limit_s: float) -> None:
        """Those who were answered together are soon back, and better in one call than in two."""
        if enough <= 1 or self._weight >= enough:
            return
        self._enough = enough
        timer = asyncio.get_running_loop().call_later(limit_s, self._full.set)
        try:
            self._full.clear()
            await self._full.wait()
        finally:
            self._enough = 0
            timer.cancel()

    async def _answer(self, batch: list[tuple[A, asyncio.Future[R]]]) -> None:
        try:
            results: Sequence[R | Exception] = await self._send([what for what, _ in batch])
        except Exception as error:  # noqa: BLE001 - each of them is told
            results = [error] * len(batch)
        except BaseException:
            for _, answer in (*batch, *self._waiting):
                answer.cancel()
            raise
        for (_, answer), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                if not answer.done():
                    answer.set_exception(result)
            elif answer.done():  # it was called off
                self._unclaimed(result)
            else:
                answer.set_result(result)
