"""The fence: against crashes, late writers and other recoveries."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.blocks import (
    DISK,
    GENERATION,
    ID,
    META,
    Killed,
    files_of,
    killed,
    open_block,
    out,
    points_of,
    recovered,
    sound,
    visible,
    volumes_in,
    writer_on,
    written,
)

from leasehold.core.block_agreement import ReplicaCondition
from leasehold.errors import LeaseLost, VolumeUnusable
from leasehold.files import Block
from leasehold.files.block_writer import BlockWriter
from leasehold.files.disk import Disk
from leasehold.files.fence import FenceEvidence, Superseded, examine, fence, remove, tidy
from leasehold.files.volumes import Volume
from leasehold.testing.disk import FailingDisk, KillingDisk


@pytest.mark.spec("F7")
def test_a_fence_moves_the_records_out_of_the_writers_reach(tmp_path: Path) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    writer = written(volumes, b"hello", b"world")
    before = files_of(volume)
    evidence = fence(volume, open_block(volumes), 8, disk=DISK)
    assert [record.end for record in evidence.records] == [5, 10]
    assert (evidence.present, evidence.sealed, evidence.acknowledged) == (True, False, 10)
    frozen = f"-{GENERATION:016x}.f{8:016x}"
    assert files_of(volume) == {".data": before[".data"], frozen: before[META]}
    writer.close()


@pytest.mark.scenario("S75")
def test_later_attempts_take_over_and_earlier_ones_are_too_late(tmp_path: Path) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    block = open_block(volumes)
    written(volumes, b"hello").close()
    first = fence(volume, block, 8, disk=DISK)
    assert fence(volume, block, 8, disk=DISK) == first
    assert fence(volume, block, 9, disk=DISK) == first
    with pytest.raises(Superseded, match=r"recovery 8 .*too late on volume 'v1': 9 was there"):
        fence(volume, block, 8, disk=DISK)


@pytest.mark.scenario("S75")
@pytest.mark.parametrize("recovery_id", [GENERATION, GENERATION - 1])
def test_a_recovery_id_must_be_above_the_generation(tmp_path: Path, recovery_id: int) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    with pytest.raises(Superseded, match="is not above generation 7"):
        fence(volume, open_block(volumes), recovery_id, disk=DISK)


@pytest.mark.scenario("S75")
def test_a_volume_that_has_nothing_says_so_every_time(tmp_path: Path) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    for recovery_id in (8, 9):
        evidence = fence(volume, open_block(volumes), recovery_id, disk=DISK)
        assert not evidence.present
        answer = examine(volume, open_block(volumes), evidence, disk=DISK)
        assert (answer.condition, answer.length) == (ReplicaCondition.ABSENT, 0)


@pytest.mark.scenario("S53")
def test_a_replica_of_an_older_generation_does_not_answer_for_this_one(tmp_path: Path) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    written(volumes, b"stale").close()
    block = replace(open_block(volumes), generation=GENERATION + 1)
    assert not fence(volume, block, 20, disk=DISK).present


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENODEV])
def test_a_volume_that_fails_has_not_answered(tmp_path: Path, number: int) -> None:
    disk = FailingDisk(DISK)
    (volume,) = volumes = volumes_in(tmp_path, disk, count=1)
    written(volumes, b"hello").close()
    disk.fail(volume.root, number)
    with pytest.raises(OSError, match=r".") as caught:
        fence(volume, open_block(volumes), 8, disk=disk)
    assert caught.value.errno == number
    disk.heal(volume.root)
    assert fence(volume, open_block(volumes), 8, disk=disk).length == 5


def test_a_full_volume_can_be_fenced_later_with_the_same_evidence(tmp_path: Path) -> None:
    disk = FailingDisk(DISK)
    (volume,) = volumes = volumes_in(tmp_path, disk, count=1)
    written(volumes, b"hello").close()
    disk.fail(volume.root, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        fence(volume, open_block(volumes), 8, disk=disk)
    assert visible(volumes) == 5
    disk.heal(volume.root)
    assert fence(volume, open_block(volumes), 9, disk=disk).length == 5


@pytest.mark.spec("F8")
def test_after_a_kill_at_any_point_of_the_fence_the_next_one_finds_the_same(
    tmp_path: Path,
) -> None:
    volumes = volumes_in(tmp_path, count=1)
    (volume,), block = volumes, open_block(volumes)

    def begin() -> FenceEvidence | None:
        remove(volume, ID, disk=DISK)
        written(volumes, b"hello", b"world").close()
        return None

    begin()
    points = list(points_of(lambda disk: fence(volume, block, 8, disk=disk)))
    expected = fence(volume, block, 8, disk=DISK)
    assert len(points) > 12
    for point, nth in points:
        for second, times in [*points[::4], ("", 1)]:  # a second kill, in the second attempt
            begin()
            with pytest.raises(Killed):
                fence(volume, block, 8, disk=KillingDisk(DISK, point, nth, killed))
            assert visible(volumes) == 10
            with suppress(Killed):
                fence(volume, block, 9, disk=KillingDisk(DISK, second, times, killed))
            assert visible(volumes) == 10
            assert fence(volume, block, 10, disk=DISK) == expected, (point, nth, second, times)
            assert set(files_of(volume)) - {
                f"-{GENERATION:016x}.f{each:016x}" for each in (8, 9)
            } == {".data", f"-{GENERATION:016x}.f{10:016x}"}


@pytest.mark.scenario("S61")
@pytest.mark.spec("F8")
def test_a_later_recovery_at_any_point_of_an_earlier_one_wins(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    (volume,), block = volumes, open_block(volumes)
    writer = written(volumes, b"hello")
    for point, nth in points_of(lambda disk: fence(volume, block, 8, disk=disk)):
        remove(volume, ID, disk=DISK)
        writer.close()
        writer = written(volumes, b"hello")
        later: list[FenceEvidence] = []

        def overtake(writer: BlockWriter = writer, later: list[FenceEvidence] = later) -> None:
            later.append(fence(volume, block, 9, disk=DISK))
            with suppress(LeaseLost):
                writer.write_piece(b"late")

        with pytest.raises(Superseded):
            fence(volume, block, 8, disk=KillingDisk(DISK, point, nth, overtake))
        assert fence(volume, block, 10, disk=DISK) == later[0], (point, nth)
    writer.close()


def life(volumes: list[Volume], disk: Disk, reported: list[int]) -> None:
    """A writer's whole life; ``reported`` gets every length that was acknowledged to its caller."""
    reported.append(0)
    writer = writer_on(volumes, disk, journal=out())
    try:
        for piece in (b"one", b"two"):
            writer.write_piece(piece)
            writer.acknowledge()
            reported.append(writer.acknowledged)
        writer.write_piece(b"three")
        writer.sync()
        reported.append(writer.acknowledged)
        writer.write_piece(b"four")
        writer.seal()
        reported.append(writer.acknowledged)
    finally:
        writer.close()


