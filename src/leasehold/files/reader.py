"""Reading files and blocks, whatever their writer does in the meantime.

The length of a file is always the last one that was acknowledged to its writer; it never shrinks.
Every piece is compared with its checksum; if it is damaged on one volume it is read from another.
Of an open block only what was acknowledged is visible, whatever its writer, a recovery or a power
cut does. Nothing here changes a volume.
"""

from __future__ import annotations

import bisect
import io
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from leasehold.clock import host_name
from leasehold.core.block_agreement import ReplicaCondition
from leasehold.errors import DataDamaged, UsageError, VolumeUnusable
from leasehold.files import block_meta
from leasehold.files.block_meta import (
    HEADER_BYTES,
    RECORD_BYTES,
    checksum,
    encode_header,
    parse,
    parse_header,
)
from leasehold.files.fence import (
    block_files,
    evidence_of,
    examine,
    fenced_path,
    frozen_path,
    read_meta,
)
from leasehold.files.model import BlockState, FileState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leasehold.core.block_agreement import ReplicaAnswer
    from leasehold.files.block_meta import BlockHeader, BlockRecord, ParsedRecords
    from leasehold.files.disk import Disk
    from leasehold.files.model import Block, FileStatus
    from leasehold.files.recovery import RecoveryContext
    from leasehold.files.volumes import Volume

_TRIES: Final = 8  # each name can change once for every attempt to recover


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenHeader:
    """The header of a replica, read while it still had its name; ``after`` a recovery or not."""

    header: BlockHeader | None
    after: bool


def visible_length(
    block: Block,
    volumes: Sequence[Volume],
    *,
    disk: Disk,
    boot_id: bytes,
    written_elsewhere: bool = False,
) -> int:
    """Return how much of a block may be seen: of an open one, what was acknowledged.

    ``written_elsewhere``: a restart of this machine does not concern its writer, whatever boot id
    it had. It runs on another one, or was up after the restart.

    One volume that answers is enough. If the machine was restarted since the block was written,
    the acknowledged length is not to be trusted: then it is what all volumes have, and if one is
    missing, what was durable.
    """
    if block.state is BlockState.COMPLETE:
        return block.length
    silent: list[str] = []
    unsure = False
    for volume in volumes:
        try:
            seen = _read_front(volume, block, disk=disk)
        except OSError as error:
            silent.append(f"{volume.id}: {error}")
            continue
        if seen is None:
            continue
        header = seen.header
        same_boot = written_elsewhere or (header is not None and header.boot_id == boot_id)
        trusted = header is not None and (seen.after or same_boot)
        if trusted and header is not None and header.acknowledged is not None:
            return header.acknowledged
        unsure = True
    if unsure:
        return _after_restart(block, volumes, disk=disk)
    if silent:
        raise VolumeUnusable(
            f"no volume with block {block.id:#x} answers ({'; '.join(silent)}). Mount or repair "
            "one."
        )
    return 0  # created in the journal, and on no volume yet


def records(
    block: Block, volume: Volume, *, disk: Disk, known: Sequence[BlockRecord] = ()
) -> tuple[BlockRecord, ...]:
    """Return the data records of a replica after those that are ``known``, under its current name.

    Only what is new is read: a block keeps its records, in their order, also in a recovery.
    """
    path: str | None = volume.meta_of(block)
    for _ in range(_TRIES):
        if path is None:
            break
        try:
            fd = disk.open(path)
        except FileNotFoundError:
            path, _after = _renamed_records(volume, block, disk=disk)
            continue
        try:
            at = HEADER_BYTES + RECORD_BYTES * len(known)
            raw = bytes(HEADER_BYTES) + disk.read_at(fd, max(disk.size(fd) - at, 0), at)
        finally:
            disk.close(fd)
        return parse(raw, block_id=block.id, before=known[-1].end if known else 0).records
    return ()


def with_length(block: Block, length: int) -> Block:
    """Return the block as a reader sees it that may see this much."""
    return replace(block, length=length)


def read(block: Block, volume: Volume, offset: int, size: int, *, disk: Disk) -> bytes:
    """Return bytes of a replica, fewer only at the end of its file, without checking them."""
    fd = disk.open(volume.data_of(block))
    try:
        return disk.read_at(fd, size, offset)
    finally:
        disk.close(fd)


def map_block(block: Block, volume: Volume, length: int) -> memoryview:
    """Return the first ``length`` bytes of a replica, in place: nothing is copied or compared.

    They stay valid while the view lives, since a block is never cut below what is visible.
    """
    if length == 0:
        return memoryview(b"")
    fd = volume.disk.open(volume.data_of(block))
    try:
        have = volume.disk.size(fd)
        if have < length:
            raise DataDamaged(
                f"block {block.id:#x} on volume {volume.id!r} has {have} bytes, not {length}. Read "
                "it from another volume, and verify this one."
            )
        return volume.disk.map(fd, length)
    finally:
        volume.disk.close(fd)


