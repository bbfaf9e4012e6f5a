"""A log in simulated time, and a host's connection to it: late, failing, or hanging.

The rules are those of ``leasehold.events.source``: numbered events, served to the highest epoch; a
cancelled receive has not moved. Code of a host proceeds only when the host runs.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING

from leasehold.errors import BeyondEnd, ReaderDisplaced
from leasehold.events.event import EventBatch
from leasehold.events.source import PartitionEnds
from leasehold.events.start import Start, StartKind
from leasehold.testing.sim.faults import MAX_EVENTS
from leasehold.testing.sim.loop import simulated_sleep
from leasehold.testing.source import MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from leasehold.testing.sim.faults import WorkRates
    from leasehold.testing.sim.host import Host


@cache
def _rows() -> pa.RecordBatch:
    """Return the events of any partition: they differ by number alone, so they are made once."""
    source = MemorySource()
    source.append("0", *[b"event"] * MAX_EVENTS)
    return source.batch("0", 0, MAX_EVENTS).arrow


class SimLog:
    """The log that all hosts of a world read: it never fails, only the connection does."""

    def __init__(self, name: str, partitions: Sequence[str]) -> None:
        self.name = name
        self.next = dict.fromkeys(partitions, 0)
        self.claims: dict[str, tuple[int, SimReceiver]] = {}
        self._changes = {each: asyncio.Event() for each in partitions}

    def grow(self) -> str:
        """Add a partition, and return its id."""
        partition = f"{len(self.next):04}"
        self.next[partition] = 0
        self._changes[partition] = asyncio.Event()
        return partition

    def append(self, partition: str, events: int) -> None:
        """Add this many events, while there is room."""
        self.next[partition] = min(self.next[partition] + events, MAX_EVENTS)
        self.notify(partition)

    def notify(self, partition: str) -> None:
        """Have every receiver of the partition check again."""
        changed, self._changes[partition] = self._changes[partition], asyncio.Event()
        changed.set()

    async def changed(self, partition: str) -> None:
        """Return at the next change."""
        await self._changes[partition].wait()

    def claim(self, receiver: SimReceiver) -> None:
        """Serve this receiver, and none with an older claim."""
        epoch = self.claims[receiver.partition][0] if receiver.partition in self.claims else 0
        if epoch > receiver.epoch:
            raise ReaderDisplaced(f"epoch {epoch} reads {receiver.partition}", epoch=receiver.epoch)
        self.claims[receiver.partition] = (receiver.epoch, receiver)
        self.notify(receiver.partition)


class SimSource:
    """The ``EventSource`` of one host; ``rates`` returns the current faults."""

    def __init__(self, log: SimLog, host: Host, rates: Callable[[], WorkRates]) -> None:
        self._log = log
        self._host = host
        self._rates = rates

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._log.name

    async def partitions(self) -> Sequence[str]:
        """Return the ids of all partitions."""
        await self.round_trip(may_hang=True)
        return list(self._log.next)

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return the first and the next event of each partition."""
        await self.round_trip(may_hang=True)
        return {each: PartitionEnds(first=0, next=self._log.next[each]) for each in partitions}

    async def receiver(
        self, partition: str, *, group: str, epoch: int, start: Start, name: str
    ) -> SimReceiver:
        """Open a receiver. A world has one group."""
        del group, name
        await self.round_trip(may_hang=True)
        end = self._log.next[partition]
        position = start.value if start.kind is StartKind.SEQUENCE else 0
        if position > end:
            raise BeyondEnd(f"event {position} lies beyond the end, {end}", end=end)
        receiver = SimReceiver(self, self._log, partition, epoch=epoch, position=position)
        self._log.claim(receiver)
        return receiver

    async def close(self) -> None:
        """Close nothing."""

    async def round_trip(self, *, may_hang: bool = False) -> None:
        """Reach the log and return: this may be slow, raise OSError, or never end."""
        rates, rng = self._rates(), self._host.rng
        if may_hang and rates.source_hangs and rng.random() < rates.source_hangs:
            await asyncio.Event().wait()
        if rates.late and rng.random() < rates.late:
            await simulated_sleep(rng.uniform(0.0, rates.late_s))
        await self._host.gate()
        if rates.source_fails and rng.random() < rates.source_fails:
            raise OSError("simulated: the read failed")

    async def wait(self, partition: str) -> None:
        """Return when there may be new events, and the host runs."""
        await self._log.changed(partition)
        await self._host.gate()


class SimReceiver:
    """A receiver of one partition."""

    def __init__(
        self, source: SimSource, log: SimLog, partition: str, *, epoch: int, position: int
    ) -> None:
        """Called by the source."""
        self.partition = partition
        self.epoch = epoch
        self.position = position
        self._source = source
        self._log = log

    async def receive(self, *, max_events: int, max_bytes: int) -> EventBatch:
        """Return the next events; wait until there are some."""
        del max_bytes
        await self._source.round_trip(may_hang=True)
        while True:
            epoch, receiver = self._log.claims[self.partition]
            if receiver is not self:
                raise ReaderDisplaced(f"epoch {epoch} reads {self.partition}", epoch=self.epoch)
            count = min(max_events, self._log.next[self.partition] - self.position)
            if count > 0:
                rows = _rows().slice(self.position, count)
                self.position += count
                return EventBatch(partition=self.partition, arrow=rows)
            await self._source.wait(self.partition)

    async def close(self) -> None:
        """Close nothing."""
