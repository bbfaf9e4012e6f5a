"""An event hub as an event source, over a receiver of our own.

Guarantees beyond those of every source:

* One connection for all partitions; nothing is connected before it is needed.
* Events are decoded into Arrow as they come; a server that offers Arrow is asked for it.
* What waits of a partition is bounded, in events and in bytes.
* The claim of an epoch is that of the hub: it lasts as long as the receiver with it. An older host
  that comes back when nobody reads is stopped by its lease, and its checkpoints are fenced.

Ranges of the events of a hub, for Spark and for audits: everything blocks, for any thread.

They are read without an epoch, in the consumer group of the address (``$Default`` if it names
none): use one in which no processor reads, since the hub lets nobody read beside an epoch.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from datetime import timedelta
from typing import TYPE_CHECKING, Self, TypeVar

from leasehold.azure.amqp.types import Array
from leasehold.azure.eventhubs.address import HubAddress, parse
from leasehold.azure.eventhubs.connection_manager import ConnectionManager
from leasehold.azure.eventhubs.credentials import provider_for
from leasehold.azure.eventhubs.positions import facts_of, place_of
from leasehold.azure.eventhubs.receiver import EventHubsReceiver, Reading
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
_HUB, _PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
MAX_BYTES = 4 << 20
_PATIENCE = timedelta(seconds=30)
_LONGEST_S = 86_400.0


class EventHubsSource:
    """One event hub. ``async with`` closes it. For one event loop at a time."""

    def __init__(
        self,
        address: HubAddress | str,
        *,
        credential: Credential | None = None,
        patience: timedelta = _PATIENCE,
        prefetch_bytes: int = MAX_BYTES,
        clock: Clock | None = None,
    ) -> None:
        """Connect to nothing yet.

        ``credential``: one of azure-identity, instead of a key. ``patience``: how long trouble is
        waited out before it is told. ``prefetch_bytes``: how many bytes of a partition may wait.

        Raises:
            UsageError: the address can not be read, or no way to sign in is there.
        """
        self.address = parse(address) if isinstance(address, str) else address
        if prefetch_bytes < 1:
            raise UsageError(f"prefetch_bytes is a number from 1 on, not {prefetch_bytes}")
        self._clock = clock or SystemClock()
        self._rng = system_random()
        self._patience_s = seconds_of(patience, what="patience", min_s=0.0, max_s=_LONGEST_S)
        self._prefetch_bytes = prefetch_bytes
        self.keeper = ConnectionManager(
            self.address,
            tokens=provider_for(self.address, clock=self._clock, credential=credential),
            clock=self._clock,
            rng=self._rng,
            patience_s=self._patience_s,
        )
        self._receivers: set[EventHubsReceiver] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<EventHubsSource {self.address}>"

    @property
    def name(self) -> str:
        """The name of the hub."""
        return self.address.hub

    async def partitions(self) -> Sequence[str]:
        """See ``EventSource``.

        Raises:
            UnknownStream: there is no such hub.
            StoreUnavailable, StoreUnusable: it can not be reached, or does not let us in.
        """
        found = await self._read(_HUB)
        ids = found.get("partition_ids")
        items = ids.items if isinstance(ids, Array) else ids
        if not isinstance(items, list | tuple) or not items:
            raise UnknownStream(f"{self.address} does not say its partitions: is it an event hub?")
        return tuple(sorted(map(str, items), key=in_order))

    async def created_at(self) -> int:
        """When the hub was made, in milliseconds since 1970; raises as ``partitions``."""
        found = (await self._read(_HUB)).get("created_at")
        return int(found) if isinstance(found, int) else 0

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """See ``EventSource``.

        Raises:
            UsageError: there is no such partition.
            UnknownStream: there is no such hub.
            StoreUnavailable, StoreUnusable: it can not be reached, or does not let us in.
        """
        found = await asyncio.gather(*map(self.facts, partitions))
        return {name: facts.ends for name, facts in zip(partitions, found, strict=True)}

    async def facts(self, partition: str) -> PartitionFacts:
        """What the hub says of a partition; raises as ``ends``."""
        try:
            return facts_of(await self._read(_PARTITION, partition))
        except UnknownStream as error:
            there = await self.partitions()
            if partition in there:
                raise
            raise UsageError(
                f"{self.name!r} has no partition {partition!r}: it has {there[0]} to {there[-1]}"
            ) from error

    async def receiver(
        self, partition: str, *, group: str, epoch: int, start: Start, name: str
    ) -> EventHubsReceiver:
        """See ``EventSource``.

        Raises:
            StoreUnavailable, StoreUnusable: it can not be reached, or does not let us in.
        """
        consumer_group = self.address.group_of(check_name(group, what="group"))
        return await self._opened(partition, consumer_group, epoch, start, name)

    async def reader(self, partition: str, *, start: Start, name: str) -> EventHubsReceiver:
        """A receiver without an epoch, which displaces nobody; at most five of a partition.

        Raises:
            ReaderDisplaced: the consumer group has a receiver with an epoch.
            LeaseholdError: else as ``receiver``.
        """
        consumer_group = self.address.group_of(DEFAULT_GROUP)
        return await self._opened(partition, consumer_group, None, start, name)

    async def close(self) -> None:
        """See ``EventSource``. Receivers that wait are woken. Again is harmless."""
        self._closed = True
        for receiver in self._receivers:
            receiver.end()
        self._receivers.clear()
        await self.keeper.close()

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
        place = place_of(start, facts, partition=partition, hub=self.name)
        made = EventHubsReceiver(
            Reading(
                address=self.address,
                partition=partition,
                consumer_group=consumer_group,
                epoch=epoch,
                name=name,
                max_bytes=self._prefetch_bytes,
            ),
            place,
            keeper=self.keeper,
            facts=lambda: self.facts(partition),
            clock=self._clock,
            rng=self._rng,
            patience_s=self._patience_s,
        )
        try:
            await made.open()
            self._check_open()
        except BaseException:
            made.end()
            raise
        self._receivers = {each for each in self._receivers if not each.closed}
        self._receivers.add(made)
        return made

    async def _read(self, kind: str, partition: str = "") -> Mapping[object, object]:
        self._check_open()

        async def ask(live: LiveConnection) -> Message:
            what = {
                "operation": "READ",
                "type": kind,
                "name": self.address.hub,
                "security_token": live.token,
            }
            return await live.management.ask(
                {**what, **({"partition": partition} if partition else {})}
            )

        answer = await self.keeper.asked(
            ask, RequestContext(address=self.address, partition=partition)
        )
        return answer.value if isinstance(answer.value, dict) else {}

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the source of {self.name!r} is closed: open another one")


T = TypeVar("T")

_MAX_EVENTS = 1 << 16
_MAX_BYTES = 32 << 20
_NAME = "leasehold-ranges"


class EventHubsRanges:
    """See ``RangeSource``. A thread of its own has the connection."""

    def __init__(self, address: str, *, pinned: bool = False) -> None:
        """Look the hub up. ``pinned``: refuse to go on with one that was made anew.

        Raises:
            UsageError: the address can not be read.
            UnknownStream: there is no such hub.
            StoreUnavailable, StoreUnusable: it can not be reached, or does not let us in.
        """
        self._source = EventHubsSource(address)
        self._pinned = pinned
        self._loop = asyncio.new_event_loop()
        # A daemon: a worker of Spark closes nothing before it ends.
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

    def partitions(self) -> Sequence[str]:
        """See ``RangeSource``."""
        self._check()
        return self._call(self._source.partitions())

    def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """See ``RangeSource``."""
        self._check()
        return self._call(self._source.ends(partitions))

    def find(self, partition: str, start: Start) -> int:
        """See ``RangeSource``."""
        facts = self._call(self._source.facts(partition))
        place = place_of(start, facts, partition=partition, hub=self.name)
        if place.position is not None:
            return place.position
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
        """See ``RangeSource``."""
        if start >= end:
            return
        there = self.ends([partition])[partition].next
        if there < end:
            raise BeyondEnd(
                f"partition {partition} of {self.name!r} ends before event {there}, and events up "
                f"to {end} were asked for: it has never been that long, or the hub was made anew",
                end=there,
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
        """See ``RangeSource``. Again is harmless."""
        if self._thread.is_alive():
            self._call(self._source.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, work: Coroutine[None, None, T]) -> T:
        """What comes of it, in the thread that has the connection.

        Raises:
            UsageError: that thread is not there: closed, or left behind by a fork.
        """
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
