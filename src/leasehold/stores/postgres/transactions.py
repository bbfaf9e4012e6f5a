"""Transactions in which a caller's own statements and its checkpoint are committed as one.

Exactly once, on PostgreSQL: what the block wrote and the position that says so are both there or
both not, and only if the ownership still stood. See ``guard`` for why nobody can come in between.

The connections are its own and are kept for the next block: at most ``most_connections`` that are
awaited, and as many that block.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import psycopg

from leasehold.errors import UsageError
from leasehold.stores.postgres.address import Address
from leasehold.stores.postgres.lending import (
    AwaitedLender,
    BlockingLender,
    Terms,
    awaited,
    blocking,
)
from leasehold.stores.postgres.transaction_fence import Fenced, Guard, Stage, rolled_back_by_caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from leasehold.clock import Clock
    from leasehold.model import Ownership, Position
    from leasehold.stores.postgres.lending import Awaited, Blocking

_MOST_CONNECTIONS = 8
_PATIENCE = timedelta(seconds=5)
_ROOM = timedelta(seconds=60)


class Transactions:
    """One for each processor; what is awaited belongs to the event loop that used it first."""

    def __init__(self, terms: Terms) -> None:
        """Made by ``of``. Connects to nothing yet."""
        self._terms = terms
        self._awaited = AwaitedLender(terms)
        self._blocking = BlockingLender(terms)

    @classmethod
    def of(
        cls,
        url: str,
        *,
        clock: Clock,
        most_connections: int = _MOST_CONNECTIONS,
        patience: timedelta = _PATIENCE,
        room: timedelta = _ROOM,
    ) -> Self:
        """For the database that holds the leases. Connects to nothing yet.

        ``patience`` is how long to try to connect, and to wait for the check and for the commit;
        ``room`` how long a block may wait until one of the connections is free.

        Raises:
            UnknownStore: the URL can not be read.
            UsageError: less than one connection.
        """
        if most_connections < 1:
            raise UsageError(f"most_connections must be 1 or more, not {most_connections}")
        return cls(
            Terms(
                address=Address.of(url),
                clock=clock,
                most=most_connections,
                patience_s=patience.total_seconds(),
                room_s=room.total_seconds(),
            )
        )

    @asynccontextmanager
    async def begin(
        self, ownership: Ownership, position: Callable[[], Position]
    ) -> AsyncIterator[Awaited]:
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
        guard = Guard(ownership=ownership, address=self._terms.address)
        bounded, limit_s = self._terms.clock.bounded, self._terms.patience_s
        async with self._awaited.lent() as connection:
            try:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(connection.transaction())
                    await awaited(connection, guard.began())
                    try:
                        yield connection
                    except psycopg.Rollback as error:
                        raise rolled_back_by_caller() from error
                    status = connection.info.transaction_status
                    await awaited(connection, guard.concluded(status, position))
                    await bounded(awaited(connection, guard.checked()), seconds=limit_s)
                    guard.stage = Stage.COMMIT
                    async with _closed_if_given_up(connection):
                        await bounded(stack.aclose(), seconds=limit_s)
            except Exception as error:
                meant = error
                if guard.in_doubt(error):
                    meant = guard.refusal(error, fenced=await self._judged(connection, guard))
                meant = guard.meaning(meant, broken=connection.closed)
                if meant is error:
                    raise
                raise meant from (None if isinstance(error, Fenced) else error)

    @contextmanager
    def begin_blocking(
        self, ownership: Ownership, position: Callable[[], Position]
    ) -> Iterator[Blocking]:
        """The same for code that runs in a thread, on a connection that blocks."""
        guard = Guard(ownership=ownership, address=self._terms.address)
        with self._blocking.lent() as connection:
            try:
                with ExitStack() as stack:
                    stack.enter_context(connection.transaction())
                    blocking(connection, guard.began())
                    try:
                        yield connection
                    except psycopg.Rollback as error:
                        raise rolled_back_by_caller() from error
                    status = connection.info.transaction_status
                    blocking(connection, guard.concluded(status, position))
                    blocking(connection, guard.checked())
                    guard.stage = Stage.COMMIT
                    with _closed_if_given_up_blocking(connection):
                        stack.close()
            except Exception as error:
                meant = error
                if guard.in_doubt(error):
                    meant = guard.refusal(error, fenced=_judged_blocking(connection, guard))
                meant = guard.meaning(meant, broken=connection.closed)
                if meant is error:
                    raise
                raise meant from (None if isinstance(error, Fenced) else error)

    async def close(self) -> None:
        """Close what is idle now, and the rest when its block ends."""
        self._blocking.close()
        await self._awaited.close()

    async def _judged(self, connection: Awaited, guard: Guard) -> bool | None:
        """Whether the write is fenced, in a transaction of its own; None if nobody answers."""
        fenced = False
        steps, limit_s = guard.judged(), self._terms.patience_s
        try:
            async with connection.transaction() as own:
                fenced = await self._terms.clock.bounded(
                    awaited(connection, steps), seconds=limit_s
                )
                if not fenced:
                    raise psycopg.Rollback(own)
        except (psycopg.Error, TimeoutError):
            return None
        return fenced


@asynccontextmanager
async def _closed_if_given_up(connection: Awaited) -> AsyncIterator[None]:
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
def _closed_if_given_up_blocking(connection: Blocking) -> Iterator[None]:
    try:
        yield
    except psycopg.Error:
        raise
    except BaseException:
        connection.close()
        raise


def _judged_blocking(connection: Blocking, guard: Guard) -> bool | None:
    fenced = False
    try:
        with connection.transaction() as own:
            fenced = blocking(connection, guard.judged())
            if not fenced:
                raise psycopg.Rollback(own)
    except psycopg.Error:
        return None
    return fenced
