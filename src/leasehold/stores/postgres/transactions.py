"""Transactions that commit a caller's statements and its checkpoint as one.

Exactly once, on PostgreSQL: what the block wrote and its checkpoint are committed together or not
at all, and only if the ownership still holds. ``transaction_fence`` explains why no other owner can
come in between.

The connections come from two pools: at most ``max_connections`` asyncio ones, and as many that
block. A caller never gets a broken connection, or one with state of an earlier block.
"""

from __future__ import annotations

import select
import threading
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

import anyio
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from leasehold.errors import StoreUnavailable, UsageError
from leasehold.runtime.process_check import ProcessCheck
from leasehold.stores.postgres.address import DatabaseAddress
from leasehold.stores.postgres.driver_errors import is_transient, to_store_error
from leasehold.stores.postgres.transaction_fence import (
    FencedCheckpoint,
    TransactionFence,
    TransactionStage,
    clean_session,
    rolled_back_by_caller,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from leasehold.clock import Clock
    from leasehold.model import Ownership, Position
    from leasehold.stores.postgres.transaction_fence import Steps

T = TypeVar("T")
AsyncConnection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]
BlockingConnection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
C = TypeVar("C", AsyncConnection, BlockingConnection)

_PREPARE_AFTER = 5
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
# A connection that was idle for longer is checked first: the server may have been restarted.
_FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The size, address and timeouts of a pool."""

    address: DatabaseAddress
    clock: Clock
    max_connections: int
    timeout_s: float
    pool_timeout_s: float

    def conninfo(self) -> str:
        """Return the conninfo for the driver, with keepalives that detect a lost server in time."""
        keepalive_s = str(max(1, int(self.timeout_s / 3)))
        own = {
            "tcp_user_timeout": str(int(self.timeout_s * 1000)),
            "keepalives_idle": keepalive_s,
            "keepalives_interval": keepalive_s,
            "keepalives_count": "2",
        }
        given = {key: str(value) for key, value in conninfo_to_dict(self.address.conninfo).items()}
        return make_conninfo(**own | given)


async def run_steps(connection: AsyncConnection, steps: Steps[T]) -> T:
    """Run the steps on an asyncio connection, whatever its caller has set on it."""
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    row: tuple[Any, ...] | None = None
    while True:
        try:
            ask = next(steps) if row is None else steps.send(row)
        except StopIteration as end:
            result: T = end.value
            return result
        await cursor.execute(ask.query, ask.values, prepare=False)
        while cursor.nextset():
            pass
        row = (await cursor.fetchone() if cursor.description else None) or ()


def run_steps_blocking(connection: BlockingConnection, steps: Steps[T]) -> T:
    """Run the steps on a connection that blocks."""
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    row: tuple[Any, ...] | None = None
    while True:
        try:
            ask = next(steps) if row is None else steps.send(row)
        except StopIteration as end:
            result: T = end.value
            return result
        cursor.execute(ask.query, ask.values, prepare=False)
        while cursor.nextset():
            pass
        row = (cursor.fetchone() if cursor.description else None) or ()


class ConnectionPool(Generic[C]):
    """What both kinds of pools have in common."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._clock = options.clock
        self._conninfo = options.conninfo()
        self._idle: list[tuple[C, float]] = []
        self._process_check = ProcessCheck(f"the transactions of {options.address.url}")
        self._closed = threading.Event()

    def _check_open(self) -> None:
        self._process_check.check()
        if self._closed.is_set():
            raise UsageError("these transactions were closed: open them anew")

    def _take(self) -> tuple[C, bool] | None:
        """Take an idle connection, and whether it may have been closed by the server."""
        try:
            connection, since_s = self._idle.pop()
        except IndexError:
            return None
        old = self._clock.boottime_s() - since_s > _FRESH_S
        return connection, old or _has_unread_data(connection)

    def _is_reusable(self, connection: C) -> bool:
        """Return whether to keep it: no transaction is open, and the pool is open."""
        status = connection.info.transaction_status
        return status is TransactionStatus.IDLE and not self._closed.is_set()

    def _put(self, connection: C) -> None:
        self._idle.append((connection, self._clock.boottime_s()))

    def _connect_pauses(self) -> Iterator[float]:
        """Yield the pause after each attempt to connect, until the timeout."""
        until_s, pause_s = self._clock.boottime_s() + self._options.timeout_s, _FIRST_PAUSE_S
        while self._clock.boottime_s() + pause_s < until_s:
            yield pause_s
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _pause_s(self, pauses: Iterator[float], error: psycopg.Error) -> float:
        """Return the next pause; raise the error for the caller if there is none."""
        if not is_transient(error):
            raise to_store_error(error, self._options.address) from error
        pause_s = next(pauses, None)
        if pause_s is None or self._closed.is_set():
            raise StoreUnavailable(
                f"{to_store_error(error, self._options.address)} (given up after "
                f"{self._options.timeout_s:g} s); no transaction was begun"
            ) from error
        return pause_s

    def _no_free_connection(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"other blocks kept all {self._options.max_connections} connections to "
            f"{self._options.address.where} busy for {self._options.pool_timeout_s:g} s: make the "
            "blocks shorter, or allow more "
            "connections; no transaction was begun"
        )


