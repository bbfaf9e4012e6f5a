"""Stores, leases and keys for the tests of the Azure Blob store."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from unittest.mock import patch

from tests.support.azurite import Azurite, shared_azurite_by_hand

from leasehold.azure.blob_store import AzureBlobStore, http
from leasehold.model import KeyClaim, Lease, MemberInfo, Ownership
from leasehold.stores import open_store
from leasehold.testing.clock import ManualClock

GROUP = "partition/orders/billing"
LEASE = timedelta(seconds=15)
NEVER = threading.Event()


def keys(number: int) -> list[str]:
    return [f"{GROUP}/{n}" for n in range(number)]


@asynccontextmanager
async def opened(url: str, clock: ManualClock | None = None) -> AsyncIterator[AzureBlobStore]:
    async with open_store(url, clock=clock) as store:
        assert isinstance(store, AzureBlobStore)
        yield store


async def granted(
    store: AzureBlobStore, name: str = "host", *, duration: timedelta = timedelta(seconds=60)
) -> Lease:
    return await store.grant(
        holder=name, token=f"token of {name}", group=GROUP, duration=duration, info=MemberInfo()
    )


async def owned(store: AzureBlobStore, lease: Lease, number: int) -> list[Ownership]:
    await store.declare(keys(number))
    return list(await store.claim(lease, [KeyClaim(key=key, seen_epoch=0) for key in keys(number)]))


@contextmanager
def sent() -> Iterator[list[str]]:
    """The first lines of all requests."""
    real, lines = http.HttpConnection.exchange, list[str]()

    def exchange(
        self: http.HttpConnection, request: bytes
    ) -> tuple[int, Mapping[str, str], bytes, bool]:
        lines.append(request.partition(b" HTTP")[0].decode())
        return real(self, request)

    with patch.object(http.HttpConnection, "exchange", exchange):
        yield lines


class ManualTimeScene:
    """A store on a service whose clock is in our hands."""

    def __init__(self) -> None:
        self.service: Azurite = shared_azurite_by_hand()
        self.clock = ManualClock()
        self.url = self.service.new_store_url()
        self.pass_time(0.9)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.set_clock(self.clock.utc_now())
