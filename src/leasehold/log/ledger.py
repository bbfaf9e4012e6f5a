"""What the owner of a partition must know to go on: numbers, times, and every producer's last one.

Pure. It is made from the last segment and says which part of a parcel is new. Sequence numbers
have no gaps, offsets and times never go back, and nothing is stored twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.log.frame import Kind, padded
from leasehold.log.producers import (
    DEFAULT_LIMIT,
    ProducerState,
    newest_producers,
    note_producer,
)

if TYPE_CHECKING:
    from leasehold.log.frame import FrameHeader
    from leasehold.log.parcel import Parcel
    from leasehold.log.segment import Segment

_REMEMBERED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """What to do with a parcel: leave out the first ``skip`` events, they are stored already.

    ``stored_as`` is where the first event was stored, if it was and that is still known, else -1.
    """

    skip: int
    stored_as: int = -1


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The state of one partition at its end."""

    next_sequence: int = 0
    next_offset: int = 0
    last_us: int = 0
    producers: dict[bytes, ProducerState] = field(default_factory=dict)
    # The last frames of each producer: its first number, how many, the first sequence number.
    recent: dict[bytes, deque[tuple[int, int, int]]] = field(default_factory=dict)

    @classmethod
    def after(cls, segment: Segment) -> Ledger:
        """The state after the last whole frame of a segment.

        Raises:
            DataDamaged: a frame of it can not be read.
        """
        ledger = cls(
            next_sequence=segment.next_sequence,
            next_offset=segment.header.base_offset + padded(len(segment)),
            last_us=segment.header.created_us,
            producers=segment.producers(),
        )
        for header in segment.frames():
            ledger.last_us = max(ledger.last_us, header.last_us)
            ledger._remember(header)
        return ledger

    def new_of(self, parcel: Parcel) -> New:
        """Which part of the parcel is new."""
        first, producer = parcel.stamp.sequence, parcel.stamp.producer
        known = self.producers.get(producer)
        if known is None or first > known.last_sequence:
            return New(skip=0)
        skip = min(parcel.end, known.last_sequence + 1) - first
        for number, count, stored_as in self.recent.get(producer, ()):
            if number <= first < number + count:
                return New(skip=skip, stored_as=stored_as + first - number)
        return New(skip=skip)

    def time_us(self, now_us: int) -> int:
        """The time to store events under: now, but never before that of an earlier one."""
        self.last_us = max(self.last_us, now_us)
        return self.last_us

    def stored(self, header: FrameHeader) -> None:
        """A frame was written: go on after it."""
        self.next_sequence = max(self.next_sequence, header.next_sequence)
        self.next_offset = header.offset + header.length
        note_producer(self.producers, header)
        self._remember(header)
        if len(self.producers) > 2 * DEFAULT_LIMIT:
            self.producers = newest_producers(self.producers)
            self.recent = {
                each: self.recent[each] for each in self.producers if each in self.recent
            }

    def _remember(self, header: FrameHeader) -> None:
        if header.kind is Kind.EVENTS:
            frames = self.recent.setdefault(header.stamp.producer, deque(maxlen=_REMEMBERED))
            frames.append((header.stamp.sequence, header.count, header.base_sequence))
