"""How far a partition has come: what was delivered, what is done, and what the store knows.

Guarantees: a position is written only for events that were delivered; what handlers are done with
only rises; after a transaction whose outcome is unknown the store is asked before anything is
delivered again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from concurrent.futures import Future
from typing import TYPE_CHECKING

from leasehold.core.meter import Meter
from leasehold.errors import CheckpointBehind, LeaseholdError
from leasehold.model import Position
from leasehold.processor.context import (
    BlockingContext,
    PartitionContext,
    last_position,
    position_of,
)
from leasehold.processor.delivery import Delivery
from leasehold.processor.handlers import CALL
from leasehold.processor.hooks import CloseReason, MayRepeat
from leasehold.processor.marks import Written
from leasehold.processor.status import Vigil

if TYPE_CHECKING:
    from leasehold.log.events import EventBatch
    from leasehold.processor.context import Transacting
    from leasehold.processor.floor import Floor
    from leasehold.processor.hooks import HookEvent
    from leasehold.processor.tenure import Tenure

log = logging.getLogger("leasehold.processor")


class Progress:
    """The part of a pump that handlers speak to, through their contexts.

    ``write``, ``stored``, ``unsure`` and ``sure`` are safe from any thread.
    """

    def __init__(self, tenure: Tenure, floor: Floor) -> None:
        """Nothing is known yet."""
        self.tenure = tenure
        self._floor = floor
        self._clock = floor.clock
        self._options = floor.options
        contexts = (
            PartitionContext(self, stream=floor.stream, group=floor.group),
            BlockingContext(self, stream=floor.stream, group=floor.group),
        )
        self.contexts = contexts
        self.delivery = Delivery(
            floor.handlers,
            tenure,
            contexts,
            options=floor.options,
            board=floor.board,
            clock=floor.clock,
            rng=floor.rng,
            on_error=lambda error: floor.on_error(contexts, error),
            on_failure=lambda error: floor.on_error(contexts, error, by_user=True),
            settle=self._settled_next,
            late=lambda: floor.late(tenure.ownership),
            advance=self._advance,
        )
        now_s = floor.clock.boottime_s()
        self.meter = Meter(now_s)
        self.progress_at_s = now_s
        self.vigil = Vigil()
        self.next: int | None = None
        self.stored_position: Position | None = None
        self._done = Position(sequence_number=-1)
        self._since_put = 0
        self._doubts = 0
        self._began = 0
        self._reason: CloseReason | None = None

    @property
    def transactions(self) -> Transacting | None:
        """See ``Desk``."""
        return self._floor.transactions

    @property
    def delivered(self) -> Position:
        """See ``Desk``."""
        call, batch = self.delivery.call, self.delivery.in_hand
        if call is None or batch is None:
            return self._done
        if self._floor.handlers.on_event is None:
            return last_position(batch)
        event = call.event
        if event is None:
            return self._done
        return position_of(event)

    @property
    def in_hand(self) -> Position:
        """See ``Desk``."""
        call, batch = self.delivery.call, self.delivery.in_hand
        if CALL.get() is call or self._floor.handlers.pulled:
            return self.delivered
        if call is None or batch is None or not call.done:
            return self._done
        return last_position(batch.slice(0, call.done))

    def write(self, position: Position) -> Future[None]:
        """See ``Desk``."""
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # who stops waiting does not stop the writing

        def told(error: LeaseholdError | None) -> None:
            if error is None:
                self.stored(position)
                written.set_result(None)
            else:
                written.set_exception(error)

        if not self.tenure.valid:
            self.refused(position)
            written.set_exception(self.tenure.lost())
        else:
            self._floor.put_mark(self.tenure.ownership, position, 0.0, told)
        return written

    def stored(self, position: Position) -> None:
        """The store has it. What is in doubt stays in doubt: this may be an earlier one."""
        if self.stored_position is None or self.stored_position < position:
            self.stored_position = position

    def refused(self, position: Position) -> None:
        """See ``Desk``."""
        self._floor.refused(self.tenure, position)

    def unsure(self) -> None:
        """See ``Desk``."""
        self._doubts += 1

    def sure(self, position: Position) -> None:
        """See ``Desk``."""
        self._doubts = max(0, self._doubts - 1)
        self.stored(position)

    def _advance(self, done: EventBatch) -> None:
        """These events are done with."""
        now_s = self._clock.boottime_s()
        self._done = last_position(done)
        self.next = self._done.sequence_number + 1
        self.progress_at_s = now_s
        self.vigil = Vigil(lag_events=self.vigil.lag_events)
        self._floor.weigh(self.meter, done, now_s)
        self._since_put += len(done)
        if self.stored_position is not None and self._done <= self.stored_position:
            self._since_put = 0
            return
        within_s = self._options.checkpoint.within_s(self._since_put)
        if within_s == math.inf or not self.tenure.valid:
            return
        if within_s == 0.0:
            self._since_put = 0
        written = Written(self.stored)
        self._floor.put_mark(self.tenure.ownership, self._done, within_s, written)

    async def _settled_next(self) -> int:
        """The event after the last that is known to be stored, after asking if that is in doubt."""
        if self._doubts:
            checkpoint = await self._floor.resuming.checkpoint(self.tenure.ownership.key)
            if checkpoint is not None:
                self.stored(checkpoint.position)
            self._doubts = 0
        stored = self.stored_position
        return -1 if stored is None else stored.sequence_number + 1

    async def _stored_last(self) -> bool:
        """Have the last position stored; False if the partition was lost before that."""
        stored = self.stored_position
        if not self._options.checkpoint.automatic or (stored is not None and self._done <= stored):
            return True
        if self._done.sequence_number < 0:
            return True
        try:
            await asyncio.wrap_future(self.write(self._done))
        except CheckpointBehind:
            return True  # one that the handler had asked for was stored after all, and is further
        except LeaseholdError as error:
            log.warning("the last checkpoint was not written: %s", error)
            if self._reason is None:
                self._reason = CloseReason.LOST
            return False
        return True

    def _tell_repeats(self) -> None:
        """Say what was begun here and lies behind the checkpoint: it comes again (C5)."""
        stored, reached = self.stored_position, self.delivery.reached
        first = self._began if stored is None else stored.sequence_number + 1
        if reached >= first:
            self._tell(MayRepeat, events=reached - first + 1)

    def _tell(self, kind: type[HookEvent], **values: object) -> None:
        ownership = self.tenure.ownership
        self._floor.board.tell(
            kind(
                holder=ownership.holder,
                partition=self.tenure.partition,
                epoch=ownership.epoch,
                **values,
            )
        )
