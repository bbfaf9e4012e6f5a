"""An event hub as an event source, and as a source of ranges for Spark and audits.

Guarantees beyond those of every source:

* One connection for all partitions, opened on first use.
* Events are decoded into Arrow as they arrive; Arrow is requested from a server that offers it.
* What waits of a partition is bounded, in events and in bytes.
* The hub enforces epochs only while the receiver with the epoch is attached. An older host that
  returns when no other reads is stopped by its lease, and its checkpoints are fenced.

Ranges are read without an epoch, in the consumer group of the address (``$Default`` if it names
none). Use one in which no processor reads: the hub refuses other readers beside an epoch.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self, TypeVar

from leasehold.azure.amqp.types import Array
from leasehold.azure.eventhubs.address import HubAddress, parse
from leasehold.azure.eventhubs.connection_manager import ConnectionManager
from leasehold.azure.eventhubs.credentials import provider_for
from leasehold.azure.eventhubs.positions import facts_of, resolve_start
from leasehold.azure.eventhubs.receiver import EventHubsReceiver, ReceiverSettings
from leasehold.azure.eventhubs.service_errors import RequestContext
from leasehold.clock import SystemClock, system_random
from leasehold.errors import BeyondEnd, UnknownStream, UsageError
from leasehold.events.start import Start
from leasehold.names import check_name, in_order, seconds_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence
    from types import TracebackType

    from leasehold.azure.amqp.messages import Message
    from leasehold.azure.eventhubs.connection_manager import LiveConnection
    from leasehold.azure.eventhubs.credentials import Credential
    from leasehold.azure.eventhubs.positions import PartitionFacts
    from leasehold.clock import Clock
    from leasehold.events.event import EventBatch
    from leasehold.events.source import PartitionEnds

DEFAULT_GROUP = "$Default"
_EPOCH_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
_HUB, _PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
MAX_BYTES = 4 << 20
_DEFAULT_TIMEOUT = timedelta(seconds=30)
_MAX_TIMEOUT_S = 86_400.0


class EventHubsSource:
    """One event hub. ``async with`` closes it. For one event loop at a time."""

    def __init__(
        self,
        address: HubAddress | str,
        *,
        credential: Credential | None = None,
        patience: timedelta = _DEFAULT_TIMEOUT,
        prefetch_bytes: int = MAX_BYTES,
        clock: Clock | None = None,
    ) -> None:
        """Check the address; nothing is connected yet.

        ``credential``: one of azure-identity, instead of a key. ``patience``: how long transient
        failures are retried before they are raised. ``prefetch_bytes``: maximum size of the events
        of a partition that wait.

        Raises:
            UsageError: the address cannot be read, or there are no credentials.
        """
        self.address = parse(address) if isinstance(address, str) else address
        if prefetch_bytes < 1:
            raise UsageError(f"prefetch_bytes is a number from 1 on, not {prefetch_bytes}")
        self._clock = clock or SystemClock()
        self._rng = system_random()
        self._timeout_s = seconds_of(patience, what="patience", min_s=0.0, max_s=_MAX_TIMEOUT_S)
        self._prefetch_bytes = prefetch_bytes
        self.connection_manager = ConnectionManager(
            self.address,
            tokens=provider_for(self.address, clock=self._clock, credential=credential),
            clock=self._clock,
            rng=self._rng,
            timeout_s=self._timeout_s,
        )
        self._receivers: set[EventHubsReceiver] = set()
        self._created_at: int | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<EventHubsSource {self.address}>"

    @property
    def name(self) -> str:
        """The name of the hub."""
        return self.address.hub

    async def partitions(self) -> Sequence[str]:
        """Return the names of the partitions.

        Raises:
            UnknownStream: there is no such hub.
            StoreUnavailable, StoreUnusable: it cannot be reached, or refuses access.
        """
        found = await self._read(_HUB)
        ids = found.get("partition_ids")
        items = ids.items if isinstance(ids, Array) else ids
        if not isinstance(items, list | tuple) or not items:
            raise UnknownStream(f"{self.address} does not say its partitions: is it an event hub?")
        self._created_at = _created_at(found)
        return tuple(sorted(map(str, items), key=in_order))

    async def created_at(self) -> int:
        """Return when the hub was created, in milliseconds since 1970; raise as ``partitions``."""
        return _created_at(await self._read(_HUB))

    async def stream_identity(self) -> str:
        """Return the identity of the hub; raise as ``partitions``.

        It is as old as the last call of ``partitions``, and costs a request only before the first.
        """
        if self._created_at is None:
            self._created_at = await self.created_at()
        return identity_from(self._created_at)

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return the first and next sequence numbers of partitions.

        Raises:
            UsageError: there is no such partition.
            UnknownStream: there is no such hub.
            StoreUnavailable, StoreUnusable: it cannot be reached, or refuses access.
        """
        found = await asyncio.gather(*map(self.facts, partitions))
        return {name: facts.ends for name, facts in zip(partitions, found, strict=True)}

    async def facts(self, partition: str) -> PartitionFacts:
        """Return what the hub reports of a partition; raise as ``ends``."""
        try:
            return facts_of(await self._read(_PARTITION, partition))
        except UnknownStream as error:
            found = await self.partitions()
            if partition in found:
                raise
            raise UsageError(
                f"{self.name!r} has no partition {partition!r}: it has {found[0]} to {found[-1]}"
            ) from error

    async def receiver(
        self, partition: str, *, group: str, epoch: int, start: Start, name: str
    ) -> EventHubsReceiver:
        """Open a receiver with an epoch.

        Raises:
            StoreUnavailable, StoreUnusable: it cannot be reached, or refuses access.
        """
        consumer_group = self.address.group_of(check_name(group, what="group"))
        return await self._opened(partition, consumer_group, epoch, start, name)

    async def reader(self, partition: str, *, start: Start, name: str) -> EventHubsReceiver:
        """Open a receiver without an epoch; it displaces no other. At most five per partition.

        Raises:
            ReaderDisplaced: the consumer group has a receiver with an epoch.
            LeaseholdError: otherwise as ``receiver``.
        """
        consumer_group = self.address.group_of(DEFAULT_GROUP)
        return await self._opened(partition, consumer_group, None, start, name)

    async def close(self) -> None:
        """Close the connection; receivers that wait raise. Safe to call twice."""
        self._closed = True
        for receiver in self._receivers:
            receiver.end()
        self._receivers.clear()
        await self.connection_manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --------------------------------------------------------------- parts

    async def _opened(
        self, partition: str, consumer_group: str, epoch: int | None, start: Start, name: str
    ) -> EventHubsReceiver:
        self._check_open()
        facts = await self.facts(partition)
        resolved = resolve_start(start, facts, partition=partition, hub=self.name)
        receiver = EventHubsReceiver(
            ReceiverSettings(
                address=self.address,
                partition=partition,
                consumer_group=consumer_group,
                epoch=epoch,
                name=name,
                max_bytes=self._prefetch_bytes,
            ),
            resolved,
            connection_manager=self.connection_manager,
            facts=lambda: self.facts(partition),
            clock=self._clock,
            rng=self._rng,
            timeout_s=self._timeout_s,
        )
        try:
            await receiver.open()
            self._check_open()
        except BaseException:
            receiver.end()
            raise
        self._receivers = {each for each in self._receivers if not each.closed}
        self._receivers.add(receiver)
        return receiver

    async def _read(self, kind: str, partition: str = "") -> Mapping[object, object]:
        self._check_open()

        async def send(live: LiveConnection) -> Message:
            what = {
                "operation": "READ",
                "type": kind,
                "name": self.address.hub,
                "security_token": live.token,
            }
            return await live.management.request(
                {**what, **({"partition": partition} if partition else {})}
            )

        answer = await self.connection_manager.request(
            send, RequestContext(address=self.address, partition=partition)
        )
        return answer.value if isinstance(answer.value, dict) else {}

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the source of {self.name!r} is closed: open another one")