def _has_unread_data(connection: AsyncConnection | BlockingConnection) -> bool:
    """Return whether the server has sent something unasked: nearly always that it ends."""
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))


class AsyncPool(ConnectionPool[AsyncConnection]):
    """Connections for one event loop: the one that uses it first."""

    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        self._slots = anyio.Semaphore(options.max_connections)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """Give this block a connection. It is kept afterwards if it can be cleaned."""
        self._check_open()
        try:
            await self._clock.bounded(self._slots.acquire(), seconds=self._options.pool_timeout_s)
        except TimeoutError as error:
            raise self._no_free_connection() from error
        try:
            connection = await self._idle_connection() or await self._connected()
            try:
                yield connection
            finally:
                await self._return(connection)
        finally:
            self._slots.release()

    async def close(self) -> None:
        """Close idle connections now, and the others when their block ends."""
        if self._process_check.forked:
            return  # the connections belong to the process that made them
        self._closed.set()
        await self._drop_idle()

    async def _idle_connection(self) -> AsyncConnection | None:
        while (taken := self._take()) is not None:
            connection, maybe_dead = taken
            if not maybe_dead or await self._clean(connection):
                return connection
            await connection.close()
        return None

    async def _connected(self) -> AsyncConnection:
        pauses = self._connect_pauses()
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._conninfo, autocommit=True, prepare_threshold=_PREPARE_AFTER
                )
                if await self._clean(connection):
                    return connection
                await connection.close()
                pause_s = self._pause_s(pauses, psycopg.OperationalError("the connection broke"))
            except psycopg.Error as error:
                pause_s = self._pause_s(pauses, error)
            await self._clock.sleep(pause_s)

    async def _clean(self, connection: AsyncConnection) -> bool:
        try:
            steps = run_steps(connection, clean_session())
            await self._clock.bounded(steps, seconds=self._options.timeout_s)
        except (psycopg.Error, TimeoutError):
            return False
        except BaseException:
            await connection.close()
            raise
        return self._is_reusable(connection)

    async def _return(self, connection: AsyncConnection) -> None:
        connection.row_factory, connection.cursor_factory = tuple_row, psycopg.AsyncCursor
        connection.prepare_threshold = _PREPARE_AFTER
        broken = connection.broken
        if self._is_reusable(connection) and await self._clean(connection):
            self._put(connection)
        else:
            await connection.close()
        if broken or self._closed.is_set():
            # The others were opened before the failure and may be broken too.
            await self._drop_idle()

    async def _drop_idle(self) -> None:
        while (taken := self._take()) is not None:
            await taken[0].close()


