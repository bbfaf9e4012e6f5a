"""A simulated world with real work: the whole processor on every host, a log, a sink, an operator.

What a run may have beside the faults (``PumpSetting``): handlers in simulated threads, or callers
that pull; events that are skipped or sent to the dead letters; balance by load; an operator who
resets checkpoints; a source that grows.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from leasehold.core.backoff import Backoff
from leasehold.core.checkpoint_policy import CheckpointPolicy
from leasehold.core.poison_policy import PoisonAction, PoisonPolicy
from leasehold.model import Position
from leasehold.names import last_part
from leasehold.processor.events import EventBus, HandlerFailed, HookEvent, Poisoned, PossibleRepeats
from leasehold.processor.lease_thread import LeaseThread
from leasehold.processor.options import ProcessorOptions
from leasehold.processor.pump_manager import PumpManager
from leasehold.runtime.loop_thread import SameLoop
from leasehold.stores.validation import HISTORY_LIMIT
from leasehold.testing.sim.deliveries import Deliveries
from leasehold.testing.sim.faults import NO_WORK_FAULTS, WorkRates
from leasehold.testing.sim.host import HostClock
from leasehold.testing.sim.loop import simulated_sleep
from leasehold.testing.sim.source import SimLog, SimSource
from leasehold.testing.sim.store import SimStore
from leasehold.testing.sim.work import FencedSink, SimDeadLetters, SimHandler, Style
from leasehold.testing.sim.world import Setting, World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leasehold.model import CheckpointWrite, Ownership
    from leasehold.testing.sim.host import Host


_MAX_OUT_OF_STEP_S = 1.0
_MIN_REPORT_S = 20.0  # as long as the store and the source may be unavailable
_MAX_PARTITIONS = 6
_MAX_THREAD_S = 60.0
_STEADY_STEP_S = 1.0
RETRY_PAUSES = Backoff(base_s=0.3, max_s=3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpSetting(Setting):
    """The initial state of a world with pumps.

    ``resets``: an operator resets checkpoints. ``grows``: the source gets more partitions.
    """

    work: WorkRates = NO_WORK_FAULTS
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy.after_each_batch)
    batch_events: int = 8
    one_by_one: bool = False
    handler_timeout_s: float | None = None
    stall_after_s: float = 6.0
    give_up_after_s: float | None = 12.0
    style: Style = Style.ASYNC
    poison: PoisonPolicy = field(default_factory=lambda: PoisonPolicy.retry(pauses=RETRY_PAUSES))
    resets: bool = False
    grows: bool = False
    discovery_s: float = 30.0


class PumpWorld(World):
    """Hosts with pumps and an empty log. A producer adds events while ``producing``."""

    check_interval_s = 0.5

    def __init__(self, setting: PumpSetting, *, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(setting, trace=trace)
        self.work = setting.work
        self.deliveries = Deliveries(self.checks, retries=setting.poison.retries)
        self.deliveries.trace = self.trace if trace is not None else None
        self.sink = FencedSink(self.deliveries)
        self.log = SimLog("stream", [last_part(key) for key in self.keys])
        self.pump_managers: dict[str, PumpManager] = {}
        self.handlers: dict[str, SimHandler] = {}
        self.producing = True
        self.steady_events: dict[str, int] = {}
        self.hook_events: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()
        self._pumps = setting
        self._rng = random.Random(f"{setting.seed}/producer")
        self.option_rng = random.Random(f"{setting.seed}/options")
        policy = setting.checkpoint  # by events alone, the last few are written with the next ones
        self._unwritten = policy.events - 1 if policy.events and not policy.interval_s else 0
        self._idle_since_s: dict[tuple[str, str, int, str], float] = {}
        self.checks.accepted = self._accepted
        self.checks.term_began = self._term_began
        outside = [self._produce, self._operate]
        outside += [self._reset_now_and_then] if setting.resets else []
        outside += [self._grow_now_and_then] if setting.grows else []
        self._outside_tasks = [asyncio.create_task(each()) for each in outside]

    # --------------------------------------------------------------- events

    def drain(self, host: Host) -> None:
        """Ask the host to leave gracefully."""
        if host.name in self.pump_managers:
            self.pump_managers[host.name].stopping = True
        super().drain(host)

    def crash(self, host: Host) -> None:
        """End the process, and all that runs in it."""
        super().crash(host)
        if host.name in self.handlers:
            self.handlers[host.name].kill()

    def stop_faults(self) -> None:
        """End all faults, those of the work, too. The source grows once more, in good weather."""
        super().stop_faults()
        self.work = NO_WORK_FAULTS
        if self._pumps.grows:
            self.grow()

    def grow(self) -> None:
        """Add a partition to the source. Nobody tells the hosts."""
        if len(self.log.next) < _MAX_PARTITIONS:
            partition = self.log.grow()
            self.trace(f"-- the source grows by {partition}")
            self.log.append(partition, self.option_rng.randint(1, 8))

    def reset(self, keys: list[str]) -> bool:
        """Have an operator reset these keys; return False if one of them is owned.

        Then all are as they were.
        """
        rng, registry = self.option_rng, self.registry
        wanted: dict[str, Position | None] = {}
        for key in keys:
            number = rng.randint(-1, self.log.next[last_part(key)] - 1)
            wanted[key] = None if number < 0 else Position(sequence_number=number)
        before = {key: registry.stored(key) for key in keys}
        refused = registry.reset(wanted, self.server.now(), self.server.wall())
        for key, position in wanted.items():
            number = -1 if position is None else position.sequence_number
            stored = registry.stored(key)
            if not refused:
                self.trace(f"-- reset {key} from {before[key]} to {number}")
                self.deliveries.reset(key, number)
            if stored != (before[key] if refused else number):
                self.checks.broken.append(
                    f"{key}: reset to {number} ({'refused' if refused else 'done'}), and the "
                    f"checkpoint went from {before[key]} to {stored}"
                )
        return not refused

    async def end(self) -> None:
        """Stop every host, the producer and the operator."""
        for each in self._outside_tasks:
            each.cancel()
        for result in await asyncio.gather(*self._outside_tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await super().end()
        tasks = [task for handler in self.handlers.values() for task in handler.kill()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self) -> None:
        """Check as ``World``, and that exactly the held keys are worked on."""
        super().check()
        if len(self.keys) < len(self.log.next):
            self._find_declared()
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
        found = [
            *((host.name, *each, "has a pump, and is not held") for each in sorted(pumps - held)),
            *((host.name, *each, "is held, and has no pump") for each in sorted(held - pumps)),
        ]
        if self._pumps.style is Style.PULL:
            clients = {
                (self._key(each.partition), each.epoch)
                for each in self.handlers[host.name].clients
                if each.close_reason is None
            }
            found += [
                (host.name, *each, "has an open client, and is not held")
                for each in sorted(clients - held)
            ]
        return found

    def check_threads(self) -> None:
        """Check, when there were no faults for a while, that no thread waits without an end."""
        for host in self.running:
            waits_s = self.handlers[host.name].threads.longest_s()
            if waits_s > _MAX_THREAD_S:
                self.checks.broken.append(f"{host.name}: a thread waits since {waits_s:.0f} s")

    def check_counts(self) -> None:
        """Check that what was given up is counted as that."""
        counts = [manager.event_bus.counts() for manager in self.pump_managers.values()]
        given_up = Counter(
            {
                PoisonAction.SKIP.value: sum(each.events_skipped for each in counts),
                PoisonAction.DEAD_LETTER.value: sum(each.events_dead_lettered for each in counts),
            }
        )
        if given_up != self.given_up:
            self.checks.broken.append(f"given up: {self.given_up}, and counted: {given_up}")

    # ---------------------------------------------------------------- state

    def behind(self) -> dict[str, tuple[int, int, int]]:
        """Return the keys that are not done: last event, last with its effect, checkpoint."""
        found = {}
        for partition, end in self.log.next.items():
            key, last = self._key(partition), end - 1
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
        letters: SimDeadLetters | None = None
        if setting.poison.then is PoisonAction.DEAD_LETTER:
            letters = SimDeadLetters(host, self.deliveries, lambda: self.work)
        options = ProcessorOptions(
            strategy=setting.strategy,
            timing=setting.timing,
            weight=weight,
            max_partitions=most,
            drain_timeout=timedelta(seconds=drain_timeout_s),
            checkpoint=setting.checkpoint,
            batch_events=setting.batch_events,
            prefetch_events=3 * setting.batch_events,
            poison=setting.poison,
            dead_letters=letters,
            discovery_interval=timedelta(seconds=setting.discovery_s),
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
        handler = self.handlers[host.name] = SimHandler(
            host, clock, self.sink, self.deliveries, lambda: self.work, seed=setting.seed
        )
        lease_thread.pump_manager = self.pump_managers[host.name] = PumpManager(
            SimSource(self.log, host, lambda: self.work),
            lease_thread,
            group="group",
            options=options,
            handlers=handler.handlers(
                setting.style, one_by_one=setting.one_by_one, timeout_s=setting.handler_timeout_s
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
            if self.steady_events:
                await simulated_sleep(_STEADY_STEP_S)
                for partition, events in self.steady_events.items():
                    self.log.append(partition, events)
                continue
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

    async def _reset_now_and_then(self) -> None:
        """Reset a key at random while there are faults; almost always it is owned."""
        while True:
            await simulated_sleep(self.option_rng.uniform(0.2, 4.0))
            if self.work is not NO_WORK_FAULTS:
                self.reset([self.option_rng.choice(self.keys)])

    async def _grow_now_and_then(self) -> None:
        while True:
            await simulated_sleep(self.option_rng.uniform(2.0, 30.0))
            if self.work is not NO_WORK_FAULTS:
                self.grow()

    def _find_declared(self) -> None:
        """Add the keys of new partitions that a host has declared."""
        declared = self.registry.resources(self.group, self.server.now())
        keys = [self._key(partition) for partition in self.log.next]
        self.keys = [key for key in keys if key in declared]

    def _key(self, partition: str) -> str:
        return f"{self.group}/{partition}"

    def _on_hook_event(self, host: Host, event: HookEvent) -> None:
        self.hook_events[type(event).__name__] += 1
        if host.running and host.is_stopped:
            self.checks.broken.append(f"{host.name} stands still, and something moved: {event}")
        match event:
            case HandlerFailed():
                self.deliveries.failed(self._key(event.partition), event)
            case Poisoned():
                self.given_up[event.action] += 1
                self.trace(f"{host.name} gives up: {event.action} {event.sequence_number}")
                self.deliveries.given_up(self._key(event.partition), event)
            case PossibleRepeats():
                self.deliveries.repeats_reported(self._key(event.partition), event.epoch)
            case _:
                pass

    def check_repeats(self) -> None:
        """Check that what came again was reported by an owner that was there for long enough."""
        self.deliveries.check_repeats(self._was_there_for_long)
        self.checks.raise_if_broken()

    def _was_there_for_long(self, key: str, epoch: int) -> bool:
        for term in self.registry.history(key, HISTORY_LIMIT):
            if term.epoch == epoch:
                lasted = (term.ended_at or self.server.wall()) - term.started_at
                return lasted.total_seconds() >= _MIN_REPORT_S
        return False

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
