"""Fault injection with real work, one run per seed: pumps, handlers and a sink.

The faults of the members are those of ``fault_run``. In addition reads fail and hang, handlers
fail, take longer than a lease, and write their own checkpoints, and late writes reach the sink.
What else a run has is drawn from a stream of its own: see ``pump_world``.

When the faults have stopped, every event must be dealt with and every checkpoint be at the end
within a time limit; and the balance is checked as in ``fault_run``, while events continue to
arrive. Balance by load promises less: every key has an owner, and under a steady load the moves
come to an end.
"""

from __future__ import annotations

import hashlib
import logging
import random
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.core.balance import Strategy
from leasehold.core.checkpoint_policy import CheckpointPolicy
from leasehold.core.lease_timing import LeaseTiming
from leasehold.core.poison_policy import PoisonAction, PoisonPolicy
from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.fault_run import (
    all_placed,
    change_one_host,
    check_balanced_soon,
    has_room,
    inject_faults,
    start_host,
    wait_for_faults_to_end,
    wait_until_settled,
)
from leasehold.testing.sim.faults import draw_fault_rates, draw_work_rates
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.pump_world import RETRY_PAUSES, PumpSetting, PumpWorld
from leasehold.testing.sim.scenario import moves_since
from leasehold.testing.sim.work import Style

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_MAX_CATCH_UP_S = 120.0
_MAX_STOP_S = 120.0
_CYCLES_TO_PLACE = 3
_METERS_FOLLOW_S = 15.0
_MAX_UNSTEADY = 8  # a partition that has moved is measured from 0: some half-lives of the meter
_STEADY_CYCLES = 6
_STEP_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpRun:
    """The result of a seed: equal in every run. ``story`` digests every step.

    ``options``: what was drawn beside the faults; ``changes``: of owners; ``calls``: handler calls;
    ``repeated``: those whose events had been handled before; ``orderly``: terms that ended
    gracefully; ``zombies``: writes of former owners that the sink has refused; ``skipped``,
    ``dead_letters``: events that were given up; ``resets``: of checkpoints; ``hook_events``: events
    of the hooks by name.
    """

    seed: int
    options: tuple[str, ...]
    hosts: int
    partitions: int
    simulated_s: float
    changes: int
    events: int
    calls: int
    repeated: int
    orderly: int
    zombies: int
    skipped: int
    dead_letters: int
    resets: int
    writes_accepted: int
    writes_refused: int
    hook_events: Mapping[str, int]
    story: str


def run_pump_faults(seed: int, *, trace: Callable[[str], None] | None = None) -> PumpRun:
    """Run one seed; ``trace`` is called with each step, as text.

    Raises ``InvariantBroken`` with the seed, which repeats the run exactly.
    """
    try:
        with _loggers_disabled():
            return run_simulated(_run_phases(seed, trace))
    except InvariantBroken as broken:
        raise InvariantBroken(f"seed {seed}: {broken}") from broken


def draw_setting(seed: int) -> PumpSetting:
    """Draw the setting of a run."""
    rng = random.Random(f"{seed}/pumps")
    lease_s = rng.choice((4.0, 6.0))
    setting = PumpSetting(
        seed=seed,
        partitions=rng.randint(1, 4),
        timing=LeaseTiming.of(lease=timedelta(seconds=lease_s)),
        rates=replace(
            draw_fault_rates(rng),
            # So late that a checkpoint may come when its term is over.
            late_request=rng.choice((0.0, 0.05, 0.2)),
            duplicated=rng.choice((0.0, 0.1)),
            max_delay_s=8.0,
            max_pause_s=12.0,
        ),
        work=draw_work_rates(rng, lease_s),
        checkpoint=rng.choice(
            (
                CheckpointPolicy.after_each_batch(),
                CheckpointPolicy.every(events=20),
                CheckpointPolicy.every(interval=timedelta(seconds=3)),
                CheckpointPolicy.every(events=10, interval=timedelta(seconds=1)),
            )
        ),
        batch_events=rng.randint(1, 12),
        one_by_one=rng.random() < 0.25,
        handler_timeout_s=rng.choice((None, None, 2.0)),
        stall_after_s=rng.choice((2.0, 6.0)),
        give_up_after_s=rng.choice((None, 12.0, 12.0)),
    )
    return _draw_options(setting, lease_s)


