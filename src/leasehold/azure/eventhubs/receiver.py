"""Receives one partition of an event hub.

Guarantees beyond those of every receiver:

* A lost connection or link is made anew where the last ``receive`` ended: what waited here is
  forgotten first, so nothing is lost and nothing comes twice.
* Numbers that are missing are looked into: retention has removed them (``Trimmed``), or the hub
  never had them (it was compacted), and then they are passed over.
* Trouble that passes is waited out with growing pauses; when the patience is over, ``receive``
  says so, and may be called again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.eventhubs.connection_manager import PAUSES, STEP_S
from leasehold.azure.eventhubs.event_link import EventLink, LinkRequest
from leasehold.azure.eventhubs.positions import after, check
from leasehold.azure.eventhubs.service_errors import (
    DAMAGED,
    LOST,
    NO_PLACE,
    REFUSED,
    RequestContext,
    ServiceError,
    ServiceRefused,
    error_of,
)
from leasehold.errors import DataDamaged, UsageError
from leasehold.events.event import EventBatch

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from leasehold.azure.eventhubs.address import HubAddress
    from leasehold.azure.eventhubs.connection_manager import ConnectionManager
    from leasehold.azure.eventhubs.positions import HubPlace, PartitionFacts
    from leasehold.clock import Clock

_SOUND_S = 10.0  # a link that has lasted so long was no failure, though nothing came on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read, by whom, and how much may wait here."""

    address: HubAddress
    partition: str
    consumer_group: str
    epoch: int | None
    name: str
    max_bytes: int

    @property
    def audience(self) -> str:
        """What its token is for."""
        address = self.address
        return f"sb://{address.namespace}/{address.hub}/consumergroups/{self.consumer_group}"

    def wanted(self, selector: str) -> LinkRequest:
        """What to ask the server for."""
        address = self.address
        hub = f"amqps://{address.namespace}/{address.hub}"
        return LinkRequest(
            path=f"{hub}/ConsumerGroups/{self.consumer_group}/Partitions/{self.partition}",
            selector=selector,
            receiver=self.name,
            epoch=self.epoch,
            arrow=address.arrow,
            max_events=address.prefetch,
            max_bytes=self.max_bytes,
        )

    def asked(self, *, end: int | None = None) -> RequestContext:
        """For errors."""
        return RequestContext(
            address=self.address,
            consumer_group=self.consumer_group,
            partition=self.partition,
            epoch=self.epoch,
            end=end,
        )


