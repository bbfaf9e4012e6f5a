"""The PostgreSQL store keeps the contract, on a real server.

The whole suite runs with the server's clock in our hands, so that edges are exact and nothing
waits; what depends on time most, and the races of processes, run by the server's own clock too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime

import pytest
from tests.support.postgres import fresh_database, stopped_clock

from leasehold.ports import Store
from leasehold.stores import open_store
from leasehold.testing.clock import ManualClock
from leasehold.testing.contract import ManualTime, RealTime, StoreContract
from leasehold.testing.contract.breaking import BreakContract
from leasehold.testing.contract.leases import LeaseContract
from leasehold.testing.contract.races import RaceContract


class ByHand(ManualTime):
    def __init__(self, url: str, set_clock: object) -> None:
        super().__init__()
        self.url: str = url
        self._set_clock = set_clock

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self.url)

    async def pass_time(self, seconds: float) -> None:
        await super().pass_time(seconds)
        assert callable(self._set_clock)
        self._set_clock(self.now())

    def now(self) -> datetime:
        assert isinstance(self.clock, ManualClock)
        return self.clock.utc_now()


class ByItself(RealTime):
    # Longer than the suite's own unit: other tests keep the machine busy at the same time.
    unit_s = 0.8

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url: str = url

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self.url)


@pytest.fixture(scope="module")
def url() -> str:
    return fresh_database()


@pytest.fixture(scope="module")
def url_by_hand() -> str:
    return fresh_database()


@pytest.mark.spec("B7")
class TestPostgresStore(StoreContract):
    @pytest.fixture
    def harness(self, url_by_hand: str) -> Iterator[ByHand]:
        with stopped_clock(url_by_hand) as set_clock:
            harness = ByHand(url_by_hand, set_clock)
            set_clock(harness.now())
            yield harness


@pytest.mark.spec("B7")
class TestPostgresStoreByItsOwnClock(LeaseContract, BreakContract, RaceContract):
    @pytest.fixture
    def harness(self, url: str) -> ByItself:
        return ByItself(url)
