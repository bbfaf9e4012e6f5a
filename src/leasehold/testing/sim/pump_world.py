"""A world whose hosts do real work: pumps, a log, handlers and a sink, all in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from leasehold.core.backoff import Ladder
from leasehold.core.checkpoint_policy import CheckpointPolicy
from leasehold.core.poison_policy import PoisonPolicy
from leasehold.names import last_part
from leasehold.processor.events import Board, HandlerFailed, HookEvent
from leasehold.processor.lease_thread import LeaseSide
from leasehold.processor.options import Options
from leasehold.processor.pump_manager import Floor
from leasehold.runtime.loop_thread import OneLoop
from leasehold.testing.sim.deliveries import Deliveries
from leasehold.testing.sim.faults import CALM_WORK, WorkRates
from leasehold.testing.sim.host import HostClock
from leasehold.testing.sim.loop import simulated_sleep
from leasehold.testing.sim.sinks import FencedSink
from leasehold.testing.sim.source import SimLog, SimSource
from leasehold.testing.sim.store import SimStore
from leasehold.testing.sim.work import SimHandler
from leasehold.testing.sim.world import Setting, World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leasehold.model import Mark, Ownership
    from leasehold.testing.sim.host import Host

_A_MOMENT_S = 1.0
_RETRIES = PoisonPolicy.retry(pauses=Ladder(base_s=0.3, most_s=3.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpSetting(Setting):
    """How the work is done, beside what a world begins with."""

    work: WorkRates = CALM_WORK
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy.after_each_batch)
    batch_events: int = 8
    one_by_one: bool = False
    handler_limit_s: float | None = None
    stall_after_s: float = 6.0
    give_up_after_s: float | None = 12.0


class PumpWorld(World):
    """Hosts with pumps. A producer adds events until ``producing`` is False."""

    look_every_s = 0.5

    def __init__(self, setting: PumpSetting, *, tell: Callable[[str], None] | None = None) -> None:
        """A world without hosts, and with a log that is empty."""
        super().__init__(setting, tell=tell)
        self.work = setting.work
        self.deliveries = Deliveries(self.checks)
        self.deliveries.tell = self.tell if tell is not None else None
        self.sink = FencedSink(self.deliveries)
        self.log = SimLog("stream", [last_part(key) for key in self.keys])
        self.floors: dict[str, Floor] = {}
        self.producing = True
        self.told: Counter[str] = Counter()
        self._pumps = setting
        self._lots = random.Random(f"{setting.seed}/producer")
        policy = setting.checkpoint  # by events alone, the last few are written with the next ones
        self._unwritten = policy.events - 1 if policy.events and not policy.interval_s else 0
        self._idle_since_s: dict[tuple[str, str, int, str], float] = {}
        self.checks.accepted = self._accepted
        self.checks.term_began = self._term_began
        self._outsiders = [asyncio.create_task(each()) for each in (self._produce, self._operate)]

    # --------------------------------------------------------------- events

    def drain(self, host: Host) -> None:
        """The host is asked to leave in good order."""
        if host.name in self.floors:
            self.floors[host.name].stopping = True
        super().drain(host)

    def calm_down(self) -> None:
        """No more faults, in the work either."""
        super().calm_down()
        self.work = CALM_WORK

    async def end(self) -> None:
        """Stop every host, the producer and the operator."""
        for each in self._outsiders:
            each.cancel()
        for result in await asyncio.gather(*self._outsiders, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await super().end()

    def look(self) -> None:
        """See ``World``; and every key that is held is worked on, and no other."""
        super().look()
        now_s = self.now_s()
        wrong = {}
        for host in self.running:
            if not host.paused and host.name in self.floors:
                for each in self._out_of_step(host, self.floors[host.name]):
                    wrong[each] = self._idle_since_s.get(each, now_s)
        self._idle_since_s = wrong
        for (name, key, epoch, what), since_s in wrong.items():
            if now_s - since_s > _A_MOMENT_S:
                self.checks.broken.append(f"{name}: epoch {epoch} of {key} {what}")
        self.checks.raise_if_broken()

    def _out_of_step(self, host: Host, floor: Floor) -> list[tuple[str, str, int, str]]:
        pumps = {(o.key, o.epoch) for o in (pump.tenure.ownership for pump in floor.pumps)}
        held = {(o.key, o.epoch) for o in host.believed()}
        return [
            *((host.name, *each, "has a pump, and is not held") for each in sorted(pumps - held)),
            *((host.name, *each, "is held, and has no pump") for each in sorted(held - pumps)),
        ]

    # ---------------------------------------------------------------- state

    def behind(self) -> dict[str, tuple[int, int, int]]:
        """The keys that are not done: last event, last with its effect, checkpoint."""
        found = {}
        for key in self.keys:
            last = self.log.next[last_part(key)] - 1
            done, stored = self.deliveries.complete_until(key), self.registry.stored(key)
            if done < last or stored < last - self._unwritten:
                found[key] = (last, done, stored)
        return found

    # ---------------------------------------------------------------- parts

    def _furnish(
        self, host: Host, *, weight: float, most: int | None, drain_limit_s: float
    ) -> Coroutine[Any, Any, None]:
        """Put a processor on the host, both of its sides in one loop."""
        setting = self._pumps
        give_up_s = setting.give_up_after_s
        options = Options(
            strategy=setting.strategy,
            timing=setting.timing,
            weight=weight,
            most_partitions=most,
            drain_limit=timedelta(seconds=drain_limit_s),
            checkpoint=setting.checkpoint,
            batch_events=setting.batch_events,
            prefetch_events=3 * setting.batch_events,
            poison=_RETRIES,
            stall_after=timedelta(seconds=setting.stall_after_s),
            give_up_after=None if give_up_s is None else timedelta(seconds=give_up_s),
        )
        clock, bridge = HostClock(host), OneLoop()
        board = Board([lambda event: self._told(host, event)])
        lease_side = _Watched(
            self,
            host,
            SimStore(self.server, host),
            stream=self.log.name,
            group="group",
            name=host.name,
            options=options,
            bridge=bridge,
            board=board,
            clock=clock,
            rng=host.rng,
            identity=host.new_identity,
        )
        handler = SimHandler(host, clock, self.sink, self.deliveries, lambda: self.work)
        lease_side.floor = self.floors[host.name] = Floor(
            SimSource(self.log, host, lambda: self.work),
            lease_side,
            group="group",
            options=options,
            handlers=handler.handlers(
                one_by_one=setting.one_by_one, limit_s=setting.handler_limit_s
            ),
            bridge=bridge,
            board=board,
            clock=clock,
            rng=host.rng,
        )
        host.member = lease_side.member
        return self._work(host, lease_side)

    async def _work(self, host: Host, lease_side: LeaseSide) -> None:
        await host.gate()
        floor = asyncio.create_task(lease_side.floor.run())
        try:
            await lease_side.run()
        finally:
            host.running = False
            floor.cancel()
            result = (await asyncio.gather(floor, return_exceptions=True))[0]
            if isinstance(result, Exception):
                self.checks.broken.append(f"{host.name}: the work side failed: {result!r}")

    async def _produce(self) -> None:
        while True:
            await simulated_sleep(self._lots.uniform(0.2, 2.0))
            if self.producing:
                partition = self._lots.choice(sorted(self.log.next))
                self.log.append(partition, self._lots.randint(1, 8))

    async def _operate(self) -> None:
        """Now and then an operator sends a member away, or moves a partition, in the storm."""
        lots, registry, server = self._lots, self.registry, self.server
        while True:
            await simulated_sleep(lots.uniform(2.0, 20.0))
            holders = sorted(registry.peers(self.group, server.now()))
            if not holders or self.work is CALM_WORK:
                continue
            holder, key = lots.choice(holders), lots.choice(self.keys)
            if lots.random() < 0.3:
                self.tell(f"-- dismiss {holder}")
                registry.dismiss(holder, server.now(), server.wall())
            else:
                epoch = registry.resources(self.group, server.now())[key].epoch
                registry.suggest(key, epoch, holder, server.now(), server.wall())

    def _told(self, host: Host, event: HookEvent) -> None:
        self.told[type(event).__name__] += 1
        if host.running and host.stands_still:
            self.checks.broken.append(f"{host.name} stands still, and something moved: {event}")
        if isinstance(event, HandlerFailed):
            self.deliveries.failed(f"{self.group}/{event.partition}", event.epoch)

    def _term_began(self, key: str, epoch: int) -> None:
        self.deliveries.term_began(key, epoch, self.registry.stored(key))

    def _accepted(self, mark: Mark) -> None:
        self.deliveries.accepted(mark)

    def drained(self, ownership: Ownership) -> None:
        """A pump says that it has stopped in good order."""
        self.deliveries.drained(ownership, self.registry.stored(ownership.key))


class _Watched(LeaseSide):
    """The real lease side, with the world looking on."""

    def __init__(self, world: PumpWorld, host: Host, store: SimStore, **how: Any) -> None:
        super().__init__(store, **how)
        self._world, self._host = world, host

    def opened(self, ownership: Ownership) -> None:
        self._world.notice(self._host, "opened", ownership, "")
        super().opened(ownership)

    def drain(self, ownership: Ownership) -> bool:
        self._world.notice(self._host, "drain", ownership, "")
        return super().drain(ownership)

    def closed(self, ownership: Ownership, reason: str) -> None:
        self._world.notice(self._host, "closed", ownership, reason)
        super().closed(ownership, reason)

    def drained(self, ownership: Ownership) -> None:
        self._world.drained(ownership)
        super().drained(ownership)
