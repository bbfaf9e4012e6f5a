"""Plain functions in threads. A simulation has threads of its own: the same work, without threads.

The work of a thread is a coroutine that never waits: a real thread runs it in one go. So the same
code can run in a simulated thread, in which a function may take some simulated time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Threads(Protocol):
    """Where plain functions run."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` in a thread. If this is cancelled, it returns, and the thread continues."""
        ...

    async def call(self, function: Callable[..., Any], *values: object) -> Any:
        """Call a plain function in ``work``. Only in a simulation does this wait."""
        ...


class WorkerThreads:
    """Real threads, as many as ``limiter`` allows; by default, as many as are needed."""

    def __init__(self, limiter: anyio.CapacityLimiter | None = None) -> None:
        self._limiter = limiter or anyio.CapacityLimiter(math.inf)

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` in a thread."""
        return await anyio.to_thread.run_sync(
            _to_end, work, abandon_on_cancel=True, limiter=self._limiter
        )

    async def call(self, function: Callable[..., Any], *values: object) -> Any:
        """Call the function."""
        return function(*values)


def _to_end(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    steps = work()
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    steps.close()
    raise RuntimeError("the work of a thread has waited, and there is no loop to wait in")