def trailing_bytes(block: Block, volume: Volume, *, disk: Disk) -> int:
    """Return how many bytes follow the end of a complete block; they are never read."""
    fd = disk.open(volume.data_of(block))
    try:
        return max(0, disk.size(fd) - block.length)
    finally:
        disk.close(fd)


def verify(block: Block, volume: Volume, *, disk: Disk) -> list[str]:
    """Return what is wrong with the replica of a complete block; nothing if every bit is right."""
    path = volume.meta_of(block)
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return [f"block {block.id:#x} has no meta file of generation {block.generation}"]
    try:
        front = disk.read_at(fd, HEADER_BYTES, 0)
        meta_bytes = disk.size(fd)
    finally:
        disk.close(fd)
    parsed = read_meta(path, block_id=block.id, disk=disk)
    faults = _header_faults(block, front)
    faults += _record_faults(block, parsed, meta_bytes)
    try:
        data = disk.open(volume.data_of(block))
    except FileNotFoundError:
        return [*faults, f"block {block.id:#x} has no data file"]
    try:
        faults += _piece_faults(block, parsed.records, data, disk=disk)
    finally:
        disk.close(data)
    return faults


def absence(block: Block, volume: Volume, *, disk: Disk) -> list[str]:
    """Return what is missing of the replica of a complete block, without comparing its bytes."""
    if not disk.exists(volume.meta_of(block)):
        return [f"block {block.id:#x} has no meta file of generation {block.generation}"]
    try:
        data = disk.open(volume.data_of(block))
    except FileNotFoundError:
        return [f"block {block.id:#x} has no data file"]
    try:
        have = disk.size(data)
    finally:
        disk.close(data)
    if have < block.length:
        return [f"block {block.id:#x} has {have} bytes of {block.length}"]
    return []


def _read_front(volume: Volume, block: Block, *, disk: Disk) -> _SeenHeader | None:
    """Read the header, then check that the name still exists; if not, find the new one."""
    path: str | None = volume.meta_of(block)
    after = False
    seen = None
    for _ in range(_TRIES):
        if path is None:
            return None
        try:
            fd = disk.open(path)
        except FileNotFoundError:
            path, after = _renamed_records(volume, block, disk=disk)
            continue
        try:
            front = disk.read_at(fd, HEADER_BYTES, 0)
        finally:
            disk.close(fd)
        if disk.exists(path):
            seen = _SeenHeader(header=parse_header(front), after=after)
            if seen.header is not None and seen.header.acknowledged is not None:
                break  # otherwise the writer may be changing it right now: try again
    return seen


def _renamed_records(volume: Volume, block: Block, *, disk: Disk) -> tuple[str | None, bool]:
    """Return the new path of a renamed meta file, and whether it is the recovered one.

    A frozen copy is there until the recovery is committed and tidied. Where there is none, a
    later generation is the one in the journal.
    """
    found = block_files(volume, block, disk=disk)
    if found.meta:
        return volume.meta_of(block), False
    if found.fenced:  # the copy is not finished yet
        return fenced_path(volume, block, found.fenced[-1]), False
    if found.frozen:
        return frozen_path(volume, block, found.frozen[-1]), False
    if found.sealed:
        return volume.meta_path(block.id, found.sealed), True
    return None, False


def read_records(volume: Volume, block: Block, *, disk: Disk) -> ParsedRecords | None:
    """Return the records of a replica under its current name; None if it has none."""
    path: str | None = volume.meta_of(block)
    for _ in range(_TRIES):
        if path is None:
            return None
        try:
            return read_meta(path, block_id=block.id, disk=disk)
        except FileNotFoundError:
            path, _after = _renamed_records(volume, block, disk=disk)
    return None


def _after_restart(block: Block, volumes: Sequence[Volume], *, disk: Disk) -> int:
    answers: list[ReplicaAnswer] = []
    durable = 0
    for volume in volumes:
        try:
            evidence = evidence_of(volume, read_records(volume, block, disk=disk))
            answer = examine(volume, block, evidence, disk=disk)
        except OSError:
            continue
        answers.append(answer)
        if answer.condition is not ReplicaCondition.DAMAGED:
            durable = max(durable, evidence.durable)
    if {answer.volume for answer in answers} < set(block.volumes):
        return durable  # one that is missing may have less, but not less than this
    sound = (ReplicaCondition.SEALED, ReplicaCondition.WHOLE, ReplicaCondition.CUT)
    shortest = min(
        (answer.length for answer in answers if answer.length and answer.condition in sound),
        default=0,
    )
    return max(shortest, durable)  # a shorter one is stale


