"""The two sides of a processor or worker, lease side and work side, and the calls between them.

The lease side (member, checkpoints) must run whatever the handlers do, so it has its own thread and
event loop. In a simulation both sides share one loop: the same code, without threads.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")


class LoopLink(Protocol):
    """The calls from each side to the other."""

    def to_lease(self, call: Callable[[], None]) -> None:
        """Call it on the lease side, soon; from any thread."""
        ...

    def to_work(self, call: Callable[[], None]) -> None:
        """Call it on the work side, soon; from any thread."""
        ...

    async def on_lease(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``make`` on the lease side, and await it on the work side."""
        ...


class SameLoop:
    """Both sides in the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def to_lease(self, call: Callable[[], None]) -> None:
        """Call it on the lease side."""
        self._loop.call_soon(call)

    def to_work(self, call: Callable[[], None]) -> None:
        """Call it on the work side."""
        self._loop.call_soon(call)

    async def on_lease(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run it on the lease side."""
        return await make()


class LoopThread:
    """The work side is the running loop; the lease side gets a thread with its own loop."""

    def __init__(self, name: str) -> None:
        """Start the thread of the lease side."""
        self._work = asyncio.get_running_loop()
        self._lease = asyncio.new_event_loop()
        # A daemon: a program that forgot to stop its processor must still be able to end.
        self._thread = threading.Thread(
            target=self._run_lease_loop, name=f"leases of {name}", daemon=True
        )
        self._thread.start()

    def to_lease(self, call: Callable[[], None]) -> None:
        """Call it on the lease side."""
        _post(self._lease, call)

    def to_work(self, call: Callable[[], None]) -> None:
        """Call it on the work side."""
        _post(self._work, call)

    async def on_lease(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run it on the lease side."""
        return await asyncio.wrap_future(self.start(make))

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start ``make`` on the lease side; from any thread."""
        return asyncio.run_coroutine_threadsafe(make(), self._lease)

    async def close(self) -> None:
        """End the thread, after all that was started there."""
        _post(self._lease, self._lease.stop)
        ended: Awaitable[None] = asyncio.to_thread(self._thread.join)
        await ended

    def _run_lease_loop(self) -> None:
        asyncio.set_event_loop(self._lease)
        try:
            self._lease.run_forever()
            self._lease.run_until_complete(self._lease.shutdown_asyncgens())
            self._lease.run_until_complete(self._lease.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self._lease.close()


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    # After a loop is closed no task is left that could use the call.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
