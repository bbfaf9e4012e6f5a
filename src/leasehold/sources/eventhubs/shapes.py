"""Shapes of transfer frames: the few ways in which a server writes event after event.

A shape is learnt from one frame and says where in frames like it the fields of an event are. It
matches a frame only if that is what reading it field by field would give: all that is not a field
of the event is the same byte for byte, and each length that is written is the length that was
found. So it may be used for every frame, and what it does not match is read the slow way.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    sections,
)
from leasehold.amqp.parts import OF_SERVICE, says_something
from leasehold.amqp.values import decode, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

NUMBER, OFFSET, ENQUEUED = "x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"
KEY = "x-opt-partition-key"
_HEAD = b"\x02\x00"  # the place of the body, and the kind of the frame
_TRANSFER = b"\x00\x53\x14"
_FIELDS = 11  # of a transfer; those after the tag are taken as they are
_LONG, _TIMESTAMP = 0x81, 0x83
_BINARY8, _BINARY32 = 0xA0, 0xB0
# How many bytes say the size, by the code of the value.
_SIZES = dict.fromkeys((0xA0, 0xA1, 0xC0, 0xC1), b".")
_SIZES |= dict.fromkeys((0xB0, 0xB1, 0xD0, 0xD1), b".{4}")
_TEXTS = (0xA1, 0xB1)
_LONGEST_TEXT = 1024
_LIST8, _LIST32, _MAP8, _MAP32 = 0xC0, 0xD0, 0xC1, 0xD1
_HANDLE = rb"(?P<handle>\x43|\x52.|\x70.{4})"
_DELIVERY = rb"(?:\x43|\x52(?P<delivery8>.)|\x70(?P<delivery32>.{4}))"
_PLAIN = ("channel", "handle", "number", "enqueued", "offset_size", "offset", "body_size")
_RICH = (*("key_size", "key", "properties_size", "properties", "application_size", "application"),)


class Shape(NamedTuple):
    """``match`` is that of a compiled pattern. ``places`` are those of its groups.

    They are the channel, the handle, the sequence number, the time, the size of the offset and the
    offset, and the size of the body, which is all that follows. ``rich`` are those of the key, the
    properties and the application properties, each with its size before it; None if the frames
    have none of them.
    """

    match: Callable[[bytes, int, int], re.Match[bytes] | None]
    places: tuple[int, ...]
    rich: tuple[int, ...] | None


def learn(frame: bytes) -> Shape | None:
    """The shape of a transfer frame with one whole event; None if it is not one that is common.

    Whoever asks has seen that the delivery is settled and has no other frames.
    """
    try:
        pattern = b"".join(_pattern(frame))
    except (AmqpFault, _Odd, IndexError, KeyError):
        return None
    return _shape(pattern)


class _Odd(Exception):
    """Something that no shape has."""


@lru_cache(maxsize=256)
def _shape(pattern: bytes) -> Shape:
    is_rich = any(b"(?P<%s>" % name.encode() in pattern for name in _RICH)
    for name in _RICH if is_rich else ():
        if b"(?P<%s>" % name.encode() not in pattern:
            pattern += b"(?:(?P<%s>(?!)))?" % name.encode()  # there, and never found
    found = re.compile(pattern, re.DOTALL)
    place = found.groupindex
    return Shape(
        match=found.match,
        places=tuple(place[name] for name in _PLAIN),
        rich=tuple(place[name] for name in _RICH) if is_rich else None,
    )


def _pattern(frame: bytes) -> Iterator[bytes]:
    if frame[4:6] != _HEAD or frame[8:11] != _TRANSFER:
        raise _Odd
    yield b".{4}" + re.escape(_HEAD) + b"(?P<channel>.{2})" + re.escape(_TRANSFER)
    at, count = yield from _compound(frame, 11, _LIST8, _LIST32)
    if count != _FIELDS:
        raise _Odd
    at = skip(frame, at)
    yield _HANDLE
    at = skip(frame, at)
    yield _DELIVERY
    after = skip(frame, at)
    yield _tag(frame[at:after])
    end = after
    for _ in range(_FIELDS - 3):
        end = skip(frame, end)
    yield re.escape(frame[after:end])
    yield from _sections(frame[end:])


def _tag(tag: bytes) -> bytes:
    """Any bytes of the same length; it says nothing where all is settled."""
    head = {_BINARY8: 2, _BINARY32: 5}.get(tag[0], len(tag))
    return re.escape(tag[:head]) + b"(?P<tag>.{%d})" % (len(tag) - head)


def _compound(
    data: bytes, at: int, short: int, wide: int
) -> Generator[bytes, None, tuple[int, int]]:
    """The head of a list or map: of any size, with the same count. Gives its place and count."""
    if data[at] == short:
        yield re.escape(data[at : at + 1]) + b"." + re.escape(data[at + 2 : at + 3])
        return at + 3, data[at + 2]
    if data[at] == wide:
        yield re.escape(data[at : at + 1]) + b".{4}" + re.escape(data[at + 5 : at + 9])
        return at + 9, int.from_bytes(data[at + 5 : at + 9], "big")
    raise _Odd


def _sections(message: bytes) -> Iterator[bytes]:
    found = list(sections(message))
    codes = [code for code, _, _, _ in found]
    if codes.count(DATA) != 1 or codes[-1] != DATA or MESSAGE_ANNOTATIONS not in codes:
        raise _Odd
    for code, at, value_at, after in found:
        if message[at : at + 3] != bytes((0, 0x53, code)):
            raise _Odd
        head = re.escape(message[at:value_at])
        if code == MESSAGE_ANNOTATIONS:
            yield head
            yield from _annotations(message, value_at)
        elif code == PROPERTIES:
            yield head + _sized(message, value_at, b"properties")
        elif code == APPLICATION_PROPERTIES:
            yield head + _sized(message, value_at, b"application")
        elif code == DATA:
            yield head + re.escape(message[value_at : value_at + 1])
            yield b"(?P<body_size>%s)" % _SIZES[message[value_at]]
        elif code == HEADER and not says_something(code, decode(message, value_at)[0]):
            yield re.escape(message[at:after])
        else:
            raise _Odd


def _annotations(message: bytes, at: int) -> Iterator[bytes]:
    at, count = yield from _compound(message, at, _MAP8, _MAP32)
    seen = set()
    for _ in range(count // 2):
        name, value_at = decode(message, at)
        after = skip(message, value_at)
        yield re.escape(message[at:value_at])
        code = message[value_at]
        if name == NUMBER and code == _LONG:
            yield rb"\x81(?P<number>.{8})"
        elif name == ENQUEUED and code == _TIMESTAMP:
            yield rb"\x83(?P<enqueued>.{8})"
        elif name == OFFSET and code in _TEXTS:
            yield _text(code, b"offset")
        elif name == KEY and code in _TEXTS:
            yield _text(code, b"key")
        elif name in {NUMBER, ENQUEUED, OFFSET, KEY} or name not in OF_SERVICE:
            raise _Odd
        else:
            yield re.escape(message[value_at:after])
        seen.add(name)
        at = after
    if not {NUMBER, OFFSET, ENQUEUED} <= seen:
        raise _Odd


def _text(code: int, name: bytes) -> bytes:
    head = re.escape(bytes((code,)))
    most = b"%d" % _LONGEST_TEXT
    return b"%s(?P<%s_size>%s)(?P<%s>.{0,%s}?)" % (head, name, _SIZES[code], name, most)


def _sized(message: bytes, at: int, name: bytes) -> bytes:
    """A value of any size, which is kept as it is: its code, its size and all of it."""
    head = re.escape(message[at : at + 1])
    return b"(?P<%s>%s(?P<%s_size>%s).*?)" % (name, head, name, _SIZES[message[at]])
