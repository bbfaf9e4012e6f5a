"""The bytes of the log: the header of a segment, and the frames that follow it.

Every byte is covered by a CRC32C, padding included, so a flipped bit anywhere is found. Frames
are aligned to 64 bytes, and their events are Arrow IPC messages that are read in place. A
large frame has a second CRC32C of all but the bodies of its events, for readers that skip bodies.
``docs/log-format.md`` has the tables. Nothing here does I/O.

Wrong bytes raise ``DataDamaged``, never an error of Arrow or ``struct``.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from leasehold.errors import DataDamaged, StoreUnusable, UsageError
from leasehold.events.event import STORED_SCHEMA

MAJOR_VERSION = 1
MINOR_VERSION = 2  # 1: without the gaps of producers; 0: without a checksum of all but the bodies
ALIGNMENT_BYTES = 64
SEGMENT_HEADER_BYTES = 64
FRAME_HEADER_BYTES = 128
MAX_BODY_BYTES = 2**30
MAX_EPOCH = 2**48  # so the end of an event frame is never equal to the end of an end mark

_SEGMENT_MAGIC = b"LHSEGMNT"
FRAME_MAGIC = b"LHFR"
_FRAME_CLOSE = b"RFHL"
_SEGMENT = struct.Struct("<8sHHIqqqq12xI")
_FRAME = struct.Struct("<4sB3xIIQqqqqq16sQQIII12xI4s")
_CRC_AT = FRAME_HEADER_BYTES - 8
_STORED_BESIDE_BYTES = 33  # each event: its number, offset, time and epoch, and bits for nulls
_APART_BYTES = 64 << 10  # of smaller frames the bodies are not worth a checksum without them
_STORED_AROUND_BYTES = 8192  # each batch: the Arrow metadata of its columns, and their padding
_PADDING = [bytes(count) for count in range(ALIGNMENT_BYTES)]
_TIMES = pa.timestamp("us", "UTC")
_INTEGERS = pa.int64()
_RAMP_ROWS = 1 << 14
# By its bytes: the first pa.array of a process loads pandas, where that is installed.
_RAMP = pa.Array.from_buffers(
    _INTEGERS, _RAMP_ROWS, [None, pa.py_buffer(array("q", range(_RAMP_ROWS)))]
)
_ADD = pc.get_function("add")  # ten times as fast as pc.add for a batch of a thousand
_BODY_AT = STORED_SCHEMA.get_field_index("body")
_BODY = STORED_SCHEMA.field(_BODY_AT)
_NOWHERE = bytes(4 * _RAMP_ROWS)
_NOTHING = pa.py_buffer(b"")

View = bytes | bytearray | memoryview


class FrameKind(IntEnum):
    """What a frame holds."""

    EVENTS = 1
    PRODUCERS = 2
    INDEX = 3
    END = 4


_KINDS = {int(kind): kind for kind in FrameKind}
_EVENTS = FrameKind.EVENTS  # looked up for each frame, and a global is the fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The beginning of a segment. ``base_offset`` is where it begins in its partition, in bytes."""

    partition: int
    base_sequence: int
    base_offset: int
    created_us: int
    epoch: int
    major: int = MAJOR_VERSION
    minor: int = MINOR_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStamp:
    """Who sent a batch, and the producer's own number of its first event; the next ones follow."""

    producer: bytes
    sequence: int


NO_PRODUCER = ProducerStamp(producer=bytes(16), sequence=0)


