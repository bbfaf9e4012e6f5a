"""A member looks right when somebody's lease ends, and at no other time more often than before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from leasehold import LeaseTiming, Strategy
from leasehold.model import Changes, Lease, MemberInfo
from leasehold.testing.sim.checks import CheckedRegistry
from leasehold.testing.sim.faults import FaultRates
from leasehold.testing.sim.host import Host
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.world import Setting, World

LAN = FaultRates(latency_s=0.005)
SLOW = FaultRates(latency_s=0.5)
# Renewals as rare as they may be: the others' leases have the least left when one looks.
RARE = LeaseTiming.of(
    lease=timedelta(seconds=10),
    renew_interval=timedelta(seconds=4.9),
    call_timeout=timedelta(seconds=2),
)
LEASE_S, CYCLE_S, MINUTE_S = 10.0, 3.0, 60.0
# The grace and its chance are 2 % of the lease each; what is left is for the calls.
LATEST_S = LEASE_S * 1.04 + 0.1
MAX_LOOKS = 4


class Silent(CheckedRegistry):
    """A store that does not tell when the next lease ends: what members did before."""

    def renew(self, *given: Any) -> Changes:
        return replace(super().renew(*given), next_end_s=None)


class NeverOver(CheckedRegistry):
    """A store in which something is always about to end, and never does."""

    def renew(self, *given: Any) -> Changes:
        return replace(super().renew(*given), next_end_s=0.0)


class Noting(CheckedRegistry):
    """Notes when each holder renews."""

    renewals: dict[str, list[float]]

    def renew(
        self, lease: Lease, since: int, info: MemberInfo | None, now: float, wall: datetime
    ) -> Changes:
        if not hasattr(self, "renewals"):
            self.renewals = defaultdict(list)
        self.renewals[lease.holder].append(now)
        return super().renew(lease, since, info, now, wall)


def play(
    story: Callable[[World], Awaitable[None]],
    *,
    seed: int = 1,
    rates: FaultRates = LAN,
    timing: LeaseTiming | None = None,
    registry: type[CheckedRegistry] = CheckedRegistry,
    strategy: Strategy = Strategy.EVEN,
) -> None:
    async def main() -> None:
        world = World(
            Setting(
                seed=seed,
                partitions=24,
                strategy=strategy,
                timing=timing or LeaseTiming(),
                rates=rates,
                writes=False,
            ),
            registry=registry,
        )
        try:
            await story(world)
        finally:
            await world.end()

    run_simulated(main())


async def settled(world: World, hosts: int) -> None:
    """Hosts that came at different moments, and have shared out the keys."""
    for _ in range(hosts):
        world.start()
        await world.pass_time(world.rng.uniform(0.0, 2 * CYCLE_S / hosts))
    await world.pass_time(30 * CYCLE_S)
    assert world.all_owned()


def longest_gap_s(world: World, crashed_s: float) -> float:
    """From the crash until the last of the dead host's keys was taken."""
    free = {c.key for c in world.checks.changes if c.at_s == crashed_s and c.holder is None}
    taken: dict[str, float] = {}
    for change in world.checks.changes:
        if change.key in free and change.at_s > crashed_s and change.holder is not None:
            taken.setdefault(change.key, change.at_s)
    assert free
    assert free == set(taken)
    return max(taken.values()) - crashed_s


def gap_s(hosts: int, seed: int, registry: type[CheckedRegistry] = CheckedRegistry) -> float:
    gaps: list[float] = []

    async def story(world: World) -> None:
        await settled(world, hosts)
        await world.pass_time(world.rng.uniform(0.0, CYCLE_S))
        crashed_s = world.now_s()
        world.crash(world.rng.choice(world.running))
        await world.pass_time(2 * LEASE_S)
        gaps.append(longest_gap_s(world, crashed_s))

    play(story, seed=seed, registry=registry)
    return gaps[0]


@pytest.mark.spec("B2", "P3")
@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_the_keys_of_a_dead_host_are_taken_when_its_lease_ends(hosts: int) -> None:
    assert max(gap_s(hosts, seed) for seed in range(6)) <= LATEST_S


def test_without_being_told_they_are_taken_up_to_a_cycle_later() -> None:
    """Else the test above would show nothing."""
    assert max(gap_s(2, seed, Silent) for seed in range(12)) > LATEST_S + CYCLE_S / 3


