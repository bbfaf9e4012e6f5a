"""A partition that a host of Leasehold releases gracefully, and what may come in between.

Nothing of it may come twice, unless a client of Azure was faster: then it must not look orderly.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import pytest
from tests.support.azure_sim import CONSUMERS, GROUP, HUB, Group, play

from leasehold import Member
from leasehold.azure import MixedStore
from leasehold.azure.interop.records import host_owner_id
from leasehold.model import CheckpointWrite, EndReason, Ownership, Position
from leasehold.names import partition_key

pytestmark = pytest.mark.spec("B8")

KEY = partition_key(HUB, CONSUMERS, "3")
CLIENT = "a client of theirs"


async def stored(member: Member, number: int) -> None:
    """The position of all that is held, as a pump stores the last one before it ends."""
    position = Position(sequence_number=number, offset=str(100 * number))
    writes = [CheckpointWrite(ownership=each, position=position) for each in member.held()]
    assert await member._store.checkpoint(writes) == {}


async def robbed(group: Group) -> None:
    """A client claims the partition by the record as it is, as Azure's clients do."""
    row = dict(group.azure_store.owners["3"])
    assert await group.azure_store.claim_ownership([{**row, "owner_id": CLIENT}])


async def all_stopping(group: Group, member: Member) -> list[Ownership]:
    work = group.work[member]
    await group.cycles_until(lambda: len(work.stopping) == len(group.partitions))
    return work.stopping


async def ended(group: Group) -> list[EndReason | None]:
    return [each.reason for each in await group.store.history(KEY)]


@pytest.mark.parametrize("seen", ["by our last word", "by the look of a cycle before it"])
def test_what_a_client_claims_while_we_stop_is_stolen_and_not_released(seen: str) -> None:
    async def story(group: Group) -> None:
        member = group.host(slow=True)
        await group.cycles_until(lambda: group.even(1))
        await stored(member, 7)
        member.drain()
        stopping = await all_stopping(group, member)
        await stored(member, 8)
        # It has read our checkpoint as soon as it has claimed; we work to the end of our batch.
        await robbed(group)
        claimed = dict(group.azure_store.owners["3"])
        if seen != "by our last word":
            for records in cast("MixedStore", member._store)._records.values():
                records.read_s = None
        for each in stopping:
            member.drained(each)
        await group.tasks[member]
        assert group.azure_store.owners["3"] == claimed
        assert [each.key for each in group.overtaken] == [KEY]
        assert {group.azure_store.owners[each]["owner_id"] for each in group.partitions} == {
            "",
            CLIENT,
        }
        stolen, *_ = [each for each in await ended(group) if each is not None]
        assert stolen is EndReason.STOLEN

    play(story)


def test_what_is_left_in_good_order_is_not_called_overtaken() -> None:
    async def story(group: Group) -> None:
        member = group.host(slow=True)
        await group.cycles_until(lambda: group.even(1))
        member.drain()
        for each in await all_stopping(group, member):
            member.drained(each)
        await group.tasks[member]
        assert group.overtaken == []
        assert await ended(group) == [EndReason.RELEASED]
        assert {each["owner_id"] for each in group.azure_store.owners.values()} == {""}

    play(story)


def test_a_claim_that_was_begun_before_our_last_word_fails() -> None:
    """Whoever wins the record after that finds our last checkpoint."""

    async def story(group: Group) -> None:
        member = group.host(slow=True)
        await group.cycles_until(lambda: group.even(1))
        member.drain()
        stopping = await all_stopping(group, member)
        row = dict(group.azure_store.owners["3"])
        await stored(member, 8)
        release, outcomes = group.store.release, []

        async def between(ownerships: Any, **given: Any) -> Any:
            outcomes.append(
                list(await group.azure_store.claim_ownership([{**row, "owner_id": CLIENT}]))
            )
            outcomes.append(group.azure_store.positions["3"]["sequence_number"])
            return await release(ownerships, **given)

        group.store.release = between  # type: ignore[method-assign]
        for each in stopping:
            member.drained(each)
        await group.tasks[member]
        assert outcomes == [[], 8]

    play(story)


