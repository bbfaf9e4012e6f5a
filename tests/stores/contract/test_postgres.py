"""The PostgreSQL store keeps the contract, on a real server.

The whole suite runs with the server's clock in our hands, so that edges are exact and nothing
waits. What depends on time most, and the races of processes, run with a clock that goes on by
itself too, and is set forward where the suite would have to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime

import pytest
from tests.support import postgres

from leasehold.clock import Clock, SystemClock
from leasehold.ports import Store
from leasehold.stores import open_store
from leasehold.testing.clock import ManualClock
from leasehold.testing.contract import Harness, ManualTime, StoreContract
from leasehold.testing.contract.leases import BreakContract, LeaseContract
from leasehold.testing.contract.lost_answers import RaceContract

GOES_ON = (
    "create table leasehold.test_clock (ahead interval)",
    "insert into leasehold.test_clock values ('0')",
    """create or replace function leasehold.store_clock_1() returns timestamptz
        language sql volatile as 'select clock_timestamp() + ahead from leasehold.test_clock'""",
)


class ByHand(ManualTime):
    """No ``url``: in a race that others run by a clock that stands still, nothing is to be seen."""

    def __init__(self, url: str, set_clock: Callable[[datetime], None]) -> None:
        super().__init__()
        self._url = url
        self._set_clock = set_clock
        self._set_clock(self.now())

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self._url)

    def stored(self) -> bytes:
        return postgres.stored(self._url)

    async def pass_time(self, seconds: float) -> None:
        await super().pass_time(seconds)
        self._set_clock(self.now())

    def now(self) -> datetime:
        assert isinstance(self.clock, ManualClock)
        return self.clock.utc_now()


class ByItself(Harness):
    """The clock goes on. A unit is so long that no call ever takes one."""

    unit_s = 60.0
    exact = False

    def __init__(self, url: str) -> None:
        self.clock: Clock = SystemClock()
        self.url: str = url

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self.url)

    def stored(self) -> bytes:
        return postgres.stored(self.url)

    async def pass_time(self, seconds: float) -> None:
        forward = "update leasehold.test_clock set ahead = ahead + make_interval(secs => %s)"
        postgres.execute(self.url, forward, seconds)


@pytest.fixture(scope="module")
def by_hand() -> Iterator[tuple[str, Callable[[datetime], None]]]:
    with postgres.database() as url, postgres.stopped_clock(url) as set_clock:
        yield url, set_clock


@pytest.fixture(scope="module")
def by_itself() -> Iterator[str]:
    with postgres.database() as url:
        for statement in GOES_ON:
            postgres.execute(url, statement)
        yield url


@pytest.mark.server
@pytest.mark.spec("B7")
class TestPostgresStore(StoreContract):
    @pytest.fixture
    def harness(self, by_hand: tuple[str, Callable[[datetime], None]]) -> ByHand:
        postgres.clear(by_hand[0])
        return ByHand(*by_hand)


@pytest.mark.server
@pytest.mark.spec("B7")
class TestPostgresStoreByItsOwnClock(LeaseContract, BreakContract, RaceContract):
    @pytest.fixture
    def harness(self, by_itself: str) -> ByItself:
        return ByItself(by_itself)
