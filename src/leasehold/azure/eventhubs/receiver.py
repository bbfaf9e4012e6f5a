"""Receive one partition of an event hub.

Guarantees beyond those of every receiver:

* After a lost connection or link, a new link continues where the last ``receive`` ended. Events
  that waited here are dropped first, so none is lost or repeated.
* Missing numbers are checked: either retention has removed them (``Trimmed``), or the hub does not
  have them (it was compacted), and then they are skipped.
* Transient failures are retried with growing pauses. After the timeout ``receive`` raises, and may
  be called again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.eventhubs.connection_manager import ANSWER_TIMEOUT_S, RECONNECT_BACKOFF
from leasehold.azure.eventhubs.event_link import EventLink, LinkRequest
from leasehold.azure.eventhubs.positions import check_in_range, start_at
from leasehold.azure.eventhubs.service_errors import (
    DAMAGED,
    INVALID_POSITION,
    LOST,
    NOT_AUTHORIZED,
    RequestContext,
    ServiceError,
    ServiceRefused,
    to_leasehold_error,
)
from leasehold.errors import DataDamaged, UsageError
from leasehold.events.event import EventBatch

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from leasehold.azure.eventhubs.address import HubAddress
    from leasehold.azure.eventhubs.connection_manager import ConnectionManager
    from leasehold.azure.eventhubs.positions import PartitionFacts, ResolvedStart
    from leasehold.clock import Clock

_STABLE_S = 10.0  # a link that has lasted for this time counts as a success, also without events


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """What a receiver reads, for whom, and how many bytes may wait."""

    address: HubAddress
    partition: str
    consumer_group: str
    epoch: int | None
    name: str
    max_bytes: int

    @property
    def audience(self) -> str:
        """The audience of its token."""
        address = self.address
        return f"sb://{address.namespace}/{address.hub}/consumergroups/{self.consumer_group}"

    def link_request(self, selector: str) -> LinkRequest:
        """Return the request for a link from ``selector`` on."""
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

    def error_context(self, *, end: int | None = None) -> RequestContext:
        """Return what error messages name."""
        return RequestContext(
            address=self.address,
            consumer_group=self.consumer_group,
            partition=self.partition,
            epoch=self.epoch,
            end=end,
        )


class EventHubsReceiver:
    """A receiver, made by ``EventHubsSource.receiver``. For one task; another one may close it.

    ``facts`` requests the state of the partition from the hub.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        start: ResolvedStart,
        *,
        connection_manager: ConnectionManager,
        facts: Callable[[], Awaitable[PartitionFacts]],
        clock: Clock,
        rng: random.Random,
        timeout_s: float,
    ) -> None:
        self._settings = settings
        self._start = start
        self._connection_manager = connection_manager
        self._facts = facts
        self._clock = clock
        self._rng = rng
        self._timeout_s = timeout_s
        self._position = -1 if start.position is None else start.position
        self._allows_gap = start.allows_gap
        self._link: EventLink | None = None
        self._links = 0
        self._pending: pa.RecordBatch | None = None
        self._failures = 0
        self._failing_since_s: float | None = None
        self._attached_at_s: float | None = None
        self._closed = False

    @property
    def position(self) -> int:
        """The sequence number of the next event."""
        return self._position

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    @property
    def link(self) -> EventLink | None:
        """The current link; None while there is none."""
        return self._link

    async def open(self) -> None:
        """Attach; if only the first event shows the position, wait for it."""
        link = await self._ensure_link()
        if self._start.position is None:
            self._pending = await self._next_events(max_events=self._settings.address.prefetch)
            self._position = _first_since(self._pending, self._start.since_us)
            return
        # A server attaches a link before it refuses it. The refusal comes before the answer to a
        # request that is sent now.
        await self._facts()
        if link.service_error is not None:
            await self._recover(link.service_error)

    async def receive(self, *, max_events: int, max_bytes: int) -> EventBatch:
        """Return the next events; wait for them."""
        while True:
            found = await self._next_events(max_events=max_events, max_bytes=max_bytes)
            count = min(found.num_rows, max_events)
            batch = EventBatch(partition=self._settings.partition, arrow=found.slice(0, count))
            rest = found.slice(count) if count < found.num_rows else None
            first, last = batch.first_sequence, batch.last_sequence
            if last < self._position:  # a server that begins too early
                self._pending = rest
                continue
            if first != self._position or last - first + 1 != len(batch):
                batch = await self._check_gaps(batch)
            self._pending, self._allows_gap = rest, False
            self._position = last + 1
            return batch

    async def close(self) -> None:
        """Close the receiver; a ``receive`` that waits raises. Safe to call twice."""
        self.end()

    def end(self) -> None:
        """Close immediately."""
        self._closed = True
        if self._link is not None:
            self._link.detach()

    # ------------------------------------------------------------- parts

    async def _next_events(self, *, max_events: int, max_bytes: int = 1 << 30) -> pa.RecordBatch:
        """Return events that were not returned yet; they stay pending until ``receive`` ends."""
        while True:
            self._check_open()
            link = await self._ensure_link()
            if link.service_error is not None and not self._has_good_events(link):
                await self._recover(link.service_error)
                continue
            if self._pending is None:
                try:
                    self._pending = link.take(max_events=max_events, max_bytes=max_bytes)
                except AmqpFault as fault:
                    raise self._damaged(fault) from fault
            if self._pending is not None:
                self._failures, self._failing_since_s = 0, None
                return self._pending
            await link.wait()

    def _has_good_events(self, link: EventLink) -> bool:
        """Return whether a link that ended at a damaged event still has those before it."""
        is_damaged = link.service_error is not None and link.service_error.condition == DAMAGED
        return is_damaged and bool(self._pending is not None or link.waiting_events)

    async def _ensure_link(self) -> EventLink:
        """Return the link, a new one if there is none. The caller checks its error."""
        while self._link is None:
            self._pending = None
            live = await self._connection_manager.live()
            service_error: ServiceError | None = None
            try:
                session = await self._clock.bounded(
                    self._connection_manager.session(live, self._settings.audience),
                    seconds=ANSWER_TIMEOUT_S,
                )
                self._check_open()
                self._links += 1
                name = (
                    f"{self._settings.name}-{self._settings.partition}-{id(self):x}-{self._links}"
                )
                link = EventLink(session, name, self._settings.link_request(self._start.selector))
                self._link = link
                await self._clock.bounded(link.attached, seconds=ANSWER_TIMEOUT_S)
                self._attached_at_s = self._clock.boottime_s()
            except ServiceRefused as refused:
                service_error = refused.service_error
            except TimeoutError:
                service_error = ServiceError(
                    condition=LOST, description="the hub did not answer in time"
                )
                live.connection.abort(service_error)
            except BaseException:
                self._drop()
                raise
            if service_error is not None:
                await self._recover(service_error)
        self._check_open()
        return self._link

    def _drop(self) -> None:
        link, self._link = self._link, None
        self._pending = None
        if link is not None:
            link.detach()

    async def _recover(self, service_error: ServiceError) -> None:
        """Drop the link and wait before the next attempt; raise if a retry cannot help."""
        self._check_open()
        end = (
            (await self._facts()).ends.next if service_error.condition in INVALID_POSITION else None
        )
        error = to_leasehold_error(service_error, self._settings.error_context(end=end))
        if service_error.condition in NOT_AUTHORIZED and self._was_stable():
            # It was admitted before: its token has expired while no other was available.
            self._connection_manager.discard_token(self._settings.audience)
        elif error is not None:
            raise error
        self._drop()
        if self._position >= 0 and not self._allows_gap:
            self._start = start_at(self._position)
        now_s = self._clock.boottime_s()
        if self._was_stable():
            self._failures, self._failing_since_s = 0, None
        self._attached_at_s = None
        self._failures += 1
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        elif now_s - self._failing_since_s > self._timeout_s:
            self._failing_since_s = None
            raise self._connection_manager.unavailable(ServiceRefused(service_error))
        if self._failures > 1 or service_error.condition != LOST:
            await self._clock.sleep(RECONNECT_BACKOFF.pause_s(self._failures, self._rng))

    def _was_stable(self) -> bool:
        """Return whether the link has lasted for a while."""
        since_s = self._attached_at_s
        return since_s is not None and self._clock.boottime_s() - since_s >= _STABLE_S

    async def _check_gaps(self, batch: EventBatch) -> EventBatch:
        """Return the events from the position on; raise if retention has removed some of them."""
        numbers = batch.arrow.column(0).to_pylist()
        before = sum(number < self._position for number in numbers)
        numbers = numbers[before:]
        if any(one >= other for one, other in pairwise(numbers)):
            raise self._damaged(AmqpFault("the sequence numbers of its events do not rise"))
        expected = self._position if not self._allows_gap else numbers[0]
        for number in numbers:
            if number != expected:
                ends = (await self._facts()).ends
                check_in_range(
                    min(expected, ends.next),
                    ends,
                    partition=self._settings.partition,
                    hub=self._settings.address.hub,
                )
                break
            expected = number + 1
        return batch.slice(before) if before else batch

    def _damaged(self, fault: AmqpFault) -> DataDamaged:
        settings = self._settings
        return DataDamaged(
            f"events of partition {settings.partition} of {settings.address.hub!r} from "
            f"{self._position} on can not be read: {fault.description}"
        )

    def _check_open(self) -> None:
        if self._closed:
            settings = self._settings
            raise UsageError(
                f"the receiver of partition {settings.partition} of {settings.address.hub!r} is "
                "closed: open another one"
            )


def _first_since(batch: pa.RecordBatch, since_us: int) -> int:
    """Return the number of the first event that is not older, or of the next event if all are.

    A time in whole milliseconds may be any time within its millisecond: it is not older then.
    """
    numbers, times = batch.column(0).to_pylist(), batch.column(2).cast("int64").to_pylist()
    since_floor_us = since_us // 1000 * 1000
    for number, us in zip(numbers, times, strict=True):
        if us >= since_us or us == since_floor_us:
            return int(number)
    return int(numbers[-1]) + 1
