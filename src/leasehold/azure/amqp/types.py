"""Types of AMQP 1.0 that Python has no own type for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class UByte(int):
    """0 to 2^8-1."""

    __slots__ = ()


class UShort(int):
    """0 to 2^16-1."""

    __slots__ = ()


class UInt(int):
    """0 to 2^32-1."""

    __slots__ = ()


class ULong(int):
    """0 to 2^64-1."""

    __slots__ = ()


class Byte(int):
    """-2^7 to 2^7-1."""

    __slots__ = ()


class Short(int):
    """-2^15 to 2^15-1."""

    __slots__ = ()


class Int(int):
    """-2^31 to 2^31-1."""

    __slots__ = ()


class Long(int):
    """-2^63 to 2^63-1."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970 in UTC."""

    __slots__ = ()


class Float(float):
    """A float of 32 bits; a plain ``float`` is a double."""

    __slots__ = ()


class Char(str):
    """One character."""

    __slots__ = ()


class Symbol(str):
    """A name of the protocol, in ASCII."""

    __slots__ = ()


class DecimalBytes(bytes):
    """A decimal number of 4, 8 or 16 bytes, kept encoded."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Array:
    """Values that all have one type."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor, a number or a symbol, that defines its meaning."""

    descriptor: Any
    value: Any
