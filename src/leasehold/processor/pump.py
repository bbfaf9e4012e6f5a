"""One partition, from its opening to its end: receiver, queue, handler, checkpoints.

::

    receiver (at the lease's epoch) ──> intake, bounded ──> handler ──> position ──> checkpoint
         └── trouble: opened again after the last event that was handled, with growing pauses

The order of an end in good order: nothing more is taken in, the call that is under way ends,
``on_partition_close`` is called, the position is stored, and only then is the partition given up.
An end by force cancels what can be cancelled, and tells the handler afterwards.

Guarantees: an event is handled before any checkpoint passes it; the handler gets the events in
order, one call at a time; after trouble with the source none comes twice.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from leasehold.core.ladder import Ladder
from leasehold.errors import (
    LeaseLost,
    PositionLost,
    Stolen,
)
from leasehold.log.start import Kind, Start
from leasehold.model import Position
from leasehold.processor.delivery import Stopped
from leasehold.processor.hooks import (
    CloseReason,
    HandlerAbandoned,
    PartitionClosed,
    PartitionDrains,
    PartitionOpened,
    PositionMoved,
    PumpRestarted,
    ReceiverDisplaced,
)
from leasehold.processor.intake import Intake
from leasehold.processor.opening import open_receiver
from leasehold.processor.progress import Progress
from leasehold.processor.status import PartitionStatus, PumpState

if TYPE_CHECKING:
    from leasehold.processor.floor import Floor
    from leasehold.processor.tenure import Tenure
    from leasehold.sources.port import Receiver

log = logging.getLogger("leasehold.processor")

_PAUSES = Ladder(base_s=0.1, most_s=15.0)


class Pump(Progress):
    """Lives on the work side: ``run`` is its one task, everything else is called in that loop."""

    def __init__(self, tenure: Tenure, floor: Floor) -> None:
        """For one ownership; not begun."""
        super().__init__(tenure, floor)
        self._goodbye_s = floor.options.goodbye_s
        self._start = floor.options.start_of(tenure.partition)
        self._state = PumpState.OPENING
        self._draining = False
        self._scope = anyio.CancelScope()
        self._session = anyio.CancelScope()
        self._opening = anyio.CancelScope()
        self._ending = anyio.CancelScope()
        self._intake: Intake | None = None
        self._opened = False
        self._given_away = False

    # ------------------------------------------------- what others may ask

    @property
    def state(self) -> PumpState:
        """What it is at."""
        call = self.delivery.call
        if call is not None and call.late:
            return PumpState.STUCK
        if self._state is PumpState.WAITING and call is not None:
            return PumpState.HANDLING
        if self._state is PumpState.WAITING and self.delivery.pausing:
            return PumpState.RETRYING
        return self._state

    @property
    def work_waits(self) -> bool:
        """Whether something was received that is not handled yet."""
        return self.delivery.call is not None or bool(self._intake)

    def status(self) -> PartitionStatus:
        """As it is now."""
        stored = self.stored_position
        return PartitionStatus(
            partition=self.tenure.partition,
            epoch=self.tenure.ownership.epoch,
            state=self.state,
            next=self.next,
            checkpoint=None if stored is None else stored.sequence_number,
            waiting_events=len(self._intake) if self._intake is not None else 0,
            still_s=self.still_s(self._clock.boottime_s()),
        )

    def still_s(self, now_s: float) -> float:
        """How long it has made no progress."""
        call = self.delivery.call
        since_s = self.progress_at_s if call is None else max(self.progress_at_s, call.began_s)
        return max(0.0, now_s - since_s)

    def drain(self) -> None:
        """Stop in good order; ``run`` ends after that."""
        if self._draining or self._reason is not None:
            return
        self._draining = True
        self._tell(PartitionDrains)
        self._state = PumpState.DRAINING
        self.delivery.stop()
        if self._floor.handlers.on_drain is not None:
            self._floor.handlers.on_drain(self.contexts[0])
        if self._intake is not None:
            self._intake.close()
        self._opening.cancel()

    def close(self, reason: CloseReason, *, given_up: bool = False) -> None:
        """Stop at once: the partition is not ours any more.

        ``given_up``: by this host itself. The next owner then sees an orderly end.
        """
        if self._reason is None:
            self._reason = reason
            self._given_away = given_up
        self.delivery.stop()  # a thread that goes on must not begin with another event
        self._scope.cancel()
        self._ending.cancel()

    def reopen(self) -> None:
        """Open the receiver again: it seems to be stuck."""
        if self._state is PumpState.WAITING and not self.work_waits:
            self._session.cancel()
        self._opening.cancel()

    # ------------------------------------------------------------- the work

    async def run(self) -> None:
        """Work until ``drain`` or ``close``; then tell everybody."""
        try:
            try:
                with self._scope:
                    await self._work()
            except asyncio.CancelledError:
                # All pumps are cancelled, which is more than this scope takes in: an end as well.
                self.close(CloseReason.ERROR)
                with anyio.CancelScope(shield=True):
                    await self._end()
                raise
            with anyio.CancelScope(shield=True):
                await self._end()
        finally:
            self._state = PumpState.CLOSED

    async def _work(self) -> None:
        failures, began = 0, self.next
        while not self._draining:
            if self.next != began:
                failures, began = 0, self.next  # only failures in a row make the pauses longer
            with anyio.CancelScope() as self._session:
                try:
                    await self._open_and_pump()
                except Stopped:
                    await self._rest(PumpState.STOPPED)
                except Stolen as stolen:
                    self._tell(ReceiverDisplaced, by=stolen.now_held_by)
                    failures += 1
                    await self._pause(failures)
                except LeaseLost:
                    if self.tenure.valid:
                        self._floor.fenced(self.tenure)
                    await anyio.sleep_forever()  # the member knows it too, and closes this pump
                except PositionLost as error:
                    await self._floor.on_error(self.contexts, error)
                    await self._rest(PumpState.STOPPED)
                except Exception as error:  # noqa: BLE001
                    failures += 1
                    await self._restart(error, failures)
                else:
                    failures = 0

    async def _open_and_pump(self) -> None:
        if self._state is not PumpState.DRAINING:
            self._state = PumpState.OPENING
        receiver: Receiver | None = None
        with anyio.CancelScope() as self._opening:
            receiver = await self._open()
        if receiver is None:
            return
        try:
            await self._begin(receiver)
            await self._pump(receiver)
        finally:
            self._intake = None
            with anyio.move_on_after(self._goodbye_s, shield=True):
                await receiver.close()

    async def _pump(self, receiver: Receiver) -> None:
        self._intake = Intake(
            most_events=self._options.prefetch_events,
            most_bytes=self._options.prefetch_bytes,
            batch_events=self._options.batch_events,
        )
        errors: list[Exception] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive, receiver, self._intake, errors)
            try:
                await self._handle(self._intake)
            except Exception as error:  # noqa: BLE001
                errors.insert(0, error)
            tasks.cancel_scope.cancel()
        if errors:
            raise errors[0]

    async def _open(self) -> Receiver:
        """A receiver at the next event, by the checkpoint if this is the first time."""
        tenure, floor = self.tenure, self._floor
        if self.next is None:
            checkpoint = await floor.resuming.checkpoint(tenure.ownership.key)
            if checkpoint is not None:
                self.next = checkpoint.resumes_at
                self.stored_position = checkpoint.position
                self._done = checkpoint.position
        return await open_receiver(
            floor.source,
            tenure,
            group=floor.group,
            start=self._start if self.next is None else Start.sequence(self.next),
            on_trimmed=self._options.on_trimmed,
        )

    async def _begin(self, receiver: Receiver) -> None:
        """The receiver is there: tell, if this is the first time or it stands further ahead."""
        if self.next is not None and receiver.position > self.next:
            self._tell(PositionMoved, wanted=self.next, found=receiver.position)
        if self.next is None or receiver.position > self.next:
            self.next = receiver.position
        if not self._opened:
            if self.stored_position is None and self._start.kind is Kind.LATEST:
                # The end moves on: the next owner, without a checkpoint, would begin further ahead.
                await asyncio.wrap_future(self.write(Position(sequence_number=self.next - 1)))
            self._opened = True
            self._began = self.next
            self._tell(PartitionOpened, position=self.next)
            self._floor.ask_for_repeats(self.tenure, self.next)
            handlers = self._floor.handlers
            await self._floor.call_user(handlers.on_partition_open, self.contexts)
        self.progress_at_s = self._clock.boottime_s()
        if self._state is PumpState.OPENING:
            self._state = PumpState.WAITING

    async def _receive(self, receiver: Receiver, intake: Intake, errors: list[Exception]) -> None:
        try:
            while True:
                await intake.room()
                intake.put(
                    await receiver.receive(
                        most_events=self._options.batch_events,
                        most_bytes=self._options.batch_bytes,
                    )
                )
        except Exception as error:  # noqa: BLE001
            errors.append(error)
            intake.close()  # what is under way may end; then the pump begins anew

    async def _handle(self, intake: Intake) -> None:
        while not self._draining:
            batch = await intake.get()
            if batch is None:
                return
            await self.delivery.deliver(batch)

    # -------------------------------------------------------------- trouble

    async def _rest(self, state: PumpState) -> None:
        """Keep the partition and do nothing, until it is drained or lost."""
        self._state = state
        await self.delivery.stopped.wait()

    async def _restart(self, error: Exception, failures: int) -> None:
        pause_s = _PAUSES.pause_s(failures, self._floor.rng)
        self._tell(PumpRestarted, error=error, pause_s=pause_s)
        await self._floor.on_error(self.contexts, error)
        await self._pause(failures, pause_s)

    async def _pause(self, failures: int, pause_s: float | None = None) -> None:
        if pause_s is None:
            pause_s = _PAUSES.pause_s(failures, self._floor.rng)
        with suppress(TimeoutError):
            await self._clock.bounded(self.delivery.stopped.wait(), seconds=pause_s)

    # -------------------------------------------------------------- the end

    async def _end(self) -> None:
        """In good order if nobody forced it: callback, checkpoint, then the word to the member."""
        floor, reason = self._floor, self._reason
        in_order = reason is None
        if reason is None:
            reason = CloseReason.SHUTDOWN if floor.stopping else CloseReason.HANDED_OVER
        call = self.delivery.last_call
        if call is not None and call.running:
            self._tell(HandlerAbandoned)
            floor.abandoned(call)
        if self._opened:
            said = floor.call_user(floor.handlers.on_partition_close, self.contexts, reason)
            if in_order:
                with self._ending:
                    await said
                    in_order = await self._stored_last()
            else:
                with suppress(TimeoutError):
                    await self._clock.bounded(said, seconds=self._goodbye_s)
        if self._reason is not None:
            reason, in_order = self._reason, False
        if in_order or self._given_away:
            self._tell_repeats()
        if self._opened:
            self._tell(PartitionClosed, reason=reason, position=self.next)
        floor.ended(self, in_order=in_order)
