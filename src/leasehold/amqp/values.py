"""The values of AMQP 1.0, to bytes and back.

Reading gives plain ``None``, ``bool``, ``str``, ``bytes``, ``float``, ``UUID``, ``list`` and
``dict``. Everything else has a class here that says its type on the wire, so that writing what was
read gives the same value of the same type. Writing takes these and plain ``int`` (a long).
"""

from __future__ import annotations

from leasehold.amqp.decoding import Limit, View, decode, skip
from leasehold.amqp.encoding import NULL, encode
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

__all__ = [
    "NULL",
    "Array",
    "Byte",
    "Char",
    "DecimalBytes",
    "Described",
    "Float",
    "Int",
    "Limit",
    "Long",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "View",
    "decode",
    "encode",
    "skip",
]
