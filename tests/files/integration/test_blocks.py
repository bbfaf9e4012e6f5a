"""One block on several volumes: written, acknowledged, sealed, read, verified."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.blocks import (
    BOOT,
    FILE,
    GENERATION,
    ID,
    META,
    OTHER_BOOT,
    Journal,
    complete_block,
    files_of,
    open_block,
    volumes_in,
    writer_on,
)

from leasehold.errors import DataDamaged, LeaseLost, UsageError, VolumeUnusable
from leasehold.files import Block, reader
from leasehold.files.block_meta import PIECE_BYTES, parse
from leasehold.files.block_writer import SYNC_EVERY_BYTES, BlockWriter
from leasehold.files.disk import SystemDisk
from leasehold.files.fence import fence, remove
from leasehold.files.volumes import Volume
from leasehold.testing.disk import FailingDisk, KillingDisk, RecordingDisk

DISK = SystemDisk()


def visible(volumes: list[Volume], *, disk: SystemDisk | FailingDisk = DISK) -> int:
    block = open_block(volumes)
    return reader.visible_length(block, volumes, disk=disk, boot_id=BOOT)


def after_a_restart(volumes: list[Volume], *, disk: SystemDisk | FailingDisk = DISK) -> int:
    block = open_block(volumes)
    return reader.visible_length(block, volumes, disk=disk, boot_id=OTHER_BOOT)


def sealed_block(volumes: list[Volume], *pieces: bytes) -> Block:
    writer = writer_on(volumes)
    for piece in pieces:
        writer.write_piece(piece)
    sealed = writer.seal()
    writer.close()
    return complete_block(sealed)


def test_what_is_written_is_on_every_volume_and_seen_when_acknowledged(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=3)
    writer = writer_on(volumes)
    writer.write_piece(b"hello ")
    writer.write_piece(memoryview(b"world"))
    assert (writer.length, writer.acknowledged, visible(volumes)) == (11, 0, 0)
    writer.acknowledge()
    assert (writer.acknowledged, writer.durable) == (11, 0)
    for volume in volumes:
        assert visible([volume]) == 11
        assert Path(volume.data_path(ID)).read_bytes() == b"hello world"
        assert reader.read(open_block(volumes), volume, 6, 5, disk=DISK) == b"world"
        assert [each.end for each in reader.records(open_block(volumes), volume, disk=DISK)] == [
            6,
            11,
        ]
    writer.close()


def test_all_files_are_synced_in_one_call_and_the_directories_once(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=3)
    disk = RecordingDisk(DISK)
    writer = writer_on(volumes, disk)
    for _ in range(2):
        writer.write_piece(b"x")
        writer.sync()
    assert (writer.durable, writer.acknowledged) == (2, 2)
    seen = Counter(disk.points)
    assert (seen["after sync block"], seen["after sync_directory block"]) == (2, 3)
    found = parse(files_of(volumes[0])[f"-{GENERATION:016x}.meta"], block_id=ID)
    assert [record.durable for record in found.records] == [0, 1]
    writer.close()


def test_the_order_of_the_steps_is_that_of_the_page(tmp_path: Path) -> None:
    disk = RecordingDisk(DISK)
    writer = writer_on(volumes_in(tmp_path, count=1), disk)
    writer.write_piece(b"x")
    writer.sync()
    assert [point[6:] for point in disk.points if point.startswith("after ")] == [
        "write mark",
        "create meta",
        "create data",
        "write header",
        "write data",
        "write record",
        "sync block",
        "sync_directory block",
        "write acknowledged",
    ]
    writer.close()


def test_bytes_that_wait_are_bounded(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    writer = writer_on(volumes)
    piece = bytes(PIECE_BYTES)
    for _ in range(SYNC_EVERY_BYTES // PIECE_BYTES - 1):
        writer.write_piece(piece)
    assert writer.durable == 0
    writer.write_piece(piece)
    assert (writer.durable, writer.acknowledged) == (SYNC_EVERY_BYTES, 0)
    writer.close()


@pytest.mark.parametrize("size", [0, PIECE_BYTES + 1])
def test_a_piece_that_does_not_fit_is_refused(tmp_path: Path, size: int) -> None:
    writer = writer_on(volumes_in(tmp_path))
    with pytest.raises(UsageError, match="1 to 1048576 bytes"):
        writer.write_piece(bytes(size))
    writer.write_piece(b"good")
    writer.sync()
    writer.close()


FAILURES = [errno.EIO, errno.ENOSPC, errno.EROFS, errno.ENODEV]


@pytest.mark.parametrize("number", FAILURES)
@pytest.mark.parametrize("call", ["write_piece", "acknowledge", "sync", "seal"])
def test_a_volume_that_fails_is_dropped_before_anything_is_acknowledged(
    tmp_path: Path, number: int, call: str
) -> None:
    disk = FailingDisk(DISK)
    volumes = volumes_in(tmp_path, disk)
    seen: list[tuple[list[str], tuple[str, ...], int]] = []

    def on_failed(failed: Mapping[str, OSError], left: tuple[str, ...]) -> None:
        seen.append((list(failed), left, writer.acknowledged))

    writer = BlockWriter.create(
        ID, GENERATION, FILE, volumes, disk=disk, boot_id=BOOT, on_failed=on_failed
    )
    writer.write_piece(b"one")
    writer.acknowledge()
    writer.write_piece(b"two")
    disk.fail(volumes[0].root, number)
    getattr(writer, call)(*([b"more"] if call == "write_piece" else []))
    if call != "seal":
        writer.sync()
    assert seen == [(["v1"], ("v2",), 3)]
    assert writer.volumes == ("v2",)
    assert visible(volumes[1:]) == writer.length == writer.acknowledged
    writer.close()


@pytest.mark.scenario("S77")
def test_a_volume_that_is_full_from_the_start_is_dropped(tmp_path: Path) -> None:
    disk = FailingDisk(DISK)
    volumes = volumes_in(tmp_path, disk)
    disk.fail(volumes[1].root, errno.ENOSPC)
    journal = Journal()
    writer = writer_on(volumes, disk, journal=journal)
    assert (journal.dropped, writer.volumes) == (["v2"], ("v1",))
    writer.close()


@pytest.mark.scenario("S77")
def test_a_replica_that_exists_is_never_written_again(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    writer = writer_on(volumes)
    writer.write_piece(b"first")
    writer.sync()
    before = files_of(volumes[0])
    with pytest.raises(VolumeUnusable):
        writer_on(volumes)
    assert files_of(volumes[0]) == before
    writer.close()


@pytest.mark.parametrize("number", FAILURES)
@pytest.mark.scenario("S54")
def test_when_no_volume_is_left_the_writer_stops_for_good(tmp_path: Path, number: int) -> None:
    disk = FailingDisk(DISK)
    volumes = volumes_in(tmp_path, disk)
    writer = writer_on(volumes, disk)
    writer.write_piece(b"one")
    for volume in volumes:
        disk.fail(volume.root, number)
    with pytest.raises(VolumeUnusable):
        writer.write_piece(b"two")
    for volume in volumes:
        disk.heal(volume.root)
    for again in (writer.acknowledge, writer.sync, writer.seal):
        with pytest.raises(VolumeUnusable):
            again()
    assert visible(volumes) == 0
    writer.close()


def test_a_callback_that_drops_the_last_volume_does_not_let_the_writer_go_on(
    tmp_path: Path,
) -> None:
    disk = FailingDisk(DISK)
    volumes = volumes_in(tmp_path, disk, count=1)
    writer = BlockWriter.create(
        ID, GENERATION, FILE, volumes, disk=disk, boot_id=BOOT, on_failed=lambda *_: None
    )
    disk.fail(volumes[0].root)
    for _ in range(2):
        with pytest.raises(VolumeUnusable, match=r"no volume is left for block .*v1: "):
            writer.write_piece(b"x")


@pytest.mark.spec("F8")
def test_when_the_journal_refuses_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    disk = FailingDisk(DISK)
    volumes = volumes_in(tmp_path, disk)
    lost = LeaseLost("taken over")
    writer = writer_on(volumes, disk, journal=Journal(refuses=lost))
    writer.write_piece(b"one")
    writer.acknowledge()
    disk.fail(volumes[0].root, errno.ENOSPC)
    with pytest.raises(LeaseLost):
        writer.write_piece(b"two")
    disk.heal(volumes[0].root)
    for again in (writer.acknowledge, writer.sync, writer.seal, lambda: writer.write_piece(b"x")):
        with pytest.raises(LeaseLost) as caught:
            again()
        assert caught.value is lost
    assert visible(volumes) == 3
    writer.close()


def test_a_meta_file_that_is_gone_is_noticed_at_the_next_flush(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    journal = Journal()
    writer = writer_on(volumes, journal=journal)
    writer.write_piece(b"one")
    Path(volumes[0].meta_path(ID, GENERATION)).unlink()
    writer.acknowledge()
    assert (journal.dropped, writer.volumes) == (["v1"], ("v2",))
    writer.close()


@pytest.mark.spec("F7")
@pytest.mark.parametrize("ending", [META, ".data"])
def test_a_file_that_was_replaced_by_another_takes_its_volume_out(
    tmp_path: Path, ending: str
) -> None:
    volumes = volumes_in(tmp_path)
    journal = Journal()
    writer = writer_on(volumes, journal=journal)
    writer.write_piece(b"hello")
    writer.acknowledge()
    path = Path(volumes[0].directory(ID)) / f"{ID:016x}{ending}"
    path.rename(path.with_suffix(".moved"))
    path.write_bytes(path.with_suffix(".moved").read_bytes())
    writer.write_piece(b"world")
    writer.acknowledge()
    assert (journal.dropped, writer.volumes) == (["v1"], ("v2",))
    writer.close()


def test_a_directory_that_is_removed_takes_its_volume_out(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    journal = Journal()
    writer = writer_on(volumes, journal=journal)
    shutil.rmtree(volumes[1].root)
    writer.write_piece(b"one")
    writer.sync()
    assert (journal.dropped, writer.acknowledged) == (["v2"], 3)
    writer.close()


def test_a_writer_that_was_interrupted_does_not_go_on(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    disk = KillingDisk(DISK, "after write data", 1, interrupted)
    writer = writer_on(volumes_in(tmp_path), disk)
    with pytest.raises(KeyboardInterrupt):
        writer.write_piece(b"one")
    with pytest.raises(VolumeUnusable, match="was interrupted"):
        writer.acknowledge()
    writer.close()


def test_after_the_seal_and_after_the_end_nothing_is_written(tmp_path: Path) -> None:
    writer = writer_on(volumes_in(tmp_path))
    writer.seal()
    with pytest.raises(UsageError, match="is sealed"):
        writer.write_piece(b"x")
    writer.close()
    writer.close()
    with pytest.raises(UsageError, match="is closed"):
        writer.write_piece(b"x")


def test_a_sealed_block_is_sound_on_every_volume(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=3)
    block = sealed_block(volumes, b"a" * 1000, b"b", b"c" * PIECE_BYTES)
    assert block.volumes == ("v1", "v2", "v3")
    for volume in volumes:
        assert reader.verify(block, volume, disk=DISK) == []
        assert reader.trailing_bytes(block, volume, disk=DISK) == 0
        view = reader.map_block(block, volume, block.length)
        assert view.readonly
        assert bytes(view) == b"a" * 1000 + b"b" + b"c" * PIECE_BYTES
    assert reader.visible_length(block, [], disk=DISK, boot_id=BOOT) == block.length
    assert reader.with_length(block, 5).length == 5


def test_a_mapped_block_is_never_longer_than_its_file(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    block = sealed_block(volumes, b"abc")
    assert bytes(reader.map_block(block, volumes[0], 0)) == b""
    with pytest.raises(DataDamaged, match="has 3 bytes, not 4"):
        reader.map_block(block, volumes[0], 4)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    volume = volumes[0]
    block = sealed_block(volumes, b"hello")
    for path in (volume.meta_path(ID, GENERATION), volume.data_path(ID)):
        fd = DISK.open(path, write=True)
        good = DISK.read_at(fd, 10_000, 0)
        for bit in range(len(good) * 8):
            at = bit // 8
            DISK.write_at(fd, bytes([good[at] ^ 1 << bit % 8]), at, what="flip")
            assert reader.verify(block, volume, disk=DISK), (path, bit)
            DISK.write_at(fd, good[at : at + 1], at, what="flip")
        DISK.close(fd)
    assert reader.verify(block, volume, disk=DISK) == []


def test_a_file_cut_by_hand_is_found(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    block = sealed_block(volumes, b"hello", b"world!")
    for path in (volumes[0].meta_path(ID, GENERATION), volumes[0].data_path(ID)):
        good = Path(path).read_bytes()
        for length in range(len(good)):
            Path(path).write_bytes(good[:length])
            assert reader.verify(block, volumes[0], disk=DISK)
        Path(path).unlink()
        assert reader.verify(block, volumes[0], disk=DISK)
        Path(path).write_bytes(good)


def test_a_block_that_is_not_the_one_in_the_journal_is_found(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    block = sealed_block(volumes, b"hello")
    for wrong in (
        replace(block, checksum=1),
        replace(block, length=4),
        replace(block, file_id=9),
        replace(block, generation=9),
    ):
        assert reader.verify(wrong, volumes[0], disk=DISK)


def test_bytes_after_the_end_are_no_fault(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    block = sealed_block(volumes, b"hello")
    with Path(volumes[0].data_path(ID)).open("ab") as late:
        late.write(b"late bytes of an old writer")
    assert reader.verify(block, volumes[0], disk=DISK) == []
    assert reader.trailing_bytes(block, volumes[0], disk=DISK) == 27


def test_the_length_is_read_from_any_volume_that_answers(tmp_path: Path) -> None:
    disk = FailingDisk(DISK)
    volumes = volumes_in(tmp_path, disk)
    assert visible(volumes) == 0  # the journal knows the block, and no volume yet
    writer = writer_on(volumes, disk)
    writer.write_piece(b"hello")
    writer.acknowledge()
    disk.fail(volumes[0].root)
    assert visible(volumes, disk=disk) == 5
    disk.fail(volumes[1].root)
    with pytest.raises(VolumeUnusable, match=r"no volume with block .*v1: .*v2: "):
        visible(volumes, disk=disk)
    writer.close()


def test_a_length_that_is_being_written_is_read_again(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    writer = writer_on(volumes)
    writer.write_piece(b"hello")
    writer.acknowledge()
    path = Path(volumes[0].meta_path(ID, GENERATION))
    good = path.read_bytes()

    class TornOnce(SystemDisk):
        torn = True

        def read_at(self, fd: int, size: int, offset: int) -> bytes:
            found = super().read_at(fd, size, offset)
            if self.torn:
                self.torn = False
                return found[:66] + b"\7" + found[67:]
            return found

    assert visible(volumes, disk=TornOnce()) == 5
    assert path.read_bytes() == good
    writer.close()


@pytest.mark.scenario("S78")
def test_after_a_restart_what_all_volumes_have_is_seen(tmp_path: Path) -> None:
    disk = FailingDisk(DISK)
    volumes = volumes_in(tmp_path, disk)
    writer = writer_on(volumes, disk)
    writer.write_piece(b"durable")
    writer.sync()
    writer.write_piece(b", perhaps")
    writer.write_piece(b", lost")
    writer.acknowledge()
    writer.close()
    Path(volumes[1].data_path(ID)).write_bytes(b"durable, perhaps")
    assert after_a_restart(volumes) == 16
    disk.fail(volumes[1].root)  # it may have less than the other, but not less than was durable
    assert after_a_restart(volumes, disk=disk) == 7


@pytest.mark.spec("F8")
def test_a_reader_that_opened_the_file_before_the_fence_sees_nothing_of_the_late_writer(
    tmp_path: Path,
) -> None:
    volumes = volumes_in(tmp_path, count=1)
    block = open_block(volumes)
    writer = writer_on(volumes, journal=Journal(refuses=LeaseLost("gone")))
    writer.write_piece(b"seen")
    writer.acknowledge()
    fence(volumes[0], block, 8, disk=DISK)
    writer.write_piece(b"late")
    with pytest.raises(LeaseLost):
        writer.acknowledge()
    assert visible(volumes) == 4
    assert [each.end for each in reader.records(block, volumes[0], disk=DISK)] == [4]
    writer.close()


def test_a_removed_block_is_gone_and_its_neighbour_is_not(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, count=1)
    for block_id in (ID, ID + 0x100):
        writer = writer_on(volumes, block_id=block_id)
        writer.write_piece(b"x")
        writer.seal()
        writer.close()
    remove(volumes[0], ID, disk=DISK)
    remove(volumes[0], ID, disk=DISK)
    assert files_of(volumes[0]) == {}
    assert len(files_of(volumes[0], block_id=ID + 0x100)) == 2


def test_a_writer_whose_block_is_removed_acknowledges_nothing_more(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    for nth in (1, 2, 3, 4):
        writer = writer_on(volumes, journal=Journal(refuses=LeaseLost("deleted")))
        writer.write_piece(b"one")
        refusals: list[Exception] = []

        def wake(writer: BlockWriter = writer, refusals: list[Exception] = refusals) -> None:
            writer.write_piece(b"two")
            with pytest.raises(LeaseLost) as caught:
                writer.acknowledge()
            refusals.append(caught.value)

        disk = KillingDisk(DISK, "after unlink removed", nth, wake)
        for volume in volumes:
            remove(volume, ID, disk=disk)
        assert refusals
        writer.close()
