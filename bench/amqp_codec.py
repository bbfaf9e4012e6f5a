"""As much of the AMQP 1.0 encoding as the peer's client needs of a server.

That client reads a performative by the places of its fields: every field is written, also null.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTHS = {
    0x50: ">B",
    0x51: ">b",
    0x52: ">B",
    0x53: ">B",
    0x54: ">b",
    0x55: ">b",
    0x56: ">?",
    0x60: ">H",
    0x61: ">h",
    0x70: ">I",
    0x71: ">i",
    0x80: ">Q",
    0x81: ">q",
    0x83: ">q",
}
_CONSTANTS: Mapping[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: ()}
_BYTES = (0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3)
_MANY = (0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0)

NULL = b"\x40"


# ------------------------------------------------------------------ writing


def uint(value: int) -> bytes:
    return b"\x70" + struct.pack(">I", value)


def ushort(value: int) -> bytes:
    return b"\x60" + struct.pack(">H", value)


def ubyte(value: int) -> bytes:
    return b"\x50" + struct.pack(">B", value)


def integer(value: int) -> bytes:
    return b"\x71" + struct.pack(">i", value)


def long(value: int) -> bytes:
    return b"\x81" + struct.pack(">q", value)


def timestamp(ms: int) -> bytes:
    return b"\x83" + struct.pack(">q", ms)


def boolean(value: object) -> bytes:
    return b"\x41" if value else b"\x42"


def string(text: str) -> bytes:
    data = text.encode()
    return b"\xb1" + struct.pack(">I", len(data)) + data


def symbol(text: str) -> bytes:
    data = text.encode()
    return b"\xb3" + struct.pack(">I", len(data)) + data


def binary(data: bytes) -> bytes:
    return b"\xb0" + struct.pack(">I", len(data)) + data


def identifier(value: object) -> bytes:
    return b"\x98" + value.bytes if isinstance(value, UUID) else string(str(value))


def array(constructor: bytes, items: list[bytes]) -> bytes:
    """Of encoded values that all have the same constructor, which is written once."""
    data = b"".join(item.removeprefix(constructor) for item in items)
    return b"\xf0" + struct.pack(">II", len(data) + 5, len(items)) + constructor + data


def row(*fields: bytes) -> bytes:
    data = b"".join(fields)
    return b"\xd0" + struct.pack(">II", len(data) + 4, len(fields)) + data


def pairs(entries: Mapping[bytes, bytes]) -> bytes:
    data = b"".join(key + value for key, value in entries.items())
    return b"\xd1" + struct.pack(">II", len(data) + 4, 2 * len(entries)) + data


def described(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def frame(channel: int, body: bytes, *, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


# ------------------------------------------------------------------ reading


class Decoder:
    """Reads values one after the other; what is described is read as ``(code, value)``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> bytes:
        return self._data[self._at :]

    def value(self) -> Any:
        kind = self._number(">B")
        if kind == 0:
            return self.value(), self.value()
        return self._of(kind)

    def _of(self, kind: int) -> Any:
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _WIDTHS:
            return self._number(_WIDTHS[kind])
        if kind == 0x98:
            return UUID(bytes=self._bytes(16))
        if kind in _BYTES:
            data = self._bytes(self._size(kind))
            return data if kind in {0xA0, 0xB0} else data.decode()
        return self._many(kind)

    def _many(self, kind: int) -> Any:
        if kind not in _MANY:
            raise ValueError(f"no AMQP type {kind:#x} is known here")
        self._size(kind)  # in bytes, which the values tell too
        count = self._size(kind)
        if kind in {0xE0, 0xF0}:
            of = self._number(">B")
            return [self._of(of) for _ in range(count)]
        values = [self.value() for _ in range(count)]
        if kind in {0xC1, 0xD1}:
            return dict(zip(values[::2], values[1::2], strict=True))
        return values

    def _size(self, kind: int) -> int:
        return self._number(">B" if kind in {0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0} else ">I")

    def _number(self, form: str) -> int:
        found: int
        (found,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]
