"""Convert AMQP messages to events, and events back to messages.

An event has a body, a key, and text properties. A message has more: typed application properties,
its own properties (id, content type, …), annotations, a header, a footer, and other kinds of body.

Endpoint and source use the same rule, so an event has the same properties whether it comes as a
message or from the log. Text values become properties as they are. If a message has anything else,
all its sections are kept as they were sent, in base64 under the property ``$amqp``, besides the
readable properties.

Not kept: delivery annotations, which are for one hop; the header's durable flag, which is true for
all events; and annotations that only the service may set (``x-opt-…`` for positions and times).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SECTIONS_PROPERTY,
    read_message,
    section,
    sections,
    text_of,
    texts_of,
)
from leasehold.azure.amqp.values import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.azure.amqp.messages import Message

Pairs: TypeAlias = "tuple[tuple[str, str], ...]"
SectionSpan: TypeAlias = "tuple[int, int, int, int]"  # as ``sections`` yields it

PARTITION_KEY = "x-opt-partition-key"
PRODUCER_SEQUENCE = "com.microsoft:producer-sequence-number"
SERVICE_ANNOTATIONS = frozenset(
    (
        *(PARTITION_KEY, PRODUCER_SEQUENCE, "com.microsoft:producer-epoch"),
        *("com.microsoft:producer-id", "x-opt-sequence-number", "x-opt-offset"),
        *("x-opt-enqueued-time", "x-opt-sequence-number-epoch"),
    )
)
_MAX_CACHED_CHARS = 4096  # up to a thousand results are cached
_MAX_CACHED_BYTES = 1 << 10


def body_sections(found: Sequence[SectionSpan]) -> list[SectionSpan]:
    """Return the sections of the body: data, sequences, or a value."""
    return [each for each in found if DATA <= each[0] < FOOTER]


def body_of(message: bytes, found: Sequence[SectionSpan]) -> bytes:
    """Return the body: data as it is, any other value as text."""
    bodies = body_sections(found)
    if not bodies:
        raise AmqpFault("a message has no body")
    parts = [decode(message, each[2])[0] for each in bodies]
    if all(each[0] == DATA for each in bodies):
        if not all(isinstance(part, bytes) for part in parts):
            raise AmqpFault("a data section holds something else than bytes")
        return b"".join(parts)
    return b"\n".join(text_of(part).encode() for part in parts)


def annotations_of(message: bytes, found: Sequence[SectionSpan]) -> Mapping[Any, Any]:
    """Return the annotations of a message."""
    maps = [read_map(message, each) for each in found if each[0] == MESSAGE_ANNOTATIONS]
    return maps[-1] if maps else {}


def pairs_of(message: bytes, found: Sequence[SectionSpan]) -> Pairs | None:
    """Return the event properties of a message, or of its part before the body; None if none."""
    texts: dict[str, str] = {}
    sections_kept: list[bytes] = []
    is_plain = True
    keeps_body = [each[0] for each in body_sections(found)] not in ([DATA], [])
    for each in found:
        code, start, value_at, end = each
        if code == MESSAGE_ANNOTATIONS:
            values = read_map(message, each)
            others = {
                name: value for name, value in values.items() if name not in SERVICE_ANNOTATIONS
            }
            if others:
                sections_kept.append(section(code, others))
                is_plain = False
        elif code == APPLICATION_PROPERTIES:
            values = read_map(message, each)
            texts = texts_of(values)
            is_text = all(
                type(name) is str and type(value) is str for name, value in values.items()
            )
            is_plain = is_plain and is_text and SECTIONS_PROPERTY not in texts
            sections_kept.append(message[start:end])
        elif code in {HEADER, PROPERTIES}:
            if has_content(code, decode(message, value_at)[0]):
                sections_kept.append(message[start:end])
                is_plain = False
        elif code == FOOTER or (keeps_body and DATA <= code < FOOTER):
            sections_kept.append(message[start:end])
            is_plain = False
    if not is_plain:
        texts[SECTIONS_PROPERTY] = base64.b64encode(b"".join(sections_kept)).decode()
    return tuple(texts.items()) or None


def has_content(code: int, values: object) -> bool:
    """Return whether a header or properties hold more than the durable flag."""
    if not isinstance(values, list):
        raise AmqpFault("a section of a message has a value of another type")
    return any(value is not None for value in values[1 if code == HEADER else 0 :])


def read_map(message: bytes, found: SectionSpan) -> Mapping[Any, Any]:
    """Return the map that a section holds."""
    value = decode(message, found[2])[0]
    if not isinstance(value, dict):
        raise AmqpFault("a section of a message is no map")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHead:
    """Key, properties and producer number of a message, as the log keeps them."""

    key: str | None = None
    properties: tuple[tuple[str, str], ...] | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSections:
    """Sections to return to clients: before the annotations, after them, and after the body.

    ``annotations`` are the encoded entries of that map, ``count`` the number of values in them. If
    ``has_body``, ``after`` has a body that replaces the event's own.
    """

    before: bytes = b""
    annotations: bytes = b""
    count: int = 0
    after: bytes = b""
    footer: bytes = b""
    has_body: bool = False


NO_SECTIONS = KeptSections()


def split_message(data: bytes) -> tuple[bytes, MessageHead, tuple[int, int] | None]:
    """Return the body, the rest, and where the body begins if it is one data section at the end.

    The two numbers are the length of what is before the data section, and of the section's head.
    """
    found = list(sections(data))
    body = body_of(data, found)
    code, start, _, end = found[-1]
    is_only_data = [each[0] for each in body_sections(found)] == [DATA] and code == DATA
    return body, _head(data, found), (start, end - start - len(body)) if is_only_data else None


def head_of(data: bytes) -> MessageHead:
    """Return the head of a message, from the bytes before its body."""
    return _head(data, list(sections(data)))


def _head(data: bytes, found: Sequence[SectionSpan]) -> MessageHead:
    annotations = annotations_of(data, found)
    key, number = annotations.get(PARTITION_KEY), annotations.get(PRODUCER_SEQUENCE)
    return MessageHead(
        key=key if isinstance(key, str) else None,
        properties=pairs_of(data, found),
        sequence=number if isinstance(number, int) else None,
    )


def kept_sections(properties: tuple[tuple[str, str], ...]) -> KeptSections:
    """Return the sections to send for the properties of an event.

    A ``$amqp`` property that cannot be read is omitted, so that reading can continue.
    """
    if sum(len(name) + len(value) for name, value in properties) > _MAX_CACHED_CHARS:
        return _kept_sections(properties)
    return _cached_kept_sections(properties)


@lru_cache(maxsize=1024)
def _cached_kept_sections(properties: tuple[tuple[str, str], ...]) -> KeptSections:
    return _kept_sections(properties)


def _kept_sections(properties: tuple[tuple[str, str], ...]) -> KeptSections:
    texts = dict(properties)
    raw = texts.pop(SECTIONS_PROPERTY, None)
    if raw is None:
        return KeptSections(after=section(APPLICATION_PROPERTIES, texts)) if texts else NO_SECTIONS
    try:
        return _sort_sections(base64.b64decode(raw, validate=True))
    except (AmqpFault, binascii.Error, ValueError):
        return KeptSections(after=section(APPLICATION_PROPERTIES, texts)) if texts else NO_SECTIONS


def _sort_sections(data: bytes) -> KeptSections:
    before = after = footer = entries = b""
    count, has_body = 0, False
    for each in sections(data):
        code, start, _, end = each
        if code == MESSAGE_ANNOTATIONS:
            found = read_map(data, each)
            entries = b"".join(encode(name) + encode(value) for name, value in found.items())
            count = 2 * len(found)
        elif code == HEADER:
            before = data[start:end]
        elif code == FOOTER:
            footer = data[start:end]
        else:
            after += data[start:end]
            has_body = has_body or code >= DATA
    return KeptSections(
        before=before,
        annotations=entries,
        count=count,
        after=after,
        footer=footer,
        has_body=has_body,
    )


def pairs_from_sections(properties: bytes | None, application: bytes | None) -> Pairs | None:
    """Return the event properties for these two encoded section values and a data section."""
    size = len(properties or b"") + len(application or b"")
    make = _cached_pairs if size <= _MAX_CACHED_BYTES else _pairs_from_sections
    return make(properties, application)


def _pairs_from_sections(properties: bytes | None, application: bytes | None) -> Pairs | None:
    message = b"".join(
        bytes((0, 0x53, code)) + value
        for code, value in ((PROPERTIES, properties), (APPLICATION_PROPERTIES, application))
        if value is not None
    )
    message += section(DATA, b"")
    return pairs_of(message, list(sections(message)))


@lru_cache(maxsize=1024)
def _cached_pairs(properties: bytes | None, application: bytes | None) -> Pairs | None:
    return _pairs_from_sections(properties, application)


def original_message(properties: Mapping[str, str], body: bytes) -> Message:
    """Return the message that an event came as, with typed values, id, content type and so on.

    Raises:
        AmqpFault: the property ``$amqp`` is damaged.
    """
    texts = dict(properties)
    raw = texts.pop(SECTIONS_PROPERTY, None)
    if raw is None:
        parts = section(APPLICATION_PROPERTIES, texts) if texts else b""
    else:
        try:
            parts = base64.b64decode(raw, validate=True)
        except ValueError as error:
            raise AmqpFault("the property $amqp is no base64") from error
    if not any(DATA <= code < FOOTER for code, _, _, _ in sections(parts)):
        parts += section(DATA, body)
    return read_message(parts)
