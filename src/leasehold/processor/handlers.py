"""Calls the user's functions: async ones in the loop, the others in threads.

A function in a thread cannot be stopped. After its timeout, or when its partition is lost, it is no
longer awaited; ``context.lost`` and every call of its context report that to it.

``PullHandlers`` and ``PartitionClient`` are the pull style (P14): the caller asks for partitions
and receives from each. Asking for the next batch acknowledges the previous one. When a partition
ends, its iteration ends; ``close_reason`` is the reason.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import anyio

from leasehold.errors import HandlerTimeout, UsageError
from leasehold.model import Position
from leasehold.processor.events import CloseReason
from leasehold.runtime.worker_threads import WorkerThreads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from leasehold.clock import Clock
    from leasehold.events.event import Event, EventBatch
    from leasehold.processor.context import AsyncPartitionContext, At, PartitionContext
    from leasehold.runtime.worker_threads import Threads

    # An async handler gets the one context, a plain function the other. For mypy, an async
    # function is also a plain one that returns an object: so the async kind comes first.
    OnBatch = (
        Callable[[AsyncPartitionContext, EventBatch], Awaitable[object]]
        | Callable[[PartitionContext, EventBatch], object]
    )
    OnEvent = (
        Callable[[AsyncPartitionContext, Event], Awaitable[object]]
        | Callable[[PartitionContext, Event], object]
    )
    OnError = (
        Callable[[AsyncPartitionContext | None, BaseException], Awaitable[object]]
        | Callable[[PartitionContext | None, BaseException], object]
    )
    OnOpen = (
        Callable[[AsyncPartitionContext], Awaitable[object]] | Callable[[PartitionContext], object]
    )
    OnClose = (
        Callable[[AsyncPartitionContext, CloseReason], Awaitable[object]]
        | Callable[[PartitionContext, CloseReason], object]
    )


# The call of a handler that this code runs in: tasks and threads that it starts inherit it.
CALL: ContextVar[HandlerCall | None] = ContextVar("leasehold_call", default=None)

_SLICE_S = 0.25
_CALLED_WITH = {
    "on_batch": ("context", "batch"),
    "on_event": ("context", "event"),
    "on_error": ("context", "error"),
    "on_partition_open": ("context",),
    "on_partition_close": ("context", "reason"),
}


def check_handler(function: object, *, what: str, values: Sequence[str], how: str) -> None:
    """Refuse a handler that would fail at its first call, or do nothing at all.

    ``what`` names it to the user, ``values`` are what it is called with, ``how`` is the advice in
    the error.
    """
    if not callable(function):
        raise UsageError(f"{what} is {type(function).__name__}, and no function: {how}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{what} is a generator, which nobody would run: use no yield in it")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions in C have no signature
    try:
        signature.bind(*values)
    except TypeError as error:
        called = ", ".join(values)
        raise UsageError(f"{what}{signature} can not be called with ({called}): {how}") from error


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling it returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(call)
    )


def _check_result(function: Callable[..., Any], answer: object) -> None:
    """Refuse a result that shows that the work was not done."""
    if inspect.iscoroutine(answer):
        answer.close()
    if inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        raise UsageError(
            f"{function!r} has returned {type(answer).__name__!r}, which nobody runs, and nothing "
            "was done: make it async def, and await there what it calls"
        )


def wrap_base_exception(raised: BaseException) -> UsageError:
    """Return an error for an exception that a handler must not raise, such as SystemExit."""
    error = UsageError(
        f"the handler let {type(raised).__name__} out, which is not its to raise: catch it there, "
        "or raise an Exception"
    )
    error.__cause__ = raised
    return error


def is_cancelled() -> bool:
    """Return whether this task is cancelled, and not one that the handler awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Withdrawn(Exception):
    """The caller has not taken the batch, and the partition ends: it stays undone."""


