"""Checkpoints of all partitions of a host, written together: one call at a time.

A position that waits is replaced by a later one of the same ownership. One that may wait is
written with the first that may not; so a host with hundreds of partitions writes once per
interval. A call without an answer is repeated for as long as the lease is trusted: the store
takes the same position twice without harm. A position that can not be written at all is refused
alone: the others are written without it.

Whoever waits for its own position is told of it, each one; who only wants to know how far the
store is (``WrittenListener``) is told once for all that waited. So what is kept here does not grow
with the batches of an interval.

Where each partition goes on: after its checkpoint, or where the options say (C3).

Checkpoints are read after the partition was claimed, never before: a former owner may have
written until that moment. Partitions that are opened together share one call.
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

_PAUSES = Backoff(base_s=0.05, max_s=1.0)


@dataclass(slots=True, kw_only=True)
class _LoadRound:
    found: Mapping[str, Checkpoint] = field(default_factory=dict)
    done: bool = False


class CheckpointLoader:
    """Answers for one group. All in one event loop."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Mapping[str, Checkpoint]]],
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """``load`` reads all checkpoints of the group."""
        self._load = load
        self._clock = clock
        self._rng = rng
        self._lock = anyio.Lock()
        self._next: _LoadRound | None = None

    async def checkpoint(self, key: str) -> Checkpoint | None:
        """The checkpoint as it is after this call began. Store trouble is waited out."""
        turn = self._next = self._next or _LoadRound()
        async with self._lock:
            if not turn.done:
                await self._clock.sleep(0)  # those who were opened together come along
                if self._next is turn:
                    self._next = None  # whoever asks from now on needs a newer answer
                turn.found = await self._loaded()
                turn.done = True
        return turn.found.get(key)

    async def _loaded(self) -> Mapping[str, Checkpoint]:
        failures = 0
        while True:
            try:
                return await self._load()
            except StoreError:
                failures += 1
                await self._clock.sleep(_PAUSES.pause_s(failures, self._rng))


@dataclass(frozen=True, slots=True)
class WrittenListener:
    """Wants to hear only which position was written in the end: one such is told for all."""

    tell: Callable[[Position], None]


Waiter = Callable[[LeaseholdError | None], None]
Told = Waiter | WrittenListener

log = logging.getLogger("leasehold.processor")

_LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingWrite:
    mark: CheckpointWrite
    due_s: float
    told: list[Waiter] = field(default_factory=list)
    written: WrittenListener | None = None

    def with_(self, other: _PendingWrite) -> _PendingWrite:
        """Both in one, in place of both: the later position, the earlier time, all who wait.

        Of those who only want to know how far the store is, one is enough.
        """
        self.told.extend(other.told)  # not a new list: many may wait, and each would copy all
        return _PendingWrite(
            mark=max(self.mark, other.mark, key=lambda mark: mark.position),
            due_s=min(self.due_s, other.due_s),
            told=self.told,
            written=other.written or self.written,
        )


