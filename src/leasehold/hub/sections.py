"""The parts of a message that an event of the log has no column for, kept and given back.

An event has a body, a key, and properties of text. A message has more: typed application
properties, its own properties (id, content type, …), annotations, a header, a footer, and bodies of
other kinds. What is only text goes into the properties as it is. Of any other message all these
sections are kept as they were sent, in base64 under one property beside the readable ones, and are
given back byte for byte.

Not kept: delivery annotations, which are for one hop; whether the header says durable, which all
events are; and annotations that only the service may set (``x-opt-…`` for places and times).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SECTIONS_PROPERTY,
    section,
    sections,
    text_of,
    texts_of,
)
from leasehold.amqp.values import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARTITION_KEY = "x-opt-partition-key"
PRODUCER_SEQUENCE = "com.microsoft:producer-sequence-number"
_MOST_REMEMBERED = 4096  # characters: a thousand of the biggest would fill the memory
_OURS = frozenset(
    (
        *(PARTITION_KEY, PRODUCER_SEQUENCE, "com.microsoft:producer-epoch"),
        *("com.microsoft:producer-id", "x-opt-sequence-number", "x-opt-offset"),
        *("x-opt-enqueued-time", "x-opt-sequence-number-epoch"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What stands before and after the body of a message, as the log keeps it."""

    key: str | None = None
    properties: tuple[tuple[str, str], ...] | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
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


NOTHING = Kept()


def body_of(data: bytes) -> tuple[bytes, Head, tuple[int, int] | None]:
    """The body of a message and all else; and, if it ends with its only data, where that begins.

    The two numbers are the length of what stands before the data section, and of its own head.

    Raises:
        AmqpFault: it is damaged.
    """
    found = list(sections(data))
    bodies = [each for each in found if each[0] >= DATA and each[0] != FOOTER]
    if not bodies:
        raise AmqpFault("a message has no body")
    parts = [_value(data, each) for each in bodies]
    is_data = all(each[0] == DATA for each in bodies)
    if is_data:
        if not all(isinstance(part, bytes) for part in parts):
            raise AmqpFault("a data section holds something else than bytes")
        body = b"".join(parts)
    else:
        body = (
            text_of(parts[0]).encode()
            if len(parts) == 1
            else b"\n".join(text_of(part).encode() for part in parts)
        )
    whole = is_data and len(bodies) == 1
    head = _head(data, found, keep_body=not whole)
    code, start, value_at, end = found[-1]
    if whole and code == DATA:
        return body, head, (start, end - start - len(body))
    del value_at
    return body, head, None


def head_of(data: bytes) -> Head:
    """What stands before the body, from bytes that end there.

    Raises:
        AmqpFault: it is damaged.
    """
    return _head(data, list(sections(data)), keep_body=False)


def _head(data: bytes, found: Sequence[tuple[int, int, int, int]], *, keep_body: bool) -> Head:
    annotations: Mapping[Any, Any] = {}
    texts: dict[str, str] = {}
    kept: list[bytes] = []
    is_plain = True
    for each in found:
        code, start, _, end = each
        if code == MESSAGE_ANNOTATIONS:
            annotations = _map(data, each)
            others = {name: value for name, value in annotations.items() if name not in _OURS}
            if others:
                kept.append(section(code, others))
                is_plain = False
        elif code == APPLICATION_PROPERTIES:
            given = _map(data, each)
            texts = texts_of(given)
            is_plain = (
                is_plain
                and SECTIONS_PROPERTY not in texts
                and all(type(name) is str and type(value) is str for name, value in given.items())
            )
            kept.append(data[start:end])
        elif code in {HEADER, PROPERTIES}:
            values = _value(data, each)
            if not isinstance(values, list):
                raise AmqpFault("a section of a message has a value of another type")
            if any(value is not None for value in values[1 if code == HEADER else 0 :]):
                kept.append(data[start:end])
                is_plain = False
        elif code == FOOTER or (keep_body and code != DELIVERY_ANNOTATIONS):
            kept.append(data[start:end])
            is_plain = False
    if not is_plain:
        texts[SECTIONS_PROPERTY] = base64.b64encode(b"".join(kept)).decode()
    key, number = annotations.get(PARTITION_KEY), annotations.get(PRODUCER_SEQUENCE)
    return Head(
        key=key if isinstance(key, str) else None,
        properties=tuple(texts.items()) or None,
        sequence=number if isinstance(number, int) else None,
    )


def kept_in(properties: tuple[tuple[str, str], ...]) -> Kept:
    """The sections to be given back for the properties of an event.

    What nobody could have sent, but is in the log, is left out: it is no reason to stop reading.
    """
    if sum(len(name) + len(value) for name, value in properties) > _MOST_REMEMBERED:
        return _kept(properties)
    return _remembered(properties)


@lru_cache(maxsize=1024)
def _remembered(properties: tuple[tuple[str, str], ...]) -> Kept:
    return _kept(properties)


def _kept(properties: tuple[tuple[str, str], ...]) -> Kept:
    texts = dict(properties)
    raw = texts.pop(SECTIONS_PROPERTY, None)
    if raw is None:
        return Kept(after=section(APPLICATION_PROPERTIES, texts)) if texts else NOTHING
    try:
        return _parts(base64.b64decode(raw, validate=True))
    except (AmqpFault, binascii.Error, ValueError):
        return Kept(after=section(APPLICATION_PROPERTIES, texts)) if texts else NOTHING


def _parts(data: bytes) -> Kept:
    before = after = footer = entries = b""
    count, has_body = 0, False
    for each in sections(data):
        code, start, _, end = each
        if code == MESSAGE_ANNOTATIONS:
            found = _map(data, each)
            entries = b"".join(encode(name) + encode(value) for name, value in found.items())
            count = 2 * len(found)
        elif code == HEADER:
            before = data[start:end]
        elif code == FOOTER:
            footer = data[start:end]
        else:
            after += data[start:end]
            has_body = has_body or code >= DATA
    return Kept(
        before=before,
        annotations=entries,
        count=count,
        after=after,
        footer=footer,
        has_body=has_body,
    )


def _value(data: bytes, found: tuple[int, int, int, int]) -> Any:
    return decode(data, found[2])[0]


def _map(data: bytes, found: tuple[int, int, int, int]) -> Mapping[Any, Any]:
    value = _value(data, found)
    if not isinstance(value, dict):
        raise AmqpFault("a section of a message is no map")
    return value
