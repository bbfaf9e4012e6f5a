"""One member, step by step, on a simulated store that does as it is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leasehold import LeaseTiming, Member, MemberOptions, Strategy
from leasehold.errors import (
    CheckpointBehind,
    FencedWrite,
    InvalidOptions,
    LeaseLost,
    UsageError,
)
from leasehold.model import Checkpoint, EndReason, KeyClaim, Lease, MemberInfo, Ownership, Position
from leasehold.testing.sim.faults import NO_FAULTS
from leasehold.testing.sim.host import Host
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.world import Setting, World

PARTITIONS = 6
CYCLE_S = 3.0


def play(story: Callable[[World], Awaitable[None]], *, strategy: Strategy = Strategy.EVEN) -> None:
    async def main() -> None:
        world = World(Setting(seed=1, partitions=PARTITIONS, strategy=strategy, writes=False))
        try:
            await story(world)
        finally:
            await world.end()

    run_simulated(main())


async def joined(world: World) -> tuple[Host, Member]:
    host = world.start()
    await world.pass_time(1.0)
    assert host.member is not None
    return host, host.member


def steal(world: World, key: str, *, after_s: float = 100.0) -> None:
    """Somebody outside the simulation takes the key by force."""
    registry, server = world.registry, world.server
    lease = Lease(holder="thief", token="t", group="", duration_s=after_s)
    now, wall = server.now(), server.wall()
    registry.grant(lease, MemberInfo(), now, wall)
    epoch = registry.resources(world.group, now)[key].epoch
    want = KeyClaim(key=key, seen_epoch=epoch)
    assert registry.claim(lease, [want], force=True, now=now, wall=wall)


def _lease_of(host: Host) -> Lease:
    assert host.member is not None
    lease = host.member._lease
    assert lease is not None
    return lease


@pytest.mark.spec("B1", "P3")
def test_it_takes_all_keys_when_it_is_alone_and_then_only_renews() -> None:
    async def story(world: World) -> None:
        _, member = await joined(world)
        assert len(member.held()) == PARTITIONS
        before = dict(member.calls)
        await world.pass_time(10 * CYCLE_S)
        assert {k: n - before.get(k, 0) for k, n in member.calls.items() if n != before[k]} == {
            "renew": 10
        }

    play(story)


@pytest.mark.spec("P5", "P9")
def test_without_the_store_it_holds_on_until_its_trust_ends_and_not_longer() -> None:
    async def story(world: World) -> None:
        _, member = await joined(world)
        world.server.up = False
        await world.pass_time(5.0)
        assert len(member.held()) == PARTITIONS
        await world.pass_time(4.0)
        assert member.held() == []
        # The store would still honour the lease: belief has ended before.
        assert member.holder is None or world.registry.members(world.group, world.now_s())

    play(story)


@pytest.mark.spec("P5", "L4")
def test_after_the_outage_it_comes_back_as_a_new_holder() -> None:
    async def story(world: World) -> None:
        _, member = await joined(world)
        first = member.holder
        world.server.up = False
        await world.pass_time(20.0)
        world.server.up = True
        await world.pass_time(2 * CYCLE_S)
        assert member.holder not in (None, first)
        assert {ownership.epoch for ownership in member.held()} == {2}

    play(story)


@pytest.mark.spec("P5", "C5")
@pytest.mark.parametrize("then", ["join again", "leave"])
def test_the_history_says_lapsed_of_what_was_given_up_after_the_local_deadline(then: str) -> None:
    """The store extended the lease by renewals whose answers were lost: it did not expire there."""

    async def story(world: World) -> None:
        host, member = await joined(world)
        host.rates = replace(NO_FAULTS, answer_lost=1.0)
        while member.held():
            await world.pass_time(0.1)
        if then == "leave":
            member.drain()
        host.rates = NO_FAULTS
        await world.pass_time(2 * CYCLE_S)
        for key in world.keys:
            (first,) = [each for each in world.registry.history(key, 10) if each.epoch == 1]
            assert first.reason is EndReason.LAPSED

    play(story)


@pytest.mark.spec("P4", "P9")
def test_a_claim_that_came_too_late_is_no_error_and_is_not_held() -> None:
    async def story(world: World) -> None:
        (_, one), (_, two) = await joined(world), await joined(world)
        await world.pass_time(2 * CYCLE_S)
        keys = {o.key for o in one.held()}
        assert keys.isdisjoint(o.key for o in two.held())
        assert len(keys) == PARTITIONS // 2

    play(story)


@pytest.mark.spec("P6", "L3")
def test_what_was_stolen_is_closed_at_the_next_renewal() -> None:
    async def story(world: World) -> None:
        _, member = await joined(world)
        steal(world, world.keys[0])
        await world.pass_time(CYCLE_S + 0.5)
        assert member.holds(world.keys[0]) is None

    play(story, strategy=Strategy.GREEDY)


@pytest.mark.spec("L7")
def test_a_fenced_checkpoint_is_told_once_and_closes_the_key() -> None:
    async def story(world: World) -> None:
        _, member = await joined(world)
        key = world.keys[0]
        await member.checkpoint({key: Position(sequence_number=1)})
        steal(world, key)
        with pytest.raises(FencedWrite) as refused:
            await member.checkpoint({key: Position(sequence_number=2)})
        assert refused.value.key == key
        with pytest.raises(LeaseLost):
            await member.checkpoint({key: Position(sequence_number=3)})
        assert world.registry.checkpoints(world.group)[key].position.sequence_number == 1
        assert world.registry.fenced_writes(world.group) == 1

    play(story, strategy=Strategy.GREEDY)


def test_a_claim_whose_answer_was_lost_is_found_at_the_next_renewal() -> None:
    async def story(world: World) -> None:
        host = world.start()
        await world.pass_time(0.32)  # it has joined, and its first look is on the way
        host.rates = replace(NO_FAULTS, answer_lost=1.0)
        await world.pass_time(0.5)
        host.rates = NO_FAULTS
        await world.pass_time(2 * CYCLE_S)
        assert host.member is not None
        assert len(host.member.held()) == PARTITIONS
        assert {ownership.epoch for ownership in host.member.held()} == {1}

    play(story)


@pytest.mark.spec("L5")
def test_it_hands_over_what_it_is_asked_for() -> None:
    async def story(world: World) -> None:
        (_, one), (second, two) = await joined(world), await joined(world)
        await world.pass_time(2 * CYCLE_S)
        asked_for = one.held()[0]
        now, wall = world.server.now(), world.server.wall()
        want = KeyClaim(key=asked_for.key, seen_epoch=asked_for.epoch)
        assert world.registry.ask(_lease_of(second), want, now, wall)
        await world.pass_time(CYCLE_S + 0.5)
        assert one.holds(asked_for.key) is None
        reasons = [term.reason for term in world.registry.history(asked_for.key, 5)]
        assert EndReason.HANDED_OVER in reasons
        assert two.holder is not None

    play(story)


def test_work_that_does_not_stop_in_time_is_stopped_by_force() -> None:
    class Stubborn:
        def __init__(self) -> None:
            self.closed_because: list[str] = []

        def opened(self, ownership: Ownership) -> None: ...

        def drain(self, ownership: Ownership) -> bool:
            return False

        def closed(self, ownership: Ownership, reason: str) -> None:
            self.closed_because.append(reason)

    async def story(world: World) -> None:
        keeper = Stubborn()
        host, member = await joined(world)
        member._holdings._handler = keeper
        member.options = replace(member.options, drain_timeout=timedelta(seconds=4))
        world.drain(host)
        await world.pass_time(20.0)
        assert keeper.closed_because == ["drain_timeout"] * PARTITIONS
        assert member.left

    play(story)


@pytest.mark.spec("P10")
def test_a_host_that_expects_keys_looks_more_often() -> None:
    async def story(world: World) -> None:
        await joined(world)
        newcomer = world.start()
        await world.pass_time(CYCLE_S)
        assert newcomer.member is not None
        assert newcomer.member.calls["renew"] >= 3

    play(story)


def test_measured_loads_reach_the_others_with_the_next_renewal() -> None:
    async def story(world: World) -> None:
        (_, one), (_, two) = await joined(world), await joined(world)
        await world.pass_time(2 * CYCLE_S)
        one.report_loads({one.held()[0].key: 7.5})
        await world.pass_time(2 * CYCLE_S)
        assert one.holder is not None
        assert list(two.view.members[one.holder].info.loads.values()) == [7.5]

    play(story, strategy=Strategy.BY_LOAD)


@pytest.mark.spec("L5")
def test_leaving_after_the_loop_was_cancelled_frees_everything_at_once() -> None:
    async def story(world: World) -> None:
        host, member = await joined(world)
        with pytest.raises(UsageError, match="drain"):
            await member.leave()
        assert host.task is not None
        host.task.cancel()
        await world.pass_time(0.1)
        assert member.held() == []
        await member.leave()
        resources = world.registry.resources(world.group, world.now_s()).values()
        assert {resource.holder for resource in resources} == {None}
        assert world.registry.members(world.group, world.now_s()) == {}

    play(story)


def test_a_late_fenced_answer_does_not_close_a_newer_epoch() -> None:
    async def story(world: World) -> None:
        host, member = await joined(world)
        key = world.keys[0]
        host.rates = replace(NO_FAULTS, latency_s=0.0)

        async def write() -> None:
            with pytest.raises(FencedWrite):
                await member.checkpoint({key: Position(sequence_number=1)})

        world.registry.break_(key, 1, 0.0, world.server.now(), world.server.wall())
        host.rates = replace(NO_FAULTS, late_answer=1.0, max_delay_s=5.0)
        writing = asyncio.create_task(write())
        await world.pass_time(0.01)
        host.rates = NO_FAULTS
        await world.pass_time(2 * CYCLE_S)
        await asyncio.wait([writing])
        held = member.holds(key)
        assert held is not None
        assert held.epoch == 2

    play(story, strategy=Strategy.GREEDY)  # a break at once may find it at work


def test_every_fenced_key_is_closed_not_only_the_first() -> None:
    async def story(world: World) -> None:
        _, member = await joined(world)
        for key in world.keys[:2]:
            world.registry.break_(key, 1, 0.0, world.server.now(), world.server.wall())
        with pytest.raises(FencedWrite) as refused:
            await member.checkpoint({k: Position(sequence_number=1) for k in world.keys[:3]})
        assert (refused.value.reason, refused.value.epoch) == ("fenced", 1)
        assert [member.holds(key) is None for key in world.keys[:3]] == [True, True, False]
        assert list(world.registry.checkpoints(world.group)) == [world.keys[2]]

    play(story)


def test_a_checkpoint_that_would_go_back_is_refused_by_name() -> None:
    async def story(world: World) -> None:
        _, member = await joined(world)
        await member.checkpoint({world.keys[0]: Position(sequence_number=5)})
        with pytest.raises(CheckpointBehind, match=world.keys[0]):
            await member.checkpoint({world.keys[0]: Position(sequence_number=4)})

    play(story)


@pytest.mark.parametrize("position", [5, None, "5"])
def test_a_bare_number_is_no_position(position: Any) -> None:
    async def story(world: World) -> None:
        _, member = await joined(world)
        with pytest.raises(UsageError, match="Position"):
            await member.checkpoint({world.keys[0]: position})

    play(story)


@pytest.mark.parametrize("number", [-2, "x", 1.5, True, None])
def test_a_sequence_number_is_a_whole_number_from_the_start_up(number: Any) -> None:
    with pytest.raises(UsageError, match="sequence_number"):
        Position(sequence_number=number)


def test_a_member_that_never_hears_an_answer_is_given_nothing() -> None:
    """Its requests arrive, and no answer comes back: keys handed to it would lie idle."""

    async def story(world: World) -> None:
        members = [await joined(world) for _ in range(3)]
        deaf = world.start()
        deaf.rates = replace(NO_FAULTS, answer_lost=1.0)
        await world.pass_time(10.0)
        begun = len(world.checks.changes)
        await world.pass_time(60.0)
        assert len(world.checks.changes) == begun
        assert sum(len(member.held()) for _, member in members) == PARTITIONS

    play(story)


def test_draining_ends_even_when_the_store_never_comes_back() -> None:
    async def story(world: World) -> None:
        host, member = await joined(world)
        world.server.up = False
        world.drain(host)
        await world.pass_time(30.0)
        assert member.left
        assert not host.running

    play(story)


def test_a_loop_that_was_cancelled_can_be_started_again() -> None:
    async def story(world: World) -> None:
        host, member = await joined(world)
        assert host.task is not None
        host.task.cancel()
        await world.pass_time(1.0)
        again = asyncio.create_task(member.run())
        await world.pass_time(CYCLE_S)
        assert {ownership.epoch for ownership in member.held()} == {2}
        with pytest.raises(UsageError, match="one loop"):
            await member.run()
        again.cancel()
        await asyncio.wait([again])
        assert member.held() == []

    play(story)


def test_a_break_is_heeded_in_time_although_the_store_has_gone_silent() -> None:
    async def story(world: World) -> None:
        host, member = await joined(world)
        told: list[tuple[float, str]] = []

        class Slow:
            def opened(self, ownership: Ownership) -> None: ...

            def drain(self, ownership: Ownership) -> bool:
                return False

            def closed(self, ownership: Ownership, reason: str) -> None:
                told.append((world.now_s(), reason))

        member._holdings._handler = Slow()
        begun_s = world.now_s()
        world.registry.break_(world.keys[0], 1, 5.0, world.server.now(), world.server.wall())
        await world.pass_time(CYCLE_S)
        host.rates = replace(NO_FAULTS, request_lost=1.0)
        await world.pass_time(2.5)
        assert [reason for _, reason in told] == ["drain_timeout"]
        assert told[0][0] - begun_s <= 5.0
        assert member.calls["renew"] < 20

    play(story)


def test_a_late_copy_of_an_older_renewal_does_not_undo_what_was_said_since() -> None:
    async def story(world: World) -> None:
        host, member = await joined(world)
        old = member._info
        member.report_loads({world.keys[0]: 5.0})
        await world.pass_time(CYCLE_S)
        now, wall = world.server.now(), world.server.wall()
        world.registry.renew(_lease_of(host), 0, old, now, wall)
        await world.pass_time(2 * CYCLE_S)
        info = world.registry.members(world.group, world.now_s())[_lease_of(host).holder].info
        assert dict(info.loads) == {world.keys[0]: 5.0}

    play(story)


def test_a_key_that_an_outsider_holds_is_left_alone() -> None:
    async def story(world: World) -> None:
        host, member = await joined(world)
        steal(world, world.keys[0], after_s=1000.0)
        await world.pass_time(2 * CYCLE_S)
        before = Counter(member.calls)
        await world.pass_time(5 * CYCLE_S)
        assert set(Counter(member.calls) - before) == {"renew"}
        assert len(member.held()) == PARTITIONS - 1
        assert host.running

    play(story, strategy=Strategy.GREEDY)


@pytest.mark.parametrize("strategy", ["even", Strategy.EVEN])
def test_a_strategy_may_be_given_by_name(strategy: Any) -> None:
    assert MemberOptions(group="a/b", strategy=strategy).strategy is Strategy.EVEN


def test_an_unknown_strategy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidOptions, match="even, balanced, greedy"):
        MemberOptions(group="a/b", strategy="foo")  # type: ignore[arg-type]


def test_the_hand_over_limit_grows_with_the_lease() -> None:
    timing = LeaseTiming.of(lease=timedelta(minutes=2))
    assert MemberOptions(group="a/b", timing=timing).kept_s == 360.0


@pytest.mark.spec("C3")
def test_processing_goes_on_after_the_checkpoint() -> None:
    checkpoint = Checkpoint(
        key="partition/s/g/0",
        epoch=1,
        position=Position(sequence_number=41, offset="4104"),
        updated_at=datetime(2030, 1, 1, tzinfo=UTC),
    )
    assert checkpoint.resumes_at == 42
