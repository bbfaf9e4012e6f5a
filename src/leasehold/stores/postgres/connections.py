"""A few connections to one database, and how long to go on when they break.

Why no ready-made pool: when a server is gone, a pool tells that it had no connection in time; the
store has to tell why. And a pool connects again in the background with growing pauses, while a
lease runs out; here the call that needs a connection makes it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import psycopg

from leasehold.errors import StoreUnavailable
from leasehold.runtime.process_check import ProcessCheck
from leasehold.stores.postgres.driver_errors import is_transient, to_store_error
from leasehold.stores.postgres.migrations import queries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from leasehold.clock import Clock
    from leasehold.stores.postgres.address import DatabaseAddress

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

_PREPARE_AFTER = 2
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


class Connections:
    """At most ``most`` connections, each used by one call at a time and kept for the next."""

    def __init__(
        self, address: DatabaseAddress, clock: Clock, *, patience_s: float, most: int
    ) -> None:
        """Connect to nothing yet: each connection is made by the first call that needs it."""
        self.address = address
        self._clock = clock
        self._patience_s = patience_s
        self._idle: list[Connection] = []
        self._room = anyio.Semaphore(most)
        self._process_check = ProcessCheck(address.url)
        self._closed = False

    async def ask(self, query: bytes, values: Mapping[str, object]) -> tuple[Any, ...]:
        """The one row that answers ``query``, asked again on a new connection if one breaks.

        Every call of a store may be repeated, so it does no harm if the server had done it.

        Raises:
            StoreUnavailable: there was no answer within the patience.
            StoreUnusable: the server answers and can not serve.
        """
        failed: list[psycopg.Error] = []
        try:
            return await self._clock.bounded(
                self._until_answered(query, values, failed), seconds=self._patience_s
            )
        except TimeoutError as error:
            cause = failed[-1] if failed else error
            raise StoreUnavailable(
                f"{to_store_error(cause, self.address)} (given up after {self._patience_s:g} s)"
            ) from cause

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Connection]:
        """A connection for this block alone. After an error, or when cancelled, it is closed."""
        self._process_check.check()
        if self._closed:
            raise StoreUnavailable("this store was closed: open it anew")
        async with self._room:
            connection = self._idle.pop() if self._idle else await self._connected()
            try:
                yield connection
            except BaseException as error:
                await connection.close()
                if isinstance(error, psycopg.Error) and is_transient(error):
                    # The others were made before the trouble and may be just as broken.
                    await self._drop_idle()
                raise
            self._idle.append(connection)
            if self._closed:
                await self._drop_idle()

    async def close(self) -> None:
        """Close what is idle now, and the rest when its call is over."""
        if self._process_check.forked:
            return  # the connections belong to the process that made them
        self._closed = True
        await self._drop_idle()

    async def _until_answered(
        self, query: bytes, values: Mapping[str, object], failed: list[psycopg.Error]
    ) -> tuple[Any, ...]:
        pause_s = _FIRST_PAUSE_S
        while True:  # until the patience of the caller is over
            try:
                async with self.borrowed() as connection:
                    cursor = await connection.execute(query, values)
                    return await cursor.fetchone() or ()
            except psycopg.Error as error:
                if not is_transient(error):
                    raise to_store_error(error, self.address) from error
                failed.append(error)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _connected(self) -> Connection:
        connection = await psycopg.AsyncConnection.connect(
            self.address.conninfo, autocommit=True, prepare_threshold=_PREPARE_AFTER
        )
        try:
            await connection.execute(queries()["session"])
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()
