"""A simulated scene for reservations: a clock that can jump, a store that can be away."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

from leasehold.clock import Clock
from leasehold.errors import StoreUnavailable
from leasehold.jobs import Held, OnCrash
from leasehold.jobs.claimant import Claimant
from leasehold.jobs.keyring import Keyring
from leasehold.jobs.wish import Wish
from leasehold.model import EndReason, Ownership
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim.loop import run_simulated

T = TypeVar("T")

LEASE_S = 10.0
LEASE = timedelta(seconds=LEASE_S)
WALL = datetime(2026, 3, 2, tzinfo=UTC)  # the wall clock at the start

_CALLS = {
    "annotate",
    "checkpoint",
    "checkpoints",
    "claim",
    "declare",
    "grant",
    "hand_over",
    "history",
    "release",
    "renew",
    "resources",
    "revoke",
}


class LoopClock:
    """The clock of the simulated loop; ``ahead_s``: this process was paused, the store was not."""

    slice_s = 0.25
    ahead_s = 0.0
    skew_s = 0.0  # of the wall clock

    def boottime_s(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead_s

    def utc_now(self) -> datetime:
        return WALL + timedelta(seconds=self.boottime_s() + self.skew_s)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        return await asyncio.wait_for(answer, seconds)


class FaultyStore(MemoryStore):
    """A store that can be away: calls hang, or what they ask for is done and the answer lost."""

    away = False
    deaf: frozenset[str] = frozenset()
    error: Exception | None = None
    after_renewal: Callable[[], None] | None = None
    on_call: Callable[[str], None] | None = None
    answer_s = 0.0

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in _CALLS:
            return found

        async def call(*given: Any, **named: Any) -> Any:
            self.calls[name] += 1
            if self.on_call is not None:
                self.on_call(name)
            if self.error is not None:
                raise self.error
            if self.away:
                await asyncio.sleep(1e6)
            answer = await found(*given, **named)
            if self.answer_s:
                await asyncio.sleep(self.answer_s)
            if name == "renew" and self.after_renewal is not None:
                self.after_renewal()
            if name in self.deaf:
                self.deaf = frozenset()
                raise StoreUnavailable(f"{name}: the answer is lost")
            return answer

        return call


class Ring(Keyring):
    """A keyring that keeps what it was told, with the time."""

    def __init__(self, store: FaultyStore, clock: LoopClock, number: int) -> None:
        self.clock = clock
        self.told: list[tuple[str, str, float]] = []
        self.asked: list[tuple[str, str | None]] = []
        numbers = count(1)
        super().__init__(
            store,
            name=f"ring{number}",
            lease=LEASE,
            clock=clock,
            rng=random.Random(number),
            on_lost=lambda key, reason: self.told.append((key, reason, now())),
            on_asked=lambda key, by: self.asked.append((key, by)),
            identity=lambda: (f"{number}-{next(numbers)}", f"token{number}"),
        )

    def losses(self) -> list[tuple[str, str]]:
        return [(key, reason) for key, reason, _ in self.told]


class Heard:
    """Keeps all that it is told, with the time."""

    def __init__(self) -> None:
        self.words: list[tuple[str, object, float]] = []

    def _note(self, what: str, told: object) -> None:
        self.words.append((what, told, asyncio.get_running_loop().time()))

    def waits(self, held: Held) -> None:
        self._note("waits", held)

    def taken(self, ownerships: Mapping[str, Ownership]) -> None:
        self._note("taken", tuple(ownerships))

    def lost(self, reason: str) -> None:
        self._note("lost", reason)

    def asked(self, by: str | None) -> None:
        self._note("asked", by)

    def of(self, what: str) -> list[Any]:
        return [told for kind, told, _ in self.words if kind == what]


class Scene:
    """A store, and any number of claimants and keyrings on it."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = FaultyStore(LoopClock())
        self._numbers = count(1)

    def claimant(
        self,
        *names: str,
        lease: timedelta = LEASE,
        occurrence: datetime | None = None,
        on_crash: OnCrash = OnCrash.RERUN,
    ) -> tuple[Claimant, Heard]:
        heard, number = Heard(), next(self._numbers)
        made = Claimant(
            self.store,
            Wish.of(names or ("nightly",), lease=lease, occurrence=occurrence, on_crash=on_crash),
            told=heard,
            clock=self.clock,
            rng=random.Random(number),
            identity=lambda: (f"id{number}-{next(self._numbers)}", f"token{number}"),
        )
        return made, heard

    async def held(
        self,
        *names: str,
        lease: timedelta = LEASE,
        occurrence: datetime | None = None,
        on_crash: OnCrash = OnCrash.RERUN,
    ) -> tuple[Claimant, Heard]:
        made, heard = self.claimant(*names, lease=lease, occurrence=occurrence, on_crash=on_crash)
        assert await made.take(wait_s=0) is None
        return made, heard

    @asynccontextmanager
    async def ring(self, *keys: str) -> AsyncIterator[Ring]:
        """One that is kept and holds these; crashes at the end of the block unless it has left."""
        made = Ring(self.store, LoopClock(), next(self._numbers))
        keeping = asyncio.create_task(made.keep())
        try:
            await made.ready()
            if keys:
                assert set(await made.take(dict.fromkeys(keys, ""))) == set(keys)
            yield made
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def notes(self, key: str) -> list[str]:
        return [term.note for term in await self.store.history(key)]

    async def reasons(self, key: str) -> list[EndReason | None]:
        return [term.reason for term in await self.store.history(key)]


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Scene())

    run_simulated(main())


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(true: Callable[[], bool], *, within_s: float = 60.0) -> None:
    end_s = now() + within_s
    while not true():
        assert now() < end_s, "it never came to that"
        await asyncio.sleep(0.05)
