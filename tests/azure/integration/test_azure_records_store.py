"""Hosts of Leasehold that share nothing but the records of Azure's clients, in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from azure.eventhub import LoadBalancingStrategy
from tests.support.azure_sim import CLIENT_CYCLE_S, EXPIRY_S, NAMESPACE, FakeAzureStore, Group, play

from leasehold import Member
from leasehold.azure import MixedStore, RecordsStore
from leasehold.errors import UsageError
from leasehold.model import CheckpointWrite, Position

pytestmark = pytest.mark.spec("B8")

HOST_CYCLES = 4 * 10.0 / CLIENT_CYCLE_S  # in cycles of the clients


def reasons(group: Group) -> Counter[str]:
    return Counter(reason for work in group.work.values() for _, reason in work.ended)


def owned_once(group: Group) -> bool:
    held = [each.key for member in group.members for each in member.held()]
    return len(held) == len(set(held))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("partitions", [7, 8, 32])
def test_they_share_evenly_and_only_newcomers_take_one_by_force(partitions: int, seed: int) -> None:
    async def story(group: Group) -> None:
        group.host()
        await group.cycles_until(lambda: group.even(1))
        group.host()
        group.host()
        await group.cycles_until(lambda: group.even(3) and group.agrees(), most=3)
        stolen = sum(count for reason, count in reasons(group).items() if reason == "stolen")
        assert stolen <= 2
        before = [member.held() for member in group.members]
        await asyncio.sleep(10 * CLIENT_CYCLE_S)
        assert [member.held() for member in group.members] == before
        assert owned_once(group)

    play(story, partitions=partitions, seed=seed, alone=True)


@pytest.mark.parametrize("strategy", list(LoadBalancingStrategy))
def test_they_share_with_stock_clients(strategy: LoadBalancingStrategy) -> None:
    async def story(group: Group) -> None:
        group.host()
        group.host()
        await group.cycles_until(lambda: group.even(2))
        group.client("f", strategy)
        group.client("g", strategy)
        await group.cycles_until(lambda: group.even(4) and group.agrees(), most=6)
        await asyncio.sleep(2 * CLIENT_CYCLE_S)
        assert group.even(4)
        for client in list(group.clients):
            await group.leave(client)
        await group.cycles_until(lambda: group.even(2) and group.agrees(), most=3)

    play(story, alone=True)


def test_all_that_start_at_once_come_to_an_even_share() -> None:
    async def story(group: Group) -> None:
        for _ in range(5):
            group.host()
        await group.cycles_until(lambda: group.even(5) and group.agrees(), most=6)
        assert owned_once(group)

    play(story, partitions=32, alone=True)


def test_what_one_leaves_in_good_order_is_taken_at_once_and_with_its_checkpoints() -> None:
    async def story(group: Group) -> None:
        leaving, staying = group.host(), group.host()
        await group.cycles_until(lambda: group.even(2) and group.agrees())
        position = Position(sequence_number=8, offset="800")
        writes = [CheckpointWrite(ownership=each, position=position) for each in leaving.held()]
        assert await leaving._store.checkpoint(writes) == {}
        keys = {each.key for each in leaving.held()}
        leaving.drain()
        await group.tasks[leaving]
        await group.cycles_until(lambda: len(staying.held()) == 8, most=1)
        found = await staying._store.checkpoints(next(iter(keys)).rpartition("/")[0])
        assert {key for key, each in found.items() if each.resumes_at == 9} == keys
        assert group.overtaken == []

    play(story, alone=True)


def test_what_a_dead_one_had_is_taken_when_its_records_look_dead() -> None:
    async def story(group: Group) -> None:
        dead, living = group.host(), group.host()
        await group.cycles_until(lambda: group.even(2) and group.agrees())
        group.tasks.pop(dead).cancel()
        group.members.remove(dead)
        await asyncio.sleep(EXPIRY_S / 2)
        assert len(living.held()) == 4
        await group.cycles_until(lambda: len(living.held()) == 8, most=8)

    play(story, alone=True)


def test_one_that_its_storage_does_not_answer_stops_before_others_may_take_it_for_dead() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        group.azure_store.away = True
        await asyncio.sleep(EXPIRY_S * 2 / 3)
        assert host.held() == []
        group.azure_store.away = False
        await group.cycles_until(lambda: len(host.held()) == 8, most=8)

    play(story, alone=True)


def test_one_that_was_robbed_while_it_stopped_says_so() -> None:
    async def story(group: Group) -> None:
        member: Member = group.host(slow=True)
        await group.cycles_until(lambda: group.even(1))
        member.drain()
        work = group.work[member]
        await group.cycles_until(lambda: len(work.stopping) == 8)
        row: dict[str, Any] = dict(group.azure_store.owners["3"])
        assert await group.azure_store.claim_ownership([{**row, "owner_id": "a client"}])
        for each in work.stopping:
            member.drained(each)
        await group.tasks[member]
        assert [each.key.rpartition("/")[2] for each in group.overtaken] == ["3"]
        assert group.azure_store.owners["3"]["owner_id"] == "a client"

    play(story, alone=True)


async def come_and_go(group: Group, rng: random.Random) -> None:
    """A few steps: hosts and clients come, leave in good order, and die."""
    for step in range(rng.randint(3, 7)):
        chance = rng.random()
        if chance < 0.45 or not group.members:
            group.host()
        elif chance < 0.65:
            group.client(f"client{step}", rng.choice(list(LoadBalancingStrategy)))
        elif chance < 0.9:
            member = group.members.pop(rng.randrange(len(group.members)))
            task = group.tasks.pop(member)
            if chance < 0.8:
                member.drain()
            else:
                task.cancel()
        elif group.clients:
            await group.leave(rng.choice(group.clients))
        await asyncio.sleep(rng.choice([1, 10, 60, 200]))
    if not group.members:
        group.host()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_whoever_comes_and_goes_in_the_end_the_shares_are_even(seed: int, alone: bool) -> None:
    rng = random.Random(seed)

    async def story(group: Group) -> None:
        await come_and_go(group, rng)
        owners = len(group.members) + len(group.clients)
        await group.cycles_until(lambda: group.even(owners) and group.agrees(), most=25)

    play(story, partitions=rng.choice([8, 13, 32]), seed=seed, alone=alone)


def test_a_store_of_one_process_is_no_ground_for_a_mixed_group() -> None:
    with pytest.raises(UsageError, match="use RecordsStore"):
        MixedStore("memory://", FakeAzureStore(), namespace=NAMESPACE, hub="orders")
    store = RecordsStore(
        FakeAzureStore(), namespace=NAMESPACE, hub="orders", expiry=timedelta(seconds=60)
    )
    assert store.url == f"azure-records://{NAMESPACE}/orders"
