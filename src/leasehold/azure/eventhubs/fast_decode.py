"""Takes frame after frame that looks like the one before: the way that nearly all events come.

Three ways, each for what the one before it does not take: a mould (all lengths are those of the
last frame, so one ``struct`` cuts it to pieces), a shape (lengths vary, a pattern finds them), and
the general decoder, which is elsewhere. Each is as strict as the last: what they take is the same.

Shapes of transfer frames: the few ways in which a server writes event after event.

A shape is learnt from one frame and says where in frames like it the fields of an event are. It
matches a frame only if that is what reading it field by field would give: all that is not a field
of the event is the same byte for byte, and each length that is written is the length that was
found. So it may be used for every frame, and what it does not match is read the slow way.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from leasehold.azure.amqp.event_properties import OF_SERVICE, pairs_between, says_something
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    sections,
)
from leasehold.azure.amqp.values import decode, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from leasehold.azure.eventhubs.rows import EventRow, RowTuple

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
    except (AmqpFault, _UnexpectedShape, IndexError, KeyError):
        return None
    return _shape(pattern)


class _UnexpectedShape(Exception):
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
        raise _UnexpectedShape
    yield b".{4}" + re.escape(_HEAD) + b"(?P<channel>.{2})" + re.escape(_TRANSFER)
    at, count = yield from _compound(frame, 11, _LIST8, _LIST32)
    if count != _FIELDS:
        raise _UnexpectedShape
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
    raise _UnexpectedShape


def _sections(message: bytes) -> Iterator[bytes]:
    found = list(sections(message))
    codes = [code for code, _, _, _ in found]
    if codes.count(DATA) != 1 or codes[-1] != DATA or MESSAGE_ANNOTATIONS not in codes:
        raise _UnexpectedShape
    for code, at, value_at, after in found:
        if message[at : at + 3] != bytes((0, 0x53, code)):
            raise _UnexpectedShape
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
            raise _UnexpectedShape


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
            raise _UnexpectedShape
        else:
            yield re.escape(message[value_at:after])
        seen.add(name)
        at = after
    if not {NUMBER, OFFSET, ENQUEUED} <= seen:
        raise _UnexpectedShape


def _text(code: int, name: bytes) -> bytes:
    head = re.escape(bytes((code,)))
    most = b"%d" % _LONGEST_TEXT
    return b"%s(?P<%s_size>%s)(?P<%s>.{0,%s}?)" % (head, name, _SIZES[code], name, most)


def _sized(message: bytes, at: int, name: bytes) -> bytes:
    """A value of any size, which is kept as it is: its code, its size and all of it."""
    head = re.escape(message[at : at + 1])
    return b"(?P<%s>%s(?P<%s_size>%s).*?)" % (name, head, name, _SIZES[message[at]])


_U32 = struct.Struct(">I").unpack_from
_HEAD_BYTES = 8
_MAX_IDLE_MOULDS = 64
_SIZE_CODES = {1: "B", 4: "I"}


class FrameDecoder:
    """Reads the frames of one link that have one shape."""

    def __init__(self, shape: Shape, *, channel: bytes, handles: frozenset[bytes]) -> None:
        """``channel`` and ``handles``: how the frames of the link begin."""
        self.shape = shape
        self._channel = channel
        self._handles = handles
        self._mould: struct.Struct | None = None
        self._fixed: tuple[bytes, ...] = ()
        self._idle_moulds = 0

    def run(self, data: bytes, at: int, end: int, rows: list[EventRow | RowTuple]) -> int:
        """Take all frames from ``at`` on that fit; gives where they end."""
        if self.shape.rich is not None:
            return self._rich(data, at, end, rows)
        while True:
            begin = at
            if self._mould is not None:
                at = self._moulded(self._mould, data, at, end, rows)
                self._idle_moulds = 0 if at != begin else self._idle_moulds + 1
            after = self._plain(data, at, end, rows)
            if after == at:
                return at
            at = after

    def _moulded(
        self,
        mould: struct.Struct,
        data: bytes,
        at: int,
        end: int,
        rows: list[EventRow | RowTuple],
    ) -> int:
        cut, width, append = mould.unpack_from, mould.size, rows.append
        one, two, three, four, five, six = self._fixed
        last = end - width
        while at <= last:
            size, a, _, b, _, c, number, d, offset, e, enqueued, f, body = cut(data, at)
            stop = at + size
            start = at + width
            if (
                stop > end
                or body != stop - start
                or a != one
                or b != two
                or c != three
                or d != four
                or e != five
                or f != six
            ):
                break
            append((number, enqueued, offset, data[start:stop], None, None))
            at = stop
        return at

    def _plain(self, data: bytes, at: int, end: int, rows: list[EventRow | RowTuple]) -> int:
        """One frame, from which the next mould is made."""
        stop = _stop(data, at, end)
        found = self.shape.match(data, at, stop) if stop else None
        if found is None:
            return at
        channel, handle, number, enqueued, size, offset, body_size = found.group(*self.shape.places)
        start = found.end()
        if (
            int.from_bytes(size, "big") != len(offset)
            or int.from_bytes(body_size, "big") != stop - start
            or channel != self._channel
            or handle not in self._handles
        ):
            return at
        rows.append((number, enqueued, offset, data[start:stop], None, None))
        if self._idle_moulds < _MAX_IDLE_MOULDS:
            self._make_mould(data, at, found)
        return stop

    def _rich(self, data: bytes, at: int, end: int, rows: list[EventRow | RowTuple]) -> int:
        match, places, rich = self.shape.match, self.shape.places, self.shape.rich or ()
        own, handles, to_int = self._channel, self._handles, int.from_bytes
        while stop := _stop(data, at, end):
            found = match(data, at, stop)
            if found is None:
                break
            channel, handle, number, enqueued, size, offset, body_size = found.group(*places)
            key_size, key, first_size, first, second_size, second = found.group(*rich)
            start = found.end()
            if (
                to_int(size, "big") != len(offset)
                or to_int(body_size, "big") != stop - start
                or channel != own
                or handle not in handles
                or (key is not None and to_int(key_size, "big") != len(key))
                or not _fits(first_size, first)
                or not _fits(second_size, second)
            ):
                break
            try:
                pairs = None if first is second else pairs_between(first, second)
            except AmqpFault:
                break  # the general decoder will say what is wrong with it
            rows.append((number, enqueued, offset, data[start:stop], key, pairs))
            at = stop
        return at

    def _make_mould(self, data: bytes, at: int, found: re.Match[bytes]) -> None:
        """Lay out a frame whose lengths are all those of this one."""
        after_handle = found.end("handle")
        delivery = max(found.span("delivery8"), found.span("delivery32"))
        if delivery[0] < 0:  # the number 0 has no bytes
            delivery = (after_handle + 1, after_handle + 1)
        spans = [
            (at, at + 4),
            delivery,
            *map(found.span, ("tag", "number", "offset", "enqueued", "body_size")),
        ]
        if any(one[1] > other[0] for one, other in pairwise(spans)):
            self._idle_moulds = _MAX_IDLE_MOULDS  # another order than the one below
            return
        gaps = [(one[1], other[0]) for one, other in pairwise(spans)]
        self._fixed = tuple(data[begin:end] for begin, end in gaps)
        form = "".join(
            f"{end - begin}s{after_end - after_begin}s"
            for (begin, end), (after_begin, after_end) in zip(gaps[:-1], spans[1:-1], strict=True)
        )
        begin, end = gaps[-1]
        last = _SIZE_CODES[spans[-1][1] - spans[-1][0]]
        self._mould = _struct(f">I{form}{end - begin}s{last}")


@lru_cache(maxsize=256)
def _struct(form: str) -> struct.Struct:
    return struct.Struct(form)


def _stop(data: bytes, at: int, end: int) -> int:
    """Where the frame at ``at`` ends; 0 if it is not all here."""
    if end - at < _HEAD_BYTES:
        return 0
    stop = at + int(_U32(data, at)[0])
    return stop if at < stop <= end else 0


def _fits(size: bytes | None, value: bytes | None) -> bool:
    """Whether a section is as long as it says: its code, its size, and so much more."""
    if size is None or value is None:
        return value is None
    return len(value) == 1 + len(size) + int.from_bytes(size, "big")
