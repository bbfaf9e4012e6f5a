"""Bugs in what only some runs have: threads, pull clients, dead letters, load, resets, growth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import anyio
from tests.processor.simulation.pump_mutants import PumpMutant
from tests.support.replaced import replaces

from leasehold.core.balance import Plan, Snapshot
from leasehold.events import EventBatch
from leasehold.model import Position
from leasehold.processor import CloseReason
from leasehold.processor.context import AsyncPartitionContext
from leasehold.processor.delivery import Delivery
from leasehold.processor.events import EventBus
from leasehold.processor.handlers import Handlers, PartitionClient, PullHandlers
from leasehold.processor.pump_manager import PumpManager
from leasehold.testing.sim.checks import CheckedRegistry

# ------------------------------------------------------------------- threads


@replaces("leasehold.processor.handlers:Handlers._in_thread")
def waits_for_its_thread(original: Any) -> Any:
    """The result of a thread is waited for and taken, although the partition was lost."""

    async def in_thread(
        self: Handlers,
        function: Any,
        call: Any,
        context: Any,
        batch: EventBatch,
        clock: Any,
        late: Any,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await original(self, function, call, context, batch, clock, late)

    return in_thread


@replaces("leasehold.processor.context:_Context.lost")
def nothing_is_lost_in_a_thread(_original: Any) -> Any:
    """A call that has waited for its thread begins, though the partition was lost meanwhile."""
    return property(lambda _self: False)


@replaces("leasehold.processor.handlers:Handlers._run_watched")
def late_threads_count_as_ended(original: Any) -> Any:
    """A thread that is over its timeout is left behind, and the batch is given to another one."""

    async def run_watched(
        self: Handlers, run: Any, call: Any, clock: Any, timeout_s: float, late: Any
    ) -> None:
        with anyio.CancelScope() as scope:

            def give_up() -> None:
                late()
                scope.cancel()

            await original(self, run, call, clock, timeout_s, give_up)

    return run_watched


# ------------------------------------------------------------------- the pull style


@replaces("leasehold.processor.handlers:PullHandlers.closed")
def client_survives_the_loss(_original: Any) -> Any:
    """A pull client keeps its partition after the loss: its iteration does not end."""

    async def closed(
        self: PullHandlers, context: AsyncPartitionContext, reason: CloseReason
    ) -> None:
        del self, context, reason

    return closed


@replaces("leasehold.processor.handlers:PartitionClient.__anext__")
def gives_out_what_was_offered(_original: Any) -> Any:
    """A batch that was offered in time is given out whenever the caller asks for it."""

    async def anext_(self: PartitionClient) -> EventBatch:
        if self._taken:
            self._taken, self._batch = False, None
            self._notify()
        while self._batch is None:
            if self.close_reason is not None:
                raise StopAsyncIteration
            await self._changed.wait()
        self._taken = True
        return self._batch

    return anext_


@replaces("leasehold.processor.handlers:PartitionClient.__anext__")
def taken_is_done(original: Any) -> Any:
    """A batch counts as done as soon as the caller has taken it."""

    async def anext_(self: PartitionClient) -> EventBatch:
        batch: EventBatch = await original(self)
        self._taken, self._batch = False, None
        self._notify()
        return batch

    return anext_


# ------------------------------------------------------------------- events that are given up

SEND = "leasehold.processor.delivery:Delivery._send_dead_letter"
GIVE_UP = "leasehold.processor.delivery:Delivery._give_up"


@replaces(SEND)
def sends_the_letter_later(original: Any) -> Any:
    """The dead letter is sent in the background; the partition goes on, and writes a checkpoint."""
    sending: set[asyncio.Task[bool]] = set()

    async def send(self: Delivery, batch: EventBatch, cursor: Any, error: Exception) -> bool:
        task = asyncio.create_task(original(self, batch, cursor, error))
        sending.add(task)
        task.add_done_callback(sending.discard)
        return True

    return send


@replaces(SEND)
def loses_the_letter(original: Any) -> Any:
    """A dead letter that can not be stored now is dropped."""

    async def send(self: Delivery, batch: EventBatch, cursor: Any, error: Exception) -> bool:
        letters: Any = self._options.dead_letters
        tried: list[object] = []

        async def once(sent: Any) -> None:
            tried.append(sent)
            try:
                await type(letters).send(letters, sent)
            except OSError:
                return

        letters.send = once
        try:
            answer: bool = await original(self, batch, cursor, error)
        finally:
            del letters.send
        return answer

    return send


@replaces(GIVE_UP)
def skips_in_silence(original: Any) -> Any:
    """An event is given up, and nobody is told."""

    async def give_up(self: Delivery, cursor: Any, batch: EventBatch, error: Exception) -> None:
        event_bus, self._event_bus = self._event_bus, EventBus()
        try:
            await original(self, cursor, batch, error)
        finally:
            self._event_bus = event_bus

    return give_up


@replaces(GIVE_UP)
def gives_up_the_batch(original: Any) -> Any:
    """With the event the rest of its batch is given up."""

    async def give_up(self: Delivery, cursor: Any, batch: EventBatch, error: Exception) -> None:
        await original(self, cursor, batch, error)
        cursor.start = len(batch)

    return give_up


@replaces("leasehold.core.poison_policy:PoisonPolicy.exhausted")
def gives_up_too_early(_original: Any) -> Any:
    """One attempt is missing."""

    def exhausted(self: Any, failures: int) -> bool:
        return self.retries is not None and failures >= self.retries

    return exhausted


@replaces("leasehold.processor.delivery:_events_before")
def ignores_what_is_stored(_original: Any) -> Any:
    """After a failure the batch begins again, whatever the handler has stored of it."""

    def events_before(batch: EventBatch, sequence: int) -> int:
        del batch, sequence
        return 0

    return events_before


# ------------------------------------------------------------------- balance by load


@replaces("leasehold.core.balance.by_load:_assigned")
def never_damps(_original: Any) -> Any:
    """Whoever is above its share hands a key over, also one that makes the receiver too big."""

    def assigned(
        keys: list[str], owner: str, loads: Mapping[str, float], room: Any, *, budget: float
    ) -> dict[str, str]:
        del loads, budget
        receiver = room.emptiest()
        return {keys[0]: receiver} if keys and receiver not in (None, owner) else {}

    return assigned


@replaces("leasehold.core.balance:plan_by_load")
def leaves_free_keys(original: Any) -> Any:
    """Free keys are left alone: a key without an owner has no load that could be evened out."""

    def plan_by_load(snapshot: Snapshot, me: str) -> Plan:
        plan: Plan = original(snapshot, me)
        mine = tuple(c for c in plan.claim if snapshot.resources[c.key].handed_to == me)
        any_owned = any(each.holder == me for each in snapshot.resources.values())
        return Plan(
            claim=mine if any_owned else plan.claim,
            hand_over=plan.hand_over,
            release=plan.release,
        )

    return plan_by_load


# ------------------------------------------------------------------- resets, growth


@replaces("leasehold.stores.registry:Ledger.reset_term")
def reset_keeps_the_epoch(_original: Any) -> Any:
    """A reset moves the checkpoint, and begins no new epoch."""

    def reset_term(self: Any, row: Any, wall: datetime) -> None:
        del wall
        self._touch(row)

    return reset_term


@replaces("leasehold.stores.registry:Registry.reset")
def resets_what_is_owned(_original: Any) -> Any:
    """A reset does not look whether a key has an owner."""

    def reset(
        self: CheckedRegistry, positions: Mapping[str, Position | None], now: float, wall: datetime
    ) -> Mapping[str, str]:
        self._settle_keys(positions, now, wall)
        for key, position in positions.items():
            self._put_checkpoint(self._declared(key), position, wall)
        return {}

    return reset


@replaces("leasehold.stores.registry:Registry.reset")
def resets_in_part(original: Any) -> Any:
    """Of several keys those without an owner are reset, and the call is refused."""

    def reset(
        self: CheckedRegistry, positions: Mapping[str, Position | None], now: float, wall: datetime
    ) -> Mapping[str, str]:
        refused: dict[str, str] = {}
        for key, position in positions.items():
            refused |= original(self, {key: position}, now, wall)
        return refused

    return reset


@replaces("leasehold.processor.pump_manager:PumpManager.discover")
def looks_once(_original: Any) -> Any:
    """Partitions are looked up at the start, and never again."""

    async def discover(self: PumpManager) -> None:
        del self

    return discover


OPTION_MUTANTS = [
    PumpMutant(name=name, found_as=found_as, part=part)
    for name, found_as, part in (
        ("waits for its thread", "has a pump, and is not held", waits_for_its_thread),
        ("a thread begins after the loss", "which it does not hold", nothing_is_lost_in_a_thread),
        ("a late thread counts as ended", "two calls of the handler", late_threads_count_as_ended),
        ("a client survives the loss", "has an open client", client_survives_the_loss),
        ("gives out what was offered", "which it does not hold", gives_out_what_was_offered),
        ("taken is done", "passes events that|two calls", taken_is_done),
        ("sends the letter later", "and none is stored", sends_the_letter_later),
        ("loses the letter", "and none is stored", loses_the_letter),
        ("skips in silence", "came after the failure", skips_in_silence),
        ("gives up the batch", "a gap in epoch", gives_up_the_batch),
        ("gives up too early", "was given up after", gives_up_too_early),
        ("ignores what is stored", "had stored", ignores_what_is_stored),
        ("never damps", "moves under a steady load", never_damps),
        ("leaves free keys", "without an owner", leaves_free_keys),
        ("a reset keeps the epoch", "follows epoch", reset_keeps_the_epoch),
        ("resets what is owned", "believes in epoch", resets_what_is_owned),
        ("resets in part", r"\(refused\), and the checkpoint went", resets_in_part),
        ("looks for partitions once", "not all handled", looks_once),
    )
]
