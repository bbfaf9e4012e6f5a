"""Bugs in the work on a partition, each put into the real code by one small override.

The pump days must find every one of them, each for what it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
from tests.lease.simulation.mutants import UnfencedWrites

from leasehold.model import EndReason, Mark
from leasehold.processor import CloseReason
from leasehold.processor.delivery import Delivery
from leasehold.processor.floor import Floor
from leasehold.processor.intake import Intake
from leasehold.processor.marks import Marks
from leasehold.processor.pump import Pump
from leasehold.processor.resuming import Resuming
from leasehold.processor.tenure import Tenure
from leasehold.testing.sim.checks import CheckedRegistry
from leasehold.testing.sim.pump_world import PumpParts
from leasehold.testing.sim.sinks import FencedSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.log.events import EventBatch
    from leasehold.model import Checkpoint, MarkRefusal, Ownership
    from leasehold.sources.port import Receiver
    from leasehold.stores.rows import ResourceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpMutant:
    """A bug: what it is called, as what it has to be found, and the part that has it."""

    name: str
    found_as: str
    parts: PumpParts


# ------------------------------------------------------------------- the end of a term


class DrainsWithoutCheckpoint(Pump):
    """The word *drained* is given before the position is stored."""

    async def _stored_last(self) -> bool:
        return True


class DrainsAtOnce(Floor):
    """The member is told *drained* as soon as it asks, while the handler is still at it."""

    def drain(self, ownership: Ownership) -> None:
        super().drain(ownership)
        self._bridge.to_lease(lambda: self._lease_side.drained(ownership))


class DrainedByForce(Floor):
    """A pump that was ended by force says *drained* as if it had ended in good order."""

    def ended(self, pump: Pump, *, in_order: bool) -> None:
        super().ended(pump, in_order=True)


class OutlivesItsDeadline(Pump):
    """Told to stop at once, it goes on with what it has in hand."""

    def close(self, reason: CloseReason, *, given_up: bool = False) -> None:
        if reason is CloseReason.SHUTDOWN:
            super().close(reason, given_up=given_up)
        else:
            self.drain()


class EndsWithItsReceiver(Pump):
    """After trouble with the source the pump ends, and nobody begins another one."""

    async def _restart(self, error: Exception, failures: int) -> None:
        self.close(CloseReason.ERROR)
        await super()._restart(error, failures)


class ForgetsAtHandOver(CheckedRegistry):
    """The checkpoint is part of the term, and goes with it."""

    def end_term(self, row: ResourceRow, reason: EndReason, wall: datetime) -> None:
        super().end_term(row, reason, wall)
        if reason is EndReason.HANDED_OVER:
            self._checkpoints.pop(row.key, None)


# --------------------------------------------------------------------------- belief


class CarelessTenure(Tenure):
    """Owned once, owned for ever."""

    @property
    def valid(self) -> bool:
        return True


class DoesNotAsk(Pump):
    """Nobody looks whether the ownership may still be acted upon."""

    def __init__(self, tenure: Tenure, floor: Floor) -> None:
        super().__init__(CarelessTenure(ownership=tenure.ownership, member=tenure.member), floor)


class RetriesAnyway(Delivery):
    """A batch that has failed is tried again, whoever owns the partition by now."""

    async def _failed(self, turn: Any, batch: EventBatch, error: Exception) -> None:
        await super()._failed(turn, batch, error)
        again: Exception | None = None
        while again is not None or (turn.failures and not self.stopped.is_set()):
            again = await self._attempt(turn, batch.slice(turn.start, turn.size))
            if again is None:
                return
            await super()._failed(turn, batch, again)


class RetriesAfterLoss(Pump):
    """A pump with such a delivery."""

    def __init__(self, tenure: Tenure, floor: Floor) -> None:
        super().__init__(tenure, floor)
        self.delivery.__class__ = RetriesAnyway


# ------------------------------------------------------------------ where it goes on


class StoresTooEarly(Pump):
    """The position is stored when events have come, not when they are handled."""

    async def _handle(self, intake: Intake) -> None:
        get = intake.get

        async def get_and_store() -> EventBatch | None:
            batch = await get()
            if batch is not None:
                self._advance(batch)
            return batch

        intake.get = get_and_store  # type: ignore[method-assign]
        await super()._handle(intake)


class ReopensAtTheReceived(Pump):
    """After trouble with the source it goes on after the last event that was received."""

    async def _open(self) -> Receiver:
        received: Any = getattr(self, "receiver", None)
        if received is not None and self.next is not None:
            self.next = received.position
        self.receiver = await super()._open()
        return self.receiver


class ReopensAtTheCheckpoint(Pump):
    """After trouble with the source it goes on at the checkpoint, not after the last event."""

    async def _open(self) -> Receiver:
        self.next = None
        return await super()._open()


class KeepsTheIntake(Pump):
    """What was received before the trouble is handed out, and then received again."""

    left: Sequence[EventBatch] = ()

    async def _receive(self, receiver: Receiver, intake: Intake, errors: list[Exception]) -> None:
        close = intake.close

        def keep_and_close() -> None:
            self.left = [batch for batch, _ in intake._batches]
            close()

        for batch in self.left:
            intake.put(batch)
        intake.close = keep_and_close  # type: ignore[method-assign]
        await super()._receive(receiver, intake, errors)


class ReopensUnderTheHandler(Pump):
    """A receiver that seems to be stuck is opened again while the handler is at work."""

    def reopen(self) -> None:
        self._session.cancel()


class HandlesAllAtOnce(Pump):
    """The next batch is handed out while the handler has not returned from the last one."""

    async def _handle(self, intake: Intake) -> None:
        async with anyio.create_task_group() as tasks:
            while (batch := await intake.get()) is not None:
                tasks.start_soon(self.delivery.deliver, batch)


class Remembers(Resuming):
    """The checkpoint is read once, and known from then on."""

    known: Mapping[str, Checkpoint] | None = None

    async def checkpoint(self, key: str) -> Checkpoint | None:
        if self.known is None:
            self.known = await self._loaded()
        return self.known.get(key)


class ReadsBeforeTheClaim(Floor):
    """Checkpoints are read before the partition is claimed."""

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self.resuming.__class__ = Remembers


# ---------------------------------------------------------------------- checkpoints


class NewestOfAnyEpoch(Marks):
    """The furthest position of a partition is written, whichever epoch has reached it."""

    furthest: dict[str, Any]

    def _enqueue(self, new: Any) -> None:
        if not hasattr(self, "furthest"):
            self.furthest = {}
        key = new.mark.ownership.key
        known = self.furthest.get(key)
        if known is not None and known > new.mark.position:
            mark = Mark(ownership=new.mark.ownership, position=known)
            new = replace(new, mark=mark)
        self.furthest[key] = new.mark.position
        super()._enqueue(new)


class LateCopiesWin(CheckedRegistry):
    """Of two checkpoints of one epoch the last to arrive is kept, not the furthest."""

    def checkpoint(
        self, marks: Sequence[Mark], now: float, wall: datetime
    ) -> Mapping[str, MarkRefusal]:
        for mark in marks:
            if self._may_write(mark.ownership, now):
                self._checkpoints.pop(mark.ownership.key, None)
        return super().checkpoint(marks, now, wall)


class UnfencedSink(FencedSink):
    """Whoever writes last is right."""

    def _takes(self, key: str, epoch: int) -> bool:
        return True


MUTANTS = [
    PumpMutant(name=name, found_as=found_as, parts=parts)
    for name, found_as, parts in (
        ("unfenced checkpoints", "a write of epoch", PumpParts(registry=UnfencedWrites)),
        ("a late copy goes back", "went back", PumpParts(registry=LateCopiesWin)),
        (
            "drains without checkpoint",
            "ended in good order",
            PumpParts(pump=DrainsWithoutCheckpoint),
        ),
        ("drains at once", "ended in good order", PumpParts(floor=DrainsAtOnce)),
        ("drained by force", "ended in good order", PumpParts(floor=DrainedByForce)),
        (
            "outlives its deadline",
            "has a pump, and is not held",
            PumpParts(pump=OutlivesItsDeadline),
        ),
        ("ends with its receiver", "and has no pump", PumpParts(pump=EndsWithItsReceiver)),
        ("forgets at hand-over", "had ended in good order", PumpParts(registry=ForgetsAtHandOver)),
        ("does not ask", "which it does not hold", PumpParts(pump=DoesNotAsk)),
        ("retries after loss", "which it does not hold", PumpParts(pump=RetriesAfterLoss)),
        ("stores too early", "passes events that", PumpParts(pump=StoresTooEarly)),
        (
            "re-opens at the received",
            "a gap in epoch|began at event",
            PumpParts(pump=ReopensAtTheReceived),
        ),
        (
            "re-opens at the checkpoint",
            "came twice in epoch",
            PumpParts(pump=ReopensAtTheCheckpoint),
        ),
        ("keeps the intake", "came twice in epoch", PumpParts(pump=KeepsTheIntake)),
        (
            "re-opens under the handler",
            "nothing had failed",
            PumpParts(pump=ReopensUnderTheHandler),
        ),
        ("handles all at once", "two calls of the handler", PumpParts(pump=HandlesAllAtOnce)),
        ("reads before the claim", "began at event", PumpParts(floor=ReadsBeforeTheClaim)),
        ("newest of any epoch", "has not handled", PumpParts(marks=NewestOfAnyEpoch)),
        ("unfenced sink", "an effect of epoch", PumpParts(sink=UnfencedSink)),
    )
]
