"""The performatives of AMQP 1.0 and of its SASL layer, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.azure.amqp.composites import (
    BINARY,
    BOOL,
    MAP,
    STATE,
    SYMBOL,
    SYMBOLS,
    TEXT,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    Composite,
    Error,
    Source,
    Target,
    code_of,
    nested,
)
from leasehold.azure.amqp.faults import FRAMING_ERROR, AmqpFault
from leasehold.azure.amqp.types import Described
from leasehold.azure.amqp.values import ValueLimit, decode, skip

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.azure.amqp.values import BytesLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Composite):
    """Begins a connection."""

    CODE = 0x10
    KINDS = (TEXT, TEXT, UINT, USHORT, UINT, SYMBOLS, SYMBOLS, SYMBOLS, SYMBOLS, MAP)
    container_id: str
    hostname: str | None = None
    max_frame_size: int = 0xFFFF_FFFF
    channel_max: int = 0xFFFF
    idle_time_out: int | None = None
    outgoing_locales: tuple[str, ...] | None = None
    incoming_locales: tuple[str, ...] | None = None
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Mapping[Any, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Composite):
    """Begins a session."""

    CODE = 0x11
    KINDS = (USHORT, UINT, UINT, UINT, UINT, SYMBOLS, SYMBOLS, MAP)
    remote_channel: int | None = None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = 0xFFFF_FFFF
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Mapping[Any, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach(Composite):
    """Begins a link. ``role`` is true for the receiver."""

    CODE = 0x12
    KINDS = (
        TEXT,
        UINT,
        BOOL,
        UBYTE,
        UBYTE,
        nested(Source),
        nested(Target),
        MAP,
        BOOL,
        UINT,
        ULONG,
        SYMBOLS,
        SYMBOLS,
        MAP,
    )
    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Source | None = None
    target: Target | None = None
    unsettled: Mapping[Any, Any] | None = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Mapping[Any, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(Composite):
    """How much a session or a link may carry."""

    CODE = 0x13
    KINDS = (UINT, UINT, UINT, UINT, UINT, UINT, UINT, UINT, BOOL, BOOL, MAP)
    next_incoming_id: int | None = None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: Mapping[Any, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Composite):
    """A message, or a part of one: its bytes follow in the frame."""

    CODE = 0x14
    KINDS = (UINT, UINT, BINARY, UINT, BOOL, BOOL, UBYTE, STATE, BOOL, BOOL, BOOL)
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: Composite | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposition(Composite):
    """What became of deliveries."""

    CODE = 0x15
    KINDS = (BOOL, UINT, UINT, BOOL, STATE, BOOL)
    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: Composite | None = None
    batchable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach(Composite):
    """Ends a link."""

    CODE = 0x16
    KINDS = (UINT, BOOL, nested(Error))
    handle: int
    closed: bool = False
    error: Error | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Composite):
    """Ends a session."""

    CODE = 0x17
    KINDS = (nested(Error),)
    error: Error | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Composite):
    """Ends a connection."""

    CODE = 0x18
    KINDS = (nested(Error),)
    error: Error | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslMechanisms(Composite):
    """The SASL mechanisms on offer."""

    CODE = 0x40
    KINDS = (SYMBOLS,)
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslInit(Composite):
    """The SASL mechanism that was chosen."""

    CODE = 0x41
    KINDS = (SYMBOL, BINARY, TEXT)
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslChallenge(Composite):
    """A challenge of the server."""

    CODE = 0x42
    KINDS = (BINARY,)
    challenge: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslResponse(Composite):
    """The response to a challenge."""

    CODE = 0x43
    KINDS = (BINARY,)
    response: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslOutcome(Composite):
    """The result of signing in: 0 is success."""

    CODE = 0x44
    KINDS = (UBYTE, BINARY)
    code: int
    additional_data: bytes | None = None


_PERFORMATIVES: Mapping[int, type[Composite]] = {
    each.CODE: each
    for each in (
        *(Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close),
        *(SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome),
    )
}


def parse(
    body: BytesLike, *, max_bytes: int | None = None, max_values: int | None = None
) -> tuple[Composite, int]:
    """Decode the performative at the start of a frame's body; return where the payload begins.

    One of more than ``max_bytes`` bytes or ``max_values`` values is a fault.
    """
    if max_bytes is not None and skip(body, 0) > max_bytes:
        raise AmqpFault("a performative is too big", condition=FRAMING_ERROR)
    value, at = decode(body, limit=None if max_values is None else ValueLimit(max_values))
    if not isinstance(value, Described):
        raise AmqpFault("a frame does not begin with a performative")
    found = _PERFORMATIVES.get(code_of(value.descriptor))
    if found is None:
        raise AmqpFault(f"there is no performative {value.descriptor!r}")
    return found.of(value.value), at
