"""What the stores can do, and whether a renewal costs the same however much a holder owns.

The two holders that are compared live in the same database, each in a group of its own with
nothing but its keys, and take turns in short blocks: whatever else the machine does hits both
alike. Every ratio is the median of the ratios of neighbouring blocks.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import anyio
from bench import databases
from bench.peer import NAME, peer_group
from bench.report import Bar, Job, Part, Row, cost, exactly, main, rate

from leasehold.clock import SystemClock
from leasehold.model import Mark, MemberInfo, Ownership, Position, Wanted
from leasehold.names import partition_group, partition_key
from leasehold.processor.cycle import Member
from leasehold.processor.options import MemberOptions
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from bench.databases import Place

    from leasehold.model import Lease
    from leasehold.ports import Store

_LEASE = timedelta(hours=1)
_SAME = Bar(words="same within 20 %", most=1.2)
_CYCLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``many``: what the rich holder owns. ``batch``: keys per claim and checkpoint."""

    many: int
    batch: int
    batches: int
    rounds: int


FULL = Sizes(many=10_000, batch=1_000, batches=15, rounds=101)
SMALL = Sizes(many=20, batch=5, batches=1, rounds=3)


class Holder:
    """A holder of some keys, which are all the keys of its group."""

    def __init__(self, store: Store, lease: Lease, owned: Sequence[Ownership]) -> None:
        self.owned = owned
        self._store = store
        self._lease = lease
        self._version = 0

    @classmethod
    async def of(cls, store: Store, name: str, owned: int) -> Holder:
        keys = [partition_key("bench", name, f"{number:06}") for number in range(owned)]
        await store.declare(keys)
        lease = await store.grant(
            holder=name,
            token=f"token of {name}",
            group=partition_group("bench", name),
            duration=_LEASE,
            info=MemberInfo(),
        )
        return cls(store, lease, await store.claim(lease, [_wanted(key, 0) for key in keys]))

    async def hear(self) -> None:
        """Renew until there is no news."""
        version = -1
        while version != self._version:
            version = self._version
            self._version = (await self._store.renew(self._lease, since=version)).version

    async def quiet_renewals_s(self, times: int) -> list[float]:
        """The seconds of each renewal."""
        seconds = []
        for _ in range(times):
            begun_s = time.perf_counter()
            changes = await self._store.renew(self._lease, since=self._version)
            seconds.append(time.perf_counter() - begun_s)
            assert not (changes.resources or changes.peers or changes.ended)
        return seconds

    async def claim_again_s(self) -> float:
        """The seconds of claiming all of its keys in one call; they are released before."""
        await self._store.release(self.owned)
        wanted = [_wanted(each.key, each.epoch) for each in self.owned]
        begun_s = time.perf_counter()
        owned = await self._store.claim(self._lease, wanted)
        spent_s = time.perf_counter() - begun_s
        assert len(owned) == len(self.owned)
        self.owned = owned
        return spent_s

    async def checkpoint_s(self, sequence_number: int) -> float:
        """The seconds of a checkpoint of all of its keys in one call."""
        position = Position(sequence_number=sequence_number)
        marks = [Mark(ownership=each, position=position) for each in self.owned]
        begun_s = time.perf_counter()
        refused = await self._store.checkpoint(marks)
        spent_s = time.perf_counter() - begun_s
        assert not refused
        return spent_s


@dataclass(slots=True)
class Blocks:
    """What the blocks of one holder took: each call by the clock, the whole block by the CPU."""

    call_s: list[list[float]]
    cpu_s: list[float]

    def typical_s(self) -> float:
        return median(second for block in self.call_s for second in block)

    def per_second(self) -> float:
        return sum(map(len, self.call_s)) / sum(map(sum, self.call_s))


async def renewals(
    holders: Sequence[Holder], cpu_s: Callable[[], float], *, block: int, rounds: int
) -> list[Blocks]:
    """Blocks of quiet renewals by turns; who begins changes from round to round."""
    found = [Blocks(call_s=[], cpu_s=[]) for _ in holders]
    for number in range(rounds):
        pairs = list(zip(holders, found, strict=True))
        for holder, blocks in pairs if number % 2 else reversed(pairs):
            begun_s = cpu_s()
            blocks.call_s.append(await holder.quiet_renewals_s(block))
            blocks.cpu_s.append(cpu_s() - begun_s)
    return found


