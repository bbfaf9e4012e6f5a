"""The server: it listens, keeps the connections, and bounds what they hold together."""

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
from leasehold.azure.endpoint.unauthenticated import (
    DroppedConnections,
    UnauthenticatedConnections,
)
from leasehold.clock import SystemClock, host_name
from leasehold.errors import StoreUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.log.log import Log

log = logging.getLogger("leasehold.azure.endpoint")

_MAX_TICK_S = 1.0
_CLOSE_TIMEOUT_S = 2.0
_BACKLOG = 1024


class HubServer:
    """A server for Event Hubs clients, over the streams of a log. For one event loop.

    ``async with`` starts and closes it; the log stays open. Once it is started, ``address`` and
    ``connection_string`` show how to reach it.
    """

    def __init__(
        self, opened: Log, options: HubOptions | None = None, *, clock: Clock | None = None
    ) -> None:
        self.options = options or HubOptions()
        self.clock: Clock = clock or SystemClock()
        self.hubs = Hubs(opened, clock=self.clock)
        self.epochs = ReaderEpochs()
        self.retries = Retries()
        self.unauthenticated = UnauthenticatedConnections(self.options)
        self._dropped = DroppedConnections(self.clock)
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._is_empty = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._partial_bytes = 0

    @property
    def address(self) -> tuple[str, int]:
        """The host and port where it listens."""
        assert self._server is not None  # noqa: S101 - it was started
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def listens_everywhere(self) -> bool:
        """Whether it listens at all addresses of the machine, so clients need its host name."""
        return ip_address(self.address[0].partition("%")[0]).is_unspecified

    @property
    def client_host(self) -> str:
        """The host that clients connect to: the address, or the machine's name for all of them."""
        return host_name() if self.listens_everywhere else self.address[0]

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    @property
    def dropped_unauthenticated(self) -> int:
        """How many connections without a valid token were dropped, to make room for others."""
        return self._dropped.unauthenticated

    def connection_string(self, hub: str = "") -> str:
        """What clients connect with. It holds a key: it is a secret."""
        return self.options.keys.connection_string(
            self.client_host, self.address[1], hub=hub, is_plain=self.options.tls is None
        )

    async def start(self) -> None:
        """Listen.

        Raises:
            StoreUnusable: the address is not available.
        """
        loop = asyncio.get_running_loop()
        options = self.options
        # The first array of a process loads pandas, where that is installed: not in the loop.
        await self.hubs.run_in_thread(lambda: pa.array([b""]))
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(self),
                options.host,
                options.port,
                backlog=_BACKLOG,
            )
        except (OSError, UnicodeError) as error:
            raise StoreUnusable(
                f"{options.host}:{options.port} can not be listened at: {_bind_problem(error)}; "
                "choose another port (0 is any that is free) or address, or end who listens there"
            ) from error
        self._ticker = loop.create_task(self._tick())

    async def close(self) -> None:
        """Close all connections, and store what they have sent. Safe to call twice."""
        if self._server is None:
            return
        with CancelScope(shield=True):
            self._server.close()
            if self._ticker is not None:
                self._ticker.cancel()
            reason = RequestRefused(FORCED, "The hub is shutting down.")
            self._for_each(lambda connection: connection.shut_down(reason))
            if self._connections:
                self._is_empty.clear()
                try:
                    await self.clock.bounded(self._is_empty.wait(), seconds=_CLOSE_TIMEOUT_S)
                except TimeoutError:
                    for connection in tuple(self._connections):
                        connection.abort()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_S)
            await asyncio.get_running_loop().run_in_executor(None, self.hubs.close)
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
        """Register a connection, in place of one without a token if need be.

        Return False if there are too many and all have one.
        """
        if len(self._connections) >= self.options.max_connections:
            oldest = self.unauthenticated.oldest()
            if oldest is None:
                self._dropped.count(connection.client_host, refused=True)
                return False
            self._drop(oldest)
        self._connections.add(connection)
        self.without_token(connection)
        return True

    def without_token(self, connection: ClientConnection) -> None:
        """Count a connection among those without a valid token; drop one if they are too many."""
        excess = self.unauthenticated.add(connection)
        if excess is not None:
            self._drop(excess)

    def _drop(self, connection: ClientConnection) -> None:
        """End a connection without a token, to make room for another."""
        self._dropped.count(connection.client_host)
        self.leave(connection)
        connection.abort()

    def leave(self, connection: ClientConnection) -> None:
        """Remove a connection that has ended."""
        self._connections.discard(connection)
        self.unauthenticated.discard(connection)
        if not self._connections:
            self._is_empty.set()

    @property
    def has_room(self) -> bool:
        """Whether connections may read more events to be stored."""
        return self._held_bytes < self.options.max_held_bytes

    def hold(self, size: int) -> None:
        """Count bytes that are not stored yet."""
        self._held_bytes += size

    def release(self, size: int) -> None:
        """Count bytes as stored; paused connections may read again."""
        was_full = not self.has_room
        self._held_bytes -= size
        if was_full and self.has_room:
            for connection in tuple(self._connections):
                connection.update_reading()

    def gather(self, size: int) -> bool:
        """Count the bytes of incomplete deliveries; return whether they are within the limit."""
        self._partial_bytes += size
        return self._partial_bytes <= self.options.max_held_bytes

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a task; ``close`` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _for_each(self, work: Callable[[ClientConnection], None]) -> None:
        """Do this for all connections; one for which it fails is aborted, the others continue."""
        for connection in tuple(self._connections):
            try:
                work(connection)
            except Exception:
                log.exception("a connection ends")
                connection.abort()

    async def _tick(self) -> None:
        """Call ``tick`` of all connections, often enough for the shortest timeout."""
        options = self.options
        limits = (options.idle_timeout.total_seconds(), options.handshake_timeout.total_seconds())
        pause_s = min(_MAX_TICK_S, min(limits) / 4)
        while True:
            await self.clock.sleep(pause_s)
            now, wall = self.clock.boottime_s(), self.clock.utc_now()
            self._for_each(lambda connection: connection.tick(now, wall))  # noqa: B023 - now
            self._dropped.report(now)


def _bind_problem(error: OSError | UnicodeError) -> str:
    """Return why an address cannot be used; asyncio's own text repeats the address."""
    if isinstance(error, UnicodeError):
        return "this is no name of a host"
    # Errors of name resolution have other numbers.
    is_known = error.errno is not None and error.errno > 0
    return os.strerror(error.errno or 0) if is_known else error.strerror or str(error)
