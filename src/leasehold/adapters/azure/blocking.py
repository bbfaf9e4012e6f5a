"""``CheckpointStore`` for ``azure.eventhub``: its blocking consumer clients on any of our stores.

The guarantees are those of ``desk``. The store lives in a thread of its own. Needs
``pip install 'leasehold[azure]'``.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from azure.eventhub import CheckpointStore as _Contract

from leasehold.adapters.azure import aio
from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.ports import Store

T = TypeVar("T")


class CheckpointStore(_Contract):
    """Give it to ``EventHubConsumerClient(..., checkpoint_store=...)``; close it after the client.

    For any number of clients and threads. A process that was forked after its first use is told to
    make its own.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        lease: timedelta = timedelta(seconds=60),
        stream: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Connects to nothing yet. The arguments are those of ``aio.CheckpointStore``.

        Raises:
            InvalidDuration: the lease is shorter or longer than any store allows.
            InvalidName: the stream can not be in a key.
        """
        self._inner = aio.CheckpointStore(store, lease=lease, stream=stream, clock=clock)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def list_ownership(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """All partitions that were ever claimed, with their owners; ours among them."""
        del kwargs
        return self._call(
            self._inner.list_ownership(fully_qualified_namespace, eventhub_name, consumer_group)
        )

    def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: object
    ) -> Iterable[dict[str, Any]]:
        """Take, keep or give up partitions; return those for which it was done.

        Raises:
            StoreError: the store did not answer, or can not serve.
        """
        del kwargs
        return self._call(self._inner.claim_ownership(list(ownership_list)))

    def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: object) -> None:
        """Write a checkpoint.

        Raises:
            FencedWrite: the partition is not owned here any more.
            UsageError: it has no sequence number.
        """
        del kwargs
        self._call(self._inner.update_checkpoint(checkpoint))

    def list_checkpoints(
        self,
        fully_qualified_namespace: str,
        eventhub_name: str,
        consumer_group: str,
        **kwargs: object,
    ) -> Iterable[dict[str, Any]]:
        """All checkpoints of the group."""
        del kwargs
        return self._call(
            self._inner.list_checkpoints(fully_qualified_namespace, eventhub_name, consumer_group)
        )

    def close(self) -> None:
        """End the leases of this process, and close what was opened. Again is harmless."""
        with self._starting:
            self._closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or self._process != os.getpid():
            return  # the thread and the leases are those of the process that was forked
        try:
            asyncio.run_coroutine_threadsafe(self._inner.close(), loop).result()
        finally:
            with suppress(RuntimeError):  # the loop has ended with its thread
                loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._running()
        except UsageError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._closed:
                raise UsageError("this CheckpointStore was closed: make another one")
            if self._loop is not None and self._process != os.getpid():
                raise UsageError(
                    "this CheckpointStore was used before the process was forked, and its thread "
                    "is not here: make another one"
                )
            if self._loop is None:
                self._process = os.getpid()
                self._loop = asyncio.new_event_loop()
                # A daemon: a program that forgot to close it must still be able to end.
                self._thread = threading.Thread(
                    target=_live, args=(self._loop,), name="leasehold-azure", daemon=True
                )
                self._thread.start()
            return self._loop


def _live(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
