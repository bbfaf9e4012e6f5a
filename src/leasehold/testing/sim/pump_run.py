"""Fault injection with real work, one run per seed: pumps, handlers and a sink.

The faults of the members are those of ``fault_run``. In addition reads fail and hang, handlers
fail, take longer than a lease, and write their own checkpoints, and late writes reach the sink.
When the faults have stopped, every event must be handled and every checkpoint be at the end within
a time limit; and the balance is checked as in ``fault_run``, while events continue to arrive.

The sink is outside, beyond the reach of a lease, fenced by epochs. A write that was sent is in
flight, whatever becomes of its handler: it arrives after the handler was cancelled, and after the
host has crashed. So a former owner does write late; the sink refuses it once a later owner has
written.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from leasehold.core.backoff import Backoff
from leasehold.core.checkpoint_policy import CheckpointPolicy
from leasehold.core.lease_timing import LeaseTiming
from leasehold.core.poison_policy import PoisonPolicy
from leasehold.errors import CheckpointBehind
from leasehold.names import last_part, partition_key
from leasehold.processor.events import EventBus, HandlerFailed, HookEvent
from leasehold.processor.handlers import Handlers
from leasehold.processor.lease_thread import LeaseThread
from leasehold.processor.options import ProcessorOptions
from leasehold.processor.pump_manager import PumpManager
from leasehold.runtime.loop_thread import SameLoop
from leasehold.testing.sim.checks import Deliveries, InvariantBroken
from leasehold.testing.sim.fault_run import (
    change_one_host,
    check_balanced_soon,
    inject_faults,
    wait_for_faults_to_end,
    wait_until_settled,
)
from leasehold.testing.sim.faults import (
    NO_WORK_FAULTS,
    WorkRates,
    draw_fault_rates,
    draw_work_rates,
)
from leasehold.testing.sim.host import HostClock
from leasehold.testing.sim.loop import run_simulated, simulated_sleep
from leasehold.testing.sim.source import SimLog, SimSource
from leasehold.testing.sim.store import SimStore
from leasehold.testing.sim.world import Setting, World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from leasehold.events.event import Event, EventBatch
    from leasehold.model import CheckpointWrite, Ownership
    from leasehold.processor.context import AsyncPartitionContext
    from leasehold.testing.sim.host import Host


class SinkRefused(Exception):
    """A later owner has written: this one is a zombie."""


class FencedSink:
    """Takes events; in each partition none of an older epoch after a newer one."""

    def __init__(self, deliveries: Deliveries) -> None:
        self.refused = 0
        self._deliveries = deliveries
        self._epochs: dict[str, int] = {}

    async def write(self, key: str, epoch: int, first: int, last: int, *, after_s: float) -> None:
        """Send events: they arrive after a while, even if the caller is gone by then."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        if after_s:
            loop.call_later(after_s, self._arrive, answer, key, epoch, first, last)
        else:
            self._arrive(answer, key, epoch, first, last)
        if not await answer:
            raise SinkRefused(f"epoch {epoch} of {key} is over: {self._epochs[key]} has written")

    def _arrive(
        self, answer: asyncio.Future[bool], key: str, epoch: int, first: int, last: int
    ) -> None:
        accepted = self._takes(key, epoch)
        if accepted:
            self._epochs[key] = max(epoch, self._epochs.get(key, 0))
            self._deliveries.effect(key, epoch, first, last)
        else:
            self.refused += 1
        if not answer.done():
            answer.set_result(accepted)

    def _takes(self, key: str, epoch: int) -> bool:
        return epoch >= self._epochs.get(key, 0)


class SimulatedFailure(Exception):
    """The handler fails, this time."""


