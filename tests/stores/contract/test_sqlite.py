"""The SQLite store keeps the contract: in one process by hand, in several by real time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold.stores import open_store
from leasehold.testing.contract import ManualTime, StoreContract

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from leasehold.ports import Store


class SqliteHarness(ManualTime):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.url: str = f"sqlite:///{path}"

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self.url, clock=self.clock)


@pytest.mark.spec("B7")
class TestSqliteStore(StoreContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SqliteHarness:
        return SqliteHarness(tmp_path / "leases.db")
