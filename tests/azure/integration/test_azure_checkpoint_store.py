"""Azure's ``CheckpointStore`` on a store of Leasehold, and the faults of Azure's own stores.

The balancer is the real one of azure-eventhub, in simulated time.
``test_azure_checkpoint_store_client`` has the whole client.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.eventhub import CheckpointStore as BlockingContract
from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.aio import CheckpointStore as Contract
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager
from tests.support.job_scene import FaultyStore, LoopClock

from leasehold import LeaseTiming, Member, MemberOptions, azure
from leasehold.azure import AsyncCheckpointStore
from leasehold.azure.interop.record_layout import ConsumerGroup
from leasehold.clock import SystemClock
from leasehold.errors import FencedWrite, InvalidDuration, StoreUnavailable, UsageError
from leasehold.model import Ownership
from leasehold.testing.sim.loop import run_simulated

NAMESPACE, HUB, CONSUMERS = "NS.servicebus.windows.net", "Orders", "$Default"
CONSUMER_GROUP = (NAMESPACE, HUB, CONSUMERS)
KEYS = ConsumerGroup(namespace=NAMESPACE, hub=HUB, group=CONSUMERS)
IDS = KEYS.ids()
CYCLE_S = 36.0
LEASE = timedelta(seconds=60)

Story = Callable[["Scene"], Coroutine[Any, Any, None]]


class Work:
    """A keeper whose work stops at once."""

    def opened(self, ownership: Ownership) -> None:
        pass

    def drain(self, ownership: Ownership) -> bool:
        return True

    def closed(self, ownership: Ownership, reason: str) -> None:
        pass


class NowClock(LoopClock):
    """Simulated, but for the wall clock: with that their balancer compares."""

    def utc_now(self) -> Any:
        return SystemClock().utc_now()


class Scene:
    """Processes of Azure's clients, each with its own ``CheckpointStore``, over one store."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [str(number) for number in range(partitions)]
        self.store = FaultyStore(LoopClock())
        self.clients: list[OwnershipManager] = []
        self.tasks: dict[object, asyncio.Task[None]] = {}
        self.rng = random.Random(1)

    def process(self, stream: str = "") -> AsyncCheckpointStore:
        return AsyncCheckpointStore(self.store, lease=LEASE, stream=stream, clock=NowClock())

    def client(self, name: str, strategy: Any = LoadBalancingStrategy.GREEDY) -> OwnershipManager:
        """The balancer of one client, asked as their client asks it."""

        async def ids() -> list[str]:
            return self.partitions

        client: Any = SimpleNamespace(
            _address=SimpleNamespace(hostname=NAMESPACE), eventhub_name=HUB, get_partition_ids=ids
        )
        made = OwnershipManager(client, CONSUMERS, name, self.process(), 180.0, strategy, None)
        self.clients.append(made)

        async def cycle() -> None:
            while True:
                await made.claim_ownership()
                await asyncio.sleep(30.0 + 6.0 * self.rng.random())

        self.tasks[made] = asyncio.create_task(cycle())
        return made

    def host(self) -> Member:
        """A host of Leasehold, in the same group."""
        options = MemberOptions(group=KEYS.keys_group, name="ours", timing=LeaseTiming())
        member = Member(self.store, options, keeper=Work(), clock=LoopClock(), rng=self.rng)
        self.tasks[member] = asyncio.create_task(member.run())
        return member

    def shares(self) -> list[int]:
        return sorted(len(list(each.owned_partitions)) for each in self.clients)

    async def cycles_until(self, true: Callable[[], bool], *, most: float = 12.0) -> float:
        now = asyncio.get_running_loop().time
        began_s = now()
        while not true():
            assert now() - began_s < most * CYCLE_S, self.shares()
            await asyncio.sleep(0.5)
        return (now() - began_s) / CYCLE_S


def play(story: Story, *, partitions: int = 4) -> None:
    async def main() -> None:
        made = Scene(partitions)
        try:
            await story(made)
        finally:
            for task in made.tasks.values():
                task.cancel()
            await asyncio.gather(*made.tasks.values(), return_exceptions=True)

    run_simulated(main())


