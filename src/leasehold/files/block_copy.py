"""A copy of a complete block on one more volume, from the copies that there are.

Its files have the epoch of the copy in their names, so nothing reads or removes them by another
name, and nothing is overwritten: a damaged replica stays until the journal has the new one. Each
piece comes from whichever replica has it sound. When the copy ends it was read back and compared
with the journal's record, and contents and names are durable. Only the journal makes it a replica.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from crc32c import crc32c

from leasehold.errors import DataDamaged, ProcessExhausted, TailUncertain
from leasehold.files import reader
from leasehold.files.block_meta import PIECE_BYTES, BlockHeader, checksum, encode
from leasehold.files.block_pieces import merge_records
from leasehold.files.block_writer import SYNC_EVERY_BYTES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from leasehold.files.block_meta import BlockRecord
    from leasehold.files.disk import Disk
    from leasehold.files.model import Block, BlockCopy
    from leasehold.files.volumes import Volume


def make_copy(
    copy: BlockCopy, target: Volume, sources: Sequence[Volume], *, disk: Disk, boot_id: bytes
) -> Generator[int, None, None]:
    """Copy the block to ``target``, piece by piece; yield the bytes of each.

    One that is given up before its end removes its files.

    Raises:
        DataDamaged: a piece, or the list of the pieces, is sound on none of the sources.
        OSError: the target failed.
    """
    records = complete_records(copy.block, sources, disk=disk)
    # Before the first file: an older database must find that it is older.
    target.raise_mark(copy.block.id, copy.epoch, disk=disk)
    try:
        yield from _written(copy, records, target, sources, disk=disk, boot_id=boot_id)
    except BaseException:
        with suppress(OSError, ProcessExhausted):
            remove_copy(target, copy.block.id, copy.epoch, disk=disk)
        raise


def remove_copy(target: Volume, block_id: int, epoch: int, *, disk: Disk) -> None:
    """Remove the files of a copy; may be repeated at any time."""
    for kind in ("meta", "data"):
        disk.unlink(target.copy_path(block_id, epoch, kind), what="removed")
    with suppress(FileNotFoundError):
        disk.sync_directory(target.directory(block_id), what="removed")


def check_sources(block: Block, sources: Sequence[Volume], *, disk: Disk) -> None:
    """Return if all pieces of a complete block are sound on one of the sources or another.

    Raises:
        DataDamaged: they are not.
    """
    for start, batch in _batches(complete_records(block, sources, disk=disk)):
        _sound_bytes(block, start, batch, sources, disk=disk)


def complete_records(
    block: Block, sources: Sequence[Volume], *, disk: Disk
) -> tuple[BlockRecord, ...]:
    """Return the records of a complete block that fit the journal, from one replica or all.

    Raises:
        DataDamaged: the sources do not have them.
    """
    columns: list[Sequence[BlockRecord | None]] = []
    for volume in sources:
        with suppress(OSError):
            parsed = reader.read_records(volume, block, disk=disk)
            if parsed is not None:
                if _fit(block, parsed.records):
                    return parsed.records
                columns.append(parsed.slots)
    with suppress(TailUncertain):
        merged = merge_records(columns)
        if _fit(block, merged):
            return merged
    raise DataDamaged(
        f"block {block.id:#x}: no volume that answers has its records. Bring back volumes that are "
        "away, or restore the file from elsewhere."
    )


def _fit(block: Block, records: Sequence[BlockRecord]) -> bool:
    return bool(records) and records[-1].end == block.length and checksum(records) == block.checksum


def _written(
    copy: BlockCopy,
    records: Sequence[BlockRecord],
    target: Volume,
    sources: Sequence[Volume],
    *,
    disk: Disk,
    boot_id: bytes,
) -> Iterator[int]:
    block = copy.block
    header = BlockHeader(
        block_id=block.id,
        generation=block.generation,
        file_id=block.file_id,
        boot_id=boot_id,
        acknowledged=block.length,
    )
    encoded = encode(header, records, seal=True)
    with ExitStack() as stack:
        meta = _created(stack, target.copy_path(block.id, copy.epoch, "meta"), disk)
        data = _created(stack, target.copy_path(block.id, copy.epoch, "data"), disk)
        synced = 0
        for start, batch in _batches(records):
            disk.write_at(
                data, _sound_bytes(block, start, batch, sources, disk=disk), start, what="copy"
            )
            end = batch[-1].end
            if end - synced >= SYNC_EVERY_BYTES:
                _sync(disk, [data])
                synced = end
            yield end - start
        disk.write_at(meta, encoded, 0, what="copy")
        _sync(disk, [data, meta])
        if disk.read_at(meta, len(encoded) + 1, 0) != encoded:
            raise _differs(block, target)
        for start, batch in _batches(records):
            found = disk.read_at(data, batch[-1].end - start, start)
            if None in _pieces(found, start, batch):
                raise _differs(block, target)
            yield 0
    disk.sync_directory(target.directory(block.id), what="copy")


def _batches(records: Sequence[BlockRecord]) -> Iterator[tuple[int, Sequence[BlockRecord]]]:
    """Yield pieces that follow each other, at most ``PIECE_BYTES`` in all, with their start."""
    first = start = 0
    for position, record in enumerate(records):
        if record.end - start > PIECE_BYTES:
            yield start, records[first:position]
            first, start = position, records[position - 1].end
    yield start, records[first:]


def _pieces(found: bytes, start: int, batch: Sequence[BlockRecord]) -> list[bytes | None]:
    """Return the piece of each record; None if it is not sound in what was read."""
    pieces: list[bytes | None] = []
    at = 0
    for record in batch:
        piece = found[at : record.end - start]
        is_whole = len(piece) == record.end - start - at
        pieces.append(piece if is_whole and crc32c(piece) == record.crc else None)
        at = record.end - start
    return pieces


def _sound_bytes(
    block: Block,
    start: int,
    batch: Sequence[BlockRecord],
    sources: Sequence[Volume],
    *,
    disk: Disk,
) -> bytes:
    """Return the bytes of these pieces, each from the first source that has it."""
    pieces: list[bytes | None] = [None] * len(batch)
    for volume in sources:
        with suppress(OSError):
            found = reader.read(block, volume, start, batch[-1].end - start, disk=disk)
            other = _pieces(found, start, batch)
            pieces = [one or two for one, two in zip(pieces, other, strict=True)]
            if None not in pieces:
                break
    sound = [piece for piece in pieces if piece is not None]
    if len(sound) < len(pieces):
        raise DataDamaged(
            f"block {block.id:#x}: no volume that answers has all its bytes between {start} and "
            f"{batch[-1].end} sound. Bring back volumes that are away, or restore the file from "
            "elsewhere."
        )
    return b"".join(sound)


def _differs(block: Block, target: Volume) -> OSError:
    what = f"block {block.id:#x} is read differently from how it was written"
    return OSError(errno.EIO, what, target.root)


def _created(stack: ExitStack, path: str, disk: Disk) -> int:
    fd = disk.create(path, what="copy")
    stack.callback(disk.close, fd)
    return fd


def _sync(disk: Disk, fds: Sequence[int]) -> None:
    # After a failed sync nothing of the file counts: the whole copy is given up.
    for error in disk.sync(fds, what="copy").values():
        raise error
