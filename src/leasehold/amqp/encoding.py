"""Writes values of AMQP 1.0.

The short forms are used where there are some, but for the empty list, which some clients can not
read. The elements of an array all have the widest form of their type.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.types import (
    Array,
    Byte,
    Char,
    DecimalBytes,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NULL = b"\x40"
_BYTE = 255


def encode(value: object) -> bytes:
    """The bytes of a value, with its type in front.

    Raises:
        AmqpFault: it has no AMQP type, or does not fit into it.
    """
    try:
        return _encode(value)
    except (struct.error, OverflowError, ValueError, RecursionError) as error:
        raise AmqpFault(f"a {type(value).__name__} can not be written: {error}") from error


def _encode(value: object) -> bytes:
    small = _SMALL.get(type(value))
    if small is not None:
        return small(value)
    constructor, data = _wide(value)
    return constructor + data


def _wide(value: object) -> tuple[bytes, bytes]:
    """The widest type of a value, and its bytes: so the elements of an array are written."""
    found = _WIDE.get(type(value))
    if found is None:
        found = next((_WIDE[base] for base in type(value).__mro__ if base in _WIDE), None)
    if found is not None:
        return found(value)
    if isinstance(value, Mapping):
        return _WIDE[dict](value)
    if isinstance(value, Sequence):
        return _WIDE[list](value)
    raise AmqpFault(f"a {type(value).__name__} has no AMQP type")


def _packed(code: int, form: str) -> Callable[[Any], tuple[bytes, bytes]]:
    constructor, pack = bytes((code,)), struct.Struct(form).pack
    return lambda value: (constructor, pack(value))


def _sized(code: int, to_bytes: Callable[[Any], bytes]) -> Callable[[Any], tuple[bytes, bytes]]:
    constructor = bytes((code,))

    def write(value: object) -> tuple[bytes, bytes]:
        data = to_bytes(value)
        return constructor, len(data).to_bytes(4, "big") + data

    return write


def _listed(value: Sequence[object]) -> tuple[bytes, bytes]:
    data = b"".join(map(_encode, value))
    return b"\xd0", struct.pack(">II", len(data) + 4, len(value)) + data


def _mapped(value: Mapping[object, object]) -> tuple[bytes, bytes]:
    data = b"".join(_encode(key) + _encode(item) for key, item in value.items())
    return b"\xd1", struct.pack(">II", len(data) + 4, 2 * len(value)) + data


def _arrayed(value: Array) -> tuple[bytes, bytes]:
    parts = [_wide(item) for item in value.items]
    kinds = {constructor for constructor, _ in parts} or {NULL}
    if len(kinds) > 1:
        raise AmqpFault("the values of an array have different types")
    data = kinds.pop() + b"".join(part for _, part in parts)
    return b"\xf0", struct.pack(">II", len(data) + 4, len(parts)) + data


def _described(value: Described) -> tuple[bytes, bytes]:
    constructor, data = _wide(value.value)
    return b"\x00" + _encode(value.descriptor) + constructor, data


def _decimal(value: DecimalBytes) -> tuple[bytes, bytes]:
    code = {4: b"\x74", 8: b"\x84", 16: b"\x94"}.get(len(value))
    if code is None:
        raise AmqpFault("a decimal has 4, 8 or 16 bytes")
    return code, bytes(value)


_WIDE: dict[type, Callable[[Any], tuple[bytes, bytes]]] = {
    type(None): lambda _: (NULL, b""),
    bool: lambda value: (b"\x56", b"\x01" if value else b"\x00"),
    UByte: _packed(0x50, ">B"),
    UShort: _packed(0x60, ">H"),
    UInt: _packed(0x70, ">I"),
    ULong: _packed(0x80, ">Q"),
    Byte: _packed(0x51, ">b"),
    Short: _packed(0x61, ">h"),
    Int: _packed(0x71, ">i"),
    Long: _packed(0x81, ">q"),
    Timestamp: _packed(0x83, ">q"),
    int: _packed(0x81, ">q"),
    Float: _packed(0x72, ">f"),
    float: _packed(0x82, ">d"),
    Char: lambda value: (b"\x73", ord(value).to_bytes(4, "big")),
    DecimalBytes: _decimal,
    UUID: lambda value: (b"\x98", value.bytes),
    bytes: _sized(0xB0, bytes),
    bytearray: _sized(0xB0, bytes),
    memoryview: _sized(0xB0, bytes),
    Symbol: _sized(0xB3, lambda value: value.encode("ascii")),
    str: _sized(0xB1, lambda value: value.encode()),
    list: _listed,
    tuple: _listed,
    dict: _mapped,
    Array: _arrayed,
    Described: _described,
}


def _short_text(code: int, wide: int, coding: str) -> Callable[[Any], bytes]:
    def write(value: str) -> bytes:
        data = value.encode(coding)
        if len(data) <= _BYTE:
            return bytes((code, len(data))) + data
        return bytes((wide,)) + len(data).to_bytes(4, "big") + data

    return write


def _short_number(zero: int, code: int, wide: int, width: int) -> Callable[[Any], bytes]:
    def write(value: int) -> bytes:
        if not value:
            return bytes((zero,))
        if 0 < value <= _BYTE:
            return bytes((code, value))
        return bytes((wide,)) + value.to_bytes(width, "big")

    return write


_SMALL: dict[type, Callable[[Any], bytes]] = {
    bool: lambda value: b"\x41" if value else b"\x42",
    UInt: _short_number(0x43, 0x52, 0x70, 4),
    ULong: _short_number(0x44, 0x53, 0x80, 8),
    Symbol: _short_text(0xA3, 0xB3, "ascii"),
    str: _short_text(0xA1, 0xB1, "utf-8"),
}
