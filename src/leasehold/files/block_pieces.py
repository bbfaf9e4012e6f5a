"""The pieces of a block, over all its copies: which copy has which, and how one gets the rest.

All volumes of a block get the same pieces in the same order, so the record at one position of the
meta file is the same on every volume. A piece is sound on a volume if the bytes there have the
checksum of its record. The record may come from one copy and the bytes from another.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from crc32c import crc32c

from leasehold.errors import TailUncertain, VolumeUnusable
from leasehold.files.block_meta import RecordKind, follows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Self

    from leasehold.files.block_meta import BlockRecord
    from leasehold.files.disk import Disk
    from leasehold.files.model import Block
    from leasehold.files.volumes import Volume


def merge_records(copies: Iterable[Sequence[BlockRecord | None]]) -> tuple[BlockRecord, ...]:
    """Return the data records from the first on, each from any copy that has it.

    Raises:
        TailUncertain: two copies have different records of one piece.
    """
    columns = list(copies)
    merged: list[BlockRecord] = []
    before = 0
    for position in range(max(map(len, columns), default=0)):
        slots = [column[position] for column in columns if position < len(column)]
        found = {slot for slot in slots if slot is not None and follows(slot, before)}
        if not found or any(record.kind is RecordKind.SEAL for record in found):
            break
        if len({(record.crc, record.end) for record in found}) > 1:
            raise TailUncertain(
                f"the copies of the block are inconsistent: they have different records of the "
                f"bytes from {before} on. Nothing was changed. Verify the volumes, take the wrong "
                "one out of service, and recover the file again."
            )
        merged.append(max(found, key=lambda record: record.durable))
        before = merged[-1].end
    return tuple(merged)


def sound_pieces(
    volume: Volume, block: Block, records: Sequence[BlockRecord], *, durable: int, disk: Disk
) -> tuple[frozenset[int], int]:
    """Return which pieces a copy has, by position, and how many bytes were read for that.

    What ends at or before ``durable`` is not read: it counts if the file is long enough.
    """
    sound: set[int] = set()
    start = bytes_read = 0
    with _Copy(volume, block, disk=disk) as copy:
        for position, record in enumerate(records):
            if record.end <= durable and record.end <= copy.size:
                sound.add(position)
            else:
                piece = copy.piece(start, record)
                bytes_read += 0 if piece is None else len(piece)
                if piece is not None:
                    sound.add(position)
            start = record.end
    return frozenset(sound), bytes_read


def rewrite_pieces(
    volume: Volume,
    block: Block,
    data: int,
    records: Sequence[BlockRecord],
    *,
    recovery_id: int,
    trusted: Collection[int],
    others: Sequence[Volume],
    disk: Disk,
) -> None:
    """Write every piece again that is not known to be sound and durable here, from memory.

    After a failed sync, by whatever process, the kernel may report later syncs as done without
    writing anything. Bytes that were written again are synced, or that sync fails. Bytes that
    are not sound here come from one of the ``others``.

    What is sound here is written to a file of its own first, durably: a power cut may destroy
    bytes that are being written, and these may be the only copy.

    Raises:
        VolumeUnusable: a piece is sound on no volume. Nothing was written.
    """
    with ExitStack() as stack:
        own = stack.enter_context(_Copy(volume, block, disk=disk))
        copies = [own]
        for each in others:
            with suppress(OSError):  # it failed since it answered: the rest may be enough
                copies.append(stack.enter_context(_Copy(each, block, disk=disk)))
        doubtful: list[tuple[int, BlockRecord]] = []
        start = 0
        for position, record in enumerate(records):
            if position not in trusted:
                doubtful.append((start, record))
                if _first(copies, start, record) is None:
                    raise VolumeUnusable(_why(volume, block, own.size, records[-1].end))
            start = record.end
        _save_tail(own, doubtful, recovery_id, disk=disk)
        for at, record in doubtful:
            disk.write_at(data, _first(copies, at, record) or b"", at, what="rewritten")


def _save_tail(
    own: _Copy, doubtful: Sequence[tuple[int, BlockRecord]], recovery_id: int, *, disk: Disk
) -> None:
    """Keep these pieces in a new file, each at its offset, until the block is complete."""
    pieces = ((at, own.piece(at, record)) for at, record in doubtful)
    if all(piece is None for _, piece in pieces):
        return
    path = own.tail_path(recovery_id)
    disk.unlink(path, what="tail")
    fd = disk.create(path, what="tail")
    try:
        for at, record in doubtful:
            piece = own.piece(at, record)
            if piece is not None:
                disk.write_at(fd, piece, at, what="tail")
        for error in disk.sync([fd], what="tail").values():
            raise error
    except OSError:
        with suppress(OSError):
            disk.unlink(path, what="tail")
        raise
    finally:
        disk.close(fd)
    disk.sync_directory(own.directory, what="tail")
    for earlier in own.tails:
        if earlier != path:
            disk.unlink(earlier, what="tail")


class _Copy:
    """The bytes of a block on one volume: its data, and what recoveries saved of its end."""

    def __init__(self, volume: Volume, block: Block, *, disk: Disk) -> None:
        self.directory = volume.directory(block.id)
        self._stem = volume.meta_path(block.id, block.generation).removesuffix("meta") + "t"
        self._data_path = volume.data_of(block)
        self._disk = disk
        self._fds: list[int] = []
        self.tails: list[str] = []
        self.size = 0

    def __enter__(self) -> Self:
        with suppress(OSError):
            names = self._disk.names(self.directory)
            prefix = self._stem.removeprefix(f"{self.directory}/")
            self.tails = [f"{self.directory}/{name}" for name in names if name.startswith(prefix)]
        for path in (self._data_path, *self.tails):
            with suppress(FileNotFoundError):
                fd = self._disk.open(path)
                self._fds.append(fd)
                if path == self._data_path:
                    self.size = self._disk.size(fd)
        return self

    def __exit__(self, *error: object) -> None:
        for fd in self._fds:
            self._disk.close(fd)

    def tail_path(self, recovery_id: int) -> str:
        return f"{self._stem}{recovery_id:016x}"

    def piece(self, start: int, record: BlockRecord) -> bytes | None:
        """Return the bytes of a piece; None if they are not sound here."""
        for fd in self._fds:
            piece = self._disk.read_at(fd, record.end - start, start)
            if len(piece) == record.end - start and crc32c(piece) == record.crc:
                return piece
        return None


def _first(copies: Sequence[_Copy], start: int, record: BlockRecord) -> bytes | None:
    for copy in copies:
        with suppress(OSError):
            piece = copy.piece(start, record)
            if piece is not None:
                return piece
    return None


def read_pieces(
    block: Block, records: Sequence[BlockRecord], volumes: Sequence[Volume], *, disk: Disk
) -> bytes:
    """Return the bytes of these pieces, from the first on, each from a volume that has it."""
    kept = bytearray()
    with ExitStack() as stack:
        copies = [stack.enter_context(_Copy(each, block, disk=disk)) for each in volumes]
        for record in records:
            piece = _first(copies, len(kept), record)
            if piece is None:
                break
            kept += piece
    return bytes(kept)


def missing_bytes(records: Sequence[BlockRecord], sound: Collection[int]) -> int:
    """Return how many bytes of these pieces a copy does not have."""
    missing = start = 0
    for position, record in enumerate(records):
        if position not in sound:
            missing += record.end - start
        start = record.end
    return missing


def _why(volume: Volume, block: Block, size: int, length: int) -> str:
    what = f"has {size} bytes" if size < length else "has damaged bytes"
    return (
        f"block {block.id:#x} on volume {volume.id!r} {what}, {length} were agreed. Take the "
        "volume out of the block."
    )
