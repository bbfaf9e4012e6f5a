"""``EventProcessor``: processors of a group share the partitions of a stream.

A processor has two loops, which never wait for each other. The *lease thread* renews, claims, hands
over and writes checkpoints. The *work loop*, in which the processor was started, receives events
and calls the handlers. The package's docstring describes the design.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import anyio
import anyio.from_thread

from leasehold.clock import SystemClock, system_random
from leasehold.errors import UsageError
from leasehold.names import check_name, in_order, partition_group
from leasehold.ports import LeaseRange
from leasehold.processor.events import EventBus
from leasehold.processor.handlers import CALL, Handlers, PullHandlers
from leasehold.processor.lease_thread import LeaseThread
from leasehold.processor.options import ProcessorOptions
from leasehold.processor.pump_manager import PumpManager
from leasehold.runtime.loop_thread import LoopThread
from leasehold.runtime.stop_signals import StopAsked, StopRequests
from leasehold.stores import open_store, open_transactions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from concurrent.futures import Future
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.events.source import EventSource
    from leasehold.model import Ownership
    from leasehold.ports import Store
    from leasehold.processor.events import Hook, PartitionStatus, ProcessorCounts
    from leasehold.processor.handlers import (
        OnBatch,
        OnClose,
        OnError,
        OnEvent,
        OnOpen,
        PartitionClient,
    )
    from leasehold.processor.pump import Pump
    from leasehold.stores.postgres.transactions import Transactions

log = logging.getLogger("leasehold.processor")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EventProcessor:
    """One host of a group. It can be started once.

    Guarantees: each event of the stream is given to a handler of the group at least once, in the
    order of its partition, and before any checkpoint passes it. After an orderly end or hand-over
    no event comes again. A partition is handled here only while no other host treats it as owned;
    work that began here before that is fenced by its epoch.
    """

    def __init__(
        self,
        source: EventSource,
        store: str | Store,
        group: str,
        *,
        on_batch: OnBatch | None = None,
        on_event: OnEvent | None = None,
        on_error: OnError | None = None,
        on_partition_open: OnOpen | None = None,
        on_partition_close: OnClose | None = None,
        options: ProcessorOptions | None = None,
        hooks: Sequence[Hook] = (),
        name: str = "host",
        clock: Clock | None = None,
    ) -> None:
        """Create a processor that is not started. Without handlers: use ``partitions``.

        ``store``: its URL, or a store, which then is used in the lease thread and not closed.
        Handlers are called as ``on_batch(context, batch)``, ``on_event(context, event)``,
        ``on_error(context, error)`` (None if the error concerns no partition),
        ``on_partition_open(context)`` and ``on_partition_close(context, reason)``; async ones in
        the loop, others in threads.

        Raises:
            UsageError, InvalidName: with what is wrong.
        """
        _check(source, store, options, hooks)
        self.source = source
        self.group = check_name(group, what="group")
        self.name = check_name(name, what="processor name")
        self.options = options or ProcessorOptions()
        partition_group(source.name, group)
        self._store = store
        self._clock = clock or SystemClock()
        self._event_bus = EventBus(hooks)
        self._pull = PullHandlers() if on_batch is None and on_event is None else None
        if self._pull is not None and (on_partition_open or on_partition_close):
            raise UsageError("the pull style has no callbacks: partitions() tells all of it")
        pull = self._pull
        self._handlers = Handlers(
            on_batch=pull.handle if pull else on_batch,
            on_event=on_event,
            on_error=on_error,
            on_partition_open=pull.opened if pull else on_partition_open,
            on_partition_close=pull.closed if pull else on_partition_close,
            on_drain=pull.drains if pull else None,
            timeout_s=self.options.handler_timeout_s,
        )
        self._loop_link: LoopThread | None = None
        self._lease_thread: LeaseThread | None = None
        self._pump_manager: PumpManager | None = None
        self._transactions: Transactions | None = None
        self._lease_stack: AsyncExitStack | None = None
        self._lease_future: Future[None] | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._finish_task: asyncio.Task[None] | None = None
        self._start_done = asyncio.Event()
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        held = len(self.held())
        return f"<EventProcessor {self.name} of {self.source.name}/{self.group} holding {held}>"

    # ------------------------------------------------------------- queries

    @property
    def holder(self) -> str | None:
        """The id under which the group knows this host; None until it has joined."""
        return self._lease_thread.member.holder if self._lease_thread else None

    def held(self) -> list[Ownership]:
        """Return the ownerships that this host holds now."""
        return self._lease_thread.member.held() if self._lease_thread else []

    @property
    def abandoned(self) -> int:
        """How many handlers in threads continue although they are no longer awaited.

        A thread cannot be stopped. Every call of such a handler's context is refused; but the
        interpreter waits for the thread before it ends.
        """
        return self._pump_manager.abandoned_calls if self._pump_manager else 0

    def counts(self) -> ProcessorCounts:
        """Return the sums since the start."""
        return self._event_bus.counts()

    def status(self) -> list[PartitionStatus]:
        """Return the status of each partition that is worked on here."""
        found = (pump.status() for pump in self._pumps())
        return sorted(found, key=lambda each: in_order(each.partition))

    def _pumps(self) -> list[Pump]:
        return self._pump_manager.pumps if self._pump_manager else []

    # ------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Open the store, declare the partitions, and begin to share them.

        Raises:
            StoreUnavailable, StoreUnusable: the store cannot be opened.
            InvalidDuration: the store does not grant leases of this length.
            UnknownStream: there is no such stream.
            UsageError: it was started before.
        """
        if self._loop_link is not None:
            raise UsageError("a processor can be started once: make another one")
        loop_link = self._loop_link = LoopThread(self.name)
        try:
            self._lease_thread = await loop_link.on_lease(self._make_lease_thread)
            self._pump_manager = self._make_pump_manager(self._lease_thread, loop_link)
            self._lease_thread.pump_manager = self._pump_manager
            await self._pump_manager.discover()
        except BaseException:
            self._lease_thread = self._pump_manager = None  # so that stop() has nothing to wait for
            with anyio.CancelScope(shield=True):
                await self._close_resources()
            self._ended.set()
            self._start_done.set()
            raise
        self._pump_task = asyncio.create_task(self._pump_manager.run())
        self._pump_task.add_done_callback(lambda _: loop_link.to_lease(self._drain))
        self._lease_future = loop_link.start(self._lease_thread.run)
        self._lease_future.add_done_callback(lambda _: loop_link.to_work(self._lease_ended))
        self._start_done.set()

    async def stop(self) -> None:
        """Leave gracefully: drain, checkpoint, hand over, end the lease. Safe to call twice.

        Takes at most ``drain_timeout`` and a few calls to the store. If ``start`` is in progress,
        waits for it first.

        Raises:
            UsageError: it was called in a handler, which would wait for itself: use ``stop_soon``.
            Exception: what ended the processor before.
        """
        if self._loop_link is None:
            return
        if any(pump.delivery.is_current(CALL.get()) for pump in self._pumps()):
            raise UsageError("stop() in a handler would wait for the handler: call stop_soon()")
        await self._start_done.wait()
        self.stop_soon()
        await self.wait()

    def stop_soon(self) -> None:
        """Begin to leave gracefully, and return. From any thread, also in a handler."""
        if self._loop_link is not None and self._lease_thread is not None:
            if self._pump_manager is not None:
                self._pump_manager.stopping = True
            self._loop_link.to_lease(self._drain)

    async def wait(self) -> None:
        """Return when the processor has ended: stopped, or asked by an operator to leave.

        Raises:
            Exception: what ended it.
        """
        await self._ended.wait()
        if self._finish_task is not None:
            await asyncio.shield(self._finish_task)

    def run(self) -> None:
        """Start, work until SIGINT or SIGTERM, then leave gracefully. Blocks.

        A second signal ends the process immediately, without draining: the leases expire. A signal
        within a second of the first counts as the same request.

        Raises:
            Exception: what ended the processor.
        """
        asyncio.run(self._run())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):  # a graceful end is worth more than a quick one
            await self.stop()

    async def partitions(self) -> AsyncIterator[PartitionClient]:
        """Yield each partition that comes to this host, as a client to receive from.

        Ends when the processor is stopped.

        Raises:
            UsageError: there are handlers.
        """
        if self._pull is None:
            raise UsageError("there are handlers already: partitions() is for those without")
        async for client in self._pull.clients():
            yield client

    # --------------------------------------------------------------- parts

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        asked, requests = asyncio.Event(), StopRequests()

        def stop(number: int) -> None:
            if requests.heard(self._clock.boottime_s()) is StopAsked.AGAIN:
                log.warning("asked twice to stop: leaving without order")
                os._exit(128 + number)
            asked.set()

        for each in _SIGNALS:
            with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
                loop.add_signal_handler(each, stop, each)
        asking = asyncio.ensure_future(asked.wait())
        starting = asyncio.ensure_future(self.start())
        await asyncio.wait({asking, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # the source or the store is unavailable: nothing began
            starting.cancel()
            (ended,) = await asyncio.gather(starting, return_exceptions=True)
            if ended is not None:
                return
            # A source may still answer: then the start succeeded, and it leaves gracefully.
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await starting
            await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
            ending.cancel()
        await self.stop()

    async def _make_lease_thread(self) -> LeaseThread:
        """Create the lease thread's parts in its loop: a store's connections are bound to it."""
        self._lease_stack = AsyncExitStack()
        store = self._store
        if isinstance(store, str):
            store = await self._lease_stack.enter_async_context(
                open_store(store, clock=self._clock)
            )
        if isinstance(store, LeaseRange):  # before anything is declared
            store.check_lease(timedelta(seconds=self.options.timing.lease_s))
        loop_link = self._loop_link
        assert loop_link is not None  # noqa: S101
        return LeaseThread(
            store,
            stream=self.source.name,
            group=self.group,
            name=self.name,
            options=self.options,
            loop_link=loop_link,
            event_bus=self._event_bus,
            clock=self._clock,
            rng=system_random(),
        )

    def _make_pump_manager(self, lease_thread: LeaseThread, loop_link: LoopThread) -> PumpManager:
        transactions: Transactions | None = None
        if isinstance(self._store, str):
            with suppress(UsageError):  # context.transaction() reports it
                transactions = open_transactions(self._store, clock=self._clock)
        self._transactions = transactions
        return PumpManager(
            self.source,
            lease_thread,
            group=self.group,
            options=self.options,
            handlers=self._handlers,
            loop_link=loop_link,
            event_bus=self._event_bus,
            clock=self._clock,
            rng=system_random(),
            transactions=transactions,
        )

    def _drain(self) -> None:
        """Begin to leave; called in the lease thread."""
        if self._lease_thread is not None:
            self._lease_thread.member.drain()

    def _lease_ended(self) -> None:
        """Release all resources, whatever the reason was."""
        self._finish_task = asyncio.create_task(self._finish())
        self._finish_task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ended.set()

    async def _finish(self) -> None:
        """End the pumps after the lease has ended, then release all resources."""
        error = _outcome(self._lease_future)
        try:
            if self._pump_manager is not None and error is not None:
                with anyio.move_on_after(self.options.goodbye_s):
                    await self._pump_manager.on_error((None, None), error)
            if self._pump_task is not None:
                self._pump_task.cancel()
                (ended,) = await asyncio.gather(self._pump_task, return_exceptions=True)
                if isinstance(ended, BaseException) and not isinstance(
                    ended, asyncio.CancelledError
                ):
                    error = error or ended
        finally:
            if self._pull is not None:
                self._pull.end()
            await self._close_resources()
        if error is not None:
            raise error

    async def _close_resources(self) -> None:
        loop_link, stack = self._loop_link, self._lease_stack
        if self._transactions is not None:
            await self._transactions.close()
        if loop_link is not None:
            if stack is not None:
                await loop_link.on_lease(stack.aclose)
            await loop_link.close()


@contextmanager
def blocking(processor: EventProcessor) -> Iterator[EventProcessor]:
    """Run a processor in the background, for programs without an event loop.

    It is started at the beginning of the block, in its own thread, and stopped gracefully at its
    end.
    """
    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(processor.start)
        try:
            yield processor
        finally:
            portal.call(processor.stop)


def _check(source: object, store: object, options: object, hooks: object) -> None:
    """Refuse arguments that would fail much later."""
    if not all(hasattr(source, each) for each in ("name", "partitions", "receiver")):
        raise UsageError(
            f"the source must be an EventSource, not {source!r}: write "
            'LogSource(log, "orders"), or open_source("orders", store_url=…)'
        )
    if not isinstance(store, str) and not hasattr(store, "renew"):
        raise UsageError(
            f"the store must be a URL or a Store, not {store!r}: write sqlite:///leases.db or "
            "postgresql://user@host/database"
        )
    if options is not None and not isinstance(options, ProcessorOptions):
        raise UsageError(f"options must be Options, not {options!r}: write Options(…)")
    if not isinstance(hooks, Sequence) or not all(callable(each) for each in hooks):
        raise UsageError(f"hooks must be a list of functions, not {hooks!r}: write hooks=[hook]")


def _outcome(leases: Future[None] | None) -> BaseException | None:
    if leases is None:
        return None
    if leases.cancelled():
        return RuntimeError("the lease thread was cancelled")
    return leases.exception()