@pytest.mark.spec("F8")
@pytest.mark.scenario("S71")
def test_a_recovery_at_any_point_of_a_writers_life_keeps_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    volumes = volumes_in(tmp_path)
    points = list(points_of(lambda disk: life(volumes, disk, [])))
    assert len(points) > 60
    for point, nth in points:
        for volume in volumes:
            remove(volume, ID, disk=DISK)
        reported: list[int] = []
        found: list[tuple[Block | None, int]] = []

        def recover(
            reported: list[int] = reported, found: list[tuple[Block | None, int]] = found
        ) -> None:
            found.append((recovered(volumes, 8), reported[-1]))

        with suppress(LeaseLost):
            life(volumes, KillingDisk(DISK, point, nth, recover), reported)
        block, reported_before = found[0]
        length = block.length if block else 0
        where = (point, nth)
        assert reported_before <= length, where
        assert reported[-1] <= length, where  # it may still be told what recovery has kept
        assert visible(volumes) <= length, where
        assert recovered(volumes, 9) == (block and replace(block, generation=9)), where
        if block:
            assert sound(block, volumes), where
            for volume in volumes:
                tidy(volume, open_block(volumes), 9, length, disk=DISK)
                if volume.id in block.volumes:
                    assert visible([volume]) == length


@pytest.mark.spec("F8")
def test_a_writer_awake_at_any_point_of_a_recovery_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    volumes = volumes_in(tmp_path)
    writer = written(volumes, b"hello")
    for point, nth in points_of(lambda disk: recovered(volumes, 8, disk)):
        for volume in volumes:
            remove(volume, ID, disk=DISK)
        writer.close()
        writer = written(volumes, b"hello")

        seen: list[int] = []

        def wake(writer: BlockWriter = writer, seen: list[int] = seen) -> None:
            with suppress(LeaseLost):
                writer.write_piece(b" again")
                writer.sync()
            seen.extend(visible([volume]) for volume in volumes)

        block = recovered(volumes, 8, KillingDisk(DISK, point, nth, wake))
        wake()
        assert block is not None
        assert 5 <= writer.acknowledged <= block.length, (point, nth)
        assert max(seen) <= block.length, (point, nth)
        assert sound(block, volumes), (point, nth)
    writer.close()


@pytest.mark.spec("F8")
def test_a_writer_that_slept_before_it_began_can_not_begin_after_the_fence(
    tmp_path: Path,
) -> None:
    volumes = volumes_in(tmp_path)
    for nth in (1, 2):
        for volume in volumes:
            remove(volume, ID, disk=DISK)

        def recover() -> None:
            assert recovered(volumes, 8) is None

        disk = KillingDisk(DISK, "before create meta", nth, recover)
        with pytest.raises((LeaseLost, VolumeUnusable)):
            writer_on(volumes, disk, journal=out())
        assert visible(volumes) == 0
        assert recovered(volumes, 9) is None
