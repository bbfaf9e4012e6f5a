"""Segments: reading, seeking, damage, and the bytes of version 1 for good."""

from __future__ import annotations

import base64
import lzma
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.segment_bytes import Assembly

from leasehold.errors import DataDamaged
from leasehold.events import STORED_SCHEMA, Event
from leasehold.log.producer_states import ProducerState
from leasehold.log.segment import Segment, verify
from leasehold.log.segment_format import (
    FrameKind,
    ProducerStamp,
    encode_frame,
    parse_header,
    parse_segment_header,
    read_body,
)

ALICE, BOB = b"alice-0123456789", b"bob---0123456789"


def _small() -> Assembly:
    """All kinds of frames, in as few bytes as possible."""
    made = Assembly(base_sequence=10, base_offset=640)
    made.add_producers({BOB: ProducerState(last_sequence=4, stored_as=9, seen_us=3_000)})
    stamp = ProducerStamp(producer=ALICE, sequence=8)
    made.add([Event(body=b"x", key="k", properties={"a": "b"})], stamp=stamp)
    return made


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(_small().close())
    assert verify(data) == []
    unseen = []
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << (bit % 8)
        if not verify(data):
            unseen.append(bit)
        data[bit // 8] ^= 1 << (bit % 8)
    assert unseen == []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """An event as a brute-force model knows it."""

    sequence: int
    offset: int
    at_us: int
    key: str | None
    body: bytes


KEYS = [None, "a", "b", "c"]
FRAMES = st.lists(
    st.tuples(
        st.integers(0, 3),  # how much later than the frame before
        st.lists(st.tuples(st.sampled_from(KEYS), st.binary(max_size=90)), min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=8,
)


def _model(frames: list[tuple[int, list[tuple[str | None, bytes]]]]) -> tuple[Assembly, list[_Row]]:
    made, rows, at_us = Assembly(base_sequence=7, base_offset=1280, region_bytes=2048), [], 100
    for later, events in frames:
        at_us += later
        offset, sequence = 1280 + len(made.data), made.next_sequence
        made.add([Event(body=body, key=key) for key, body in events], at_us=at_us)
        rows += [
            _Row(sequence=sequence + n, offset=offset + n, at_us=at_us, key=key, body=body)
            for n, (key, body) in enumerate(events)
        ]
    return made, rows


@settings(max_examples=40)
@given(FRAMES, st.booleans(), st.data())
def test_seeking_agrees_with_looking_at_everything(
    frames: list[tuple[int, list[tuple[str | None, bytes]]]], closed: bool, data: st.DataObject
) -> None:
    made, rows = _model(frames)
    segment = Segment(made.close() if closed else made.data)
    assert segment.next_sequence == rows[-1].sequence + 1
    for name, seek in (
        ("sequence", segment.seek_sequence),
        ("offset", segment.seek_offset),
        ("at_us", segment.seek_time),
    ):
        near = [getattr(row, name) + n for row in rows for n in (-1, 0, 1)]
        wanted = data.draw(st.sampled_from(near), label=name)
        expected = [row.sequence for row in rows if getattr(row, name) >= wanted][:1]
        spot = seek(wanted)
        assert ([spot.sequence] if spot else []) == expected
        if spot:
            batch = next(segment.batches(spot.sequence, position=spot.position))
            assert batch.first_sequence == spot.sequence
    key = data.draw(st.sampled_from(["a", "b", "c", "d"]))
    since = data.draw(st.sampled_from([row.sequence + 1 for row in rows]))
    found = [each.body for batch in segment.find(key, since) for each in batch]
    assert found == [row.body for row in rows if row.key == key and row.sequence >= since]


@settings(max_examples=40)
@given(FRAMES, st.integers(0, 90), st.integers(0, 90))
def test_any_range_can_be_read(
    frames: list[tuple[int, list[tuple[str | None, bytes]]]], start: int, until: int
) -> None:
    made, rows = _model(frames)
    read = [each for batch in Segment(made.data).batches(start, until) for each in batch]
    expected = [row for row in rows if start <= row.sequence < until]
    assert [(e.sequence_number, e.offset, e.key, e.body) for e in read] == [
        (row.sequence, row.offset, row.key, row.body) for row in expected
    ]
    assert verify(made.data) == []
    assert verify(made.close()) == []


def test_a_cut_segment_ends_with_its_last_whole_frame() -> None:
    made = Assembly()
    ends = [64]
    for n in range(3):
        made.add([Event(body=bytes([n]) * n)])
        ends.append(len(made.data))
    for length in range(64, len(made.data) + 1):
        segment = Segment(made.data, length)
        whole = sum(end <= length for end in ends) - 1
        assert [batch.first_sequence for batch in segment.batches()] == list(range(whole))
        assert segment.next_sequence == whole
        assert verify(made.data, length, open_end=True) == []
        assert bool(verify(made.data, length)) == (length not in ends)
    with pytest.raises(DataDamaged, match="it was cut"):
        Segment(made.data, 63)


def test_a_segment_grows_under_its_reader() -> None:
    made = Assembly()
    made.add(Event(body=b"0"))
    segment = Segment(bytes(made.data))
    first = next(segment.batches())
    assert segment.seek_sequence(1) is None
    made.add(Event(body=b"1", key="k"))
    segment.extend(bytes(made.data))
    spot = segment.seek_sequence(1)
    assert spot is not None
    assert [each.body for each in next(segment.batches(1, position=spot.position))] == [b"1"]
    assert not segment.ended
    segment.extend(made.close())
    assert segment.ended
    assert segment.index.regions_with_key("nobody") == []
    assert [each.body for each in first] == [b"0"]


def test_producers_are_those_of_the_start_and_the_frames_after_it() -> None:
    made = _small()
    made.add([Event(body=b"")] * 3, at_us=6_000, stamp=ProducerStamp(producer=ALICE, sequence=9))
    made.add(Event(body=b""))  # from nobody in particular
    expected = {
        ALICE: ProducerState(last_sequence=11, stored_as=13, seen_us=6_000, gaps=((0, 8),)),
        BOB: ProducerState(last_sequence=4, stored_as=9, seen_us=3_000),
    }
    assert Segment(made.data).producers() == expected
    assert Segment(made.close()).producers() == expected
    assert list(Segment(made.data).producers(limit=1)) == [ALICE]


def test_the_state_of_producers_is_bounded_on_the_way() -> None:
    made = Assembly()
    for n in range(30):
        made.add(Event(body=b""), stamp=ProducerStamp(producer=b"%016d" % n, sequence=0))
    kept = Segment(made.data).producers(limit=4)
    assert sorted(kept) == [b"%016d" % n for n in range(26, 30)]


def test_reading_stops_at_damage_and_says_where() -> None:
    made = Assembly()
    frames = [made.add(Event(body=b"x" * 50)) for _ in range(3)]
    second = len(made.data) - frames[2].length - frames[1].length
    made.data[made.data.index(b"xxxx", second)] ^= 1
    batches = Segment(made.data).batches()
    assert next(batches).first_sequence == 0
    with pytest.raises(DataDamaged, match=f"the frame at byte {second}.*checksum"):
        next(batches)
    assert len(list(Segment(made.data).batches(check=False))) == 3


def test_verify_goes_on_after_damage() -> None:
    made = Assembly()
    frames = [made.add(Event(body=b"x" * 50)) for _ in range(6)]
    made.close()
    size = frames[0].length
    made.data[64 + size + 5] ^= 1  # the header of the second
    made.data[64 + 3 * size + 300] ^= 1  # the body of the fourth
    findings = verify(made.data)
    assert len(findings) == 2
    assert f"at byte {64 + size}" in findings[0]
    assert f"at byte {64 + 3 * size}" in findings[1]


def test_a_frame_from_another_place_is_not_believed() -> None:
    made = Assembly()
    first = made.add(Event(body=b"x")).joined()
    made.data += first
    with pytest.raises(DataDamaged, match="written for another place"):
        list(Segment(made.data).batches())
    with pytest.raises(DataDamaged, match="written for another place"):
        Segment(made.data).seek_sequence(1)
    assert "wrong offset" in verify(made.data)[0]


def test_a_gap_between_sequence_numbers_is_found() -> None:
    made = Assembly()
    made.add(Event(body=b"x"))
    made.next_sequence += 1
    made.add(Event(body=b"x"))
    assert [each for each in verify(made.data) if "begins at 2 and not 1" in each]


def test_columns_that_contradict_their_header_are_found() -> None:
    made = Assembly()
    made.add(Event(body=b"x"))
    columns = next(Segment(made.data).batches()).arrow.to_pydict()
    for name, wrong in (("sequence_number", 5), ("offset", 5), ("epoch", 5), ("enqueued_at", 5)):
        arrow = pa.RecordBatch.from_pydict({**columns, name: [wrong]}, schema=STORED_SCHEMA)
        frame = encode_frame(
            arrow.serialize(),
            kind=FrameKind.EVENTS,
            count=1,
            base_sequence=0,
            offset=64,
            first_us=5_000,
            last_us=5_000,
            epoch=7,
        )
        findings = verify(bytes(made.data[:64]) + frame.joined())
        assert findings == ["the frame at byte 64: its columns say something else than its header"]


def test_bodies_that_are_not_where_the_header_says_are_found() -> None:
    made = Assembly()
    frame = made.add([Event(body=b"x" * 1000, key="k")] * 100)
    header = frame.header
    for wrong in ((header.bodies_at - 8, header.bodies_bytes + 8), (0, header.body_bytes)):
        moved = encode_frame(
            frame.parts[1],
            kind=FrameKind.EVENTS,
            count=header.count,
            base_sequence=header.base_sequence,
            offset=header.offset,
            first_us=header.first_us,
            last_us=header.last_us,
            epoch=header.epoch,
            bodies=wrong,
        )
        assert verify(bytes(made.data[:64]) + moved.joined()) == [
            "the frame at byte 64: the bodies of its events are not where its header says"
        ]
    assert verify(made.data, open_end=True) == []


def test_an_offset_inside_a_frame_is_found_to_the_event() -> None:
    made = Assembly(base_sequence=5, base_offset=640)
    frame = made.add([Event(body=b"", key="a")] * 4)
    segment = Segment(made.data)
    spot = segment.seek_offset(frame.header.offset + 2)
    assert spot is not None
    assert spot.sequence == 7
    assert segment.seek_offset(frame.header.offset + 4) is None
    assert [batch.first_sequence for batch in segment.find("a", 7)] == [7]


def test_keys_that_are_not_text_are_found() -> None:
    made = Assembly()
    made.add(Event(body=b"x", key="k"))
    arrow = next(Segment(made.data).batches()).arrow
    not_text = pa.Array.from_buffers(pa.utf8(), 1, pa.array([b"\xff"]).buffers())
    arrow = arrow.set_column(3, STORED_SCHEMA.field("key"), not_text)
    frame = encode_frame(
        arrow.serialize(),
        kind=FrameKind.EVENTS,
        count=1,
        base_sequence=0,
        offset=64,
        first_us=5_000,
        last_us=5_000,
        epoch=7,
    )
    assert len(verify(bytes(made.data[:64]) + frame.joined())) == 1


def test_an_index_of_other_frames_is_found() -> None:
    made, other = Assembly(), Assembly()
    made.add(Event(body=b"x", key="a"))
    other.add(Event(body=b"x", key="b"))
    tail = other.close()[len(made.data) :]
    assert any("index does not fit" in each for each in verify(bytes(made.data) + tail))


def test_frames_after_the_end_and_a_lone_end_mark_are_found() -> None:
    made = Assembly()
    data = made.close()
    made.builder.index.end = len(data)
    made.add(Event(body=b"x"))
    assert any("after the end mark" in each for each in verify(made.data))
    lone = encode_frame(
        b"", kind=FrameKind.END, count=0, base_sequence=0, offset=64, first_us=0, last_us=0, epoch=0
    )
    assert any("does not point" in each for each in verify(data[:64] + lone.joined()))


def test_something_else_is_no_segment() -> None:
    assert "no segment" in verify(b"x" * 640)[0]
    assert "cut" in verify(b"")[0]


GOLDEN = """
T>t=p0RR90|NsC0{{SWu2CJ?nOpsee#y2)%FO&UaV~vVA`e#gx)i_y#1VNOZGR9Pmw2f)$%q-fa+b&wi#(nGEKS_hhhDot|5
>*<|MIJBwK5N+(;G2>{Mf7*vBB^YTxL8#hz#T%=dr6UDtD^%Bk!`4f*Bb)TY6-{uW)@?oOv6a2X4_5OB{9jnCrD(0=;Sue3i
gs$V}=dm-MIvn6wVsfKci#=2St*&U)FX$?FZXk(7OU{)S?3j8-v?xYIW2GE>se*c|H*kXM!7Gz2Utjl>RO&e2C&SjsQFZ8bu
5@8?ab)?X!pQAPyewN2KhmN2&<x>cCx8e<nd%%4iXw97!incu?Q~@SI+1$DF?vInzszv02*4KrDd${_INc3?|DVAO1fRUsXG
xMUxGp$BW`Z|JOy$6DH<YA#pux*FjvxfeoU4Qa@PJu-~Nss!mLfK*YoINDgsyhl<Ht<!D2tswyZP5#Ks@UMX+w966$NUkJ6p
f4$EbpDlNr-Zb(@*Vev!OliMoOz?VMKQoK0*A=3*qLt}u5XnycK{)i%?93-8h^B>T*i>)>zQ-GML<ZFLlFxYFXfidc#iBBby
<lO8V~P8m(n#dghzfN9CHzSfGy
"""


def test_a_segment_of_version_1_is_read_for_good() -> None:
    """These bytes were written by the first version; every later one reads them the same."""
    data = lzma.decompress(base64.b85decode(GOLDEN.replace("\n", "")))
    assert verify(data) == []
    segment = Segment(data)
    assert (segment.partition, segment.ended, segment.next_sequence) == ("3", True, 13)
    events = [each for batch in segment.batches() for each in batch]
    assert [(e.sequence_number, e.offset, e.key, e.body, e.epoch) for e in events] == [
        (10, 896, "k", b"x", 7),
        (11, 1792, None, b"", 7),
        (12, 1793, "Größe", b"\xff\x00", 7),
    ]
    assert [dict(each.properties) for each in events] == [{"a": "b"}, {}, {"ü": "日本"}]
    assert events[0].enqueued_at is not None
    assert events[0].enqueued_at.isoformat() == "1970-01-01T00:00:00.005000+00:00"
    assert segment.producers() == {
        # Version 1 had only the highest number: what is stored below it is not known.
        ALICE: ProducerState(last_sequence=10, stored_as=12, seen_us=6_000, known_from=8),
        BOB: ProducerState(last_sequence=4, stored_as=9, seen_us=3_000, known_from=5),
    }
    assert [len(batch) for batch in segment.find("Größe")] == [1]


def _golden() -> bytes:
    """What the golden bytes were made of."""
    made = _small()
    made.add(
        [Event(body=b""), Event(body=b"\xff\x00", key="Größe", properties={"ü": "日本"})],
        at_us=6_000,
        stamp=ProducerStamp(producer=ALICE, sequence=9),
    )
    return made.close()


def test_frames_are_still_written_as_in_version_1() -> None:
    """Around the same bodies come the same bytes; Arrow may lay out its own ones as it likes."""
    data = lzma.decompress(base64.b85decode(GOLDEN.replace("\n", "")))
    position, kinds = 64, []
    while position < len(data):
        header = parse_header(data, position)
        frame = encode_frame(
            read_body(data, header),
            kind=header.kind,
            count=header.count,
            base_sequence=header.base_sequence,
            offset=header.offset,
            first_us=header.first_us,
            last_us=header.last_us,
            epoch=header.epoch,
            stamp=header.stamp,
            link=header.link,
        )
        assert frame.joined() == data[position : header.end]
        kinds.append(int(header.kind))
        position = header.end
    assert kinds == [2, 1, 1, 3, 4]
    old, new = parse_segment_header(data), parse_segment_header(_golden())
    assert (old.minor, new.minor) == (0, 2)
    assert replace(old, minor=2) == new


def test_a_frame_of_version_1_0_is_read_without_its_bodies_too() -> None:
    segment = Segment(lzma.decompress(base64.b85decode(GOLDEN.replace("\n", ""))))
    found = [segment.read(each, bodies=False) for each in segment.frames() if each.kind == 1]
    assert [(event.key, event.body) for batch in found for event in batch] == [
        ("k", b""),
        (None, b""),
        ("Größe", b""),
    ]