def row(partition: str, owner: str, **more: Any) -> dict[str, Any]:
    return {**IDS, "partition_id": partition, "owner_id": owner, **more}


def checkpoint(partition: str, number: Any, offset: Any) -> dict[str, Any]:
    return {**IDS, "partition_id": partition, "sequence_number": number, "offset": offset}


async def listed(store: AsyncCheckpointStore) -> dict[str, dict[str, Any]]:
    return {each["partition_id"]: each for each in await store.list_ownership(*CONSUMER_GROUP)}


# ------------------------------------------------------------------ the contract


def test_both_are_checkpoint_stores_of_azure() -> None:
    assert issubclass(AsyncCheckpointStore, Contract)
    assert issubclass(azure.CheckpointStore, BlockingContract)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = azure.Nothing


def test_an_ownership_is_had_kept_and_released_as_their_client_does_it() -> None:
    async def story(scene: Scene) -> None:
        store = scene.process()
        assert await listed(store) == {}
        (had,) = await store.claim_ownership([row("0", "me")], timeout=5)
        assert (had["owner_id"], had["partition_id"]) == ("me", "0")
        assert isinstance(had["last_modified_time"], float)
        (kept,) = await store.claim_ownership([had])
        assert (await listed(store))["0"]["owner_id"] == "me"
        (freed,) = await store.claim_ownership([{**kept, "owner_id": ""}])
        assert freed["owner_id"] == ""
        assert (await listed(store))["0"]["owner_id"] == ""
        assert await scene.store.members(KEYS.keys_group) == {}  # nobody waits for its lease to end

    play(story)


def test_a_round_is_one_renewal_and_one_claim_however_much_is_owned() -> None:
    async def story(scene: Scene) -> None:
        store = scene.process()
        won = await store.claim_ownership([row(each, "me") for each in scene.partitions])
        scene.store.calls.clear()
        for _ in range(10):
            won = await store.claim_ownership(won)
        assert len(list(won)) == 256
        assert scene.store.calls == {"renew": 10}
        scene.store.calls.clear()
        await store.list_ownership(*CONSUMER_GROUP)
        assert scene.store.calls == {"resources": 1}

    play(story, partitions=256)


def test_a_steal_takes_by_force_and_only_from_the_owner_that_was_seen() -> None:
    async def story(scene: Scene) -> None:
        one, other = scene.process(), scene.process()
        (had,) = await one.claim_ownership([row("0", "one")])
        seen = (await listed(other))["0"]
        (stolen,) = await other.claim_ownership([{**seen, "owner_id": "other"}])
        assert stolen["owner_id"] == "other"
        assert list(await one.claim_ownership([had])) == []
        assert list(await scene.process().claim_ownership([{**seen, "owner_id": "third"}])) == []
        await other.claim_ownership(
            [{**stolen, "owner_id": ""}]
        )  # free again, but not for a zombie
        with pytest.raises(FencedWrite, match="does not own it any more"):
            await one.update_checkpoint(checkpoint("0", 5, "500"))

    play(story)


def test_an_owner_whose_lease_has_ended_is_shown_as_free_and_comes_back_as_another_holder() -> None:
    async def story(scene: Scene) -> None:
        store, other = scene.process(), scene.process()
        won = list(await store.claim_ownership([row("0", "me"), row("1", "me")]))
        await asyncio.sleep(61)
        rows = await listed(other)
        assert [rows[each]["owner_id"] for each in ("0", "1")] == ["", ""]
        assert len(list(await other.claim_ownership([{**rows["1"], "owner_id": "other"}]))) == 1
        (back,) = await store.claim_ownership(won)  # nobody had it in between
        assert back["partition_id"] == "0"
        assert (await listed(store))["0"]["owner_id"] == "me"
        await store.update_checkpoint(checkpoint("0", 5, "500"))

    play(story)