def _header_faults(block: Block, front: bytes) -> list[str]:
    header = parse_header(front)
    if header is None:
        return [f"the header of block {block.id:#x} is damaged"]
    if (header.block_id, header.generation, header.file_id) != (
        block.id,
        block.generation,
        block.file_id,
    ):
        what = f"block {header.block_id:#x}, generation {header.generation}, file {header.file_id}"
        return [f"the header of block {block.id:#x} is that of {what}"]
    if header.acknowledged is None:
        return [f"the acknowledged length of block {block.id:#x} is damaged"]
    if encode_header(header) != front:
        return [f"the header of block {block.id:#x} has bytes where there should be none"]
    return []


def _record_faults(block: Block, parsed: ParsedRecords, meta_bytes: int) -> list[str]:
    faults = []
    found = checksum(parsed.records)
    if parsed.length != block.length:
        faults.append(
            f"the records of block {block.id:#x} end at {parsed.length}, the journal says "
            f"{block.length}"
        )
    elif found != block.checksum:
        faults.append(
            f"the records of block {block.id:#x} have checksum {found:08x}, the journal says "
            f"{block.checksum:08x}"
        )
    if parsed.seal is None:
        faults.append(f"block {block.id:#x} has no valid seal")
    elif parsed.seal.crc != found:
        faults.append(f"the seal of block {block.id:#x} does not fit its records")
    elif meta_bytes != HEADER_BYTES + RECORD_BYTES * (len(parsed.records) + 1):
        faults.append(f"the meta file of block {block.id:#x} has bytes after the seal")
    return faults


def _piece_faults(
    block: Block, pieces: Sequence[BlockRecord], data: int, *, disk: Disk
) -> list[str]:
    have = disk.size(data)
    if have < block.length:
        return [f"block {block.id:#x} has {have} bytes of {block.length}"]
    faults = []
    start = 0
    for record in pieces:
        if crc32c(disk.read_at(data, record.end - start, start)) != record.crc:
            faults.append(f"block {block.id:#x} is damaged between {start} and {record.end}")
        start = record.end
    return faults


log = logging.getLogger("leasehold.files")

_CHUNK_BYTES = block_meta.PIECE_BYTES


