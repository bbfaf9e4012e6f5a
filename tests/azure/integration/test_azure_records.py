"""The records of Azure's clients on real blobs: odd ones, spellings, claims and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.eventhub.extensions.checkpointstoreblob import (
    BlobCheckpointStore as BlockingBlobCheckpointStore,
)
from azure.storage.blob import ContainerClient
from tests.support.azurite import shared_azurite

from leasehold.azure import BlobRecords, MixedStore
from leasehold.azure.interop.record_layout import ConsumerGroup
from leasehold.azure.interop.records import OwnershipRecords
from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable
from leasehold.model import Position
from leasehold.names import group_of, partition_key
from leasehold.stores import open_store

pytestmark = [pytest.mark.anyio, pytest.mark.server, pytest.mark.spec("B8")]

ODD_OWNERS: dict[str, dict[str, str]] = {
    "0": {"ownerid": "abc"},
    "1": {"ownerId": "abc"},
    "2": {},
    "3": {"ownerid": ""},
}
ODD_CHECKPOINTS: dict[str, dict[str, str]] = {
    "0": {"offset": "4096", "sequencenumber": "17"},
    "1": {"offset": "", "sequencenumber": "17"},
    "2": {"offset": "None", "sequencenumber": "None"},
    "3": {"offset": "no offset", "sequencenumber": "17", "clientidentifier": "me"},
    "4": {"offset": "4096", "sequencenumber": ""},
    "5": {},
}
CONSUMER_GROUP = ("ns", "orders", "$Default")


@pytest.fixture
def container() -> Iterator[ContainerClient]:
    azurite = shared_azurite()
    name = azurite.new_container("odd")
    with ContainerClient.from_connection_string(azurite.connection_string, name) as made:
        yield made


async def test_no_odd_record_stops_ours_while_each_of_them_stops_theirs(
    container: ContainerClient,
) -> None:
    for partition, metadata in ODD_OWNERS.items():
        container.upload_blob(f"ns/orders/$default/ownership/{partition}", b"", metadata=metadata)
    for partition, metadata in ODD_CHECKPOINTS.items():
        container.upload_blob(f"ns/orders/$default/checkpoint/{partition}", b"", metadata=metadata)
    java = {"offset": "9000", "sequencenumber": "90"}
    container.upload_blob("ns/orders/$Default/checkpoint/0", b"", metadata=java)
    stock: Any = BlockingBlobCheckpointStore("", "", container_client=container)
    with pytest.raises(KeyError):
        stock.list_ownership(*CONSUMER_GROUP)
    with pytest.raises((KeyError, TypeError, ValueError)):
        stock.list_checkpoints(*CONSUMER_GROUP)

    records = BlobRecords(container)
    owners = {
        each["partition_id"]: each["owner_id"]
        for each in await records.list_ownership(*CONSUMER_GROUP)
    }
    assert owners == {"0": "abc", "1": "abc", "2": "", "3": ""}
    found = {
        each["partition_id"]: (each["sequence_number"], each["offset"])
        for each in await records.list_checkpoints(*CONSUMER_GROUP)
    }
    assert found == {"0": (90, "9000"), "1": (17, 17), "3": (17, 17)}
    rows = {each["partition_id"]: each for each in await records.list_ownership(*CONSUMER_GROUP)}
    (won,) = await records.claim_ownership([{**rows["2"], "owner_id": "me"}])
    assert won["etag"] != rows["2"]["etag"]


async def test_owners_of_another_spelling_are_seen_and_robbed_where_they_look(
    container: ContainerClient,
) -> None:
    """Clients for Java, Go, Rust and C++ do not lower-case the names of their records."""
    java, python = "ns/orders/$Default/ownership/", "ns/orders/$default/ownership/"
    container.upload_blob(f"{python}0", b"", metadata={"ownerid": ""})
    container.upload_blob(f"{java}0", b"", metadata={"ownerid": "java"})
    container.upload_blob(f"{java}1", b"", metadata={"ownerid": "java"})
    container.upload_blob(f"{python}2", b"", metadata={"ownerid": "python"})
    blobs, clock = BlobRecords(container), SystemClock()
    consumer_group = ConsumerGroup(namespace="ns", hub="orders", group="$Default")
    records = OwnershipRecords(blobs, consumer_group, expiry_s=60.0, clock=clock)
    await records.refresh()
    assert [records.live_client(each) for each in "012"] == ["java", "java", "python"]
    assert await records.write({"0": "leasehold:me"}) == {"0"}
    stored = container.get_blob_client(f"{java}0").get_blob_properties()
    assert stored.metadata == {"ownerid": "leasehold:me"}
    assert await records.write({"3": "leasehold:me"}) == {"3"}
    assert container.get_blob_client(f"{python}3").exists()
    await records.refresh()
    assert [records.live_owner(each) for each in "03"] == ["leasehold:me", "leasehold:me"]


async def test_the_other_spelling_is_searched_for_now_and_then(container: ContainerClient) -> None:
    records = BlobRecords(container)
    container.upload_blob("ns/orders/$default/ownership/0", b"", metadata={"ownerid": "python"})
    for _ in range(6):
        await records.list_ownership(*CONSUMER_GROUP)
    assert records.calls == 7
    container.upload_blob("ns/orders/$Default/ownership/1", b"", metadata={"ownerid": "java"})
    for number in (9, 11, 13):
        found = await records.list_ownership(*CONSUMER_GROUP)
        assert {each["owner_id"] for each in found} == {"python", "java"}
        assert records.calls == number
    same = BlobRecords(container)
    for _ in range(3):
        await same.list_ownership("ns", "orders", "group")
    assert same.calls == 3


async def test_two_first_claims_of_a_blob_never_both_win(container: ContainerClient) -> None:
    """Azurite lets both win that their blob store makes: it ignores a condition."""
    row = {
        "fully_qualified_namespace": "ns",
        "eventhub_name": "orders",
        "consumer_group": "$Default",
        "partition_id": "0",
    }
    records = BlobRecords(container)
    won = [
        list(await records.claim_ownership([{**row, "owner_id": owner}])) for owner in ("a", "b")
    ]
    assert [len(each) for each in won] == [1, 0]


async def test_a_claim_that_failed_is_not_taken_for_won(container: ContainerClient) -> None:
    """Their blob store returns it, and its client opens a receiver."""
    container.delete_container()
    row = {
        "fully_qualified_namespace": "ns",
        "eventhub_name": "orders",
        "consumer_group": "$Default",
        "partition_id": "0",
        "owner_id": "me",
        "etag": "0x1",
    }
    assert list(await BlobRecords(container).claim_ownership([row])) == []


async def test_their_blocking_store_serves_as_well(container: ContainerClient) -> None:
    stock: Any = BlockingBlobCheckpointStore("", "", container_client=container)
    clock = SystemClock()
    records = OwnershipRecords(
        stock, ConsumerGroup(namespace="ns", hub="o", group="g"), expiry_s=60.0, clock=clock
    )
    await records.refresh()
    assert await records.write({"0": "leasehold:me", "1": "leasehold:me"}) == {"0", "1"}
    await records.refresh()
    assert records.live_owner("0") == "leasehold:me"
    other = OwnershipRecords(
        stock, ConsumerGroup(namespace="ns", hub="o", group="g"), expiry_s=60.0, clock=clock
    )
    await other.refresh()
    assert await other.write({"0": "client"}) == {"0"}
    assert await records.write({"0": "leasehold:me"}) == set()
    await records.write_checkpoint("1", Position(sequence_number=7, offset="700"))
    assert (await other.positions())["1"] == Position(sequence_number=7)
    # What their store could not write at all it returns as it was: that is not won.
    container.delete_container()
    with pytest.raises(StoreUnavailable):
        await records.refresh()
    assert await records.write({"1": "leasehold:me"}) == set()


async def test_a_checkpoint_is_taken_back_to_the_beginning_for_their_clients_too(
    container: ContainerClient,
) -> None:
    records, key = BlobRecords(container), partition_key("o", "g", "1")
    async with open_store("memory://") as leases:
        await leases.declare([key])
        store = MixedStore(leases, records, namespace="ns", hub="o")
        assert await store.reset({key: Position(sequence_number=7, offset="700")}) == {}
        assert await store.reset({key: None}) == {}
        assert await store.checkpoints(group_of(key)) == {}
    stock = BlockingBlobCheckpointStore("", "", container_client=container)
    (found,) = stock.list_checkpoints("ns", "o", "g")
    assert found["offset"] == "-1"
