"""Delivers one batch to its handler, and decides what follows when the handler fails (B6).

A batch is retried with growing pauses. When ``on_batch`` has failed for the last time, the batch is
halved until the event that fails is found. Only that event is skipped or sent to the dead letters.
So a handler may see an event more than once after it has failed.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from leasehold.core.poison_policy import PoisonAction
from leasehold.errors import LeaseLost, StoreError, UsageError
from leasehold.events.dead_letters import DeadLetter
from leasehold.processor.events import HandlerFailed, Poisoned
from leasehold.processor.handlers import HandlerCall, is_cancelled, wrap_base_exception
from leasehold.runtime.tracebacks import reason_of, traceback_of

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from leasehold.clock import Clock
    from leasehold.events.event import EventBatch
    from leasehold.lease.handle import Handle
    from leasehold.processor.context import AsyncPartitionContext, PartitionContext
    from leasehold.processor.events import EventBus
    from leasehold.processor.handlers import Handlers
    from leasehold.processor.options import ProcessorOptions

log = logging.getLogger("leasehold.processor")


class PartitionStopped(Exception):
    """The poison policy stops the partition."""


@dataclass(slots=True)
class _BatchCursor:
    """The position in the batch, the size of the next call, and the failures so far."""

    start: int
    size: int
    failures: int = 0
    narrowed: bool = False
    advanced: int = 0


class Delivery:
    """Delivers the batches of one pump, one at a time."""

    def __init__(
        self,
        handlers: Handlers,
        handle: Handle,
        contexts: tuple[AsyncPartitionContext, PartitionContext],
        *,
        options: ProcessorOptions,
        event_bus: EventBus,
        clock: Clock,
        rng: random.Random,
        on_error: Callable[[BaseException], Awaitable[None]],
        on_failure: Callable[[BaseException], Awaitable[None]],
        settle: Callable[[], Awaitable[int]],
        on_late: Callable[[], None],
        advance: Callable[[EventBatch], None],
    ) -> None:
        """Take the callbacks of the pump.

        ``settle`` returns the number of the next event to handle, after asking the store if
        necessary. ``on_failure`` is called with what a handler raised, ``on_error`` with any other
        error. ``on_late`` is called when a handler in a thread exceeds its timeout and continues.
        ``advance`` gets the events that are done, in order, each once.
        """
        self._handlers = handlers
        self._handle = handle
        self._contexts = contexts
        self._options = options
        self._event_bus = event_bus
        self._clock = clock
        self._rng = rng
        self._on_error = on_error
        self._on_failure = on_failure
        self._settle = settle
        self._on_late = on_late
        self._advance = advance
        self.stopped = anyio.Event()
        self.call: HandlerCall | None = None
        self.last_call: HandlerCall | None = None
        self.current_batch: EventBatch | None = None
        self.pausing = False
        self.failing: tuple[int, int] | None = None  # the event, and how often the handler failed

    @property
    def last_delivered(self) -> int:
        """The number of the last event that the handler was given; -1 if there was none."""
        if self.current_batch is None or self.last_call is None:
            return -1
        event = self.last_call.event
        return self.current_batch.last_sequence if event is None else event.sequence_number

    def is_current(self, call: HandlerCall | None) -> bool:
        """Return whether this is the call in progress here."""
        return call is not None and call is self.call

    def stop(self) -> None:
        """Start no further call: ``deliver`` returns when the call in progress has ended."""
        self.stopped.set()
        if self.call is not None:
            self.call.stopping = True

    async def deliver(self, batch: EventBatch) -> None:
        """Deliver the batch until all of its events are done or ``stop`` was called."""
        cursor = _BatchCursor(start=0, size=len(batch))
        try:
            while cursor.start < len(batch) and not self.stopped.is_set():
                part = batch.slice(cursor.start, cursor.size)
                self._handle.check()
                error = await self._attempt(cursor, part)
                self._advance_to(cursor, batch)
                if error is not None:
                    await self._failed(cursor, batch, error)
                    await self._skip_stored(cursor, batch)  # who was late may have stored meanwhile
        finally:
            self._advance_to(cursor, batch)

    def _advance_to(self, cursor: _BatchCursor, batch: EventBatch) -> None:
        if cursor.start > cursor.advanced:
            self.failing = None
            self._advance(batch.slice(cursor.advanced, cursor.start - cursor.advanced))
            cursor.advanced = cursor.start

    async def _attempt(self, cursor: _BatchCursor, part: EventBatch) -> Exception | None:
        """Call the handler once; return the error that it raised, if it is the handler's own."""
        call = self.call = self.last_call = HandlerCall(began_s=self._clock.boottime_s())
        self.current_batch = part
        error: Exception | None = None
        try:
            await self._handlers.handle(call, self._contexts, part, self._clock, self._on_late)
        except LeaseLost as lost:
            self._handle.check()  # the handler learned that this partition is lost: it ends here
            if (lost.key, lost.epoch) == (self._handle.ownership.key, self._handle.ownership.epoch):
                raise  # the store knows it before the member does
            error = lost  # of another key: the handler's own error
        except Exception as raised:  # noqa: BLE001
            error = raised
        except asyncio.CancelledError as cancelled:
            if is_cancelled():
                raise
            error = wrap_base_exception(cancelled)
        except (KeyboardInterrupt, GeneratorExit):
            raise  # not the handler's: the program has to end
        except BaseException as raised:  # noqa: BLE001
            error = wrap_base_exception(raised)
        finally:
            self.call = None
            self._count(part.slice(0, call.done))
            cursor.start += call.done
        if call.done:
            cursor.failures = 0
        if error is None and cursor.narrowed:
            cursor.size *= 2
        return error

    async def _failed(self, cursor: _BatchCursor, batch: EventBatch, error: Exception) -> None:
        """Wait and retry, halve the batch, or give the event up."""
        sequence = batch.slice(cursor.start, 1).first_sequence
        cursor.failures += 1
        self.failing = (sequence, cursor.failures)
        policy = self._options.poison
        handle = self._handle
        self._event_bus.tell(
            HandlerFailed(
                holder=handle.ownership.holder,
                partition=handle.partition,
                epoch=handle.ownership.epoch,
                sequence_number=sequence,
                attempt=cursor.failures,
                error=error,
            )
        )
        await self._on_failure(error)
        if await self._skip_stored(cursor, batch):
            await self._pause(policy.pauses.pause_s(1, self._rng))
            return
        if isinstance(error, StoreError):
            cursor.failures -= 1  # the store is unavailable: not the event's fault
            await self._pause(policy.pauses.pause_s(cursor.failures + 1, self._rng))
            return
        bisecting = cursor.narrowed and cursor.size > 1  # halves are tried once, to find the event
        if not bisecting and not policy.exhausted(cursor.failures):
            await self._pause(policy.pauses.pause_s(cursor.failures, self._rng))
        elif cursor.size > 1 and self._handlers.on_batch is not None:
            cursor.size, cursor.narrowed, cursor.failures = cursor.size // 2, True, 0
        else:
            await self._give_up(cursor, batch, error)

    async def _skip_stored(self, cursor: _BatchCursor, batch: EventBatch) -> bool:
        """Go on after what the handler has stored as done: the next event has not failed."""
        stored = _events_before(batch, await self._settle())
        if stored <= cursor.start:
            return False
        cursor.start, cursor.failures = stored, 0
        return True

    async def _pause(self, seconds: float) -> None:
        self.pausing = True
        try:
            with suppress(TimeoutError):
                await self._clock.bounded(self.stopped.wait(), seconds=seconds)
        finally:
            self.pausing = False

    async def _give_up(self, cursor: _BatchCursor, batch: EventBatch, error: Exception) -> None:
        event = batch.slice(cursor.start, 1)
        then, handle = self._options.poison.then, self._handle
        poisoned = Poisoned(
            holder=handle.ownership.holder,
            partition=handle.partition,
            epoch=handle.ownership.epoch,
            sequence_number=event.first_sequence,
            action=then.value,
            error=error,
        )
        if then is PoisonAction.STOP:
            self._event_bus.tell(poisoned)
            raise PartitionStopped from error
        if then is PoisonAction.DEAD_LETTER:
            try:
                sent = await self._send_dead_letter(event, cursor, error)
            except PartitionStopped:
                self._event_bus.tell(replace(poisoned, action=PoisonAction.STOP.value))
                raise
            if not sent:
                return
            self._event_bus.add(events_dead_lettered=1)
        else:
            self._event_bus.add(events_skipped=1)
        self._event_bus.tell(poisoned)
        cursor.start += 1
        cursor.failures = 0

    async def _send_dead_letter(
        self, batch: EventBatch, cursor: _BatchCursor, error: Exception
    ) -> bool:
        """Send the event to the dead letters; return False if ``stop`` came first."""
        dead_letters, handle = self._options.dead_letters, self._handle
        if dead_letters is None:  # ProcessorOptions refuses that
            raise PartitionStopped from error
        letter = DeadLetter(
            event=next(batch.events()),
            stream=self._contexts[0].stream,
            group=self._contexts[0].group,
            partition=handle.partition,
            epoch=handle.ownership.epoch,
            attempts=cursor.failures,
            reason=reason_of(error),
            traceback=traceback_of(error),
            failed_at=self._clock.utc_now(),
        )
        failures = 0
        while not self.stopped.is_set():
            handle.check()
            try:
                await dead_letters.send([letter])
            except UsageError as failure:
                await self._on_error(failure)
                raise PartitionStopped from failure
            except Exception as failure:  # noqa: BLE001
                failures += 1
                await self._on_error(failure)
                await self._pause(self._options.poison.pauses.pause_s(failures, self._rng))
            else:
                return True
        return False

    def _count(self, done: EventBatch) -> None:
        if len(done):
            size = done.arrow.nbytes
            self._event_bus.add(events_handled=len(done), bytes_handled=size, batches_handled=1)


def _events_before(batch: EventBatch, sequence: int) -> int:
    """Return how many events of the batch come before this number."""
    numbers = batch.arrow.column(0).to_pylist()
    return bisect_left(numbers, sequence)
