"""What of a message is an event's: its body, and all else as properties of text.

One rule for the endpoint and for the source, so that an event has the same properties whether it
comes as a message or out of the log. What is only text goes into the properties as it is. Of any
other message all sections are kept as they were sent, in base64 under the property ``$amqp``,
beside the readable ones.

Not kept: delivery annotations, which are for one hop; whether the header says durable, which all
events are; and annotations that only the service may set (``x-opt-…`` for places and times).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, TypeAlias

from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SECTIONS_PROPERTY,
    section,
    text_of,
    texts_of,
)
from leasehold.amqp.values import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
