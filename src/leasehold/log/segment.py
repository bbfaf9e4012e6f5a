"""One segment of a partition: reading it in place, its sparse index, and its verification.

A ``Segment`` reads mapped bytes without copying: the columns of its batches point into them. Part
of a frame at the end, as a crash or a running writer leaves it, is ignored. Seeking reads the index
and a few headers; a segment without an index is scanned once, from header to header, and later only
over what is new.

The index groups frames of events into regions of at least 256 KiB. For each region it has the
position, the first sequence number, the first and last time, and the hashes of its keys. It is only
an optimisation: without one the headers are scanned, and a damaged one is ignored.
``docs/log-format.md`` defines its bytes.

``verify`` checks every checksum, and that the parts agree: sequence numbers and offsets without
gaps, columns with their headers, the index with the frames. After damage it continues with the next
frame it finds, so that one finding does not hide another.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.errors import DataDamaged, StoreUnusable, UsageError
from leasehold.events.event import EventBatch
from leasehold.events.keys import key_hash, sorted_hashes
from leasehold.log.producer_states import (
    DEFAULT_LIMIT,
    ProducerStates,
    newest_producers,
    note_producer,
    read_producers,
)
from leasehold.log.segment_format import (
    ALIGNMENT_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    EncodedFrame,
    FrameHeader,
    FrameKind,
    bodies_in,
    encode_frame,
    parse_header,
    parse_segment_header,
    read_body,
    read_events,
    rising,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from leasehold.log.segment_format import SegmentHeader, View

REGION_BYTES = 256 * 1024
_HEAD = struct.Struct("<IIQ")
_ROW = struct.Struct("<qqqqII")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRegion:
    """Part of a segment, from the frame at ``start`` up to the byte ``end``."""

    start: int
    end: int


class SegmentIndex:
    """The regions of a segment, found in it (``load``) or walked together (``scan``)."""

    def __init__(self, segment: SegmentHeader, *, region_bytes: int = REGION_BYTES) -> None:
        self.segment = segment
        self.region_bytes = region_bytes
        self.end = SEGMENT_HEADER_BYTES  # up to here everything is known
        self.next_sequence = segment.base_sequence
        self.positions: list[int] = []
        self.sequences: list[int] = []
        self.first_us: list[int] = []
        self.last_us: list[int] = []
        self.hashes: list[Sequence[int] | None] = []  # None: not computed
        self._latest_us: list[int] = []  # the highest time up to each region, which never falls
        self.starts_region = True

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def load(cls, view: View, segment: SegmentHeader) -> SegmentIndex | None:
        """Return the index at the end of a segment; None if there is none, or not a sound one."""
        try:
            mark = parse_header(view, len(view) - FRAME_HEADER_BYTES)
            if mark.kind is not FrameKind.END or mark.offset != segment.base_offset + mark.position:
                return None
            header = parse_header(view, mark.link)
            if header.kind is not FrameKind.INDEX or header.end != mark.position:
                return None
            return cls._decode(read_body(view, header), header, segment)
        except DataDamaged:
            return None

    @classmethod
    def scan(cls, view: View, segment: SegmentHeader) -> SegmentIndex:
        """Build the index from the headers; part of a frame at the end is left for later."""
        index = cls(segment)
        index.extend(view)
        return index

    def extend(self, view: View, length: int | None = None) -> None:
        """Scan what was added since."""
        length = len(view) if length is None else length
        while self.end + FRAME_HEADER_BYTES <= length:
            header = parse_header(view, self.end)
            if header.offset != self.segment.base_offset + self.end:
                raise DataDamaged(f"the frame at byte {self.end} was written for another place")
            if header.end > length:
                return
            self.note(header)

    def note(self, header: FrameHeader) -> None:
        """Take the next frame into account."""
        position = header.offset - self.segment.base_offset
        self.end = position + header.length
        if header.kind is not FrameKind.EVENTS:
            return
        self.next_sequence = header.next_sequence
        if self.starts_region:
            self._open(position, header.base_sequence, header.first_us, header.last_us)
        self.first_us[-1] = min(self.first_us[-1], header.first_us)
        self.last_us[-1] = max(self.last_us[-1], header.last_us)
        self._latest_us[-1] = max(self._latest_us[-1], header.last_us)
        self.starts_region = self.end - self.positions[-1] >= self.region_bytes

    def find_sequence(self, sequence: int) -> int | None:
        """Return where to begin in order to find the first event not before ``sequence``."""
        if sequence >= self.next_sequence:
            return None
        return self.positions[max(bisect_right(self.sequences, sequence) - 1, 0)]

    def find_offset(self, offset: int) -> int | None:
        """Return where to begin in order to find the first event not before ``offset``."""
        if not self.positions or offset - self.segment.base_offset >= self.end:
            return None
        before = bisect_right(self.positions, offset - self.segment.base_offset) - 1
        return self.positions[max(before, 0)]

    def find_time(self, enqueued_us: int) -> int | None:
        """Return where to begin in order to find the first event not before this time."""
        found = bisect_left(self._latest_us, enqueued_us)
        return self.positions[found] if found < len(self.positions) else None

    def regions_with_key(self, key: str) -> list[IndexRegion]:
        """Return the regions that may hold events with this key; all others do not."""
        wanted = key_hash(key)
        ends = [*self.positions, self.end][1:]
        return [
            IndexRegion(start=start, end=end)
            for start, end, hashes in zip(self.positions, ends, self.hashes, strict=True)
            if hashes is None or _holds(hashes, wanted)
        ]

    def _open(self, position: int, sequence: int, first_us: int, last_us: int) -> None:
        latest_us = max(self._latest_us[-1], last_us) if self._latest_us else last_us
        self.positions.append(position)
        self.sequences.append(sequence)
        self.first_us.append(first_us)
        self.last_us.append(last_us)
        self._latest_us.append(latest_us)
        self.hashes.append(None)

    @classmethod
    def _decode(
        cls, body: memoryview, header: FrameHeader, segment: SegmentHeader
    ) -> SegmentIndex | None:
        if len(body) < _HEAD.size:
            return None
        count, region_bytes, hashes_count = _HEAD.unpack_from(body)
        rows_end = _HEAD.size + count * _ROW.size
        if count != header.count or len(body) != rows_end + 4 * hashes_count:
            return None
        index = cls(segment, region_bytes=region_bytes)
        hashes = body[rows_end:].cast("I")
        for position, sequence, first_us, last_us, first, many in _ROW.iter_unpack(
            body[_HEAD.size : rows_end]
        ):
            index._open(position, sequence, first_us, last_us)
            index.hashes[-1] = hashes[first : first + many]
        index.end = header.position
        index.next_sequence = header.base_sequence
        return index


class IndexBuilder:
    """The index of a segment that is being written, with its keys."""

    def __init__(self, segment: SegmentHeader, *, region_bytes: int = REGION_BYTES) -> None:
        self.index = SegmentIndex(segment, region_bytes=region_bytes)
        self._keys: list[pa.Array] = []

    def add(self, header: FrameHeader, keys: pa.Array | None = None) -> None:
        """Take the next frame into account; ``keys`` is the key column of its events."""
        if header.kind is not FrameKind.EVENTS:
            self.index.note(header)
            return
        if keys is None:
            raise UsageError("give the key column with a frame of events: the index needs it")
        self.index.note(header)
        self._keys.append(keys)
        if self.index.starts_region:  # the next frame does: this region is over
            self._finish()

    def body(self) -> bytes:
        """Return the bytes of the index, with the keys of all regions."""
        if self._keys:
            self._finish()
        return _body(self.index)

    def encode(self, *, now_us: int, epoch: int) -> EncodedFrame:
        """Return the index and the end mark, to be written after the last frame."""
        segment, index = self.index.segment, self.index

        def frame(
            kind: FrameKind, body: bytes, *, position: int, count: int, link: int
        ) -> EncodedFrame:
            return encode_frame(
                body,
                kind=kind,
                count=count,
                base_sequence=index.next_sequence,
                offset=segment.base_offset + position,
                first_us=now_us,
                last_us=now_us,
                epoch=epoch,
                link=link,
                base_offset=segment.base_offset,
            )

        end = index.end
        made = frame(FrameKind.INDEX, self.body(), position=end, count=len(index), link=0)
        mark = frame(FrameKind.END, b"", position=end + made.length, count=0, link=end)
        return EncodedFrame(
            header=made.header, parts=made.parts + mark.parts, length=made.length + mark.length
        )

    def _finish(self) -> None:
        """Give the last region its keys."""
        self.index.hashes[-1] = sorted_hashes(self._keys)
        self._keys = []


def index_region_bytes(body: View) -> int:
    """Return the size of the regions of an encoded index."""
    if len(body) < _HEAD.size:
        raise DataDamaged("the index is too short to be one")
    return int(_HEAD.unpack_from(body)[1])


def _body(index: SegmentIndex) -> bytes:
    rows, hashes, first = [], [], 0
    columns = (index.positions, index.sequences, index.first_us, index.last_us, index.hashes)
    for position, sequence, first_us, last_us, known in zip(*columns, strict=True):
        many = len(known or ())
        rows.append(_ROW.pack(position, sequence, first_us, last_us, first, many))
        hashes.append(struct.pack(f"<{many}I", *(known or ())))
        first += many
    return b"".join([_HEAD.pack(len(rows), index.region_bytes, first), *rows, *hashes])


def _holds(hashes: Sequence[int], wanted: int) -> bool:
    at = bisect_left(hashes, wanted)
    return at < len(hashes) and hashes[at] == wanted


def verify(view: View, length: int | None = None, *, open_end: bool = False) -> list[str]:
    """Return all findings about a segment as text; an empty list if it is sound.

    With ``open_end`` part of a frame at the end is allowed: a crash, or a running writer, leaves
    one behind.
    """
    view = memoryview(view)[:length]
    try:
        segment = parse_segment_header(view)
    except (DataDamaged, StoreUnusable) as error:
        return [str(error)]
    return _Examination(view, segment).run(open_end=open_end)


def count_lost_events(kept: View, damaged: Iterable[View]) -> int | None:
    """Return how many events followed the ``kept`` part of a segment; None if that is not known.

    ``damaged`` are copies of the bytes after it, in which frames are looked for whose headers are
    sound. It is the least number: headers of later frames may be lost too.
    """
    try:
        segment = Segment(kept)
        frames = list(segment.frames())
    except (DataDamaged, StoreUnusable):
        return None
    start = frames[-1].end if frames else SEGMENT_HEADER_BYTES
    next_sequence = frames[-1].next_sequence if frames else segment.header.base_sequence
    highest = next_sequence
    for copy in damaged:
        rest = bytes(memoryview(kept)[start:]) + bytes(copy)
        for position in range(0, len(rest), ALIGNMENT_BYTES):
            with suppress(DataDamaged):
                header = parse_header(rest, position)
                if header.offset == segment.header.base_offset + start + position:
                    highest = max(highest, header.next_sequence)
    return highest - next_sequence or None


class _Examination:
    """One pass over a segment; collects ``findings``."""

    def __init__(self, view: memoryview, segment: SegmentHeader) -> None:
        self._view = view
        self._segment = segment
        self.findings: list[str] = []
        self._next_sequence = segment.base_sequence
        self._frames: list[tuple[FrameHeader, pa.Array | None]] = []
        self._damaged = False

    def run(self, *, open_end: bool) -> list[str]:
        position, length, last = SEGMENT_HEADER_BYTES, len(self._view), FrameKind.EVENTS
        while position < length:
            try:
                header = self._header(position)
            except DataDamaged as error:
                if position + FRAME_HEADER_BYTES > length:
                    self._check_torn_end(position, open_end=open_end)
                    break
                self._report(str(error))
                position = self._next_frame(position)
                continue
            if header.end > length:
                self._check_torn_end(position, open_end=open_end)
                break
            if last is FrameKind.END:
                self._report(f"the frame at byte {position} lies after the end mark")
            self._frame(header)
            position, last = header.end, header.kind
        return self.findings

    def _report(self, finding: str) -> None:
        self._damaged = True
        self.findings.append(finding)

    def _check_torn_end(self, position: int, *, open_end: bool) -> None:
        if not open_end:
            self._report(f"the last {len(self._view) - position} bytes are only part of a frame")

    def _header(self, position: int) -> FrameHeader:
        header = parse_header(self._view, position)
        if header.offset != self._segment.base_offset + position:
            raise DataDamaged(f"the frame at byte {position} has the wrong offset {header.offset}")
        return header

    def _next_frame(self, position: int) -> int:
        """Return the next position with a valid frame header, or the end."""
        for candidate in range(position + ALIGNMENT_BYTES, len(self._view), ALIGNMENT_BYTES):
            if self._view[candidate : candidate + 4] == FRAME_MAGIC:
                try:
                    self._next_sequence = self._header(candidate).base_sequence
                except DataDamaged:
                    continue
                return candidate
        return len(self._view)

    def _frame(self, header: FrameHeader) -> None:
        where = f"the frame at byte {header.position}"
        if header.base_sequence != self._next_sequence:
            self._report(f"{where} begins at {header.base_sequence} and not {self._next_sequence}")
        self._next_sequence = header.next_sequence
        try:
            if header.kind is FrameKind.EVENTS:
                batch = read_events(self._view, header)
                self._check_columns(header, batch, where)
                self._frames.append((header, batch.column("key")))
                return
            if header.kind is FrameKind.PRODUCERS:
                read_producers(self._view, header)
            elif header.kind is FrameKind.INDEX and not self._damaged:
                self._index(header, where)
            elif header.kind is FrameKind.END:
                self._end(header, where)
            read_body(self._view, header)
        except (DataDamaged, pa.ArrowException) as error:
            self._report(str(error))
        self._frames.append((header, None))

    def _check_columns(self, header: FrameHeader, batch: pa.RecordBatch, where: str) -> None:
        """Check that the columns are sound and agree with the header."""
        batch.validate(full=True)
        numbers, offsets, times, _, body, _, epochs = batch.columns
        range_us = pc.min_max(times.view(pa.int64())).as_py()
        same = (
            numbers.equals(rising(header.base_sequence, header.count))
            and offsets.equals(rising(header.offset, header.count))
            and epochs.equals(pa.repeat(pa.scalar(header.epoch, pa.int64()), header.count))
            and range_us == {"min": header.first_us, "max": header.last_us}
            and not body.null_count
        )
        if not same:
            self._report(f"{where}: its columns say something else than its header")
        apart = (header.bodies_at, header.bodies_bytes)
        if header.bodies_bytes and apart != bodies_in(
            pa.py_buffer(self._body_without_event_bodies(header))
        ):
            self._report(f"{where}: the bodies of its events are not where its header says")

    def _body_without_event_bodies(self, header: FrameHeader) -> memoryview:
        """Return the body of a frame after comparing the checksum without the events' bodies."""
        return read_body(self._view, header, bodies=False)

    def _index(self, header: FrameHeader, where: str) -> None:
        """Check that the index is the one of these frames."""
        body = read_body(self._view, header)
        builder = IndexBuilder(self._segment, region_bytes=index_region_bytes(body))
        for each, keys in self._frames:
            builder.add(each, keys)
        if bytes(body) != builder.body():
            self._report(f"{where}: the index does not fit the frames before it")

    def _end(self, header: FrameHeader, where: str) -> None:
        before = self._frames[-1][0] if self._frames else None
        if before is None or before.kind is not FrameKind.INDEX or before.position != header.link:
            self._report(f"{where}: the end mark does not point to the index before it")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpot:
    """A position to read from: a frame, and the first wanted event in it."""

    position: int
    sequence: int


