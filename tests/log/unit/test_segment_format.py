"""Frames byte by byte: they come back as written, and nothing wrong is ever believed."""

from __future__ import annotations

import mmap
import random
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import DataDamaged, StoreUnusable, UsageError
from leasehold.events import Event
from leasehold.events.event import sent_batch
from leasehold.log.producer_states import (
    ProducerState,
    encode_producers,
    newest_producers,
    read_producers,
)
from leasehold.log.segment_format import (
    FRAME_HEADER_BYTES,
    MAX_EPOCH,
    EncodedFrame,
    FrameKind,
    ProducerStamp,
    SegmentHeader,
    encode_events,
    encode_frame,
    encode_segment_header,
    parse_header,
    parse_segment_header,
    read_body,
    read_events,
)

NUMBERS = st.integers(0, 2**62)
HEADER = SegmentHeader(partition=3, base_sequence=5, base_offset=640, created_us=9, epoch=2)
STAMP = ProducerStamp(producer=b"0123456789abcdef", sequence=41)


def _frame(events: list[Event], *, offset: int = 704) -> EncodedFrame:
    return encode_events(
        sent_batch(events),
        base_sequence=100,
        offset=offset,
        enqueued_us=1_234_567,
        epoch=6,
        producer=STAMP,
        base_offset=offset,
    )


