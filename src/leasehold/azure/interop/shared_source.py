"""``SharedSource``: a hub that Leasehold hosts read beside Azure's clients, on equal terms.

The receivers of Azure's clients all have the owner level 0, and the last to attach wins. A receiver
with the epoch of its lease would keep them out of a partition that they have claimed, and they
would give it back. So in a mixed group the hosts use level 0 too.

Guarantees: a host that has lost a partition to a later receiver does not take it back under the
same epoch before ``grace`` is over; by then it knows from the records whose it is. What was lost is
still fenced by the epoch, in the store. If the records know nothing of the loss, that is logged as
a warning: then the clients use other records.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.clock import SystemClock
from leasehold.core.lease_timing import MAX_LEASE_S
from leasehold.errors import ReaderDisplaced
from leasehold.events.source import identity_of
from leasehold.names import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.events.event import EventBatch
    from leasehold.events.source import EventSource, PartitionEnds, Receiver
    from leasehold.events.start import Start

log = logging.getLogger("leasehold.azure")

_LEVEL = 0


class SharedSource:
    """An ``EventSource`` over another one, with the owner level of Azure's clients."""

    def __init__(
        self,
        source: EventSource,
        *,
        grace: timedelta = timedelta(seconds=15),
        clock: Clock | None = None,
    ) -> None:
        """Wrap ``source``, which is closed with this.

        ``grace``: longer than a host takes to see a steal in the records of ``MixedStore``, which
        is the 36th part of the expiry and a cycle.

        Raises:
            InvalidDuration: the grace is out of range.
        """
        self._source = source
        self._grace_s = seconds_of(grace, what="grace", min_s=0.0, max_s=MAX_LEASE_S)
        self._clock = clock or SystemClock()
        self._lost: dict[tuple[str, str], tuple[int, float]] = {}

    @property
    def name(self) -> str:
        return self._source.name

    async def stream_identity(self) -> str:
        return await identity_of(self._source)

    async def partitions(self) -> Sequence[str]:
        return await self._source.partitions()

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        return await self._source.ends(partitions)

    async def receiver(
        self, partition: str, *, group: str, epoch: int, start: Start, name: str
    ) -> Receiver:
        """See ``EventSource``.

        Raises:
            ReaderDisplaced: a later receiver has the partition, and the grace is not over.
        """
        lost_epoch, until_s = self._lost.get((group, partition), (-1, 0.0))
        if epoch <= lost_epoch and self._clock.boottime_s() >= until_s:
            log.warning(
                "partition %s: another receiver has displaced ours, and the records still say that "
                "it is ours: see that all clients of the group have the same namespace, hub, "
                "consumer group and container; else each side handles every event",
                partition,
            )
        elif epoch <= lost_epoch:
            raise ReaderDisplaced(
                f"partition {partition} was taken by a later receiver: whose it is stands in the "
                "records of Azure's clients",
                key=partition,
                epoch=epoch,
                reason="stolen",
            )

        def stolen() -> None:
            self._lost[group, partition] = (epoch, self._clock.boottime_s() + self._grace_s)

        try:
            opened = await self._source.receiver(
                partition, group=group, epoch=_LEVEL, start=start, name=name
            )
        except ReaderDisplaced:
            stolen()
            raise
        return _SharedReceiver(opened, stolen)

    async def close(self) -> None:
        await self._source.close()


class _SharedReceiver:
    """A receiver that reports when it was displaced."""

    def __init__(self, receiver: Receiver, stolen: Callable[[], None]) -> None:
        self._receiver = receiver
        self._stolen = stolen

    @property
    def position(self) -> int:
        return self._receiver.position

    async def receive(self, *, max_events: int, max_bytes: int) -> EventBatch:
        try:
            return await self._receiver.receive(max_events=max_events, max_bytes=max_bytes)
        except ReaderDisplaced:
            self._stolen()
            raise

    async def close(self) -> None:
        await self._receiver.close()
