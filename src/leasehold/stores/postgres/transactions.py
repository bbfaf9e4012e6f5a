"""Transactions in which a caller's own statements and its checkpoint are committed as one.

Exactly once, on PostgreSQL: what the block wrote and the position that says so are both there or
both not, and only if the ownership still stood. See ``guard`` for why nobody can come in between.

The connections are its own and are kept for the next block: at most ``max_connections`` that are
awaited, and as many that block.

Connections that are lent to callers: a bounded number, clean each time, never a broken one.

Those that are awaited and those that block differ only in what the driver forces; what is decided
about them is decided in ``ConnectionPool``.
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
# One that rested for longer is asked first if it still lives: the server may have been restarted.
_FRESH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """How many connections, to where, and how long to wait for what."""

    address: DatabaseAddress
    clock: Clock
    most: int
    patience_s: float
    room_s: float

    def conninfo(self) -> str:
        """For the driver alone. A server that vanishes without a word is noticed in time."""
        beat_s = str(max(1, int(self.patience_s / 3)))
        own = {
            "tcp_user_timeout": str(int(self.patience_s * 1000)),
            "keepalives_idle": beat_s,
            "keepalives_interval": beat_s,
            "keepalives_count": "2",
        }
        given = {key: str(value) for key, value in conninfo_to_dict(self.address.conninfo).items()}
        return make_conninfo(**own | given)


async def run_steps(connection: AsyncConnection, steps: Steps[T]) -> T:
    """Take the steps on a connection that is awaited, whatever its caller has set on it."""
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
    """The same on a connection that blocks."""
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
    """What is decided about connections, of whichever kind."""

    def __init__(self, terms: PoolOptions) -> None:
        """Connect to nothing yet."""
        self._terms = terms
        self._clock = terms.clock
        self._conninfo = terms.conninfo()
        self._idle: list[tuple[C, float]] = []
        self._closed = threading.Event()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise UsageError("these transactions were closed: open them anew")

    def _take(self) -> tuple[C, bool] | None:
        """An idle connection, and whether it may have died meanwhile."""
        try:
            connection, since_s = self._idle.pop()
        except IndexError:
            return None
        aged = self._clock.boottime_s() - since_s > _FRESH_S
        return connection, aged or _has_unread_data(connection)

    def _fit(self, connection: C) -> bool:
        """Whether it may be kept: it lives, no transaction is open, and we are not closing."""
        status = connection.info.transaction_status
        return status is TransactionStatus.IDLE and not self._closed.is_set()

    def _put(self, connection: C) -> None:
        self._idle.append((connection, self._clock.boottime_s()))

    def _pauses(self) -> Iterator[float]:
        """How long to pause after each attempt to connect, until the patience is over."""
        until_s, pause_s = self._clock.boottime_s() + self._terms.patience_s, _FIRST_PAUSE_S
        while self._clock.boottime_s() + pause_s < until_s:
            yield pause_s
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _pause_s(self, pauses: Iterator[float], error: psycopg.Error) -> float:
        """The next pause. Raises what to tell the caller if there is none."""
        if not is_transient(error):
            raise to_store_error(error, self._terms.address) from error
        pause_s = next(pauses, None)
        if pause_s is None or self._closed.is_set():
            raise StoreUnavailable(
                f"{to_store_error(error, self._terms.address)} (given up after "
                f"{self._terms.patience_s:g} s); no transaction was begun"
            ) from error
        return pause_s

    def _no_room(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"other blocks kept all {self._terms.most} connections to {self._terms.address.where} "
            f"busy for {self._terms.room_s:g} s: make the blocks shorter, or allow more "
            "connections; no transaction was begun"
        )


def _has_unread_data(connection: AsyncConnection | BlockingConnection) -> bool:
    """Whether the server has said something unasked: nearly always its last word."""
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))


class AsyncPool(ConnectionPool[AsyncConnection]):
    """For one event loop: the one in which it is used first."""

    def __init__(self, terms: PoolOptions) -> None:
        """Connect to nothing yet."""
        super().__init__(terms)
        self._room = anyio.Semaphore(terms.most)

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[AsyncConnection]:
        """A connection for this block alone. It is kept if it can be cleaned, else closed.

        Raises:
            UsageError: closed.
            StoreUnavailable: no connection can be had; or none is free.
            StoreUnusable: the server refuses us.
        """
        self._check_open()
        try:
            await self._clock.bounded(self._room.acquire(), seconds=self._terms.room_s)
        except TimeoutError as error:
            raise self._no_room() from error
        try:
            connection = await self._rested() or await self._connected()
            try:
                yield connection
            finally:
                await self._put_back(connection)
        finally:
            self._room.release()

    async def close(self) -> None:
        """Close what is idle now, and the rest when its block ends."""
        self._closed.set()
        await self._drop_idle()

    async def _rested(self) -> AsyncConnection | None:
        while (taken := self._take()) is not None:
            connection, doubtful = taken
            if not doubtful or await self._clean(connection):
                return connection
            await connection.close()
        return None

    async def _connected(self) -> AsyncConnection:
        pauses = self._pauses()
        while True:
            try:
                return await psycopg.AsyncConnection.connect(
                    self._conninfo, autocommit=True, prepare_threshold=_PREPARE_AFTER
                )
            except psycopg.Error as error:
                pause_s = self._pause_s(pauses, error)
            await self._clock.sleep(pause_s)

    async def _clean(self, connection: AsyncConnection) -> bool:
        try:
            steps = run_steps(connection, clean_session())
            await self._clock.bounded(steps, seconds=self._terms.patience_s)
        except (psycopg.Error, TimeoutError):
            return False
        except BaseException:
            await connection.close()
            raise
        return self._fit(connection)

    async def _put_back(self, connection: AsyncConnection) -> None:
        connection.row_factory, connection.cursor_factory = tuple_row, psycopg.AsyncCursor
        connection.prepare_threshold = _PREPARE_AFTER
        broken = connection.broken
        if self._fit(connection) and await self._clean(connection):
            self._put(connection)
        else:
            await connection.close()
        if broken or self._closed.is_set():
            # The others were made before the trouble and may be just as broken.
            await self._drop_idle()

    async def _drop_idle(self) -> None:
        while (taken := self._take()) is not None:
            await taken[0].close()


class BlockingPool(ConnectionPool[BlockingConnection]):
    """The same, for any number of threads."""

    def __init__(self, terms: PoolOptions) -> None:
        """Connect to nothing yet."""
        super().__init__(terms)
        self._room = threading.Semaphore(terms.most)

    @contextmanager
    def lent(self) -> Iterator[BlockingConnection]:
        """See ``AsyncPool``."""
        self._check_open()
        if not self._room.acquire(timeout=self._terms.room_s):
            raise self._no_room()
        try:
            connection = self._rested() or self._connected()
            try:
                yield connection
            finally:
                self._put_back(connection)
        finally:
            self._room.release()

    def close(self) -> None:
        """See ``AsyncPool``."""
        self._closed.set()
        self._drop_idle()

    def _rested(self) -> BlockingConnection | None:
        while (taken := self._take()) is not None:
            connection, doubtful = taken
            if not doubtful or self._clean(connection):
                return connection
            connection.close()
        return None

    def _connected(self) -> BlockingConnection:
        pauses = self._pauses()
        while True:
            try:
                return psycopg.Connection.connect(
                    self._conninfo, autocommit=True, prepare_threshold=_PREPARE_AFTER
                )
            except psycopg.Error as error:
                self._closed.wait(self._pause_s(pauses, error))

    def _clean(self, connection: BlockingConnection) -> bool:
        try:
            run_steps_blocking(connection, clean_session())
        except psycopg.Error:
            return False
        return self._fit(connection)

    def _put_back(self, connection: BlockingConnection) -> None:
        connection.row_factory, connection.cursor_factory = tuple_row, psycopg.Cursor
        connection.prepare_threshold = _PREPARE_AFTER
        broken = connection.broken
        if self._fit(connection) and self._clean(connection):
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
    """One for each processor; what is awaited belongs to the event loop that used it first."""

    def __init__(self, terms: PoolOptions) -> None:
        """Made by ``of``. Connects to nothing yet."""
        self._terms = terms
        self._awaited = AsyncPool(terms)
        self._blocking = BlockingPool(terms)

    @classmethod
    def of(
        cls,
        url: str,
        *,
        clock: Clock,
        max_connections: int = _MAX_CONNECTIONS,
        patience: timedelta = _TIMEOUT,
        room: timedelta = _POOL_TIMEOUT,
    ) -> Self:
        """For the database that holds the leases. Connects to nothing yet.

        ``patience`` is how long to try to connect, and to wait for the check and for the commit;
        ``room`` how long a block may wait until one of the connections is free.

        Raises:
            InvalidUrl: the URL can not be read.
            UsageError: less than one connection.
        """
        if max_connections < 1:
            raise UsageError(f"max_connections must be 1 or more, not {max_connections}")
        return cls(
            PoolOptions(
                address=DatabaseAddress.of(url),
                clock=clock,
                most=max_connections,
                patience_s=patience.total_seconds(),
                room_s=room.total_seconds(),
            )
        )

    @asynccontextmanager
    async def begin(
        self, ownership: Ownership, position: Callable[[], Position]
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed with the checkpoint when the block ends.

        ``position`` is asked at the end. An error in the block rolls back and goes through as it
        is. The ownership is judged by the server's clock at the check. If the lease ends between
        the check and the commit, nobody can have claimed the key: the lock that the check took
        makes every claim wait for the commit.

        Raises:
            FencedWrite: the ownership has ended; rolled back, and counted by the store.
            CheckpointBehind: the stored position is there already, or ahead: the events up to
                there are done. Rolled back.
            UsageError: the block ended its transaction by itself, or left it unusable.
            StoreUnavailable: nothing was committed; or, if the message says that the outcome is
                unknown, the answer to the commit is missing: read the checkpoint.
            psycopg.errors.SerializationFailure: under REPEATABLE READ or SERIALIZABLE something
                that was read has changed; rolled back, and may be run again.
        """
        guard = TransactionFence(ownership=ownership, address=self._terms.address)
        bounded, limit_s = self._terms.clock.bounded, self._terms.patience_s
        async with self._awaited.lent() as connection:
            try:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(connection.transaction())
                    await run_steps(connection, guard.began())
                    try:
                        yield connection
                    except psycopg.Rollback as error:
                        raise rolled_back_by_caller() from error
                    status = connection.info.transaction_status
                    await run_steps(connection, guard.concluded(status, position))
                    await bounded(run_steps(connection, guard.checked()), seconds=limit_s)
                    guard.stage = TransactionStage.COMMIT
                    async with _closed_if_given_up(connection):
                        await bounded(stack.aclose(), seconds=limit_s)
            except Exception as error:
                meant = error
                if guard.in_doubt(error):
                    meant = guard.refusal(error, fenced=await self._judged(connection, guard))
                meant = guard.meaning(meant, broken=connection.closed)
                if meant is error:
                    raise
                raise meant from (None if isinstance(error, FencedCheckpoint) else error)

    @contextmanager
    def begin_blocking(
        self, ownership: Ownership, position: Callable[[], Position]
    ) -> Iterator[BlockingConnection]:
        """The same for code that runs in a thread, on a connection that blocks."""
        guard = TransactionFence(ownership=ownership, address=self._terms.address)
        with self._blocking.lent() as connection:
            try:
                with ExitStack() as stack:
                    stack.enter_context(connection.transaction())
                    run_steps_blocking(connection, guard.began())
                    try:
                        yield connection
                    except psycopg.Rollback as error:
                        raise rolled_back_by_caller() from error
                    status = connection.info.transaction_status
                    run_steps_blocking(connection, guard.concluded(status, position))
                    run_steps_blocking(connection, guard.checked())
                    guard.stage = TransactionStage.COMMIT
                    with _closed_if_given_up_blocking(connection):
                        stack.close()
            except Exception as error:
                meant = error
                if guard.in_doubt(error):
                    meant = guard.refusal(error, fenced=_recheck_blocking(connection, guard))
                meant = guard.meaning(meant, broken=connection.closed)
                if meant is error:
                    raise
                raise meant from (None if isinstance(error, FencedCheckpoint) else error)

    async def close(self) -> None:
        """Close what is idle now, and the rest when its block ends."""
        self._blocking.close()
        await self._awaited.close()

    async def _judged(self, connection: AsyncConnection, guard: TransactionFence) -> bool | None:
        """Whether the write is fenced, in a transaction of its own; None if nobody answers."""
        fenced = False
        steps, limit_s = guard.judged(), self._terms.patience_s
        try:
            async with connection.transaction() as own:
                fenced = await self._terms.clock.bounded(
                    run_steps(connection, steps), seconds=limit_s
                )
                if not fenced:
                    raise psycopg.Rollback(own)
        except (psycopg.Error, TimeoutError):
            return None
        return fenced


@asynccontextmanager
async def _closed_if_given_up(connection: AsyncConnection) -> AsyncIterator[None]:
    """A commit that nobody waits for any more (time over, cancelled) takes its connection along.

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


def _recheck_blocking(connection: BlockingConnection, guard: TransactionFence) -> bool | None:
    fenced = False
    try:
        with connection.transaction() as own:
            fenced = run_steps_blocking(connection, guard.judged())
            if not fenced:
                raise psycopg.Rollback(own)
    except psycopg.Error:
        return None
    return fenced
