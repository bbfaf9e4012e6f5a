"""The SQLite store keeps the contract: in one process by hand, in several by real time."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
import pytest

from leasehold.stores import open_store
from leasehold.testing.contract import ManualTime, StoreContract
from leasehold.testing.contract.lost_answers import RaceContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from leasehold.ports import Store

MEMORY = Path("/dev/shm")  # where writing to the disk costs nothing


class SqliteHarness(ManualTime):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._url = f"sqlite:///{path}"
        self._path = path

    def open(self) -> AbstractAsyncContextManager[Store]:
        return open_store(self._url, clock=self.clock)

    def stored(self) -> bytes:
        files = list(self._path.parent.glob(f"{self._path.name}*"))
        assert len(files) == 3  # the database, its log, and the index of that
        return b"".join(file.read_bytes() for file in files)


class Shared(SqliteHarness):
    """The same, for others to open by its URL."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.url = self._url


@pytest.fixture(scope="module")
def empty() -> Iterator[Path]:
    """A store with nothing in it, to be copied."""

    async def make(harness: SqliteHarness) -> None:
        async with harness.open():
            pass

    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        path = Path(directory) / "empty.db"
        anyio.run(make, SqliteHarness(path))
        yield path


@pytest.mark.spec("B7")
class TestSqliteStore(StoreContract):
    @pytest.fixture
    def harness(self, empty: Path) -> Iterator[SqliteHarness]:
        with TemporaryDirectory(dir=empty.parent) as directory:
            yield SqliteHarness(Path(shutil.copy(empty, directory)))


@pytest.mark.process
@pytest.mark.spec("B7")
class TestSqliteStoreOfProcesses(RaceContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Shared:
        return Shared(tmp_path / "leases.db")
