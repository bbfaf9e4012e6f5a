"""How the two sides of a processor talk: the lease side and the work side.

The lease side (member, checkpoints) must go on whatever handlers do, so it has a thread and an
event loop of its own. In a simulation both are one loop: the same code, without threads.
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
    """What each side may ask of the other."""

    def to_lease(self, call: Callable[[], None]) -> None:
        """Have it called on the lease side, soon. From any thread."""
        ...

    def to_work(self, call: Callable[[], None]) -> None:
        """Have it called on the work side, soon. From any thread."""
        ...

    async def on_lease(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await on the work side what ``make`` does on the lease side."""
        ...


class SameLoop:
    """Both sides in the running loop."""

    def __init__(self) -> None:
        """In a loop that runs."""
        self._loop = asyncio.get_running_loop()

    def to_lease(self, call: Callable[[], None]) -> None:
        """See ``LoopLink``."""
        self._loop.call_soon(call)

    def to_work(self, call: Callable[[], None]) -> None:
        """See ``LoopLink``."""
        self._loop.call_soon(call)

    async def on_lease(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See ``LoopLink``."""
        return await make()


class LoopThread:
    """The work side is the running loop; the lease side gets a thread with a loop of its own."""

    def __init__(self, name: str) -> None:
        """Start the thread. Nothing is done in it yet."""
        self._work = asyncio.get_running_loop()
        self._lease = asyncio.new_event_loop()
        # A daemon: a program that forgot to stop its processor must still be able to end.
        self._thread = threading.Thread(target=self._live, name=f"leases of {name}", daemon=True)
        self._thread.start()

    def to_lease(self, call: Callable[[], None]) -> None:
        """See ``LoopLink``."""
        _post(self._lease, call)

    def to_work(self, call: Callable[[], None]) -> None:
        """See ``LoopLink``."""
        _post(self._work, call)

    async def on_lease(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See ``LoopLink``."""
        return await asyncio.wrap_future(self.start(make))

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin on the lease side what ``make`` does; from any thread."""
        return asyncio.run_coroutine_threadsafe(make(), self._lease)

    async def close(self) -> None:
        """End the thread, when all that was begun there is over."""
        _post(self._lease, self._lease.stop)
        ended: Awaitable[None] = asyncio.to_thread(self._thread.join)
        await ended

    def _live(self) -> None:
        asyncio.set_event_loop(self._lease)
        try:
            self._lease.run_forever()
            self._lease.run_until_complete(self._lease.shutdown_asyncgens())
            self._lease.run_until_complete(self._lease.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self._lease.close()


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    # A loop that was closed has nobody left who could act on it.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
