"""A simulated world from one seed: a store, hosts that come and go, and the checks."""

from __future__ import annotations

import asyncio
import random
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from leasehold.core.balance import Snapshot, Strategy
from leasehold.core.lease_timing import LeaseTiming
from leasehold.errors import LeaseholdError
from leasehold.lease.member import Member
from leasehold.lease.options import MemberOptions
from leasehold.model import Position
from leasehold.names import partition_group, partition_key
from leasehold.testing.sim.checks import Change, CheckedRegistry, Checks
from leasehold.testing.sim.faults import NO_FAULTS, FaultRates
from leasehold.testing.sim.host import HOST, Host, HostClock, HostKeyHandler
from leasehold.testing.sim.loop import simulated_sleep
from leasehold.testing.sim.store import SimServer, SimStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leasehold.model import Ownership


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The initial state of a world."""

    seed: int
    partitions: int
    strategy: Strategy = Strategy.EVEN
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    rates: FaultRates = NO_FAULTS
    writes: bool = True


class World:
    """Hosts and a store in simulated time. Create it inside ``run_simulated``.

    It begins without hosts; all keys are free. ``trace`` is called with each step, as text.
    """

    check_interval_s = 0.25

    def __init__(
        self,
        setting: Setting,
        *,
        trace: Callable[[str], None] | None = None,
        registry: type[CheckedRegistry] = CheckedRegistry,
    ) -> None:
        self.setting = setting
        self._trace = trace
        self.rng = random.Random(setting.seed)
        self.rates = setting.rates
        self.checks = Checks()
        self.hosts: list[Host] = []
        self.group = partition_group("stream", "group")
        self.keys = [
            partition_key("stream", "group", f"{number:04}") for number in range(setting.partitions)
        ]
        self.registry = registry(self.checks, self.now_s)
        self.registry.declare(self.keys)
        self.server = SimServer(self.registry)
        if not setting.strategy.steals:
            self.checks.term_ended = self._term_ended
        self._names = count(1)
        self._positions = count(1)

    def now_s(self) -> float:
        """Return the simulated seconds: the store's clock."""
        return asyncio.get_running_loop().time()

    @property
    def running(self) -> list[Host]:
        """The hosts that have not crashed and not left."""
        return [host for host in self.hosts if host.running]

    def trace(self, what: str) -> None:
        """Report a step to the ``trace`` function, if there is one."""
        if self._trace is not None:
            self._trace(f"{self.now_s():9.3f} {what}")

    # --------------------------------------------------------------- events

    def start(
        self, *, weight: float = 1.0, most: int | None = None, drain_timeout_s: float = 30.0
    ) -> Host:
        """Start a new host."""
        name = f"host{next(self._names):02}"
        rng = random.Random(f"{self.setting.seed}/{name}")
        host = Host(name, rng=rng, rates=self.rates)
        context = copy_context()
        context.run(HOST.set, host)
        running = self._install(host, weight=weight, most=most, drain_timeout_s=drain_timeout_s)
        host.task = asyncio.create_task(running, context=context)
        self.hosts.append(host)
        self.trace(f"{host.name} starts")
        return host

    def crash(self, host: Host) -> None:
        """End the process: it sends nothing more. What it sent is still in flight."""
        for ownership in host.locally_owned():
            # The store still shows it as their owner; no host works on them.
            change = Change(at_s=self.now_s(), key=ownership.key, holder=None)
            self.checks.changes.append(change)
        host.running = False
        self.trace(f"{host.name} crashes")
        if host.task is not None:
            host.task.cancel()

    def drain(self, host: Host) -> None:
        """Ask the host to leave gracefully."""
        if host.member is not None:
            host.member.drain()

    def stop_faults(self) -> None:
        """End all faults: every host runs, the store is up, calls are quick."""
        self.rates = NO_FAULTS
        self.server.up = True
        for host in self.hosts:
            host.rates = NO_FAULTS

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, with a check every ``check_interval_s``."""
        until_s = self.now_s() + seconds
        while (left_s := until_s - self.now_s()) > 0:
            await simulated_sleep(min(self.check_interval_s, left_s))
            self.check()

    def check(self) -> None:
        """Raise what was found so far, and any error that ended a host."""
        if not self.setting.strategy.steals:
            self.checks.one_local_owner(self.hosts)
            for host in self.running:
                for ownership in host.locally_owned():
                    self._by_right(host, ownership)
        self.checks.raise_if_broken()
        for host in self.hosts:
            task = host.task
            if task is not None and task.done() and not task.cancelled() and task.exception():
                task.result()

    async def end(self) -> None:
        """Stop every host, so that nothing is left running."""
        tasks = [host.task for host in self.hosts if host.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---------------------------------------------------------------- state

    def snapshot(self) -> Snapshot:
        """Return the group as the store has it now."""
        now = self.server.now()
        return Snapshot(
            members={
                h: member.info for h, member in self.registry.members(self.group, now).items()
            },
            resources=self.registry.resources(self.group, now),
        )

    def all_owned(self) -> bool:
        """Return whether every key is owned by a living member."""
        snapshot = self.snapshot()
        return all(resource.holder in snapshot.members for resource in snapshot.resources.values())

    # ---------------------------------------------------------------- parts

    def _install(
        self, host: Host, *, weight: float, most: int | None, drain_timeout_s: float
    ) -> Coroutine[Any, Any, None]:
        """Put a member on the host; return the coroutine that runs it."""
        options = MemberOptions(
            group=self.group,
            name=host.name,
            strategy=self.setting.strategy,
            timing=self.setting.timing,
            weight=weight,
            most=most,
            drain_timeout=timedelta(seconds=drain_timeout_s),
        )
        host.key_handler = HostKeyHandler(host, self.key_event)
        host.member = Member(
            SimStore(self.server, host),
            options,
            clock=HostClock(host),
            rng=host.rng,
            keeper=host.key_handler,
            identity=host.new_identity,
        )
        return self._run_host(host, host.member)

    async def _run_host(self, host: Host, member: Member) -> None:
        writer = asyncio.create_task(self._write(host, member)) if self.setting.writes else None
        try:
            await host.gate()
            await member.run()
        finally:
            host.running = False
            if writer is not None:
                writer.cancel()

    async def _write(self, host: Host, member: Member) -> None:
        """Write a checkpoint for some of the held keys at random times, as work would."""
        clock = HostClock(host)
        while True:
            await clock.sleep(host.rng.uniform(0.2, 2.0))
            held = member.held()
            if not held:
                continue
            keys = {host.rng.choice(held).key for _ in range(2)}
            number = next(self._positions)
            try:
                await member.checkpoint(
                    {key: Position(sequence_number=number) for key in sorted(keys)}
                )
            except LeaseholdError:
                continue

    def _term_ended(self, key: str) -> None:
        """Check that the former owner of a term that ended in the store has stopped before."""
        for host in self.running:
            ownership = host.member.holds(key) if host.member else None
            if ownership is not None:
                self._by_right(host, ownership)

    def _by_right(self, host: Host, ownership: Ownership) -> None:
        backed = self.registry.backs(ownership, self.server.now())
        self.checks.backed(host, ownership, by_store=backed)

    def key_event(self, host: Host, what: str, ownership: Ownership, reason: str) -> None:
        """Record a call that a host's member made to its key handler."""
        reason = f" ({reason})" if reason else ""
        self.trace(f"{host.name} {what} {ownership.key} epoch {ownership.epoch}{reason}")
        if what != "drain":
            self.checks.works(ownership, host.name, self.now_s(), on=what == "opened")
        if what == "opened" and not self.setting.strategy.steals:
            # The member owns it locally from the next statement on: check then.
            asyncio.get_running_loop().call_soon(self._term_ended, ownership.key)
            awake = [each.name for each in self.running if not each.paused]
            self.checks.one_worker(ownership.key, awake)
