"""Find events in a partition: by number, offset, time or key, without reading what lies between.

The segments are bisected by their headers; inside one its index tells where to begin. A search by
number opens one segment; by offset or time as many as the logarithm of their number.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, TypeVar

from leasehold.errors import BeyondEnd, DataDamaged, Trimmed, UnknownFile
from leasehold.log import frame
from leasehold.log.mapped import MappedSegment
from leasehold.log.start import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.files.namespace import Namespace
    from leasehold.log.events import EventBatch
    from leasehold.log.segment import Segment, Spot
    from leasehold.log.shelf import Place, Shelf
    from leasehold.log.start import Start

T = TypeVar("T")
_NEVER = 2**63


class Finder:
    """Searches on one shelf. Not to be shared between threads."""

    def __init__(self, files: Namespace, shelf: Shelf) -> None:
        """Look at nothing yet."""
        self._files = files
        self._shelf = shelf
        self._tail: MappedSegment | None = None

    def sequence_of(self, start: Start) -> int:
        """The sequence number of the first event to be read; it may have yet to come.

        Raises:
            Trimmed: it was removed by retention.
            BeyondEnd: it lies beyond the next event.
            DataDamaged: what has to be looked at is damaged on all volumes.
        """
        while True:
            known = self._shelf.read()
            try:
                match start.kind:
                    case Kind.EARLIEST:
                        return known[0].base if known else 0
                    case Kind.LATEST:
                        return self.end()
                    case Kind.SEQUENCE:
                        return self._checked(start.value)
                    case Kind.OFFSET:
                        return self._by_offset(start.value)
                    case Kind.TIME:
                        return self._by_time(start.value)
            except UnknownFile:
                continue  # a segment was removed meanwhile

    def end(self) -> int:
        """The sequence number of the event that comes next into the partition."""
        while True:
            known = self._shelf.read_end()
            if not known:
                return 0
            try:
                return self._end_of(known[-1])
            except UnknownFile:
                self._tail = None
                self._shelf.read()

    def with_key(self, key: str, since: int, *, check: bool, bodies: bool) -> Iterator[EventBatch]:
        """All events with this key that are there now, from ``since`` on.

        Raises:
            Trimmed: the events from ``since`` on were removed by retention.
            DataDamaged: what has to be looked at is damaged on all volumes.
        """
        self._shelf.read()
        place = self._holding(since)
        while place is not None:
            try:
                opened = MappedSegment(place, self._files)
            except UnknownFile:
                self._shelf.read()
                place = self._holding(max(since, place.base))
                continue
            while opened.segment is not None:
                try:
                    found = opened.segment.find(key, since, check=check, bodies=bodies)
                    for batch in found:
                        yield batch
                        since = batch.last_sequence + 1
                    break
                except DataDamaged as damage:
                    opened.repair(damage)
            place = self._shelf.after(place.base)

    def _end_of(self, place: Place) -> int:
        if self._tail is None or self._tail.place != place:
            self._tail = MappedSegment(place, self._files)
        else:
            self._tail.refresh()
        end = place.base
        if self._tail.segment is not None:
            end = _sound(self._tail, lambda segment: segment.next_sequence)
        if end == place.base:  # without events another one may come in its place
            self._tail = None
        return end

    def _holding(self, sequence: int) -> Place | None:
        place = self._shelf.holding(sequence)
        if place is None and self._shelf.known:
            first = self._shelf.known[0].base
            raise Trimmed(
                f"event {sequence} was removed by retention: the first one that is kept is {first}",
                earliest=first,
            )
        return place

    def _checked(self, sequence: int) -> int:
        place = self._holding(sequence)
        if place is None or place == self._shelf.known[-1]:
            end = self.end()
            if sequence > end:
                raise BeyondEnd(
                    f"there is no event {sequence}: the next one will be {end}; start there, or "
                    "at latest",
                    end=end,
                )
        return sequence

    def _by_offset(self, offset: int) -> int:
        known = self._shelf.known
        at = bisect.bisect_right(known, offset, key=self._base_offset)
        if known and not at and offset < self._base_offset(known[0]) < _NEVER:
            raise Trimmed(
                f"offset {offset} was removed by retention: the first event that is kept is "
                f"{known[0].base}",
                earliest=known[0].base,
            )
        return self._inside(at - 1, lambda segment: segment.seek_offset(offset))

    def _by_time(self, enqueued_us: int) -> int:
        at = bisect.bisect_left(self._shelf.known, enqueued_us, key=self._first_us)
        return self._inside(at - 1, lambda segment: segment.seek_time(enqueued_us))

    def _inside(self, at: int, seek: Callable[[Segment], Spot | None]) -> int:
        """The event that ``seek`` finds in segment number ``at``, or the first one after it."""
        known = self._shelf.known
        if at >= 0:
            opened = MappedSegment(known[at], self._files)
            spot = _sound(opened, seek) if opened.segment is not None else None
            if spot is not None:
                return spot.sequence
        return known[at + 1].base if at + 1 < len(known) else self.end()

    def _base_offset(self, place: Place) -> int:
        segment = MappedSegment(place, self._files).segment
        return segment.header.base_offset if segment is not None else _NEVER

    def _first_us(self, place: Place) -> int:
        opened = MappedSegment(place, self._files)
        return _sound(opened, _first_us) if opened.segment is not None else _NEVER


def _first_us(segment: Segment) -> int:
    events = (each for each in segment.frames() if each.kind is frame.Kind.EVENTS)
    return next((each.first_us for each in events), _NEVER)


def _sound(opened: MappedSegment, ask: Callable[[Segment], T]) -> T:
    """The answer of the segment, from a volume on which it is not damaged."""
    while True:
        try:
            return ask(opened.whole)
        except DataDamaged as damage:
            opened.repair(damage)
