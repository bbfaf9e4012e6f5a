"""Partitions and jobs that are a blob each, from the first lease to the last, on a real Azurite.

So the event processor hosts of Event Hubs share partitions, and so jobs were kept to one node: by
the lease of a blob, with no other store.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from tests.support.azurite import shared_azurite_by_hand

from leasehold.azure import BlobLease
from leasehold.azure.blob_store.blob_lease import Blobs, open_blobs
from leasehold.errors import FencedWrite, LeaseLost
from leasehold.model import State
from leasehold.testing.clock import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.server]

LEASE = timedelta(seconds=30)


class Service:
    """The blobs of one container, by a clock in our hands."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._clock = ManualClock()
        self.pass_time(0)

    def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)
        shared_azurite_by_hand().set_clock(self._clock.utc_now())


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    url = shared_azurite_by_hand().new_store_url()
    async with open_blobs(url, environment={}) as blobs:
        yield Service(blobs)


async def record_in(blob: BlobLease) -> dict[str, object]:
    """What the record of a partition says."""
    found = await blob.read()
    assert found is not None
    return dict(json.loads(found.body))


async def owned(blob: BlobLease, host: str, token: str, *, epoch: int, offset: int = 0) -> None:
    """Write into the record who has the partition, under which token, and how far it is."""
    record = {"Owner": host, "Token": token, "Epoch": epoch, "Offset": str(offset)}
    await blob.write(json.dumps(record).encode(), lease_id=token, metadata={"OWNINGHOST": host})


@pytest.mark.spec("L2", "L3", "L4", "L7")
async def test_a_partition_goes_from_host_to_host_by_the_token_in_its_record(
    service: Service,
) -> None:
    blob = service.blobs.lease("hub/group/0")
    assert await blob.create(b"{}")
    token = await blob.acquire(LEASE)
    assert token is not None
    await owned(blob, "one", token, epoch=1)
    await owned(blob, "one", token, epoch=1, offset=7)

    # Another host finds no free one, reads the token of this one, and takes it over.
    assert await blob.acquire(LEASE) is None
    known = await record_in(blob)
    assert known == {"Owner": "one", "Token": token, "Epoch": 1, "Offset": "7"}
    stolen = await blob.change(str(known["Token"]))
    assert stolen != token
    await owned(blob, "two", stolen, epoch=2, offset=7)

    # The old owner is out, whatever it does: the service refuses its write with 412.
    with pytest.raises(FencedWrite, match="412"):
        await owned(blob, "one", token, epoch=1, offset=9)
    with pytest.raises(LeaseLost):
        await blob.renew(token)
    assert not await blob.release(token)
    assert (await record_in(blob))["Owner"] == "two"
    assert (await record_in(blob))["Offset"] == "7"

    # Renewed, it outlives its first 30 seconds; left alone, the first one can have it again.
    service.pass_time(20)
    await blob.renew(stolen)
    service.pass_time(20)
    assert await blob.acquire(LEASE) is None
    service.pass_time(10)
    again = await blob.acquire(LEASE)
    assert again is not None
    await owned(blob, "one", again, epoch=3, offset=7)
    with pytest.raises(FencedWrite, match="412"):
        await owned(blob, "two", stolen, epoch=2, offset=8)


@pytest.mark.spec("L3")
async def test_of_two_thieves_with_one_token_one_gets_the_partition(service: Service) -> None:
    blob = service.blobs.lease("hub/group/1")
    await blob.create(b"{}")
    token = await blob.acquire(LEASE)
    assert token is not None
    await owned(blob, "one", token, epoch=1)
    read_by_both = str((await record_in(blob))["Token"])
    won = await blob.change(read_by_both)
    with pytest.raises(LeaseLost):
        await blob.change(read_by_both)
    await owned(blob, "two", won, epoch=2)
    assert (await record_in(blob))["Owner"] == "two"


async def has_reservation(blob: BlobLease, reservation: str) -> bool:
    try:
        await blob.renew(reservation)
    except LeaseLost:
        return False
    return True


@pytest.mark.spec("J1", "J3", "J5")
async def test_a_job_that_is_a_blob_has_one_reserver_at_a_time(service: Service) -> None:
    blob = service.blobs.lease("jobs/nightly")
    assert await blob.create()
    assert not await blob.create()  # the second node finds it there

    first = await blob.acquire(LEASE)
    assert first is not None
    assert await blob.acquire(LEASE) is None  # the second reserver is refused
    await blob.write(b"node-1", lease_id=first)
    assert await has_reservation(blob, first)

    service.pass_time(25)
    assert await has_reservation(blob, first)  # asking has renewed it
    service.pass_time(25)
    assert await blob.acquire(LEASE) is None

    assert await blob.release(first)  # cancelled: the other may have it at once
    second = await blob.acquire(LEASE)
    assert second is not None
    assert not await has_reservation(blob, first)
    with pytest.raises(FencedWrite, match="412"):
        await blob.write(b"node-1 again", lease_id=first)
    await blob.write(b"node-2\nnode-1", lease_id=second)
    found = await blob.read()
    assert found is not None
    assert (found.body, found.state) == (b"node-2\nnode-1", State.LEASED)

    service.pass_time(30)  # it has died
    third = await blob.acquire(LEASE)
    assert third is not None
    assert not await has_reservation(blob, second)