class Segment:
    """The frames of one segment, up to ``length`` bytes of ``view``.

    Everything that reads frames raises ``DataDamaged`` where the bytes are wrong.
    """

    def __init__(self, view: View, length: int | None = None) -> None:
        """Read the header of the segment."""
        self._view = memoryview(view)[:length]
        self.header = parse_segment_header(self._view)
        self.partition = str(self.header.partition)
        self._index: SegmentIndex | None = None

    def __len__(self) -> int:
        """Return the number of bytes; the last ones may be part of a frame."""
        return len(self._view)

    @property
    def view(self) -> memoryview:
        """The bytes of the segment: always the same object until ``extend``."""
        return self._view

    @property
    def index(self) -> SegmentIndex:
        """The index, loaded or walked when it is first asked for, and up to date."""
        if self._index is None:
            self._index = SegmentIndex.load(self._view, self.header) or SegmentIndex.scan(
                self._view, self.header
            )
        return self._index

    @property
    def ended(self) -> bool:
        """Whether the segment was closed gracefully: it cannot grow."""
        try:
            mark = parse_header(self._view, len(self._view) - FRAME_HEADER_BYTES)
        except DataDamaged:
            return False
        return mark.kind is FrameKind.END and mark.offset == self.header.base_offset + mark.position

    @property
    def next_sequence(self) -> int:
        """The sequence number after the last whole frame."""
        return self.index.next_sequence

    def extend(self, view: View, length: int | None = None) -> None:
        """Continue with more bytes of the same segment; earlier batches stay valid."""
        self._view = memoryview(view)[:length]
        if self._index is not None and self.ended:
            self._index = None  # the stored one knows the keys too
        elif self._index is not None:
            self._index.extend(self._view)

    def frames(self, start: int = SEGMENT_HEADER_BYTES) -> Iterator[FrameHeader]:
        """Yield the headers of all whole frames from the one at ``start`` on."""
        view, base, position = self._view, self.header.base_offset, start
        length = len(view)
        while position + FRAME_HEADER_BYTES <= length:
            header = parse_header(view, position)
            if header.offset != base + position:
                raise DataDamaged(
                    f"the frame at byte {position} was written for another place: "
                    f"offset {header.offset} instead of {base + position}"
                )
            position = header.end
            if position > length:
                return
            yield header

    def read(self, header: FrameHeader, *, check: bool = True, bodies: bool = True) -> EventBatch:
        """Return the events of one frame. ``check=False`` leaves its checksum aside.

        With ``bodies=False`` their bodies are empty, and those bytes are not read.
        """
        arrow = read_events(self._view, header, verify=check, bodies=bodies)
        return EventBatch(partition=self.partition, arrow=arrow)

    def batches(
        self,
        from_sequence: int | None = None,
        until: int | None = None,
        *,
        position: int | None = None,
        check: bool = True,
    ) -> Iterator[EventBatch]:
        """Yield the events from ``from_sequence`` up to ``until``, one batch for each frame.

        ``position`` is that of a frame at or before ``from_sequence``, where it is known.
        """
        if position is None:
            spot = self._at_sequence(from_sequence)
            if spot is None:
                return
            position = spot.position
        for header in self.frames(position):
            if until is not None and header.base_sequence >= until:
                return
            if header.kind is FrameKind.EVENTS:
                start = max((from_sequence or 0) - header.base_sequence, 0)
                stop = header.count if until is None else until - header.base_sequence
                stop = min(stop, header.count)
                if start < stop:
                    batch = self.read(header, check=check)
                    whole = stop - start == header.count
                    yield batch if whole else batch.slice(start, stop - start)

    def seek_sequence(self, sequence: int) -> EventSpot | None:
        """Return the first event not before ``sequence``; None if there is none yet."""
        position = self.index.find_sequence(sequence)
        for header in self._events(position):
            if header.next_sequence > sequence:
                return _spot(header, max(sequence, header.base_sequence))
        return None

    def seek_offset(self, offset: int) -> EventSpot | None:
        """Return the first event at or after ``offset``; None if there is none yet."""
        position = self.index.find_offset(offset)
        for header in self._events(position):
            if header.offset + header.count > offset:
                return _spot(header, header.base_sequence + max(offset - header.offset, 0))
        return None

    def seek_time(self, enqueued_us: int) -> EventSpot | None:
        """Return the first event enqueued at this time or later; None if there is none yet."""
        position = self.index.find_time(enqueued_us)
        for header in self._events(position):
            if header.last_us >= enqueued_us:
                return _spot(header, header.base_sequence + self._late(header, enqueued_us))
        return None

    def find(
        self,
        key: str,
        from_sequence: int | None = None,
        *,
        check: bool = True,
        bodies: bool = True,
    ) -> Iterator[EventBatch]:
        """Yield the events with this key, in order; only regions that may have some are read."""
        since = self.header.base_sequence if from_sequence is None else from_sequence
        for region in self.index.regions_with_key(key):
            for header in self.frames(region.start):
                if header.position >= region.end:
                    break
                if header.kind is FrameKind.EVENTS and header.next_sequence > since:
                    batch = self.read(header, check=check, bodies=bodies)
                    rows = batch.slice(max(since - header.base_sequence, 0)).arrow
                    found = rows.filter(pc.equal(rows.column("key"), pa.scalar(key, pa.utf8())))
                    if found.num_rows:
                        yield EventBatch(partition=self.partition, arrow=found)

    def producers(self, *, limit: int = DEFAULT_LIMIT) -> ProducerStates:
        """Return the state of each of the newest producers at the end of this segment."""
        states = ProducerStates(has_forgotten=True)  # unless the first frame says otherwise
        for header in self.frames():
            if header.kind is FrameKind.PRODUCERS:
                found = read_producers(self._view, header)
                states = ProducerStates({**states, **found}, has_forgotten=found.has_forgotten)
            note_producer(states, header)
            if len(states) > 2 * limit:  # now and then, since it sorts them all
                states = newest_producers(states, limit=limit)
        return newest_producers(states, limit=limit)

    def _at_sequence(self, sequence: int | None) -> EventSpot | None:
        first = EventSpot(position=SEGMENT_HEADER_BYTES, sequence=self.header.base_sequence)
        if sequence is None or sequence <= first.sequence:
            return first  # needs no index: a damaged end does not hinder reading the beginning
        return self.seek_sequence(sequence)

    def _events(self, position: int | None) -> Iterator[FrameHeader]:
        if position is not None:
            yield from (each for each in self.frames(position) if each.kind is FrameKind.EVENTS)

    def _late(self, header: FrameHeader, enqueued_us: int) -> int:
        """Return the index of the first event of the frame at this time or later."""
        if header.first_us >= enqueued_us:
            return 0
        times = self.read(header).arrow.column("enqueued_at").cast(pa.int64())
        late = pc.greater_equal(times, pa.scalar(enqueued_us, pa.int64()))
        return int(pc.index(late, pa.scalar(value=True)).as_py())


def _spot(header: FrameHeader, sequence: int) -> EventSpot:
    return EventSpot(position=header.position, sequence=sequence)
