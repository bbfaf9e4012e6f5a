"""The memory store keeps the contract."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from leasehold.stores.memory import MemoryStore
from leasehold.testing.contract import ManualTime, StoreContract

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from leasehold.ports import Store


class MemoryHarness(ManualTime):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(self.clock)

    def open(self) -> AbstractAsyncContextManager[Store]:
        return nullcontext(self.store)

    def stored(self) -> bytes:
        return pickle.dumps(self.store.registry)


@pytest.mark.spec("B7")
class TestMemoryStore(StoreContract):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()
