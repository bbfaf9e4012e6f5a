"""The meta file, in bytes."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from leasehold.files.block_meta import (
    HEADER_BYTES,
    PIECE_BYTES,
    RECORD_BYTES,
    BlockHeader,
    BlockRecord,
    RecordKind,
    checksum,
    encode,
    encode_header,
    encode_record,
    parse,
    parse_header,
    salt,
)

ID = 0xABC
HEADER = BlockHeader(block_id=ID, generation=7, file_id=3, boot_id=bytes(range(16)), acknowledged=5)


def records(*ends: int, durable: int = 0) -> list[BlockRecord]:
    return [
        BlockRecord(kind=RecordKind.DATA, crc=end * 31, end=end, durable=min(durable, start))
        for start, end in zip((0, *ends), ends, strict=False)
    ]


def test_the_header_is_as_the_page_says() -> None:
    raw = encode_header(HEADER)
    assert len(raw) == 128
    assert raw[:8] == b"LHBLOCK1"
    assert struct.unpack_from("<QQQ", raw, 8) == (ID, 7, 3)
    assert raw[32:48] == bytes(range(16))
    assert struct.unpack_from("<I", raw, 48) == (crc32c(raw[:48]),)
    assert struct.unpack_from("<QI", raw, 64) == (5, crc32c(raw[64:72]))
    assert not any(raw[52:64] + raw[76:])
    assert parse_header(raw) == HEADER


def test_a_record_is_as_the_page_says() -> None:
    record = BlockRecord(kind=RecordKind.DATA, crc=0x01020304, end=10, durable=4)
    raw = encode_record(record, salted=salt(ID))
    assert len(raw) == 32
    assert raw[:4] == b"\1\0\0\0"
    assert struct.unpack_from("<IQQ", raw, 4) == (0x01020304, 10, 4)
    begun = crc32c(struct.pack("<Q", ID))
    assert struct.unpack_from("<I", raw, 28) == (crc32c(raw[:28], begun),)


def test_the_checksum_is_over_end_and_crc_of_the_data_records() -> None:
    ends = records(3, 9)
    raw = b"".join(struct.pack("<QI", each.end, each.crc) for each in ends)
    assert checksum(ends) == crc32c(raw)
    assert checksum(parse(encode(HEADER, ends, seal=True), block_id=ID).records) == crc32c(raw)


@given(st.lists(st.integers(1, PIECE_BYTES), max_size=20), st.booleans())
def test_what_was_written_is_read_back(sizes: list[int], sealed: bool) -> None:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    every = records(*ends)
    found = parse(encode(HEADER, every, seal=sealed), block_id=ID)
    assert (found.header, found.records) == (HEADER, tuple(every))
    assert (found.seal is not None) == sealed
    assert found.length == sum(sizes)


def test_every_flipped_bit_of_a_record_ends_the_reading_there() -> None:
    raw = encode(HEADER, records(1, 2, 3), seal=False)
    second = HEADER_BYTES + RECORD_BYTES
    for bit in range(RECORD_BYTES * 8):
        bad = bytearray(raw)
        bad[second + bit // 8] ^= 1 << bit % 8
        found = parse(bad, block_id=ID)
        assert (found.length, found.lost_end) == (1, 3)


def test_every_flipped_bit_of_the_identity_hides_the_header() -> None:
    raw = encode_header(HEADER)
    for bit in range(52 * 8):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << bit % 8
        assert parse_header(bad) is None


def test_a_damaged_acknowledged_length_is_not_believed() -> None:
    for bit in range(12 * 8):
        bad = bytearray(encode_header(HEADER))
        bad[64 + bit // 8] ^= 1 << bit % 8
        header = parse_header(bad)
        assert header is not None
        assert header.acknowledged is None


def test_records_of_another_block_are_not_believed() -> None:
    assert parse(encode(HEADER, records(1), seal=True), block_id=ID + 1).records == ()


@pytest.mark.parametrize(
    "record",
    [
        BlockRecord(
            kind=RecordKind.DATA, crc=0, end=5, durable=0
        ),  # ends where the one before ends
        BlockRecord(kind=RecordKind.DATA, crc=0, end=4, durable=0),
        BlockRecord(kind=RecordKind.DATA, crc=0, end=6 + PIECE_BYTES, durable=0),
        BlockRecord(kind=RecordKind.DATA, crc=0, end=6, durable=6),  # durable before it was written
        BlockRecord(kind=RecordKind.SEAL, crc=0, end=6, durable=0),
    ],
)
def test_a_record_that_does_not_follow_ends_the_reading(record: BlockRecord) -> None:
    raw = encode(HEADER, records(5), seal=False) + encode_record(record, salted=salt(ID))
    found = parse(raw, block_id=ID)
    assert (found.length, found.seal) == (5, None)


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_an_unknown_kind_ends_the_reading(kind: int) -> None:
    body = struct.pack("<B3xIQQ4x", kind, 0, 5, 0)
    raw = encode_header(HEADER) + body + struct.pack("<I", crc32c(body, salt(ID)))
    assert parse(raw, block_id=ID).records == ()


def test_marks_after_a_bad_record_are_remembered() -> None:
    raw = bytearray(encode(HEADER, records(1, 2, 3, 4, durable=3), seal=False))
    raw[HEADER_BYTES + RECORD_BYTES] ^= 1
    found = parse(raw, block_id=ID)
    assert (found.length, found.durable) == (1, 0)
    assert (found.lost_end, found.lost_durable) == (4, 3)


def test_any_bytes_can_be_read_without_an_error() -> None:
    rng = random.Random(5)
    good = encode(HEADER, records(1, 2, 3), seal=True)
    for _ in range(300):
        raw = bytearray(good[: rng.randint(0, len(good))])
        for _ in range(rng.randint(0, 3) if raw else 0):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        assert parse(raw, block_id=ID).length <= 3
        parse(rng.randbytes(rng.randint(0, 300)), block_id=ID)