def _draw_options(setting: PumpSetting, lease_s: float) -> PumpSetting:
    """Draw what a run has beside the faults, from a stream of its own: the faults stay the same."""
    rng = random.Random(f"{setting.seed}/pump options")
    style = rng.choice((Style.ASYNC, Style.ASYNC, Style.THREAD, Style.THREAD, Style.PULL))
    retries = rng.randint(0, 2)
    poison = rng.choice(
        (
            setting.poison,
            setting.poison,
            PoisonPolicy.skip(retries=retries, pauses=RETRY_PAUSES),
            PoisonPolicy.dead_letter(retries=retries, pauses=RETRY_PAUSES),
        )
    )
    strategy = Strategy.BY_LOAD if rng.random() < 0.2 else Strategy.EVEN
    resets, grows = rng.random() < 0.25, rng.random() < 0.25
    discovery_s = rng.choice((3.0, 10.0))
    share, letters_fail = rng.uniform(0.0, 0.1), rng.choice((0.0, 0.2))
    late, late_s = rng.choice((0.0, 0.05, 0.2)), lease_s * rng.choice((0.1, 2.0))
    work = setting.work
    if style is Style.PULL:  # its caller has no way to refuse a batch
        poison, work = setting.poison, replace(work, handler_fails=0.0)
    if style is Style.THREAD:
        work = replace(work, thread_late=late, thread_late_s=late_s)
    if poison.then is not PoisonAction.STOP:
        work = replace(work, poison=share, letters_fail=letters_fail)
    return replace(
        setting,
        style=style,
        poison=poison,
        strategy=strategy,
        resets=resets,
        grows=grows,
        discovery_s=discovery_s if grows else setting.discovery_s,
        work=work,
    )


def _option_names(setting: PumpSetting) -> tuple[str, ...]:
    drawn = {
        setting.style.value: True,
        setting.poison.then.value: setting.poison.retries is not None,
        setting.strategy.value: setting.strategy is not Strategy.EVEN,
        "resets": setting.resets,
        "grows": setting.grows,
    }
    return tuple(name for name, has in drawn.items() if has)


async def _run_phases(seed: int, trace: Callable[[str], None] | None) -> PumpRun:
    setting = draw_setting(seed)
    world = PumpWorld(setting, trace=trace)
    try:
        await inject_faults(world, setting.timing.lease_s, max_hosts=3, max_steps=5)
        if setting.resets:
            await _reset_the_group(world, setting.timing.lease_s)
        world.stop_faults()
        world.trace("the faults stop")
        await wait_for_faults_to_end(world)
        await _wait_until_caught_up(world)
        await wait_until_settled(world)
        if setting.strategy is Strategy.EVEN:
            await check_balanced_soon(world, world.snapshot(), "after the faults")
            await check_balanced_soon(world, await change_one_host(world), "after one change")
        else:
            await _check_placed_soon(world, "after the faults")
            await change_one_host(world)
            await _check_placed_soon(world, "after one change")
            await _check_damped(world)
        await _wait_until_caught_up(world)
        world.check_threads()
        world.check_counts()
        world.check_repeats()
    finally:
        await world.end()
    world.check()
    return PumpRun(
        seed=seed,
        options=_option_names(setting),
        hosts=len(world.hosts),
        partitions=len(world.keys),
        simulated_s=world.now_s(),
        changes=len(world.checks.changes),
        events=sum(world.log.next.values()),
        calls=world.deliveries.calls_begun,
        repeated=world.deliveries.repeated,
        orderly=world.deliveries.orderly,
        zombies=world.sink.refused,
        skipped=world.deliveries.skipped,
        dead_letters=world.deliveries.letters,
        resets=world.deliveries.resets,
        writes_accepted=world.checks.writes_accepted,
        writes_refused=world.checks.writes_refused,
        hook_events=dict(sorted(world.hook_events.items())),
        story=_digest(world),
    )


