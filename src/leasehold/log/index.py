"""The sparse index of a segment: where to begin to look.

Frames of events are gathered into regions of at least 256 KiB. For each region the index knows
where it begins, its first sequence number, its first and last time, and the hashes of its keys.
It is a help and never the truth: without one the headers are walked, and a damaged one is left
aside. ``docs/log-format.md`` has its bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import DataDamaged, UsageError
from leasehold.log.frame import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Encoded,
    Kind,
    encode_frame,
    parse_header,
    read_body,
)
from leasehold.log.keys import key_hash, sorted_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from leasehold.log.frame import FrameHeader, SegmentHeader, View

REGION_BYTES = 256 * 1024
_HEAD = struct.Struct("<IIQ")
_ROW = struct.Struct("<qqqqII")


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Part of a segment, from the frame at ``start`` up to the byte ``end``."""

    start: int
    end: int


class Index:
    """The regions of a segment, found in it (``load``) or walked together (``scan``)."""

    def __init__(self, segment: SegmentHeader, *, region_bytes: int = REGION_BYTES) -> None:
        """Begin with no regions."""
        self.segment = segment
        self.region_bytes = region_bytes
        self.end = SEGMENT_HEADER_BYTES  # up to here everything is known
        self.next_sequence = segment.base_sequence
        self.positions: list[int] = []
        self.sequences: list[int] = []
        self.first_us: list[int] = []
        self.last_us: list[int] = []
        self.hashes: list[Sequence[int] | None] = []  # None: nobody has looked
        self._latest_us: list[int] = []  # the highest time up to each region, which never falls
        self.starts_region = True

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def load(cls, view: View, segment: SegmentHeader) -> Index | None:
        """The index at the end of a segment; None if there is none, or not a sound one."""
        try:
            mark = parse_header(view, len(view) - FRAME_HEADER_BYTES)
            if mark.kind is not Kind.END or mark.offset != segment.base_offset + mark.position:
                return None
            header = parse_header(view, mark.link)
            if header.kind is not Kind.INDEX or header.end != mark.position:
                return None
            return cls._decode(read_body(view, header), header, segment)
        except DataDamaged:
            return None

    @classmethod
    def scan(cls, view: View, segment: SegmentHeader) -> Index:
        """Walk from header to header; a part of a frame at the end is left for later.

        Raises:
            DataDamaged: a header is wrong.
        """
        index = cls(segment)
        index.extend(view)
        return index

    def extend(self, view: View, length: int | None = None) -> None:
        """Walk on over what has come since. Raises ``DataDamaged`` as ``scan`` does."""
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
        if header.kind is not Kind.EVENTS:
            return
        self.next_sequence = header.next_sequence
        if self.starts_region:
            self._open(position, header.base_sequence, header.first_us, header.last_us)
        self.first_us[-1] = min(self.first_us[-1], header.first_us)
        self.last_us[-1] = max(self.last_us[-1], header.last_us)
        self._latest_us[-1] = max(self._latest_us[-1], header.last_us)
        self.starts_region = self.end - self.positions[-1] >= self.region_bytes

    def find_sequence(self, sequence: int) -> int | None:
        """Where to begin in order to find the first event not before ``sequence``."""
        if sequence >= self.next_sequence:
            return None
        return self.positions[max(bisect_right(self.sequences, sequence) - 1, 0)]

    def find_offset(self, offset: int) -> int | None:
        """Where to begin in order to find the first event not before ``offset``."""
        if not self.positions or offset - self.segment.base_offset >= self.end:
            return None
        before = bisect_right(self.positions, offset - self.segment.base_offset) - 1
        return self.positions[max(before, 0)]

    def find_time(self, enqueued_us: int) -> int | None:
        """Where to begin in order to find the first event not before this time."""
        found = bisect_left(self._latest_us, enqueued_us)
        return self.positions[found] if found < len(self.positions) else None

    def regions_with_key(self, key: str) -> list[Region]:
        """The regions that may hold events with this key; all others do not."""
        wanted = key_hash(key)
        ends = [*self.positions, self.end][1:]
        return [
            Region(start=start, end=end)
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
    def _decode(cls, body: memoryview, header: FrameHeader, segment: SegmentHeader) -> Index | None:
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
        """Begin with the segment."""
        self.index = Index(segment, region_bytes=region_bytes)
        self._keys: list[pa.Array] = []

    def add(self, header: FrameHeader, keys: pa.Array | None = None) -> None:
        """Take the next frame into account; ``keys`` is the key column of its events.

        Raises:
            UsageError: the keys of a frame of events are missing; nobody would find them.
        """
        if header.kind is not Kind.EVENTS:
            self.index.note(header)
            return
        if keys is None:
            raise UsageError("give the key column with a frame of events: the index needs it")
        self.index.note(header)
        self._keys.append(keys)
        if self.index.starts_region:  # the next frame does: this region is over
            self._finish()

    def body(self) -> bytes:
        """The bytes of the index, with the keys of all regions."""
        if self._keys:
            self._finish()
        return _body(self.index)

    def encode(self, *, now_us: int, epoch: int) -> Encoded:
        """The index and the end mark, to be written after the last frame: the segment is over."""
        segment, index = self.index.segment, self.index

        def frame(kind: Kind, body: bytes, *, position: int, count: int, link: int) -> Encoded:
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
        made = frame(Kind.INDEX, self.body(), position=end, count=len(index), link=0)
        mark = frame(Kind.END, b"", position=end + made.length, count=0, link=end)
        return Encoded(
            header=made.header, parts=made.parts + mark.parts, length=made.length + mark.length
        )

    def _finish(self) -> None:
        """Give the last region its keys."""
        self.index.hashes[-1] = sorted_hashes(self._keys)
        self._keys = []


def index_region_bytes(body: View) -> int:
    """The size of the regions of an encoded index."""
    if len(body) < _HEAD.size:
        raise DataDamaged("the index is too short to be one")
    return int(_HEAD.unpack_from(body)[1])


def _body(index: Index) -> bytes:
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
