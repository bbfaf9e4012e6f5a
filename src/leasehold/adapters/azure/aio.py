"""``CheckpointStore`` for ``azure.eventhub.aio``: its consumer clients on any of our stores.

The guarantees are those of ``desk``. Needs ``pip install 'leasehold[azure]'``.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import anyio

from leasehold.adapters.azure.record_layout import Place
from leasehold.adapters.azure.store_core import Desk
from leasehold.clock import SystemClock, system_random
from leasehold.core.lease_timing import LEAST_LEASE_S, MOST_LEASE_S
from leasehold.errors import UsageError
from leasehold.names import check_name, seconds_of
from leasehold.stores import open_store

try:
    from azure.eventhub.aio import CheckpointStore as _Contract
except ImportError as error:
    raise UsageError(
        f"Azure's clients need the package {error.name!r}: pip install 'leasehold[azure]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from leasehold.adapters.azure.blob_records import BlobRecords
    from leasehold.clock import Clock
    from leasehold.ports import Store

__all__ = ["BlobRecords", "CheckpointStore"]


def __getattr__(name: str) -> Any:
    if name != "BlobRecords":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:  # who has no blobs needs no client for them
        return import_module("leasehold.adapters.azure.blob_records").BlobRecords
    except ImportError as error:
        raise UsageError(
            f"the blobs of Azure's clients need the package {error.name!r}: "
            "pip install azure-storage-blob"
        ) from error


class CheckpointStore(_Contract):
    """Give it to ``EventHubConsumerClient(..., checkpoint_store=...)``; close it after the client.

    For the event loop that uses it first, and any number of clients in it.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        lease: timedelta = timedelta(seconds=60),
        stream: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Connects to nothing yet.

        ``store``: its URL, or a store, which then is not closed. ``lease``: how long a client that
        has died keeps its partitions. It must be longer than the client's
        ``load_balancing_interval`` by a good half, since a client renews once in each. ``stream``:
        the name that the stream has to hosts of ours which are in the same group; without one the
        keys have the names of namespace and hub.

        Raises:
            InvalidDuration: the lease is shorter or longer than any store allows.
            InvalidName: the stream can not be in a key.
        """
        if stream:
            check_name(stream, what="stream")
        seconds_of(lease, what="lease", least_s=LEAST_LEASE_S, most_s=MOST_LEASE_S)
        self._store = store
        self._lease = lease
        self._stream = stream
        self._clock = clock or SystemClock()
        self._opened = AsyncExitStack()
        self._opening = anyio.Lock()
        self._desk: Desk | None = None
        self._closed = False

    async def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """All partitions that were ever claimed, with their owners; ours among them."""
        del kwargs
        place = self._place(fully_qualified_namespace, eventhub_name, consumer_group)
        return await (await self._at_desk()).list_ownership(place)

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: object
    ) -> Iterable[dict[str, Any]]:
        """Take, keep or give up partitions; return those for which it was done.

        Raises:
            StoreError: the store did not answer, or can not serve.
        """
        del kwargs
        return await (await self._at_desk()).claim_ownership(ownership_list)

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: object) -> None:
        """Write a checkpoint.

        Raises:
            FencedWrite: the partition is not owned here any more.
            UsageError: it has no sequence number.
        """
        del kwargs
        await (await self._at_desk()).update_checkpoint(checkpoint)

    async def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """All checkpoints of the group."""
        del kwargs
        place = self._place(fully_qualified_namespace, eventhub_name, consumer_group)
        return await (await self._at_desk()).list_checkpoints(place)

    async def close(self) -> None:
        """End the leases of this process, and close what was opened. Again is harmless."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._opening:
                desk, self._desk = self._desk, None
            try:
                if desk is not None:
                    await desk.close()
            finally:
                await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _at_desk(self) -> Desk:
        async with self._opening:
            if self._closed:
                # A client that sleeps its interval out must not get a lease that nobody ends.
                raise UsageError("this CheckpointStore was closed: make another one")
            if self._desk is None:
                store = self._store
                if isinstance(store, str):
                    opened = open_store(store, clock=self._clock)
                    store = await self._opened.enter_async_context(opened)
                self._desk = Desk(
                    store,
                    stream=self._stream,
                    lease=self._lease,
                    clock=self._clock,
                    rng=system_random(),
                )
            return self._desk

    def _place(self, namespace: str, hub: str, group: str) -> Place:
        return Place(namespace=namespace, hub=hub, group=group, stream=self._stream)
