"""Bugs in the work on a partition, each put into the real code by replacing one part of it.

The fault runs must find every one of them, each for what it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
from tests.lease.simulation.mutants import CHECKPOINT, unfenced_writes
from tests.support.replaced import Replacement, replaces

from leasehold.errors import LeaseholdError
from leasehold.events import EventBatch, EventSource, Receiver, Start
from leasehold.lease.cycle import Cycle
from leasehold.lease.handle import Handle
from leasehold.model import (
    Checkpoint,
    CheckpointWrite,
    EndReason,
    Lease,
    Ownership,
    Position,
    Refusal,
)
from leasehold.processor import CloseReason, PartitionState
from leasehold.processor.checkpoint_writer import (
    CheckpointLoader,
    CheckpointWriter,
    WriteCallback,
    _LoadRound,
)
from leasehold.processor.handlers import HandlerCall, Handlers
from leasehold.processor.lease_thread import LeaseThread
from leasehold.processor.pump import PrefetchBuffer, Pump
from leasehold.processor.pump_manager import PumpManager
from leasehold.testing.sim.checks import CheckedRegistry
from leasehold.testing.sim.work import FencedSink


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpMutant:
    """A bug: what it is called, as what it has to be found, and the part that has it."""

    name: str
    found_as: str
    part: Replacement


# ------------------------------------------------------------------- the end of a term


@replaces("leasehold.processor.pump:PumpProgress.write")
def drains_without_checkpoint(original: Any) -> Any:
    """*Drained* is reported before the position is stored."""

    def write(self: Pump, position: Position) -> Future[None]:
        written: Future[None] = original(self, position)
        if self.state is not PartitionState.DRAINING:
            return written
        answered: Future[None] = Future()
        answered.set_result(None)
        return answered

    return write


@replaces("leasehold.processor.pump_manager:PumpManager.drain")
def drains_at_once(original: Any) -> Any:
    """*Drained* is reported as soon as the member asks, while the handler still works."""

    def drain(self: PumpManager, ownership: Ownership) -> None:
        original(self, ownership)
        self._loop_link.to_lease(lambda: self._lease_thread.drained(ownership))

    return drain


@replaces("leasehold.processor.pump_manager:PumpManager.ended")
def drained_by_force(original: Any) -> Any:
    """A pump that was ended forcibly says *drained* as if it had ended gracefully."""

    def ended(self: PumpManager, pump: Pump, *, in_order: bool) -> None:
        del in_order
        original(self, pump, in_order=True)

    return ended


@replaces("leasehold.processor.pump:Pump.close")
def outlives_its_deadline(original: Any) -> Any:
    """Closed immediately, it continues with its current batch."""

    def close(self: Pump, reason: CloseReason, *, given_up: bool = False) -> None:
        if reason is CloseReason.SHUTDOWN:
            original(self, reason, given_up=given_up)
        else:
            self.drain()

    return close


@replaces("leasehold.processor.pump:Pump._restart")
def ends_with_its_receiver(original: Any) -> Any:
    """After a failure of the source the pump ends, and no other one begins."""

    async def restart(self: Pump, error: Exception, failures: int) -> None:
        self.close(CloseReason.ERROR)
        await original(self, error, failures)

    return restart


@replaces("leasehold.stores.registry:Ledger.end_term")
def forgets_at_hand_over(original: Any) -> Any:
    """The checkpoint is part of the term, and goes with it."""

    def end_term(self: CheckedRegistry, row: Any, reason: EndReason, wall: datetime) -> None:
        original(self, row, reason, wall)
        if reason is EndReason.HANDED_OVER:
            self.forget_checkpoint(row.key)

    return end_term


# ------------------------------------------------------------------ local ownership


@replaces("leasehold.lease.handle:Handle.valid")
def does_not_ask(_original: Any) -> Any:
    """Whether the ownership still lasts is not checked: owned once, owned forever."""
    return property(lambda _self: True)


_MAX_IGNORED = 20


@replaces("leasehold.lease.handle:Handle.check")
def retries_after_loss(original: Any) -> Any:
    """A batch that has failed is retried, even if another host owns the partition by now.

    A few times: where nothing else ends it, the retries would never let the simulated time go on.
    """
    ignored: Counter[tuple[str, int]] = Counter()

    def check(self: Handle) -> None:
        term = (self.ownership.key, self.ownership.epoch)
        ignored[term] += not self.valid
        if ignored[term] > _MAX_IGNORED:
            original(self)

    return check


# ------------------------------------------------------------------ where it resumes

OPEN = "leasehold.processor.pump:open_receiver"


@replaces("leasehold.processor.pump:Pump._deliver_batches")
def stores_too_early(original: Any) -> Any:
    """The position is stored when events have come, not when they are handled."""

    async def handle(self: Pump, prefetch_buffer: PrefetchBuffer) -> None:
        get = prefetch_buffer.get

        async def get_and_store() -> EventBatch | None:
            batch = await get()
            if batch is not None:
                self._advance(batch)
            return batch

        prefetch_buffer.get = get_and_store  # type: ignore[method-assign]
        await original(self, prefetch_buffer)

    return handle


@replaces(OPEN)
def reopens_at_the_received(original: Any) -> Any:
    """After a failure of the source it resumes after the last event that was received."""
    last: dict[Ownership, Receiver] = {}

    async def open_receiver(
        source: EventSource, handle: Handle, *, group: str, start: Start, on_trimmed: Any
    ) -> Receiver:
        if handle.ownership in last:
            start = Start.sequence(last[handle.ownership].position)
        last[handle.ownership] = await original(
            source, handle, group=group, start=start, on_trimmed=on_trimmed
        )
        return last[handle.ownership]

    return open_receiver


@replaces(OPEN)
def reopens_at_the_checkpoint(original: Any) -> Any:
    """After a failure of the source it resumes at the checkpoint, not after the last event."""
    first: dict[Ownership, Start] = {}

    async def open_receiver(
        source: EventSource, handle: Handle, *, group: str, start: Start, on_trimmed: Any
    ) -> Receiver:
        start = first.setdefault(handle.ownership, start)
        receiver: Receiver = await original(
            source, handle, group=group, start=start, on_trimmed=on_trimmed
        )
        return receiver

    return open_receiver


@replaces("leasehold.processor.pump:Pump._receive")
def keeps_the_prefetch_buffer(original: Any) -> Any:
    """What was received before the failure is handed out, and then received again."""
    left: dict[Pump, Sequence[EventBatch]] = {}

    async def receive(
        self: Pump, receiver: Receiver, prefetch_buffer: PrefetchBuffer, errors: list[Exception]
    ) -> None:
        close = prefetch_buffer.close

        def keep_and_close() -> None:
            left[self] = [batch for batch, _ in prefetch_buffer._batches]
            close()

        for batch in left.pop(self, ()):
            prefetch_buffer.put(batch)
        prefetch_buffer.close = keep_and_close  # type: ignore[method-assign]
        await original(self, receiver, prefetch_buffer, errors)

    return receive


@replaces("leasehold.processor.pump:Pump.reopen")
def reopens_under_the_handler(_original: Any) -> Any:
    """A receiver that seems to be stuck is opened again while the handler is at work."""

    def reopen(self: Pump) -> None:
        self._session.cancel()

    return reopen


@replaces("leasehold.processor.pump_manager:PumpManager._stalled")
def reopens_once(original: Any) -> Any:
    """A receiver that hangs is opened again once, and then left to another host."""

    def stalled(self: PumpManager, pump: Pump, *, give_up: bool) -> None:
        if pump.stall_watch.reopened:
            pump.stall_watch.reopen_at_s = math.inf
        original(self, pump, give_up=give_up)

    return stalled


@replaces("leasehold.processor.pump_manager:PumpManager._from_source")
def watchdog_hangs_too(_original: Any) -> Any:
    """The watchdog waits for the source, without a limit."""

    async def from_source(self: PumpManager, name: str, answer: Any, limit_s: float) -> Any:
        del self, name, limit_s
        return await answer

    return from_source


@replaces("leasehold.processor.pump:Pump._deliver_batches")
def handles_all_at_once(_original: Any) -> Any:
    """The next batch is handed out while the handler has not returned from the last one."""

    async def handle(self: Pump, prefetch_buffer: PrefetchBuffer) -> None:
        async with anyio.create_task_group() as tasks:
            while (batch := await prefetch_buffer.get()) is not None:
                tasks.start_soon(self.delivery.deliver, batch)

    return handle


@replaces("leasehold.processor.checkpoint_writer:CheckpointLoader.checkpoint")
def reads_before_the_claim(original: Any) -> Any:
    """Checkpoints are read once, before partitions are claimed, and known from then on."""
    known: dict[CheckpointLoader, dict[str, Checkpoint | None]] = {}

    async def checkpoint(self: CheckpointLoader, key: str) -> Checkpoint | None:
        seen = known.setdefault(self, {})
        if key not in seen:
            seen[key] = await original(self, key)
        return seen[key]

    return checkpoint


@replaces("leasehold.processor.checkpoint_writer:CheckpointLoader._load_with_retries")
def joins_a_read_in_progress(original: Any) -> Any:
    """A partition that was just claimed takes the answer to a read that began before its claim.

    No run has found it so far, because a claim follows the last write of the owner before by
    several calls. ``test_checkpoint_loader`` finds it.
    """

    async def load(self: CheckpointLoader) -> Mapping[str, Checkpoint]:
        if self._next is not None:
            return await original(self)  # type: ignore[no-any-return]
        joined = self._next = _LoadRound()
        joined.found = await original(self)
        joined.done, self._next = True, None
        return joined.found

    return load


@replaces("leasehold.processor.handlers:Handlers._due")
def ignores_loss_between_events(_original: Any) -> Any:
    """A thread that calls ``on_event`` does not look whether the partition was lost."""

    def due(self: Handlers, call: HandlerCall, context: Any, batch: Any, clock: Any) -> Any:
        del self, context
        for event in batch:
            if call.stopping:
                return
            call.event, call.began_s = event, clock.boottime_s()
            yield event

    return due


# ---------------------------------------------------------------------- checkpoints


@replaces("leasehold.processor.checkpoint_writer:CheckpointWriter.put")
def newest_of_any_epoch(original: Any) -> Any:
    """The furthest position of a partition is written, whichever epoch has reached it."""
    furthest: dict[CheckpointWriter, dict[str, Position]] = {}

    def put(
        self: CheckpointWriter,
        ownership: Ownership,
        position: Position,
        *,
        within_s: float = 0.0,
        on_done: WriteCallback | None = None,
    ) -> None:
        known = furthest.setdefault(self, {})
        position = known[ownership.key] = max(position, known.get(ownership.key, position))
        original(self, ownership, position, within_s=within_s, on_done=on_done)

    return put


@replaces(CHECKPOINT)
def late_copies_win(original: Any) -> Any:
    """Of two checkpoints of one epoch the last to arrive is kept, not the furthest."""

    def checkpoint(
        self: CheckedRegistry, marks: Sequence[CheckpointWrite], now: float, wall: datetime
    ) -> Mapping[str, Refusal]:
        for mark in marks:
            if self.backs(mark.ownership, now):
                self.forget_checkpoint(mark.ownership.key)
        refused: Mapping[str, Refusal] = original(self, marks, now, wall)
        return refused

    return checkpoint


@replaces("leasehold.testing.sim.work:FencedSink._takes")
def unfenced_sink(_original: Any) -> Any:
    """The last write wins."""

    def takes(self: FencedSink, key: str, epoch: int) -> bool:
        del self, key, epoch
        return True

    return takes


# ------------------------------------------------------------------- reported repeats


@replaces("leasehold.lease.cycle:Cycle._revoke")
def says_released(_original: Any) -> Any:
    """A lease that was given up after its local deadline is released as if in good order."""

    async def revoke(self: Cycle, lease: Lease) -> None:
        await self._call("revoke", self._store.revoke(lease))

    return revoke


@replaces("leasehold.processor.lease_thread:LeaseThread.follows_orderly_end")
def asks_for_the_last_term(original: Any) -> Any:
    """Only the term before is asked for its end, though it may have handled nothing."""

    async def follows(self: LeaseThread, handle: Handle, *, checkpoint_epoch: int) -> bool:
        before = max(checkpoint_epoch, handle.ownership.epoch - 1)
        orderly: bool = await original(self, handle, checkpoint_epoch=before)
        return orderly

    return follows


@replaces("leasehold.processor.pump_manager:PumpManager._possible_repeats")
def counts_repeats_once(original: Any) -> Any:
    """Whether events come again is not asked for a second time, if the store is unavailable."""

    async def possible(
        self: PumpManager, handle: Handle, position: int, checkpoint_epoch: int
    ) -> int:
        try:
            events: int = await original(self, handle, position, checkpoint_epoch)
        except (LeaseholdError, OSError):
            return 0
        return events

    return possible


MUTANTS = [
    PumpMutant(name=name, found_as=found_as, part=part)
    for name, found_as, part in (
        ("unfenced checkpoints", "a write of epoch", unfenced_writes),
        ("a late copy goes back", "went back", late_copies_win),
        ("drains without checkpoint", "ended in good order", drains_without_checkpoint),
        ("drains at once", "ended in good order", drains_at_once),
        ("drained by force", "ended in good order", drained_by_force),
        ("outlives its deadline", "has a pump, and is not held", outlives_its_deadline),
        ("ends with its receiver", "and has no pump", ends_with_its_receiver),
        ("forgets at hand-over", "had ended in good order", forgets_at_hand_over),
        ("does not ask", "which it does not hold", does_not_ask),
        ("retries after loss", "which it does not hold", retries_after_loss),
        ("stores too early", "passes events that", stores_too_early),
        ("re-opens at the received", "a gap in epoch|began at event", reopens_at_the_received),
        ("re-opens at the checkpoint", "came twice in epoch", reopens_at_the_checkpoint),
        ("keeps the prefetch buffer", "came twice in epoch", keeps_the_prefetch_buffer),
        ("re-opens under the handler", "nothing had failed", reopens_under_the_handler),
        ("re-opens once", "not all handled", reopens_once),
        ("the watchdog hangs, too", "not all handled", watchdog_hangs_too),
        ("handles all at once", "two calls of the handler", handles_all_at_once),
        ("reads before the claim", "began at event", reads_before_the_claim),
        ("ignores loss between events", "which it does not hold", ignores_loss_between_events),
        ("newest of any epoch", "has not handled", newest_of_any_epoch),
        ("says released", "nobody reported", says_released),
        ("asks for the last term", "nobody reported", asks_for_the_last_term),
        ("counts repeats once", "nobody reported", counts_repeats_once),
        ("unfenced sink", "an effect of epoch", unfenced_sink),
    )
]
