"""Power cuts: nothing that was synced is lost, and no answer of a volume changes."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from tests.support.blocks import (
    DISK,
    ID,
    OTHER_BOOT,
    Killed,
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

from leasehold.errors import LeaseholdError
from leasehold.files import reader
from leasehold.files.block_meta import PIECE_BYTES
from leasehold.files.block_writer import BlockWriter
from leasehold.files.fence import FenceEvidence, fence, remove
from leasehold.testing.disk import KillingDisk, PowerCutDisk


def random_life(writer: BlockWriter, rng: random.Random) -> tuple[int, bytes]:
    """Write, flush and sync at random; return what was promised to be durable, and all bytes."""
    everything = b""
    promised = 0
    for _ in range(rng.randint(0, 8)):
        piece = rng.randbytes(rng.choice([1, 30, 300, 5000]))
        writer.write_piece(piece)
        everything += piece
        step = rng.random()
        if step < 0.3:
            writer.acknowledge()
        elif step < 0.6:
            writer.sync()
            promised = len(everything)
    if rng.random() < 0.15:
        writer.seal()
        promised = len(everything)
    return promised, everything


@pytest.mark.spec("F8")
@pytest.mark.parametrize("batch", range(8))
def test_a_power_cut_loses_nothing_that_was_synced(tmp_path: Path, batch: int) -> None:
    volumes = volumes_in(tmp_path)
    for seed in range(batch * 40, batch * 40 + 40):
        rng = random.Random(seed)
        for volume in volumes:
            remove(volume, ID, disk=DISK)
        disk = PowerCutDisk(DISK)
        writer = writer_on(volumes, disk, journal=out())
        promised, everything = random_life(writer, rng)
        disk.cut(rng)
        writer.close()
        seen = visible(volumes, OTHER_BOOT)
        assert promised <= seen, seed
        block = recovered(volumes, 8)
        length = block.length if block else 0
        assert promised <= seen <= length, seed
        if block:
            assert sound(block, volumes), seed
            for volume in volumes:
                if volume.id in block.volumes:
                    data = reader.read(block, volume, 0, length, disk=DISK)
                    assert data == everything[:length], seed


@pytest.mark.spec("F8")
@pytest.mark.parametrize("batch", range(4))
def test_power_cuts_during_recovery_do_not_change_its_result(tmp_path: Path, batch: int) -> None:
    volumes = volumes_in(tmp_path)
    written(volumes, b"hello", b"world").close()
    points = list(points_of(lambda disk: recovered(volumes, 8, disk)))
    for seed in range(batch * 25, batch * 25 + 25):
        rng = random.Random(seed)
        for volume in volumes:
            remove(volume, ID, disk=DISK)
        disk = PowerCutDisk(DISK)
        writer = writer_on(volumes, disk, journal=out())
        promised, everything = random_life(writer, rng)
        recovery_ids = count(8)
        counted: dict[str, FenceEvidence] = {}
        for _ in range(rng.randint(1, 3)):
            point, nth = rng.choice(points)
            killing = KillingDisk(disk, point, nth, killed)
            recovery_id = next(recovery_ids)
            with suppress(Killed, LeaseholdError):
                for volume in volumes:
                    found = fence(volume, open_block(volumes), recovery_id, disk=killing)
                    # Once given, an answer stays: not even a power cut changes it.
                    assert counted.setdefault(volume.id, found) == found, seed
                recovered(volumes, recovery_id, killing)
            if rng.random() < 0.7:
                disk.cut(rng)
        writer.close()
        block = recovered(volumes, next(recovery_ids), disk)
        disk.cut(rng)  # what was sealed on all volumes is durable, bytes and all
        assert promised <= (block.length if block else 0), seed
        if block:
            assert sound(block, volumes), seed
            first = next(each for each in volumes if each.id in block.volumes)
            data = reader.read(block, first, 0, block.length, disk=DISK)
            assert data == everything[: block.length], seed


def test_large_pieces_survive_a_recovery(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    writer = writer_on(volumes)
    for number in range(3):
        writer.write_piece(bytes([number]) * PIECE_BYTES)
    writer.close()
    block = recovered(volumes, 8)
    assert block is not None
    assert (block.length, sound(block, volumes)) == (3 * PIECE_BYTES, True)