@dataclass(slots=True)
class HandlerCall:
    """One handler call in progress. Written where the handler runs, read by the watchdog.

    ``done`` counts the handled events of the batch; ``began_s`` is when the current one began.
    ``running``: a thread is in the call. ``late``: it is over its timeout.
    """

    began_s: float
    done: int = 0
    stopping: bool = False
    running: bool = False
    late: bool = False
    event: Event | None = None


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """The user's functions of one processor.

    Exactly one of ``on_batch`` and ``on_event`` is set. ``on_drain`` is called in the loop when a
    partition is about to be given up.
    """

    on_batch: Callable[..., Any] | None = None
    on_event: Callable[..., Any] | None = None
    on_error: Callable[..., Any] | None = None
    on_partition_open: Callable[..., Any] | None = None
    on_partition_close: Callable[..., Any] | None = None
    on_drain: Callable[[AsyncPartitionContext], None] | None = None
    timeout_s: float | None = None
    threads: Threads = field(default_factory=WorkerThreads)

    def __post_init__(self) -> None:
        """Refuse what cannot be called."""
        for name, values in _CALLED_WITH.items():
            function = getattr(self, name)
            if function is not None:
                how = f"write `def {name}({', '.join(values)})`, with any name, or async def"
                check_handler(function, what=name, values=values, how=how)
        if self.on_batch is not None and self.on_event is not None:
            raise UsageError("give on_batch or on_event, not both: each event is handled once")

    @property
    def pulled(self) -> bool:
        """Whether a caller of ``partitions`` takes the batches, one at a time."""
        return self.on_drain is not None

    async def handle(
        self,
        call: HandlerCall,
        contexts: tuple[AsyncPartitionContext, PartitionContext],
        batch: EventBatch,
        clock: Clock,
        late: Callable[[], None],
    ) -> None:
        """Call the handler with the batch; ``call.done`` is the number of events it is done with.

        With ``on_event`` it ends early, between two events: when ``call.stopping`` is set, when the
        partition is lost, and from time to time, so that progress is noted. Raises what the handler
        raised, or ``HandlerTimeout`` for an async handler that was cancelled.

        A handler in a thread that takes too long continues; ``late`` is called once for it.
        """
        function = self.on_batch or self.on_event
        if function is None:  # __init__ of the processor refuses that
            raise UsageError("there is no handler")
        token = CALL.set(call)
        try:
            if not is_async(function):
                await self._in_thread(function, call, contexts[1], batch, clock, late)
            elif self.on_batch is not None:
                with suppress(Withdrawn):
                    await self._with_timeout(clock, function(contexts[0], batch))
                    call.done = len(batch)
            else:
                for event in self._due(call, contexts[0], batch, clock):
                    await self._with_timeout(clock, function(contexts[0], event))
                    call.done += 1
        finally:
            CALL.reset(token)

    def _due(
        self,
        call: HandlerCall,
        context: AsyncPartitionContext | PartitionContext,
        batch: EventBatch,
        clock: Clock,
    ) -> Iterator[Event]:
        """Yield the events of a batch until there is a reason to end early."""
        until_s = call.began_s + _SLICE_S
        for event in batch:
            now_s = clock.boottime_s()
            if call.stopping or context.lost or (call.done and now_s >= until_s):
                return
            call.event, call.began_s = event, now_s
            yield event

    async def invoke(
        self,
        function: Callable[..., Any] | None,
        contexts: tuple[object, object],
        *values: object,
    ) -> None:
        """Call another function: with the async context, or in a thread with the blocking one."""
        if function is None:
            return
        try:
            if is_async(function):
                await function(contexts[0], *values)
                return
            answer = await self.threads.run(lambda: self._call(function, contexts[1], *values))
        except asyncio.CancelledError as cancelled:
            if is_cancelled():
                raise
            raise wrap_base_exception(cancelled) from cancelled
        except (Exception, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as raised:
            raise wrap_base_exception(raised) from raised
        _check_result(function, answer)

    async def _with_timeout(self, clock: Clock, answer: Any) -> None:
        if self.timeout_s is None:
            await answer
            return
        expired = False
        try:
            await clock.bounded(_unless_late(answer), seconds=self.timeout_s)
        except TimeoutError as error:
            if isinstance(error.__cause__, _OwnTimeout):
                raise error.__cause__.error from None
            expired = True
        if expired:
            raise HandlerTimeout(
                f"the handler took longer than handler_timeout ({self.timeout_s:g} s) and was "
                "cancelled: make it faster, or allow it more time"
            )

    async def _in_thread(
        self,
        function: Callable[..., Any],
        call: HandlerCall,
        context: PartitionContext,
        batch: EventBatch,
        clock: Clock,
        late: Callable[[], None],
    ) -> None:
        async def run() -> None:
            call.running = True
            try:
                await work()
            finally:
                call.running = False

        async def work() -> None:
            if self.on_batch is not None:
                # Checked here, in the thread: waiting for a thread may have taken longer than the
                # lease, and the next owner may have begun.
                if context.lost:
                    return
                _check_result(function, await self._call(function, context, batch))
                call.done = len(batch)
                return
            for event in self._due(call, context, batch, clock):
                _check_result(function, await self._call(function, context, event))
                call.done += 1

        if self.timeout_s is None:
            await self.threads.run(run)
        else:
            await self._run_watched(run, call, clock, self.timeout_s, late)

    async def _call(self, function: Callable[..., Any], *values: object) -> Any:
        """Call the function in a thread, where only an Exception may escape."""
        try:
            return await self.threads.call(function, *values)
        except Exception:
            raise
        except BaseException as raised:
            raise wrap_base_exception(raised) from raised

    async def _run_watched(
        self,
        run: Callable[[], Coroutine[Any, Any, None]],
        call: HandlerCall,
        clock: Clock,
        timeout_s: float,
        late: Callable[[], None],
    ) -> None:
        """Run it in a thread; check the clock whenever the current event could be over time."""
        errors: list[BaseException] = []
        ended = anyio.Event()

        async def work() -> None:
            try:
                await self.threads.run(run)
            except Exception as error:  # noqa: BLE001
                errors.append(error)
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            while not ended.is_set():
                began_s = call.began_s
                left_s = began_s + timeout_s - clock.boottime_s()
                if left_s <= 0 and not call.late:
                    call.late = True
                    late()
                try:
                    await clock.bounded(ended.wait(), seconds=max(left_s, timeout_s / 4))
                except TimeoutError:
                    call.late = call.late and call.began_s == began_s
        if errors:
            raise errors[0]


class _OwnTimeout(Exception):
    """Carries a TimeoutError that the handler raised past the one of its timeout."""

    def __init__(self, error: TimeoutError) -> None:
        super().__init__()
        self.error = error


async def _unless_late(answer: Any) -> None:
    try:
        await answer
    except TimeoutError as error:
        raise TimeoutError from _OwnTimeout(error)


class PartitionClient:
    """An async iterator over the batches of one partition, while this host owns it."""

    def __init__(self, context: AsyncPartitionContext) -> None:
        """Called by ``EventProcessor.partitions``."""
        self.context = context
        self.partition = context.partition
        self.epoch = context.epoch
        self.close_reason: CloseReason | None = None
        self._batch: EventBatch | None = None
        self._given_out: EventBatch | None = None
        self._taken = False
        self._leaves = False
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        ended = f" ({self.close_reason.value})" if self.close_reason else ""
        return f"<PartitionClient {self.context.stream}/{self.partition} epoch {self.epoch}{ended}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventBatch:
        if self._taken:
            self._taken, self._batch = False, None
            self._notify()
        # A batch that was offered in time may be asked for too late: the end follows.
        while self._batch is None or self.context.lost:
            if self.close_reason is not None:
                raise StopAsyncIteration
            await self._changed.wait()
        self._taken, self._given_out = True, self._batch
        return self._batch

    async def checkpoint(self, at: At = None) -> None:
        """Checkpoint as ``AsyncPartitionContext.checkpoint``; by default, the last batch it gave.

        Also when the time for that batch is over: what is stored does not come again.
        """
        await self.context.checkpoint(self._at(at))

    def transaction(self, at: At = None) -> AbstractAsyncContextManager[Any]:
        """Open a ``AsyncPartitionContext.transaction``; by default, for the current batch."""
        return self.context.transaction(self._at(at))

    def _at(self, at: At) -> At:
        if at is None:  # a batch that only waits here was not given to anybody
            return self._given_out or Position(sequence_number=-1)
        return at

    async def offer(self, batch: EventBatch) -> None:
        """Return when the caller is done with the batch; raise ``Withdrawn`` if not taken."""
        self._batch, self._taken = batch, False
        self._notify()
        try:
            while self._batch is not None:
                if self._leaves and not self._taken:
                    raise Withdrawn
                await self._changed.wait()
        finally:
            if not self._taken:
                self._batch = None

    def leave(self) -> None:
        """Announce the end: a batch that the caller did not take stays undone."""
        self._leaves = True
        self._notify()

    def end(self, reason: CloseReason) -> None:
        """End the iteration."""
        self.close_reason = reason
        self._batch = None
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class PullHandlers:
    """The handlers that feed the clients of the pull style."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, int], PartitionClient] = {}
        self._new: deque[PartitionClient] = deque()
        self._ended = False
        self._changed = anyio.Event()

    async def opened(self, context: AsyncPartitionContext) -> None:
        """Create the client of a new partition."""
        client = PartitionClient(context)
        self._clients[context.partition, context.epoch] = client
        self._new.append(client)
        self._notify()

    async def handle(self, context: AsyncPartitionContext, batch: EventBatch) -> None:
        """Offer a batch to the partition's client."""
        await self._clients[context.partition, context.epoch].offer(batch)

    def drains(self, context: AsyncPartitionContext) -> None:
        """Announce to the client that its partition is about to be given up."""
        client = self._clients.get((context.partition, context.epoch))
        if client is not None:
            client.leave()

    async def closed(self, context: AsyncPartitionContext, reason: CloseReason) -> None:
        """End the client of a partition."""
        client = self._clients.pop((context.partition, context.epoch), None)
        if client is not None:
            client.end(reason)

    def end(self) -> None:
        """End all clients: the processor has ended."""
        self._ended = True
        for client in self._clients.values():
            client.end(CloseReason.SHUTDOWN)
        self._clients.clear()
        self._notify()

    async def clients(self) -> AsyncIterator[PartitionClient]:
        """Yield the clients of all partitions that come, until the end."""
        while not self._ended:
            while self._new:
                client = self._new.popleft()
                if client.close_reason is None:
                    yield client
            if not self._ended:
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
