"""Decode frames that look like the one before, as nearly all event frames do.

There are three decoders, each for what the one before it does not take: a template (all lengths
are those of the last frame, so one ``struct`` unpacks it), a layout (lengths vary, a regular
expression finds them), and the general decoder in ``rows``. All three are equally strict: a frame
that two of them take gives the same event.

A layout is learnt from one frame, and finds the fields of an event in frames like it. It matches a
frame only if parsing field by field would give the same: everything outside the fields is equal
byte for byte, and each declared length is the length that was found. So it may be tried on every
frame; frames that it does not match go to the general decoder.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from leasehold.azure.amqp.event_properties import (
    SERVICE_ANNOTATIONS,
    has_content,
    pairs_from_sections,
)
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

SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME = (
    "x-opt-sequence-number",
    "x-opt-offset",
    "x-opt-enqueued-time",
)
PARTITION_KEY = "x-opt-partition-key"
_HEAD = b"\x02\x00"  # the data offset, and the frame type
_TRANSFER = b"\x00\x53\x14"
_TRANSFER_FIELDS = 11  # of a transfer; those after the tag have to be equal
_LONG, _TIMESTAMP = 0x81, 0x83
_BINARY8, _BINARY32 = 0xA0, 0xB0
# The pattern of the size, by the code of the value.
_SIZE_PATTERNS = dict.fromkeys((0xA0, 0xA1, 0xC0, 0xC1), b".")
_SIZE_PATTERNS |= dict.fromkeys((0xB0, 0xB1, 0xD0, 0xD1), b".{4}")
_TEXTS = (0xA1, 0xB1)
_MAX_TEXT_BYTES = 1024
_LIST8, _LIST32, _MAP8, _MAP32 = 0xC0, 0xD0, 0xC1, 0xD1
_HANDLE = rb"(?P<handle>\x43|\x52.|\x70.{4})"
_DELIVERY = rb"(?:\x43|\x52(?P<delivery8>.)|\x70(?P<delivery32>.{4}))"
_GROUPS = ("channel", "handle", "number", "enqueued", "offset_size", "offset", "body_size")
_EXTRA_GROUPS = (
    *("key_size", "key", "properties_size", "properties", "application_size", "application"),
)


class FrameLayout(NamedTuple):
    """``match`` is that of a compiled pattern; the others are numbers of its groups.

    ``groups``: channel, handle, sequence number, time, size of the offset, offset, and size of the
    body, which is the rest. ``extra_groups``: key, properties and application properties, each
    after its size; None if the frames have none of them.
    """

    match: Callable[[bytes, int, int], re.Match[bytes] | None]
    groups: tuple[int, ...]
    extra_groups: tuple[int, ...] | None


def learn_layout(frame: bytes) -> FrameLayout | None:
    """Learn the layout of a transfer frame with one event; None if it is not supported.

    The caller has checked that the delivery is settled and has no other frames.
    """
    try:
        pattern = b"".join(_pattern(frame))
    except (AmqpFault, _UnsupportedLayout, IndexError, KeyError):
        return None
    return _compile_layout(pattern)


class _UnsupportedLayout(Exception):
    """A frame has something that layouts do not support."""


@lru_cache(maxsize=256)
def _compile_layout(pattern: bytes) -> FrameLayout:
    has_extra = any(b"(?P<%s>" % name.encode() in pattern for name in _EXTRA_GROUPS)
    for name in _EXTRA_GROUPS if has_extra else ():
        if b"(?P<%s>" % name.encode() not in pattern:
            pattern += b"(?:(?P<%s>(?!)))?" % name.encode()  # a group that never matches
    found = re.compile(pattern, re.DOTALL)
    index = found.groupindex
    return FrameLayout(
        match=found.match,
        groups=tuple(index[name] for name in _GROUPS),
        extra_groups=tuple(index[name] for name in _EXTRA_GROUPS) if has_extra else None,
    )


def _pattern(frame: bytes) -> Iterator[bytes]:
    if frame[4:6] != _HEAD or frame[8:11] != _TRANSFER:
        raise _UnsupportedLayout
    yield b".{4}" + re.escape(_HEAD) + b"(?P<channel>.{2})" + re.escape(_TRANSFER)
    at, count = yield from _compound(frame, 11, _LIST8, _LIST32)
    if count != _TRANSFER_FIELDS:
        raise _UnsupportedLayout
    at = skip(frame, at)
    yield _HANDLE
    at = skip(frame, at)
    yield _DELIVERY
    after = skip(frame, at)
    yield _tag(frame[at:after])
    end = after
    for _ in range(_TRANSFER_FIELDS - 3):
        end = skip(frame, end)
    yield re.escape(frame[after:end])
    yield from _sections(frame[end:])


def _tag(tag: bytes) -> bytes:
    """Return a pattern for any tag of this length: a settled delivery does not use it."""
    head = {_BINARY8: 2, _BINARY32: 5}.get(tag[0], len(tag))
    return re.escape(tag[:head]) + b"(?P<tag>.{%d})" % (len(tag) - head)


def _compound(
    data: bytes, at: int, short: int, wide: int
) -> Generator[bytes, None, tuple[int, int]]:
    """Yield the head of a list or map of any size with this count; return its start and count."""
    if data[at] == short:
        yield re.escape(data[at : at + 1]) + b"." + re.escape(data[at + 2 : at + 3])
        return at + 3, data[at + 2]
    if data[at] == wide:
        yield re.escape(data[at : at + 1]) + b".{4}" + re.escape(data[at + 5 : at + 9])
        return at + 9, int.from_bytes(data[at + 5 : at + 9], "big")
    raise _UnsupportedLayout


def _sections(message: bytes) -> Iterator[bytes]:
    found = list(sections(message))
    codes = [code for code, _, _, _ in found]
    if codes.count(DATA) != 1 or codes[-1] != DATA or MESSAGE_ANNOTATIONS not in codes:
        raise _UnsupportedLayout
    for code, at, value_at, after in found:
        if message[at : at + 3] != bytes((0, 0x53, code)):
            raise _UnsupportedLayout
        head = re.escape(message[at:value_at])
        if code == MESSAGE_ANNOTATIONS:
            yield head
            yield from _annotations(message, value_at)
        elif code == PROPERTIES:
            yield head + _sized_value(message, value_at, b"properties")
        elif code == APPLICATION_PROPERTIES:
            yield head + _sized_value(message, value_at, b"application")
        elif code == DATA:
            yield head + re.escape(message[value_at : value_at + 1])
            yield b"(?P<body_size>%s)" % _SIZE_PATTERNS[message[value_at]]
        elif code == HEADER and not has_content(code, decode(message, value_at)[0]):
            yield re.escape(message[at:after])
        else:
            raise _UnsupportedLayout


def _annotations(message: bytes, at: int) -> Iterator[bytes]:
    at, count = yield from _compound(message, at, _MAP8, _MAP32)
    seen = set()
    for _ in range(count // 2):
        name, value_at = decode(message, at)
        after = skip(message, value_at)
        yield re.escape(message[at:value_at])
        code = message[value_at]
        if name == SEQUENCE_NUMBER and code == _LONG:
            yield rb"\x81(?P<number>.{8})"
        elif name == ENQUEUED_TIME and code == _TIMESTAMP:
            yield rb"\x83(?P<enqueued>.{8})"
        elif name == OFFSET and code in _TEXTS:
            yield _text(code, b"offset")
        elif name == PARTITION_KEY and code in _TEXTS:
            yield _text(code, b"key")
        elif (
            name in {SEQUENCE_NUMBER, ENQUEUED_TIME, OFFSET, PARTITION_KEY}
            or name not in SERVICE_ANNOTATIONS
        ):
            raise _UnsupportedLayout
        else:
            yield re.escape(message[value_at:after])
        seen.add(name)
        at = after
    if not {SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME} <= seen:
        raise _UnsupportedLayout


def _text(code: int, name: bytes) -> bytes:
    head = re.escape(bytes((code,)))
    max_bytes = b"%d" % _MAX_TEXT_BYTES
    return b"%s(?P<%s_size>%s)(?P<%s>.{0,%s}?)" % (
        head,
        name,
        _SIZE_PATTERNS[code],
        name,
        max_bytes,
    )


def _sized_value(message: bytes, at: int, name: bytes) -> bytes:
    """Return a pattern for a value of any size: its code, its size and its bytes."""
    head = re.escape(message[at : at + 1])
    return b"(?P<%s>%s(?P<%s_size>%s).*?)" % (name, head, name, _SIZE_PATTERNS[message[at]])


_U32 = struct.Struct(">I").unpack_from
_HEAD_BYTES = 8
_MAX_IDLE_TEMPLATES = 64
_SIZE_CODES = {1: "B", 4: "I"}


class FrameDecoder:
    """Decodes the frames of one link that have one layout.

    ``channel`` and ``handles``: how the frames of the link begin.
    """

    def __init__(self, layout: FrameLayout, *, channel: bytes, handles: frozenset[bytes]) -> None:
        self.layout = layout
        self._channel = channel
        self._handles = handles
        self._template: struct.Struct | None = None
        self._fixed: tuple[bytes, ...] = ()
        self._idle_templates = 0

    def take_frames(self, data: bytes, at: int, end: int, rows: list[EventRow | RowTuple]) -> int:
        """Take all frames from ``at`` on that match; return where they end."""
        if self.layout.extra_groups is not None:
            return self._by_rich_pattern(data, at, end, rows)
        while True:
            begin = at
            if self._template is not None:
                at = self._by_template(self._template, data, at, end, rows)
                self._idle_templates = 0 if at != begin else self._idle_templates + 1
            after = self._by_pattern(data, at, end, rows)
            if after == at:
                return at
            at = after

    def _by_template(
        self,
        template: struct.Struct,
        data: bytes,
        at: int,
        end: int,
        rows: list[EventRow | RowTuple],
    ) -> int:
        cut, width, append = template.unpack_from, template.size, rows.append
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

    def _by_pattern(self, data: bytes, at: int, end: int, rows: list[EventRow | RowTuple]) -> int:
        """Take one frame, and make the next template from it."""
        stop = _frame_end(data, at, end)
        found = self.layout.match(data, at, stop) if stop else None
        if found is None:
            return at
        channel, handle, number, enqueued, size, offset, body_size = found.group(
            *self.layout.groups
        )
        start = found.end()
        if (
            int.from_bytes(size, "big") != len(offset)
            or int.from_bytes(body_size, "big") != stop - start
            or channel != self._channel
            or handle not in self._handles
        ):
            return at
        rows.append((number, enqueued, offset, data[start:stop], None, None))
        if self._idle_templates < _MAX_IDLE_TEMPLATES:
            self._make_template(data, at, found)
        return stop

    def _by_rich_pattern(
        self, data: bytes, at: int, end: int, rows: list[EventRow | RowTuple]
    ) -> int:
        match, groups, extra_groups = (
            self.layout.match,
            self.layout.groups,
            self.layout.extra_groups or (),
        )
        own_channel, handles, to_int = self._channel, self._handles, int.from_bytes
        while stop := _frame_end(data, at, end):
            found = match(data, at, stop)
            if found is None:
                break
            channel, handle, number, enqueued, size, offset, body_size = found.group(*groups)
            key_size, key, first_size, first, second_size, second = found.group(*extra_groups)
            start = found.end()
            if (
                to_int(size, "big") != len(offset)
                or to_int(body_size, "big") != stop - start
                or channel != own_channel
                or handle not in handles
                or (key is not None and to_int(key_size, "big") != len(key))
                or not _has_declared_size(first_size, first)
                or not _has_declared_size(second_size, second)
            ):
                break
            try:
                pairs = None if first is second else pairs_from_sections(first, second)
            except AmqpFault:
                break  # the general decoder reports what is wrong
            rows.append((number, enqueued, offset, data[start:stop], key, pairs))
            at = stop
        return at

    def _make_template(self, data: bytes, at: int, found: re.Match[bytes]) -> None:
        """Make a template for frames with the same lengths as this one."""
        after_handle = found.end("handle")
        delivery = max(found.span("delivery8"), found.span("delivery32"))
        if delivery[0] < 0:  # the encoding of 0 has no bytes
            delivery = (after_handle + 1, after_handle + 1)
        spans = [
            (at, at + 4),
            delivery,
            *map(found.span, ("tag", "number", "offset", "enqueued", "body_size")),
        ]
        if any(one[1] > other[0] for one, other in pairwise(spans)):
            self._idle_templates = _MAX_IDLE_TEMPLATES  # another order than the one below
            return
        gaps = [(one[1], other[0]) for one, other in pairwise(spans)]
        self._fixed = tuple(data[begin:end] for begin, end in gaps)
        form = "".join(
            f"{end - begin}s{after_end - after_begin}s"
            for (begin, end), (after_begin, after_end) in zip(gaps[:-1], spans[1:-1], strict=True)
        )
        begin, end = gaps[-1]
        last = _SIZE_CODES[spans[-1][1] - spans[-1][0]]
        self._template = _struct(f">I{form}{end - begin}s{last}")


@lru_cache(maxsize=256)
def _struct(form: str) -> struct.Struct:
    return struct.Struct(form)


def _frame_end(data: bytes, at: int, end: int) -> int:
    """Return where the frame at ``at`` ends; 0 if it is incomplete."""
    if end - at < _HEAD_BYTES:
        return 0
    stop = at + int(_U32(data, at)[0])
    return stop if at < stop <= end else 0


def _has_declared_size(size: bytes | None, value: bytes | None) -> bool:
    """Return whether a section has its declared length."""
    if size is None or value is None:
        return value is None
    return len(value) == 1 + len(size) + int.from_bytes(size, "big")
