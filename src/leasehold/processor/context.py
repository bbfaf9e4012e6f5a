"""What a handler is given beside its events: the ownership it works under, and checkpoints.

Async handlers get a ``AsyncPartitionContext``. Handlers in threads get a ``PartitionContext``,
whose calls block.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from contextlib import contextmanager as blocking_manager
from typing import TYPE_CHECKING, Any, Protocol

from leasehold.errors import UsageError
from leasehold.events.event import Event, EventBatch
from leasehold.model import Position

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from concurrent.futures import Future

    from leasehold.lease.handle import Handle
    from leasehold.model import Ownership

At = Event | EventBatch | Position | int | None


class Transacting(Protocol):
    """A store whose database commits the handler's own statements with the checkpoint."""

    def begin(
        self, ownership: Ownership, position: Callable[[], Position]
    ) -> AbstractAsyncContextManager[Any]:
        """Begin a transaction that ends with the checkpoint."""
        ...

    def begin_blocking(
        self, ownership: Ownership, position: Callable[[], Position]
    ) -> AbstractContextManager[Any]:
        """Begin a transaction that ends with the checkpoint, in a thread."""
        ...


class PumpCalls(Protocol):
    """What a context needs of its pump."""

    handle: Handle

    @property
    def transactions(self) -> Transacting | None:
        """The store's shared transactions, if it has them."""
        ...

    @property
    def delivered(self) -> Position:
        """The last event that the handler was given so far."""
        ...

    def of_stream(self, position: Position) -> Position:
        """Return the position as it is stored: with the identity of the stream."""
        ...

    def write(self, position: Position) -> Future[None]:
        """Have the position stored; the future is done when it is. From any thread."""
        ...

    @property
    def caller_position(self) -> Position:
        """The last event that the caller was given: of its own call, else of ended calls."""
        ...

    def commit_unknown(self) -> None:
        """Ask the store before the next delivery: a commit may have happened."""
        ...

    def commit_known(self, position: Position) -> None:
        """Note that a transaction stored the position."""
        ...

    def refused(self, position: Position) -> None:
        """Report and count a position that came after the loss and was not sent."""
        ...


class _Context:
    """The parts that both contexts share."""

    def __init__(self, desk: PumpCalls, *, stream: str, group: str) -> None:
        """Called by the pump, once for each ownership."""
        self._pump_calls = desk
        self.stream = stream
        self.group = group
        ownership = desk.handle.ownership
        self.partition = desk.handle.partition
        self.holder = ownership.holder
        self.epoch = ownership.epoch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.stream}/{self.partition} epoch {self.epoch}>"

    @property
    def position(self) -> Position:
        """The last event that this handler was given; -1: none."""
        return self._pump_calls.caller_position

    @property
    def lost(self) -> bool:
        """Whether the partition is no longer owned here: further work on it is wasted."""
        return not self._pump_calls.handle.valid

    @property
    def remaining_s(self) -> float:
        """How long the ownership is certain to last, in seconds. It is usually extended before."""
        return self._pump_calls.handle.remaining_s()

    def check(self) -> None:
        """Return if the partition is still owned here: call it before an effect elsewhere.

        Raises:
            LeaseLost: it is not.
        """
        self._pump_calls.handle.check()

    def _begin_checkpoint(self, at: At) -> Future[None]:
        """Have the position stored; after a loss it is refused, so it is not checked."""
        # Read before `lost`: a pump that ended forgets it.
        caller_position = self._pump_calls.caller_position
        position = _position_at(at, caller_position) if self.lost else self._position(at)
        return self._pump_calls.write(position)

    def _position(self, at: At) -> Position:
        delivered = self._pump_calls.delivered
        position = _position_at(at, self._pump_calls.caller_position)
        if position.sequence_number < 0:
            raise UsageError("there is nothing to checkpoint: no event was received yet")
        if position > delivered:
            raise UsageError(
                f"event {position.sequence_number} of partition {self.partition} was not "
                f"delivered yet, the last one was {delivered.sequence_number}: a checkpoint never "
                "passes an event that nobody has seen"
            )
        return position

    def _transaction_position(self, at: At) -> Position:
        """Return the position that a transaction stores, fixed at its beginning."""
        self.check()
        position = self._position(at)
        self._pump_calls.commit_unknown()
        return position

    def _check_still_owned(self, position: Position) -> Position:
        """Return the position to store, if it may still be written at the end of a transaction."""
        if self.lost:
            self._pump_calls.refused(position)
        self.check()
        return self._pump_calls.of_stream(position)

    def _transactions(self) -> Transacting:
        transactions = self._pump_calls.transactions
        if transactions is None:
            raise UsageError(
                "this store has no transactions to share: context.transaction() needs a "
                "PostgreSQL store, given by its URL"
            )
        return transactions


class AsyncPartitionContext(_Context):
    """The context of async handlers."""

    async def checkpoint(self, at: At = None) -> None:
        """Store that all events up to ``at`` are done, by default all that this handler was given.

        Outside a handler, in your own task, the default is what handlers are done with.

        Raises:
            LeaseLost: the partition is owned by another host; nothing was written.
            CheckpointBehind: the stored one is further ahead.
            UsageError: ``at`` is beyond what was delivered.
        """
        await asyncio.wrap_future(self._begin_checkpoint(at))

    @asynccontextmanager
    async def transaction(self, at: At = None) -> AsyncIterator[Any]:
        """Open a connection whose transaction commits together with the checkpoint, or not at all.

        ``at``: as in ``checkpoint``. The connection is a ``psycopg.AsyncConnection``.

        Raises:
            FencedWrite: the partition is owned by another host; nothing was committed.
            CheckpointBehind: the events were committed before; nothing was committed again.
            StoreUnavailable: nothing was committed; or the answer to the commit was lost. The
                events come again only if it was not committed.
            UsageError: the store is not PostgreSQL.
        """
        pump_calls, position = self._pump_calls, self._transaction_position(at)
        async with self._transactions().begin(
            pump_calls.handle.ownership, lambda: self._check_still_owned(position)
        ) as connection:
            yield connection
        pump_calls.commit_known(position)


class PartitionContext(_Context):
    """The context of handlers that run in a thread."""

    def checkpoint(self, at: At = None) -> None:
        """Checkpoint as ``AsyncPartitionContext.checkpoint`` does; return when it is stored."""
        self._begin_checkpoint(at).result()

    @blocking_manager
    def transaction(self, at: At = None) -> Iterator[Any]:
        """Open a transaction as ``AsyncPartitionContext`` does, with a ``psycopg.Connection``."""
        pump_calls, position = self._pump_calls, self._transaction_position(at)
        with self._transactions().begin_blocking(
            pump_calls.handle.ownership, lambda: self._check_still_owned(position)
        ) as connection:
            yield connection
        pump_calls.commit_known(position)


def _position_at(at: At, delivered: Position) -> Position:
    match at:
        case None:
            return delivered
        case Position():
            return at
        case Event():
            return position_of(at)
        case EventBatch():
            return last_position(at)
        case _:
            return Position(sequence_number=at)


def last_position(batch: EventBatch) -> Position:
    """Return the position of the last event of a batch."""
    offset = batch.arrow.column(1)[len(batch) - 1].as_py()
    return Position(sequence_number=batch.last_sequence, offset=_offset_text(offset))


def position_of(event: Event) -> Position:
    """Return the position of an event."""
    return Position(sequence_number=event.sequence_number, offset=_offset_text(event.offset))


def _offset_text(offset: int) -> str:
    # Offsets that are not numbers are -1, which Azure's clients read as the beginning.
    return str(offset) if offset >= 0 else ""