def test_what_is_kept_for_somebody_else_is_not_free() -> None:
    async def story(scene: Scene) -> None:
        one, other = scene.process(), scene.process()
        await one.claim_ownership([row(each, "one") for each in scene.partitions])
        await other.claim_ownership([{**(await listed(other))["0"], "owner_id": "other"}])
        for _ in range(2):  # stops the surplus, then hands it over
            mine = [each for each in (await listed(one)).values() if each["owner_id"] == "one"]
            await one.claim_ownership(mine)
        (kept,) = [each for each in (await listed(other)).values() if each["owner_id"] == ""]
        assert (await listed(one))[kept["partition_id"]]["owner_id"] == "other"
        assert list(await one.claim_ownership([{**kept, "owner_id": "one"}])) == []
        assert len(list(await other.claim_ownership([{**kept, "owner_id": "other"}]))) == 1

    play(story)


def test_what_is_too_much_is_first_stopped_and_handed_over_a_round_later() -> None:
    async def story(scene: Scene) -> None:
        one, other = scene.process(), scene.process()
        await one.claim_ownership([row(each, "one") for each in scene.partitions])
        await other.claim_ownership([{**(await listed(other))["0"], "owner_id": "other"}])
        mine = [each for each in (await listed(one)).values() if each["owner_id"] == "one"]
        kept = {each["partition_id"] for each in await one.claim_ownership(mine)}
        assert len(kept) == 2
        (stopping,) = {each["partition_id"] for each in mine} - kept
        assert (await listed(other))[stopping]["owner_id"] == "one"
        await one.update_checkpoint(checkpoint(stopping, 5, "500"))  # the last word of its handler
        await one.claim_ownership(mine)
        assert (await listed(other))[stopping]["owner_id"] == ""
        with pytest.raises(FencedWrite):
            await one.update_checkpoint(checkpoint(stopping, 6, "600"))

    play(story)


def test_a_partition_that_is_read_by_its_name_is_checkpointed_unless_somebody_owns_it() -> None:
    async def story(scene: Scene) -> None:
        reader, owner = scene.process(), scene.process()
        await reader.update_checkpoint(checkpoint("2", 5, "500"))
        await reader.update_checkpoint(checkpoint("2", 4, "400"))
        (found,) = await reader.list_checkpoints(*CONSUMER_GROUP)
        assert (found["partition_id"], found["sequence_number"], found["offset"]) == ("2", 5, "500")
        await owner.claim_ownership([{**(await listed(owner))["2"], "owner_id": "owner"}])
        with pytest.raises(FencedWrite):
            await reader.update_checkpoint(checkpoint("2", 6, "600"))

    play(story)


def test_with_the_name_of_a_stream_the_keys_are_those_of_our_hosts() -> None:
    async def story(scene: Scene) -> None:
        store = scene.process(stream="orders")
        await store.claim_ownership([row("0", "me")])
        await store.update_checkpoint(checkpoint("0", 5, "500"))
        assert list(await scene.store.resources("partition/orders/$Default")) == [
            "partition/orders/$Default/0"
        ]
        assert (await listed(store))["0"]["owner_id"] == "me"
        assert len(list(await store.list_checkpoints(*CONSUMER_GROUP))) == 1
        assert await listed(scene.process()) == {}

    play(story)


def test_closing_frees_everything_at_once() -> None:
    async def story(scene: Scene) -> None:
        async with scene.process() as store:
            await store.claim_ownership([row("0", "me"), row("1", "you")])
        rows = await listed(scene.process())
        assert {each["owner_id"] for each in rows.values()} == {""}

    play(story)


def test_the_blocking_store_does_the_same_from_any_thread_and_says_that_it_is_closed() -> None:
    store = azure.CheckpointStore("memory://")
    (had,) = store.claim_ownership([row("0", "me")])
    store.update_checkpoint(checkpoint("0", 0, "0"))
    ((found,), (owned,)) = (
        store.list_checkpoints(*CONSUMER_GROUP),
        store.list_ownership(*CONSUMER_GROUP),
    )
    assert (found["offset"], owned["owner_id"], owned["etag"]) != ("", "", had["etag"])
    store.close()
    store.close()
    with pytest.raises(UsageError, match="was closed"):
        store.list_ownership(*CONSUMER_GROUP)


