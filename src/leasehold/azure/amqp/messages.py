"""Messages and their sections, read and written completely.

For requests, answers, and everything that needs no faster decoder. ``texts_of`` defines how typed
application properties are written as text: all code that turns messages into events uses it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.types import Described
from leasehold.azure.amqp.values import ValueLimit, decode, encode, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from leasehold.azure.amqp.values import BytesLike

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78
BATCH_FORMAT = 0x8001_3700  # of Event Hubs: each data section is a message
ARROW_FORMAT = 0x4C48_0001  # Leasehold's own: the payload is one Arrow record batch
ARROW_CAPABILITY = "leasehold:arrow"
# A property of an event of the log: sections of a message that text cannot hold, in base64.
SECTIONS_PROPERTY = "$amqp"

_NAMES = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_MAPS = {DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER}
_LISTS = {HEADER, PROPERTIES, SEQUENCE}
_PROPERTY_COUNT = 13
_CORRELATION = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The sections of a message. Its body: ``data`` sections, ``sequences``, or one ``value``."""

    header: tuple[Any, ...] | None = None
    delivery_annotations: Mapping[Any, Any] = field(default_factory=dict)
    annotations: Mapping[Any, Any] = field(default_factory=dict)
    properties: tuple[Any, ...] = ()
    application_properties: Mapping[Any, Any] = field(default_factory=dict)
    data: tuple[bytes, ...] = ()
    sequences: tuple[Any, ...] = ()
    value: Any = None
    footer: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def message_id(self) -> Any:
        """The id, which answers repeat as their correlation id."""
        return self.properties[0] if self.properties else None

    def encode(self) -> bytes:
        """Encode the sections that are not empty, and always a body."""
        parts = []
        if self.header is not None:
            parts.append(section(HEADER, list(self.header)))
        for code, found in (
            (DELIVERY_ANNOTATIONS, self.delivery_annotations),
            (MESSAGE_ANNOTATIONS, self.annotations),
        ):
            if found:
                parts.append(section(code, found))
        if self.properties:
            parts.append(section(PROPERTIES, list(self.properties)))
        if self.application_properties:
            parts.append(section(APPLICATION_PROPERTIES, self.application_properties))
        parts += [section(DATA, each) for each in self.data]
        parts += [section(SEQUENCE, each) for each in self.sequences]
        if not self.data and not self.sequences:
            parts.append(section(VALUE, self.value))
        if self.footer:
            parts.append(section(FOOTER, self.footer))
        return b"".join(parts)


def section(code: int, value: object) -> bytes:
    """Encode one section."""
    return bytes((0, 0x53, code)) + encode(value)


def answer_to(request: Message, *, status: Mapping[str, object], value: object) -> Message:
    """Make the answer to a request, with the status in its application properties."""
    properties = [None] * _PROPERTY_COUNT
    properties[_CORRELATION] = request.message_id
    return Message(properties=tuple(properties), application_properties=dict(status), value=value)


def sections(data: BytesLike) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each section its code, its start, the start of its value, and its end."""
    at, end = 0, len(data)
    while at < end:
        if data[at]:
            raise AmqpFault("a message has something that is no section")
        value_at = skip(data, at + 1)
        if data[at + 1] == 0x53:  # noqa: PLR2004 - the usual encoding of a code
            code = data[at + 2]
        else:
            name, _ = decode(data, at + 1)
            code = name if isinstance(name, int) else _NAMES.get(str(name), -1)
        after = skip(data, value_at)
        if not HEADER <= code <= FOOTER:
            raise AmqpFault(f"a message has no section {code}")
        yield code, at, value_at, after
        at = after


def read_message(data: BytesLike, *, max_values: int | None = None) -> Message:
    """Decode a message; more than ``max_values`` values and sections are a fault."""
    limit = None if max_values is None else ValueLimit(max_values)
    found: dict[int, Any] = {}
    data_parts: list[bytes] = []
    sequences: list[Any] = []
    for code, _, value_at, _ in sections(data):
        if limit is not None:
            limit.take(1)
        value, _ = decode(data, value_at, limit=limit)
        if (code in _MAPS and not isinstance(value, dict)) or (
            code in _LISTS and not isinstance(value, list)
        ):
            raise AmqpFault(f"the section {code:#x} of a message has a value of another type")
        if code == DATA:
            if not isinstance(value, bytes):
                raise AmqpFault("a data section holds something else than bytes")
            data_parts.append(value)
        elif code == SEQUENCE:
            sequences.append(value)
        else:
            found[code] = value
    header = found.get(HEADER)
    return Message(
        header=None if header is None else tuple(header),
        delivery_annotations=found.get(DELIVERY_ANNOTATIONS, {}),
        annotations=found.get(MESSAGE_ANNOTATIONS, {}),
        properties=tuple(found.get(PROPERTIES, ())),
        application_properties=found.get(APPLICATION_PROPERTIES, {}),
        data=tuple(data_parts),
        sequences=tuple(sequences),
        value=found.get(VALUE),
        footer=found.get(FOOTER, {}),
    )


def texts_of(application_properties: Mapping[Any, Any]) -> dict[str, str]:
    """Return application properties as text: other values as in JSON, bytes in base64.

    Null values are omitted.
    """
    return {
        str(name): text_of(value)
        for name, value in application_properties.items()
        if value is not None
    }


def text_of(value: object) -> str:
    """Return one value as text, as ``texts_of`` does."""
    for kind, text in _TEXTS:
        if isinstance(value, kind):
            return text(value)
    return base64.b64encode(encode(value)).decode()


_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, str),
    (bool, lambda value: "true" if value else "false"),
    (int, int.__repr__),  # also a timestamp: its milliseconds
    (float, float.__repr__),
    (bytes, lambda value: base64.b64encode(value).decode()),
    (UUID, str),
    (Described, lambda value: text_of(value.value)),
)