@given(st.integers(0, 2**32 - 1), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_segment_header_comes_back(
    partition: int, base_sequence: int, base_offset: int, created_us: int, epoch: int
) -> None:
    header = SegmentHeader(
        partition=partition,
        base_sequence=base_sequence,
        base_offset=base_offset,
        created_us=created_us,
        epoch=epoch,
    )
    assert parse_segment_header(encode_segment_header(header)) == header


def test_every_bit_of_a_segment_header_counts() -> None:
    good = encode_segment_header(HEADER)
    assert len(good) == 64
    for bit in range(len(good) * 8):
        with pytest.raises(DataDamaged):
            parse_segment_header(_flip(good, bit))


def test_a_newer_format_is_refused_and_a_newer_minor_one_is_read() -> None:
    newer = SegmentHeader(
        partition=0, base_sequence=0, base_offset=0, created_us=0, epoch=0, major=2, minor=5
    )
    with pytest.raises(StoreUnusable, match=r"format 2\.5.*reads up to 1\.x"):
        parse_segment_header(encode_segment_header(newer))
    minor = SegmentHeader(
        partition=0, base_sequence=0, base_offset=0, created_us=0, epoch=0, minor=9
    )
    assert parse_segment_header(encode_segment_header(minor)).minor == 9


@given(
    st.binary(max_size=200), NUMBERS, NUMBERS, st.integers(0, 2**64 - 1), st.sampled_from(FrameKind)
)
def test_any_frame_comes_back(
    body: bytes, sequence: int, us: int, number: int, kind: FrameKind
) -> None:
    frame = encode_frame(
        body,
        kind=kind,
        count=3,
        base_sequence=sequence,
        offset=64,
        first_us=us,
        last_us=us + 1,
        epoch=9,
        stamp=ProducerStamp(producer=STAMP.producer, sequence=number),
        link=128,
    )
    data = bytes(64) + frame.joined()
    assert len(data) % 64 == 0
    header = parse_header(data, 64)
    assert header == frame.header
    assert header.stamp == ProducerStamp(producer=STAMP.producer, sequence=number)
    assert header.end == len(data)
    assert bytes(read_body(data, header)) == body


def test_every_bit_of_a_frame_counts() -> None:
    frame = _frame([Event(body=b"x", key="k", properties={"a": "b"})])
    good = frame.joined()
    header = parse_header(good, 0)
    assert good[-1] == 0  # there is padding, and it counts too
    assert header.body_bytes < len(good) - FRAME_HEADER_BYTES
    for bit in range(len(good) * 8):
        bad = _flip(good, bit)
        with pytest.raises(DataDamaged):
            read_events(bad, parse_header(bad, 0))


def _large() -> EncodedFrame:
    events = [
        Event(body=bytes([n % 251]) * n, key=f"k{n}", properties={"n": str(n)}) for n in range(400)
    ]
    return _frame(events)


def test_the_bodies_of_a_large_frame_are_apart_from_the_rest() -> None:
    frame = _large()
    header, data = frame.header, frame.joined()
    at = FRAME_HEADER_BYTES + header.bodies_at
    bodies = data[at : at + header.bodies_bytes]
    assert bodies == b"".join(bytes([n % 251]) * n for n in range(400))
    whole = read_events(data, header)
    cut = read_events(data, header, bodies=False)
    assert cut.schema == whole.schema
    assert cut.column("body").to_pylist() == [b""] * 400
    assert cut.drop_columns("body").equals(whole.drop_columns("body"))
    cut.validate(full=True)


def test_the_second_checksum_is_where_the_format_says_and_of_what_it_says() -> None:
    data = _large().joined()
    at, size, rest = struct.unpack_from("<III", data, 96)
    start = FRAME_HEADER_BYTES + at
    assert rest == crc32c(data[FRAME_HEADER_BYTES:start] + data[start + size :])
    assert data[108:120] == bytes(12)


def test_each_bit_but_those_of_the_bodies_counts_for_who_needs_no_bodies() -> None:
    frame = _large()
    good, header = frame.joined(), frame.header
    assert good[-1] == 0  # padding
    first = FRAME_HEADER_BYTES + header.bodies_at
    last = first + header.bodies_bytes - 1
    rng = random.Random(5)
    inside = [first, last, *(rng.randint(first, last) for _ in range(50))]
    outside = [0, first - 1, last + 1, len(good) - 1]
    outside += [rng.randrange(first) for _ in range(500)]
    outside += [rng.randrange(last + 1, len(good)) for _ in range(500)]
    for byte in inside:
        bad = _flip(good, byte * 8 + 3)
        read_events(bad, parse_header(bad, 0), bodies=False)
        with pytest.raises(DataDamaged):
            read_events(bad, parse_header(bad, 0))
    for byte in outside:
        bad = _flip(good, byte * 8 + 3)
        with pytest.raises(DataDamaged):
            read_events(bad, parse_header(bad, 0), bodies=False)


def test_a_small_frame_is_compared_as_a_whole_for_who_needs_no_bodies() -> None:
    frame = _frame([Event(body=b"x" * 100)])
    assert frame.header.bodies_bytes == 0
    good = frame.joined()
    bad = _flip(good, good.index(b"xxx") * 8)
    with pytest.raises(DataDamaged):
        read_events(bad, parse_header(bad, 0), bodies=False)


def test_a_large_frame_without_bodies_is_compared_as_a_whole() -> None:
    frame = _frame([Event(body=b"", key="k" * 1000)] * 100)
    assert frame.header.bodies_bytes == 0
    found = read_events(frame.joined(), frame.header, bodies=False)
    assert found.column("body").to_pylist() == [b""] * 100


def test_bodies_beyond_the_end_of_their_frame_are_not_believed() -> None:
    frame = encode_frame(
        bytes(1000),
        kind=FrameKind.EVENTS,
        count=1,
        base_sequence=0,
        offset=0,
        first_us=0,
        last_us=0,
        epoch=0,
        bodies=(100, 2000),
    )
    with pytest.raises(DataDamaged, match="checksum"):
        read_body(frame.joined(), frame.header, bodies=False)


def test_more_events_than_usual_are_read_without_bodies() -> None:
    frame = _frame([Event(body=b"abcd")] * 20_000)
    found = read_events(frame.joined(), frame.header, bodies=False)
    found.validate(full=True)
    assert set(found.column("body").to_pylist()) == {b""}


def test_events_are_read_where_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "frame"
    path.write_bytes(_frame([Event(body=b"x" * 100)] * 50).joined())
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    begin = pa.py_buffer(view).address
    batch = read_events(view, parse_header(view, 0))
    buffers = [each for column in batch.columns for each in column.buffers() if each]
    assert all(begin <= each.address < begin + len(view) for each in buffers if each.size)


def test_the_parts_are_not_copied() -> None:
    frame = _frame([Event(body=b"x" * 1000)])
    assert len(frame.parts[0]) == FRAME_HEADER_BYTES
    assert isinstance(frame.parts[1], memoryview)
    assert frame.length == sum(map(len, frame.parts)) == len(frame.joined())


def test_rows_of_a_slice_are_stored_alone() -> None:
    batch = sent_batch(
        [Event(body=b"%d" % n, key=str(n), properties={"n": str(n)}) for n in range(9)]
    )
    part = encode_events(batch.slice(3, 2), base_sequence=0, offset=0, enqueued_us=0, epoch=1)
    found = read_events(part.joined(), part.header)
    assert found.select(["key", "body", "properties"]).to_pylist() == batch.slice(3, 2).to_pylist()


def test_any_number_of_events_is_numbered() -> None:
    count = (1 << 14) + 1
    frame = _frame([Event(body=b"")] * count)
    batch = read_events(frame.joined(), frame.header)
    assert batch.column("sequence_number").to_pylist() == list(range(100, 100 + count))
    assert batch.column("offset").to_pylist() == list(range(704, 704 + count))


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one event"):
        _frame([])


@pytest.mark.parametrize("epoch", [-1, MAX_EPOCH])
def test_an_impossible_epoch_is_refused(epoch: int) -> None:
    batch = sent_batch(Event(body=b""))
    with pytest.raises(UsageError, match="an epoch lies between"):
        encode_events(batch, base_sequence=0, offset=0, enqueued_us=0, epoch=epoch)


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="does not fit"):
        encode_frame(
            b"",
            kind=FrameKind.END,
            count=0,
            base_sequence=2**63,
            offset=0,
            first_us=0,
            last_us=0,
            epoch=0,
        )


