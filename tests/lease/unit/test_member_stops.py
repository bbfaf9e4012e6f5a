"""The work is told to stop in time, whatever the loop is waiting for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from leasehold import LeaseTiming, Member, MemberOptions
from leasehold.clock import SystemClock
from leasehold.errors import StoreUnusable
from leasehold.model import KeyClaim, Lease, MemberInfo, Ownership
from leasehold.names import partition_group, partition_key
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.world import Setting, World

KEY = partition_key("orders", "billing", "0")
# So long that nothing but the watch can be what ends the work.
OPTIONS = MemberOptions(
    group=partition_group("orders", "billing"), timing=LeaseTiming.of(lease=timedelta(seconds=100))
)


class Keeper:
    def __init__(self) -> None:
        self.opened_one = anyio.Event()
        self.closed_one = anyio.Event()
        self.reason = ""

    def opened(self, ownership: Ownership) -> None:
        self.opened_one.set()

    def drain(self, ownership: Ownership) -> bool:
        return True

    def closed(self, ownership: Ownership, reason: str) -> None:
        self.reason = reason
        self.closed_one.set()


class SuspendedClock(SystemClock):
    """A machine that sleeps: its boot clock goes on, the timers of the event loop do not."""

    asleep_s = 0.0

    def boottime_s(self) -> float:
        return super().boottime_s() + self.asleep_s

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.01))  # nothing in this test needs the wait to join


@pytest.mark.anyio
async def test_after_a_suspend_the_work_ends_though_the_loop_sleeps_on() -> None:
    clock, keeper = SuspendedClock(), Keeper()
    store = MemoryStore(clock)
    await store.declare([KEY])
    member = Member(store, OPTIONS, keeper=keeper, clock=clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(member.run)
        await keeper.opened_one.wait()
        renewals = member.calls["renew"]
        clock.asleep_s = 99.0
        with anyio.fail_after(10):  # the loop's own next look is 30 s away
            await keeper.closed_one.wait()
        assert keeper.reason == "local_deadline"
        assert member.calls["renew"] == renewals
        tasks.cancel_scope.cancel()


class ClingingStore(MemoryStore):
    """A driver that does not let go of a call at once when it is cancelled."""

    def __init__(self, clock: SystemClock) -> None:
        super().__init__(clock)
        self.clings = False
        self.hangs = anyio.Event()
        self.lets_go = anyio.Event()

    async def renew(self, lease: Lease, **how: Any) -> Any:
        if not self.clings:
            return await super().renew(lease, **how)
        self.hangs.set()
        with anyio.CancelScope(shield=True):
            await self.lets_go.wait()
        return await super().renew(lease, **how)


@pytest.mark.anyio
async def test_cancelling_ends_the_work_before_the_driver_lets_go() -> None:
    keeper, store = Keeper(), ClingingStore(SystemClock())
    await store.declare([KEY])
    member = Member(store, OPTIONS, keeper=keeper, clock=SuspendedClock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(member.run)
        await keeper.opened_one.wait()
        store.clings = True
        member.report_loads({KEY: 1.0})
        member._wake.set()
        await store.hangs.wait()
        tasks.cancel_scope.cancel()
        with anyio.move_on_after(10, shield=True):
            await keeper.closed_one.wait()
        told_first = keeper.closed_one.is_set()
        store.lets_go.set()
    assert told_first
    assert keeper.reason == "shutdown"


def _play(story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World(Setting(seed=1, partitions=2, writes=False))
        try:
            await story(world)
        finally:
            await world.end()

    run_simulated(main())


def _unusable(*_: object, **__: object) -> Any:
    raise StoreUnusable("the disk is full")


def test_a_store_that_never_worked_ends_the_member_with_the_reason() -> None:
    async def story(world: World) -> None:
        world.registry.grant = _unusable  # type: ignore[method-assign]
        host = world.start()
        with pytest.raises(StoreUnusable, match="disk is full"):
            await world.pass_time(1.0)
        assert not host.running

    _play(story)


def test_a_store_that_is_unusable_for_a_while_is_survived() -> None:
    async def story(world: World) -> None:
        host = world.start()
        await world.pass_time(1.0)
        assert host.member is not None
        assert len(host.member.held()) == 2
        world.registry.renew = _unusable  # type: ignore[method-assign]
        await world.pass_time(30.0)
        assert host.running
        assert host.member.held() == []
        del world.registry.renew
        await world.pass_time(10.0)
        assert len(host.member.held()) == 2

    _play(story)


def test_who_asks_from_outside_the_group_is_given_the_key() -> None:
    async def story(world: World) -> None:
        host = world.start()
        await world.pass_time(1.0)
        asker = Lease(holder="tool", token="t", group="", duration_s=1000.0)
        now, wall = world.server.now(), world.server.wall()
        world.registry.grant(asker, MemberInfo(), now, wall)
        want = KeyClaim(key=world.keys[0], seen_epoch=1)
        assert world.registry.ask(asker, want, now, wall)
        await world.pass_time(4.0)
        assert world.registry.resources(world.group, world.now_s())[want.key].handed_to == "tool"
        assert host.member is not None
        assert host.member.holds(want.key) is None

    _play(story)
