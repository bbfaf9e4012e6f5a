"""The parts of a message that an event of the log has no column for, kept and given back.

An event has a body, a key, and properties of text. A message has more: typed application
properties, its own properties (id, content type, …), annotations, a header, a footer, and bodies of
other kinds. What of it is kept, and how, ``leasehold.amqp.parts`` says; it is given back byte for
byte.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    SECTIONS_PROPERTY,
    section,
    sections,
)
from leasehold.amqp.parts import (
    PARTITION_KEY,
    PRODUCER_SEQUENCE,
    annotations_of,
    bodies_of,
    map_at,
    pairs_of,
)
from leasehold.amqp.parts import body_of as _body_of
from leasehold.amqp.values import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.amqp.parts import Found

_MOST_REMEMBERED = 4096  # characters: a thousand of the biggest would fill the memory


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
    body = _body_of(data, found)
    code, start, _, end = found[-1]
    only = [each[0] for each in bodies_of(found)] == [DATA] and code == DATA
    return body, _head(data, found), (start, end - start - len(body)) if only else None


def head_of(data: bytes) -> Head:
    """What stands before the body, from bytes that end there.

    Raises:
        AmqpFault: it is damaged.
    """
    return _head(data, list(sections(data)))


def _head(data: bytes, found: Sequence[Found]) -> Head:
    annotations = annotations_of(data, found)
    key, number = annotations.get(PARTITION_KEY), annotations.get(PRODUCER_SEQUENCE)
    return Head(
        key=key if isinstance(key, str) else None,
        properties=pairs_of(data, found),
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
    return Kept(
        before=before,
        annotations=entries,
        count=count,
        after=after,
        footer=footer,
        has_body=has_body,
    )
