"""From a batch of the log to the frames that carry it to a client.

Each event is a message of its own in a transfer of its own, settled by the sender. Everything but a
few numbers is the same for all events of a link: it is laid out once. A link of ours that wants
Arrow gets the whole batch in one transfer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.azure.amqp.event_properties import NOTHING, PARTITION_KEY, kept_in
from leasehold.azure.amqp.frames import HEAD_BYTES
from leasehold.azure.amqp.messages import DELIVERY_ANNOTATIONS, section
from leasehold.azure.amqp.performatives import Transfer
from leasehold.azure.amqp.types import Long, Symbol, Timestamp
from leasehold.azure.amqp.values import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leasehold.azure.amqp.event_properties import KeptSections
    from leasehold.events.event import EventBatch

_WRAP = 0xFFFF_FFFF
_TAG = b"\x00"  # deliveries are settled when they are sent: nobody will ask for one by its tag
_SEQUENCE = encode(Symbol("x-opt-sequence-number")) + b"\x81"
_OFFSET = encode(Symbol("x-opt-offset")) + b"\xa1"
_ENQUEUED = encode(Symbol("x-opt-enqueued-time")) + b"\x83"
_KEY = encode(Symbol(PARTITION_KEY))
_ANNOTATIONS = b"\x00\x53\x72\xd1"
_DATA = b"\x00\x53\x75\xb0"
# handle, delivery id, tag, format 0, settled, not more, no mode, no state, no resume, not aborted,
# batchable
_BEFORE_HANDLE = b"\x00\x53\x14\xc0\x16\x0b\x70"
_AFTER_ID = b"\xa0\x01" + _TAG + b"\x43\x41\x42\x40\x40\x42\x42\x41"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEvent:
    """The last event of a partition, as clients are told of it: -1 where there is none."""

    sequence: int = -1
    offset: int = -1
    enqueued_ms: int = 0
    asked_ms: int = 0

    @property
    def annotations(self) -> bytes:
        """As a section of a message."""
        return section(
            DELIVERY_ANNOTATIONS,
            {
                Symbol("last_enqueued_sequence_number"): Long(self.sequence),
                Symbol("last_enqueued_offset"): str(self.offset),
                Symbol("last_enqueued_time_utc"): Timestamp(self.enqueued_ms),
                Symbol("runtime_info_retrieval_time_utc"): Timestamp(self.asked_ms),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTarget:
    """The link that frames are for, and how big one of them may be."""

    channel: int
    handle: int
    max_bytes: int


def frames_of(
    batch: EventBatch, way: FrameTarget, *, first_id: int, end: LastEvent | None = None
) -> tuple[list[bytes], int]:
    """The transfers of all events, and how many frames that are; ids rise from ``first_id`` on.

    With ``end`` each message says where the end of the partition was.
    """
    count = len(batch)
    keys, properties = batch.arrow.column(3), batch.arrow.column(5)
    if end is None and keys.null_count == properties.null_count == count:
        return _plain(batch, way, first_id)
    extra = end.annotations if end is not None else b""
    rows = zip(
        *_places(batch),
        keys.to_pylist(),
        _bodies(batch.arrow.column(4)),
        properties.to_pylist(),
        range(first_id, first_id + count),
        strict=True,
    )
    parts: list[bytes] = []
    for number, offset, at_us, key, body, pairs, delivery in rows:
        kept = kept_in(tuple(pairs)) if pairs else NOTHING
        message = _message(number, b"%d" % offset, at_us // 1000, key, body, kept, extra)
        parts += split(message, way, delivery_id=delivery & _WRAP)
    return parts, len(parts)


def _plain(batch: EventBatch, way: FrameTarget, first_id: int) -> tuple[list[bytes], int]:
    """Events that are bodies and nothing else; what many of them share is laid out once."""
    parts: list[bytes] = []
    add, most = parts.append, way.max_bytes
    frames = 0
    known_us, known_digits, layout = -1, -1, _layout(way, 1, 0)
    rows = zip(*_places(batch), _bodies(batch.arrow.column(4)), strict=True)
    for delivery, (number, offset, at_us, body) in enumerate(rows, first_id):
        digits = b"%d" % offset
        if at_us != known_us or len(digits) != known_digits:
            known_us, known_digits = at_us, len(digits)
            layout = _layout(way, known_digits, at_us // 1000)
        pack, fixed, before, between, name, after = layout
        length = len(body)
        size = fixed + length
        if size > most:
            message = _message(number, digits, at_us // 1000, None, body, NOTHING, b"")
            made = split(message, way, delivery_id=delivery & _WRAP)
            parts += made
            frames += len(made)
            continue
        add(pack(size, before, delivery & _WRAP, between, number, name, digits, after, length))
        add(body)
        frames += 1
    return parts, frames


def _layout(
    way: FrameTarget, digits: int, at_ms: int
) -> tuple[Callable[..., bytes], int, bytes, bytes, bytes, bytes]:
    """How an event with an offset of so many digits is packed, and the parts that never change."""
    before = struct.pack(">BBH", 2, 0, way.channel)
    before += _BEFORE_HANDLE + struct.pack(">IB", way.handle, 0x70)
    name = _OFFSET + bytes((digits,))
    inner = 4 + len(_SEQUENCE) + 8 + len(name) + digits + len(_ENQUEUED) + 8
    between = _AFTER_ID + _ANNOTATIONS + struct.pack(">II", inner, 6) + _SEQUENCE
    after = _ENQUEUED + struct.pack(">q", at_ms) + _DATA
    shape = struct.Struct(f">I{len(before)}sI{len(between)}sq{len(name)}s{digits}s{len(after)}sI")
    return shape.pack, shape.size, before, between, name, after


def _places(batch: EventBatch) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """The numbers, offsets and times of the events, without making each of them where it rises."""
    arrow, count = batch.arrow, len(batch)
    first, offset = batch.first_sequence, arrow.column(1)[0].as_py()
    times = arrow.column(2).cast(pa.int64())
    first_us = times[0].as_py()
    is_even = arrow.column(1)[count - 1].as_py() == offset + count - 1
    offsets = range(offset, offset + count) if is_even else arrow.column(1).to_pylist()
    is_one = times[count - 1].as_py() == first_us  # times never go back
    moments = (first_us,) * count if is_one else times.to_pylist()
    return range(first, first + count), offsets, moments


def _bodies(column: pa.Array) -> list[bytes]:
    """The bodies, cut out of a copy of all of them."""
    _, places, data = column.buffers()
    if data is None:
        return [b""] * len(column)
    ends = memoryview(places).cast("i")[column.offset : column.offset + len(column) + 1].tolist()
    first = ends[0]
    whole = bytes(data[first : ends[-1]])
    return [whole[start - first : end - first] for start, end in pairwise(ends)]


def _message(
    number: int,
    digits: bytes,
    at_ms: int,
    key: str | None,
    body: bytes,
    kept: KeptSections,
    extra: bytes,
) -> bytes:
    """A message with all it may have."""
    entries = [
        _SEQUENCE + struct.pack(">q", number),
        _OFFSET + bytes((len(digits),)) + digits,
        _ENQUEUED + struct.pack(">q", at_ms),
    ]
    count = 6 + kept.count
    if key is not None:
        entries.append(_KEY + encode(key))
        count += 2
    entries.append(kept.annotations)
    inner = b"".join(entries)
    annotations = _ANNOTATIONS + struct.pack(">II", len(inner) + 4, count) + inner
    own = b"" if kept.has_body else _DATA + len(body).to_bytes(4, "big") + body
    return b"".join((kept.before, extra, annotations, kept.after, own, kept.footer))


def arrow_of(batch: EventBatch) -> bytes:
    """The whole batch as one Arrow IPC message, without its schema."""
    return bytes(batch.arrow.serialize())


def split(
    message: bytes,
    way: FrameTarget,
    *,
    delivery_id: int,
    message_format: int = 0,
) -> list[bytes]:
    """One delivery, in as many frames as it takes."""
    return list(_split(message, way, delivery_id=delivery_id, message_format=message_format))


def _split(
    message: bytes, way: FrameTarget, *, delivery_id: int, message_format: int
) -> Iterator[bytes]:
    view, at = memoryview(message), 0
    while True:
        first = not at
        head = Transfer(
            handle=way.handle,
            delivery_id=delivery_id if first else None,
            delivery_tag=_TAG if first else None,
            message_format=message_format if first else None,
            settled=True,
            more=True,
            batchable=True,
        )
        room = way.max_bytes - HEAD_BYTES - len(head.encode())
        more = len(view) - at > room
        performative = (head if more else _last(head)).encode()
        part = view[at : at + room]
        size = HEAD_BYTES + len(performative) + len(part)
        yield struct.pack(">IBBH", size, 2, 0, way.channel) + performative + part
        at += len(part)
        if not more:
            return


def _last(head: Transfer) -> Transfer:
    return Transfer(
        handle=head.handle,
        delivery_id=head.delivery_id,
        delivery_tag=head.delivery_tag,
        message_format=head.message_format,
        settled=True,
        more=False,
        batchable=True,
    )