class CheckpointWriter:
    """Written by ``run`` in the member's loop. ``put`` is safe from any thread."""

    def __init__(
        self,
        member: Member,
        *,
        clock: Clock,
        rng: random.Random,
        board: EventBus,
        wake: Callable[[Callable[[], None]], None],
    ) -> None:
        """``wake`` runs a function in the member's loop, soon."""
        self._member = member
        self._clock = clock
        self._rng = rng
        self._board = board
        self._wake = wake
        self._lock = Lock()
        self._waiting: dict[str, _PendingWrite] = {}
        self._next_s = math.inf
        self._changed = anyio.Event()
        self._closed = False

    def put(
        self,
        ownership: Ownership,
        position: Position,
        *,
        within_s: float = 0.0,
        told: Told | None = None,
    ) -> None:
        """Have the position written within that time; ``told`` hears how it went, in any thread.

        A position behind one that waits counts as written with that one.

        Raises:
            UsageError: no store could keep the position.
        """
        self._enqueue(
            _PendingWrite(
                mark=CheckpointWrite(ownership=ownership, position=position),
                due_s=self._clock.boottime_s() + within_s,
                told=[] if told is None or isinstance(told, WrittenListener) else [told],
                written=told if isinstance(told, WrittenListener) else None,
            )
        )

    def drop(self, ownership: Ownership) -> None:
        """Forget what waits for an ownership that has ended; who waits is told."""
        with self._lock:
            waiting = self._waiting.get(ownership.key)
            if waiting is None or waiting.mark.ownership != ownership:
                return
            del self._waiting[ownership.key]
        if waiting.told or waiting.written:
            self._refuse(waiting, "not_held")

    def close(self) -> None:
        """Refuse all that waits, and all that still comes."""
        with self._lock:
            self._closed = True
        self._refuse_all(self._take(), "shutdown")

    async def run(self) -> None:
        """Write what is due, until cancelled."""
        failures = 0
        while True:
            await self._until_due(_PAUSES.pause_s(failures, self._rng) if failures else 0.0)
            batch = self._take()
            if batch:
                failures = 0 if await self._write(batch) else failures + 1

    # ----------------------------------------------------------------- parts

    async def _until_due(self, min_s: float) -> None:
        if min_s:
            await self._clock.sleep(min_s)
        while True:
            changed = self._changed
            with self._lock:
                left_s = self._next_s - self._clock.boottime_s()
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                await self._clock.bounded(changed.wait(), seconds=min(left_s, _LONGEST_S))

    def _ring(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _take(self) -> list[_PendingWrite]:
        with self._lock:
            batch = list(self._waiting.values())
            self._waiting = {}
            self._next_s = math.inf
        return batch

    async def _write(self, batch: list[_PendingWrite]) -> bool:
        """Send them in one call; False if there was no answer, and they wait again."""
        held = self._still_held(batch)
        if not held:
            return True
        self._board.add(checkpoint_calls=1)
        try:
            refused = await self._member.mark([each.mark for each in held])
        except StoreError as trouble:
            log.warning("checkpoint of %d partitions not written yet: %s", len(held), trouble)
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
            # A thread may be waiting for the answer: it must not wait for ever.
            self._refuse_all(held, "shutdown")
            raise
        for each in held:
            self._settle(each, refused.get(each.mark.ownership.key))
        return True

    async def _write_singly(self, held: list[_PendingWrite]) -> bool:
        """Find out which of them can not be written: the others must not suffer from it."""
        left, answered = held.copy(), True
        try:
            while left:
                answered &= await self._write([left.pop(0)])
        finally:
            self._refuse_all(left, "shutdown")
        return answered

    def _still_held(self, batch: list[_PendingWrite]) -> list[_PendingWrite]:
        """Those whose ownership lasts; the others are refused."""
        held: list[_PendingWrite] = []
        for each in batch:
            if self._member.holds(each.mark.ownership.key) == each.mark.ownership:
                held.append(each)
            else:
                self._refuse(each, "not_held")
        return held

    def _enqueue(self, new: _PendingWrite) -> None:
        """Let it wait, together with what waits for the same ownership."""
        key, epoch = new.mark.ownership.key, new.mark.ownership.epoch
        stale: _PendingWrite | None = None
        sooner = False
        with self._lock:
            known = self._waiting.get(key)
            if self._closed or (known is not None and known.mark.ownership.epoch > epoch):
                stale = new
            elif known is not None and known.mark.ownership.epoch < epoch:
                stale, self._waiting[key] = known, new
            elif known is not None:
                self._waiting[key] = known.with_(new)
            else:
                self._waiting[key] = new
            if stale is not new:
                due_s = self._waiting[key].due_s
                sooner = due_s < self._next_s
                self._next_s = min(self._next_s, due_s)
        if stale is not None:
            self._refuse(stale, "not_held")
        if sooner:
            self._wake(self._ring)

    def _settle(self, each: _PendingWrite, refusal: Refusal | None) -> None:
        if refusal is Refusal.FENCED:
            self._refuse(each, "fenced")
            return
        mark = each.mark
        if refusal is None:
            self._board.tell(
                CheckpointWritten(
                    holder=mark.ownership.holder,
                    partition=last_part(mark.ownership.key),
                    epoch=mark.ownership.epoch,
                    sequence_number=mark.position.sequence_number,
                )
            )
        behind = None
        if refusal is Refusal.BEHIND:
            behind = CheckpointBehind(
                f"the checkpoint {mark.position.sequence_number} of {mark.ownership.key} lies "
                "before the one that is stored: it stays where it is"
            )
        elif each.written is not None:
            each.written.tell(mark.position)
        for told in each.told:
            told(behind)

    def _refuse_all(self, batch: list[_PendingWrite], why: str) -> None:
        for each in batch:
            self._refuse(each, why)

    def _refuse(self, each: _PendingWrite, why: str, error: LeaseholdError | None = None) -> None:
        """Tell all who wait; without an error the ownership has ended."""
        ownership, position = each.mark.ownership, each.mark.position
        self._board.tell(
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
        for told in each.told:
            told(error or lost)
