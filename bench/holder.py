"""A holder that does to a store what is measured, and tells how long each call took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from statistics import median
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnavailable
from leasehold.model import CheckpointWrite, KeyClaim, Lease, MemberInfo, Ownership, Position
from leasehold.names import partition_group, partition_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.ports import Store

_LEASE = timedelta(hours=1)
# What is taken at a time from a store that gave no answer when it was asked for all.
_CAREFUL = 100


class Holder:
    """A holder of some keys, which are all the keys of its group."""

    def __init__(self, store: Store, name: str, keys: int) -> None:
        self.owned: Sequence[Ownership] = ()
        self._store = store
        self._name = name
        self._keys = [partition_key("bench", name, f"{number:06}") for number in range(keys)]
        self._lease = Lease(holder=name, token=f"token of {name}", group="", duration_s=0.0)
        self._version = 0
        self._numbers = count(1)

    async def join(self) -> float | None:
        """Claim all keys in one call; the seconds of it, or None if there was no answer."""
        await self._store.declare(self._keys)
        self._lease = await self._store.grant(
            holder=self._name,
            token=self._lease.token,
            group=partition_group("bench", self._name),
            duration=_LEASE,
            info=MemberInfo(),
        )
        wanted = [KeyClaim(key=key, seen_epoch=0) for key in self._keys]
        begun_s = time.perf_counter()
        try:
            self.owned = await self._store.claim(self._lease, wanted)
        except StoreUnavailable:
            self.owned = [
                ownership
                for first in range(0, len(wanted), _CAREFUL)
                for ownership in await self._store.claim(
                    self._lease, wanted[first : first + _CAREFUL]
                )
            ]
            return None
        return time.perf_counter() - begun_s

    async def claim_again_s(self) -> float:
        """The seconds of claiming all keys in one call; they are released before."""
        await self._store.release(self.owned)
        wanted = [KeyClaim(key=each.key, seen_epoch=each.epoch) for each in self.owned]
        begun_s = time.perf_counter()
        owned = await self._store.claim(self._lease, wanted)
        spent_s = time.perf_counter() - begun_s
        assert len(owned) == len(self.owned)
        self.owned = owned
        return spent_s

    async def checkpoint_s(self) -> float | None:
        """The seconds of a checkpoint of all keys in one call, or None: no answer."""
        position = Position(sequence_number=next(self._numbers))
        marks = [CheckpointWrite(ownership=each, position=position) for each in self.owned]
        begun_s = time.perf_counter()
        try:
            refused = await self._store.checkpoint(marks)
        except StoreUnavailable:
            return None
        spent_s = time.perf_counter() - begun_s
        assert not refused
        return spent_s

    async def hear(self) -> None:
        """Renew until there is no news."""
        version = -1
        while version != self._version:
            version = self._version
            self._version = (await self._store.renew(self._lease, since=version)).version

    async def stir(self) -> None:
        """Change something that concerns only the members of this group."""
        info = MemberInfo(pid=next(self._numbers))
        await self._store.renew(self._lease, since=self._version, info=info)

    async def quiet_renewals_s(self, times: int, stirrer: Holder | None) -> list[float]:
        """The seconds of each renewal; before each, ``stirrer`` changes something of its own."""
        seconds = []
        for _ in range(times):
            if stirrer is not None:
                await stirrer.stir()
            begun_s = time.perf_counter()
            changes = await self._store.renew(self._lease, since=self._version)
            seconds.append(time.perf_counter() - begun_s)
            assert changes.resources + changes.members + changes.ended == ()
            self._version = changes.version
        return seconds


@dataclass(slots=True)
class Blocks:
    """What the blocks of one holder took: each call by the clock, the whole block by the CPU."""

    call_s: list[list[float]] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def typical_s(self) -> float:
        return median(second for block in self.call_s for second in block)

    def per_second(self) -> float:
        return sum(map(len, self.call_s)) / sum(map(sum, self.call_s))


async def renewals(
    holders: Sequence[Holder],
    *,
    block: int,
    rounds: int,
    cpu_s: Callable[[], float] = time.process_time,
    stirrer: Holder | None = None,
) -> list[Blocks]:
    """Blocks of quiet renewals by turns; who begins changes from round to round."""
    found = [Blocks() for _ in holders]
    for number in range(rounds):
        pairs = list(zip(holders, found, strict=True))
        for holder, blocks in pairs if number % 2 else reversed(pairs):
            begun_s = cpu_s()
            blocks.call_s.append(await holder.quiet_renewals_s(block, stirrer))
            blocks.cpu_s.append(cpu_s() - begun_s)
    return found
