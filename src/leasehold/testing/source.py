"""An event source in memory: for tests of handlers, without files."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.errors import BeyondEnd, ReaderDisplaced, Trimmed
from leasehold.events.event import STORED_SCHEMA, EventBatch
from leasehold.events.source import PartitionEnds
from leasehold.events.start import Start, StartKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


class MemorySource:
    """Events in lists. Safe to use from several event loops.

    The n-th event of a partition was enqueued n seconds after 2030-01-01T00:00:00Z.
    """

    def __init__(self, name: str = "stream", *, partitions: int = 1) -> None:
        self._name = name
        self.events: dict[str, list[bytes]] = {str(number): [] for number in range(partitions)}
        self.first: dict[str, int] = {}
        self.claims: dict[tuple[str, str], tuple[int, object]] = {}
        self.receivers: list[MemoryReceiver] = []
        self.identity = ""  # change it together with the events: then it is another stream

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._name

    def append(self, partition: str, *bodies: bytes) -> int:
        """Add events; return the number of the last one. From any thread."""
        self.events[partition].extend(bodies)
        for receiver in tuple(self.receivers):
            receiver.wake()
        return len(self.events[partition]) - 1

    def grow(self, partitions: int) -> None:
        """Add partitions until there are this many."""
        for number in range(partitions):
            self.events.setdefault(str(number), [])

    def trim(self, partition: str, first: int) -> None:
        """Keep the events from this number on."""
        self.first[partition] = first

    async def stream_identity(self) -> str:
        """Return ``identity``."""
        return self.identity

    async def partitions(self) -> Sequence[str]:
        """Return the ids of all partitions."""
        return list(self.events)

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return the first and the next event of each partition."""
        return {
            each: PartitionEnds(first=self.first.get(each, 0), next=len(self.events[each]))
            for each in partitions
        }

    async def receiver(
        self, partition: str, *, group: str, epoch: int, start: Start, name: str
    ) -> MemoryReceiver:
        """Open a receiver at ``start``."""
        held = self.claims.get((partition, group))
        if held is not None and held[0] > epoch:
            message = f"epoch {held[0]} reads partition {partition}, not {name}"
            raise ReaderDisplaced(message, epoch=epoch)
        receiver = MemoryReceiver(self, partition, group=group, epoch=epoch)
        receiver.position = self._number(partition, start)
        self.claims[partition, group] = (epoch, receiver)
        self.receivers.append(receiver)
        for each in tuple(self.receivers):
            each.wake()
        return receiver

    async def close(self) -> None:
        """Close all receivers."""
        for receiver in tuple(self.receivers):
            await receiver.close()

    def batch(self, partition: str, start: int, stop: int) -> EventBatch:
        """Return some of the events, as they are received."""
        bodies = self.events[partition][start:stop]
        numbers = list(range(start, start + len(bodies)))
        columns = [
            pa.array(numbers, pa.int64()),
            pa.array(numbers, pa.int64()),
            pa.array([_BEGAN + timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC")),
            pa.array([None] * len(bodies), pa.utf8()),
            pa.array(bodies, pa.binary()),
            pa.array([None] * len(bodies), STORED_SCHEMA.field("properties").type),
            pa.array([0] * len(bodies), pa.int64()),
        ]
        return EventBatch(
            partition=partition,
            arrow=pa.RecordBatch.from_arrays(columns, schema=STORED_SCHEMA),
        )

    def _number(self, partition: str, start: Start) -> int:
        first, end = self.first.get(partition, 0), len(self.events[partition])
        match start.kind:
            case StartKind.EARLIEST:
                return first
            case StartKind.LATEST:
                return end
            case StartKind.TIME:
                began_us = int(_BEGAN.timestamp()) * 1_000_000
                return min(max(-(-(start.value - began_us) // 1_000_000), first), end)
            case _:
                if start.value > end:
                    raise BeyondEnd(f"event {start.value} lies beyond the end, {end}", end=end)
                if start.value < first:
                    raise Trimmed(f"event {start.value} is gone", earliest=first)
                return start.value


class MemoryReceiver:
    """A receiver of one partition. ``stuck``: it returns nothing, even if there are events."""

    def __init__(self, source: MemorySource, partition: str, *, group: str, epoch: int) -> None:
        """Called by the source."""
        self.position = 0
        self.stuck = False
        self.failure: Exception | None = None
        self._source = source
        self._partition = partition
        self._claim = (partition, group)
        self._epoch = epoch
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Check for events again. From any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    async def receive(self, *, max_events: int, max_bytes: int) -> EventBatch:
        """Return the next events; wait until there are some."""
        del max_bytes
        while True:
            self._changed.clear()
            if self.failure is not None:
                raise self.failure
            if self._source.claims[self._claim][1] is not self:
                held = self._source.claims[self._claim][0]
                raise ReaderDisplaced(f"epoch {held} reads {self._partition}", epoch=self._epoch)
            first = self._source.first.get(self._partition, 0)
            if self.position < first:
                raise Trimmed(f"event {self.position} is gone", earliest=first)
            if self.position < len(self._source.events[self._partition]) and not self.stuck:
                stop = self.position + max_events
                batch = self._source.batch(self._partition, self.position, stop)
                self.position += len(batch)
                return batch
            await self._changed.wait()

    async def close(self) -> None:
        """Leave the source."""
        if self in self._source.receivers:
            self._source.receivers.remove(self)
