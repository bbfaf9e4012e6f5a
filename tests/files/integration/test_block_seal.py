"""The end of a block: checked, agreed on, sealed and tidied."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.support.blocks import (
    BOOT,
    DISK,
    GENERATION,
    ID,
    META,
    Killed,
    agreed,
    fenced,
    files_of,
    killed,
    open_block,
    points_of,
    recovered,
    sound,
    visible,
    volumes_in,
    writer_on,
    written,
)

from leasehold.core.block_agreement import ReplicaCondition
from leasehold.errors import TailUncertain, UsageError, VolumeUnusable
from leasehold.files import Block
from leasehold.files.block_meta import HEADER_BYTES, RECORD_BYTES
from leasehold.files.fence import Superseded, fence, remove, seal, tidy
from leasehold.files.volumes import Volume
from leasehold.testing.disk import FailingDisk, KillingDisk


def answers_of(volumes: list[Volume]) -> dict[str, tuple[ReplicaCondition, int]]:
    _, answers = fenced(volumes, 8)
    return {each.volume: (each.condition, each.length) for each in answers.values()}


def test_only_what_was_not_durable_is_read(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    writer = writer_on(volumes)
    for _ in range(3):
        writer.write_piece(b"x" * 1000)
    writer.sync()
    writer.write_piece(b"tail")
    writer.write_piece(b"end")
    writer.close()
    _, answers = fenced(volumes, 8)
    assert (answers["v1"].bytes_read, answers["v1"].length) == (7, 3007)


@pytest.mark.scenario("S78")
def test_the_conditions_of_replicas(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=6)
    for volume, name in zip(volumes, ("sealed", "whole", "cut", "damaged", "empty"), strict=False):
        writer = writer_on([volume])
        if name != "empty":
            writer.write_piece(b"hello")
            writer.sync()
            writer.write_piece(b"world")
            writer.acknowledge()
        if name == "sealed":
            writer.seal()
        writer.close()
    Path(volumes[2].data_path(ID)).write_bytes(b"helloworl")
    Path(volumes[3].data_path(ID)).write_bytes(b"hell")
    assert answers_of(volumes) == {
        "v1": (ReplicaCondition.SEALED, 10),
        "v2": (ReplicaCondition.WHOLE, 10),
        "v3": (ReplicaCondition.CUT, 5),
        "v4": (ReplicaCondition.DAMAGED, 0),
        "v5": (ReplicaCondition.EMPTY, 0),
        "v6": (ReplicaCondition.ABSENT, 0),
    }


@pytest.mark.scenario("S30")
def test_a_replica_that_lost_an_acknowledged_record_is_cut_and_has_no_vote(
    tmp_path: Path,
) -> None:
    volumes = volumes_in(tmp_path)
    written(volumes, b"hello", b"world").close()
    meta = Path(volumes[0].meta_path(ID, GENERATION))
    meta.write_bytes(meta.read_bytes()[:-RECORD_BYTES])
    assert answers_of(volumes) == {
        "v1": (ReplicaCondition.CUT, 5),
        "v2": (ReplicaCondition.WHOLE, 10),
    }
    assert agreed(volumes, 8).volumes == ("v2",)


@pytest.mark.scenario("S30")
def test_when_all_replicas_lost_a_record_the_rest_is_kept(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    written(volumes, b"hello", b"world").close()
    for volume in volumes:
        meta = Path(volume.meta_path(ID, GENERATION))
        meta.write_bytes(meta.read_bytes()[:-RECORD_BYTES])
    block = recovered(volumes, 8)
    assert block is not None
    assert (block.length, sound(block, volumes)) == (5, True)


@pytest.mark.spec("F8")
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_bad_record_below_the_durable_mark_takes_the_vote_away(
    tmp_path: Path, damaged: int
) -> None:
    volumes = volumes_in(tmp_path)
    writer = writer_on(volumes)
    for piece in (b"one", b"two", b"three"):
        writer.write_piece(piece)
    writer.sync()
    writer.write_piece(b"four")
    writer.close()
    meta = Path(volumes[0].meta_path(ID, GENERATION))
    raw = bytearray(meta.read_bytes())
    raw[HEADER_BYTES + RECORD_BYTES * damaged + 9] ^= 4
    meta.write_bytes(raw)
    assert answers_of(volumes)["v1"][0] is ReplicaCondition.DAMAGED
    assert agreed(volumes, 9).length == 15


@pytest.mark.scenario("S31")
@pytest.mark.parametrize("lost", [".data", META])
def test_a_replica_with_a_file_lost_does_not_hold_up_the_others(tmp_path: Path, lost: str) -> None:
    volumes = volumes_in(tmp_path)
    written(volumes, b"hello").close()
    Path(f"{volumes[0].directory(ID)}/{ID:016x}{lost}").unlink()
    block = recovered(volumes, 8)
    assert block is not None
    assert (block.length, block.volumes) == (5, ("v2",))


@pytest.mark.scenario("S52")
def test_a_replica_cut_to_nothing_does_not_shorten_the_others(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    written(volumes, b"hello").close()
    for path in (volumes[0].data_path(ID), volumes[0].meta_path(ID, GENERATION)):
        Path(path).write_bytes(b"")
    block = recovered(volumes, 8)
    assert block is not None
    assert (block.length, block.volumes) == (5, ("v2",))


@pytest.mark.scenario("S79")
def test_data_beyond_the_last_record_does_not_count(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    disk = KillingDisk(DISK, "before write record", 1, killed)
    writer = writer_on(volumes, disk)
    with pytest.raises(Killed):
        writer.write_piece(b"bytes without a record")
    assert recovered(volumes, 8) is None
    writer.close()


@pytest.mark.scenario("S79")
def test_data_shorter_than_what_was_durable_is_refused(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    writer = writer_on(volumes)
    writer.write_piece(b"hello")
    writer.sync()
    writer.write_piece(b"world")
    writer.close()
    Path(volumes[0].data_path(ID)).write_bytes(b"hell")
    with pytest.raises(TailUncertain, match="damaged on v1"):
        recovered(volumes, 8)
    assert Path(volumes[0].data_path(ID)).read_bytes() == b"hell"


def test_a_seal_without_its_bytes_is_no_seal(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    for volume in volumes:
        writer = writer_on([volume])
        writer.write_piece(b"hello")
        writer.write_piece(b"world")
        writer.seal()
        writer.close()
    Path(volumes[0].data_path(ID)).write_bytes(b"helloXorld")
    assert answers_of(volumes) == {
        "v1": (ReplicaCondition.CUT, 5),
        "v2": (ReplicaCondition.SEALED, 10),
    }


@pytest.mark.scenario("S65", "S66")
def test_a_replica_is_sealed_only_by_the_recovery_that_fenced_it(tmp_path: Path) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    block = open_block(volumes)
    written(volumes, b"hello").close()
    evidence = fence(volume, block, 9, disk=DISK)
    before = files_of(volume)
    for recovery_id in (8, 10):
        with pytest.raises(Superseded, match="not fenced by recovery"):
            seal(volume, block, recovery_id, evidence.records, 5, boot_id=BOOT, disk=DISK)
    assert files_of(volume) == before


@pytest.mark.scenario("S76")
@pytest.mark.parametrize("length", [0, 4, 6])
def test_a_replica_is_sealed_only_where_a_record_ends(tmp_path: Path, length: int) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    written(volumes, b"hello").close()
    evidence = fence(volume, open_block(volumes), 8, disk=DISK)
    with pytest.raises(UsageError, match=f"no record that ends at {length}"):
        seal(volume, open_block(volumes), 8, evidence.records, length, boot_id=BOOT, disk=DISK)


@pytest.mark.scenario("S76")
def test_a_replica_that_became_shorter_is_not_sealed(tmp_path: Path) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    written(volumes, b"hello").close()
    evidence = fence(volume, open_block(volumes), 8, disk=DISK)
    Path(volume.data_path(ID)).write_bytes(b"hell")
    with pytest.raises(VolumeUnusable, match="has 4 bytes, 5 were agreed"):
        seal(volume, open_block(volumes), 8, evidence.records, 5, boot_id=BOOT, disk=DISK)


@pytest.mark.scenario("S64")
def test_a_seal_that_fails_leaves_the_evidence_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk(DISK)
    volumes = volumes_in(tmp_path, disk)
    written(volumes, b"hello").close()
    evidence, _ = fenced(volumes, 8, disk)
    before = [files_of(volume) for volume in volumes]
    for volume in volumes:
        disk.fail(volume.root, errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            seal(volume, open_block(volumes), 8, evidence["v1"].records, 5, boot_id=BOOT, disk=disk)
        disk.heal(volume.root)
    assert [files_of(volume) for volume in volumes] == before
    assert fenced(volumes, 9, disk)[0] == evidence


@pytest.mark.scenario("S72")
@pytest.mark.spec("F8")
def test_after_a_kill_at_any_point_of_a_recovery_the_next_one_decides_the_same(
    tmp_path: Path,
) -> None:
    volumes = volumes_in(tmp_path)

    def begin() -> None:
        for volume in volumes:
            remove(volume, ID, disk=DISK)
        written(volumes, b"hello", b"world").close()

    begin()
    points = list(points_of(lambda disk: recovered(volumes, 8, disk)))
    expected = recovered(volumes, 9)
    assert expected is not None
    assert len(points) > 40
    for point, nth in points:
        begin()
        with pytest.raises(Killed):
            recovered(volumes, 8, KillingDisk(DISK, point, nth, killed))
        assert visible(volumes) == 10
        assert recovered(volumes, 9) == expected, (point, nth)
        assert sound(expected, volumes)


def test_tidying_may_be_killed_at_any_point_and_repeated(tmp_path: Path) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    block = open_block(volumes)

    def begin() -> Block:
        remove(volume, ID, disk=DISK)
        writer = written(volumes, b"hello")
        fenced(volumes, 8)
        writer.write_piece(b"late bytes")
        writer.close()
        recovered(volumes, 9)  # an attempt that was never committed
        found = recovered(volumes, 10)
        assert found is not None
        return found

    begin()
    points = list(points_of(lambda disk: tidy(volume, block, 10, 5, disk=disk)))
    for point, nth in points:
        complete = begin()
        with pytest.raises(Killed):
            tidy(volume, block, 10, 5, disk=KillingDisk(DISK, point, nth, killed))
        assert sound(complete, volumes)
        tidy(volume, block, 10, 5, disk=DISK)
        assert sound(complete, volumes)
        assert sorted(files_of(volume)) == [f"-{10:016x}.meta", ".data"]
        assert files_of(volume)[".data"] == b"hello"
        assert visible(volumes) == 5  # a reader that does not know of the commit yet


def test_a_volume_that_did_not_take_part_is_not_tidied_by_mistake(tmp_path: Path) -> None:
    (volume,) = volumes = volumes_in(tmp_path, count=1)
    written(volumes, b"hello").close()
    before = files_of(volume)
    tidy(volume, open_block(volumes), 8, 3, disk=DISK)
    assert files_of(volume) == before