class BlockingPool(ConnectionPool[BlockingConnection]):
    """Connections for any number of threads."""

    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        self._slots = threading.Semaphore(options.max_connections)

    @contextmanager
    def connection(self) -> Iterator[BlockingConnection]:
        """Give this block a connection; see ``AsyncPool``."""
        self._check_open()
        if not self._slots.acquire(timeout=self._options.pool_timeout_s):
            raise self._no_free_connection()
        try:
            connection = self._idle_connection() or self._connected()
            try:
                yield connection
            finally:
                self._return(connection)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Close idle connections now, and the others when their block ends."""
        if self._process_check.forked:
            return  # the connections belong to the process that made them
        self._closed.set()
        self._drop_idle()

    def _idle_connection(self) -> BlockingConnection | None:
        while (taken := self._take()) is not None:
            connection, maybe_dead = taken
            if not maybe_dead or self._clean(connection):
                return connection
            connection.close()
        return None

    def _connected(self) -> BlockingConnection:
        pauses = self._connect_pauses()
        while True:
            try:
                connection = psycopg.Connection.connect(
                    self._conninfo, autocommit=True, prepare_threshold=_PREPARE_AFTER
                )
                if self._clean(connection):
                    return connection
                connection.close()
                pause_s = self._pause_s(pauses, psycopg.OperationalError("the connection broke"))
            except psycopg.Error as error:
                pause_s = self._pause_s(pauses, error)
            self._closed.wait(pause_s)

    def _clean(self, connection: BlockingConnection) -> bool:
        try:
            run_steps_blocking(connection, clean_session())
        except psycopg.Error:
            return False
        return self._is_reusable(connection)

    def _return(self, connection: BlockingConnection) -> None:
        connection.row_factory, connection.cursor_factory = tuple_row, psycopg.Cursor
        connection.prepare_threshold = _PREPARE_AFTER
        broken = connection.broken
        if self._is_reusable(connection) and self._clean(connection):
            self._put(connection)
        else:
            connection.close()
        if broken or self._closed.is_set():
            self._drop_idle()

    def _drop_idle(self) -> None:
        while (taken := self._take()) is not None:
            taken[0].close()


_MAX_CONNECTIONS = 8
_TIMEOUT = timedelta(seconds=5)
_POOL_TIMEOUT = timedelta(seconds=60)


class Transactions:
    """One for each processor. Its asyncio side belongs to the event loop that uses it first."""

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self._async_pool = AsyncPool(options)
        self._blocking_pool = BlockingPool(options)

    @classmethod
    def of(
        cls,
        url: str,
        *,
        clock: Clock,
        max_connections: int = _MAX_CONNECTIONS,
        timeout: timedelta = _TIMEOUT,
        pool_timeout: timedelta = _POOL_TIMEOUT,
    ) -> Self:
        """Make it for the database that holds the leases. Does not connect yet.

        ``timeout`` limits connecting, the check and the commit; ``pool_timeout`` is how long a
        block may wait for a free connection.
        """
        if max_connections < 1:
            raise UsageError(f"max_connections must be 1 or more, not {max_connections}")
        return cls(
            PoolOptions(
                address=DatabaseAddress.of(url),
                clock=clock,
                max_connections=max_connections,
                timeout_s=timeout.total_seconds(),
                pool_timeout_s=pool_timeout.total_seconds(),
            )
        )

    @asynccontextmanager
    async def begin(
        self, ownership: Ownership, position: Callable[[], Position]
    ) -> AsyncIterator[AsyncConnection]:
        """Run a transaction that commits with the checkpoint when the block ends.

        ``position`` is called at the end. An error in the block rolls back and is raised unchanged.
        The ownership is checked by the server's clock. If the lease ends between the check and the
        commit, no other holder can have claimed the key: the lock that the check took makes every
        claim wait for the commit.

        Raises:
            FencedWrite: the ownership has ended; rolled back, and counted by the store.
            CheckpointBehind: the stored position is there already, or ahead: the events up to
                there are done. Rolled back.
            UsageError: the block ended its transaction, or left it unusable.
            StoreUnavailable: nothing was committed; or, if the message says that the outcome is
                unknown, the answer to the commit is missing: read the checkpoint.
            psycopg.errors.SerializationFailure: under REPEATABLE READ or SERIALIZABLE something
                that was read has changed; rolled back, and may be run again.
        """
        fence = TransactionFence(ownership=ownership, address=self._options.address)
        bounded, limit_s = self._options.clock.bounded, self._options.timeout_s
        async with self._async_pool.connection() as connection:
            try:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(connection.transaction())
                    await run_steps(connection, fence.began())
                    try:
                        yield connection
                    except psycopg.Rollback as error:
                        raise rolled_back_by_caller() from error
                    status = connection.info.transaction_status
                    await run_steps(connection, fence.concluded(status, position))
                    await bounded(run_steps(connection, fence.checked()), seconds=limit_s)
                    fence.stage = TransactionStage.COMMIT
                    async with _closed_if_given_up(connection):
                        await bounded(stack.aclose(), seconds=limit_s)
            except Exception as error:
                raised = error
                if fence.needs_recheck(error):
                    raised = fence.refusal(error, fenced=await self._recheck(connection, fence))
                raised = fence.meaning(raised, broken=connection.closed)
                if raised is error:
                    raise
                raise raised from (None if isinstance(error, FencedCheckpoint) else error)

    @contextmanager
    def begin_blocking(
        self, ownership: Ownership, position: Callable[[], Position]
    ) -> Iterator[BlockingConnection]:
        """Run a transaction on a connection that blocks; see ``begin``."""
        fence = TransactionFence(ownership=ownership, address=self._options.address)
        with self._blocking_pool.connection() as connection:
            try:
                with ExitStack() as stack:
                    stack.enter_context(connection.transaction())
                    run_steps_blocking(connection, fence.began())
                    try:
                        yield connection
                    except psycopg.Rollback as error:
                        raise rolled_back_by_caller() from error
                    status = connection.info.transaction_status
                    run_steps_blocking(connection, fence.concluded(status, position))
                    run_steps_blocking(connection, fence.checked())
                    fence.stage = TransactionStage.COMMIT
                    with _closed_if_given_up_blocking(connection):
                        stack.close()
            except Exception as error:
                raised = error
                if fence.needs_recheck(error):
                    raised = fence.refusal(error, fenced=_recheck_blocking(connection, fence))
                raised = fence.meaning(raised, broken=connection.closed)
                if raised is error:
                    raise
                raise raised from (None if isinstance(error, FencedCheckpoint) else error)

    async def close(self) -> None:
        """Close idle connections now, and the others when their block ends."""
        self._blocking_pool.close()
        await self._async_pool.close()

    async def _recheck(self, connection: AsyncConnection, fence: TransactionFence) -> bool | None:
        """Return whether the write is fenced, in a new transaction; None without an answer."""
        fenced = False
        steps, limit_s = fence.rechecked(), self._options.timeout_s
        try:
            async with connection.transaction() as own:
                fenced = await self._options.clock.bounded(
                    run_steps(connection, steps), seconds=limit_s
                )
                if not fenced:
                    raise psycopg.Rollback(own)
        except (psycopg.Error, TimeoutError):
            return None
        return fenced


@asynccontextmanager
async def _closed_if_given_up(connection: AsyncConnection) -> AsyncIterator[None]:
    """Close the connection if the wait for a commit ends early (timed out, cancelled).

    The driver may show it as idle, though the answer to the commit is still to come on it.
    """
    try:
        yield
    except psycopg.Error:  # an answer, or a connection that is broken anyway
        raise
    except BaseException:
        await connection.close()
        raise


@contextmanager
def _closed_if_given_up_blocking(connection: BlockingConnection) -> Iterator[None]:
    try:
        yield
    except psycopg.Error:
        raise
    except BaseException:
        connection.close()
        raise


def _recheck_blocking(connection: BlockingConnection, fence: TransactionFence) -> bool | None:
    fenced = False
    try:
        with connection.transaction() as own:
            fenced = run_steps_blocking(connection, fence.rechecked())
            if not fenced:
                raise psycopg.Rollback(own)
    except psycopg.Error:
        return None
    return fenced
