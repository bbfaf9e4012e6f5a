"""The last sequence number of each producer, so that a batch that is sent again is recognised.

The state is bounded: of more than ``DEFAULT_LIMIT`` producers, those that were silent longest are
forgotten. Each segment begins with a frame of this state, so the newest segment alone is enough.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
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
    from collections.abc import Mapping

    from leasehold.log.segment_format import FrameHeader, View

DEFAULT_LIMIT = 10_000
_ROW = struct.Struct("<16sQqq")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The last event of one producer: its own number of it, and the one it was stored under."""

    last_sequence: int
    stored_as: int
    seen_us: int


def note_producer(states: dict[bytes, ProducerState], header: FrameHeader) -> None:
    """Take a frame of events into account; one without a producer changes nothing."""
    if header.kind is FrameKind.EVENTS and header.stamp.producer != NO_PRODUCER.producer:
        states[header.stamp.producer] = ProducerState(
            last_sequence=header.stamp.sequence + header.count - 1,
            stored_as=header.base_sequence + header.count - 1,
            seen_us=header.last_us,
        )


def newest_producers(
    states: Mapping[bytes, ProducerState], *, limit: int = DEFAULT_LIMIT
) -> dict[bytes, ProducerState]:
    """Return the ``limit`` producers that stored something last, the newest first."""
    newest = sorted(states.items(), key=lambda item: item[1].stored_as, reverse=True)
    return dict(newest[:limit])


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
    body = b"".join(
        _ROW.pack(producer, state.last_sequence, state.stored_as, state.seen_us)
        for producer, state in newest.items()
    )
    return encode_frame(
        body,
        kind=FrameKind.PRODUCERS,
        count=len(newest),
        base_sequence=base_sequence,
        offset=offset,
        first_us=enqueued_us,
        last_us=enqueued_us,
        epoch=epoch,
        base_offset=base_offset,
    )


def read_producers(view: View, header: FrameHeader) -> dict[bytes, ProducerState]:
    """Return the producers of a frame."""
    body = read_body(view, header)
    if header.kind is not FrameKind.PRODUCERS or len(body) != header.count * _ROW.size:
        raise DataDamaged(f"the frame at byte {header.position} is not one of producers")
    return {
        bytes(producer): ProducerState(last_sequence=last, stored_as=stored, seen_us=seen_us)
        for producer, last, stored, seen_us in _ROW.iter_unpack(body)
    }
