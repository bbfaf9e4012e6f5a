"""Takes frame after frame that looks like the one before: the way that nearly all events come.

Three ways, each for what the one before it does not take: a mould (all lengths are those of the
last frame, so one ``struct`` cuts it to pieces), a shape (lengths vary, a pattern finds them), and
the general decoder, which is elsewhere. Each is as strict as the last: what they take is the same.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from leasehold.amqp.faults import AmqpFault
from leasehold.sources.eventhubs.sections import pairs_between

if TYPE_CHECKING:
    import re

    from leasehold.sources.eventhubs.rows import Row, RowTuple
    from leasehold.sources.eventhubs.shapes import Shape

_U32 = struct.Struct(">I").unpack_from
_HEAD_BYTES = 8
_MOST_IDLE_MOULDS = 64
_SIZE_CODES = {1: "B", 4: "I"}


class Reader:
    """Reads the frames of one link that have one shape."""

    def __init__(self, shape: Shape, *, channel: bytes, handles: frozenset[bytes]) -> None:
        """``channel`` and ``handles``: how the frames of the link begin."""
        self.shape = shape
        self._channel = channel
        self._handles = handles
        self._mould: struct.Struct | None = None
        self._fixed: tuple[bytes, ...] = ()
        self._idle_moulds = 0

    def run(self, data: bytes, at: int, end: int, rows: list[Row | RowTuple]) -> int:
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
        rows: list[Row | RowTuple],
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

    def _plain(self, data: bytes, at: int, end: int, rows: list[Row | RowTuple]) -> int:
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
        if self._idle_moulds < _MOST_IDLE_MOULDS:
            self._make_mould(data, at, found)
        return stop

    def _rich(self, data: bytes, at: int, end: int, rows: list[Row | RowTuple]) -> int:
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
            self._idle_moulds = _MOST_IDLE_MOULDS  # another order than the one below
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
