"""A file open for reading, whoever writes it meanwhile.

The length is always the last one that was acknowledged to the writer; it never shrinks. Every
piece is compared with its checksum; if it is damaged on one volume it is read from another.
"""

from __future__ import annotations

import bisect
import io
import logging
from typing import TYPE_CHECKING

from crc32c import crc32c

from leasehold.clock import host_name
from leasehold.errors import DataDamaged, UsageError, VolumeUnusable
from leasehold.files import block_meta, block_reader
from leasehold.files.model import BlockState, FileState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leasehold.files.model import Block, FileStatus
    from leasehold.files.recovery import Surroundings
    from leasehold.files.volumes import Volume

log = logging.getLogger("leasehold.files")

_CHUNK_BYTES = block_meta.PIECE_BYTES


class FileReader:
    """Made by ``Namespace.read``. Not to be shared between threads."""

    def __init__(self, path: str, around: Surroundings) -> None:
        """Look at the file.

        Raises:
            UnknownFile: there is none.
        """
        self._around = around
        self._position = 0
        self._records: dict[tuple[int, str], tuple[block_meta.Record, ...]] = {}
        self._known = 0
        self._status, self._blocks = around.journal.view(path)
        self._file_id = self._status.id
        self._look()

    @property
    def path(self) -> str:
        """The path it was opened under."""
        return self._status.path

    @property
    def status(self) -> FileStatus:
        """The file as it was at the last ``refresh``."""
        return self._status

    @property
    def length(self) -> int:
        """The acknowledged length at the last ``refresh``."""
        return self._known

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks at the last ``refresh``; an open one has its acknowledged length."""
        return self._blocks

    def refresh(self) -> int:
        """Look again; return the length. A file that is closed does not change any more.

        Raises:
            UnknownFile: it was deleted.
        """
        if self._status.state is not FileState.CLOSED:
            self._status, self._blocks = self._around.journal.view_of(self._file_id)
            self._look()
        return self._known

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``, fewer only at the end.

        Raises:
            DataDamaged: no volume has these bytes with the right checksum.
            VolumeUnusable: no volume that has them can be reached.
        """
        if offset < 0 or size < 0:
            raise UsageError(f"offset and size must not be negative, not {offset} and {size}")
        end = min(offset + size, self._known)
        out = bytearray()
        while offset < end:
            block = self._block_at(offset)
            part_end = min(end, block.start + block.length)
            part = self._part(block, offset - block.start, part_end - block.start)
            out += part
            offset += len(part)
        return bytes(out)

    def read(self, size: int = -1) -> bytes:
        """The next ``size`` bytes, or all that is left."""
        size = self._known - self._position if size < 0 else size
        data = self.read_at(self._position, max(size, 0))
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, as in any file."""
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._known}
        if whence not in bases:
            raise UsageError(f"whence is {whence!r} and must be 0, 1 or 2, as in any file")
        base = bases[whence]
        if base + offset < 0:
            raise UsageError(f"there is nothing before the beginning of {self.path}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The place of the next ``read``."""
        return self._position

    def chunks(self, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
        """All from here to the acknowledged end, piece by piece."""
        while data := self.read(size):
            yield data

    def _look(self) -> None:
        """Give an open block the length that was acknowledged; it never shrinks."""
        length = sum(block.length for block in self._blocks if block.state is BlockState.COMPLETE)
        if self._blocks and self._blocks[-1].state is BlockState.OPEN:
            last = self._blocks[-1]
            volumes = [self._around.volumes.get(each) for each in last.volumes]
            visible = block_reader.visible_length(
                last,
                volumes,
                disk=self._around.disk,
                boot_id=self._around.boot_id,
                written_elsewhere=self._status.host not in {"", host_name()},
            )
            visible = max(visible, self._known - last.start)
            self._blocks = (*self._blocks[:-1], block_reader.with_length(last, visible))
            length = last.start + visible
        self._known = max(length, 0)

    def _block_at(self, offset: int) -> Block:
        at = bisect.bisect_right(self._blocks, offset, key=lambda block: block.start)
        return self._blocks[at - 1]

    def _part(self, block: Block, start: int, end: int) -> bytes:
        """The next bytes from the first volume that has them sound; all, or some of them."""
        damaged: list[str] = []
        away: list[str] = []
        for volume_id in block.volumes:
            try:
                volume = self._around.volumes.readable(volume_id)
                found = self._checked(block, volume, start, end)
            except DataDamaged as error:
                damaged.append(str(error))
            except (OSError, VolumeUnusable) as error:
                away.append(f"{volume_id}: {error}")
            else:
                if damaged or away:
                    log.warning(
                        "%s was read from volume %s: %s",
                        self.path,
                        volume_id,
                        "; ".join(damaged + away),
                    )
                return found
        if damaged and not away:
            raise DataDamaged(
                f"{self.path}: from byte {block.start + start} on it is damaged on every volume "
                f"({'; '.join(damaged)}): verify the file, and restore it from elsewhere"
            )
        if damaged:
            raise VolumeUnusable(
                f"{self.path}: from byte {block.start + start} on it is damaged where it can be "
                f"read ({'; '.join(damaged)}), and not every copy can be ({'; '.join(away)}): "
                "bring that volume back"
            )
        raise VolumeUnusable(f"{self.path} can not be read from any volume: {'; '.join(away)}")

    def _checked(self, block: Block, volume: Volume, start: int, end: int) -> bytes:
        """The bytes from whole pieces, each compared with its checksum; those before damage."""
        records = self._records_of(block, volume, end)
        first = bisect.bisect_right(records, start, key=lambda record: record.end)
        out = bytearray()
        at = records[first - 1].end if first else 0
        skip = start - at
        for record in records[first:]:
            piece = block_reader.read(block, volume, at, record.end - at, disk=self._around.disk)
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

    def _records_of(self, block: Block, volume: Volume, end: int) -> tuple[block_meta.Record, ...]:
        key = (block.id, volume.id)
        known = self._records.get(key, ())
        if not known or known[-1].end < end:
            known += block_reader.records(block, volume, disk=self._around.disk, known=known)
            if not known or known[-1].end < end:
                raise DataDamaged(
                    f"volume {volume.id}, block {block.id:#x}: its records end before {end}"
                )
            self._records[key] = known
        return known
