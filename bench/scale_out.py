"""A story that the simulator's own scenarios do not tell: one host has all, many join at once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from leasehold.core.balance import min_moves
from leasehold.model import MemberInfo
from leasehold.testing.sim.faults import FaultRates
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.scenario import moves_since
from leasehold.testing.sim.world import Setting, World

_LOOK_EVERY_S = 0.1
_LAN = FaultRates(latency_s=0.005)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a story ended; ``cycles`` is None if it was not even after the most that were allowed."""

    cycles: int | None
    moves: int
    spread: int
    min_moves: int = 0


def scale_out(*, hosts: int, partitions: int, seed: int, max_cycles: int) -> Outcome:
    """From one host to so many, at the same moment."""
    setting = Setting(seed=seed, partitions=partitions, rates=_LAN, writes=False)
    return run_simulated(_play(setting, hosts, max_cycles))


async def _play(setting: Setting, hosts: int, max_cycles: int) -> Outcome:
    world = World(setting)
    interval_s = setting.timing.renew_s
    world.start()
    await world.pass_time(3 * interval_s)
    before, begun_s, begun = world.snapshot(), world.now_s(), len(world.checks.changes)
    for _ in range(hosts - 1):
        world.start()
    cycles = None
    while cycles is None and world.now_s() - begun_s < max_cycles * interval_s:
        await world.pass_time(_LOOK_EVERY_S)
        if _spread(world) <= 1:
            cycles = math.ceil((world.now_s() - begun_s) / interval_s)
    newcomers = {f"newcomer{number}": MemberInfo() for number in range(hosts - 1)}
    found = Outcome(
        cycles=cycles,
        moves=moves_since(before, world.checks.changes[begun:]),
        min_moves=min_moves(replace(before, members={**before.members, **newcomers})),
        spread=int(_spread(world)),
    )
    await world.end()
    return found


def _spread(world: World) -> float:
    """Largest minus smallest number of keys in the hands of a host; infinite if one is free."""
    owned = Counter(resource.holder for resource in world.snapshot().resources.values())
    holders = [host.member.holder for host in world.running if host.member]
    counts = [owned[holder] for holder in holders if holder is not None]
    if sum(counts) < len(world.keys) or len(counts) < len(holders):
        return math.inf
    return max(counts) - min(counts)
