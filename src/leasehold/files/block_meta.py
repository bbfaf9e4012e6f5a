"""The meta file of a replica, in bytes: a header of 128 and records of 32. Pure, no I/O.

What was written is read back the same, or not at all: every part has a CRC32C, and that of a
record is bound to its block. Reading stops at the first record that is not valid; what stands
after it counts only as a sign of how much there was.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from leasehold.files.disk import Bytes

PIECE_BYTES: Final = 1 << 20  # the longest piece
HEADER_BYTES: Final = 128
RECORD_BYTES: Final = 32
CELL_AT: Final = 64  # where the acknowledged length is
CELL_BYTES: Final = 12
BOOT_ID_BYTES: Final = 16

_MAGIC = b"LHBLOCK1"
_IDENTITY = struct.Struct("<8sQQQ16s")
_CRC = struct.Struct("<I")
_CELL = struct.Struct("<Q")
_RECORD = struct.Struct("<B3xIQQ4x")
_RECORD_AND_CRC = struct.Struct("<B3xIQQ4xI")
_END_AND_CRC = struct.Struct("<QI")
_BLOCK_ID = struct.Struct("<Q")


class RecordKind(IntEnum):
    """What a record stands for."""

    DATA = 1
    SEAL = 2


_KINDS: Final[dict[int, RecordKind]] = {int(kind): kind for kind in RecordKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """Whose replica it is, and how much was acknowledged; None if that cannot be read."""

    block_id: int
    generation: int
    file_id: int
    boot_id: bytes
    acknowledged: int | None = 0


class BlockRecord(NamedTuple):
    """One piece of the block, up to ``end``; or the seal after the last one.

    A tuple, since a block that is flushed often has very many of them.
    """

    kind: RecordKind
    crc: int
    end: int
    durable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRecords:
    """The contents of a meta file.

    ``records`` are the data records up to the first bad one, ``seal`` stands after them if the
    block was finished. ``lost_durable`` is the highest ``durable`` mark and ``lost_end`` the
    highest end among valid records *after* a bad one: what there was before something got lost.
    ``slots`` has what is at each position, seals too, and None where it is not valid.
    """

    header: BlockHeader | None
    records: tuple[BlockRecord, ...]
    seal: BlockRecord | None
    lost_durable: int = 0
    lost_end: int = 0
    slots: tuple[BlockRecord | None, ...] = ()

    @property
    def length(self) -> int:
        """The end of the last valid record."""
        return self.records[-1].end if self.records else 0

    @property
    def durable(self) -> int:
        """The length that was known to be durable on all volumes."""
        return max((record.durable for record in self._all()), default=0)

    def _all(self) -> Iterable[BlockRecord]:
        return self.records if self.seal is None else (*self.records, self.seal)


def encode_header(header: BlockHeader) -> bytes:
    """Return the 128 bytes that a meta file begins with."""
    identity = _IDENTITY.pack(
        _MAGIC, header.block_id, header.generation, header.file_id, header.boot_id
    )
    front = (identity + _CRC.pack(crc32c(identity))).ljust(CELL_AT, b"\0")
    return (front + encode_acknowledged(header.acknowledged or 0)).ljust(HEADER_BYTES, b"\0")


def encode_acknowledged(length: int) -> bytes:
    """Return the bytes at ``CELL_AT``."""
    cell = _CELL.pack(length)
    return cell + _CRC.pack(crc32c(cell))


def parse_acknowledged(cell: Bytes) -> int | None:
    """Return the acknowledged length, or None if the bytes are not valid."""
    if len(cell) < CELL_BYTES:
        return None
    (crc,) = _CRC.unpack_from(cell, _CELL.size)
    if crc != crc32c(bytes(cell[: _CELL.size])):
        return None
    (length,) = _CELL.unpack_from(cell)
    return int(length)


def parse_header(raw: Bytes) -> BlockHeader | None:
    """Return the header, or None if it is not valid."""
    if len(raw) < CELL_AT:
        return None
    (crc,) = _CRC.unpack_from(raw, _IDENTITY.size)
    if crc != crc32c(bytes(raw[: _IDENTITY.size])):
        return None
    magic, block_id, generation, file_id, boot_id = _IDENTITY.unpack_from(raw)
    if magic != _MAGIC:
        return None
    return BlockHeader(
        block_id=block_id,
        generation=generation,
        file_id=file_id,
        boot_id=boot_id,
        acknowledged=parse_acknowledged(raw[CELL_AT : CELL_AT + CELL_BYTES]),
    )


def salt(block_id: int) -> int:
    """Return what the CRC of every record of a block begins with."""
    return crc32c(_BLOCK_ID.pack(block_id))


def encode_record(record: BlockRecord, *, salted: int) -> bytes:
    """Return the 32 bytes of a record; ``salted`` is ``salt(block_id)``."""
    body = _RECORD.pack(record.kind, record.crc, record.end, record.durable)
    return body + _CRC.pack(crc32c(body, salted))


def add_to_checksum(value: int, record: BlockRecord) -> int:
    """Continue the checksum of a block with one more data record."""
    return crc32c(_END_AND_CRC.pack(record.end, record.crc), value)


def checksum(records: Iterable[BlockRecord]) -> int:
    """Return the checksum of a block: over end and CRC of all its data records."""
    value = 0
    for record in records:
        if record.kind is RecordKind.DATA:
            value = add_to_checksum(value, record)
    return value


def encode(header: BlockHeader, records: Sequence[BlockRecord], *, seal: bool) -> bytes:
    """Return a whole meta file; with ``seal``, the record that ends it is added."""
    salted = salt(header.block_id)
    every = list(records)
    if seal:
        every.append(seal_of(records))
    return encode_header(header) + b"".join(encode_record(each, salted=salted) for each in every)


def seal_of(records: Sequence[BlockRecord]) -> BlockRecord:
    """Return the seal for these data records, all of which are durable by then."""
    end = records[-1].end if records else 0
    return BlockRecord(kind=RecordKind.SEAL, crc=checksum(records), end=end, durable=end)


def parse(raw: Bytes, *, block_id: int, before: int = 0) -> ParsedRecords:
    """Read a meta file, as far as it is valid.

    ``before`` is the end of the record before the first one, if those before it were left out.
    """
    slots = tuple(_records(raw, salt(block_id)))
    found = iter(slots)
    records: list[BlockRecord] = []
    seal: BlockRecord | None = None
    for record in found:
        if record is None or not follows(record, before):
            break
        if record.kind is RecordKind.SEAL:
            seal = record
            break
        records.append(record)
        before = record.end
    after = [] if seal else [record for record in found if record is not None]
    return ParsedRecords(
        header=parse_header(raw),
        records=tuple(records),
        seal=seal,
        lost_durable=max((record.durable for record in after), default=0),
        lost_end=max((record.end for record in after), default=0),
        slots=slots,
    )


def follows(record: BlockRecord, before: int) -> bool:
    """Return whether a record can stand after one that ends at ``before``."""
    if record.kind is RecordKind.SEAL:
        return record.end == before
    return before < record.end <= before + PIECE_BYTES and record.durable <= before


def _records(raw: Bytes, salted: int) -> Iterator[BlockRecord | None]:
    """Yield the record at each position; None where it is not valid."""
    view = memoryview(raw)
    for at in range(HEADER_BYTES, len(raw) - RECORD_BYTES + 1, RECORD_BYTES):
        number, piece, end, durable, crc = _RECORD_AND_CRC.unpack_from(raw, at)
        kind = _KINDS.get(number)
        if kind is None or crc != crc32c(view[at : at + _RECORD.size], salted):
            yield None
        else:
            yield BlockRecord(kind, piece, end, durable)
