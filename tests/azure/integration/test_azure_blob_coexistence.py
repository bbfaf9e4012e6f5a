"""The Azure Blob store beside others: secrets, prefixes, tasks and jobs, on a real Azurite."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from unittest.mock import patch
from urllib.parse import quote

import pytest
from tests.support.azure_blob_scene import GROUP, NEVER, granted, keys, opened, owned
from tests.support.azurite import shared_azurite

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.clock import SystemClock
from leasehold.errors import StoreUnusable, UsageError
from leasehold.jobs import Held, reserve, try_reserve
from leasehold.model import CheckpointWrite, Ownership, Position
from leasehold.stores import open_store

pytestmark = [pytest.mark.anyio, pytest.mark.server]


@pytest.fixture
def url() -> str:
    return shared_azurite().new_store_url()


async def test_no_secret_is_kept_or_shown(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(url) as store:
        lease = await granted(store)
        await owned(store, lease, 1)
        kept = [store._container.get(name, NEVER) for name in store._container.list("", NEVER)]
        assert len(kept) == 2
        assert all(lease.token.encode() not in each.body for each in kept if each)
        shown = f"{store.url} {store!r} {store.http_client!r}"
        assert shared_azurite().key not in shown
    wrong = "d3JvbmcgYnV0IHNlY3JldA=="
    monkeypatch.setenv("AZURE_STORAGE_KEY", wrong)
    with pytest.raises(StoreUnusable, match="Storage Blob Data Contributor") as caught:
        async with open_store(url):
            pass
    assert wrong not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"


async def test_a_sas_is_enough_and_is_not_shown(url: str) -> None:
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    service, address = shared_azurite(), BlobAddress.of(url, {})
    async with opened(url):
        pass  # makes the container, which a SAS of the container can not
    sas = generate_container_sas(
        service.account,
        address.container,
        account_key=service.key,
        permission=ContainerSasPermissions(
            read=True, add=True, create=True, write=True, delete=True, list=True
        ),
        expiry=SystemClock().utc_now() + timedelta(hours=1),
    )
    async with opened(f"{url}&sas={quote(sas, safe='')}") as store:
        lease = await granted(store)
        assert len(await owned(store, lease, 1)) == 1
        await store.renew(lease)
        await store.revoke(lease)
        signature = sas.partition("sig=")[2][:12]
        assert signature not in f"{store.url} {store!r}"


async def test_prefixes_are_stores_of_their_own(url: str) -> None:
    base_url, _, query = url.partition("?")
    async with (
        opened(f"{base_url}/one?{query}") as one,
        opened(f"{base_url}/two/three?{query}") as two,
    ):
        await one.declare(keys(1))
        assert await one.groups() == [GROUP]
        assert await two.groups() == []
        assert one.url.endswith("/one?tls=0")
        lease = await granted(two)
        assert await one.members(GROUP) == {}
        await two.revoke(lease)


async def test_many_tasks_of_one_store_do_not_starve_each_other(url: str) -> None:
    async with opened(url) as store:
        lease = await granted(store)
        taken = await owned(store, lease, 12)

        async def work(ownership: Ownership) -> None:
            for number in range(3):
                write = CheckpointWrite(
                    ownership=ownership, position=Position(sequence_number=number)
                )
                assert not await store.checkpoint([write])

        await asyncio.gather(*map(work, taken))
        stored = await store.checkpoints(GROUP)
        assert {each.position.sequence_number for each in stored.values()} == {2}
        assert len(stored) == 12


async def test_a_closed_or_forked_store_says_so(url: str) -> None:
    async with opened(url) as store:
        with (
            patch("leasehold.azure.blob_store.http.os.getpid", lambda: -1),
            pytest.raises(UsageError, match="forked"),
        ):
            await store.groups()
        assert await store.groups() == []
    with pytest.raises(UsageError, match="closed"):
        await store.groups()


@pytest.mark.spec("J1", "J3")
def test_jobs_are_reserved_in_a_container(url: str) -> None:
    with reserve("nightly", store=url) as job:
        held = try_reserve("nightly", store=url)
        assert isinstance(held, Held)
        assert held.epoch == job.epoch == 1
        job.progress("half")
        job.check()
    with reserve("nightly", store=url, wait=timedelta(seconds=90)) as job:
        assert job.epoch == 2
