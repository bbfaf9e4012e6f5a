"""The properties of events by the rule of ``leasehold.amqp.parts``, and the way back from them."""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING

from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    PROPERTIES,
    SECTIONS_PROPERTY,
    read_message,
    section,
    sections,
)
from leasehold.amqp.parts import pairs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.amqp.messages import Message
    from leasehold.amqp.parts import Pairs

_MOST_CACHED_BYTES = 1 << 10


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
