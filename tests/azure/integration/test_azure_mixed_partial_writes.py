"""A mixed group when Azure's storage does only a part of what it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from tests.support.azure_sim import CONSUMERS, EXPIRY_S, GROUP, HUB, Group, play

from leasehold import Member
from leasehold.model import CheckpointWrite, EndReason, KeyClaim, Ownership, Position
from leasehold.names import partition_key

pytestmark = pytest.mark.spec("B8")

KEY = partition_key(HUB, CONSUMERS, "3")
CLIENT = "a client of theirs"


def checkpoint_write(ownership: Ownership, number: int) -> CheckpointWrite:
    position = Position(sequence_number=number, offset=str(100 * number))
    return CheckpointWrite(ownership=ownership, position=position)


async def stored(member: Member, number: int, *, only: str | None = None) -> None:
    writes = [checkpoint_write(each, number) for each in member.held() if only in (None, each.key)]
    assert await member._store.checkpoint(writes) == {}


async def robbed(group: Group) -> None:
    row = dict(group.azure_store.owners["3"])
    assert await group.azure_store.claim_ownership([{**row, "owner_id": CLIENT}])


async def write_azure_checkpoint(group: Group, number: int) -> None:
    """The client stores a checkpoint of its own."""
    row = {"partition_id": "3", "offset": str(100 * number), "sequence_number": number}
    group.azure_store.positions["3"] = row


async def away(*_: object, **__: object) -> Any:
    raise ConnectionError("away")


# ------------------------------------------------------ records that can not be written


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("how", ["fails", "hangs", "does nothing"])
def test_one_whose_records_can_only_be_read_stops_before_they_look_dead(
    how: str, alone: bool
) -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))

        async def half(*_: object, **__: object) -> Iterable[dict[str, Any]]:
            if how == "fails":
                raise ConnectionError("away")
            if how == "hangs":
                await asyncio.Event().wait()
            return []

        group.azure_store.claim_ownership = half  # type: ignore[method-assign]
        now_s = asyncio.get_running_loop().time
        while host.held():
            assert now_s() < min(group.azure_store.written_s.values()) + EXPIRY_S
            await asyncio.sleep(0.5)
        # Nor was it in a hurry.
        assert now_s() > min(group.azure_store.written_s.values()) + EXPIRY_S / 2

    play(story, alone=alone)


@pytest.mark.parametrize("name", ["list_checkpoints", "update_checkpoint"])
@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_what_another_has_left_keeps_nobody_from_its_own_records(how: str, name: str) -> None:
    async def story(group: Group) -> None:
        gone = group.host()
        await group.cycles_until(lambda: group.even(1))
        await stored(gone, 7)
        staying = group.host(most=4)
        await group.cycles_until(lambda: group.even(2))
        await stored(gone, 8)
        group.azure_store.positions.clear()

        async def half(*_: object, **__: object) -> Any:
            if how == "hangs":
                await asyncio.Event().wait()
            raise ConnectionError("away")

        setattr(group.azure_store, name, half)
        group.tasks.pop(gone).cancel()
        group.members.remove(gone)
        held = {each.key.rpartition("/")[2] for each in staying.held()}
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + 2 * EXPIRY_S
        while now_s() < until_s:
            await asyncio.sleep(1)
            oldest_s = min(group.azure_store.written_s[each] for each in held)
            assert now_s() - oldest_s < EXPIRY_S * 2 / 3
        assert len(staying.held()) == 4
        # Nothing was freed whose checkpoint is not there.
        assert "" not in {each["owner_id"] for each in group.azure_store.owners.values()}

    play(story)


# ------------------------------------------------- checkpoints of which some do not arrive


def hung(group: Group, partition: str) -> asyncio.Event:
    """The checkpoints of one partition wait until the event is set."""
    go, write = asyncio.Event(), group.azure_store.update_checkpoint

    async def update(checkpoint: Mapping[str, Any], **given: object) -> None:
        if checkpoint["partition_id"] == partition:
            await go.wait()
        await write(checkpoint, **given)

    group.azure_store.update_checkpoint = update  # type: ignore[method-assign]
    return go


def test_a_checkpoint_that_hangs_holds_up_no_other_partition() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        go = hung(group, "4")
        await stored(host, 7)
        await stored(host, 8)
        await asyncio.sleep(1)
        found = {key: each["sequence_number"] for key, each in group.azure_store.positions.items()}
        assert found == dict.fromkeys(set(group.partitions) - {"4"}, 8)
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        await stored(host, 9, only=KEY)
        assert now_s() == began_s
        go.set()
        await asyncio.sleep(1)
        assert group.azure_store.positions["4"]["sequence_number"] == 8

    play(story)


def test_what_waited_for_another_write_never_overwrites_what_a_successor_wrote() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        write, go = group.azure_store.update_checkpoint, asyncio.Event()

        async def slow(checkpoint: Mapping[str, Any], **given: object) -> None:
            if checkpoint["sequence_number"] == 7:
                await go.wait()
                raise ConnectionError("late")
            await write(checkpoint, **given)

        group.azure_store.update_checkpoint = slow  # type: ignore[method-assign]
        await stored(host, 7)
        await stored(host, 8)
        await robbed(group)
        await write_azure_checkpoint(group, 9)
        await group.cycles_until(lambda: host.holds(KEY) is None)
        go.set()
        await asyncio.sleep(20)
        assert group.azure_store.positions["3"]["sequence_number"] == 9
        assert group.azure_store.positions["5"]["sequence_number"] == 8

    play(story)


@pytest.mark.parametrize("heir", ["another", "the same, with a new lease"])
def test_whoever_takes_over_tells_the_checkpoint_that_was_not_there(heir: str) -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        write = group.azure_store.update_checkpoint
        group.azure_store.update_checkpoint = away  # type: ignore[method-assign]
        await stored(host, 8)
        if heir == "another":
            group.tasks.pop(host).cancel()
            group.members.remove(host)
            host = group.host()
        else:
            lease = host._lease
            assert lease is not None
            await group.store.revoke(lease)
            await group.cycles_until(lambda: host.holder != lease.holder)
        group.azure_store.update_checkpoint = write  # type: ignore[method-assign]
        await group.cycles_until(lambda: len(host.held()) == 8)
        found = await host._store.checkpoints(GROUP)  # as it does before it begins
        assert {each.resumes_at for each in found.values()} == {9}
        host.drain()
        await group.tasks[host]
        assert {each["owner_id"] for each in group.azure_store.owners.values()} == {""}
        assert {each["sequence_number"] for each in group.azure_store.positions.values()} == {8}
        assert len(group.azure_store.positions) == 8

    play(story)


# ---------------------------------------------------------------- what is given up


async def stopping(group: Group, member: Member) -> list[Ownership]:
    member.drain()
    work = group.work[member]
    await group.cycles_until(lambda: len(work.stopping) == len(group.partitions))
    return work.stopping


async def assert_stolen(group: Group) -> None:
    assert [each.key for each in group.overtaken] == [KEY]
    reasons = [each.reason for each in await group.store.history(KEY)]
    assert next(each for each in reasons if each is not None) is EndReason.STOLEN


def test_what_a_client_has_claimed_is_stolen_though_another_checkpoint_had_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(group: Group) -> None:
        member = group.host(slow=True)
        await group.cycles_until(lambda: group.even(1))
        over = await stopping(group, member)
        monkeypatch.setattr(group.azure_store, "update_checkpoint", away)
        await stored(member, 8, only=partition_key(HUB, CONSUMERS, "5"))
        release = member._store.release

        async def too_late(ownerships: Any, **given: Any) -> Any:
            monkeypatch.setattr(member._store, "release", release)
            await robbed(group)
            return await release(ownerships, **given)

        monkeypatch.setattr(member._store, "release", too_late)
        for each in over:
            member.drained(each)
        await group.tasks[member]
        await assert_stolen(group)

    play(story)


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_nothing_is_called_released_before_it_is_known_that_no_client_has_it(how: str) -> None:
    async def story(group: Group) -> None:
        member = group.host(slow=True)
        await group.cycles_until(lambda: group.even(1))
        over = await stopping(group, member)
        await robbed(group)
        lists, claim = group.azure_store.list_ownership, group.azure_store.claim_ownership

        async def half(*_: object, **__: object) -> Any:
            if how == "hangs":
                await asyncio.Event().wait()
            raise ConnectionError("away")

        group.azure_store.list_ownership = half  # type: ignore[method-assign]
        group.azure_store.claim_ownership = half  # type: ignore[method-assign]
        for each in over:
            member.drained(each)
        await asyncio.sleep(5)
        group.azure_store.list_ownership = lists  # type: ignore[method-assign]
        group.azure_store.claim_ownership = claim  # type: ignore[method-assign]
        await group.tasks[member]
        await assert_stolen(group)
        assert {each["owner_id"] for each in group.azure_store.owners.values()} == {"", CLIENT}

    play(story)


def test_a_record_in_our_name_is_no_claim() -> None:
    """It was won before, and somebody may have taken it since."""

    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        (ownership,) = [each for each in host.held() if each.key == KEY]
        # Released in Leasehold's store alone, as what waits for its checkpoint for too long.
        assert await group.store.release([ownership]) == [KEY]
        await robbed(group)
        assert host._lease is not None
        wanted = [KeyClaim(key=KEY, seen_epoch=ownership.epoch)]
        assert await host._store.claim(host._lease, wanted) == ()
        assert group.azure_store.owners["3"]["owner_id"] == CLIENT

    play(story)
