"""Which numbers of each producer a partition has stored, so that a repeated event is recognised.

A producer numbers its events, and a batch that failed leaves a gap in what was stored. The state of
a producer is its highest stored number and the gaps below it: what is in a gap was not stored. The
state is bounded: of more than ``MAX_GAPS`` gaps the lowest is forgotten, and numbers below its end
are not known any more. Of more than ``DEFAULT_LIMIT`` producers, those that were silent longest are
forgotten. Each segment begins with a frame of this state, so the newest segment alone is enough.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from leasehold.errors import DataDamaged
from leasehold.log.segment_format import (
    NO_PRODUCER,
    EncodedFrame,
    FrameKind,
    encode_frame,
    read_body,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasehold.log.segment_format import FrameHeader, View

DEFAULT_LIMIT = 10_000
MAX_GAPS = 16  # of each producer; a gap is made when sending fails, and closed by sending it again
_ROW = struct.Struct("<16sQqq")
# Instead of the number that an event was stored under: the row is a gap, or the known beginning.
_GAP_ROW, _KNOWN_FROM_ROW = -1, -2
# Bits in the ``link`` of the frame, which versions before 1.2 left zero.
_LISTS_GAPS, _HAS_FORGOTTEN = 1, 2


class NumberState(Enum):
    """Whether a producer's number was stored in a partition."""

    STORED = "stored"
    NOT_STORED = "not_stored"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """What one producer has stored: all from ``known_from`` to ``last_sequence`` but the gaps.

    Attributes:
        last_sequence: the highest of its numbers that was stored.
        stored_as: the sequence number of the event that was stored last.
        seen_us: when that was.
        gaps: numbers below ``last_sequence`` that were not stored, as (first, end), rising.
        known_from: whether lower numbers were stored is not known.
    """

    last_sequence: int
    stored_as: int
    seen_us: int
    gaps: tuple[tuple[int, int], ...] = ()
    known_from: int = 0

    def split(self, first: int, end: int) -> Iterator[tuple[int, int, NumberState]]:
        """Yield the numbers from ``first`` up to ``end`` as parts (first, end, state)."""
        edges = [(0, self.known_from, NumberState.UNKNOWN)]
        at = self.known_from
        for gap_first, gap_end in self.gaps:
            edges.append((at, gap_first, NumberState.STORED))
            edges.append((gap_first, gap_end, NumberState.NOT_STORED))
            at = gap_end
        edges.append((at, max(self.last_sequence + 1, at), NumberState.STORED))
        edges.append((edges[-1][1], end, NumberState.NOT_STORED))
        for edge_first, edge_end, state in edges:
            low, high = max(first, edge_first), min(end, edge_end)
            if low < high:
                yield low, high, state


class ProducerStates(dict[bytes, ProducerState]):
    """The producers of a partition. ``has_forgotten``: one that is not in it may have stored."""

    def __init__(
        self, states: Mapping[bytes, ProducerState] | None = None, *, has_forgotten: bool = False
    ) -> None:
        super().__init__(states or {})
        self.has_forgotten = has_forgotten


def note_producer(states: ProducerStates, header: FrameHeader) -> None:
    """Take a frame of events into account; one without a producer changes nothing."""
    producer = header.producer
    if header.kind is not FrameKind.EVENTS or producer == NO_PRODUCER.producer:
        return
    first, end = header.producer_sequence, header.producer_sequence + header.count
    known = states.get(producer)
    gaps: tuple[tuple[int, int], ...] = ()
    last, known_from = -1, first if states.has_forgotten else 0
    if known is not None:
        last, gaps, known_from = known.last_sequence, known.gaps, known.known_from
    if first <= last:
        gaps = _without(gaps, first, end)
    elif first > max(last + 1, known_from):
        gaps = (*gaps, (max(last + 1, known_from), first))
    if len(gaps) > MAX_GAPS:
        known_from = gaps[-MAX_GAPS - 1][1]
        gaps = gaps[-MAX_GAPS:]
    states[producer] = ProducerState(
        last_sequence=max(last, end - 1),
        stored_as=header.base_sequence + header.count - 1,
        seen_us=header.last_us,
        gaps=gaps,
        known_from=known_from,
    )


def _without(
    gaps: tuple[tuple[int, int], ...], first: int, end: int
) -> tuple[tuple[int, int], ...]:
    """Return what is left of the gaps when these numbers are stored."""
    left = []
    for gap_first, gap_end in gaps:
        left += [(gap_first, min(gap_end, first)), (max(gap_first, end), gap_end)]
    return tuple((low, high) for low, high in left if low < high)


def newest_producers(
    states: Mapping[bytes, ProducerState], *, limit: int = DEFAULT_LIMIT
) -> ProducerStates:
    """Return the ``limit`` producers that stored something last, the newest first."""
    newest = sorted(states.items(), key=lambda item: item[1].stored_as, reverse=True)
    has_forgotten = isinstance(states, ProducerStates) and states.has_forgotten
    return ProducerStates(dict(newest[:limit]), has_forgotten=has_forgotten or len(newest) > limit)


def encode_producers(
    states: Mapping[bytes, ProducerState],
    *,
    base_sequence: int,
    offset: int,
    enqueued_us: int,
    epoch: int,
    base_offset: int = 0,
    limit: int = DEFAULT_LIMIT,
) -> EncodedFrame:
    """Return the frame of the newest producers. ``base_sequence`` is that of the next event."""
    newest = newest_producers(states, limit=limit)
    rows: list[bytes] = []
    for producer, state in newest.items():
        # The row of the producer comes last: versions before 1.2 use the last row of each.
        if state.known_from:
            rows.append(_ROW.pack(producer, state.known_from, _KNOWN_FROM_ROW, 0))
        rows += [_ROW.pack(producer, first, _GAP_ROW, end) for first, end in state.gaps]
        rows.append(_ROW.pack(producer, state.last_sequence, state.stored_as, state.seen_us))
    return encode_frame(
        b"".join(rows),
        kind=FrameKind.PRODUCERS,
        count=len(rows),
        base_sequence=base_sequence,
        offset=offset,
        first_us=enqueued_us,
        last_us=enqueued_us,
        epoch=epoch,
        link=_LISTS_GAPS | (_HAS_FORGOTTEN if newest.has_forgotten else 0),
        base_offset=base_offset,
    )


def read_producers(view: View, header: FrameHeader) -> ProducerStates:
    """Return the producers of a frame.

    A frame before version 1.2 has only the highest number of each. Below it nothing is known.
    """
    body = read_body(view, header)
    if header.kind is not FrameKind.PRODUCERS or len(body) != header.count * _ROW.size:
        raise DataDamaged(f"the frame at byte {header.position} is not one of producers")
    lists_gaps = bool(header.link & _LISTS_GAPS)
    found = ProducerStates(has_forgotten=not lists_gaps or bool(header.link & _HAS_FORGOTTEN))
    gaps, known_from = list[tuple[int, int]](), 0
    for producer, number, stored_as, last in _ROW.iter_unpack(body):
        if lists_gaps and stored_as == _GAP_ROW:
            gaps.append((number, last))
        elif lists_gaps and stored_as == _KNOWN_FROM_ROW:
            known_from = number
        else:
            found[bytes(producer)] = ProducerState(
                last_sequence=number,
                stored_as=stored_as,
                seen_us=last,
                gaps=tuple(gaps),
                known_from=known_from if lists_gaps else number + 1,
            )
            gaps, known_from = [], 0
    return found
