"""Encode batches of the log as the frames that carry them to a client.

Each event is one message in one transfer, settled by the sender. Only a few numbers differ between
the events of a link: everything else is laid out once. A receiver of Leasehold that asked for Arrow
gets the whole batch in one transfer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.azure.amqp.event_properties import NO_SECTIONS, PARTITION_KEY, kept_sections
from leasehold.azure.amqp.frames import HEAD_BYTES
from leasehold.azure.amqp.messages import DELIVERY_ANNOTATIONS, section
from leasehold.azure.amqp.performatives import Transfer
from leasehold.azure.amqp.types import Long, Symbol, Timestamp
from leasehold.azure.amqp.values import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leasehold.azure.amqp.event_properties import KeptSections
    from leasehold.events.event import EventBatch

_MASK = 0xFFFF_FFFF
_TAG = b"\x00"  # deliveries are settled when they are sent, so no client refers to a tag
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
    """The last event of a partition, as reported to clients; -1 if there is none.

    ``observed_ms``: when the log was read.
    """

    sequence: int = -1
    offset: int = -1
    enqueued_ms: int = 0
    observed_ms: int = 0

    @property
    def annotations(self) -> bytes:
        """The section of a message that reports it."""
        return section(
            DELIVERY_ANNOTATIONS,
            {
                Symbol("last_enqueued_sequence_number"): Long(self.sequence),
                Symbol("last_enqueued_offset"): str(self.offset),
                Symbol("last_enqueued_time_utc"): Timestamp(self.enqueued_ms),
                Symbol("runtime_info_retrieval_time_utc"): Timestamp(self.observed_ms),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTarget:
    """The link that frames are for, and the maximum size of a frame."""

    channel: int
    handle: int
    max_bytes: int


def frames_of(
    batch: EventBatch, target: FrameTarget, *, first_id: int, end: LastEvent | None = None
) -> tuple[list[bytes], int]:
    """Return the transfers of all events, and the number of frames.

    Delivery ids count up from ``first_id``. With ``end``, each message reports the last event.
    """
    count = len(batch)
    keys, properties = batch.arrow.column(3), batch.arrow.column(5)
    if end is None and keys.null_count == properties.null_count == count:
        return _plain_frames(batch, target, first_id)
    extra = end.annotations if end is not None else b""
    rows = zip(
        *_positions(batch),
        keys.to_pylist(),
        _bodies(batch.arrow.column(4)),
        properties.to_pylist(),
        range(first_id, first_id + count),
        strict=True,
    )
    parts: list[bytes] = []
    for number, offset, at_us, key, body, pairs, delivery in rows:
        kept = kept_sections(tuple(pairs)) if pairs else NO_SECTIONS
        message = _message(number, b"%d" % offset, at_us // 1000, key, body, kept, extra)
        parts += split(message, target, delivery_id=delivery & _MASK)
    return parts, len(parts)


def _plain_frames(batch: EventBatch, target: FrameTarget, first_id: int) -> tuple[list[bytes], int]:
    """Encode events that are only bodies; what many of them share is laid out once."""
    parts: list[bytes] = []
    add, max_bytes = parts.append, target.max_bytes
    frames = 0
    known_us, known_digits, layout = -1, -1, _layout(target, 1, 0)
    rows = zip(*_positions(batch), _bodies(batch.arrow.column(4)), strict=True)
    for delivery, (number, offset, at_us, body) in enumerate(rows, first_id):
        digits = b"%d" % offset
        if at_us != known_us or len(digits) != known_digits:
            known_us, known_digits = at_us, len(digits)
            layout = _layout(target, known_digits, at_us // 1000)
        pack, fixed, before, between, name, after = layout
        length = len(body)
        size = fixed + length
        if size > max_bytes:
            message = _message(number, digits, at_us // 1000, None, body, NO_SECTIONS, b"")
            made = split(message, target, delivery_id=delivery & _MASK)
            parts += made
            frames += len(made)
            continue
        add(pack(size, before, delivery & _MASK, between, number, name, digits, after, length))
        add(body)
        frames += 1
    return parts, frames


def _layout(
    target: FrameTarget, digits: int, at_ms: int
) -> tuple[Callable[..., bytes], int, bytes, bytes, bytes, bytes]:
    """Return how to pack an event whose offset has ``digits`` digits, and its constant parts."""
    before = struct.pack(">BBH", 2, 0, target.channel)
    before += _BEFORE_HANDLE + struct.pack(">IB", target.handle, 0x70)
    name = _OFFSET + bytes((digits,))
    inner = 4 + len(_SEQUENCE) + 8 + len(name) + digits + len(_ENQUEUED) + 8
    between = _AFTER_ID + _ANNOTATIONS + struct.pack(">II", inner, 6) + _SEQUENCE
    after = _ENQUEUED + struct.pack(">q", at_ms) + _DATA
    packer = struct.Struct(f">I{len(before)}sI{len(between)}sq{len(name)}s{digits}s{len(after)}sI")
    return packer.pack, packer.size, before, between, name, after


def _positions(batch: EventBatch) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return numbers, offsets and times; as a range or a constant where possible."""
    arrow, count = batch.arrow, len(batch)
    first, offset = batch.first_sequence, arrow.column(1)[0].as_py()
    times = arrow.column(2).cast(pa.int64())
    first_us = times[0].as_py()
    is_consecutive = arrow.column(1)[count - 1].as_py() == offset + count - 1
    offsets = range(offset, offset + count) if is_consecutive else arrow.column(1).to_pylist()
    is_constant = times[count - 1].as_py() == first_us  # times never go back
    times_us = (first_us,) * count if is_constant else times.to_pylist()
    return range(first, first + count), offsets, times_us


def _bodies(column: pa.Array) -> list[bytes]:
    """Return the bodies, as slices of one copy."""
    _, offsets, data = column.buffers()
    if data is None:
        return [b""] * len(column)
    ends = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1].tolist()
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
    """Encode a message of any kind."""
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
    data = b"" if kept.has_body else _DATA + len(body).to_bytes(4, "big") + body
    return b"".join((kept.before, extra, annotations, kept.after, data, kept.footer))


def arrow_of(batch: EventBatch) -> bytes:
    """Return the batch as one Arrow IPC message, without its schema."""
    return bytes(batch.arrow.serialize())


def split(
    message: bytes,
    target: FrameTarget,
    *,
    delivery_id: int,
    message_format: int = 0,
) -> list[bytes]:
    """Return the frames of one delivery."""
    return list(_split(message, target, delivery_id=delivery_id, message_format=message_format))


def _split(
    message: bytes, target: FrameTarget, *, delivery_id: int, message_format: int
) -> Iterator[bytes]:
    view, at = memoryview(message), 0
    while True:
        first = not at
        head = Transfer(
            handle=target.handle,
            delivery_id=delivery_id if first else None,
            delivery_tag=_TAG if first else None,
            message_format=message_format if first else None,
            settled=True,
            more=True,
            batchable=True,
        )
        room = target.max_bytes - HEAD_BYTES - len(head.encode())
        more = len(view) - at > room
        performative = (head if more else _last(head)).encode()
        part = view[at : at + room]
        size = HEAD_BYTES + len(performative) + len(part)
        yield struct.pack(">IBBH", size, 2, 0, target.channel) + performative + part
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
