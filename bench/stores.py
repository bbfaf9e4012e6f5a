"""What the stores can do, and whether a renewal costs the same however much a holder owns.

The two holders that are compared live in the same database, each in a group of its own with
nothing but its keys, and take turns in short blocks: whatever else the machine does hits both
alike. Every ratio is the median of the ratios of neighbouring blocks.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import anyio
from bench import cold_start, databases, write_ahead
from bench.holder import Holder, renewals
from bench.peer import NAME, peer_group
from bench.report import Bar, Job, Part, Row, cost, exactly, main, rate

from leasehold.clock import SystemClock
from leasehold.core.lease_timing import LeaseTiming
from leasehold.lease.member import Member
from leasehold.lease.options import MemberOptions
from leasehold.names import partition_group, partition_key
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from bench.databases import Place
    from bench.holder import Blocks

    from leasehold.model import Ownership
    from leasehold.ports import Store

_SAME = Bar(words="within 20 %", most=1.2)
# What a member waits for an answer before it takes the store for gone.
_IN_TIME = Bar(words=f"<= {LeaseTiming().call_s:g} s", most=LeaseTiming().call_s)
_NO_ANSWER = "no answer"
_CYCLES = 10

# Where each store lives, and how many renewals make a block: long enough for the clocks.
STORES: Mapping[str, tuple[Callable[[], AbstractContextManager[Place]], int]] = {
    "memory": (databases.memory, 100),
    "sqlite": (databases.sqlite, 10),
    "postgres": (databases.postgres, 10),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``many``: what the rich holder owns. ``batch``: keys per claim and checkpoint.

    ``writers``: the group whose checkpoints are weighed in bytes of write-ahead log. ``starts``:
    the groups that start together, the smallest first.
    """

    many: int
    batch: int
    batches: int
    rounds: int
    writers: write_ahead.Group
    starts: Sequence[cold_start.Start]


FULL = Sizes(
    many=10_000,
    batch=1_000,
    batches=15,
    rounds=201,
    writers=write_ahead.Group(members=1_000, keys=20, rounds=5),
    starts=(cold_start.Start(members=100), cold_start.Start(members=1_000)),
)
SMALL = Sizes(
    many=20,
    batch=5,
    batches=1,
    rounds=3,
    writers=write_ahead.Group(members=2, keys=20, rounds=1),
    starts=(cold_start.Start(members=2), cold_start.Start(members=4)),
)


async def of_store(name: str, place: Place, sizes: Sizes, block: int) -> list[Row]:
    async with open_store(place.url) as store:
        one, many = Holder(store, "one", 1), Holder(store, "many", sizes.many)
        rows = await _first_calls(name, many, sizes.many)
        await one.join()
        rows += await _batches(name, store, sizes)
        for holder in (one, many):
            await holder.hear()
        by_turns = partial(renewals, (one, many), block=block)
        await by_turns(rounds=2)
        rows += _compared(
            name, sizes.many, *await by_turns(rounds=sizes.rounds, cpu_s=place.cpu_clock())
        )
        stirrer = Holder(store, "other", 1)
        await stirrer.join()
        for holder in (one, many):
            await holder.hear()
        few, lots = await by_turns(rounds=max(3, sizes.rounds // 3), stirrer=stirrer)
    what = f"{name}: renewal, {sizes.many:,} / 1 owned, others busy: time"
    return [*rows, cost(what, _ratio(lots.call_s, few.call_s), bar=_SAME)]


async def _first_calls(name: str, holder: Holder, keys: int) -> list[Row]:
    """A store that nobody has used yet, and at once it has to serve very many keys."""
    claim_s, checkpoint_s = await holder.join(), await holder.checkpoint_s()
    return [
        cost(f"{name}: first {what} of {keys:,}: seconds", _answered(seconds), bar=_IN_TIME)
        for what, seconds in (("claim", claim_s), ("checkpoint", checkpoint_s))
    ]


async def _batches(name: str, store: Store, sizes: Sizes) -> list[Row]:
    holder = Holder(store, "batch", sizes.batch)
    await holder.join()
    claims_s = [await holder.claim_again_s() for _ in range(sizes.batches)]
    checkpoints_s = [await holder.checkpoint_s() for _ in range(sizes.batches)]
    answered_s = [seconds for seconds in checkpoints_s if seconds is not None]
    return [
        rate(f"{name}: {what} of {sizes.batch:,}: keys per second", sizes.batch / seconds)
        for what, seconds in (("claim", median(claims_s)), ("checkpoint", median(answered_s)))
    ]


def _compared(name: str, keys: int, few: Blocks, many: Blocks) -> list[Row]:
    both = f"{name}: renewal, {keys:,} / 1 owned"
    cpu_ratio = median(a / b for a, b in zip(many.cpu_s, few.cpu_s, strict=True))
    return [
        rate(f"{name}: renewals of one holder: per second", few.per_second()),
        rate(f"{name}: renewal, 1 owned: ms", 1e3 * few.typical_s()),
        rate(f"{name}: renewal, {keys:,} owned: ms", 1e3 * many.typical_s()),
        cost(f"{both}: time", _ratio(many.call_s, few.call_s), bar=_SAME),
        cost(f"{both}: CPU", cpu_ratio, bar=_SAME),
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


def _measured(name: str, sizes: Sizes) -> list[Row]:
    where, block = STORES[name]
    with where() as place:
        return anyio.run(of_store, name, place, sizes, block)


def jobs(sizes: Sizes, stores: Sequence[str] = tuple(STORES)) -> list[Job]:
    return [
        Job(what="calls", run=partial(calls, sizes.many)),
        *(Job(what=name, run=partial(_measured, name, sizes)) for name in stores),
        *(
            job
            for job in (
                Job(what="write-ahead log", run=partial(write_ahead.rows, sizes.writers)),
                Job(what="cold start", run=partial(cold_start.rows, sizes.starts)),
            )
            if "postgres" in stores
        ),
    ]


PART = Part(
    name="stores",
    about=(
        "A new SQLite file and a new PostgreSQL server as it comes, both on the disk of this "
        "machine. renewal: in a group where nothing happens. time: of a call, as its caller sees "
        f"it; CPU: of this process and the server's. peer: OwnershipManager of {NAME}, one call "
        "for its list and one for each partition."
    ),
    jobs=lambda small: jobs(SMALL if small else FULL),
)


def _answered(seconds: float | None) -> float | str:
    return _NO_ANSWER if seconds is None else seconds


def _ratio(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> float:
    return median(median(a) / median(b) for a, b in zip(over, under, strict=True))


if __name__ == "__main__":
    sys.exit(main([PART]))
