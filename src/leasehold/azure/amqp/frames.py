"""Frames: what goes over a connection, cut out of its bytes.

A reader holds at most one frame that is not whole, and none that is bigger than was agreed on:
such a one is refused by its first bytes. Whole frames are views of the bytes that came in.
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
EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"  # a heartbeat
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
    """A frame on a channel."""
    return _HEAD.pack(len(body) + HEAD_BYTES, _MIN_DOFF, kind, channel) + body


class FrameReader:
    """Fed with bytes in pieces of any size. ``max_bytes`` may be changed between two frames."""

    def __init__(self, max_bytes: int) -> None:
        """Nothing has come yet."""
        self.max_bytes = max_bytes
        self._rest = bytearray()
        self._needs = HEAD_BYTES

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of a frame are here that is not whole yet."""
        return len(self._rest)

    def feed(self, data: bytes | bytearray) -> Iterator[Frame]:
        """The frames that are whole with these bytes.

        Raises:
            AmqpFault: there is something that is no frame, or is too big. The frames before it
                were given.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needs:
                return
            data, self._rest = self._rest, bytearray()  # never touched again: views point into it
        yield from self._whole(data)

    def _whole(self, data: bytes | bytearray) -> Iterator[Frame]:
        view, at, end = memoryview(data), 0, len(data)
        while end - at >= HEAD_BYTES:
            if view[at : at + 4] == _MAGIC:
                yield Frame(HEADER, 0, view[at : at + HEAD_BYTES])
                at += HEAD_BYTES
                continue
            size, doff, kind, channel = _HEAD.unpack_from(view, at)
            self._check(size, doff)
            if end - at < size:
                self._keep(view[at:], size)
                return
            yield Frame(kind, channel, view[at + 4 * doff : at + size])
            at += size
        self._keep(view[at:], HEAD_BYTES)

    def _check(self, size: int, doff: int) -> None:
        if size > self.max_bytes:
            raise AmqpFault(
                f"a frame of {size} bytes is too big: {self.max_bytes} is the most",
                condition=FRAMING_ERROR,
            )
        if size < HEAD_BYTES or doff < _MIN_DOFF or 4 * doff > size:
            raise AmqpFault("the head of a frame is damaged", condition=FRAMING_ERROR)

    def _keep(self, rest: memoryview, needs: int) -> None:
        self._needs = needs
        self._rest = bytearray(rest)
