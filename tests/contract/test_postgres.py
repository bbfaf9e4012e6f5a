"""The PostgreSQL store keeps the contract, on a real server and by its own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.postgres import fresh_database

from leasehold.stores import open_store
from leasehold.testing.contract import RealTime, StoreContract

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from leasehold.ports import Store


class PostgresHarness(RealTime):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url: str = url

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self.url)


@pytest.fixture(scope="module")
def url() -> str:
    return fresh_database()


@pytest.mark.spec("B7")
class TestPostgresStore(StoreContract):
    @pytest.fixture
    def harness(self, url: str) -> PostgresHarness:
        return PostgresHarness(url)
