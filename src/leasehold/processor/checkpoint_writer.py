"""Reads and writes the checkpoints of a host's partitions, many in one call.

``CheckpointWriter`` makes one call to the store at a time. A later position of the same ownership
replaces one that waits. A position that may wait is written together with the first that may not,
so a host with hundreds of partitions writes once per interval. A call without an answer is repeated
until the lease can no longer be relied on; the store accepts the same position twice. A position
that cannot be written is refused alone: the others are written without it.

Each caller that waits for its own position is notified. Of the callers that only need the stored
position (``WrittenListener``), one is notified for all. So memory does not grow with the number of
batches in an interval.

``CheckpointLoader`` finds where a partition resumes (C3). Checkpoints are read after the partition
was claimed, never before: a former owner may have written until then. Partitions that are opened
together share one call.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import anyio

from leasehold.core.backoff import Backoff
from leasehold.errors import CheckpointBehind, LeaseholdError, LeaseLost, StoreError
from leasehold.model import CheckpointWrite, Refusal
from leasehold.names import last_part
from leasehold.processor.events import CheckpointRefused, CheckpointWritten

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Mapping

    from leasehold.clock import Clock
    from leasehold.lease.member import Member
    from leasehold.model import Checkpoint, Ownership, Position
    from leasehold.processor.events import EventBus

_RETRY_BACKOFF = Backoff(base_s=0.05, max_s=1.0)


@dataclass(slots=True, kw_only=True)
class _LoadRound:
    found: Mapping[str, Checkpoint] = field(default_factory=dict)
    done: bool = False


class CheckpointLoader:
    """Reads checkpoints of one group, in one event loop; ``load`` reads all of them."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Mapping[str, Checkpoint]]],
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._load = load
        self._clock = clock
        self._rng = rng
        self._lock = anyio.Lock()
        self._next: _LoadRound | None = None

    async def checkpoint(self, key: str) -> Checkpoint | None:
        """Return the checkpoint as it is after this call began; retry until the store answers."""
        load_round = self._next = self._next or _LoadRound()
        async with self._lock:
            if not load_round.done:
                await self._clock.sleep(0)  # partitions that open together share the call
                if self._next is load_round:
                    self._next = None  # later callers need a newer answer
                load_round.found = await self._load_with_retries()
                load_round.done = True
        return load_round.found.get(key)

    async def _load_with_retries(self) -> Mapping[str, Checkpoint]:
        failures = 0
        while True:
            try:
                return await self._load()
            except StoreError:
                failures += 1
                await self._clock.sleep(_RETRY_BACKOFF.pause_s(failures, self._rng))


@dataclass(frozen=True, slots=True)
class WrittenListener:
    """A listener for the stored position; one is notified for all that waited."""

    notify: Callable[[Position], None]


Waiter = Callable[[LeaseholdError | None], None]
WriteCallback = Waiter | WrittenListener

log = logging.getLogger("leasehold.processor")

_MAX_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingWrite:
    write: CheckpointWrite
    due_s: float
    waiters: list[Waiter] = field(default_factory=list)
    listener: WrittenListener | None = None

    def merged_with(self, other: _PendingWrite) -> _PendingWrite:
        """Merge both: the later position, the earlier time, all waiters.

        One listener for the stored position is enough.
        """
        self.waiters.extend(other.waiters)  # no new list: each merge would copy all waiters
        return _PendingWrite(
            write=max(self.write, other.write, key=lambda write: write.position),
            due_s=min(self.due_s, other.due_s),
            waiters=self.waiters,
            listener=other.listener or self.listener,
        )