def late(group: Group) -> Callable[[], None]:
    """Make checkpoints wait in their storage until the returned function is called."""
    go, write = asyncio.Event(), group.azure_store.update_checkpoint

    async def update(checkpoint: Mapping[str, Any], **given: object) -> None:
        await go.wait()
        await write(checkpoint, **given)

    group.azure_store.update_checkpoint = update  # type: ignore[method-assign]
    return go.set


async def three_to_give(group: Group) -> tuple[Member, Callable[[], None]]:
    """A host whose last checkpoints hang, and a client that lacks three partitions of it."""
    member = group.host()
    await group.cycles_until(lambda: group.even(1))
    arrive = late(group)
    await stored(member, 8)
    group.client("f")
    await group.cycles_until(lambda: len(member.held()) == 4)
    await asyncio.sleep(12)  # two looks at the records, and less than a cycle of theirs
    assert names(group)[host_owner_id(member.holder or "")] == 7
    return member, arrive


def names(group: Group) -> Counter[str]:
    return Counter(each["owner_id"] for each in group.azure_store.owners.values())


def test_nothing_is_given_up_before_the_last_checkpoint_is_there() -> None:
    async def story(group: Group) -> None:
        member, arrive = await three_to_give(group)
        found = await group.store.resources(GROUP)
        assert sum(each.holder == member.holder for each in found.values()) == 7
        arrive()
        await asyncio.sleep(6)
        assert names(group) == {"f": 4, host_owner_id(member.holder or ""): 4}
        assert {each["sequence_number"] for each in group.azure_store.positions.values()} == {8}
        assert set(group.azure_store.positions) == set(group.partitions)
        assert group.overtaken == []

    play(story)


def test_what_waits_too_long_is_free_for_us_and_keeps_our_name_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(group: Group) -> None:
        claim = group.azure_store.claim_ownership
        freed_at: list[Mapping[str, Any] | None] = []

        async def watched(rows: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
            rows = list(rows)
            freed = (each["partition_id"] for each in rows if not each["owner_id"])
            freed_at.extend(group.azure_store.positions.get(each) for each in freed)
            return await claim(rows)

        monkeypatch.setattr(group.azure_store, "claim_ownership", watched)
        member, arrive = await three_to_give(group)
        for client in group.clients:  # it would rob us meanwhile
            group.tasks.pop(client).cancel()
        await asyncio.sleep(member.options.timing.lease_s)
        found = await group.store.resources(GROUP)
        assert sum(each.holder == member.holder for each in found.values()) == 4
        assert names(group)[host_owner_id(member.holder or "")] == 7
        assert freed_at == []
        arrive()
        await asyncio.sleep(12)
        assert [each and each["sequence_number"] for each in freed_at] == [8, 8, 8]

    play(story)


def test_a_host_that_stays_tells_the_checkpoint_of_one_that_could_not() -> None:
    async def story(group: Group) -> None:
        leaving = group.host()
        await group.cycles_until(lambda: group.even(1))
        arrive = late(group)
        await stored(leaving, 8)
        held = {each.key.rpartition("/")[2] for each in leaving.held()}
        leaving.drain()
        await group.tasks[leaving]
        named = {group.azure_store.owners[each]["owner_id"] for each in held}
        assert len(named) == 1
        assert named.pop().startswith("leasehold:host0")
        assert group.azure_store.positions == {}
        await leaving._store.close()  # what hangs is given up with it
        arrive()
        staying = group.host(most=0)
        await group.cycles_until(
            lambda: {group.azure_store.owners[each]["owner_id"] for each in held} == {""}
        )
        assert {each["sequence_number"] for each in group.azure_store.positions.values()} == {8}
        assert staying.held() == []

    play(story)
