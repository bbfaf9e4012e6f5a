"""The simulated disk: whom a sync that failed is reported to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from leasehold.testing.sim.bad_volumes import SimDisk, SimVolume

if TYPE_CHECKING:
    from leasehold.testing.sim.blocking_process import SimProcess

PATH = "/v0/file"


@dataclass
class OneProcess:
    """Runs on, and keeps which volumes failed."""

    failed: list[str] = field(default_factory=list)

    def step(self, what: str) -> None:
        """Continue at once."""

    def met_trouble(self, volume: str) -> None:
        """Keep the volume."""
        self.failed.append(volume)


def _disks(count: int) -> tuple[SimVolume, list[SimDisk]]:
    """Return a volume, and the disk of each process that uses it."""
    volume = SimVolume("v0", on_damage=lambda _volume, _block, _kind: None)
    return volume, [
        SimDisk({"v0": volume}, cast("SimProcess", OneProcess()), random.Random(0))
        for _ in range(count)
    ]


def _fails(disk: SimDisk, fd: int) -> bool:
    return bool(disk.sync([fd], what="test"))


def test_a_failed_sync_is_reported_once_to_each_descriptor_that_was_open() -> None:
    volume, (first, second) = _disks(2)
    one = first.create(PATH, what="test")
    other = second.open(PATH, write=True)
    first.write_at(one, b"first", 0, what="test")
    second.write_at(other, b"second", 5, what="test")

    volume.failing_syncs = 1
    assert _fails(first, one)
    assert _fails(second, other)
    assert not _fails(first, one)
    assert not _fails(second, other)
    assert second.read_at(other, 20, 0) == b"firstsecond"
    volume.drop_caches()
    assert second.read_at(other, 20, 0) == b""


def test_a_failed_sync_does_not_hide_a_later_one_from_another_descriptor() -> None:
    volume, (first, second) = _disks(2)
    one = first.create(PATH, what="test")
    other = second.open(PATH, write=True)
    for data in (b"a", b"b"):
        first.write_at(one, data, 0, what="test")
        volume.failing_syncs = 1
        assert _fails(first, one)
    assert _fails(second, other)
    assert not _fails(second, other)


def test_a_descriptor_that_was_opened_after_the_failure_does_not_know_of_it() -> None:
    volume, (first, second) = _disks(2)
    one = first.create(PATH, what="test")
    first.write_at(one, b"lost", 0, what="test")
    volume.failing_syncs = 1
    assert _fails(first, one)
    assert not _fails(second, second.open(PATH))


def test_a_write_back_that_fails_by_itself_is_reported_by_the_next_sync() -> None:
    volume, (first,) = _disks(1)
    one = first.create(PATH, what="test")
    first.write_at(one, b"lost", 0, what="test")
    for path, file in volume.files():
        volume.fail_write_back(file, path)
    assert _fails(first, one)
    first.write_at(one, b"kept", 0, what="test")
    assert not _fails(first, one)
    volume.drop_caches()
    assert first.read_at(one, 4, 0) == b"kept"