class SimHandler:
    """Puts every event into the sink, and then returns.

    Half of the hosts check before they write whether they may; the others rely on the fence.
    ``rates`` returns the current faults.
    """

    def __init__(
        self,
        host: Host,
        clock: HostClock,
        sink: FencedSink,
        deliveries: Deliveries,
        rates: Callable[[], WorkRates],
    ) -> None:
        self._host = host
        self._clock = clock
        self._sink = sink
        self._deliveries = deliveries
        self._rates = rates
        self._checks_first = host.rng.random() < 0.5

    def handlers(self, *, one_by_one: bool, timeout_s: float | None) -> Handlers:
        """Return the functions of a processor."""
        if one_by_one:
            return Handlers(on_event=self.on_event, timeout_s=timeout_s)
        return Handlers(on_batch=self.on_batch, timeout_s=timeout_s)

    async def on_batch(self, context: AsyncPartitionContext, batch: EventBatch) -> None:
        """Handle a batch."""
        await self._handle(context, batch.first_sequence, batch.last_sequence)

    async def on_event(self, context: AsyncPartitionContext, event: Event) -> None:
        """Handle an event."""
        await self._handle(context, event.sequence_number, event.sequence_number)

    async def _handle(self, context: AsyncPartitionContext, first: int, last: int) -> None:
        key = partition_key(context.stream, context.group, context.partition)
        self._deliveries.begun(self._host, key, context.epoch, first, last)
        succeeded = False
        try:
            await self._work(context, key, first, last)
            succeeded = True
        finally:
            self._deliveries.ended(key, context.epoch, succeeded=succeeded)

    async def _work(self, context: AsyncPartitionContext, key: str, first: int, last: int) -> None:
        rates, rng = self._rates(), self._host.rng
        slow = rates.handler_slow and rng.random() < rates.handler_slow
        await self._clock.sleep(rng.uniform(0.0, rates.slow_s if slow else rates.usual_s))
        until = rng.randint(first, last)
        await self._put(context, key, first, until)
        if rates.own_checkpoints and rng.random() < rates.own_checkpoints:
            self._deliveries.checkpoint_requested(key, context.epoch, until)
            with suppress(CheckpointBehind):  # a later one had been written for it
                await context.checkpoint(until)
        if rates.handler_fails and rng.random() < rates.handler_fails:
            raise SimulatedFailure(f"simulated: the handler fails at event {until}")
        if until < last:
            await self._put(context, key, until + 1, last)

    async def _put(self, context: AsyncPartitionContext, key: str, first: int, last: int) -> None:
        rates, rng = self._rates(), self._host.rng
        if self._checks_first:
            context.check()
        late = rates.late and rng.random() < rates.late
        after_s = rng.uniform(0.0, rates.late_s) if late else 0.0
        try:
            await self._sink.write(key, context.epoch, first, last, after_s=after_s)
        except SinkRefused:
            await self._host.gate()
            raise
        await self._host.gate()
        self._deliveries.has_effect(key, context.epoch, last)


