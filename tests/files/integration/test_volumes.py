"""Volumes: real directories that say whose they are."""

from __future__ import annotations

import errno
import json
from collections import Counter
from pathlib import Path

import pytest

from leasehold.errors import VolumeUnusable
from leasehold.files.disk import SystemDisk
from leasehold.files.volumes import Volume, VolumeIdentity
from leasehold.testing.disk import FailingDisk, KillingDisk, RecordingDisk

DISK = SystemDisk()


class Killed(Exception):
    pass


def killed() -> None:
    raise Killed


def make(root: Path, *, id: str = "v1", namespace: str = "n") -> Volume:  # noqa: A002
    return Volume.make(root, disk=DISK, namespace=namespace, id=id)


def test_a_new_directory_becomes_a_volume(tmp_path: Path) -> None:
    volume = make(tmp_path / "v")
    volume.check()
    assert Volume.found(tmp_path / "v", disk=DISK) == VolumeIdentity(namespace="n", volume="v1")
    assert len(list((tmp_path / "v" / "blocks").iterdir())) == 256
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == [
        "MARKS",
        "VOLUME",
        "blocks",
    ]
    assert volume.free_bytes() > 0


def test_the_names_are_as_the_page_says(tmp_path: Path) -> None:
    volume = Volume("v1", tmp_path, DISK)
    assert volume.directory(0x1FE) == f"{tmp_path}/blocks/fe"
    assert volume.data_path(0x1FE) == f"{tmp_path}/blocks/fe/00000000000001fe.data"
    expected = f"{tmp_path}/blocks/fe/00000000000001fe-000000000000000a.meta"
    assert volume.meta_path(0x1FE, 10) == expected


def test_an_empty_mounted_disk_becomes_a_volume(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    make(tmp_path).check()


def test_making_it_again_changes_nothing(tmp_path: Path) -> None:
    volume = make(tmp_path)
    Path(volume.data_path(5)).write_bytes(b"data")
    make(tmp_path).check()
    assert Path(volume.data_path(5)).read_bytes() == b"data"


def test_it_can_be_made_again_after_a_kill_at_any_point(tmp_path: Path) -> None:
    recorded = RecordingDisk(DISK)
    Volume.make(tmp_path / "whole", disk=recorded, namespace="n", id="v1")
    every = Counter(recorded.points)
    assert len(every) > 10
    for number, (point, times) in enumerate(every.items()):
        root = tmp_path / str(number)
        disk = KillingDisk(DISK, point, max(1, times // 2), killed)
        with pytest.raises(Killed):
            Volume.make(root, disk=disk, namespace="n", id="v1")
        make(root).check()
        assert len(list((root / "blocks").iterdir())) == 256


def test_its_identity_comes_last_and_is_durable(tmp_path: Path) -> None:
    disk = RecordingDisk(DISK)
    Volume.make(tmp_path / "v", disk=disk, namespace="n", id="v1")
    after = [point for point in disk.points if point.startswith("after")]
    assert after[-6:] == [
        "after write volume",
        "after sync volume",
        "after link volume",
        "after unlink volume",
        "after sync_directory volume",
        "after sync_directory volume",
    ]


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(VolumeUnusable, match=r"holiday\.jpg.*empty directory"):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize(("id_", "namespace"), [("v2", "n"), ("v1", "other")])
def test_another_volume_is_left_alone(tmp_path: Path, id_: str, namespace: str) -> None:
    make(tmp_path)
    before = (tmp_path / "VOLUME").read_bytes()
    with pytest.raises(VolumeUnusable, match="is volume 'v1' of namespace 'n' and is left"):
        make(tmp_path, id=id_, namespace=namespace)
    assert (tmp_path / "VOLUME").read_bytes() == before


def test_a_volume_that_is_gone_is_found(tmp_path: Path) -> None:
    with pytest.raises(VolumeUnusable, match=r"'v1' is not at .*mounted"):
        Volume("v1", tmp_path / "nothing", DISK).check()


def test_an_empty_mount_point_is_found(tmp_path: Path) -> None:
    with pytest.raises(VolumeUnusable, match=r"there is no VOLUME file.*mounted"):
        Volume("v1", tmp_path, DISK).check()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("id_", "namespace"), [("v2", "n"), ("v1", "other")])
def test_another_disk_in_its_place_is_found(tmp_path: Path, id_: str, namespace: str) -> None:
    make(tmp_path)
    with pytest.raises(VolumeUnusable, match="Mount the right disk"):
        Volume(id_, tmp_path, DISK, namespace=namespace).check()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EROFS, "Read-only"), (errno.ENOSPC, "No space"), (errno.EIO, "Input/output")],
)
def test_a_volume_that_can_not_be_written_is_found(tmp_path: Path, number: int, words: str) -> None:
    disk = FailingDisk(DISK)
    make(tmp_path)
    volume = Volume("v1", tmp_path, disk)
    disk.fail(tmp_path, number)
    with pytest.raises(VolumeUnusable, match=f"'v1' at .*{words}.*Repair"):
        volume.check()
    disk.heal(tmp_path)
    volume.check()


def test_a_read_only_volume_can_still_be_read(tmp_path: Path) -> None:
    disk = FailingDisk(DISK)
    make(tmp_path)
    disk.fail(tmp_path, errno.EROFS)
    Volume("v1", tmp_path, disk).check(write=False)


def test_a_check_that_was_killed_does_not_hinder_the_next(tmp_path: Path) -> None:
    volume = make(tmp_path)
    disk = KillingDisk(DISK, "after create check", 1, killed)
    with pytest.raises(Killed):
        Volume("v1", tmp_path, disk).check()
    volume.check()
    make(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "x"}'])
def test_an_identity_that_can_not_be_read_is_found(tmp_path: Path, text: str) -> None:
    volume = make(tmp_path)
    (tmp_path / "VOLUME").write_text(text)
    with pytest.raises(VolumeUnusable, match="can not be understood"):
        volume.check()


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    volume = make(tmp_path)
    said = json.loads((tmp_path / "VOLUME").read_text())
    (tmp_path / "VOLUME").write_text(json.dumps(said | {"format": 2}))
    with pytest.raises(VolumeUnusable, match="format 2, this program knows 1"):
        volume.check()
