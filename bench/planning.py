"""The time it takes to plan, and how it grows with the size of the group."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.peer import START_S, peer_group
from bench.report import Row, at_most, cost

from leasehold.core.balance import Snapshot, Strategy, plan
from leasehold.model import MemberInfo, Resource, State
from leasehold.names import partition_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Record

# Does it once and tells the CPU seconds of the part that counts.
Once = Callable[[], float]

_BEST_OF = 3
_FREE = 0.1


def rows(sizes: Sequence[tuple[int, int]], *, block_s: float) -> list[Row]:
    """CPU of one plan on the same unbalanced group, and how it grows from size to size.

    ``block_s`` is how long the same plan is made again and again for one measurement.
    """
    sides = (
        _best_s(
            [_ours(members, owners_by_lot(members, count)) for members, count in sizes], block_s
        ),
        _best_s([_peer(owners_by_lot(members, count)) for members, count in sizes], block_s),
    )
    found = [
        cost(f"plan of one host, {members:,} hosts x {count:,}: CPU ms", 1e3 * ours, 1e3 * peer)
        for (members, count), ours, peer in zip(sizes, *sides, strict=True)
    ]
    (_, least), (_, most) = sizes[0], sizes[-1]
    ours, peer = (math.log(times[-1] / times[0]) / math.log(most / least) for times in sides)
    what = f"plan, from {least:,} to {most:,} partitions: growth exponent"
    # Two exponents have no ratio that says anything.
    return [*found, replace(cost(what, ours, peer, at_most(1.2)), ratio=None)]


def owners_by_lot(members: int, partitions: int) -> list[str | None]:
    """The owner of each partition: some have many, some have few, a tenth is free."""
    rng = random.Random(f"{members}/{partitions}")
    return [
        None if rng.random() < _FREE else f"host{int(members * rng.random() ** 2):04}"
        for _ in range(partitions)
    ]


def _ours(members: int, owners: Sequence[str | None]) -> Once:
    resources = [
        Resource(
            key=partition_key("stream", "group", f"{number:06}"),
            epoch=1,
            state=State.LEASED if owner else State.AVAILABLE,
            version=number,
            holder=owner,
        )
        for number, owner in enumerate(owners)
    ]
    snapshot = Snapshot(
        members={f"host{number:04}": MemberInfo() for number in range(members)},
        resources={resource.key: resource for resource in resources},
    )
    rng = random.Random(0)

    def once() -> float:
        begun_s = time.process_time()
        plan(Strategy.EVEN, snapshot, "host0000", rng)
        return time.process_time() - begun_s

    return once


def _peer(owners: Sequence[str | None]) -> Once:
    """The same group for the peer; what is free was never claimed, which is its quickest case."""
    with peer_group(len(owners)) as group:
        manager = group.manager("host0000")
    ids = [str(number) for number in range(len(owners))]
    # By the real clock it was written long ago, by the one that it sees just now.
    common = {"last_modified_time": START_S, "etag": "1"}
    records: list[Record] = [
        {"partition_id": number, "owner_id": owner, **common}
        for number, owner in zip(ids, owners, strict=True)
        if owner
    ]

    def once() -> float:
        # It writes into what it is given.
        fresh = [dict(record) for record in records]
        with peer_group(0):
            begun_s = time.process_time()
            manager._balance_ownership(fresh, ids)  # noqa: SLF001
            return time.process_time() - begun_s

    return once


def _best_s(tries: Sequence[Once], block_s: float) -> list[float]:
    """For each the best mean of three blocks.

    The sizes take turns, so that a noisy neighbour is felt by all of them; and as ``timeit`` does,
    nothing is collected meanwhile.
    """
    best = [math.inf] * len(tries)
    gc.collect()
    gc.disable()
    try:
        for _ in range(_BEST_OF):
            best = [
                min(before, _mean_s(once, block_s))
                for before, once in zip(best, tries, strict=True)
            ]
    finally:
        gc.enable()
    return best


def _mean_s(once: Once, block_s: float) -> float:
    spent_s, times = 0.0, 0
    while spent_s < block_s:
        spent_s += once()
        times += 1
    return spent_s / times
