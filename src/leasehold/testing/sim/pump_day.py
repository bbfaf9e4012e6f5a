"""One bad day of real work per seed: the day of ``storm``, with pumps, handlers and a sink.

The faults of the members are those of ``storm``; beside them reads fail and hang, handlers fail,
take longer than a lease, and write checkpoints of their own, and late writes reach the sink. When
the faults have stopped, every event must have been handled and every checkpoint be at the end
within a bound; and the balance is demanded as in ``storm``, while events go on coming.
"""

from __future__ import annotations

import hashlib
import logging
import random
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.core.checkpoint_policy import CheckpointPolicy
from leasehold.core.lease_timing import Timing
from leasehold.testing.sim.checks import InvariantBroken
from leasehold.testing.sim.fault_run import balanced_soon, calm, one_change, settled, storm
from leasehold.testing.sim.faults import stormy, stormy_work
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.pump_world import PumpSetting, PumpWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_LONGEST_TO_CATCH_UP_S = 120.0
_STEP_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpDay:
    """What a seed led to: equal in every run of the same seed. ``story`` digests every step.

    ``calls`` counts the handlers that were started, ``repeated`` those whose events had been
    handled before, ``orderly`` the terms that ended in good order, ``zombies`` the writes of
    former owners that the sink has refused. ``told`` counts the events of the hooks by name.
    """

    seed: int
    hosts: int
    partitions: int
    simulated_s: float
    events: int
    calls: int
    repeated: int
    orderly: int
    zombies: int
    writes_accepted: int
    writes_refused: int
    told: Mapping[str, int]
    story: str


def run_pump_day(seed: int, *, tell: Callable[[str], None] | None = None) -> PumpDay:
    """Live through one seed; ``tell`` is told what happens, step by step.

    Raises:
        InvariantBroken: with the seed, which repeats it exactly.
    """
    try:
        with _silent():
            return run_simulated(_day(seed, tell))
    except InvariantBroken as broken:
        raise InvariantBroken(f"seed {seed}: {broken}") from broken


def drawn(seed: int) -> PumpSetting:
    """The setting of a day."""
    rng = random.Random(f"{seed}/pumps")
    lease_s = rng.choice((4.0, 6.0))
    return PumpSetting(
        seed=seed,
        partitions=rng.randint(1, 4),
        timing=Timing.of(lease=timedelta(seconds=lease_s)),
        rates=replace(
            stormy(rng),
            # So late that a checkpoint may come when its term is over.
            late_request=rng.choice((0.0, 0.05, 0.2)),
            duplicated=rng.choice((0.0, 0.1)),
            longest_delay_s=8.0,
            longest_pause_s=12.0,
        ),
        work=stormy_work(rng, lease_s),
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
        handler_limit_s=rng.choice((None, None, 2.0)),
    )


async def _day(seed: int, tell: Callable[[str], None] | None) -> PumpDay:
    setting = drawn(seed)
    world = PumpWorld(setting, tell=tell)
    try:
        await storm(world, setting.timing.lease_s, most_hosts=3, most_steps=5)
        world.calm_down()
        world.tell("the faults stop")
        await calm(world)
        await _caught_up(world)
        await settled(world)
        await balanced_soon(world, world.snapshot(), "after the storm")
        await balanced_soon(world, await one_change(world), "after one change")
        await _caught_up(world)
    finally:
        await world.end()
    world.look()
    return PumpDay(
        seed=seed,
        hosts=len(world.hosts),
        partitions=len(world.keys),
        simulated_s=world.now_s(),
        events=sum(world.log.next.values()),
        calls=world.deliveries.begun_calls,
        repeated=world.deliveries.repeated,
        orderly=world.deliveries.orderly,
        zombies=world.sink.refused,
        writes_accepted=world.checks.writes_accepted,
        writes_refused=world.checks.writes_refused,
        told=dict(sorted(world.told.items())),
        story=_digest(world),
    )


async def _caught_up(world: PumpWorld) -> None:
    """Stop producing, wait until nothing is left to be done, and go on producing.

    Raises:
        InvariantBroken: it takes too long.
    """
    world.producing = False
    for partition in world.log.next:
        world.log.append(partition, 1)
    waited_s = 0.0
    while behind := world.behind():
        if all(host.member and host.member.options.most is not None for host in world.running):
            world.start()  # somebody must be there who may take all
        await world.pass_time(_STEP_S)
        waited_s += _STEP_S
        if waited_s > _LONGEST_TO_CATCH_UP_S:
            raise InvariantBroken(
                f"not all handled and stored {waited_s:g} s after the faults stopped "
                f"(last event, handled, checkpoint): {behind}"
            )
    world.producing = True


def _digest(world: PumpWorld) -> str:
    """All changes of owner with their moments, all calls, in a few characters."""
    # Counts without the names of the calls: a new name is not another story.
    calls = [sorted(host.member.calls.values()) for host in world.hosts if host.member]
    changes = [(change.at_s, change.key, change.holder) for change in world.checks.changes]
    text = repr((changes, calls, world.deliveries.begun_calls, sorted(world.log.next.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _silent() -> Iterator[None]:
    """Handlers fail by the hundred: nobody wants to read of it."""
    loggers = [logging.getLogger(f"leasehold.{name}") for name in ("processor", "member")]
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, disabled in zip(loggers, before, strict=True):
            each.disabled = disabled
