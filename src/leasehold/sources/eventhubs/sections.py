"""What a message has beyond a body and a key, as properties of an event: all of it, as text.

The rule is that of ``leasehold.hub``, so that an event has the same properties whether it comes as
a message or out of the log: application properties are written as text; whatever else the sender
has put into the message is kept as it was sent, in base64 under the property ``$amqp``. Not kept
are delivery annotations, which are for one hop, and the annotations of the service itself.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import (
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
from leasehold.amqp.values import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.amqp.messages import Message

Pairs: TypeAlias = "tuple[tuple[str, str], ...]"
Found: TypeAlias = "tuple[int, int, int, int]"  # as ``sections`` gives it

OF_SERVICE = frozenset(
    (
        *("x-opt-partition-key", "x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"),
        *("x-opt-sequence-number-epoch", "com.microsoft:producer-sequence-number"),
        *("com.microsoft:producer-epoch", "com.microsoft:producer-id"),
    )
)
_MOST_CACHED_BYTES = 1 << 10


def body_of(message: bytes, found: Sequence[Found]) -> bytes:
    """The body: its data as it is, any other value as its text.

    Raises:
        AmqpFault: there is none, or it is damaged.
    """
    bodies = [each for each in found if DATA <= each[0] < FOOTER]
    if not bodies:
        raise AmqpFault("a message has no body")
    parts = [decode(message, each[2])[0] for each in bodies]
    if all(each[0] == DATA for each in bodies):
        if not all(isinstance(part, bytes) for part in parts):
            raise AmqpFault("a data section holds something else than bytes")
        return b"".join(parts)
    return b"\n".join(text_of(part).encode() for part in parts)


def pairs_of(message: bytes, found: Sequence[Found]) -> Pairs | None:
    """The properties of the event in a message; None if it has none.

    Raises:
        AmqpFault: a section is damaged.
    """
    texts: dict[str, str] = {}
    kept: list[bytes] = []
    bodies = [code for code, _, _, _ in found if DATA <= code < FOOTER]
    is_plain = bodies == [DATA]
    for code, start, value_at, end in found:
        if code == MESSAGE_ANNOTATIONS:
            given = _map(decode(message, value_at)[0])
            others = {name: value for name, value in given.items() if name not in OF_SERVICE}
            if others:
                kept.append(section(code, others))
                is_plain = False
        elif code == APPLICATION_PROPERTIES:
            given = _map(decode(message, value_at)[0])
            texts = texts_of(given)
            kept.append(message[start:end])
            is_text = all(type(key) is str and type(value) is str for key, value in given.items())
            is_plain = is_plain and is_text and SECTIONS_PROPERTY not in texts
        elif code in {HEADER, PROPERTIES}:
            if says_something(code, decode(message, value_at)[0]):
                kept.append(message[start:end])
                is_plain = False
        elif code == FOOTER or (DATA <= code < FOOTER and bodies != [DATA]):
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


def pairs_between(properties: bytes | None, application: bytes | None) -> Pairs | None:
    """The same, of a message with these two sections, given by their values, and data.

    Raises:
        AmqpFault: one is damaged.
    """
    size = len(properties or b"") + len(application or b"")
    make = _cached if size <= _MOST_CACHED_BYTES else _between
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


def original(properties: Mapping[str, str], body: bytes) -> Message:
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


def _map(value: object) -> Mapping[object, object]:
    if not isinstance(value, dict):
        raise AmqpFault("a section of a message is no map")
    return value