async def _reset_the_group(world: PumpWorld, lease_s: float) -> None:
    """Stop all hosts, reset checkpoints when none is owned, and start hosts again.

    The faults continue: what the hosts have sent may arrive after the reset.
    """
    rng = world.option_rng
    world.trace("-- the group is stopped for a reset")
    for host in world.running:
        if rng.random() < 0.3:
            world.crash(host)
        else:
            world.drain(host)
    keys = rng.sample(world.keys, rng.randint(1, len(world.keys)))
    waited_s = 0.0
    while not world.reset(keys):
        await world.pass_time(_STEP_S)
        waited_s += _STEP_S
        if waited_s > _MAX_STOP_S:
            raise InvariantBroken(f"the group was not left within {_MAX_STOP_S:g} s")
    for host in world.running:
        world.drain(host)
    for _ in range(rng.randint(1, 2)):
        start_host(world)
    await world.pass_time(rng.uniform(0.0, 3 * lease_s))


async def _check_placed_soon(world: PumpWorld, when: str) -> None:
    """Check that within a few cycles every key has an owner, or is on its way to one."""
    await world.pass_time(_CYCLES_TO_PLACE * world.setting.timing.renew_s * 1.06 + 1.0)
    snapshot = world.snapshot()
    free = [key for key, each in snapshot.resources.items() if snapshot.owner_of(each) is None]
    if free and has_room(snapshot):
        raise InvariantBroken(f"keys without an owner {_CYCLES_TO_PLACE} cycles {when}: {free}")


async def _check_damped(world: PumpWorld) -> None:
    """Check that the moves come to an end when each partition has a load that does not change."""
    rng = world.option_rng
    world.steady_events = {partition: rng.randint(1, 4) for partition in world.log.next}
    await world.pass_time(_METERS_FOLLOW_S)
    moves = 0
    for _ in range(_MAX_UNSTEADY):
        before, begun = world.snapshot(), len(world.checks.changes)
        await world.pass_time(_STEADY_CYCLES * world.setting.timing.renew_s)
        moves = moves_since(before, world.checks.changes[begun:])
        if not moves:
            break
    else:
        raise InvariantBroken(f"{moves} moves under a steady load that has lasted for a while")
    if not all_placed(world.snapshot()):
        raise InvariantBroken("keys without an owner under a steady load")
    world.steady_events = {}


async def _wait_until_caught_up(world: PumpWorld) -> None:
    """Stop producing, wait until nothing is left to be done, and resume producing."""
    world.producing = False
    for partition in world.log.next:
        world.log.append(partition, 1)
    waited_s = 0.0
    while behind := world.behind():
        if all(host.member and host.member.options.most is not None for host in world.running):
            world.start()  # one host must be allowed to take all
        await world.pass_time(_STEP_S)
        waited_s += _STEP_S
        if waited_s > _MAX_CATCH_UP_S:
            raise InvariantBroken(
                f"not all handled and stored {waited_s:g} s after the faults stopped "
                f"(last event, handled, checkpoint): {behind}"
            )
    world.producing = True


def _digest(world: PumpWorld) -> str:
    """Return all changes of owner with their times, and all calls, in a few characters."""
    # Counts without the names of the calls: a new name is not another story.
    calls = [sorted(host.member.calls.values()) for host in world.hosts if host.member]
    changes = [(change.at_s, change.key, change.holder) for change in world.checks.changes]
    text = repr((changes, calls, world.deliveries.calls_begun, sorted(world.log.next.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _loggers_disabled() -> Iterator[None]:
    """Disable the loggers: handlers fail by the hundred here."""
    loggers = [logging.getLogger(f"leasehold.{name}") for name in ("processor", "member")]
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, disabled in zip(loggers, before, strict=True):
            each.disabled = disabled
