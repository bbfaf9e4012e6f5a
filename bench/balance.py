"""How soon a group is even again, and at what price: our members beside the peer's balancer.

Both sides run the same stories in virtual time, from the same seeds: ours as the real ``Member``
in the simulator, the peer as its real ``OwnershipManager``. Of several seeds the worst counts, on
both sides.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bench import planning
from bench.peer import INTERVAL_S, MEAN_PERIOD_S, NAME, as_cycles, peer_group
from bench.report import Job, Part, Row, Value, at_most, cost, exactly, main
from bench.scale_out import Outcome, scale_out

from leasehold.core.lease_timing import LeaseTiming
from leasehold.testing.sim.scenario import Scenario, ScenarioRun, run_scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.peer import PeerGroup

NEVER = "never"
MAX_CYCLES = 150
# To get the peer from a start to the state where the story begins; it needs one cycle for each
# partition that an owner lacks.
_LONG_ENOUGH = 1_000
_STEADY_CYCLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    hosts: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.hosts:,} hosts x {self.partitions:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``whole`` divides evenly; ``odd`` leaves a remainder; ``other`` is only for the calls."""

    whole: Group
    odd: Group
    other: Group
    seeds: int
    plans: tuple[Group, ...]
    plan_block_s: float


FULL = Sizes(
    whole=Group(hosts=32, partitions=1_024),
    odd=Group(hosts=10, partitions=256),
    other=Group(hosts=8, partitions=1_024),
    seeds=3,
    plans=(
        Group(hosts=10, partitions=1_000),
        Group(hosts=100, partitions=10_000),
        Group(hosts=1_000, partitions=100_000),
    ),
    plan_block_s=0.3,
)
SMALL = Sizes(
    whole=Group(hosts=2, partitions=8),
    odd=Group(hosts=3, partitions=8),
    other=Group(hosts=2, partitions=16),
    seeds=1,
    plans=(Group(hosts=2, partitions=20), Group(hosts=20, partitions=200)),
    plan_block_s=0.001,
)


def joined(group: Group, seeds: int) -> list[Row]:
    """One host more."""
    runs = [_ours(Scenario.JOIN, group, seed).measured for seed in range(seeds)]
    ours = [
        Outcome(cycles=m.cycles, moves=m.moves, spread=m.spread, min_moves=m.min_moves)
        for m in runs
    ]
    peers = []
    for seed in range(seeds):
        with peer_group(group.partitions, seed=seed) as peer:
            peer.join(group.hosts)
            peer.settle(max_cycles=_LONG_ENOUGH)
            peers.append(_peer_outcome(peer, joining=1))
    return _shared(f"{group}, one joins", ours, peers)


def started_together(group: Group, seeds: int) -> list[Row]:
    """All hosts at the same moment, nothing is owned."""
    ours = [_ours(Scenario.COLD, group, seed).measured for seed in range(seeds)]
    peers = []
    for seed in range(seeds):
        with peer_group(group.partitions, seed=seed) as peer:
            peers.append(_peer_outcome(peer, joining=group.hosts))
    name = f"{group}, started together"
    return [
        cost(
            f"{name}: cycles until even",
            max(each.cycles for each in ours),
            _worst(each.cycles for each in peers),
            at_most(2),
        ),
        cost(
            f"{name}: spread at the end",
            max(each.spread for each in ours),
            max(each.spread for each in peers),
            at_most(1),
        ),
    ]


def scaled_out(group: Group, seeds: int) -> list[Row]:
    """One host has all; the others join at the same moment."""
    size = {"hosts": group.hosts, "partitions": group.partitions, "max_cycles": MAX_CYCLES}
    ours = [scale_out(seed=seed, **size) for seed in range(seeds)]
    peers = []
    for seed in range(seeds):
        with peer_group(group.partitions, seed=seed) as peer:
            peer.join()
            peer.cycles(3)
            peers.append(_peer_outcome(peer, joining=group.hosts - 1))
    return _shared(f"{group}, all but one join", ours, peers)


def crashed(group: Group, seeds: int) -> list[Row]:
    """One host is gone without a word."""
    ours = [_ours(Scenario.CRASH, group, seed) for seed in range(seeds)]
    peers = [_peer_crash(group, seed) for seed in range(seeds)]
    name = f"{group}, one crashes"
    # The scenario ends when all is owned *and* even: that bounds the first from above.
    cycles = max(run.measured.cycles for run in ours)
    return [
        cost(
            f"{name}: cycles from expiry until all is owned",
            cycles,
            _worst(owned for owned, _, _ in peers),
            at_most(1),
        ),
        cost(
            f"{name}: cycles from expiry until even",
            cycles,
            _worst(even for _, even, _ in peers),
            at_most(2),
        ),
        cost(
            f"{name}: seconds from crash until all is owned, default times",
            max(_last_owned_s(run) - run.began_s for run in ours),
            max(seconds for _, _, seconds in peers),
        ),
    ]