class FileReader:
    """Made by ``Namespace.read``. Not to be shared between threads."""

    def __init__(self, path: str, around: RecoveryContext) -> None:
        """Read the status and the blocks of the file.

        Raises:
            UnknownFile: there is none.
        """
        self._context = around
        self._position = 0
        self._records: dict[tuple[int, str], tuple[block_meta.BlockRecord, ...]] = {}
        self._length = 0
        self._status, self._blocks = around.journal.view(path)
        self._file_id = self._status.id
        self._read_length()

    @property
    def path(self) -> str:
        """The path it was opened under."""
        return self._status.path

    @property
    def status(self) -> FileStatus:
        """The file as it was at the last ``refresh``."""
        return self._status

    @property
    def written_elsewhere(self) -> bool:
        """Whether a restart of this machine does not concern the writer: it was up after it.

        Two machines may have the same name. A writer that has renewed since this machine was
        started, in a block of another boot, runs on the other one.
        """
        return (
            self._status.host not in {"", host_name()} or self._status.idle_s < self._context.up_s
        )

    @property
    def length(self) -> int:
        """The acknowledged length at the last ``refresh``."""
        return self._length

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks at the last ``refresh``; an open one has its acknowledged length."""
        return self._blocks

    def refresh(self) -> int:
        """Read the status again; return the length. A file that is closed no longer changes.

        Raises:
            UnknownFile: it was deleted.
        """
        if self._status.state is not FileState.CLOSED:
            self._status, self._blocks = self._context.journal.view_of(self._file_id)
            self._read_length()
        return self._length

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``, fewer only at the end.

        Raises:
            DataDamaged: no volume has these bytes with the right checksum.
            VolumeUnusable: no volume that has them can be reached.
        """
        if offset < 0 or size < 0:
            raise UsageError(f"offset and size must not be negative, not {offset} and {size}")
        end = min(offset + size, self._length)
        out = bytearray()
        while offset < end:
            block = self._block_at(offset)
            part_end = min(end, block.start + block.length)
            part = self._read_part(block, offset - block.start, part_end - block.start)
            out += part
            offset += len(part)
        return bytes(out)

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, or all that is left."""
        size = self._length - self._position if size < 0 else size
        data = self.read_at(self._position, max(size, 0))
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, as in any file."""
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}
        if whence not in bases:
            raise UsageError(f"whence is {whence!r} and must be 0, 1 or 2, as in any file")
        base = bases[whence]
        if base + offset < 0:
            raise UsageError(f"there is nothing before the beginning of {self.path}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position of the next ``read``."""
        return self._position

    def chunks(self, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
        """Yield all from here to the acknowledged end, piece by piece."""
        while data := self.read(size):
            yield data

    def _read_length(self) -> None:
        """Give an open block the length that was acknowledged; it never shrinks."""
        length = sum(block.length for block in self._blocks if block.state is BlockState.COMPLETE)
        if self._blocks and self._blocks[-1].state is BlockState.OPEN:
            last = self._blocks[-1]
            volumes = self._context.volumes.known(last.volumes)
            visible = visible_length(
                last,
                volumes,
                disk=self._context.disk,
                boot_id=self._context.boot_id,
                written_elsewhere=self.written_elsewhere,
            )
            visible = max(visible, self._length - last.start)
            self._blocks = (*self._blocks[:-1], with_length(last, visible))
            length = last.start + visible
        self._length = max(length, 0)

    def _block_at(self, offset: int) -> Block:
        at = bisect.bisect_right(self._blocks, offset, key=lambda block: block.start)
        return self._blocks[at - 1]

    def _read_part(self, block: Block, start: int, end: int) -> bytes:
        """Return the next bytes from the first volume that has them sound; all, or some of them."""
        try:
            return self._read_sound(block, start, end)
        except (DataDamaged, VolumeUnusable):
            # Since this file was opened, its blocks may have been copied to other volumes.
            now = self._context.journal.block(block.id)
            if now is None or (now.volumes, now.copies) == (block.volumes, block.copies):
                raise
            moved = replace(block, volumes=now.volumes, copies=now.copies)
            self._blocks = tuple(moved if each.id == block.id else each for each in self._blocks)
            return self._read_sound(moved, start, end)

    def _read_sound(self, block: Block, start: int, end: int) -> bytes:
        damaged: list[str] = []
        unreachable: list[str] = []
        for volume_id in block.volumes:
            try:
                volume = self._context.volumes.readable(volume_id)
                found = self._checked(block, volume, start, end)
            except DataDamaged as error:
                damaged.append(str(error))
            except (OSError, VolumeUnusable) as error:
                unreachable.append(f"{volume_id}: {error}")
            else:
                if damaged or unreachable:
                    log.warning(
                        "%s was read from volume %s: %s",
                        self.path,
                        volume_id,
                        "; ".join(damaged + unreachable),
                    )
                return found
        if damaged and not unreachable:
            raise DataDamaged(
                f"{self.path}: from byte {block.start + start} on it is damaged on every volume "
                f"({'; '.join(damaged)}): verify the file, and restore it from elsewhere"
            )
        if damaged:
            raise VolumeUnusable(
                f"{self.path}: from byte {block.start + start} on it is damaged where it can be "
                f"read ({'; '.join(damaged)}), and not every copy can be "
                f"({'; '.join(unreachable)}): bring that volume back"
            )
        raise VolumeUnusable(
            f"{self.path} can not be read from any volume: {'; '.join(unreachable)}"
        )

    def _checked(self, block: Block, volume: Volume, start: int, end: int) -> bytes:
        """Return the bytes before any damage, each piece compared with its checksum."""
        records = self._records_of(block, volume, end)
        first = bisect.bisect_right(records, start, key=lambda record: record.end)
        out = bytearray()
        at = records[first - 1].end if first else 0
        skip = start - at
        for record in records[first:]:
            piece = read(block, volume, at, record.end - at, disk=self._context.disk)
            if len(piece) != record.end - at or crc32c(piece) != record.crc:
                if len(out) > skip:
                    break  # the rest may be sound on another volume
                raise DataDamaged(
                    f"volume {volume.id}, block {block.id:#x}, bytes {at} to {record.end}"
                )
            out += piece
            at = record.end
            if at >= end:
                break
        return bytes(out[skip : skip + end - start])

    def _records_of(
        self, block: Block, volume: Volume, end: int
    ) -> tuple[block_meta.BlockRecord, ...]:
        key = (block.id, volume.id)
        known = self._records.get(key, ())
        if not known or known[-1].end < end:
            known += records(block, volume, disk=self._context.disk, known=known)
            if not known or known[-1].end < end:
                raise DataDamaged(
                    f"volume {volume.id}, block {block.id:#x}: its records end before {end}"
                )
            self._records[key] = known
        return known
