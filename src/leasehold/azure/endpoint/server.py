"""A server for the clients of Event Hubs, over the streams of a log.

For one event loop. ``async with`` starts and closes it; the log stays open.
"""

from __future__ import annotations

import asyncio
import logging
import os
from ipaddress import ip_address
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from anyio import CancelScope

from leasehold.azure.endpoint.connection import ClientConnection
from leasehold.azure.endpoint.error_conditions import FORCED, RequestRefused
from leasehold.azure.endpoint.hubs import Hubs
from leasehold.azure.endpoint.options import HubOptions
from leasehold.azure.endpoint.retries import Retries
from leasehold.azure.endpoint.selectors import ReaderEpochs
from leasehold.clock import SystemClock, host_name
from leasehold.errors import StoreUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.log.log import Log

log = logging.getLogger("leasehold.azure.endpoint")

_LONGEST_TICK_S = 1.0
_FAREWELL_S = 2.0
_BACKLOG = 1024


class HubServer:
    """``address`` and ``connection_string`` tell how to reach it, once it was started."""

    def __init__(
        self, opened: Log, options: HubOptions | None = None, *, clock: Clock | None = None
    ) -> None:
        """Listen to nobody yet."""
        self.options = options or HubOptions()
        self.clock: Clock = clock or SystemClock()
        self.streams = Hubs(opened, clock=self.clock)
        self.epochs = ReaderEpochs()
        self.retries = Retries()
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._is_empty = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._partial_bytes = 0

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None  # noqa: S101 - it was started
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def listens_everywhere(self) -> bool:
        """Whether it listens at all addresses of the machine: nobody can connect to *all*."""
        return ip_address(self.address[0].partition("%")[0]).is_unspecified

    @property
    def client_host(self) -> str:
        """What clients connect to: its address, or the machine's name if it has all of them."""
        return host_name() if self.listens_everywhere else self.address[0]

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def connection_string(self, hub: str = "") -> str:
        """What clients connect with. It holds a key: it is a secret."""
        return self.options.keys.connection_string(
            self.client_host, self.address[1], hub=hub, is_plain=self.options.tls is None
        )

    async def start(self) -> None:
        """Listen.

        Raises:
            StoreUnusable: the address can not be had.
        """
        loop = asyncio.get_running_loop()
        options = self.options
        # The first array of a process loads pandas, where that is installed: not in the loop.
        await self.streams.run(lambda: pa.array([b""]))
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(self),
                options.host,
                options.port,
                backlog=_BACKLOG,
            )
        except (OSError, UnicodeError) as error:
            raise StoreUnusable(
                f"{options.host}:{options.port} can not be listened at: {_why(error)}; choose "
                "another port (0 is any that is free) or address, or end who listens there"
            ) from error
        self._ticker = loop.create_task(self._tick())

    async def close(self) -> None:
        """Say good-bye to all, and store what they have sent. Again is harmless."""
        if self._server is None:
            return
        with CancelScope(shield=True):
            self._server.close()
            if self._ticker is not None:
                self._ticker.cancel()
            why = RequestRefused(FORCED, "The hub is shutting down.")
            self._for_each(lambda connection: connection.farewell(why))
            if self._connections:
                self._is_empty.clear()
                try:
                    await self.clock.bounded(self._is_empty.wait(), seconds=_FAREWELL_S)
                except TimeoutError:
                    for connection in tuple(self._connections):
                        connection.abort()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_FAREWELL_S)
            await asyncio.get_running_loop().run_in_executor(None, self.streams.close)
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ------------------------------------------------------------- for connections

    def enter(self, connection: ClientConnection) -> bool:
        """Let one in, if there is room."""
        if len(self._connections) >= self.options.max_connections:
            log.warning("a connection is refused: there are %d", len(self._connections))
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: ClientConnection) -> None:
        """It has ended."""
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    @property
    def has_room(self) -> bool:
        """Whether more may be on its way into the log."""
        return self._held_bytes < self.options.max_held_bytes

    def hold(self, size: int) -> None:
        """So many bytes more are on their way into the log."""
        self._held_bytes += size

    def release(self, size: int) -> None:
        """They are there; whoever was not listened to for them is again."""
        was_full = not self.has_room
        self._held_bytes -= size
        if was_full and self.has_room:
            for connection in tuple(self._connections):
                connection.listen()

    def gather(self, size: int) -> bool:
        """So many bytes more, or less, of deliveries are not whole; say whether there is room."""
        self._partial_bytes += size
        return self._partial_bytes <= self.options.max_held_bytes

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do something beside; the server does not end before it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _for_each(self, work: Callable[[ClientConnection], None]) -> None:
        """Do this for all connections. One for which it fails is hung up on, and costs no other."""
        for connection in tuple(self._connections):
            try:
                work(connection)
            except Exception:
                log.exception("a connection ends")
                connection.abort()

    async def _tick(self) -> None:
        """For all connections: beats of the heart, and the limits of their patience."""
        options = self.options
        limits = (options.idle_timeout.total_seconds(), options.handshake_timeout.total_seconds())
        pause_s = min(_LONGEST_TICK_S, min(limits) / 4)
        while True:
            await self.clock.sleep(pause_s)
            now, wall = self.clock.boottime_s(), self.clock.utc_now()
            self._for_each(lambda connection: connection.tick(now, wall))  # noqa: B023 - now


def _why(error: OSError | UnicodeError) -> str:
    """What is wrong with an address. asyncio's own words repeat it."""
    if isinstance(error, UnicodeError):
        return "this is no name of a host"
    is_known = error.errno is not None and error.errno > 0  # names have numbers of their own
    return os.strerror(error.errno or 0) if is_known else error.strerror or str(error)