def steady(group: Group) -> list[Row]:
    """Nothing happens."""
    ours = _ours(Scenario.COLD, group, seed=0).measured.calls_per_host_cycle
    with peer_group(group.partitions) as peer:
        peer.join(group.hosts)
        peer.settle(max_cycles=_LONG_ENOUGH)
        before = peer.store.calls
        peer.cycles(_STEADY_CYCLES)
        theirs = (peer.store.calls - before) / (group.hosts * _STEADY_CYCLES)
    name = f"{group}, nothing happens"
    an_hour_s = 3600.0
    return [
        cost(f"{name}: store calls per host and cycle", ours, theirs, exactly(1)),
        cost(
            f"{name}: store calls per host and hour, default times",
            ours * an_hour_s / LeaseTiming().renew_s,
            theirs * an_hour_s / MEAN_PERIOD_S,
        ),
    ]


def jobs(sizes: Sizes) -> list[Job]:
    return [
        Job(what="join", run=partial(joined, sizes.whole, sizes.seeds)),
        Job(what="started together", run=partial(started_together, sizes.odd, sizes.seeds)),
        Job(what="scale out", run=partial(scaled_out, sizes.odd, sizes.seeds)),
        Job(what="crash", run=partial(crashed, sizes.whole, sizes.seeds)),
        Job(what="calls", run=partial(steady, sizes.whole)),
        Job(what="calls, another size", run=partial(steady, sizes.other)),
        Job(
            what="planning",
            run=partial(
                planning.rows,
                [(each.hosts, each.partitions) for each in sizes.plans],
                block_s=sizes.plan_block_s,
            ),
        ),
    ]


PART = Part(
    name="balance",
    about=(
        f"peer: OwnershipManager of {NAME}, greedy, in virtual time. A cycle is one interval "
        f"({LeaseTiming().renew_s:g} s with us, {INTERVAL_S:g} s there). even: spread (largest - "
        f"smallest number owned) <= 1; never: not in {MAX_CYCLES} cycles. ratio: peer / ours, "
        "more is better for us. The worst of all seeds counts, on both sides."
    ),
    jobs=lambda small: jobs(SMALL if small else FULL),
)


def _ours(scenario: Scenario, group: Group, seed: int) -> ScenarioRun:
    return run_scenario(scenario, hosts=group.hosts, partitions=group.partitions, seed=seed)


def _last_owned_s(run: ScenarioRun) -> float:
    return max(change.at_s for change in run.changes if change.holder is not None)


def _peer_outcome(peer: PeerGroup, *, joining: int) -> Outcome:
    """What happens from the moment on when so many join."""
    before = peer.store.moves
    peer.join(joining)
    cycles = peer.cycles_until(peer.even, max_cycles=MAX_CYCLES)
    return Outcome(cycles=cycles, moves=peer.store.moves - before, spread=peer.spread())


def _shared(name: str, ours: Sequence[Outcome], peers: Sequence[Outcome]) -> list[Row]:
    least = max(each.min_moves for each in ours)
    bars = (
        ("cycles until even", "cycles", at_most(2)),
        ("partitions moved", "moves", exactly(least, f"= least ({least})")),
        ("spread at the end", "spread", at_most(1)),
    )
    return [
        cost(
            f"{name}: {what}",
            _worst(getattr(each, number) for each in ours),
            _worst(getattr(each, number) for each in peers),
            bar,
        )
        for what, number, bar in bars
    ]


def _peer_crash(group: Group, seed: int) -> tuple[int | None, int | None, float]:
    """Cycles from the expiry until all is owned, and until even; seconds from the crash."""
    with peer_group(group.partitions, seed=seed) as peer:
        peer.join(group.hosts)
        peer.settle(max_cycles=_LONG_ENOUGH)
        expires_in_s = peer.crash_one()
        owned_s = peer.seconds_until(peer.all_owned, max_cycles=MAX_CYCLES)
        assert owned_s is not None
        even_s: float | None = 0.0
        if not peer.even():
            even_s = peer.seconds_until(peer.even, max_cycles=MAX_CYCLES)
        return (
            as_cycles(owned_s - expires_in_s),
            None if even_s is None else as_cycles(owned_s + even_s - expires_in_s),
            owned_s,
        )


def _worst(numbers: Iterable[int | None]) -> Value:
    found = list(numbers)
    return NEVER if None in found else max(each for each in found if each is not None)


if __name__ == "__main__":
    sys.exit(main([PART]))
