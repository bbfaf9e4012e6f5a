"""Operators in the simulator: their calls reach the store over the same wire as all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold.errors import InvalidName, UsageError
from leasehold.model import EndReason, Position
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.sim.store import SimStore
from leasehold.testing.sim.world import Setting, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def _play(story: Callable[[World], Awaitable[None]], *, partitions: int = 1) -> None:
    async def main() -> None:
        world = World(Setting(seed=1, partitions=partitions, writes=False))
        try:
            await story(world)
        finally:
            await world.end()

    run_simulated(main())


@pytest.mark.spec("B3", "B9")
def test_a_suggestion_moves_a_key_to_the_member_it_names() -> None:
    async def story(world: World) -> None:
        first = world.start()
        await world.pass_time(5.0)
        second = world.start()
        await world.pass_time(5.0)
        assert first.member is not None
        assert second.member is not None
        operator = SimStore(world.server, first)
        (key,) = world.keys
        assert list(await operator.groups()) == [world.group]
        seen = (await operator.resources(world.group))[key]
        giver, taker = (first, second) if seen.holder == first.member.holder else (second, first)
        assert taker.member is not None
        assert taker.member.holder is not None
        assert await operator.request_hand_over(key, epoch=seen.epoch, to=taker.member.holder)
        await world.pass_time(10.0)
        assert taker.member.holds(key) is not None
        assert giver.member is not None
        assert giver.member.holds(key) is None

    _play(story)


@pytest.mark.spec("B9")
def test_a_dismissal_and_a_reset_arrive() -> None:
    async def story(world: World) -> None:
        host = world.start()
        operator = SimStore(world.server, host)
        free = f"{world.group}2/0"
        await operator.declare([free])
        await world.pass_time(5.0)
        assert host.member is not None
        holder = host.member.holder
        assert holder is not None
        assert await operator.reset({free: Position(sequence_number=4)}) == {}
        assert await operator.reset({world.keys[0]: None}) == {world.keys[0]: holder}
        assert [term.reason for term in await operator.history(free)] == [EndReason.RESET]
        assert await operator.request_leave(holder)
        assert not await operator.request_leave("nobody")

    _play(story)


def test_bad_input_is_refused_before_it_is_sent() -> None:
    async def story(world: World) -> None:
        operator = SimStore(world.server, world.start())
        with pytest.raises(UsageError):
            await operator.request_hand_over(world.keys[0], epoch=-1, to="x")
        with pytest.raises(InvalidName):
            await operator.request_leave("")
        with pytest.raises(UsageError):
            await operator.reset({world.keys[0]: 7})  # type: ignore[dict-item]

    _play(story)
