"""Whether the bytes of a segment are those that were written, all of them.

``verify`` looks at every checksum, and then at whether the parts agree: sequence numbers and
offsets without gaps, the columns with their headers, the index with the frames. After damage it
goes on with the next frame it can find, so that one finding does not hide another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.errors import DataDamaged, StoreUnusable
from leasehold.log.frame import (
    ALIGNMENT_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    Kind,
    bodies_in,
    parse_header,
    parse_segment_header,
    read_body,
    read_events,
    rising,
)
from leasehold.log.index import IndexBuilder, index_region_bytes
from leasehold.log.producers import read_producers

if TYPE_CHECKING:
    from leasehold.log.frame import FrameHeader, SegmentHeader, View


def verify(view: View, length: int | None = None, *, open_end: bool = False) -> list[str]:
    """All that is wrong with a segment, in words; an empty list if nothing is.

    With ``open_end`` a part of a frame at the end is no fault: a crash, or a writer at work,
    leaves one behind.
    """
    view = memoryview(view)[:length]
    try:
        segment = parse_segment_header(view)
    except (DataDamaged, StoreUnusable) as error:
        return [str(error)]
    return _Examination(view, segment).run(open_end=open_end)


class _Examination:
    """One walk over a segment; ``findings`` grows on the way."""

    def __init__(self, view: memoryview, segment: SegmentHeader) -> None:
        self._view = view
        self._segment = segment
        self.findings: list[str] = []
        self._next_sequence = segment.base_sequence
        self._frames: list[tuple[FrameHeader, pa.Array | None]] = []
        self._damaged = False

    def run(self, *, open_end: bool) -> list[str]:
        position, length, last = SEGMENT_HEADER_BYTES, len(self._view), Kind.EVENTS
        while position < length:
            try:
                header = self._header(position)
            except DataDamaged as error:
                if position + FRAME_HEADER_BYTES > length:
                    self._torn(position, open_end=open_end)
                    break
                self._say(str(error))
                position = self._next_frame(position)
                continue
            if header.end > length:
                self._torn(position, open_end=open_end)
                break
            if last is Kind.END:
                self._say(f"the frame at byte {position} lies after the end mark")
            self._frame(header)
            position, last = header.end, header.kind
        return self.findings

    def _say(self, finding: str) -> None:
        self._damaged = True
        self.findings.append(finding)

    def _torn(self, position: int, *, open_end: bool) -> None:
        if not open_end:
            self._say(f"the last {len(self._view) - position} bytes are only part of a frame")

    def _header(self, position: int) -> FrameHeader:
        header = parse_header(self._view, position)
        if header.offset != self._segment.base_offset + position:
            raise DataDamaged(f"the frame at byte {position} has the wrong offset {header.offset}")
        return header

    def _next_frame(self, position: int) -> int:
        """The next place that looks like a frame, or the end."""
        for place in range(position + ALIGNMENT_BYTES, len(self._view), ALIGNMENT_BYTES):
            if self._view[place : place + 4] == FRAME_MAGIC:
                try:
                    self._next_sequence = self._header(place).base_sequence
                except DataDamaged:
                    continue
                return place
        return len(self._view)

    def _frame(self, header: FrameHeader) -> None:
        where = f"the frame at byte {header.position}"
        if header.base_sequence != self._next_sequence:
            self._say(f"{where} begins at {header.base_sequence} and not {self._next_sequence}")
        self._next_sequence = header.next_sequence
        try:
            if header.kind is Kind.EVENTS:
                batch = read_events(self._view, header)
                self._agrees(header, batch, where)
                self._frames.append((header, batch.column("key")))
                return
            if header.kind is Kind.PRODUCERS:
                read_producers(self._view, header)
            elif header.kind is Kind.INDEX and not self._damaged:
                self._index(header, where)
            elif header.kind is Kind.END:
                self._end(header, where)
            read_body(self._view, header)
        except (DataDamaged, pa.ArrowException) as error:
            self._say(str(error))
        self._frames.append((header, None))

    def _agrees(self, header: FrameHeader, batch: pa.RecordBatch, where: str) -> None:
        """The columns are sound, and say what the header says."""
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
            self._say(f"{where}: its columns say something else than its header")
        apart = (header.bodies_at, header.bodies_bytes)
        if header.bodies_bytes and apart != bodies_in(pa.py_buffer(self._rest(header))):
            self._say(f"{where}: the bodies of its events are not where its header says")

    def _rest(self, header: FrameHeader) -> memoryview:
        """The body of a frame whose checksum of all but the events' bodies is right too."""
        return read_body(self._view, header, bodies=False)

    def _index(self, header: FrameHeader, where: str) -> None:
        """The index is the one that these frames give."""
        body = read_body(self._view, header)
        builder = IndexBuilder(self._segment, region_bytes=index_region_bytes(body))
        for each, keys in self._frames:
            builder.add(each, keys)
        if bytes(body) != builder.body():
            self._say(f"{where}: the index does not fit the frames before it")

    def _end(self, header: FrameHeader, where: str) -> None:
        before = self._frames[-1][0] if self._frames else None
        if before is None or before.kind is not Kind.INDEX or before.position != header.link:
            self._say(f"{where}: the end mark does not point to the index before it")