@pytest.mark.spec("B2")
def test_many_dead_at_once_are_all_found_within_a_third_of_a_cycle() -> None:
    async def story(world: World) -> None:
        await settled(world, 6)
        crashed_s = world.now_s()
        for host in world.running[:4]:
            world.crash(host)
        await world.pass_time(2 * LEASE_S)
        assert longest_gap_s(world, crashed_s) <= LATEST_S + CYCLE_S / 3

    for seed in range(6):
        play(story, seed=seed)


def calls_in_a_minute(
    hosts: int, registry: type[CheckedRegistry], **setting: Any
) -> list[dict[str, int]]:
    counted: list[dict[str, int]] = []

    async def story(world: World) -> None:
        await settled(world, hosts)
        members = [host.member for host in world.running if host.member]
        before = [member.calls.copy() for member in members]
        await world.pass_time(MINUTE_S)
        counted.extend(dict(m.calls - b) for m, b in zip(members, before, strict=True))

    play(story, registry=registry, **setting)
    return counted


@pytest.mark.spec("B1")
@pytest.mark.parametrize("hosts", [1, 2, 7, 40])
@pytest.mark.parametrize("setting", [{}, {"timing": RARE}, {"rates": SLOW}])
def test_a_healthy_group_makes_no_call_more_than_before(
    hosts: int, setting: dict[str, Any]
) -> None:
    now = calls_in_a_minute(hosts, CheckedRegistry, **setting)
    assert now == calls_in_a_minute(hosts, Silent, **setting)
    cycle_s = setting.get("timing", LeaseTiming()).renew_s
    assert {name for calls in now for name in calls} == {"renew"}
    assert all(abs(calls["renew"] - MINUTE_S / cycle_s) <= 1 for calls in now)


@pytest.mark.spec("B9")
def test_an_end_that_never_comes_makes_nobody_spin() -> None:
    (alone,) = calls_in_a_minute(1, NeverOver)
    assert MINUTE_S / CYCLE_S < alone["renew"] <= MAX_LOOKS * (MINUTE_S / CYCLE_S + 1)


@pytest.mark.spec("B9")
def test_a_member_with_a_very_short_lease_makes_nobody_spin() -> None:
    async def story(world: World) -> None:
        await settled(world, 2)
        hasty = Lease(holder="hasty", token="t", group=world.group, duration_s=0.5)
        info = MemberInfo(draining=True)
        members = [host.member for host in world.running if host.member]
        world.registry.grant(hasty, info, world.now_s(), world.server.wall())
        before = [member.calls["renew"] for member in members]
        until_s = world.now_s() + MINUTE_S
        while world.now_s() < until_s:
            await world.pass_time(0.2)
            world.registry.renew(hasty, 0, None, world.now_s(), world.server.wall())
        for member, known in zip(members, before, strict=True):
            assert member.calls["renew"] - known <= MAX_LOOKS * (MINUTE_S / CYCLE_S + 1)

    play(story)


def renewals(world: World) -> dict[str, list[float]]:
    assert isinstance(world.registry, Noting)
    return world.registry.renewals


@pytest.mark.spec("B1")
def test_a_death_does_not_bring_the_others_into_step() -> None:
    """They look together when it ends, and renew each at its own time as before."""

    def phases(world: World, survivors: list[Host]) -> dict[str, float]:
        holders = [host.member.holder for host in survivors if host.member]
        return {holder: renewals(world)[holder][-1] % CYCLE_S for holder in holders if holder}

    async def story(world: World) -> None:
        await settled(world, 12)
        dead, *survivors = world.running
        before = phases(world, survivors)
        assert max(before.values()) - min(before.values()) > CYCLE_S / 4
        world.crash(dead)
        await world.pass_time(LEASE_S + 4 * CYCLE_S)
        for holder, phase in phases(world, survivors).items():
            moved_s = (phase - before[holder] + CYCLE_S / 2) % CYCLE_S - CYCLE_S / 2
            assert abs(moved_s) < 0.1

    play(story, registry=Noting)


@pytest.mark.parametrize("strategy", [each for each in Strategy if each.steals])
def test_the_older_strategies_are_told_as_well(strategy: Strategy) -> None:
    async def story(world: World) -> None:
        await settled(world, 2)
        dead, other = world.running
        holder = dead.member.holder if dead.member else None
        world.crash(dead)
        await world.pass_time(LATEST_S)
        assert other.member is not None
        assert holder not in other.member.view.members

    for seed in range(10):
        play(story, seed=seed, strategy=strategy)