def test_a_frame_that_is_cut_short_is_not_believed() -> None:
    good = _frame([Event(body=b"x")]).joined()
    for length in range(len(good)):
        with pytest.raises(DataDamaged):
            read_events(good[:length], parse_header(good[:length], 0))
    with pytest.raises(DataDamaged):
        parse_header(good, -64)


def _sealed(body: bytes, *, kind: int = 1, count: int = 1, claimed: int | None = None) -> bytes:
    """A frame whose checksums are right and whose contents may be nonsense."""
    body += bytes(-len(body) % 64)
    head = bytearray(128)
    size = len(body) if claimed is None else claimed
    struct.pack_into("<4sB3xIIQ", head, 0, b"LHFR", kind, crc32c(body), count, size)
    struct.pack_into("<I4s", head, 120, crc32c(head[:120]), b"RFHL")
    return bytes(head) + body


@pytest.mark.parametrize(
    "bad",
    [
        _sealed(b"this is no Arrow message"),
        _sealed(b""),
        _sealed(bytes(64)),
        _sealed(b"\xff" * 64),
        _sealed(b"", kind=9),
        _sealed(b"", kind=2),
        _sealed(b"", count=0),
        _sealed(b"", claimed=2**40),
        _sealed(read_body(_frame([Event(body=b"x")]).joined(), _frame([Event(body=b"x")]).header)
                .tobytes(), count=2),
    ],
)  # fmt: skip
def test_nonsense_with_a_right_checksum_is_not_believed(bad: bytes) -> None:
    with pytest.raises(DataDamaged):
        read_events(bad, parse_header(bad, 0))


def test_a_frame_out_of_line_is_not_believed() -> None:
    moved = bytes(8) + _frame([Event(body=b"x")]).joined()
    with pytest.raises(DataDamaged, match="not one that Leasehold writes"):
        parse_header(moved, 8)


@given(
    st.dictionaries(
        st.binary(min_size=16, max_size=16),
        st.builds(
            ProducerState,
            last_sequence=NUMBERS,
            stored_as=NUMBERS,
            seen_us=st.integers(0, 2**50),
        ),
        max_size=20,
    ),
    st.integers(0, 25),
)
def test_producers_come_back_and_the_newest_are_kept(
    states: dict[bytes, ProducerState], limit: int
) -> None:
    frame = encode_producers(states, base_sequence=0, offset=0, enqueued_us=1, epoch=1, limit=limit)
    found = read_producers(frame.joined(), frame.header)
    assert found == newest_producers(states, limit=limit)
    assert len(found) == min(limit, len(states))
    lost = [state.stored_as for producer, state in states.items() if producer not in found]
    assert max(lost, default=0) <= min((s.stored_as for s in found.values()), default=2**62)


def test_a_frame_that_is_not_of_producers_is_refused() -> None:
    frame = _frame([Event(body=b"x")])
    with pytest.raises(DataDamaged, match="not one of producers"):
        read_producers(frame.joined(), frame.header)


def _flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)
