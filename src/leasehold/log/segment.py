"""One segment of a partition's log, read where it lies.

A ``Segment`` looks at bytes that somebody else mapped or read. Nothing is copied: the columns of
its batches point into them. A part of a frame at the end, as a crash or a writer at work leaves
it, is as if it were not there. Seeking reads the index and then a few headers; a segment without
an index is walked once, from header to header, and from then on only over what is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.errors import DataDamaged
from leasehold.log.events import EventBatch
from leasehold.log.frame import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameHeader,
    Kind,
    parse_header,
    parse_segment_header,
    read_events,
)
from leasehold.log.index import Index
from leasehold.log.producers import (
    DEFAULT_LIMIT,
    ProducerState,
    newest_producers,
    note_producer,
    read_producers,
)
from leasehold.log.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasehold.log.frame import View

__all__ = ["ProducerState", "Segment", "Spot", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A place to read from: a frame, and the first event that is wanted of it."""

    position: int
    sequence: int


class Segment:
    """The frames of one segment, up to ``length`` bytes of ``view``.

    Everything that reads frames raises ``DataDamaged`` where the bytes are wrong.
    """

    def __init__(self, view: View, length: int | None = None) -> None:
        """Read the header of the segment.

        Raises:
            DataDamaged: it is no segment, or its header has changed.
            StoreUnusable: its format is newer than this code.
        """
        self._view = memoryview(view)[:length]
        self.header = parse_segment_header(self._view)
        self.partition = str(self.header.partition)
        self._index: Index | None = None

    def __len__(self) -> int:
        """The bytes that are looked at; the last ones may be part of a frame."""
        return len(self._view)

    @property
    def view(self) -> memoryview:
        """The bytes that are looked at. Always the same object, until there are others."""
        return self._view

    @property
    def index(self) -> Index:
        """The index, loaded or walked when it is first asked for, and up to date."""
        if self._index is None:
            self._index = Index.load(self._view, self.header) or Index.scan(self._view, self.header)
        return self._index

    @property
    def ended(self) -> bool:
        """Whether the segment was closed in good order: nothing will follow in it."""
        try:
            mark = parse_header(self._view, len(self._view) - FRAME_HEADER_BYTES)
        except DataDamaged:
            return False
        return mark.kind is Kind.END and mark.offset == self.header.base_offset + mark.position

    @property
    def next_sequence(self) -> int:
        """The sequence number after the last whole frame."""
        return self.index.next_sequence

    def extend(self, view: View, length: int | None = None) -> None:
        """Go on with more bytes of the same segment; earlier batches stay valid."""
        self._view = memoryview(view)[:length]
        if self._index is not None and self.ended:
            self._index = None  # the stored one knows the keys too
        elif self._index is not None:
            self._index.extend(self._view)

    def frames(self, start: int = SEGMENT_HEADER_BYTES) -> Iterator[FrameHeader]:
        """The headers of all whole frames from the one at ``start`` on."""
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
        """The events of one frame. ``check=False`` leaves its checksum aside.

        With ``bodies=False`` their bodies are empty, and what lies there is not looked at.
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
        """All events from ``from_sequence`` on and before ``until``, one batch for each frame.

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
            if header.kind is Kind.EVENTS:
                start = max((from_sequence or 0) - header.base_sequence, 0)
                stop = header.count if until is None else until - header.base_sequence
                stop = min(stop, header.count)
                if start < stop:
                    batch = self.read(header, check=check)
                    whole = stop - start == header.count
                    yield batch if whole else batch.slice(start, stop - start)

    def seek_sequence(self, sequence: int) -> Spot | None:
        """The first event not before ``sequence``; None if it has yet to come."""
        position = self.index.find_sequence(sequence)
        for header in self._events(position):
            if header.next_sequence > sequence:
                return _spot(header, max(sequence, header.base_sequence))
        return None

    def seek_offset(self, offset: int) -> Spot | None:
        """The first event whose offset is not before ``offset``; None if it has yet to come."""
        position = self.index.find_offset(offset)
        for header in self._events(position):
            if header.offset + header.count > offset:
                return _spot(header, header.base_sequence + max(offset - header.offset, 0))
        return None

    def seek_time(self, enqueued_us: int) -> Spot | None:
        """The first event enqueued at this time or later; None if it has yet to come."""
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
        """The events with this key, in order; only regions that may have some are read."""
        since = self.header.base_sequence if from_sequence is None else from_sequence
        for region in self.index.regions_with_key(key):
            for header in self.frames(region.start):
                if header.position >= region.end:
                    break
                if header.kind is Kind.EVENTS and header.next_sequence > since:
                    batch = self.read(header, check=check, bodies=bodies)
                    rows = batch.slice(max(since - header.base_sequence, 0)).arrow
                    found = rows.filter(pc.equal(rows.column("key"), pa.scalar(key, pa.utf8())))
                    if found.num_rows:
                        yield EventBatch(partition=self.partition, arrow=found)

    def producers(self, *, limit: int = DEFAULT_LIMIT) -> dict[bytes, ProducerState]:
        """How far each of the newest producers has come at the end of this segment."""
        states: dict[bytes, ProducerState] = {}
        for header in self.frames():
            if header.kind is Kind.PRODUCERS:
                states.update(read_producers(self._view, header))
            note_producer(states, header)
            if len(states) > 2 * limit:  # now and then, since it sorts them all
                states = newest_producers(states, limit=limit)
        return newest_producers(states, limit=limit)

    def _at_sequence(self, sequence: int | None) -> Spot | None:
        first = Spot(position=SEGMENT_HEADER_BYTES, sequence=self.header.base_sequence)
        if sequence is None or sequence <= first.sequence:
            return first  # needs no index: a damaged end does not hinder reading the beginning
        return self.seek_sequence(sequence)

    def _events(self, position: int | None) -> Iterator[FrameHeader]:
        if position is not None:
            yield from (each for each in self.frames(position) if each.kind is Kind.EVENTS)

    def _late(self, header: FrameHeader, enqueued_us: int) -> int:
        """The index of the first event of the frame at this time or later: there is one."""
        if header.first_us >= enqueued_us:
            return 0
        times = self.read(header).arrow.column("enqueued_at").cast(pa.int64())
        late = pc.greater_equal(times, pa.scalar(enqueued_us, pa.int64()))
        return int(pc.index(late, pa.scalar(value=True)).as_py())


def _spot(header: FrameHeader, sequence: int) -> Spot:
    return Spot(position=header.position, sequence=sequence)
