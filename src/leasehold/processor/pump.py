"""One partition, from opening to end: receiver, prefetch buffer, handler, checkpoints.

::

    receiver (at the lease's epoch) ──> prefetch buffer ──> handler ──> position ──> checkpoint
         └── failure: opened again after the last event that was handled, with growing pauses

A graceful end: nothing more is received, the call in progress ends, ``on_partition_close`` is
called, the position is stored, and only then is the partition given up. A forced end cancels what
can be cancelled, and calls ``on_partition_close`` afterwards.

Guarantees: an event is handled before any checkpoint passes it; the handler gets the events in
order, one call at a time; after a failure of the source no event comes twice. The handled position
never decreases. After a transaction whose outcome is unknown, the store is asked before anything is
delivered again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from leasehold.core.backoff import Backoff
from leasehold.core.load_meter import LoadMeter
from leasehold.core.resume_position import check_same_stream
from leasehold.errors import (
    BeyondEnd,
    CheckpointBehind,
    LeaseholdError,
    LeaseLost,
    PositionLost,
    ReaderDisplaced,
    Trimmed,
)
from leasehold.events.event import joined
from leasehold.events.source import identity_of
from leasehold.events.start import Start, StartKind
from leasehold.model import Position
from leasehold.processor.checkpoint_writer import WrittenListener
from leasehold.processor.context import (
    AsyncPartitionContext,
    PartitionContext,
    last_position,
    position_of,
)
from leasehold.processor.delivery import Delivery, PartitionStopped
from leasehold.processor.events import (
    CloseReason,
    HandlerAbandoned,
    PartitionClosed,
    PartitionDraining,
    PartitionOpened,
    PartitionState,
    PartitionStatus,
    PositionMoved,
    PossibleRepeats,
    PumpRestarted,
    ReceiverDisplaced,
    StallWatch,
)
from leasehold.processor.handlers import CALL
from leasehold.processor.options import OnTrimmed

if TYPE_CHECKING:
    from leasehold.events.event import EventBatch
    from leasehold.events.source import EventSource, Receiver
    from leasehold.lease.handle import Handle
    from leasehold.processor.context import Transacting
    from leasehold.processor.events import HookEvent
    from leasehold.processor.pump_manager import PumpManager

_MAX_COPIED_BYTES = 256 << 10


class PrefetchBuffer:
    """A bounded queue between one receiver and one handler, in one event loop.

    It accepts a batch whenever it is below its limits, so it holds at most its limits and one batch
    more. Small batches that wait are handed out together, up to ``batch_events``.
    """

    def __init__(self, *, max_events: int, max_bytes: int, batch_events: int = 1) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._batch_events = batch_events
        self._batches: deque[tuple[EventBatch, int]] = deque()
        self._events = 0
        self._bytes = 0
        self._closed = False
        self._changed = anyio.Event()

    def __len__(self) -> int:
        """Return how many events wait."""
        return self._events

    async def room(self) -> None:
        """Return when there is room for another batch."""
        while self._events >= self._max_events or self._bytes >= self._max_bytes:
            await self._changed.wait()

    def put(self, batch: EventBatch) -> None:
        """Add a batch."""
        size = batch.arrow.nbytes
        self._batches.append((batch, size))
        self._events += len(batch)
        self._bytes += size
        self._notify()

    async def get(self) -> EventBatch | None:
        """Return the next batch; None once it is closed."""
        while not self._closed:
            if self._batches:
                batch = self._take_joined()
                self._notify()
                return batch
            await self._changed.wait()
        return None

    def close(self) -> None:
        """Hand out nothing more, and drop what waits."""
        self._closed = True
        self._batches.clear()
        self._events = self._bytes = 0
        self._notify()

    def _take_joined(self) -> EventBatch:
        """Take the first batch, joined with those that follow if all of them are small.

        A slow stream is stored in frames of one or two events. When many of them wait, one call for
        each costs more than copying them.
        """
        taken: list[EventBatch] = []
        events = total_bytes = 0
        while self._batches:
            batch, size = self._batches[0]
            fits = (
                events + len(batch) <= self._batch_events
                and total_bytes + size <= _MAX_COPIED_BYTES
            )
            if taken and not fits:
                break
            self._batches.popleft()
            self._events -= len(batch)
            self._bytes -= size
            events, total_bytes = events + len(batch), total_bytes + size
            taken.append(batch)
        return taken[0] if len(taken) == 1 else joined(taken)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


log = logging.getLogger("leasehold.processor")

_START_AFTER_TRIM = {OnTrimmed.EARLIEST: Start.earliest(), OnTrimmed.LATEST: Start.latest()}


async def open_receiver(
    source: EventSource, handle: Handle, *, group: str, start: Start, on_trimmed: OnTrimmed
) -> Receiver:
    """Open a receiver at ``start``, or further ahead if that was removed and the options allow it.

    Raises ``PositionLost`` only if the position does not exist and no option says where to resume:
    its advice is to move a checkpoint. Raises ``ReaderDisplaced`` if the group has a receiver with
    a higher epoch.
    """
    partition, epoch, name = handle.partition, handle.ownership.epoch, handle.ownership.holder
    try:
        return await source.receiver(partition, group=group, epoch=epoch, start=start, name=name)
    except Trimmed as trimmed:
        if on_trimmed is OnTrimmed.FAIL:
            raise PositionLost(
                f"the next event of partition {partition} ({start}) was removed by retention: the "
                f"first that is kept is {trimmed.earliest}. Move the checkpoint with `leasehold "
                "checkpoints reset`, or set on_trimmed to earliest or latest"
            ) from trimmed
    except BeyondEnd as error:
        raise PositionLost(
            f"partition {partition} can not be read from {start}: {error}. Was the stream made "
            "anew, or does another source of this name use the group? Move the checkpoint with "
            "`leasehold checkpoints reset`"
        ) from error
    start = _START_AFTER_TRIM[on_trimmed]
    receiver = await source.receiver(partition, group=group, epoch=epoch, start=start, name=name)
    log.warning(
        "partition %s: events up to %d were removed by retention before they were handled",
        partition,
        receiver.position - 1,
    )
    return receiver


class PumpProgress:
    """The position of a pump: delivered, done, and stored. Contexts of handlers use it.

    ``write``, ``stored``, ``commit_unknown`` and ``commit_known`` are safe from any thread.
    """

    def __init__(self, handle: Handle, manager: PumpManager) -> None:
        self.handle = handle
        self._manager = manager
        self._clock = manager.clock
        self._options = manager.options
        contexts = (
            AsyncPartitionContext(self, stream=manager.stream, group=manager.group),
            PartitionContext(self, stream=manager.stream, group=manager.group),
        )
        self.contexts = contexts
        self.delivery = Delivery(
            manager.handlers,
            handle,
            contexts,
            options=manager.options,
            event_bus=manager.event_bus,
            clock=manager.clock,
            rng=manager.rng,
            on_error=lambda error: manager.on_error(contexts, error),
            on_failure=lambda error: manager.on_error(contexts, error, by_user=True),
            settle=self._next_after_stored,
            on_late=lambda: manager.late(handle.ownership),
            advance=self._advance,
        )
        now_s = manager.clock.boottime_s()
        self.meter = LoadMeter(now_s)
        self.progress_at_s = now_s
        self.stall_watch = StallWatch()
        self.next: int | None = None
        self.stored_position: Position | None = None
        self._checkpoint_epoch = 0
        self._done = Position(sequence_number=-1)
        self._identity = ""  # of the stream that these positions are of
        self._events_since_put = 0
        self._unknown_commits = 0
        self._first_sequence = 0
        self._close_reason: CloseReason | None = None

    @property
    def transactions(self) -> Transacting | None:
        """The store's shared transactions, if it has them."""
        return self._manager.transactions

    @property
    def delivered(self) -> Position:
        """The last event that the handler was given so far, also in a call that has failed."""
        call, batch = self.delivery.last_call, self.delivery.current_batch
        if call is None or batch is None:
            return self._done
        if self._manager.handlers.on_event is None:
            return max(self._done, last_position(batch))
        return self._done if call.event is None else max(self._done, position_of(call.event))

    @property
    def caller_position(self) -> Position:
        """The last event that the caller was given."""
        call, batch = self.delivery.call, self.delivery.current_batch
        if self._manager.handlers.pulled or (call is not None and CALL.get() is call):
            return self.delivered
        if call is None or batch is None or not call.done:
            return self._done
        return last_position(batch.slice(0, call.done))

    def of_stream(self, position: Position) -> Position:
        """Return the position as it is stored: with the identity of the stream."""
        return replace(position, stream=self._identity)

    def write(self, position: Position) -> Future[None]:
        """Have the position stored; the future is done when it is."""
        position = self.of_stream(position)
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel it

        def on_done(error: LeaseholdError | None) -> None:
            if error is None:
                self.stored(position)
                written.set_result(None)
            else:
                written.set_exception(error)

        if not self.handle.valid:
            self.refused(position)
            written.set_exception(self.handle.lost())
        else:
            self._manager.write_checkpoint(self.handle.ownership, position, 0.0, on_done)
        return written

    def stored(self, position: Position) -> None:
        """Note a stored position. Unknown commits stay unknown: this may be an earlier one."""
        if self.stored_position is None or self.stored_position < position:
            self.stored_position = position

    def refused(self, position: Position) -> None:
        """Report a position that came after the loss and was not sent."""
        self._manager.refused(self.handle, position)

    def commit_unknown(self) -> None:
        """Ask the store before the next delivery: a commit may have happened."""
        self._unknown_commits += 1

    def commit_known(self, position: Position) -> None:
        """Note that a transaction stored the position."""
        self._unknown_commits = max(0, self._unknown_commits - 1)
        self.stored(position)

    def _advance(self, done: EventBatch) -> None:
        """Note that these events are done."""
        now_s = self._clock.boottime_s()
        self._done = last_position(done)
        self.next = self._done.sequence_number + 1
        self.progress_at_s = now_s
        watch = self.stall_watch
        self.stall_watch = StallWatch(lag_events=watch.lag_events, end_next=watch.end_next)
        self._manager.measure_load(self.meter, done, now_s)
        self._events_since_put += len(done)
        if self.stored_position is not None and self._done <= self.stored_position:
            self._events_since_put = 0
            return
        within_s = self._options.checkpoint.within_s(self._events_since_put)
        if within_s == math.inf or not self.handle.valid:
            return
        if within_s == 0.0:
            self._events_since_put = 0
        written = WrittenListener(self.stored)
        position = self.of_stream(self._done)
        self._manager.write_checkpoint(self.handle.ownership, position, within_s, written)

    async def _next_after_stored(self) -> int:
        """Return the event after the last stored one; ask the store if a commit is unknown."""
        if self._unknown_commits:
            checkpoint = await self._manager.checkpoint_loader.checkpoint(self.handle.ownership.key)
            if checkpoint is not None:
                self.stored(checkpoint.position)
            self._unknown_commits = 0
        stored = self.stored_position
        return -1 if stored is None else stored.sequence_number + 1

    async def _store_last_position(self) -> bool:
        """Store the last position; return False if the partition was lost before that."""
        stored = self.stored_position
        if not self._options.checkpoint.automatic or (stored is not None and self._done <= stored):
            return True
        if self._done.sequence_number < 0:
            return True
        try:
            await asyncio.wrap_future(self.write(self._done))
        except CheckpointBehind:
            return True  # a later one of the handler was stored after all
        except LeaseholdError as error:
            log.warning("the last checkpoint was not written: %s", error)
            if self._close_reason is None:
                self._close_reason = CloseReason.LOST
            return False
        return True

    def _report_repeats(self) -> None:
        """Report the events that began here and are behind the checkpoint: they come again (C5)."""
        stored, last_delivered = self.stored_position, self.delivery.last_delivered
        first = self._first_sequence if stored is None else stored.sequence_number + 1
        if last_delivered >= first:
            self._publish(PossibleRepeats, events=last_delivered - first + 1)

    def _publish(self, kind: type[HookEvent], **values: object) -> None:
        ownership = self.handle.ownership
        self._manager.event_bus.tell(
            kind(
                holder=ownership.holder,
                partition=self.handle.partition,
                epoch=ownership.epoch,
                **values,
            )
        )


