"""The Azure Blob store keeps the contract, on a real Azurite.

The whole suite runs with the service's clock in our hands: a blob lease lasts 15 s at least. What
depends on time most, and the races of processes, run by the service's own clock too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime

import pytest
from tests.support.azurite import Azurite, shared_azurite, shared_azurite_by_hand

from leasehold.azure.blob_store import document_cache
from leasehold.azure.blob_store.address import BlobAddress
from leasehold.azure.blob_store.container import OK, Container
from leasehold.azure.blob_store.credentials import credential_for
from leasehold.azure.blob_store.http import HttpClient
from leasehold.azure.blob_store.naming import LeaseLocation, lease_id
from leasehold.clock import SystemClock, system_random
from leasehold.model import Lease
from leasehold.ports import Store
from leasehold.stores import open_store
from leasehold.testing.clock import ManualClock
from leasehold.testing.contract import ManualTime, RealTime, StoreContract
from leasehold.testing.contract.lost_answers import RaceContract

pytestmark = pytest.mark.server
SHORTEST_S, LONGEST_S = 15.0, 60.0
# A lease that is kept alive is renewed at least so often.
SLICE_S = 45.0


class ManualTimeScene(ManualTime):
    # Three units are the longest lease, and a twentieth of one is the second that the service's
    # time is told to.
    unit_s = 20.0
    shortest_s, longest_s = SHORTEST_S, LONGEST_S
    tells_ends = False
    lives = 1

    def __init__(self, service: Azurite, url: str) -> None:
        super().__init__()
        # The races run as tasks here: time stands still, and processes have none of their own.
        self._url = url
        self._service = service
        self._kept: list[Lease] = []
        address, clock = BlobAddress.of(url, {}), SystemClock()
        http_client = HttpClient(
            address, credential_for(address, clock), clock=clock, rng=system_random()
        )
        self._container = Container(address, http_client)
        service.set_clock(self.now())

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self._url, clock=self.clock)

    def stored(self) -> bytes:
        cancelled = threading.Event()
        found = {
            name: self._container.get(name, cancelled)
            for name in self._container.list("", cancelled)
        }
        return repr(found).encode()

    def keep(self, lease: Lease) -> None:
        self._kept.append(lease)

    async def pass_time(self, seconds: float) -> None:
        while seconds > 0:
            passing_s = min(seconds, SLICE_S)
            seconds -= passing_s
            self._kept = [lease for lease in self._kept if self._renewed(lease)]
            await super().pass_time(passing_s)
            self._service.set_clock(self.now())

    def now(self) -> datetime:
        assert isinstance(self.clock, ManualClock)
        return self.clock.utc_now()

    def close(self) -> None:
        # Azurite looks through all blobs that it has, whichever container is asked for.
        http_client, path = self._container.http_client, BlobAddress.of(self._url, {}).path()
        query = {"restype": "container"}
        http_client.request("DELETE", path, query=query, retry=True, cancelled=threading.Event())
        http_client.close()

    def _renewed(self, lease: Lease) -> bool:
        """Renew the blob's lease itself, behind the store's back: nothing else happens."""
        blob = LeaseLocation.of(lease.group, lease.holder).holder_blob(lease.holder)
        answer = self._container.lease(
            blob, "renew", threading.Event(), lease_id=lease_id(lease.token)
        )
        return answer.status == OK


class ByItself(RealTime):
    unit_s = 20.0
    shortest_s, longest_s = SHORTEST_S, LONGEST_S
    tells_ends = False

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url: str = url

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self.url)


@pytest.mark.spec("B7")
class TestAzureBlobStore(StoreContract):
    @pytest.fixture
    def harness(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[ManualTimeScene]:
        # Half of the tests read the document anew for each call, as if each came from elsewhere.
        if len(request.node.name) % 2:
            monkeypatch.setattr(document_cache, "_SPARES", 0)
        service = shared_azurite_by_hand()
        harness = ManualTimeScene(service, service.new_store_url())
        yield harness
        harness.close()


@pytest.mark.spec("B7")
class TestAzureBlobStoreByItsOwnClock(RaceContract):
    @pytest.fixture
    def harness(self) -> ByItself:
        return ByItself(shared_azurite().new_store_url())
