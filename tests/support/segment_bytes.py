"""The bytes of log segments for tests, put together frame by frame, without files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.events import Event
from leasehold.events.event import sent_batch
from leasehold.log.producer_states import ProducerState, encode_producers
from leasehold.log.segment import REGION_BYTES, IndexBuilder
from leasehold.log.segment_format import (
    NO_PRODUCER,
    EncodedFrame,
    ProducerStamp,
    SegmentHeader,
    encode_events,
    encode_segment_header,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa


class Assembly:
    """A segment that grows; ``data`` is what would be on the disk."""

    def __init__(
        self,
        *,
        base_sequence: int = 0,
        base_offset: int = 0,
        partition: int = 3,
        region_bytes: int = REGION_BYTES,
    ) -> None:
        self.header = SegmentHeader(
            partition=partition,
            base_sequence=base_sequence,
            base_offset=base_offset,
            created_us=1_000,
            epoch=7,
        )
        self.data = bytearray(encode_segment_header(self.header))
        self.next_sequence = base_sequence
        self.builder = IndexBuilder(self.header, region_bytes=region_bytes)

    def add(
        self,
        what: Event | Sequence[Event] | pa.RecordBatch,
        *,
        at_us: int = 5_000,
        stamp: ProducerStamp = NO_PRODUCER,
    ) -> EncodedFrame:
        """One frame of events."""
        batch = sent_batch(what)
        frame = encode_events(
            batch,
            base_sequence=self.next_sequence,
            offset=self.header.base_offset + len(self.data),
            base_offset=self.header.base_offset,
            enqueued_us=at_us,
            epoch=7,
            producer=stamp,
        )
        self.builder.add(frame.header, batch.column("key"))
        self.next_sequence += batch.num_rows
        return self._append(frame)

    def add_producers(
        self, states: Mapping[bytes, ProducerState], *, limit: int = 10_000
    ) -> EncodedFrame:
        """A frame of producers."""
        frame = encode_producers(
            states,
            base_sequence=self.next_sequence,
            offset=self.header.base_offset + len(self.data),
            base_offset=self.header.base_offset,
            enqueued_us=4_000,
            epoch=7,
            limit=limit,
        )
        self.builder.add(frame.header)
        return self._append(frame)

    def close(self) -> bytes:
        """Index and end mark: the whole segment."""
        self._append(self.builder.encode(now_us=9_000, epoch=7))
        return bytes(self.data)

    def _append(self, frame: EncodedFrame) -> EncodedFrame:
        joined = frame.joined()
        assert len(joined) == frame.length
        self.data += joined
        return frame