_MAX_OUT_OF_STEP_S = 1.0
_RETRIES = PoisonPolicy.retry(pauses=Backoff(base_s=0.3, max_s=3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpSetting(Setting):
    """The initial state of a world with pumps."""

    work: WorkRates = NO_WORK_FAULTS
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy.after_each_batch)
    batch_events: int = 8
    one_by_one: bool = False
    handler_timeout_s: float | None = None
    stall_after_s: float = 6.0
    give_up_after_s: float | None = 12.0


class PumpWorld(World):
    """Hosts with pumps and an empty log. A producer adds events while ``producing``."""

    check_interval_s = 0.5

    def __init__(self, setting: PumpSetting, *, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(setting, trace=trace)
        self.work = setting.work
        self.deliveries = Deliveries(self.checks)
        self.deliveries.trace = self.trace if trace is not None else None
        self.sink = FencedSink(self.deliveries)
        self.log = SimLog("stream", [last_part(key) for key in self.keys])
        self.pump_managers: dict[str, PumpManager] = {}
        self.producing = True
        self.hook_events: Counter[str] = Counter()
        self._pumps = setting
        self._rng = random.Random(f"{setting.seed}/producer")
        policy = setting.checkpoint  # by events alone, the last few are written with the next ones
        self._unwritten = policy.events - 1 if policy.events and not policy.interval_s else 0
        self._idle_since_s: dict[tuple[str, str, int, str], float] = {}
        self.checks.accepted = self._accepted
        self.checks.term_began = self._term_began
        self._outside_tasks = [
            asyncio.create_task(each()) for each in (self._produce, self._operate)
        ]

    # --------------------------------------------------------------- events

    def drain(self, host: Host) -> None:
        """Ask the host to leave gracefully."""
        if host.name in self.pump_managers:
            self.pump_managers[host.name].stopping = True
        super().drain(host)

    def stop_faults(self) -> None:
        """End all faults, those of the work, too."""
        super().stop_faults()
        self.work = NO_WORK_FAULTS

    async def end(self) -> None:
        """Stop every host, the producer and the operator."""
        for each in self._outside_tasks:
            each.cancel()
        for result in await asyncio.gather(*self._outside_tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await super().end()

    def check(self) -> None:
        """Check as ``World``, and that exactly the held keys are worked on."""
        super().check()
        now_s = self.now_s()
        wrong = {}
        for host in self.running:
            if not host.paused and host.name in self.pump_managers:
                for each in self._out_of_step(host, self.pump_managers[host.name]):
                    wrong[each] = self._idle_since_s.get(each, now_s)
        self._idle_since_s = wrong
        for (name, key, epoch, what), since_s in wrong.items():
            if now_s - since_s > _MAX_OUT_OF_STEP_S:
                self.checks.broken.append(f"{name}: epoch {epoch} of {key} {what}")
        self.checks.raise_if_broken()

    def _out_of_step(
        self, host: Host, pump_manager: PumpManager
    ) -> list[tuple[str, str, int, str]]:
        pumps = {(o.key, o.epoch) for o in (pump.handle.ownership for pump in pump_manager.pumps)}
        held = {(o.key, o.epoch) for o in host.locally_owned()}
        return [
            *((host.name, *each, "has a pump, and is not held") for each in sorted(pumps - held)),
            *((host.name, *each, "is held, and has no pump") for each in sorted(held - pumps)),
        ]

    # ---------------------------------------------------------------- state

    def behind(self) -> dict[str, tuple[int, int, int]]:
        """Return the keys that are not done: last event, last with its effect, checkpoint."""
        found = {}
        for key in self.keys:
            last = self.log.next[last_part(key)] - 1
            done, stored = self.deliveries.complete_until(key), self.registry.stored(key)
            if done < last or stored < last - self._unwritten:
                found[key] = (last, done, stored)
        return found

    # ---------------------------------------------------------------- parts

    def _install(
        self, host: Host, *, weight: float, most: int | None, drain_timeout_s: float
    ) -> Coroutine[Any, Any, None]:
        """Put a processor on the host, both of its loops in one."""
        setting = self._pumps
        give_up_s = setting.give_up_after_s
        options = ProcessorOptions(
            strategy=setting.strategy,
            timing=setting.timing,
            weight=weight,
            max_partitions=most,
            drain_timeout=timedelta(seconds=drain_timeout_s),
            checkpoint=setting.checkpoint,
            batch_events=setting.batch_events,
            prefetch_events=3 * setting.batch_events,
            poison=_RETRIES,
            stall_after=timedelta(seconds=setting.stall_after_s),
            give_up_after=None if give_up_s is None else timedelta(seconds=give_up_s),
        )
        clock, loop_link = HostClock(host), SameLoop()
        event_bus = EventBus([lambda event: self._on_hook_event(host, event)])
        lease_thread = _CheckedLeaseThread(
            self,
            host,
            SimStore(self.server, host),
            stream=self.log.name,
            group="group",
            name=host.name,
            options=options,
            loop_link=loop_link,
            event_bus=event_bus,
            clock=clock,
            rng=host.rng,
            identity=host.new_identity,
        )
        handler = SimHandler(host, clock, self.sink, self.deliveries, lambda: self.work)
        lease_thread.pump_manager = self.pump_managers[host.name] = PumpManager(
            SimSource(self.log, host, lambda: self.work),
            lease_thread,
            group="group",
            options=options,
            handlers=handler.handlers(
                one_by_one=setting.one_by_one, timeout_s=setting.handler_timeout_s
            ),
            loop_link=loop_link,
            event_bus=event_bus,
            clock=clock,
            rng=host.rng,
        )
        host.member = lease_thread.member
        return self._work(host, lease_thread)

    async def _work(self, host: Host, lease_thread: LeaseThread) -> None:
        await host.gate()
        pump_manager = asyncio.create_task(lease_thread.pump_manager.run())
        try:
            await lease_thread.run()
        finally:
            host.running = False
            pump_manager.cancel()
            result = (await asyncio.gather(pump_manager, return_exceptions=True))[0]
            if isinstance(result, Exception):
                self.checks.broken.append(f"{host.name}: the work side failed: {result!r}")

    async def _produce(self) -> None:
        while True:
            await simulated_sleep(self._rng.uniform(0.2, 2.0))
            if self.producing:
                partition = self._rng.choice(sorted(self.log.next))
                self.log.append(partition, self._rng.randint(1, 8))

    async def _operate(self) -> None:
        """Ask a member to leave, or move a partition, at random while there are faults."""
        rng, registry, server = self._rng, self.registry, self.server
        while True:
            await simulated_sleep(rng.uniform(2.0, 20.0))
            holders = sorted(registry.members(self.group, server.now()))
            if not holders or self.work is NO_WORK_FAULTS:
                continue
            holder, key = rng.choice(holders), rng.choice(self.keys)
            if rng.random() < 0.3:
                self.trace(f"-- dismiss {holder}")
                registry.request_leave(holder, server.now(), server.wall())
            else:
                epoch = registry.resources(self.group, server.now())[key].epoch
                registry.request_hand_over(key, epoch, holder, server.now(), server.wall())

    def _on_hook_event(self, host: Host, event: HookEvent) -> None:
        self.hook_events[type(event).__name__] += 1
        if host.running and host.is_stopped:
            self.checks.broken.append(f"{host.name} stands still, and something moved: {event}")
        if isinstance(event, HandlerFailed):
            self.deliveries.failed(f"{self.group}/{event.partition}", event.epoch)

    def _term_began(self, key: str, epoch: int) -> None:
        self.deliveries.term_began(key, epoch, self.registry.stored(key))

    def _accepted(self, write: CheckpointWrite) -> None:
        self.deliveries.accepted(write)

    def drained(self, ownership: Ownership) -> None:
        """Record that a pump has stopped gracefully."""
        self.deliveries.drained(ownership, self.registry.stored(ownership.key))


class _CheckedLeaseThread(LeaseThread):
    """The real lease thread, with the world watching."""

    def __init__(self, world: PumpWorld, host: Host, store: SimStore, **how: Any) -> None:
        super().__init__(store, **how)
        self._world, self._host = world, host

    def opened(self, ownership: Ownership) -> None:
        self._world.key_event(self._host, "opened", ownership, "")
        super().opened(ownership)

    def drain(self, ownership: Ownership) -> bool:
        self._world.key_event(self._host, "drain", ownership, "")
        return super().drain(ownership)

    def closed(self, ownership: Ownership, reason: str) -> None:
        self._world.key_event(self._host, "closed", ownership, reason)
        super().closed(ownership, reason)

    def drained(self, ownership: Ownership) -> None:
        self._world.drained(ownership)
        super().drained(ownership)


_MAX_CATCH_UP_S = 120.0
_STEP_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpRun:
    """The result of a seed: equal in every run. ``story`` digests every step.

    ``calls``: handler calls; ``repeated``: those whose events had been handled before; ``orderly``:
    terms that ended gracefully; ``zombies``: writes of former owners that the sink has refused;
    ``hook_events``: events of the hooks by name.
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
    return PumpSetting(
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


async def _run_phases(seed: int, trace: Callable[[str], None] | None) -> PumpRun:
    setting = draw_setting(seed)
    world = PumpWorld(setting, trace=trace)
    try:
        await inject_faults(world, setting.timing.lease_s, max_hosts=3, max_steps=5)
        world.stop_faults()
        world.trace("the faults stop")
        await wait_for_faults_to_end(world)
        await _wait_until_caught_up(world)
        await wait_until_settled(world)
        await check_balanced_soon(world, world.snapshot(), "after the faults")
        await check_balanced_soon(world, await change_one_host(world), "after one change")
        await _wait_until_caught_up(world)
    finally:
        await world.end()
    world.check()
    return PumpRun(
        seed=seed,
        hosts=len(world.hosts),
        partitions=len(world.keys),
        simulated_s=world.now_s(),
        events=sum(world.log.next.values()),
        calls=world.deliveries.calls_begun,
        repeated=world.deliveries.repeated,
        orderly=world.deliveries.orderly,
        zombies=world.sink.refused,
        writes_accepted=world.checks.writes_accepted,
        writes_refused=world.checks.writes_refused,
        hook_events=dict(sorted(world.hook_events.items())),
        story=_digest(world),
    )


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
