"""One of several workers that race for a key: in its own process, or as a task.

``python -m leasehold.testing.worker '<JSON of a Race>' <opener> <url>`` prints ``ready``, waits for
a line on its standard input, so that all start together, and then prints what it did, one operation
per line of JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable
from leasehold.model import (
    CheckpointWrite,
    KeyClaim,
    MemberInfo,
    Ownership,
    Position,
    Refusal,
    State,
)
from leasehold.names import group_of
from leasehold.testing.faults import FaultyStore, Lost
from leasehold.testing.linearizability import CallOutcome, KeyCall, Operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.model import Lease
    from leasehold.ports import Store

T = TypeVar("T")

_STEAL_CHANCE = 0.1
_REFUSALS = {Refusal.FENCED: CallOutcome.REFUSED, Refusal.BEHIND: CallOutcome.BEHIND}


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """The task of one worker: ``rounds`` epochs of ``key``, or as many steps of a counter.

    ``counter`` is a file with a number that only the lease protects. ``losses`` is the share of
    calls whose request or answer is lost.
    """

    key: str
    holder: str
    rounds: int
    seed: int
    losses: float = 0.0
    counter: str = ""
    max_tries: int = 20_000
    lease_s: float = 600.0


class Racer:
    """Runs a ``Race`` and records it.

    ``now_s`` stamps the operations and must be common to all racers; ``pause`` is awaited while
    another racer has the key.
    """

    def __init__(
        self,
        race: Race,
        store: Store,
        *,
        now_s: Callable[[], float],
        pause: Callable[[float], Awaitable[object]],
    ) -> None:
        self.history: list[Operation] = []
        self._race = race
        self._rng = Random(race.seed)
        self._store = FaultyStore(store, self._lose).as_store
        self._now_s = now_s
        self._pause = pause

    async def run(self) -> list[Operation]:
        """Race to the end; return the record."""
        lease = await self._until_answered(self._grant)
        done = 0
        for _ in range(self._race.max_tries):
            wanted, force = await self._read(lease)
            if self._race.counter and done == self._race.rounds:
                return self.history
            if not self._race.counter and wanted.seen_epoch >= self._race.rounds:
                return self.history
            ownership = await self._claim(lease, wanted, force=force)
            if ownership is None:
                await self._pause(self._rng.uniform(0.0, 0.004))
                continue
            if self._race.counter:
                await self._count()
            else:
                await self._checkpoint(ownership)
            await self._release(ownership)
            done += 1
        raise RuntimeError(f"{self._race.holder} got nowhere in {self._race.max_tries} tries")

    async def _grant(self) -> Lease:
        return await self._store.grant(
            holder=self._race.holder,
            token=f"token of {self._race.holder}",
            group="",
            duration=timedelta(seconds=self._race.lease_s),
            info=MemberInfo(),
        )

    async def _read(self, lease: Lease) -> tuple[KeyClaim, bool]:
        """Return the key as it is now, and whether to steal it."""
        group = group_of(self._race.key)
        shown = (await self._until_answered(lambda: self._store.resources(group)))[self._race.key]
        may_steal = not self._race.counter and self._rng.random() < _STEAL_CHANCE
        steal = may_steal and shown.state is State.LEASED and shown.holder != lease.holder
        return KeyClaim(key=shown.key, seen_epoch=shown.epoch), steal

    async def _claim(self, lease: Lease, wanted: KeyClaim, *, force: bool) -> Ownership | None:
        call = KeyCall.STEAL if force else KeyCall.CLAIM
        return await self._until_answered(
            lambda: self._recorded(
                call,
                wanted.seen_epoch,
                lambda: self._store.claim(lease, [wanted], force=force),
                lambda taken: (
                    (CallOutcome.DONE, taken[0].epoch, taken[0])
                    if taken
                    else (CallOutcome.REFUSED, 0, None)
                ),
            )
        )

    async def _checkpoint(self, ownership: Ownership) -> None:
        write = CheckpointWrite(
            ownership=ownership, position=Position(sequence_number=ownership.epoch)
        )
        await self._until_answered(
            lambda: self._recorded(
                KeyCall.CHECKPOINT,
                ownership.epoch,
                lambda: self._store.checkpoint([write]),
                lambda refused: (
                    (_REFUSALS[refused[ownership.key]] if refused else CallOutcome.DONE, 0, None)
                ),
            )
        )

    async def _release(self, ownership: Ownership) -> None:
        await self._until_answered(
            lambda: self._recorded(
                KeyCall.RELEASE,
                ownership.epoch,
                lambda: self._store.release([ownership]),
                lambda ended: (CallOutcome.DONE if ended else CallOutcome.REFUSED, 0, None),
            )
        )

    async def _count(self) -> None:
        """Read, yield, write: two workers at the same time would lose a step."""
        counter = anyio.Path(self._race.counter)
        seen = int(await counter.read_text(encoding="ascii"))
        await self._pause(0.0)
        await counter.write_text(str(seen + 1), encoding="ascii")

    async def _recorded(
        self,
        call: KeyCall,
        epoch: int,
        ask: Callable[[], Awaitable[T]],
        read: Callable[[T], tuple[CallOutcome, int, Ownership | None]],
    ) -> Ownership | None:
        began_s = self._now_s()
        outcome, won, ownership = CallOutcome.UNKNOWN, 0, None
        try:
            outcome, won, ownership = read(await ask())
        finally:
            self.history.append(
                Operation(
                    call=call,
                    holder=self._race.holder,
                    epoch=epoch,
                    began_s=began_s,
                    ended_s=self._now_s(),
                    outcome=outcome,
                    won=won,
                    position=epoch,
                )
            )
        return ownership

    async def _until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        for _ in range(self._race.max_tries):
            try:
                return await ask()
            except StoreUnavailable:
                await self._pause(self._rng.uniform(0.0, 0.004))
        raise RuntimeError("the store never answers")

    def _lose(self, _name: str) -> Lost | None:
        if self._rng.random() >= self._race.losses:
            return None
        return self._rng.choice([Lost.REQUEST, Lost.ANSWER])


def to_json(operation: Operation) -> str:
    """Return one line; ``from_json`` reads it."""
    named = {"call": operation.call.value, "outcome": operation.outcome.value}
    return json.dumps({**asdict(operation), **named})


def from_json(line: str) -> Operation:
    """Return the operation that ``to_json`` wrote."""
    fields = json.loads(line)
    call, outcome = KeyCall(fields.pop("call")), CallOutcome(fields.pop("outcome"))
    return Operation(call=call, outcome=outcome, **fields)


async def _main(race: Race, opener: str, url: str) -> None:
    module, _, function = opener.partition(":")
    clock = SystemClock()
    async with getattr(import_module(module), function)(url) as store:
        racer = Racer(race, store, now_s=clock.boottime_s, pause=clock.sleep)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await anyio.to_thread.run_sync(sys.stdin.readline)
        for operation in await racer.run():
            sys.stdout.write(to_json(operation) + "\n")


if __name__ == "__main__":
    anyio.run(_main, Race(**json.loads(sys.argv[1])), sys.argv[2], sys.argv[3])
