"""How an AMQP message becomes an event, and an event a message again.

An event has a body, a key, and properties of text. A message has more: typed application
properties, its own properties (id, content type, …), annotations, a header, a footer, and other
kinds of body.

One rule for the endpoint and for the source, so that an event has the same properties whether it
comes as a message or out of the log. What is only text goes into the properties as it is. Of any
other message all sections are kept as they were sent, in base64 under the property ``$amqp``,
beside the readable ones.

Not kept: delivery annotations, which are for one hop; whether the header says durable, which all
events are; and annotations that only the service may set (``x-opt-…`` for places and times).
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
Found: TypeAlias = "tuple[int, int, int, int]"  # as ``sections`` gives it

PARTITION_KEY = "x-opt-partition-key"
PRODUCER_SEQUENCE = "com.microsoft:producer-sequence-number"
OF_SERVICE = frozenset(
    (
        *(PARTITION_KEY, PRODUCER_SEQUENCE, "com.microsoft:producer-epoch"),
        *("com.microsoft:producer-id", "x-opt-sequence-number", "x-opt-offset"),
        *("x-opt-enqueued-time", "x-opt-sequence-number-epoch"),
    )
)
_MAX_REMEMBERED = 4096  # characters: a thousand of the biggest would fill the memory
_MAX_CACHED_BYTES = 1 << 10


def bodies_of(found: Sequence[Found]) -> list[Found]:
    """The sections of the body: of data, of sequences, or a value."""
    return [each for each in found if DATA <= each[0] < FOOTER]


def body_of(message: bytes, found: Sequence[Found]) -> bytes:
    """The body: its data as it is, any other value as its text.

    Raises:
        AmqpFault: there is none, or it is damaged.
    """
    bodies = bodies_of(found)
    if not bodies:
        raise AmqpFault("a message has no body")
    parts = [decode(message, each[2])[0] for each in bodies]
    if all(each[0] == DATA for each in bodies):
        if not all(isinstance(part, bytes) for part in parts):
            raise AmqpFault("a data section holds something else than bytes")
        return b"".join(parts)
    return b"\n".join(text_of(part).encode() for part in parts)


def annotations_of(message: bytes, found: Sequence[Found]) -> Mapping[Any, Any]:
    """The annotations of a message.

    Raises:
        AmqpFault: they are damaged.
    """
    maps = [map_at(message, each) for each in found if each[0] == MESSAGE_ANNOTATIONS]
    return maps[-1] if maps else {}


def pairs_of(message: bytes, found: Sequence[Found]) -> Pairs | None:
    """The properties of the event in a message, or in its part before the body; None without any.

    Raises:
        AmqpFault: a section is damaged.
    """
    texts: dict[str, str] = {}
    kept: list[bytes] = []
    is_plain = True
    keeps_body = [each[0] for each in bodies_of(found)] not in ([DATA], [])
    for each in found:
        code, start, value_at, end = each
        if code == MESSAGE_ANNOTATIONS:
            given = map_at(message, each)
            others = {name: value for name, value in given.items() if name not in OF_SERVICE}
            if others:
                kept.append(section(code, others))
                is_plain = False
        elif code == APPLICATION_PROPERTIES:
            given = map_at(message, each)
            texts = texts_of(given)
            is_text = all(type(name) is str and type(value) is str for name, value in given.items())
            is_plain = is_plain and is_text and SECTIONS_PROPERTY not in texts
            kept.append(message[start:end])
        elif code in {HEADER, PROPERTIES}:
            if says_something(code, decode(message, value_at)[0]):
                kept.append(message[start:end])
                is_plain = False
        elif code == FOOTER or (keeps_body and DATA <= code < FOOTER):
            kept.append(message[start:end])
            is_plain = False
    if not is_plain:
        texts[SECTIONS_PROPERTY] = base64.b64encode(b"".join(kept)).decode()
    return tuple(texts.items()) or None


def says_something(code: int, values: object) -> bool:
    """Whether a header or properties hold more than that the message is durable.

    Raises:
        AmqpFault: they are no list.
    """
    if not isinstance(values, list):
        raise AmqpFault("a section of a message has a value of another type")
    return any(value is not None for value in values[1 if code == HEADER else 0 :])


def map_at(message: bytes, found: Found) -> Mapping[Any, Any]:
    """The map that a section holds.

    Raises:
        AmqpFault: it is none.
    """
    value = decode(message, found[2])[0]
    if not isinstance(value, dict):
        raise AmqpFault("a section of a message is no map")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHead:
    """What stands before and after the body of a message, as the log keeps it."""

    key: str | None = None
    properties: tuple[tuple[str, str], ...] | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSections:
    """Sections to be given back: before the annotations, after them, and after the body.

    ``annotations`` are the entries of that map, ``count`` their number of values. A body among
    ``after`` stands for the event's own.
    """

    before: bytes = b""
    annotations: bytes = b""
    count: int = 0
    after: bytes = b""
    footer: bytes = b""
    has_body: bool = False


NOTHING = KeptSections()


def split_message(data: bytes) -> tuple[bytes, MessageHead, tuple[int, int] | None]:
    """The body of a message and all else; and, if it ends with its only data, where that begins.

    The two numbers are the length of what stands before the data section, and of its own head.

    Raises:
        AmqpFault: it is damaged.
    """
    found = list(sections(data))
    body = body_of(data, found)
    code, start, _, end = found[-1]
    only = [each[0] for each in bodies_of(found)] == [DATA] and code == DATA
    return body, _head(data, found), (start, end - start - len(body)) if only else None


def head_of(data: bytes) -> MessageHead:
    """What stands before the body, from bytes that end there.

    Raises:
        AmqpFault: it is damaged.
    """
    return _head(data, list(sections(data)))


def _head(data: bytes, found: Sequence[Found]) -> MessageHead:
    annotations = annotations_of(data, found)
    key, number = annotations.get(PARTITION_KEY), annotations.get(PRODUCER_SEQUENCE)
    return MessageHead(
        key=key if isinstance(key, str) else None,
        properties=pairs_of(data, found),
        sequence=number if isinstance(number, int) else None,
    )


def kept_in(properties: tuple[tuple[str, str], ...]) -> KeptSections:
    """The sections to be given back for the properties of an event.

    What nobody could have sent, but is in the log, is left out: it is no reason to stop reading.
    """
    if sum(len(name) + len(value) for name, value in properties) > _MAX_REMEMBERED:
        return _kept(properties)
    return _remembered(properties)


@lru_cache(maxsize=1024)
def _remembered(properties: tuple[tuple[str, str], ...]) -> KeptSections:
    return _kept(properties)


def _kept(properties: tuple[tuple[str, str], ...]) -> KeptSections:
    texts = dict(properties)
    raw = texts.pop(SECTIONS_PROPERTY, None)
    if raw is None:
        return KeptSections(after=section(APPLICATION_PROPERTIES, texts)) if texts else NOTHING
    try:
        return _parts(base64.b64decode(raw, validate=True))
    except (AmqpFault, binascii.Error, ValueError):
        return KeptSections(after=section(APPLICATION_PROPERTIES, texts)) if texts else NOTHING


def _parts(data: bytes) -> KeptSections:
    before = after = footer = entries = b""
    count, has_body = 0, False
    for each in sections(data):
        code, start, _, end = each
        if code == MESSAGE_ANNOTATIONS:
            found = map_at(data, each)
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


def pairs_between(properties: bytes | None, application: bytes | None) -> Pairs | None:
    """The same, of a message with these two sections, given by their values, and data.

    Raises:
        AmqpFault: one is damaged.
    """
    size = len(properties or b"") + len(application or b"")
    make = _cached if size <= _MAX_CACHED_BYTES else _between
    return make(properties, application)


def _between(properties: bytes | None, application: bytes | None) -> Pairs | None:
    message = b"".join(
        bytes((0, 0x53, code)) + value
        for code, value in ((PROPERTIES, properties), (APPLICATION_PROPERTIES, application))
        if value is not None
    )
    message += section(DATA, b"")
    return pairs_of(message, list(sections(message)))


@lru_cache(maxsize=1024)
def _cached(properties: bytes | None, application: bytes | None) -> Pairs | None:
    return _between(properties, application)


def original_message(properties: Mapping[str, str], body: bytes) -> Message:
    """The message that an event came as, with its typed values, its id, content type and so on.

    Raises:
        AmqpFault: what was kept of it is damaged.
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
