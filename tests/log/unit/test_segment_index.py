"""The sparse index: it says where to begin to look, and never leads past what is wanted."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.segment_bytes import Assembly

from leasehold.errors import UsageError
from leasehold.events import Event
from leasehold.events.event import sent_batch
from leasehold.log import segment as segment_module
from leasehold.log.segment import IndexBuilder, Segment, SegmentIndex
from leasehold.log.segment_format import FrameHeader, View, parse_header


def _assembly(*, frames: int = 12, region_bytes: int = 4096) -> Assembly:
    """Frames of three events; frame n has the keys n and n+1, and the time 1000 n."""
    made = Assembly(base_sequence=50, base_offset=6400, region_bytes=region_bytes)
    for n in range(frames):
        events = [Event(body=b"x" * 300, key=key) for key in (f"k{n}", f"k{n + 1}", None)]
        made.add(events, at_us=1000 * n)
    return made


def test_a_stored_index_is_the_one_that_was_built() -> None:
    made = _assembly()
    data = made.close()
    loaded = SegmentIndex.load(memoryview(data), made.header)
    assert loaded is not None
    built = made.builder.index
    assert len(loaded) == len(built) > 2
    for name in ("positions", "sequences", "first_us", "last_us", "next_sequence", "region_bytes"):
        assert getattr(loaded, name) == getattr(built, name)
    assert [list(each or ()) for each in loaded.hashes] == built.hashes


def test_a_walked_index_has_the_same_regions_and_knows_no_keys() -> None:
    made = _assembly(region_bytes=256 * 1024)
    made.add([Event(body=b"y" * 1000)] * 300)
    made.add([Event(body=b"y")])
    built = made.builder.index
    walked = SegmentIndex.scan(made.data, made.header)
    assert (walked.positions, walked.sequences) == (built.positions, built.sequences)
    assert len(walked) == 2
    assert walked.end == len(made.data)
    assert [(r.start, r.end) for r in walked.regions_with_key("nobody")] == [
        (64, walked.positions[1]),
        (walked.positions[1], len(made.data)),
    ]


def test_an_index_grows_with_its_segment() -> None:
    made = _assembly(frames=1)
    index = SegmentIndex.scan(made.data, made.header)
    for n in range(40):
        made.add([Event(body=b"z" * 50_000)], at_us=n)
        half = len(made.data) - 100
        index.extend(made.data, half)  # half a frame is left for later
        assert index.next_sequence == made.next_sequence - 1
        index.extend(made.data)
        assert index.next_sequence == made.next_sequence
    whole = SegmentIndex.scan(made.data, made.header)
    assert (index.positions, index.last_us) == (whole.positions, whole.last_us)


def test_a_key_is_looked_for_only_where_it_may_be() -> None:
    made = _assembly()
    built = made.builder.index
    made.close()
    assert built.regions_with_key("nobody") == []
    found = built.regions_with_key("k0")
    assert [(each.start, each.end) for each in found] == [(64, built.positions[1])]


def test_an_open_region_may_hold_any_key() -> None:
    made = _assembly(frames=1, region_bytes=1 << 20)
    assert len(made.builder.index.regions_with_key("nobody")) == 1


def test_a_segment_without_events_has_an_empty_index() -> None:
    made = Assembly()
    data = made.close()
    index = SegmentIndex.load(memoryview(data), made.header)
    assert index is not None
    assert len(index) == 0
    assert index.find_sequence(0) is index.find_offset(0) is index.find_time(0) is None
    assert index.regions_with_key("a") == []


def test_times_that_go_back_are_found_all_the_same() -> None:
    made = Assembly(region_bytes=1)
    for at_us in (10, 50, 20, 30, 60):
        made.add(Event(body=b"x"), at_us=at_us)
    segment = Segment(made.close())
    found = [segment.seek_time(at_us) for at_us in (5, 10, 11, 25, 50, 51, 60, 61)]
    assert [spot and spot.sequence for spot in found] == [0, 0, 1, 1, 1, 4, 4, None]


def test_the_keys_of_events_must_be_given() -> None:
    made = _assembly(frames=1)
    builder = IndexBuilder(made.header)
    with pytest.raises(UsageError, match="give the key column"):
        builder.add(parse_header(made.data, 64))


@pytest.mark.parametrize("back", [1, 129, 200])
def test_a_damaged_index_is_left_aside(back: int) -> None:
    data = bytearray(_assembly().close())
    data[-back] ^= 1
    if back == 1:  # the end mark itself: there is no index to be found
        assert SegmentIndex.load(data, Segment(data).header) is None
        return
    segment = Segment(data)
    assert SegmentIndex.load(data, segment.header) is None
    spot = segment.seek_sequence(61)
    assert spot is not None
    assert spot.sequence == 61


def test_the_bytes_of_an_event_are_never_taken_for_an_end_mark() -> None:
    """Whoever chooses a body must not be able to choose where readers begin."""
    ended = _assembly().close()
    made = Assembly(base_sequence=50, base_offset=6400)
    made.add(Event(body=ended[-128:], key="x", properties={"x": ended[-128:].hex()}))
    made.data += b""
    for size in range(64):
        frame = made.add(Event(body=bytes(size) + ended[-128:]))
        assert SegmentIndex.load(made.data, made.header) is None
        assert not Segment(made.data).ended
        assert frame.joined()[-4:] != ended[-4:]


def test_seeking_in_a_big_segment_reads_few_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Assembly()
    batch = sent_batch(pa.table({"body": [b"x" * 1000] * 40, "key": ["a"] * 40}))
    rare = sent_batch(Event(body=b"", key="rare"))
    for n in range(600):  # 25 MB
        made.add(rare if n == 400 else batch, at_us=n)
    read: list[int] = []

    def counted(view: View, position: int) -> FrameHeader:
        read.append(position)
        return parse_header(view, position)

    segment = Segment(made.close())
    assert len(segment.index) > 80
    monkeypatch.setattr(segment_module, "parse_header", counted)
    frames_in_region = 8
    for n in range(0, 600, 37):
        wanted = 40 * n + 3
        for spot in (segment.seek_sequence(wanted), segment.seek_time(n)):
            assert spot is not None
        assert len(read) <= 2 * frames_in_region
        read.clear()
    assert [len(each) for each in segment.find("rare")] == [1]
    assert len(read) <= frames_in_region + 1
    read.clear()
    assert list(segment.find("nobody")) == []
    assert read == []