def _created_at(found: Mapping[object, object]) -> int:
    created_at = found.get("created_at")
    return int(created_at) if isinstance(created_at, int) else 0


def identity_from(created_at: int) -> str:
    """Return the identity of a hub: when it was created. Empty if the hub does not say it."""
    if not created_at:
        return ""
    return (_EPOCH_BEGAN + timedelta(milliseconds=created_at)).isoformat(timespec="milliseconds")


T = TypeVar("T")

_MAX_EVENTS = 1 << 16
_MAX_BYTES = 32 << 20
_NAME = "leasehold-ranges"


class EventHubsRanges:
    """Ranges of the events of a hub; all calls block, for any thread.

    A separate thread runs the connection.
    """

    def __init__(self, address: str, *, pinned: bool = False) -> None:
        """Look the hub up. ``pinned``: fail if the hub is created again later."""
        self._source = EventHubsSource(address)
        self._pinned = pinned
        self._loop = asyncio.new_event_loop()
        # A daemon, since Spark workers end without closing anything.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"leasehold-ranges-{self.name}", daemon=True
        )
        self._thread.start()
        try:
            self._created_at = self._call(self._source.created_at())
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The name of the hub."""
        return self._source.name

    @property
    def identity(self) -> str:
        """The identity of the hub that was there when this was made."""
        return identity_from(self._created_at)

    def partitions(self) -> Sequence[str]:
        """Return the names of the partitions."""
        self._check()
        return self._call(self._source.partitions())

    def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return the first and next sequence numbers of partitions."""
        self._check()
        return self._call(self._source.ends(partitions))

    def find(self, partition: str, start: Start) -> int:
        """Return the sequence number of the event at ``start``."""
        facts = self._call(self._source.facts(partition))
        resolved = resolve_start(start, facts, partition=partition, hub=self.name)
        if resolved.position is not None:
            return resolved.position
        receiver = self._call(self._source.reader(partition, start=start, name=_NAME))
        try:
            return receiver.position
        finally:
            self._call(receiver.close())

    def read(
        self,
        partition: str,
        start: int,
        end: int,
        *,
        bodies: bool = True,  # noqa: ARG002 - a hub always sends them
    ) -> Iterator[EventBatch]:
        """Yield the events from ``start`` to before ``end``."""
        if start >= end:
            return
        next_sequence = self.ends([partition])[partition].next
        if next_sequence < end:
            raise BeyondEnd(
                f"partition {partition} of {self.name!r} ends before event {next_sequence}, and "
                f"events up to {end} were asked for: it has never been that long, or the hub was "
                "made anew",
                end=next_sequence,
            )
        begin = Start.sequence(start)
        receiver = self._call(self._source.reader(partition, start=begin, name=_NAME))
        try:
            while receiver.position < end:
                batch = self._call(receiver.receive(max_events=_MAX_EVENTS, max_bytes=_MAX_BYTES))
                if batch.last_sequence >= end:
                    batch = batch.slice(0, bisect_left(batch.arrow.column(0).to_pylist(), end))
                if len(batch):
                    yield batch
        finally:
            self._call(receiver.close())

    def close(self) -> None:
        """Close the connection and end the thread. Safe to call twice."""
        if self._thread.is_alive():
            self._call(self._source.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, work: Coroutine[None, None, T]) -> T:
        """Run a coroutine in the thread of the connection; return its result."""
        if not self._thread.is_alive():
            work.close()
            raise UsageError(
                f"the ranges of {self.name!r} are closed, or were opened before this process was "
                "forked: open them anew"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _check(self) -> None:
        if self._pinned and self._call(self._source.created_at()) != self._created_at:
            raise UnknownStream(
                f"the hub {self.name!r} was made anew: its events have other numbers; start "
                "again, with another group or with its checkpoints reset"
            )


def open_source(text: str, *, store_url: str, name: str) -> EventHubsSource:  # noqa: ARG001
    """Open a hub; ``events.source_urls`` calls this. A hub needs no store."""
    return EventHubsSource(text)


def open_ranges(text: str, *, store_url: str, name: str, pinned: bool) -> EventHubsRanges:  # noqa: ARG001
    """Open a hub for reading ranges; ``events.source_urls`` calls this."""
    return EventHubsRanges(text, pinned=pinned)