def test_a_lease_that_no_store_allows_is_refused_at_once() -> None:
    with pytest.raises(InvalidDuration):
        AsyncCheckpointStore("memory://", lease=timedelta(0))


# ------------------------------------------------- faults of Azure's own that are closed


def test_two_first_claims_never_both_win() -> None:
    """azure-sdk-for-python#38812; on Azurite still so with their blob store."""

    async def story(scene: Scene) -> None:
        one, other = scene.process(), scene.process()
        won = await asyncio.gather(
            one.claim_ownership([row("0", "one")]), other.claim_ownership([row("0", "other")])
        )
        assert sorted(len(list(each)) for each in won) == [0, 1]

    play(story)


def test_a_claim_that_was_not_answered_is_not_taken_for_won() -> None:
    """Their blob store returns what failed with any other error than 409 and 412 as owned."""

    async def story(scene: Scene) -> None:
        client = scene.client("f")
        await scene.cycles_until(lambda: scene.shares() == [4])
        late = scene.client("g")
        scene.store.error = StoreUnavailable("no answer")
        with pytest.raises(StoreUnavailable):
            await late.claim_ownership()
        assert list(late.owned_partitions) == []
        scene.store.error = None
        assert len(list(client.owned_partitions)) == 4

    play(story)


def test_a_checkpoint_never_goes_back() -> None:
    """Theirs writes whatever comes: unconditional Set Metadata in all languages."""

    async def story(scene: Scene) -> None:
        store = scene.process()
        await store.claim_ownership([row("0", "me")])
        await store.update_checkpoint(checkpoint("0", 17, "1700"))
        await store.update_checkpoint(checkpoint("0", 3, "300"))  # no error: it may be a repetition
        (found,) = await store.list_checkpoints(*CONSUMER_GROUP)
        assert (found["sequence_number"], found["offset"]) == (17, "1700")

    play(story)


def test_a_paused_owner_can_not_write_over_its_successor() -> None:
    """With Azure's own a former owner moves the checkpoint of the present one."""

    async def story(scene: Scene) -> None:
        zombie, next_one = scene.process(), scene.process()
        await zombie.claim_ownership([row("0", "zombie")])
        await asyncio.sleep(61)
        free = (await listed(next_one))["0"]
        await next_one.claim_ownership([{**free, "owner_id": "next"}])
        await next_one.update_checkpoint(checkpoint("0", 9, "900"))
        with pytest.raises(FencedWrite):
            await zombie.update_checkpoint(checkpoint("0", 99, "9900"))
        (found,) = await next_one.list_checkpoints(*CONSUMER_GROUP)
        assert found["sequence_number"] == 9
        assert await scene.store.fenced_writes(KEYS.keys_group) == 1

    play(story)


@pytest.mark.parametrize("number", [None, "None", "", -5, "x"])
def test_what_is_no_checkpoint_is_refused_and_spoils_nothing(number: Any) -> None:
    """Theirs stores the text ``None``, and listing raises for the whole group from then on."""

    async def story(scene: Scene) -> None:
        store = scene.process()
        await store.claim_ownership([row("0", "me")])
        await store.update_checkpoint(checkpoint("0", 1, "100"))
        with pytest.raises(UsageError, match="needs a sequence number"):
            await store.update_checkpoint(checkpoint("0", number, None))
        (found,) = await store.list_checkpoints(*CONSUMER_GROUP)
        assert found["sequence_number"] == 1

    play(story)


