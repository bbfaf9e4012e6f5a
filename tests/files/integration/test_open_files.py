"""Descriptors are bounded, and running out of them is not a failure of a volume."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold.errors import LeaseholdError, ProcessExhausted
from leasehold.files import Namespace
from leasehold.files.disk import SystemDisk
from leasehold.files.open_files import BoundedDisk, OpenFiles
from leasehold.testing.disk import FailingDisk, PassingDisk

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class BusyDisk(PassingDisk):
    """Calls that name ``failing`` raise an error of the process; counts descriptors and syncs."""

    def __init__(self, *, failing: str = "", number: int = errno.EMFILE, times: int = 1) -> None:
        super().__init__(SystemDisk())
        self.failing, self.number, self.times = failing, number, times
        self.synced: list[str] = []
        self.sync_error: OSError | None = None

    def _meet(self, call: str) -> None:
        if call == self.failing and self.times:
            self.times -= 1
            raise OSError(self.number, os.strerror(self.number))

    def create(self, path: str, *, what: str) -> int:
        self._meet("create")
        return super().create(path, what=what)

    def open(self, path: str, *, write: bool = False) -> int:
        self._meet("open")
        return super().open(path, write=write)

    def write_at(self, fd: int, data: Any, offset: int, *, what: str) -> None:
        self._meet("write_at")
        super().write_at(fd, data, offset, what=what)

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        self.synced += [what] * len(fds)
        if self.sync_error is not None:
            return dict.fromkeys(fds, self.sync_error)
        return super().sync(fds, what=what)

    def sync_directory(self, path: str, *, what: str) -> None:
        self._meet("sync_directory")
        super().sync_directory(path, what=what)

    def names(self, path: str) -> list[str]:
        self._meet("names")
        return super().names(path)


@pytest.fixture
def volumes(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


@pytest.fixture
def disk() -> BusyDisk:
    return BusyDisk()


@pytest.fixture
def files(tmp_path: Path, volumes: list[Path], disk: BusyDisk) -> Iterator[Namespace]:
    url = f"sqlite:///{tmp_path}/files.db"
    with Namespace.open(url, volumes=volumes, run_monitor=False, disk=disk) as opened:
        yield opened


@pytest.mark.parametrize("number", EXHAUSTED)
@pytest.mark.parametrize("call", ["create", "write_at", "sync_directory", "open", "names"])
def test_a_process_without_descriptors_or_memory_drops_no_replica(
    files: Namespace, disk: BusyDisk, call: str, number: int
) -> None:
    stored = files.create("/before")
    stored.write(b"before")
    stored.sync()
    disk.failing, disk.number, disk.times = call, number, 10_000
    raised: list[LeaseholdError] = []
    for path in ("/one", "/two"):
        try:
            with files.create(path) as writer:
                writer.write(b"x")
                writer.sync()
        except LeaseholdError as error:
            raised.append(error)
    if call not in {"open", "names"}:  # which are needed when a volume is checked, and to recover
        assert raised
        assert all(isinstance(error, ProcessExhausted) for error in raised)
        assert "ulimit -n" in str(raised[0])
    disk.times = 0
    stored.close()
    for path in ("/before", "/one", "/two"):
        with files.create(path, overwrite=True) as writer:
            writer.write(b"again")
        for block in files.read(path).blocks:
            assert len(block.volumes) == 2
        assert not files.verify(path)


@pytest.mark.parametrize("number", EXHAUSTED)
def test_a_recovery_without_descriptors_is_tried_again_and_keeps_all_replicas(
    tmp_path: Path, volumes: list[Path], number: int
) -> None:
    url = f"sqlite:///{tmp_path}/files.db"
    with Namespace.open(url, volumes=volumes, run_monitor=False) as first:
        writer = first.create("/a")
        writer.write(b"acknowledged")
        writer.sync()
        disk = BusyDisk(failing="open", number=number, times=0)
        with Namespace.open(url, run_monitor=False, disk=disk) as second:
            disk.times = 10_000
            with pytest.raises(ProcessExhausted):
                second.recover("/a", timeout=timedelta(0))
            disk.times = 0
            second.recover("/a", timeout=timedelta(seconds=120))
            assert second.read("/a").read() == b"acknowledged"
            assert len(second.read("/a").blocks[0].volumes) == 2
            assert not second.verify("/a")


def written(disk: BoundedDisk, root: Path, count: int) -> list[int]:
    return [disk.create(f"{root}/{number}", what="data") for number in range(count)]


def test_files_share_descriptors_and_keep_their_bytes(tmp_path: Path, disk: BusyDisk) -> None:
    open_files = OpenFiles(max_open=4)
    bounded = BoundedDisk(disk, open_files=open_files)
    made = written(bounded, tmp_path, 20)
    for turn in range(3):
        for number, file in enumerate(made):
            bounded.write_at(file, b"%d" % (number % 10), turn, what="data")
            assert open_files.open_count <= 4
        assert not bounded.sync(made[:3], what="block")
    assert [bounded.read_at(file, 9, 0) for file in made] == [
        b"%d" % (n % 10) * 3 for n in range(20)
    ]
    assert len(disk.paths) <= 4
    for file in made:
        bounded.close(file)
    assert not disk.paths
    assert open_files.open_count == 0


def test_what_was_written_is_synced_before_its_file_is_closed_for_another(
    tmp_path: Path, disk: BusyDisk
) -> None:
    bounded = BoundedDisk(disk, open_files=OpenFiles(max_open=1))
    one, two = written(bounded, tmp_path, 2)
    bounded.write_at(two, b"x", 0, what="data")
    bounded.write_at(one, b"x", 0, what="data")
    assert disk.synced == ["closed for others"]
    bounded.sync([one], what="block")
    bounded.write_at(one, b"x", 0, what="acknowledged")
    disk.synced.clear()
    bounded.write_at(two, b"y", 0, what="acknowledged")
    assert disk.synced == []
    for file in (one, two):
        bounded.close(file)


def test_a_sync_that_failed_on_the_way_is_reported_by_every_later_one(
    tmp_path: Path, disk: BusyDisk
) -> None:
    bounded = BoundedDisk(disk, open_files=OpenFiles(max_open=1))
    one, two = written(bounded, tmp_path, 2)
    bounded.write_at(one, b"x", 0, what="data")
    disk.sync_error = OSError(errno.EIO, "broken")
    bounded.write_at(two, b"x", 0, what="acknowledged")
    disk.sync_error = None
    for _ in range(2):
        assert bounded.sync([one, two], what="block") == {
            one: bounded.sync([one], what="block")[one]
        }
    for file in (one, two):
        bounded.close(file)


def test_another_file_under_the_same_name_is_not_written(tmp_path: Path, disk: BusyDisk) -> None:
    bounded = BoundedDisk(disk, open_files=OpenFiles(max_open=1))
    one, two = written(bounded, tmp_path, 2)
    (tmp_path / "0").rename(tmp_path / "old")
    for replacement in (None, b"of another disk"):
        if replacement is not None:
            (tmp_path / "0").write_bytes(replacement)
        with pytest.raises(OSError, match=r"another file|No such file"):
            bounded.write_at(one, b"x", 0, what="data")
    assert (tmp_path / "0").read_bytes() == b"of another disk"
    for file in (one, two):
        bounded.close(file)


@pytest.mark.parametrize("call", ["identity", "close"])
def test_a_file_that_fails_while_it_is_closed_for_another_is_the_one_that_failed(
    tmp_path: Path, call: str
) -> None:
    class GoneDisk(BusyDisk):
        def identity(self, fd: int) -> object:
            self._check("identity", fd)
            return super().identity(fd)

        def close(self, fd: int) -> None:
            path = self.paths[fd]
            super().close(fd)
            if call == "close" and path in gone:
                raise OSError(errno.EIO, "gone", path)

        def _check(self, name: str, fd: int) -> None:
            if name == call and self.paths[fd] in gone:
                raise OSError(errno.EIO, "gone", self.paths[fd])

    gone: set[str] = set()
    disk = GoneDisk()
    bounded = BoundedDisk(disk, open_files=OpenFiles(max_open=1))
    two, one = written(bounded, tmp_path, 2)
    gone.add(f"{tmp_path}/1")
    bounded.write_at(two, b"x", 0, what="data")  # closes the other one
    assert set(bounded.sync([one, two], what="block")) == {one}
    gone.clear()
    assert set(bounded.sync([one, two], what="block")) == {one}
    for file in (one, two):
        bounded.close(file)
    assert not disk.paths


def test_a_file_that_cannot_be_opened_again_is_an_error_of_its_sync_only(
    tmp_path: Path, disk: BusyDisk
) -> None:
    bounded = BoundedDisk(disk, open_files=OpenFiles(max_open=1))
    one, two, three = written(bounded, tmp_path, 3)
    for file in (one, two, three):
        bounded.write_at(file, b"x", 0, what="data")
    (tmp_path / "0").unlink()
    (tmp_path / "1").unlink()
    assert set(bounded.sync([one, two, three], what="block")) == {one, two}
    for file in (one, two, three):
        bounded.close(file)


def test_a_volume_that_is_gone_at_a_sync_without_a_write_is_dropped(
    tmp_path: Path, volumes: list[Path]
) -> None:
    disk = FailingDisk(SystemDisk())
    bounded = BoundedDisk(disk, open_files=OpenFiles(max_open=1))
    url = f"sqlite:///{tmp_path}/files.db"
    with Namespace.open(url, volumes=volumes, run_monitor=False, disk=bounded) as files:
        with files.create("/a") as writer:
            writer.write(b"1")
            writer.flush()
            disk.fail(volumes[0], errno.EIO)
            assert writer.sync() == 1
            assert len(writer.volumes) == 1
        assert files.read("/a").read() == b"1"


def test_a_file_that_is_in_use_is_not_closed_for_another(tmp_path: Path) -> None:
    class SlowDisk(BusyDisk):
        def write_at(self, fd: int, data: Any, offset: int, *, what: str) -> None:
            if what == "slow":
                begun.set()
                assert go_on.wait(60)
            super().write_at(fd, data, offset, what=what)

    begun, go_on = threading.Event(), threading.Event()
    open_files = OpenFiles(max_open=1)
    bounded = BoundedDisk(SlowDisk(), open_files=open_files)
    one, two = written(bounded, tmp_path, 2)
    slow = threading.Thread(target=lambda: bounded.write_at(one, b"slow", 0, what="slow"))
    slow.start()
    assert begun.wait(60)
    other = threading.Thread(target=lambda: bounded.write_at(two, b"other", 0, what="data"))
    other.start()
    go_on.set()
    slow.join(60)
    other.join(60)
    assert bounded.read_at(one, 9, 0) == b"slow"
    assert bounded.read_at(two, 9, 0) == b"other"
    for file in (one, two):
        bounded.close(file)


def test_a_full_volume_is_still_dropped(tmp_path: Path, volumes: list[Path]) -> None:
    disk = FailingDisk(SystemDisk())
    url = f"sqlite:///{tmp_path}/files.db"
    with Namespace.open(url, volumes=volumes, run_monitor=False, disk=disk) as files:
        with files.create("/a") as writer:
            writer.write(b"1")
            writer.sync()
            disk.fail(volumes[0], errno.EIO)
            writer.write(b"2")
            writer.sync()
            assert len(writer.volumes) == 1
        disk.heal(volumes[0])
