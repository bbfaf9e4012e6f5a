"""Composite types of AMQP: described lists of typed fields; and those that are parts of others.

``encode`` writes every field, also null. ``of`` takes a list with missing trailing fields, as the
specification allows; a missing mandatory field or one of another type is an ``AmqpFault``. So the
fields of a composite need no further checks.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.types import Array, Described, Symbol, UByte, UInt, ULong, UShort
from leasehold.azure.amqp.values import NULL, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LIST8 = 254


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field type: how a value is encoded, and how a decoded value is checked."""

    write: Callable[[Any], bytes]
    read: Callable[[Any], Any]


def _typed(write: Callable[[Any], object], kind: type) -> FieldType:
    def read(value: object) -> object:
        if not isinstance(value, kind):
            raise AmqpFault(f"a field is a {type(value).__name__}, not {kind.__name__}")
        return value

    return FieldType(write=lambda value: encode(write(value)), read=read)


def _number(write: Callable[[int], object], *, bits: int) -> FieldType:
    """Return the type of an unsigned number; any integer that fits is accepted."""

    def read(value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            raise AmqpFault(f"a field is a {type(value).__name__}, not a number")
        if not 0 <= value < 1 << bits:
            raise AmqpFault(f"a field is {value}, and has {bits} bits")
        return value

    return FieldType(write=lambda value: encode(write(value)), read=read)


def _unchanged(value: object) -> object:
    return value


def _read_symbols(value: object) -> tuple[str, ...]:
    items = value.items if isinstance(value, Array) else (value,)
    if isinstance(value, list):
        items = tuple(value)
    if not all(isinstance(item, str) for item in items):
        raise AmqpFault("a field is no list of symbols")
    return tuple(map(str, items))


def _write_symbols(value: Sequence[str]) -> bytes:
    return encode(Array(tuple(map(Symbol, value)))) if value else NULL


BOOL = _typed(bool, bool)
UBYTE = _number(UByte, bits=8)
USHORT = _number(UShort, bits=16)
UINT = _number(UInt, bits=32)
ULONG = _number(ULong, bits=64)
TEXT = _typed(str, str)
SYMBOL = _typed(Symbol, str)
BINARY = _typed(bytes, bytes)
MAP = _typed(dict, dict)
ANY = FieldType(write=encode, read=_unchanged)
SYMBOLS = FieldType(write=_write_symbols, read=_read_symbols)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """A described list of fields; ``KINDS`` has the type of each."""

    CODE: ClassVar[int]
    KINDS: ClassVar[tuple[FieldType, ...]]

    def encode(self) -> bytes:
        """Encode the descriptor and all fields."""
        parts = []
        for name, kind, _ in _declared_fields(type(self)):
            value = getattr(self, name)
            parts.append(NULL if value is None else kind.write(value))
        data = b"".join(parts)
        if len(data) < _LIST8:
            body = bytes((0xC0, len(data) + 1, len(parts))) + data
        else:
            sizes = (len(data) + 4).to_bytes(4, "big") + len(parts).to_bytes(4, "big")
            body = b"\xd0" + sizes + data
        return bytes((0, 0x53, self.CODE)) + body

    @classmethod
    def of(cls, values: object) -> Self:
        """Make a composite from decoded fields."""
        if not isinstance(values, list):
            raise AmqpFault(f"the fields of {cls.__name__} are no list")
        declared = _declared_fields(cls)
        if len(values) > len(declared):
            raise AmqpFault(f"{cls.__name__} has {len(declared)} fields, not {len(values)}")
        found = {
            name: kind.read(value)
            for (name, kind, _), value in zip(declared, values, strict=False)
            if value is not None
        }
        for name, _, is_needed in declared:
            if is_needed and name not in found:
                raise AmqpFault(f"{cls.__name__} lacks its field {name}")
        return cls(**found)


def _declared_fields(kind: type[Composite]) -> tuple[tuple[str, FieldType, bool], ...]:
    """Return name, type and whether it is mandatory, for each field."""
    found = _DECLARED_FIELDS.get(kind)
    if found is None:
        found = _DECLARED_FIELDS[kind] = tuple(
            (each.name, of, each.default is MISSING)
            for each, of in zip(fields(kind), kind.KINDS, strict=True)
        )
    return found


_DECLARED_FIELDS: dict[type[Composite], tuple[tuple[str, FieldType, bool], ...]] = {}


def nested(kind: type[Composite], *others: type[Composite]) -> FieldType:
    """Return the type of a composite field; with ``others``, an unknown one is read as null."""
    codes = {each.CODE: each for each in (kind, *others)}

    def read(value: object) -> Composite | None:
        if not isinstance(value, Described):
            raise AmqpFault(f"a field is no {kind.__name__}")
        found = codes.get(code_of(value.descriptor))
        if found is None:
            return None if others else kind.of([])
        return found.of(value.value)

    return FieldType(write=lambda value: value.encode(), read=read)


def code_of(descriptor: object) -> int:
    """Return the numeric code of a descriptor, given as a number or a name; -1 if unknown."""
    if isinstance(descriptor, str):
        return _CODES.get(descriptor, -1)
    return descriptor if isinstance(descriptor, int) else -1


_NAMES = {
    0x10: "open begin attach flow transfer disposition detach end close",
    0x1D: "error",
    0x23: "received accepted rejected released modified source target",
    0x40: "sasl-mechanisms sasl-init sasl-challenge sasl-response sasl-outcome",
}
_CODES = {
    f"amqp:{name}:list": first + at
    for first, names in _NAMES.items()
    for at, name in enumerate(names.split())
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Composite):
    """Why something was refused or ended."""

    CODE = 0x1D
    KINDS = (SYMBOL, TEXT, MAP)
    condition: str
    description: str | None = None
    info: Mapping[Any, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Received(Composite):
    """A delivery was received in part."""

    CODE = 0x23
    KINDS = (UINT, ULONG)
    section_number: int
    section_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(Composite):
    """A delivery was accepted."""

    CODE = 0x24
    KINDS = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected(Composite):
    """A delivery was rejected; the error says why."""

    CODE = 0x25
    KINDS = (nested(Error),)
    error: Error | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Composite):
    """A delivery was not processed."""

    CODE = 0x26
    KINDS = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Modified(Composite):
    """A delivery was not processed, and is returned changed."""

    CODE = 0x27
    KINDS = (BOOL, BOOL, MAP)
    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: Mapping[Any, Any] | None = None


STATE = nested(Accepted, Rejected, Released, Modified, Received)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Composite):
    """Where the messages of a link come from."""

    CODE = 0x28
    KINDS = (ANY, UINT, SYMBOL, UINT, BOOL, MAP, SYMBOL, MAP, ANY, SYMBOLS, SYMBOLS)
    address: Any = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: Mapping[Any, Any] | None = None
    distribution_mode: str | None = None
    filter: Mapping[Any, Any] | None = None
    default_outcome: Any = None
    outcomes: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Composite):
    """Where the messages of a link go to."""

    CODE = 0x29
    KINDS = (ANY, UINT, SYMBOL, UINT, BOOL, MAP, SYMBOLS)
    address: Any = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: Mapping[Any, Any] | None = None
    capabilities: tuple[str, ...] | None = None