_RETRY_BACKOFF = Backoff(base_s=0.1, max_s=15.0)


class Pump(PumpProgress):
    """The pump of one ownership: ``run`` is its one task; all calls come from the same loop."""

    def __init__(self, handle: Handle, manager: PumpManager) -> None:
        super().__init__(handle, manager)
        self._goodbye_s = manager.options.goodbye_s
        self._start = manager.options.start_of(handle.partition)
        self._state = PartitionState.OPENING
        self._draining = False
        self._scope = anyio.CancelScope()
        self._session = anyio.CancelScope()
        self._opening: anyio.CancelScope | None = None
        self._ending = anyio.CancelScope()
        self._prefetch_buffer: PrefetchBuffer | None = None
        self._opened = False
        self._given_away = False

    # ------------------------------------------------- called from outside

    @property
    def state(self) -> PartitionState:
        """The state, including that of the handler call in progress."""
        call = self.delivery.call
        if call is not None and call.late:
            return PartitionState.STUCK
        if self._state is PartitionState.WAITING and call is not None:
            return PartitionState.HANDLING
        if self._state is PartitionState.WAITING and self.delivery.pausing:
            return PartitionState.RETRYING
        receives = self._state in (PartitionState.OPENING, PartitionState.WAITING)
        if receives and self.stall_watch.reopened and not self.work_waits:
            return PartitionState.STALLED
        return self._state

    @property
    def opening(self) -> bool:
        """Whether the receiver is being opened."""
        return self._state is PartitionState.OPENING

    @property
    def work_waits(self) -> bool:
        """Whether received events are not handled yet."""
        return self.delivery.call is not None or bool(self._prefetch_buffer)

    def status(self) -> PartitionStatus:
        """Return the status as it is now."""
        stored = self.stored_position
        return PartitionStatus(
            partition=self.handle.partition,
            epoch=self.handle.ownership.epoch,
            state=self.state,
            next=self.next,
            checkpoint=None if stored is None else stored.sequence_number,
            waiting_events=len(self._prefetch_buffer) if self._prefetch_buffer is not None else 0,
            still_s=self.still_s(self._clock.boottime_s()),
            reopened=self.stall_watch.reopened,
        )

    def still_s(self, now_s: float) -> float:
        """Return how long there was no progress, in seconds."""
        call = self.delivery.call
        since_s = self.progress_at_s if call is None else max(self.progress_at_s, call.began_s)
        return max(0.0, now_s - since_s)

    def drain(self) -> None:
        """Stop gracefully; ``run`` ends after that."""
        if self._draining or self._close_reason is not None:
            return
        self._draining = True
        self._publish(PartitionDraining)
        self._state = PartitionState.DRAINING
        self.delivery.stop()
        if self._manager.handlers.on_drain is not None:
            self._manager.handlers.on_drain(self.contexts[0])
        if self._prefetch_buffer is not None:
            self._prefetch_buffer.close()
        if self._opening is not None:
            self._opening.cancel()

    def close(self, reason: CloseReason, *, given_up: bool = False) -> None:
        """Stop immediately: the partition is no longer owned here.

        ``given_up``: by this host itself. The next owner then sees an orderly end.
        """
        if self._close_reason is None:
            self._close_reason = reason
            self._given_away = given_up
        self.delivery.stop()  # a thread that continues must not begin another event
        self._scope.cancel()
        self._ending.cancel()

    def reopen(self) -> bool:
        """Open the receiver again, since it seems to be stuck; return False if there is none."""
        if self._opening is not None:
            self._opening.cancel()
            return True
        receives = self._state is PartitionState.WAITING and self._prefetch_buffer is not None
        if receives and not self.work_waits:
            self._session.cancel()
            return True
        return False

    # ------------------------------------------------------------- the work

    async def run(self) -> None:
        """Work until ``drain`` or ``close``; then end the partition and report it."""
        try:
            try:
                with self._scope:
                    await self._work()
            except asyncio.CancelledError:
                # All pumps are cancelled, not only this scope: end this one too.
                self.close(CloseReason.ERROR)
                with anyio.CancelScope(shield=True):
                    await self._end()
                raise
            with anyio.CancelScope(shield=True):
                await self._end()
        finally:
            self._state = PartitionState.CLOSED

    async def _work(self) -> None:
        failures, began = 0, self.next
        while not self._draining:
            if self.next != began:
                failures, began = 0, self.next  # only consecutive failures lengthen the pauses
            with anyio.CancelScope() as self._session:
                try:
                    await self._open_and_pump()
                except PartitionStopped:
                    await self._wait_for_stop(PartitionState.STOPPED)
                except ReaderDisplaced as stolen:
                    self._publish(ReceiverDisplaced, by=stolen.now_held_by)
                    failures += 1
                    await self._pause(failures)
                except LeaseLost:
                    if self.handle.valid:
                        self._manager.fenced(self.handle)
                    await anyio.sleep_forever()  # the member knows it, too, and closes this pump
                except PositionLost as error:
                    await self._manager.on_error(self.contexts, error)
                    await self._wait_for_stop(PartitionState.STOPPED)
                except Exception as error:  # noqa: BLE001
                    failures += 1
                    await self._restart(error, failures)
                else:
                    failures = 0

    async def _open_and_pump(self) -> None:
        if self._state is not PartitionState.DRAINING:
            self._state = PartitionState.OPENING
        receiver: Receiver | None = None
        try:
            with anyio.CancelScope() as self._opening:
                receiver = await self._open()
        finally:
            self._opening = None
        if receiver is None:
            return
        try:
            await self._begin(receiver)
            await self._pump(receiver)
        finally:
            self._prefetch_buffer = None
            with anyio.move_on_after(self._goodbye_s, shield=True):
                await receiver.close()

    async def _pump(self, receiver: Receiver) -> None:
        self._prefetch_buffer = PrefetchBuffer(
            max_events=self._options.prefetch_events,
            max_bytes=self._options.prefetch_bytes,
            batch_events=self._options.batch_events,
        )
        errors: list[Exception] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive, receiver, self._prefetch_buffer, errors)
            try:
                await self._deliver_batches(self._prefetch_buffer)
            except Exception as error:  # noqa: BLE001
                errors.insert(0, error)
            tasks.cancel_scope.cancel()
        if errors:
            raise errors[0]

    async def _open(self) -> Receiver:
        """Open a receiver at the next event; the first time, at the checkpoint."""
        handle, manager = self.handle, self._manager
        if self.next is None:
            checkpoint = await manager.checkpoint_loader.checkpoint(handle.ownership.key)
            if checkpoint is not None:
                self._identity = checkpoint.position.stream
                self.next = checkpoint.resumes_at
                self.stored_position = checkpoint.position
                self._checkpoint_epoch = checkpoint.epoch
                self._done = checkpoint.position
        identity = await identity_of(manager.source)
        check_same_stream(
            self._identity,
            identity,
            stream=manager.stream,
            partition=handle.partition,
            resumes_at=self.next,
        )
        self._identity = identity
        return await open_receiver(
            manager.source,
            handle,
            group=manager.group,
            start=self._start if self.next is None else Start.sequence(self.next),
            on_trimmed=self._options.on_trimmed,
        )

    async def _begin(self, receiver: Receiver) -> None:
        """Report the opening, the first time, and a position that moved ahead."""
        if self.next is not None and receiver.position > self.next:
            self._publish(PositionMoved, wanted=self.next, found=receiver.position)
        if self.next is None or receiver.position > self.next:
            self.next = receiver.position
        if not self._opened:
            if self.stored_position is None and self._start.kind is StartKind.LATEST:
                # The end moves: the next owner, without a checkpoint, would begin further ahead.
                await asyncio.wrap_future(self.write(Position(sequence_number=self.next - 1)))
            self._opened = True
            self._first_sequence = self.next
            self._publish(PartitionOpened, position=self.next)
            self._manager.count_repeats(
                self.handle, self.next, checkpoint_epoch=self._checkpoint_epoch
            )
            handlers = self._manager.handlers
            await self._manager.call_user(handlers.on_partition_open, self.contexts)
        self.progress_at_s = self._clock.boottime_s()
        if self._state is PartitionState.OPENING:
            self._state = PartitionState.WAITING

    async def _receive(
        self, receiver: Receiver, prefetch_buffer: PrefetchBuffer, errors: list[Exception]
    ) -> None:
        try:
            while True:
                await prefetch_buffer.room()
                prefetch_buffer.put(
                    await receiver.receive(
                        max_events=self._options.batch_events,
                        max_bytes=self._options.batch_bytes,
                    )
                )
        except Exception as error:  # noqa: BLE001
            errors.append(error)
            prefetch_buffer.close()  # the call in progress may end; then the pump restarts

    async def _deliver_batches(self, prefetch_buffer: PrefetchBuffer) -> None:
        while not self._draining:
            batch = await prefetch_buffer.get()
            if batch is None:
                return
            await self.delivery.deliver(batch)

    # ------------------------------------------------------------- failures

    async def _wait_for_stop(self, state: PartitionState) -> None:
        """Keep the partition without working on it, until it is drained or lost."""
        self._state = state
        await self.delivery.stopped.wait()

    async def _restart(self, error: Exception, failures: int) -> None:
        pause_s = _RETRY_BACKOFF.pause_s(failures, self._manager.rng)
        self._publish(PumpRestarted, error=error, pause_s=pause_s)
        await self._manager.on_error(self.contexts, error)
        await self._pause(failures, pause_s)

    async def _pause(self, failures: int, pause_s: float | None = None) -> None:
        if pause_s is None:
            pause_s = _RETRY_BACKOFF.pause_s(failures, self._manager.rng)
        with suppress(TimeoutError):
            await self._clock.bounded(self.delivery.stopped.wait(), seconds=pause_s)

    # -------------------------------------------------------------- the end

    async def _end(self) -> None:
        """Call ``on_partition_close``, store the last position, and report the end."""
        manager, reason = self._manager, self._close_reason
        in_order = reason is None
        if reason is None:
            reason = CloseReason.SHUTDOWN if manager.stopping else CloseReason.HANDED_OVER
        call = self.delivery.last_call
        if call is not None and call.running:
            self._publish(HandlerAbandoned)
            manager.abandoned(call)
        if self._opened:
            said = manager.call_user(manager.handlers.on_partition_close, self.contexts, reason)
            if in_order:
                with self._ending:
                    await said
                    in_order = await self._store_last_position()
            else:
                with suppress(TimeoutError):
                    await self._clock.bounded(said, seconds=self._goodbye_s)
        if self._close_reason is not None:
            reason, in_order = self._close_reason, False
        if in_order or self._given_away:
            self._report_repeats()
        if self._opened:
            self._publish(PartitionClosed, reason=reason, position=self.next)
        manager.ended(self, in_order=in_order)