@pytest.mark.parametrize(
    ("number", "offset", "offset_given"),
    [(0, "0", "0"), (7, None, 7), (7, "None", 7), (0, None, "-1")],
)
def test_a_checkpoint_without_an_offset_is_no_reason_to_skip_events(
    number: int, offset: Any, offset_given: str | int
) -> None:
    """Their client takes a false offset for no checkpoint, and begins at the end."""

    async def story(scene: Scene) -> None:
        store = scene.process()
        await store.claim_ownership([row("0", "me")])
        await store.update_checkpoint(checkpoint("0", number, offset))
        (found,) = await store.list_checkpoints(*CONSUMER_GROUP)
        assert found["offset"] == offset_given
        assert found["offset"]

    play(story)


def test_rows_are_fresh_so_a_balancer_may_write_into_them() -> None:
    """Their own in-memory store gives out its records: thinking of a steal is a steal there."""

    async def story(scene: Scene) -> None:
        store = scene.process()
        (had,) = await store.claim_ownership([row("0", "me")])
        had["owner_id"] = (await listed(store))["0"]["owner_id"] = "somebody"
        assert (await listed(store))["0"]["owner_id"] == "me"

    play(story)


def test_names_in_another_spelling_are_the_same_group() -> None:
    """Java, Go and Rust do not lower-case names: with Azure's own they never see each other."""

    async def story(scene: Scene) -> None:
        store = scene.process()
        await store.claim_ownership([row("0", "me")])
        (found,) = await store.list_ownership(NAMESPACE.lower(), HUB.upper(), "$DEFAULT")
        assert (found["owner_id"], found["consumer_group"]) == ("me", "$DEFAULT")

    play(story)


def test_the_clock_of_a_machine_decides_nothing() -> None:
    """Theirs compares each machine's clock with the storage's: half an hour ahead owns all."""

    async def story(scene: Scene) -> None:
        class Ahead(NowClock):
            def utc_now(self) -> Any:
                return SystemClock().utc_now() + timedelta(minutes=30)

        store = scene.process()
        await store.claim_ownership([row("0", "me")])
        await asyncio.sleep(50)
        ahead = AsyncCheckpointStore(scene.store, lease=LEASE, clock=Ahead())
        seen = (await listed(ahead))["0"]
        assert seen["owner_id"] == "me"
        assert seen["last_modified_time"] > SystemClock().utc_now().timestamp() + 1700

    play(story)


@pytest.mark.parametrize(("partitions", "owners"), [(5, 3), (8, 3), (32, 5)])
@pytest.mark.parametrize("strategy", list(LoadBalancingStrategy))
def test_the_remainder_is_shared_out_too(partitions: int, owners: int, strategy: Any) -> None:
    """Alone, their balancer ends at 3, 1, 1 and at 8, 6, 6, 6, 6, and stays there."""

    async def story(scene: Scene) -> None:
        for number in range(owners):
            scene.client(f"client{number}", strategy)

        def even() -> bool:
            shares = scene.shares()
            return sum(shares) == partitions and shares[-1] - shares[0] <= 1

        await scene.cycles_until(even, most=20)
        await asyncio.sleep(10 * CYCLE_S)
        assert even()

    play(story, partitions=partitions)


def test_one_that_comes_late_has_its_share_after_a_few_cycles() -> None:
    """Theirs: 16 cycles of 30 to 36 s for the second of two with 32 partitions."""

    async def story(scene: Scene) -> None:
        scene.client("first")
        await scene.cycles_until(lambda: scene.shares() == [32])
        scene.client("late")
        assert await scene.cycles_until(lambda: scene.shares() == [16, 16]) < 5

    play(story, partitions=32)


def test_a_host_of_ours_and_a_client_of_theirs_share_one_store() -> None:
    async def story(scene: Scene) -> None:
        client = scene.client("f")
        await scene.cycles_until(lambda: scene.shares() == [8])
        host = scene.host()
        assert await scene.cycles_until(lambda: len(host.held()) == 4) < 5
        assert len(list(client.owned_partitions)) == 4
        rows = await listed(scene.process())
        assert {each["owner_id"] for each in rows.values()} == {"f", host.holder}
        host.drain()
        await scene.cycles_until(lambda: scene.shares() == [8])

    play(story, partitions=8)
