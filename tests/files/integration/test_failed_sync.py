"""A sync that fails is reported once: what it was about is never kept from the page cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.namespaces import AT_ONCE, World, blocks, content, world

from leasehold.errors import LeaseholdError, VolumeUnusable
from leasehold.files import FileState, FileWriter
from leasehold.files.disk import SystemDisk
from leasehold.testing.disk import FailedSyncDisk


@pytest.fixture
def disk() -> FailedSyncDisk:
    return FailedSyncDisk(SystemDisk())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[World]:
    with world("sqlite", tmp_path) as made:
        yield made


def _unsynced(one: World, disk: FailedSyncDisk) -> FileWriter:
    """A file on one volume with 5 bytes that are durable, and 6 whose sync has failed."""
    files = one.open(disk=disk, volumes=one.roots[:1])
    writer = files.create("/a")
    writer.write(b"first")
    assert writer.sync() == 5
    disk.fail_syncs(one.roots[0])
    writer.write(b"second")
    with pytest.raises(VolumeUnusable):
        writer.sync()
    return writer


@pytest.mark.spec("F8")
def test_the_only_volume_fails_a_sync_and_the_file_that_is_closed_then_is_on_the_disk(
    one: World, disk: FailedSyncDisk
) -> None:
    writer = _unsynced(one, disk)
    status = writer.close()
    assert status is not None
    assert status.state is FileState.CLOSED
    disk.remount()
    files = one.open("reader")
    assert content(files, "/a") == b"firstsecond"[: status.length]
    assert status.length >= 5
    assert files.verify("/a") == []


@pytest.mark.spec("F8")
@pytest.mark.parametrize("failures", [1, 2, 5])
def test_another_process_recovers_after_failed_syncs_and_believes_no_cache(
    one: World, disk: FailedSyncDisk, failures: int
) -> None:
    writer = _unsynced(one, disk)
    writer.leave_behind()  # its process ends here, and knows no more
    other = one.open("other", disk=disk)
    disk.fail_syncs(one.roots[0], failures)  # a second sync of the same bytes says nothing
    for _ in range(failures):
        with pytest.raises(LeaseholdError):
            other.recover("/a", timeout=AT_ONCE)
        assert not other.is_closed("/a")
    status = other.recover("/a", timeout=AT_ONCE)
    disk.remount()
    files = one.open("reader")
    assert content(files, "/a") == b"firstsecond"[: status.length]
    assert files.verify("/a") == []


@pytest.mark.spec("F8")
def test_the_last_sync_of_a_close_fails_and_what_is_closed_is_on_the_disk(
    one: World, disk: FailedSyncDisk
) -> None:
    files = one.open(disk=disk, volumes=one.roots[:1])
    writer = files.create("/a")
    writer.write(b"bytes")
    disk.fail_syncs(one.roots[0])
    with pytest.raises(VolumeUnusable):
        writer.close()
    status = files.recover("/a", timeout=AT_ONCE)
    disk.remount()
    assert content(one.open("reader"), "/a") == b"bytes"[: status.length]


@pytest.mark.spec("F8")
def test_one_volume_fails_a_sync_and_is_out_before_anything_is_acknowledged(
    one: World, disk: FailedSyncDisk
) -> None:
    files = one.open(disk=disk)
    writer = files.create("/a")
    writer.write(b"first")
    disk.fail_syncs(one.roots[1])
    assert writer.sync() == 5
    failed = next(volume.id for volume in files.volumes if volume.root == str(one.roots[1]))
    assert failed not in blocks(files, "/a")[0].volumes
    writer.leave_behind()
    assert files.recover("/a", timeout=AT_ONCE).length == 5
    disk.remount()
    assert content(one.open("reader"), "/a") == b"first"
