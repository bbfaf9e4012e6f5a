"""Frames: written, and read from the bytes of a connection.

A reader buffers at most one incomplete frame; one that is too big is refused by its first bytes.
Complete frames are views of the received bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from leasehold.azure.amqp.faults import FRAMING_ERROR, AmqpFault

if TYPE_CHECKING:
    from collections.abc import Iterator

AMQP, SASL, HEADER = 0, 1, -1
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"  # a heartbeat
HEAD_BYTES = 8
_HEAD = struct.Struct(">IBBH")
_MIN_DOFF = 2
_MAGIC = b"AMQP"


class Frame(NamedTuple):
    """One frame: its kind (``AMQP``, ``SASL``, or ``HEADER`` for a protocol header)."""

    kind: int
    channel: int
    body: memoryview


def frame(channel: int, body: bytes, kind: int = AMQP) -> bytes:
    """Return the bytes of a frame."""
    return _HEAD.pack(len(body) + HEAD_BYTES, _MIN_DOFF, kind, channel) + body


class FrameReader:
    """Reads frames from bytes in chunks of any size. ``max_bytes`` may change between frames."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._rest = bytearray()
        self._needed_bytes = HEAD_BYTES

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an incomplete frame there are."""
        return len(self._rest)

    def feed(self, data: bytes | bytearray) -> Iterator[Frame]:
        """Yield the frames that these bytes complete; raise at the first that is damaged."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed_bytes:
                return
            # The frames are views of ``data``, so it is never changed again.
            data, self._rest = self._rest, bytearray()
        yield from self._whole_frames(data)

    def _whole_frames(self, data: bytes | bytearray) -> Iterator[Frame]:
        view, at, end = memoryview(data), 0, len(data)
        while end - at >= HEAD_BYTES:
            if view[at : at + 4] == _MAGIC:
                yield Frame(HEADER, 0, view[at : at + HEAD_BYTES])
                at += HEAD_BYTES
                continue
            size, doff, kind, channel = _HEAD.unpack_from(view, at)
            self._check(size, doff)
            if end - at < size:
                self._keep_rest(view[at:], size)
                return
            yield Frame(kind, channel, view[at + 4 * doff : at + size])
            at += size
        self._keep_rest(view[at:], HEAD_BYTES)

    def _check(self, size: int, doff: int) -> None:
        if size > self.max_bytes:
            raise AmqpFault(
                f"a frame of {size} bytes is too big: {self.max_bytes} is the most",
                condition=FRAMING_ERROR,
            )
        if size < HEAD_BYTES or doff < _MIN_DOFF or 4 * doff > size:
            raise AmqpFault("the head of a frame is damaged", condition=FRAMING_ERROR)

    def _keep_rest(self, rest: memoryview, needed_bytes: int) -> None:
        self._needed_bytes = needed_bytes
        self._rest = bytearray(rest)
