"""Simulated threads: plain functions in simulated time, on a host that may be paused or crash.

A simulated thread is a task. It begins late, as a thread of a busy process does, it is not stopped
when nobody waits for it, and it ends with its process. A function that is to take some time returns
``Blocking``, which only a simulated thread can carry out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leasehold.testing.sim.faults import WorkRates
    from leasehold.testing.sim.host import Host, HostClock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Blocking:
    """What a function has yet to do: its thread is blocked until that is done."""

    rest: Coroutine[Any, Any, None]


class SimThreads:
    """The ``Threads`` of one host; ``rates`` returns the current faults."""

    def __init__(self, host: Host, clock: HostClock, rates: Callable[[], WorkRates]) -> None:
        self._host = host
        self._clock = clock
        self._rates = rates
        self._began_s: dict[asyncio.Task[Any], float] = {}

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work``, even if nobody waits for it any more."""
        thread = asyncio.create_task(self._run(work))
        self._began_s[thread] = asyncio.get_running_loop().time()
        thread.add_done_callback(self._ended)
        return await asyncio.shield(thread)

    async def call(self, function: Callable[..., Any], *values: object) -> Any:
        """Call the function, and wait while it blocks."""
        answer = function(*values)
        return await answer.rest if isinstance(answer, Blocking) else answer

    def kill(self) -> list[asyncio.Task[Any]]:
        """End all threads with their process; return them."""
        threads = list(self._began_s)
        for thread in threads:
            thread.cancel()
        return threads

    def longest_s(self) -> float:
        """Return for how long the oldest thread has been running."""
        now_s = asyncio.get_running_loop().time()
        return now_s - min(self._began_s.values(), default=now_s)

    def _ended(self, thread: asyncio.Task[Any]) -> None:
        del self._began_s[thread]
        if not thread.cancelled():
            thread.exception()  # if nobody waits for it, nobody hears of it

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._wait()
        try:
            return await work()
        finally:
            await self._wait()  # until the loop hears of it

    async def _wait(self) -> None:
        rates, rng = self._rates(), self._host.rng
        late = rates.thread_late and rng.random() < rates.thread_late
        if late:
            await self._clock.sleep(rng.uniform(0.0, rates.thread_late_s))
        else:
            await self._host.gate()
