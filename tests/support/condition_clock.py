"""A clock that ends every wait when the test's condition holds, not by time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from leasehold.clock import SystemClock

T = TypeVar("T")


class ConditionClock(SystemClock):
    """Gives up what it waits for when ``over`` says so, and never before.

    ``pauses`` counts the calls of ``sleep``, which retries make.
    """

    def __init__(self) -> None:
        self.over: Callable[[], bool] = lambda: False
        self.pauses = 0

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        await super().sleep(seconds)

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        task = asyncio.ensure_future(answer)
        try:
            while not task.done():
                if self.over():
                    raise TimeoutError
                await asyncio.wait([task], timeout=0.01)
        finally:
            task.cancel()
            await asyncio.wait([task])
        return task.result()
