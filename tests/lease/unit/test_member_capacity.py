"""Members with limits, by their settings or because work is stuck: no key stays without an owner.

And a key that was closed here on somebody's word is given back to the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from leasehold import Member
from leasehold.model import Lease, MemberInfo
from leasehold.testing.sim.host import Host
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.world import Setting, World

CYCLE_S = 3.0


def play(story: Callable[[World], Awaitable[None]], *, partitions: int = 6) -> None:
    async def main() -> None:
        world = World(Setting(seed=1, partitions=partitions, writes=False))
        try:
            await story(world)
        finally:
            await world.end()

    run_simulated(main())


async def shared(world: World, *limits: int | None) -> list[Member]:
    """Members with these limits, that have shared out the keys."""
    members = [_member(world.start(most=most)) for most in limits]
    await world.pass_time(5 * CYCLE_S)
    return members


def _member(host: Host) -> Member:
    assert host.member is not None
    return host.member


def owners(world: World) -> dict[str, str | None]:
    resources = world.registry.resources(world.group, world.server.now())
    return {key: resource.holder for key, resource in resources.items()}


def counts(members: list[Member]) -> list[int]:
    return [len(member.held()) for member in members]


@pytest.mark.spec("P13")
def test_when_only_members_with_stuck_work_are_left_they_share_all_keys() -> None:
    async def story(world: World) -> None:
        members = await shared(world, None, None, None)
        one, two, _ = members
        assert counts(members) == [2, 2, 2]
        for stuck in (one, two):
            assert stuck.pass_on(stuck.held()[0], reason="stalled")
            await world.pass_time(2 * CYCLE_S)
        assert sum(counts(members)) == 6
        world.drain(world.hosts[2])
        await world.pass_time(6 * CYCLE_S)
        assert counts([one, two]) == [3, 3]

    play(story)


@pytest.mark.spec("P13")
def test_while_somebody_has_room_a_member_with_stuck_work_takes_no_more() -> None:
    async def story(world: World) -> None:
        one, two = await shared(world, None, None)
        stuck = one.held()[0]
        assert one.pass_on(stuck, reason="stalled")
        await world.pass_time(10 * CYCLE_S)
        assert counts([one, two]) == [2, 4]
        assert two.holds(stuck.key)

    play(story)


@pytest.mark.spec("P13")
def test_what_is_stuck_stays_where_it_is_if_all_others_are_at_their_limits() -> None:
    async def story(world: World) -> None:
        one, two = await shared(world, 2, 2)
        assert not one.pass_on(one.held()[0], reason="stalled")
        await world.pass_time(2 * CYCLE_S)
        assert counts([one, two]) == [2, 2]

    play(story, partitions=4)


@pytest.mark.spec("P13")
def test_what_is_stuck_goes_to_one_that_has_room_though_another_has_fewer() -> None:
    async def story(world: World) -> None:
        one, full, roomy = await shared(world, None, 1, None)
        stuck = one.held()[0]
        assert one.pass_on(stuck, reason="stalled")
        await world.pass_time(3 * CYCLE_S)
        assert counts([full]) == [1]
        assert roomy.holds(stuck.key)
        assert None not in owners(world).values()

    play(story)


@pytest.mark.spec("P13")
def test_a_limit_that_became_too_tight_when_others_left_is_lifted() -> None:
    async def story(world: World) -> None:
        one, _, two = await shared(world, None, None, 3)
        assert one.pass_on(one.held()[0], reason="stalled")
        await world.pass_time(3 * CYCLE_S)
        world.drain(world.hosts[1])
        await world.pass_time(6 * CYCLE_S)
        assert counts([one, two]) == [3, 3]

    play(story)


@pytest.mark.spec("L7")
def test_a_key_that_was_closed_on_somebodys_word_is_given_back_and_taken_anew() -> None:
    """The store knows nothing of that word: else it would count as owned here for ever."""

    async def story(world: World) -> None:
        (member,) = await shared(world, None)
        before = member.held()[0]
        member.fenced(before)
        assert member.holds(before.key) is None
        await world.pass_time(2 * CYCLE_S)
        after = member.holds(before.key)
        assert after is not None
        assert after.epoch == before.epoch + 1
        assert member.settled

    play(story)


@pytest.mark.spec("L7")
def test_giving_back_a_key_that_somebody_else_has_by_now_changes_nothing_there() -> None:
    async def story(world: World) -> None:
        one, two = await shared(world, None, None)
        mine = one.held()[0]
        one.pass_on(mine, reason="stalled")
        await world.pass_time(3 * CYCLE_S)
        theirs = two.holds(mine.key)
        assert theirs is not None
        one.fenced(mine)
        one._holdings.give_up(mine, to=None)
        await world.pass_time(3 * CYCLE_S)
        assert two.holds(mine.key) == theirs
        assert one.settled

    play(story)


@pytest.mark.spec("L7")
def test_a_late_word_on_an_older_epoch_gives_nothing_back() -> None:
    async def story(world: World) -> None:
        (member,) = await shared(world, None)
        mine = member.held()[0]
        member.fenced(replace(mine, epoch=mine.epoch - 1))
        await world.pass_time(2 * CYCLE_S)
        assert member.holds(mine.key) == mine

    play(story)


@pytest.mark.spec("P13")
@pytest.mark.parametrize(
    "odd", [{"most": 1.5}, {"most": "x"}, {"weight": -1.0}, {"loads": {"a": "b"}}, {"loads": None}]
)
def test_a_word_that_makes_no_sense_does_not_end_the_others(odd: dict[str, Any]) -> None:
    async def story(world: World) -> None:
        members = await shared(world, None, None)
        lease = Lease(holder="odd", token="t", group=world.group, duration_s=1000.0)
        now, wall = world.server.now(), world.server.wall()
        world.registry.grant(lease, MemberInfo(**odd), now, wall)
        await world.pass_time(2 * CYCLE_S)
        assert all(host.running for host in world.hosts)
        kept = sum(counts(members))
        assert 3 <= kept < 6, "the odd one is given its share, too"

    play(story)