class EventHubsReceiver:
    """Made by ``EventHubsSource.receiver``. For one task; another one may close it."""

    def __init__(
        self,
        reading: Reading,
        place: HubPlace,
        *,
        keeper: ConnectionManager,
        facts: Callable[[], Awaitable[PartitionFacts]],
        clock: Clock,
        rng: random.Random,
        patience_s: float,
    ) -> None:
        """Not attached. ``facts`` asks the hub about the partition."""
        self._reading = reading
        self._place = place
        self._keeper = keeper
        self._facts = facts
        self._clock = clock
        self._rng = rng
        self._patience_s = patience_s
        self._position = -1 if place.position is None else place.position
        self._loose = place.loose
        self._link: EventLink | None = None
        self._links = 0
        self._pending: pa.RecordBatch | None = None
        self._failures = 0
        self._trouble_since_s: float | None = None
        self._attached_at_s: float | None = None
        self._closed = False

    @property
    def position(self) -> int:
        """The sequence number of the next event."""
        return self._position

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def link(self) -> EventLink | None:
        """What the events come in on now."""
        return self._link

    async def open(self) -> None:
        """Attach; and where only the first event can tell the position, wait for it.

        Raises:
            LeaseholdError: as ``EventSource.receiver``.
        """
        link = await self._attached()
        if self._place.position is None:
            self._pending = await self._next(max_events=self._reading.address.prefetch)
            self._position = _first_since(self._pending, self._place.since_us)
            return
        # A server attaches also what it refuses, and says so next: before the answer to a question
        # that is asked now.
        await self._facts()
        if link.refusal is not None:
            await self._lost(link.refusal)

    async def receive(self, *, max_events: int, max_bytes: int) -> EventBatch:
        """See ``Receiver``.

        Raises:
            StoreUnavailable: the hub could not be reached until the patience was over.
            UsageError: it is closed, or was closed while it waited.
        """
        while True:
            found = await self._next(max_events=max_events, max_bytes=max_bytes)
            count = min(found.num_rows, max_events)
            batch = EventBatch(partition=self._reading.partition, arrow=found.slice(0, count))
            rest = found.slice(count) if count < found.num_rows else None
            first, last = batch.first_sequence, batch.last_sequence
            if last < self._position:  # a server that begins too early
                self._pending = rest
                continue
            if first != self._position or last - first + 1 != len(batch):
                batch = await self._looked_into(batch)
            self._pending, self._loose = rest, False
            self._position = last + 1
            return batch

    async def close(self) -> None:
        """See ``Receiver``. One that waits is woken, and told so. Again is harmless."""
        self.end()

    def end(self) -> None:
        """Close it, at once."""
        self._closed = True
        if self._link is not None:
            self._link.detach()

    # ------------------------------------------------------------- parts

    async def _next(self, *, max_events: int, max_bytes: int = 1 << 30) -> pa.RecordBatch:
        """What has come and was not handed out yet; it stays pending until it is."""
        while True:
            self._check_open()
            link = await self._attached()
            if link.refusal is not None and not self._has_sound(link):
                await self._lost(link.refusal)
                continue
            if self._pending is None:
                try:
                    self._pending = link.take(max_events=max_events, max_bytes=max_bytes)
                except AmqpFault as fault:
                    raise self._damaged(fault) from fault
            if self._pending is not None:
                self._failures, self._trouble_since_s = 0, None
                return self._pending
            await link.wait()

    def _has_sound(self, link: EventLink) -> bool:
        """Whether the link ended at a damaged event, and those before it are still here."""
        is_damaged = link.refusal is not None and link.refusal.condition == DAMAGED
        return is_damaged and bool(self._pending is not None or link.waiting_events)

    async def _attached(self) -> EventLink:
        """The link; a new one if there is none. Its refusal is for the caller to look at."""
        while self._link is None:
            self._pending = None
            live = await self._keeper.live()
            refusal: ServiceError | None = None
            try:
                session = await self._clock.bounded(
                    self._keeper.session(live, self._reading.audience), seconds=STEP_S
                )
                self._check_open()
                self._links += 1
                name = f"{self._reading.name}-{self._reading.partition}-{id(self):x}-{self._links}"
                link = EventLink(session, name, self._reading.wanted(self._place.selector))
                self._link = link
                await self._clock.bounded(link.attached, seconds=STEP_S)
                self._attached_at_s = self._clock.boottime_s()
            except ServiceRefused as refused:
                refusal = refused.refusal
            except TimeoutError:
                refusal = ServiceError(condition=LOST, description="the hub did not answer in time")
                live.connection.abort(refusal)
            except BaseException:
                self._drop()
                raise
            if refusal is not None:
                await self._lost(refusal)
        self._check_open()
        return self._link

    def _drop(self) -> None:
        link, self._link = self._link, None
        self._pending = None
        if link is not None:
            link.detach()

    async def _lost(self, refusal: ServiceError) -> None:
        """Return when it is time to try again.

        Raises:
            LeaseholdError: there is no use in it.
        """
        self._check_open()
        end = (await self._facts()).ends.next if refusal.condition in NO_PLACE else None
        error = error_of(refusal, self._reading.asked(end=end))
        if refusal.condition in REFUSED and self._was_sound():
            # It was let in before: its token has ended while no other was to be had.
            self._keeper.distrust(self._reading.audience)
        elif error is not None:
            raise error
        self._drop()
        if self._position >= 0 and not self._loose:
            self._place = after(self._position)
        now_s = self._clock.boottime_s()
        if self._was_sound():
            self._failures, self._trouble_since_s = 0, None
        self._attached_at_s = None
        self._failures += 1
        if self._trouble_since_s is None:
            self._trouble_since_s = now_s
        elif now_s - self._trouble_since_s > self._patience_s:
            self._trouble_since_s = None
            raise self._keeper.unavailable(ServiceRefused(refusal))
        if self._failures > 1 or refusal.condition != LOST:
            await self._clock.sleep(PAUSES.pause_s(self._failures, self._rng))

    def _was_sound(self) -> bool:
        """Whether the link has lasted."""
        since_s = self._attached_at_s
        return since_s is not None and self._clock.boottime_s() - since_s >= _SOUND_S

    async def _looked_into(self, batch: EventBatch) -> EventBatch:
        """The events that are new, if none is missing that was there.

        Raises:
            Trimmed: retention has removed some of them.
            DataDamaged: their numbers do not rise.
        """
        numbers = batch.arrow.column(0).to_pylist()
        before = sum(number < self._position for number in numbers)
        numbers = numbers[before:]
        if any(one >= other for one, other in pairwise(numbers)):
            raise self._damaged(AmqpFault("the sequence numbers of its events do not rise"))
        expected = self._position if not self._loose else numbers[0]
        for number in numbers:
            if number != expected:
                ends = (await self._facts()).ends
                check(
                    min(expected, ends.next),
                    ends,
                    partition=self._reading.partition,
                    hub=self._reading.address.hub,
                )
                break
            expected = number + 1
        return batch.slice(before) if before else batch

    def _damaged(self, fault: AmqpFault) -> DataDamaged:
        reading = self._reading
        return DataDamaged(
            f"events of partition {reading.partition} of {reading.address.hub!r} from "
            f"{self._position} on can not be read: {fault.description}"
        )

    def _check_open(self) -> None:
        if self._closed:
            reading = self._reading
            raise UsageError(
                f"the receiver of partition {reading.partition} of {reading.address.hub!r} is "
                "closed: open another one"
            )


def _first_since(batch: pa.RecordBatch, since_us: int) -> int:
    """The number of the first event that is not older; of the next one, if all are.

    A time that was told in milliseconds may be any moment of its own: it is not older then.
    """
    numbers, times = batch.column(0).to_pylist(), batch.column(2).cast("int64").to_pylist()
    begun_us = since_us // 1000 * 1000
    for number, us in zip(numbers, times, strict=True):
        if us >= since_us or us == begun_us:
            return int(number)
    return int(numbers[-1]) + 1
