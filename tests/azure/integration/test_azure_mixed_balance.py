"""Our members beside the real balancer of azure-eventhub, in simulated time: who owns what.

``test_azure_mixed`` reads events, and has real blobs.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from azure.eventhub import LoadBalancingStrategy
from tests.support.azure_sim import (
    CLIENT_CYCLE_S,
    CONSUMERS,
    EXPIRY_S,
    GROUP,
    HUB,
    NAMESPACE,
    Group,
    Work,
    play,
)
from tests.support.job_scene import LoopClock

from leasehold import LeaseTiming, Member, MemberOptions
from leasehold.azure import MixedStore, SharedSource
from leasehold.azure.interop.records import host_owner_id, is_stand_in
from leasehold.errors import InvalidOptions, ReaderDisplaced
from leasehold.events import Receiver, Start
from leasehold.model import Checkpoint, CheckpointWrite, EndReason, Ownership, Position, Refusal
from leasehold.names import partition_key
from leasehold.testing.sim.loop import run_simulated
from leasehold.testing.source import MemorySource

pytestmark = pytest.mark.spec("B8")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("partitions", [7, 8, 32])
@pytest.mark.parametrize("strategy", list(LoadBalancingStrategy))
def test_clients_that_come_late_get_their_share_within_three_of_their_cycles(
    strategy: LoadBalancingStrategy, partitions: int, seed: int
) -> None:
    async def story(group: Group) -> None:
        group.host()
        group.host()
        await group.cycles_until(lambda: group.even(2))
        group.client("f", strategy)
        group.client("g", strategy)
        assert await group.cycles_until(lambda: group.even(4) and group.agrees()) < 3

    play(story, partitions=partitions, seed=seed)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("partitions", [7, 8, 32])
@pytest.mark.parametrize("strategy", list(LoadBalancingStrategy))
def test_hosts_of_ours_that_come_late_do_not_starve(
    strategy: LoadBalancingStrategy, partitions: int, seed: int
) -> None:
    async def story(group: Group) -> None:
        group.client("f", strategy)
        group.client("g", strategy)
        await group.cycles_until(lambda: sum(group.counts().values()) == partitions, most=40)
        group.host()
        group.host()
        assert await group.cycles_until(lambda: group.even(4) and group.agrees()) < 3

    play(story, partitions=partitions, seed=seed)


@pytest.mark.parametrize(("partitions", "clients"), [(5, 2), (8, 2), (16, 4), (31, 15), (3, 4)])
def test_once_even_nothing_moves_any_more_whatever_the_remainder(
    partitions: int, clients: int
) -> None:
    """Alone, their balancer leaves the whole remainder with one owner: 31/16 ends as 16, 1, 1…"""

    async def story(group: Group) -> None:
        group.host()
        for number in range(clients):
            group.client(f"client{number}")
        owners = clients + 1
        await group.cycles_until(
            lambda: (
                group.even(owners) or (owners > partitions and max(group.counts().values()) == 1)
            )
        )
        await asyncio.sleep(2 * CLIENT_CYCLE_S)
        before = await group.epochs()
        await asyncio.sleep(5 * CLIENT_CYCLE_S)
        assert await group.epochs() == before
        assert group.agrees()

    play(story, partitions=partitions)


def test_a_quiet_cycle_of_ours_is_one_renewal_and_now_and_then_one_list() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        group.client("f")
        await group.cycles_until(lambda: group.even(2) and group.agrees())
        group.tasks.pop(group.clients[0]).cancel()  # its calls would be counted too
        group.azure_store.calls.clear()
        host.calls.clear()
        await asyncio.sleep(45)
        assert host.calls["renew"] >= 14
        assert group.azure_store.calls["list_ownership"] <= host.calls["renew"] / 2 + 1
        assert set(host.calls) == {"renew"}
        # 128 records, each written again after half of the expiry: once in 45 s at the most.
        assert group.azure_store.calls["claim_ownership"] <= 128

    play(story, partitions=256)


def test_the_records_of_ours_never_look_old() -> None:
    async def story(group: Group) -> None:
        group.host()
        await group.cycles_until(lambda: group.even(1))
        for _ in range(30):
            await asyncio.sleep(EXPIRY_S / 10)
            oldest_s = min(group.azure_store.written_s.values())
            assert asyncio.get_running_loop().time() - oldest_s < EXPIRY_S * 0.6

    play(story)


def test_what_a_client_steals_ends_as_stolen_and_the_loser_is_fenced() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        before = {each.key: each for each in host.held()}
        group.client("f")
        await group.cycles_until(lambda: len(host.held()) < len(before))
        (key, reason) = group.work[host].ended[0]
        assert reason == EndReason.STOLEN.value
        (newest, older, *_) = await group.store.history(key)
        assert is_stand_in(newest.holder)
        assert (older.holder, older.reason) == (host.holder, EndReason.STOLEN)
        checkpoint_write = CheckpointWrite(
            ownership=before[key], position=Position(sequence_number=1, offset="9")
        )
        assert await group.mixed().checkpoint([checkpoint_write]) == {key: Refusal.FENCED}
        assert group.azure_store.positions == {}

    play(story)


def test_a_client_that_leaves_or_dies_is_followed_by_our_hosts() -> None:
    async def story(group: Group) -> None:
        group.host()
        gone, dead = group.client("gone"), group.client("dead")
        await group.cycles_until(lambda: group.even(3))
        await group.leave(gone)
        await group.cycles_until(lambda: group.even(2))
        group.tasks.pop(dead).cancel()
        group.clients.remove(dead)
        assert await group.cycles_until(lambda: group.even(1)) * CLIENT_CYCLE_S <= EXPIRY_S + 12
        assert group.agrees()

    play(story)


def test_clients_follow_our_hosts_that_leave_or_die() -> None:
    async def story(group: Group) -> None:
        gone, dead = group.host(), group.host()
        group.client("f")
        await group.cycles_until(lambda: group.even(3))
        gone.drain()
        await group.tasks[gone]
        group.members.remove(gone)
        assert await group.cycles_until(lambda: group.even(2)) < 3
        group.tasks.pop(dead).cancel()
        group.members.remove(dead)
        # No host of Leasehold is left to free its records: the clients wait for the whole expiry.
        rows = group.azure_store.owners.values()
        for row in rows:
            if row["owner_id"] != "f":
                row["last_modified_time"] -= EXPIRY_S + 1
        assert await group.cycles_until(lambda: group.even(1)) < 3

    play(story)


def test_a_dead_host_of_ours_is_followed_at_once_by_another_one() -> None:
    async def story(group: Group) -> None:
        group.host()
        dead = group.host()
        group.client("f")
        await group.cycles_until(lambda: group.even(3))
        group.tasks.pop(dead).cancel()
        group.members.remove(dead)
        took = await group.cycles_until(lambda: group.even(2) and group.agrees())
        assert took * CLIENT_CYCLE_S < EXPIRY_S / 2

    play(story)


def test_a_client_that_takes_nothing_more_does_not_keep_partitions_from_the_group() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        row = group.azure_store.owners["0"]
        stubborn = {**row, "owner_id": "stubborn"}

        async def keep() -> None:
            while True:
                stubborn["etag"] = group.azure_store.owners["0"]["etag"]
                await group.azure_store.claim_ownership([stubborn])
                await asyncio.sleep(30)

        group.tasks["stubborn"] = asyncio.create_task(keep())
        await group.cycles_until(lambda: len(host.held()) < 7)  # its share is waiting for it
        await group.cycles_until(lambda: len(host.held()) == 7)
        await asyncio.sleep(10 * CLIENT_CYCLE_S)
        assert len(host.held()) == 7

    play(story)


@pytest.mark.parametrize("crashes", [True, False])
def test_what_was_given_to_a_client_that_has_gone_is_taken_back(crashes: bool) -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        client = group.client("f")
        await group.cycles_until(lambda: len(host.held()) == 4)  # one was stolen, three are given
        if crashes:
            group.clients.remove(client)
            group.tasks.pop(client).cancel()
        else:
            await group.leave(client)
        least = 7 if crashes else 8  # the stolen one is its own until the expiry
        took_s = CLIENT_CYCLE_S * await group.cycles_until(lambda: len(host.held()) >= least)
        assert took_s < (EXPIRY_S * 0.75 if crashes else 20)
        await group.cycles_until(lambda: group.even(1) and group.agrees())

    play(story)


def test_a_record_that_names_a_host_that_does_not_hold_it_is_freed() -> None:
    async def story(group: Group) -> None:
        host = group.host(most=3)
        await group.cycles_until(lambda: len(host.held()) == 3)
        held = {each.key.rpartition("/")[2] for each in host.held()}
        free = next(each for each in group.partitions if each not in held)
        names = {"fully_qualified_namespace": NAMESPACE, "eventhub_name": HUB}
        claim = {"partition_id": free, "owner_id": host_owner_id(host.holder or "")}
        await group.azure_store.claim_ownership([{**names, "consumer_group": CONSUMERS, **claim}])
        await asyncio.sleep(10)
        assert group.azure_store.owners[free]["owner_id"] == ""

    play(story)


def test_checkpoints_are_understood_both_ways_and_the_one_ahead_counts() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        store, key = group.mixed(), partition_key(HUB, CONSUMERS, "3")
        await store.checkpoint(
            [
                CheckpointWrite(
                    ownership=_held(host, key), position=Position(sequence_number=7, offset="700")
                )
            ]
        )
        row = group.azure_store.positions["3"]
        assert (row["offset"], row["sequence_number"]) == ("700", 7)
        assert (await _at(store, key)).position == Position(sequence_number=7)
        group.azure_store.positions["3"] |= {"offset": "900", "sequence_number": "9"}
        found = (await _at(store, key)).position
        assert (found.sequence_number, found.offset) == (9, "900")
        group.azure_store.positions["3"] |= {
            "offset": "200",
            "sequence_number": 2,
        }  # a zombie of theirs
        assert (await _at(store, key)).resumes_at == 8

    play(story)


def test_a_checkpoint_that_could_not_be_written_to_theirs_is_written_with_the_next_cycle() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        key, store = partition_key(HUB, CONSUMERS, "3"), host._store
        group.azure_store.away = True
        checkpoint_write = CheckpointWrite(
            ownership=_held(host, key), position=Position(sequence_number=7, offset="700")
        )
        assert await store.checkpoint([checkpoint_write]) == {}
        assert group.azure_store.positions == {}
        group.azure_store.away = False
        await asyncio.sleep(5)
        assert group.azure_store.positions["3"]["sequence_number"] == 7

    play(story)


def test_a_reset_is_written_to_both() -> None:
    async def story(group: Group) -> None:
        store, key = group.mixed(), partition_key(HUB, CONSUMERS, "3")
        position = {"offset": "900", "sequence_number": 9, "partition_id": "3"}
        group.azure_store.positions["3"] = dict(position)
        assert await store.reset({key: Position(sequence_number=4, offset="400")}) == {}
        assert (await _at(store, key)).resumes_at == 5
        group.azure_store.positions["3"] = dict(position)
        assert await store.reset({key: None}) == {}
        assert key not in await store.checkpoints(GROUP)

    play(story)


def test_ours_go_on_without_their_records_until_their_clients_might_take_over() -> None:
    async def story(group: Group) -> None:
        host = group.host()
        await group.cycles_until(lambda: group.even(1))
        group.azure_store.away = True
        await asyncio.sleep(EXPIRY_S / 3)
        assert len(host.held()) == 8
        await asyncio.sleep(EXPIRY_S / 3)
        assert host.held() == []
        group.azure_store.away = False
        await group.cycles_until(lambda: group.even(1) and group.agrees())

    play(story)


def test_odd_rows_of_others_stop_nothing() -> None:
    async def story(group: Group) -> None:
        group.host()
        await group.cycles_until(lambda: group.even(1))
        group.azure_store.owners["99"] = {"partition_id": "99", "owner_id": None, "etag": "x"}
        group.azure_store.owners["100"] = {"partition_id": "100"}
        group.azure_store.owners["101"] = {}
        group.azure_store.owners["0"] |= {"owner_id": "é" * 3000, "last_modified_time": None}
        group.azure_store.positions["5"] = {"partition_id": "5", "offset": None}
        group.azure_store.positions["6"] = {}
        await asyncio.sleep(30)
        assert sum(group.counts().values()) >= 4
        assert await group.mixed().checkpoints(GROUP) == {}

    play(story)


def test_a_lease_that_their_clients_would_not_wait_for_is_refused() -> None:
    async def story(group: Group) -> None:
        store = MixedStore(
            group.store,
            group.azure_store,
            namespace=NAMESPACE,
            hub=HUB,
            expiry=timedelta(seconds=15),
            clock=LoopClock(),
        )
        options = MemberOptions(group=GROUP, timing=LeaseTiming())
        member = Member(store, options, keeper=Work(), clock=LoopClock())
        with pytest.raises(InvalidOptions, match="lease <= expiry / 2"):
            await member.run()

    play(story)


def test_a_receiver_that_was_displaced_does_not_displace_back_until_its_host_must_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        source = MemorySource(HUB)
        shared, plain = SharedSource(source, clock=LoopClock()), source
        start, most = Start.earliest(), {"max_events": 1, "max_bytes": 1}

        async def attach(epoch: int) -> Receiver:
            return await shared.receiver("0", group="g", epoch=epoch, start=start, name="ours")

        first = await attach(7)
        client = await plain.receiver("0", group="g", epoch=0, start=start, name="theirs")
        with pytest.raises(ReaderDisplaced):
            await first.receive(**most)
        with pytest.raises(ReaderDisplaced, match="records of Azure's clients"):
            await attach(7)
        source.append("0", b"x")
        assert len(await client.receive(**most)) == 1
        again = await attach(8)  # it has claimed the partition again
        with pytest.raises(ReaderDisplaced):
            await client.receive(**most)
        await plain.receiver("0", group="g", epoch=0, start=start, name="theirs")
        with pytest.raises(ReaderDisplaced):
            await again.receive(**most)
        assert "namespace" not in caplog.text
        await asyncio.sleep(16)
        # Whoever it was has written no record: it must be looking at others.
        assert len(await (await attach(8)).receive(**most)) == 1
        assert "see that all clients of the group have the same namespace" in caplog.text
        await shared.close()

    run_simulated(main())


def _held(host: Member, key: str) -> Ownership:
    return next(each for each in host.held() if each.key == key)


async def _at(store: MixedStore, key: str) -> Checkpoint:
    return (await store.checkpoints(GROUP))[key]
