"""Fault injection, one run per seed: faults, then none, then the balance is checked.

Phase 1: hosts crash, pause for longer than their lease, join and leave; messages are late, lost,
duplicated; the store becomes unavailable. Nothing unsafe may happen, at any step.

Phase 2: the faults stop. As soon as only living members have leases and nothing is in flight, all
keys must be owned and even within 2 cycles, with the fewest moves.

Phase 3: one host joins, leaves or crashes without other faults; again 2 cycles (after the lease of
a crashed one has ended), again the fewest moves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.core.balance import Snapshot, min_moves
from leasehold.core.lease_timing import LeaseTiming
from leasehold.model import KeyClaim
from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.faults import NO_FAULTS, draw_fault_rates
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.scenario import joining, leaving, moves_since
from leasehold.testing.sim.world import Setting, World

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from leasehold.model import MemberInfo

_CYCLES_TO_BALANCE = 2
_MAX_SETTLE_S = 240.0
_STEP_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRun:
    """The result of a seed: equal in every run. ``story`` digests every step."""

    seed: int
    hosts: int
    partitions: int
    simulated_s: float
    changes: int
    writes_accepted: int
    writes_refused: int
    story: str


def run_faults(seed: int, *, trace: Callable[[str], None] | None = None) -> FaultRun:
    """Run one seed; ``trace`` is called with each step, as text.

    Raises ``InvariantBroken`` with the seed, which repeats the run exactly.
    """
    try:
        return run_simulated(_run_phases(seed, trace))
    except InvariantBroken as broken:
        raise InvariantBroken(f"seed {seed}: {broken}") from broken


async def _run_phases(seed: int, trace: Callable[[str], None] | None) -> FaultRun:
    world = World(Setting(seed=seed, partitions=1))
    rng = world.rng
    lease_s = rng.choice((6.0, 10.0, 15.0))
    setting = replace(
        world.setting,
        partitions=rng.randint(1, 24),
        timing=LeaseTiming.of(lease=timedelta(seconds=lease_s)),
        rates=draw_fault_rates(rng),
    )
    world = World(setting, trace=trace)
    world.rng = rng
    try:
        await inject_faults(world, lease_s)
        world.stop_faults()
        world.trace("the faults stop")
        await wait_for_faults_to_end(world)
        await check_balanced_soon(world, world.snapshot(), "after the faults")
        await check_balanced_soon(world, await change_one_host(world), "after one change")
    finally:
        await world.end()
    world.check()
    return FaultRun(
        seed=seed,
        hosts=len(world.hosts),
        partitions=len(world.keys),
        simulated_s=world.now_s(),
        changes=len(world.checks.changes),
        writes_accepted=world.checks.writes_accepted,
        writes_refused=world.checks.writes_refused,
        story=_digest(world),
    )


def _digest(world: World) -> str:
    """Return all changes of owner with their times, and all calls, in a few characters."""
    # Counts without the names of the calls: a new name is not another story.
    calls = [sorted(host.member.calls.values()) for host in world.hosts if host.member]
    text = repr([(c.at_s, c.key, c.holder) for c in world.checks.changes]) + repr(calls)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ------------------------------------------------------------------- phase 1


async def inject_faults(
    world: World, lease_s: float, *, max_hosts: int = 6, max_steps: int = 12
) -> None:
    """Inject faults, one after the other, into a few hosts."""
    rng = world.rng
    for _ in range(rng.randint(1, max_hosts)):
        start_host(world)
    for _ in range(rng.randint(3, max_steps)):
        await world.pass_time(rng.uniform(0.0, lease_s))
        await _inject_one(world, lease_s)
    await world.pass_time(rng.uniform(0.0, 2 * lease_s))


def start_host(world: World) -> None:
    """Start a host; its size and its network are drawn."""
    rng = world.rng
    host = world.start(
        weight=rng.choice((1.0, 1.0, 1.0, 2.0, 0.5)),
        most=rng.randint(0, 8) if rng.random() < 0.1 else None,
        drain_timeout_s=rng.choice((1.0, 30.0)),
    )
    if rng.random() < 0.05:
        # A one-way network: its requests arrive, and no answer ever comes back.
        host.rates = replace(host.rates, answer_lost=1.0)


async def _inject_one(world: World, lease_s: float) -> None:
    rng, running = world.rng, world.running
    what = rng.choice(
        ("start", "crash", "drain", "pause", "outage", "break", "ask", "restart", "roll")
    )
    world.trace(f"-- {what}")
    if what == "start" or len(running) < 2:
        start_host(world)
    elif what in ("crash", "restart"):
        world.crash(rng.choice(running))
        if what == "restart":
            start_host(world)
    elif what == "drain":
        world.drain(rng.choice(running))
    elif what == "pause":
        rng.choice(running).pause(rng.uniform(0.5, 3.0) * lease_s)
    elif what == "outage":
        world.server.up = False
        await world.pass_time(rng.uniform(0.0, 2 * lease_s))
        world.server.up = True
    elif what == "roll":
        for host in running:
            start_host(world)
            world.drain(host)
            await world.pass_time(rng.uniform(0.0, lease_s))
    elif what == "ask":
        _ask(world, rng)
    else:
        _break(world, rng, lease_s)


def _ask(world: World, rng: random.Random) -> None:
    """Ask for another holder's key, as an operator's tool does."""
    server, registry = world.server, world.registry
    resource = registry.resources(world.group, server.now())[rng.choice(world.keys)]
    lease = registry.lease_of(
        rng.choice(sorted(registry.members(world.group, server.now()) or [""]))
    )
    if lease is not None:
        want = KeyClaim(key=resource.key, seen_epoch=resource.epoch)
        registry.ask(lease, want, server.now(), server.wall())


def _break(world: World, rng: random.Random, lease_s: float) -> None:
    """Break an ownership as an operator does; its holder has the time to learn of it."""
    server = world.server
    key = rng.choice(world.keys)
    epoch = server.registry.resources(world.group, server.now())[key].epoch
    server.registry.break_(key, epoch, lease_s * rng.uniform(1, 2), server.now(), server.wall())


# ------------------------------------------------------------------- phase 2


async def wait_for_faults_to_end(world: World) -> None:
    """Wait until no effect of the faults is left: no late message, no expired host."""
    if not world.running:
        world.start()
    # A message may still be in flight for this long, and be followed by its copy.
    await world.pass_time(2 * world.setting.rates.max_delay_s)
    await wait_until_settled(world)


async def wait_until_settled(world: World) -> None:
    """Wait until only living members have leases, and nothing is in flight."""
    waited_s = 0.0
    while not _is_settled(world):
        await world.pass_time(_STEP_S)
        waited_s += _STEP_S
        if waited_s > _MAX_SETTLE_S:
            raise InvariantBroken(f"no calm {_MAX_SETTLE_S:g} s after the faults stopped")


def _is_settled(world: World) -> bool:
    """Return whether the store's members are the living ones, and none is in mid-cycle."""
    if not world.running:
        world.start()
        return False
    members = world.snapshot().members
    living = {host.member.holder for host in world.running if host.member}
    leaving = any(info.draining for info in members.values())
    at_rest = all(host.member is not None and host.member.settled for host in world.running)
    calls = world.server.in_flight
    if leaving or not at_rest or set(members) != living or calls:
        return False
    # A member that has passed on what was stuck takes less than its share for a while.
    return all(
        members[member.holder].most == member.options.most
        for member in (host.member for host in world.running)
        if member is not None and member.holder is not None
    )


