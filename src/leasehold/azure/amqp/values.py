"""Encode and decode values of AMQP 1.0.

Decoding returns plain ``None``, ``bool``, ``str``, ``bytes``, ``float``, ``UUID``, ``list`` and
``dict``. Every other type has a class in ``types``, so that encoding a decoded value gives the same
value of the same type. Encoding also takes plain ``int`` (a long). It uses the short forms, except
for the empty list, which some clients cannot read; elements of an array have the widest form.

Decoding is safe for malicious bytes. Nesting is bounded, the number of values is bounded by the
number of bytes, whatever they claim, and so is the time. A value of one byte may still take 60
bytes of memory: pass a ``ValueLimit`` for untrusted input that is kept. Nothing but ``AmqpFault``
is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.types import (
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
    """Encode a value, with its type."""
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
    """Return the widest type of a value, and its bytes; elements of arrays are written so."""
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


def _fixed_width(code: int, form: str) -> Callable[[Any], tuple[bytes, bytes]]:
    constructor, pack = bytes((code,)), struct.Struct(form).pack
    return lambda value: (constructor, pack(value))


def _length_prefixed(
    code: int, to_bytes: Callable[[Any], bytes]
) -> Callable[[Any], tuple[bytes, bytes]]:
    constructor = bytes((code,))

    def write(value: object) -> tuple[bytes, bytes]:
        data = to_bytes(value)
        return constructor, len(data).to_bytes(4, "big") + data

    return write


def _wide_list(value: Sequence[object]) -> tuple[bytes, bytes]:
    data = b"".join(map(_encode, value))
    return b"\xd0", struct.pack(">II", len(data) + 4, len(value)) + data


def _wide_map(value: Mapping[object, object]) -> tuple[bytes, bytes]:
    data = b"".join(_encode(key) + _encode(item) for key, item in value.items())
    return b"\xd1", struct.pack(">II", len(data) + 4, 2 * len(value)) + data


def _wide_array(value: Array) -> tuple[bytes, bytes]:
    parts = [_wide(item) for item in value.items]
    kinds = {constructor for constructor, _ in parts} or {NULL}
    if len(kinds) > 1:
        raise AmqpFault("the values of an array have different types")
    data = kinds.pop() + b"".join(part for _, part in parts)
    return b"\xf0", struct.pack(">II", len(data) + 4, len(parts)) + data


def _wide_described(value: Described) -> tuple[bytes, bytes]:
    constructor, data = _wide(value.value)
    return b"\x00" + _encode(value.descriptor) + constructor, data


def _wide_decimal(value: DecimalBytes) -> tuple[bytes, bytes]:
    code = {4: b"\x74", 8: b"\x84", 16: b"\x94"}.get(len(value))
    if code is None:
        raise AmqpFault("a decimal has 4, 8 or 16 bytes")
    return code, bytes(value)


_WIDE: dict[type, Callable[[Any], tuple[bytes, bytes]]] = {
    type(None): lambda _: (NULL, b""),
    bool: lambda value: (b"\x56", b"\x01" if value else b"\x00"),
    UByte: _fixed_width(0x50, ">B"),
    UShort: _fixed_width(0x60, ">H"),
    UInt: _fixed_width(0x70, ">I"),
    ULong: _fixed_width(0x80, ">Q"),
    Byte: _fixed_width(0x51, ">b"),
    Short: _fixed_width(0x61, ">h"),
    Int: _fixed_width(0x71, ">i"),
    Long: _fixed_width(0x81, ">q"),
    Timestamp: _fixed_width(0x83, ">q"),
    int: _fixed_width(0x81, ">q"),
    Float: _fixed_width(0x72, ">f"),
    float: _fixed_width(0x82, ">d"),
    Char: lambda value: (b"\x73", ord(value).to_bytes(4, "big")),
    DecimalBytes: _wide_decimal,
    UUID: lambda value: (b"\x98", value.bytes),
    bytes: _length_prefixed(0xB0, bytes),
    bytearray: _length_prefixed(0xB0, bytes),
    memoryview: _length_prefixed(0xB0, bytes),
    Symbol: _length_prefixed(0xB3, lambda value: value.encode("ascii")),
    str: _length_prefixed(0xB1, lambda value: value.encode()),
    list: _wide_list,
    tuple: _wide_list,
    dict: _wide_map,
    Array: _wide_array,
    Described: _wide_described,
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


BytesLike: TypeAlias = "bytes | bytearray | memoryview"

MAX_DEPTH = 32
_EXTRA_VALUES = 64  # elements of arrays may have no bytes
# An attacker can choose such keys with equal hashes, which makes big maps very slow.
_SLOW_KEYS = (UUID, Described, Array)
_MAX_SLOW_KEYS = 64
_SURROGATES = range(0xD800, 0xE000)


class ValueLimit:
    """How many values may be decoded, in one call or in several together."""

    __slots__ = ("_left",)

    def __init__(self, max_values: int) -> None:
        self._left = max_values

    def take(self, count: int) -> None:
        """Count values; more than the limit are a fault."""
        self._left -= count
        if self._left < 0:
            raise AmqpFault("there are too many values")


def decode(data: BytesLike, at: int = 0, *, limit: ValueLimit | None = None) -> tuple[Any, int]:
    """Decode the value at ``at``; return it and where it ends."""
    reader = _ValueReader(data, limit)
    try:
        return reader.value(at, MAX_DEPTH)
    except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
        raise AmqpFault(f"there is no sound value at byte {at}: {error}") from error


def skip(data: BytesLike, at: int, depth: int = MAX_DEPTH) -> int:
    """Return where the value at ``at`` ends, without decoding it."""
    try:
        while not data[at]:  # a described value: past its descriptor
            if not depth:
                raise AmqpFault("values are nested too deeply")
            depth -= 1
            at = skip(data, at + 1, depth)
        code, at = data[at], at + 1
        width = _WIDTHS[code >> 4]
        if width >= 0:
            at += width
        elif width == _SIZE8:
            at += 1 + data[at]
        elif width == _SIZE32:
            at += 4 + _U32(data, at)[0]
        else:
            raise AmqpFault(f"there is no AMQP type {code:#04x}")
    except (IndexError, struct.error) as error:
        raise AmqpFault("the bytes end inside a value") from error
    if at > len(data):
        raise AmqpFault("the bytes end inside a value")
    return at


_U32 = struct.Struct(">I").unpack_from
_NO_TYPE, _SIZE8, _SIZE32 = -1, -2, -3
# By the upper half of the type: how many bytes follow, or how many bytes hold the size.
_WIDTHS = (
    *(_NO_TYPE, _NO_TYPE, _NO_TYPE, _NO_TYPE, 0, 1, 2, 4),
    *(8, 16, _SIZE8, _SIZE32, _SIZE8, _SIZE32, _SIZE8, _SIZE32),
)
_CONSTANTS: dict[int, Any] = {
    0x40: None,
    0x41: True,
    0x42: False,
    0x43: UInt(0),
    0x44: ULong(0),
}
_NUMBERS: dict[int, tuple[Callable[..., tuple[Any, ...]], type, int]] = {
    code: (struct.Struct(form).unpack_from, kind, struct.calcsize(form))
    for code, (form, kind) in {
        0x50: (">B", UByte),
        0x51: (">b", Byte),
        0x52: (">B", UInt),
        0x53: (">B", ULong),
        0x54: (">b", Int),
        0x55: (">b", Long),
        0x56: (">?", bool),
        0x60: (">H", UShort),
        0x61: (">h", Short),
        0x70: (">I", UInt),
        0x71: (">i", Int),
        0x72: (">f", Float),
        0x80: (">Q", ULong),
        0x81: (">q", Long),
        0x82: (">d", float),
        0x83: (">q", Timestamp),
    }.items()
}
_FIXED: dict[int, tuple[Callable[[bytes], Any], int]] = {
    0x73: (lambda data: _char(int.from_bytes(data, "big")), 4),
    0x74: (DecimalBytes, 4),
    0x84: (DecimalBytes, 8),
    0x94: (DecimalBytes, 16),
    0x98: (lambda data: UUID(bytes=data), 16),
}
_TEXTS: dict[int, Callable[[bytes], Any]] = {
    0xA0: bytes,
    0xB0: bytes,
    0xA1: lambda data: data.decode(),
    0xB1: lambda data: data.decode(),
    0xA3: lambda data: Symbol(data.decode("ascii")),
    0xB3: lambda data: Symbol(data.decode("ascii")),
}
_LISTS = (0xC0, 0xD0)
_MAPS = (0xC1, 0xD1)
_ARRAYS = (0xE0, 0xF0)


def _char(number: int) -> Char:
    if number in _SURROGATES:
        raise AmqpFault("half a character is none")
    return Char(chr(number))


class _ValueReader:
    """Decodes one value."""

    __slots__ = ("_data", "_limit")

    def __init__(self, data: BytesLike, limit: ValueLimit | None) -> None:
        self._data = data
        self._limit = limit

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        code = self._data[at]
        if code:
            return self._of(code, at + 1, depth)
        if not depth:
            raise AmqpFault("values are nested too deeply")
        self._take(1)
        descriptor, at = self.value(at + 1, depth - 1)
        value, at = self.value(at, depth - 1)
        return Described(descriptor, value), at

    def _of(self, code: int, at: int, depth: int) -> tuple[Any, int]:
        number = _NUMBERS.get(code)
        if number is not None:
            unpack, kind, width = number
            return kind(unpack(self._data, at)[0]), at + width
        if code in _CONSTANTS:
            return _CONSTANTS[code], at
        if code == 0x45:  # noqa: PLR2004 - the list without bytes
            return [], at
        text = _TEXTS.get(code)
        if text is not None:
            start, end = self._span(code, at)
            return text(bytes(self._data[start:end])), end
        fixed = _FIXED.get(code)
        if fixed is not None:
            make, width = fixed
            if at + width > len(self._data):
                raise AmqpFault("the bytes end inside a value")
            return make(bytes(self._data[at : at + width])), at + width
        return self._many(code, at, depth)

    def _span(self, code: int, at: int) -> tuple[int, int]:
        """Return where the bytes of a value of variable size begin and end."""
        if code & 0x10:
            start, size = at + 4, _U32(self._data, at)[0]
        else:
            start, size = at + 1, self._data[at]
        if start + size > len(self._data):
            raise AmqpFault("the bytes end inside a value")
        return start, start + size

    def _many(self, code: int, at: int, depth: int) -> tuple[Any, int]:
        if code not in _LISTS and code not in _MAPS and code not in _ARRAYS:
            raise AmqpFault(f"there is no AMQP type {code:#04x}")
        if not depth:
            raise AmqpFault("values are nested too deeply")
        start, end = self._span(code, at)
        if code & 0x10:
            count, start = _U32(self._data, start)[0], start + 4
        else:
            count, start = self._data[start], start + 1
        if code in _ARRAYS:
            found, start = self._array(start, count, depth - 1, room=end - start)
        else:
            _check_count(count, end - start)
            self._take(count)
            found = []
            for _ in range(count):
                value, start = self.value(start, depth - 1)
                found.append(value)
        if start > end or (start != end and count):
            raise AmqpFault("a compound value is not as long as it says")
        if code in _MAPS:
            if count % 2:
                raise AmqpFault("a map has a key without a value")
            keys = found[::2]
            if sum(isinstance(key, _SLOW_KEYS) for key in keys) > _MAX_SLOW_KEYS:
                raise AmqpFault("a map has too many keys that are no text and no numbers")
            return dict(zip(keys, found[1::2], strict=True)), end
        return (Array(tuple(found)) if code in _ARRAYS else found), end

    def _array(self, at: int, count: int, depth: int, *, room: int) -> tuple[list[Any], int]:
        descriptors: list[Any] = []
        while not self._data[at]:
            if len(descriptors) >= depth:
                raise AmqpFault("values are nested too deeply")
            descriptor, at = self.value(at + 1, depth)
            descriptors.append(descriptor)
        _check_count(count * max(len(descriptors), 1), room + _EXTRA_VALUES)
        self._take(count * (1 + len(descriptors)))
        code, at = self._data[at], at + 1
        found = []
        for _ in range(count):
            value, at = self._of(code, at, depth)
            for descriptor in reversed(descriptors):
                value = Described(descriptor, value)
            found.append(value)
        return found, at

    def _take(self, count: int) -> None:
        if self._limit is not None:
            self._limit.take(count)


def _check_count(count: int, max_values: int) -> None:
    """Check that few bytes do not claim a million values."""
    if count > max_values:
        raise AmqpFault(f"{count} values can not be in so few bytes")