class CheckpointWriter:
    """Writes checkpoints; ``run`` works in the member's loop, ``put`` is safe from any thread.

    ``wake`` has a function called in the member's loop, soon.
    """

    def __init__(
        self,
        member: Member,
        *,
        clock: Clock,
        rng: random.Random,
        event_bus: EventBus,
        wake: Callable[[Callable[[], None]], None],
    ) -> None:
        self._member = member
        self._clock = clock
        self._rng = rng
        self._event_bus = event_bus
        self._wake = wake
        self._lock = Lock()
        self._pending: dict[str, _PendingWrite] = {}
        self._next_due_s = math.inf
        self._changed = anyio.Event()
        self._closed = False

    def put(
        self,
        ownership: Ownership,
        position: Position,
        *,
        within_s: float = 0.0,
        on_done: WriteCallback | None = None,
    ) -> None:
        """Have the position written within that time; ``on_done`` is called with the outcome.

        ``on_done`` may be called in any thread. A position behind one that waits counts as written
        with that one.
        """
        self._enqueue(
            _PendingWrite(
                write=CheckpointWrite(ownership=ownership, position=position),
                due_s=self._clock.boottime_s() + within_s,
                waiters=[]
                if on_done is None or isinstance(on_done, WrittenListener)
                else [on_done],
                listener=on_done if isinstance(on_done, WrittenListener) else None,
            )
        )

    def drop(self, ownership: Ownership) -> None:
        """Forget what waits for an ownership that has ended, and notify its waiters."""
        with self._lock:
            waiting = self._pending.get(ownership.key)
            if waiting is None or waiting.write.ownership != ownership:
                return
            del self._pending[ownership.key]
        if waiting.waiters or waiting.listener:
            self._refuse(waiting, "not_held")

    def close(self) -> None:
        """Refuse all pending writes, and all that still come."""
        with self._lock:
            self._closed = True
        self._refuse_all(self._take_pending(), "shutdown")

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        failures = 0
        while True:
            await self._wait_until_due(
                _RETRY_BACKOFF.pause_s(failures, self._rng) if failures else 0.0
            )
            batch = self._take_pending()
            if batch:
                failures = 0 if await self._write(batch) else failures + 1

    # ----------------------------------------------------------------- parts

    async def _wait_until_due(self, min_s: float) -> None:
        if min_s:
            await self._clock.sleep(min_s)
        while True:
            changed = self._changed
            with self._lock:
                left_s = self._next_due_s - self._clock.boottime_s()
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                await self._clock.bounded(changed.wait(), seconds=min(left_s, _MAX_WAIT_S))

    def _wake_writer(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _take_pending(self) -> list[_PendingWrite]:
        with self._lock:
            batch = list(self._pending.values())
            self._pending = {}
            self._next_due_s = math.inf
        return batch

    async def _write(self, batch: list[_PendingWrite]) -> bool:
        """Send the batch in one call; return False if there was no answer and it waits again."""
        held = self._still_held(batch)
        if not held:
            return True
        self._event_bus.add(checkpoint_calls=1)
        try:
            refused = await self._member.mark([each.write for each in held])
        except StoreError as error:
            log.warning("checkpoint of %d partitions not written yet: %s", len(held), error)
            for each in held:
                self._enqueue(each)
            return False
        except LeaseLost as lost:
            self._refuse_all(held, lost.reason)
            return True
        except LeaseholdError as error:
            if len(held) > 1:
                return await self._write_singly(held)
            self._refuse(held[0], str(error), error)
            return True
        except BaseException:
            # A thread may be waiting for the answer: it must not wait forever.
            self._refuse_all(held, "shutdown")
            raise
        for each in held:
            self._settle(each, refused.get(each.write.ownership.key))
        return True

    async def _write_singly(self, held: list[_PendingWrite]) -> bool:
        """Find the writes that cannot succeed, so that the others do not fail with them."""
        left, answered = held.copy(), True
        try:
            while left:
                answered &= await self._write([left.pop(0)])
        finally:
            self._refuse_all(left, "shutdown")
        return answered

    def _still_held(self, batch: list[_PendingWrite]) -> list[_PendingWrite]:
        """Return the writes whose ownership lasts; refuse the others."""
        held: list[_PendingWrite] = []
        for each in batch:
            if self._member.holds(each.write.ownership.key) == each.write.ownership:
                held.append(each)
            else:
                self._refuse(each, "not_held")
        return held

    def _enqueue(self, new: _PendingWrite) -> None:
        """Add a pending write, merged with what waits for the same ownership."""
        key, epoch = new.write.ownership.key, new.write.ownership.epoch
        stale: _PendingWrite | None = None
        sooner = False
        with self._lock:
            known = self._pending.get(key)
            if self._closed or (known is not None and known.write.ownership.epoch > epoch):
                stale = new
            elif known is not None and known.write.ownership.epoch < epoch:
                stale, self._pending[key] = known, new
            elif known is not None:
                self._pending[key] = known.merged_with(new)
            else:
                self._pending[key] = new
            if stale is not new:
                due_s = self._pending[key].due_s
                sooner = due_s < self._next_due_s
                self._next_due_s = min(self._next_due_s, due_s)
        if stale is not None:
            self._refuse(stale, "not_held")
        if sooner:
            self._wake(self._wake_writer)

    def _settle(self, each: _PendingWrite, refusal: Refusal | None) -> None:
        if refusal is Refusal.FENCED:
            self._refuse(each, "fenced")
            return
        write = each.write
        if refusal is None:
            self._event_bus.tell(
                CheckpointWritten(
                    holder=write.ownership.holder,
                    partition=last_part(write.ownership.key),
                    epoch=write.ownership.epoch,
                    sequence_number=write.position.sequence_number,
                )
            )
        behind = None
        if refusal is Refusal.BEHIND:
            behind = CheckpointBehind(
                f"the checkpoint {write.position.sequence_number} of {write.ownership.key} lies "
                "before the one that is stored: it stays where it is"
            )
        elif each.listener is not None:
            each.listener.notify(write.position)
        for notify in each.waiters:
            notify(behind)

    def _refuse_all(self, batch: list[_PendingWrite], why: str) -> None:
        for each in batch:
            self._refuse(each, why)

    def _refuse(self, each: _PendingWrite, why: str, error: LeaseholdError | None = None) -> None:
        """Notify all waiters; without an error, the ownership has ended."""
        ownership, position = each.write.ownership, each.write.position
        self._event_bus.tell(
            CheckpointRefused(
                holder=ownership.holder,
                partition=last_part(ownership.key),
                epoch=ownership.epoch,
                sequence_number=position.sequence_number,
                why=why,
            )
        )
        if error is not None:
            log.error(
                "the checkpoint %d of %s can not be written: %s",
                position.sequence_number,
                ownership.key,
                error,
            )
        lost = LeaseLost(
            f"the checkpoint {position.sequence_number} of {ownership.key} was refused: the "
            f"ownership (epoch {ownership.epoch}) has ended ({why}); stop the work on it",
            key=ownership.key,
            epoch=ownership.epoch,
            reason=why,
        )
        for notify in each.waiters:
            notify(error or lost)
