"""Volumes and blocks in a temporary directory, for the tests of the block layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.core.block_agreement import Agreement, ReplicaAnswer, agree
from leasehold.errors import LeaseLost, VolumeUnusable
from leasehold.files import Block, BlockState, reader
from leasehold.files.block_writer import BlockWriter
from leasehold.files.disk import Disk, SystemDisk
from leasehold.files.fence import FenceEvidence, examine, fence, seal
from leasehold.files.model import SealedBlock
from leasehold.files.volumes import Volume
from leasehold.testing.disk import RecordingDisk

META = "-0000000000000007.meta"
BOOT = bytes(range(16))
OTHER_BOOT = bytes(16)
GENERATION = 7
FILE = 3
ID = 0x1234


class QuickDisk(SystemDisk):
    """Real files without the waiting: a kill loses nothing that only the kernel has.

    What a power cut loses is known to ``PowerCutDisk``, which stands above it.
    """

    def sync(self, fds: Sequence[int], *, what: str) -> Mapping[int, OSError]:
        return {}

    def sync_directory(self, path: str, *, what: str) -> None:
        pass


DISK = QuickDisk()


@dataclass
class Journal:
    """Stands for the journal: agrees to drop volumes, or raises what it was told to."""

    dropped: list[str] = field(default_factory=list)
    refuses: Exception | None = None

    def on_failed(self, failed: Mapping[str, OSError], left: tuple[str, ...]) -> None:
        if self.refuses is not None:
            raise self.refuses
        if not left:
            raise VolumeUnusable("none left")
        self.dropped += failed


def volumes_in(directory: Path, disk: Disk | None = None, *, count: int = 2) -> list[Volume]:
    return [
        Volume(made.id, made.root, disk or DISK, namespace="n")
        for made in (
            Volume.make(directory / f"v{number}", disk=DISK, namespace="n", id=f"v{number}")
            for number in range(1, count + 1)
        )
    ]


def writer_on(
    volumes: Sequence[Volume],
    disk: Disk | None = None,
    *,
    journal: Journal | None = None,
    block_id: int = ID,
) -> BlockWriter:
    return BlockWriter.create(
        block_id,
        GENERATION,
        FILE,
        volumes,
        disk=disk or DISK,
        boot_id=BOOT,
        on_failed=(journal or Journal()).on_failed,
    )


def open_block(volumes: Sequence[Volume], *, block_id: int = ID) -> Block:
    return Block(
        id=block_id,
        file_id=FILE,
        index=0,
        generation=GENERATION,
        state=BlockState.OPEN,
        start=0,
        length=0,
        checksum=0,
        volumes=tuple(volume.id for volume in volumes),
    )


def complete_block(sealed: SealedBlock, *, generation: int = GENERATION) -> Block:
    return Block(
        id=sealed.block_id,
        file_id=FILE,
        index=0,
        generation=generation,
        state=BlockState.COMPLETE,
        start=0,
        length=sealed.length,
        checksum=sealed.checksum,
        volumes=sealed.volumes,
    )


def fenced(
    volumes: Sequence[Volume], recovery_id: int, disk: Disk | None = None
) -> tuple[dict[str, FenceEvidence], dict[str, ReplicaAnswer]]:
    disk = disk or DISK
    block = open_block(volumes)
    evidence = {each.id: fence(each, block, recovery_id, disk=disk) for each in volumes}
    answers = {each.id: examine(each, block, evidence[each.id], disk=disk) for each in volumes}
    return evidence, answers


def agreed(volumes: Sequence[Volume], recovery_id: int, disk: Disk | None = None) -> Agreement:
    _, answers = fenced(volumes, recovery_id, disk)
    return agree([volume.id for volume in volumes], answers)


def files_of(volume: Volume, *, block_id: int = ID) -> dict[str, bytes]:
    directory = Path(volume.directory(block_id))
    stem = f"{block_id:016x}"
    return {
        path.name[len(stem) :]: path.read_bytes() for path in sorted(directory.glob(f"{stem}*"))
    }


class Killed(Exception):
    pass


def killed() -> None:
    raise Killed


def out() -> Journal:
    return Journal(refuses=LeaseLost("recovered by somebody else"))


def written(volumes: list[Volume], *pieces: bytes, disk: Disk = DISK) -> BlockWriter:
    writer = writer_on(volumes, disk, journal=out())
    for piece in pieces:
        writer.write_piece(piece)
    writer.acknowledge()
    return writer


def recovered(volumes: list[Volume], recovery_id: int, disk: Disk = DISK) -> Block | None:
    """Steps 2 to 5; returns what would be committed, or None if the tail is dropped."""
    block = open_block(volumes)
    evidence, answers = fenced(volumes, recovery_id, disk)
    agreement = agree(block.volumes, answers)
    if not agreement.length:
        return None
    records = evidence[agreement.volumes[0]].records
    checksum = 0
    for volume in volumes:
        if volume.id in agreement.volumes:
            checksum = seal(
                volume, block, recovery_id, records, agreement.length, boot_id=BOOT, disk=disk
            )
    sealed = SealedBlock(
        block_id=ID, length=agreement.length, checksum=checksum, volumes=agreement.volumes
    )
    return complete_block(sealed, generation=recovery_id)


def points_of(run: Callable[[Disk], object]) -> Iterator[tuple[str, int]]:
    """Every point that the run passes, with its number."""
    disk = RecordingDisk(DISK)
    run(disk)
    for point, times in Counter(disk.points).items():
        yield from ((point, nth) for nth in range(1, times + 1))


def visible(volumes: list[Volume], boot_id: bytes = BOOT) -> int:
    return reader.visible_length(open_block(volumes), volumes, disk=DISK, boot_id=boot_id)


def sound(block: Block, volumes: list[Volume]) -> bool:
    members = [volume for volume in volumes if volume.id in block.volumes]
    return all(reader.verify(block, each, disk=DISK) == [] for each in members)