async def of_store(name: str, place: Place, sizes: Sizes, block: int) -> list[Row]:
    async with open_store(place.url) as store:
        batch = await Holder.of(store, "batch", sizes.batch)
        claims_s = [await batch.claim_again_s() for _ in range(sizes.batches)]
        checkpoints_s = [await batch.checkpoint_s(number) for number in range(sizes.batches)]
        holders = [await Holder.of(store, "one", 1), await Holder.of(store, "many", sizes.many)]
        for holder in holders:
            await holder.hear()
        await renewals(holders, time.process_time, block=block, rounds=2)
        few, many = await renewals(holders, place.cpu_clock(), block=block, rounds=sizes.rounds)
    by_clock = _ratio([median(each) for each in many.call_s], [median(each) for each in few.call_s])
    return [
        rate(f"{name}: renewals per second, one holder", few.per_second()),
        rate(f"{name}: quiet renewal with 1 owned, ms", 1e3 * few.typical_s()),
        rate(f"{name}: quiet renewal with {sizes.many:,} owned, ms", 1e3 * many.typical_s()),
        cost(f"{name}: {sizes.many:,} owned / 1 owned, time", by_clock, bar=_SAME),
        cost(
            f"{name}: {sizes.many:,} owned / 1 owned, CPU", _ratio(many.cpu_s, few.cpu_s), bar=_SAME
        ),
        rate(
            f"{name}: claim of {sizes.batch:,} at once, keys per second",
            sizes.batch / median(claims_s),
        ),
        rate(
            f"{name}: checkpoint of {sizes.batch:,} at once, keys per second",
            sizes.batch / median(checkpoints_s),
        ),
    ]


class Idle:
    """A keeper without work."""

    def opened(self, ownership: Ownership) -> None:
        """Nothing to begin."""

    def drain(self, _ownership: Ownership) -> bool:
        return True

    def closed(self, ownership: Ownership, reason: str) -> None:
        """Nothing to end."""


async def calls_per_cycle(owned: int) -> float:
    """Store calls of a real member that owns so much, in cycles in which nothing happens."""
    store = MemoryStore(SystemClock())
    options = MemberOptions(group=partition_group("bench", "group"))
    await store.declare([partition_key("bench", "group", str(number)) for number in range(owned)])
    member = Member(store, options, clock=SystemClock(), rng=random.Random(0), keeper=Idle())
    for _ in range(3):
        await member.step()
    assert len(member.held()) == owned
    before = member.calls.total()
    for _ in range(_CYCLES):
        await member.step()
    return (member.calls.total() - before) / _CYCLES


def calls(owned: int) -> list[Row]:
    with peer_group(owned) as peer:
        peer.join()
        peer.cycles(2)
        assert peer.all_owned()
        before = peer.store.calls
        peer.cycles(_CYCLES)
        theirs = (peer.store.calls - before) / _CYCLES
    what = f"store calls per cycle of a host with {owned:,} owned"
    return [cost(what, anyio.run(calls_per_cycle, owned), theirs, exactly(1))]


def _measured(
    name: str, where: Callable[[], AbstractContextManager[Place]], sizes: Sizes, block: int
) -> list[Row]:
    with where() as place:
        return anyio.run(of_store, name, place, sizes, block)


def jobs(sizes: Sizes) -> list[Job]:
    stores = (
        ("memory", databases.memory, 500),
        ("sqlite", databases.sqlite, 20),
        ("postgres", databases.postgres, 20),
    )
    return [
        Job(what="calls", run=partial(calls, sizes.many)),
        *(
            Job(what=name, run=partial(_measured, name, where, sizes, block))
            for name, where, block in stores
        ),
    ]


PART = Part(
    name="stores",
    about=(
        "Real stores: a new SQLite file and a PostgreSQL server that keeps what it was told, both "
        "on this machine's disk. time: per renewal as its caller sees it; CPU: of this process and "
        "the server's. Both as the median over neighbouring blocks. "
        f"peer: OwnershipManager of {NAME}, one call for its list and one for each partition."
    ),
    jobs=lambda small: jobs(SMALL if small else FULL),
)


def _wanted(key: str, epoch: int) -> Wanted:
    return Wanted(key=key, seen_epoch=epoch)


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    return median(a / b for a, b in zip(over, under, strict=True))


if __name__ == "__main__":
    sys.exit(main([PART]))