async def check_balanced_soon(world: World, before: Snapshot, when: str) -> None:
    """Check that the group is balanced within two cycles, with the fewest moves."""
    begun = len(world.checks.changes)
    fewest = min_moves(before)
    await world.pass_time(_CYCLES_TO_BALANCE * world.setting.timing.renew_s * 1.06 + 1.0)
    after = world.snapshot()
    if min_moves(after) or not all_placed(after):
        counts = {holder: len(keys) for holder, keys in after.keys_by_owner().items()}
        raise InvariantBroken(f"not even {_CYCLES_TO_BALANCE} cycles {when}: {counts}")
    moves = moves_since(before, world.checks.changes[begun:])
    if moves != fewest:
        raise InvariantBroken(f"{moves} moves {when}, where {fewest} were enough")


def all_placed(snapshot: Snapshot) -> bool:
    """Return whether every key has an owner, as far as the members' limits allow."""
    free = [r for r in snapshot.resources.values() if r.holder not in snapshot.members]
    return not free or not has_room(snapshot)


def has_room(snapshot: Snapshot) -> bool:
    """Return whether a member may take another key."""
    keys = snapshot.keys_by_owner()

    def takes_more(holder: str, info: MemberInfo) -> bool:
        return not info.draining and (info.most is None or len(keys[holder]) < info.most)

    return any(takes_more(holder, info) for holder, info in snapshot.members.items())


# ------------------------------------------------------------------- phase 3


async def change_one_host(world: World) -> Snapshot:
    """Let one host join, leave or crash; wait no longer than for its lease."""
    world.rates = NO_FAULTS
    what = world.rng.choice(("join", "drain", "crash"))
    host = world.rng.choice(world.running)
    if what == "join" or len(world.running) == 1:
        before = world.snapshot()
        world.start()
        return joining(before)
    if what == "crash":
        holder = host.member.holder if host.member else None
        world.crash(host)
        # Its last renewal may still be on the wire, so wait for the lease, not for its length.
        while holder in world.snapshot().members:
            await world.pass_time(_STEP_S)
    else:
        before = leaving(world.snapshot(), host)
        world.drain(host)
        return before
    return world.snapshot()
