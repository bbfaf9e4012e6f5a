"""The pull style: the caller asks for partitions, and receives from each as it likes (P14).

Asking for the next batch says that the one before is done. When a partition ends, its iteration
ends; ``close_reason`` says why.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Self

import anyio

from leasehold.processor.handlers import Withdrawn
from leasehold.processor.hooks import CloseReason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from leasehold.log.events import EventBatch
    from leasehold.processor.context import At, PartitionContext


class PartitionClient:
    """One partition, for as long as this host owns it: an async iterator over batches."""

    def __init__(self, context: PartitionContext) -> None:
        """Made by ``EventProcessor.partitions``."""
        self.context = context
        self.partition = context.partition
        self.epoch = context.epoch
        self.close_reason: CloseReason | None = None
        self._batch: EventBatch | None = None
        self._in_hand = False
        self._leaves = False
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        ended = f" ({self.close_reason.value})" if self.close_reason else ""
        return f"<PartitionClient {self.context.stream}/{self.partition} epoch {self.epoch}{ended}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventBatch:
        if self._in_hand:
            self._in_hand, self._batch = False, None
            self._tell()
        while self._batch is None:
            if self.close_reason is not None:
                raise StopAsyncIteration
            await self._changed.wait()
        self._in_hand = True
        return self._batch

    async def checkpoint(self, at: At = None) -> None:
        """See ``PartitionContext.checkpoint``. The default is the batch in hand."""
        await self.context.checkpoint(self._at(at))

    def transaction(self, at: At = None) -> AbstractAsyncContextManager[Any]:
        """See ``PartitionContext.transaction``. The default is the batch in hand."""
        return self.context.transaction(self._at(at))

    def _at(self, at: At) -> At:
        return self._batch if at is None and self._in_hand else at

    async def offer(self, batch: EventBatch) -> None:
        """Return when the caller is done with the batch.

        Raises:
            Withdrawn: the partition is to be given up, and the caller has not taken it.
        """
        self._batch, self._in_hand = batch, False
        self._tell()
        try:
            while self._batch is not None:
                if self._leaves and not self._in_hand:
                    raise Withdrawn
                await self._changed.wait()
        finally:
            if not self._in_hand:
                self._batch = None

    def leave(self) -> None:
        """The partition is to be given up: a batch that the caller did not take stays undone."""
        self._leaves = True
        self._tell()

    def end(self, reason: CloseReason) -> None:
        """There will be no more."""
        self.close_reason = reason
        self._batch = None
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Pull:
    """The handlers that feed the clients."""

    def __init__(self) -> None:
        """No partition yet."""
        self._clients: dict[tuple[str, int], PartitionClient] = {}
        self._new: deque[PartitionClient] = deque()
        self._ended = False
        self._changed = anyio.Event()

    async def opened(self, context: PartitionContext) -> None:
        """A partition came."""
        client = PartitionClient(context)
        self._clients[context.partition, context.epoch] = client
        self._new.append(client)
        self._tell()

    async def handle(self, context: PartitionContext, batch: EventBatch) -> None:
        """Events came."""
        await self._clients[context.partition, context.epoch].offer(batch)

    def drains(self, context: PartitionContext) -> None:
        """A partition is to be given up."""
        client = self._clients.get((context.partition, context.epoch))
        if client is not None:
            client.leave()

    async def closed(self, context: PartitionContext, reason: CloseReason) -> None:
        """A partition is gone."""
        client = self._clients.pop((context.partition, context.epoch), None)
        if client is not None:
            client.end(reason)

    def end(self) -> None:
        """The processor has ended."""
        self._ended = True
        for client in self._clients.values():
            client.end(CloseReason.SHUTDOWN)
        self._clients.clear()
        self._tell()

    async def clients(self) -> AsyncIterator[PartitionClient]:
        """The clients of all partitions that come, until the end."""
        while not self._ended:
            while self._new:
                client = self._new.popleft()
                if client.close_reason is None:
                    yield client
            if not self._ended:
                await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