class FrameHeader(NamedTuple):
    """The header of one frame. ``position`` is where it was found in the segment, not stored.

    ``bodies_at`` and ``bodies_bytes`` are the position and size of the bodies of all events;
    ``rest_crc`` is the checksum of what is before and after them. Without bytes there is none.

    A tuple, in the order of the bytes: reading makes one for each frame, and it is quick to make.
    """

    position: int
    kind: FrameKind
    body_crc: int
    count: int  # type: ignore[assignment]  # replaces the tuple's own count, which is not needed
    body_bytes: int
    base_sequence: int
    offset: int
    first_us: int
    last_us: int
    epoch: int
    producer: bytes
    producer_sequence: int
    link: int
    bodies_at: int = 0
    bodies_bytes: int = 0
    rest_crc: int = 0

    @property
    def stamp(self) -> ProducerStamp:
        """Who sent the events, and the producer's own number of the first."""
        return ProducerStamp(producer=self.producer, sequence=self.producer_sequence)

    @property
    def length(self) -> int:
        """All bytes of the frame, header and padding included."""
        return FRAME_HEADER_BYTES + padded(self.body_bytes)

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        body_bytes = (self.body_bytes + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES  # as padded() does
        return self.position + FRAME_HEADER_BYTES + body_bytes

    @property
    def next_sequence(self) -> int:
        """The sequence number after the last event in it."""
        return self.base_sequence + (self.count if self.kind is _EVENTS else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFrame:
    """Bytes to be written as they are, in this order; ``header`` is that of the first frame."""

    header: FrameHeader
    parts: tuple[View, ...]
    length: int

    def joined(self) -> bytes:
        """Return all parts as one."""
        return b"".join(self.parts)


def padded(size: int) -> int:
    """``size`` up to the next multiple of 64."""
    return (size + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first 64 bytes of a segment."""
    fields = (
        *(_SEGMENT_MAGIC, header.major, header.minor, header.partition, header.base_sequence),
        *(header.base_offset, header.created_us, header.epoch),
    )
    crc = crc32c(memoryview(_SEGMENT.pack(*fields, 0))[:-4])
    return _SEGMENT.pack(*fields, crc)


def parse_segment_header(view: View) -> SegmentHeader:
    """Read the beginning of a segment."""
    if len(view) < SEGMENT_HEADER_BYTES:
        raise DataDamaged(f"a segment begins with 64 bytes, and here are {len(view)}: it was cut")
    magic, major, minor, partition, *numbers, crc = _SEGMENT.unpack_from(view, 0)
    if magic != _SEGMENT_MAGIC:
        raise DataDamaged("this is no segment of a log: its first bytes are not LHSEGMNT")
    if crc != crc32c(memoryview(view)[: SEGMENT_HEADER_BYTES - 4]):
        raise DataDamaged("the header of the segment has changed since it was written")
    if major > MAJOR_VERSION:
        raise StoreUnusable(
            f"the segment has format {major}.{minor}, and this version of Leasehold reads up to "
            f"{MAJOR_VERSION}.x: use the version that wrote it, or a newer one"
        )
    base_sequence, base_offset, created_us, epoch = numbers
    return SegmentHeader(
        partition=partition,
        base_sequence=base_sequence,
        base_offset=base_offset,
        created_us=created_us,
        epoch=epoch,
        major=major,
        minor=minor,
    )


def check_storable(batch: pa.RecordBatch, stamp: ProducerStamp) -> None:
    """Return if ``encode_events`` can make a frame of a batch, at any position."""
    count = batch.num_rows
    size = batch.nbytes + count * _STORED_BESIDE_BYTES + _STORED_AROUND_BYTES
    if size > MAX_BODY_BYTES:
        raise UsageError(
            f"{count} events take about {size} bytes, and a frame holds {MAX_BODY_BYTES}: send "
            "smaller ones, or fewer at once"
        )
    if len(stamp.producer) != len(NO_PRODUCER.producer) or not 0 <= stamp.sequence < 2**63 - count:
        raise UsageError(
            f"a producer has 16 bytes and numbers from 0 to 2^63, not {len(stamp.producer)} bytes "
            f"and {stamp.sequence}: send by a producer of the log"
        )


def encode_events(
    batch: pa.RecordBatch,
    *,
    base_sequence: int,
    offset: int,
    enqueued_us: int,
    epoch: int,
    producer: ProducerStamp = NO_PRODUCER,
    base_offset: int = 0,
) -> EncodedFrame:
    """Return a frame with the events of a batch of ``SENT_SCHEMA``.

    ``offset`` is where the frame will begin in the partition; the events have this offset and the
    ones after it. ``base_offset`` is that of the segment; only ``header.position`` needs it.
    """
    count = batch.num_rows
    if not count:
        raise UsageError("a frame holds at least one event: do not store an empty batch")
    if not 0 <= epoch < MAX_EPOCH:
        raise UsageError(f"an epoch lies between 0 and 2^48, not at {epoch}")
    columns = [
        rising(base_sequence, count),
        rising(offset, count),
        pa.repeat(pa.scalar(enqueued_us, _TIMES), count),
        *batch.columns,
        pa.repeat(pa.scalar(epoch, _INTEGERS), count),
    ]
    body = pa.RecordBatch.from_arrays(columns, schema=STORED_SCHEMA).serialize()
    return encode_frame(
        memoryview(body),
        bodies=bodies_in(body) if body.size >= _APART_BYTES else (0, 0),
        kind=FrameKind.EVENTS,
        count=count,
        base_sequence=base_sequence,
        offset=offset,
        first_us=enqueued_us,
        last_us=enqueued_us,
        epoch=epoch,
        stamp=producer,
        base_offset=base_offset,
    )


def encode_frame(
    body: View,
    *,
    kind: FrameKind,
    count: int,
    base_sequence: int,
    offset: int,
    first_us: int,
    last_us: int,
    epoch: int,
    stamp: ProducerStamp = NO_PRODUCER,
    link: int = 0,
    base_offset: int = 0,
    bodies: tuple[int, int] = (0, 0),
) -> EncodedFrame:
    """Return a frame of any kind around ``body``, which is not copied.

    ``bodies``: the position of the bodies of events in it, and their size in bytes.
    """
    size = len(body)
    if size > MAX_BODY_BYTES:
        raise UsageError(f"a frame holds up to 1 GiB, not {size} bytes: store it in parts")
    padding = _PADDING[-size % ALIGNMENT_BYTES]
    body_crc, rest_crc = _checksums(body, padding, *bodies)
    header = FrameHeader(
        position=offset - base_offset,
        kind=kind,
        body_crc=body_crc,
        count=count,
        body_bytes=size,
        base_sequence=base_sequence,
        offset=offset,
        first_us=first_us,
        last_us=last_us,
        epoch=epoch,
        producer=stamp.producer,
        producer_sequence=stamp.sequence,
        link=link,
        bodies_at=bodies[0],
        bodies_bytes=bodies[1],
        rest_crc=rest_crc,
    )
    try:
        head = bytearray(_FRAME.pack(FRAME_MAGIC, *header[1:], 0, _FRAME_CLOSE))
    except struct.error as error:
        raise UsageError(f"a number does not fit into a frame header: {error}") from error
    struct.pack_into("<I", head, _CRC_AT, crc32c(memoryview(head)[:_CRC_AT]))
    return EncodedFrame(header=header, parts=(bytes(head), body, padding), length=header.length)


def parse_header(view: View, position: int) -> FrameHeader:
    """Return the header of the frame at ``position``; its body may end beyond ``view``."""
    if position < 0 or len(view) < position + FRAME_HEADER_BYTES:
        raise DataDamaged(f"no frame fits at byte {position}: the segment ends at {len(view)}")
    fields = _FRAME.unpack_from(view, position)
    if fields[0] != FRAME_MAGIC or fields[-1] != _FRAME_CLOSE:
        raise DataDamaged(f"there is no frame at byte {position}: its marks are missing")
    if fields[-2] != crc32c(memoryview(view)[position : position + _CRC_AT]):
        raise DataDamaged(f"the header of the frame at byte {position} has changed since written")
    kind, body_bytes = _KINDS.get(fields[1]), fields[4]
    if kind is None or body_bytes > MAX_BODY_BYTES or position % ALIGNMENT_BYTES:
        raise DataDamaged(f"the frame at byte {position} is not one that Leasehold writes")
    if kind is _EVENTS and not fields[3]:
        raise DataDamaged(f"the frame at byte {position} has no events")
    # Past its own __new__, which takes each field by name: there is one of these for each frame.
    return tuple.__new__(FrameHeader, (position, kind, *fields[2:-2]))


def read_body(
    view: View, header: FrameHeader, *, verify: bool = True, bodies: bool = True
) -> memoryview:
    """Return the body of a frame in place, without its padding.

    ``bodies=False``: the bodies of its events are not checked, and not read if the frame has a
    checksum of the rest.
    """
    start, end = header.position + FRAME_HEADER_BYTES, header.end
    whole = memoryview(view)[start:end]
    if len(whole) != end - start:
        raise DataDamaged(f"the frame at byte {header.position} is cut short at {len(view)}")
    if verify and not _is_sound(whole, header, bodies=bodies):
        raise DataDamaged(
            f"the frame at byte {header.position}, with the {header.count} entries from "
            f"{header.base_sequence} on, does not have the checksum it was written with"
        )
    return whole[: header.body_bytes]


def read_events(
    view: View, header: FrameHeader, *, verify: bool = True, bodies: bool = True
) -> pa.RecordBatch:
    """Return the events of a frame as ``STORED_SCHEMA``: its columns point into ``view``.

    ``verify=False`` is for bytes whose checksum was compared before. With ``bodies=False`` all
    bodies are empty.
    """
    if header.kind is not _EVENTS:
        raise DataDamaged(f"the frame at byte {header.position} holds no events")
    body = read_body(view, header, verify=verify, bodies=bodies)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), STORED_SCHEMA)
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise DataDamaged(f"the events at byte {header.position} can not be read") from error
    if batch.num_rows != header.count:
        raise DataDamaged(
            f"the frame at byte {header.position} says {header.count} events and has "
            f"{batch.num_rows}"
        )
    return batch if bodies else batch.set_column(_BODY_AT, _BODY, _no_bodies(header.count))


def bodies_in(message: pa.Buffer) -> tuple[int, int]:
    """Return where in a message of events their bodies begin, and how many bytes they have."""
    column = pa.ipc.read_record_batch(message, STORED_SCHEMA).column(_BODY_AT)
    values = column.buffers()[2]
    return (values.address - message.address, values.size) if values else (0, 0)


def _checksums(body: View, padding: bytes, at: int, size: int) -> tuple[int, int]:
    """Of all the bytes, and of those before ``at`` and from ``at + size`` on."""
    if not size:
        return crc32c(padding, crc32c(body)), 0
    view = memoryview(body)
    before, after = crc32c(view[:at]), view[at + size :]
    whole = crc32c(after, crc32c(view[at : at + size], before))
    return crc32c(padding, whole), crc32c(padding, crc32c(after, before))


def _is_sound(whole: memoryview, header: FrameHeader, *, bodies: bool) -> bool:
    """Return whether a body with its padding, or all but its ``bodies``, has its checksum."""
    if bodies or not header.bodies_bytes:
        return bool(crc32c(whole) == header.body_crc)
    end = header.bodies_at + header.bodies_bytes
    if end > header.body_bytes:
        return False
    return bool(crc32c(whole[end:], crc32c(whole[: header.bodies_at])) == header.rest_crc)


def _no_bodies(count: int) -> pa.Array:
    offsets = _NOWHERE if count < _RAMP_ROWS else bytes(4 * (count + 1))
    return pa.Array.from_buffers(_BODY.type, count, [None, pa.py_buffer(offsets), _NOTHING], 0)


def rising(first: int, count: int) -> pa.Array:
    """``first`` and the numbers after it, ``count`` of them."""
    known = len(_RAMP) >= count
    steps = _RAMP.slice(0, count) if known else pa.array(range(count), _INTEGERS)
    return _ADD.call([steps, pa.scalar(first, _INTEGERS)])
