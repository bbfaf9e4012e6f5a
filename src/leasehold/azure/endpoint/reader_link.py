"""Links on which clients receive: as many events as they have credit for, settled when sent.

Each link has one batch in memory, and writes it when the client has read most of what was sent
before. A link that waits costs nothing: the log's own watcher wakes it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from anyio import CancelScope

from leasehold.azure.amqp.messages import ARROW_CAPABILITY, ARROW_FORMAT
from leasehold.azure.endpoint.delivery import FrameTarget, LastEvent, arrow_of, frames_of, split
from leasehold.azure.endpoint.error_conditions import ARGUMENT, RequestRefused
from leasehold.azure.endpoint.links import EndpointLink
from leasehold.azure.endpoint.selectors import Selector, selector_of
from leasehold.errors import Trimmed, UsageError

if TYPE_CHECKING:
    from leasehold.azure.amqp.performatives import Attach, Flow
    from leasehold.azure.endpoint.addresses import NodeAddress
    from leasehold.azure.endpoint.hubs import Hub
    from leasehold.azure.endpoint.session import EndpointSession
    from leasehold.events.event import EventBatch
    from leasehold.log.receiver import LogReceiver

EPOCH = "com.microsoft:epoch"
METRICS = "com.microsoft:enable-receiver-runtime-metric"
_MASK = 0xFFFF_FFFF
_MAX_CREDIT = 1 << 30  # counts wrap around: a difference must fit into half their range
_MAX_EVENTS = 2000
_MAX_BYTES = 512 << 10
_DRAIN_S = 0.05
_END_INTERVAL_S = 1.0


class ReaderLink(EndpointLink):
    """A link on which a client reads a partition for a consumer group."""

    def __init__(self, session: EndpointSession, attach: Attach, address: NodeAddress) -> None:
        super().__init__(session, attach, address)
        capabilities = attach.desired_capabilities or ()
        self._is_arrow = ARROW_CAPABILITY in capabilities
        self._has_metrics = METRICS in capabilities
        epoch = (attach.properties or {}).get(EPOCH)
        self.epoch: int | None = epoch if isinstance(epoch, int) else None
        self._receiver: LogReceiver | None = None
        self._key = ("", "", "")
        self._sent = 0
        self._credit_until = 0
        self._is_draining = False
        self._woken = asyncio.Event()
        self._waiting: CancelScope | None = None  # for events, without a limit
        self._end: LastEvent | None = None
        self._end_at = 0.0

    @property
    def credit(self) -> int:
        """How many events the client still takes."""
        left = (self._credit_until - self._sent) & _MASK
        return left if left <= _MASK >> 1 else 0

    async def begin(self) -> None:
        """Find the partition and the position, answer, then send events until the link ends."""
        connection = self.session.connection
        if self.epoch is not None and self.epoch < 0:
            raise RequestRefused(ARGUMENT, f"The epoch '{self.epoch}' is below zero.")
        source = self.attach.source
        selector = selector_of(source.filter if source is not None else None)
        hub = await connection.hubs.find(self.address.hub)
        number = hub.number_of(self.address.partition)
        self._receiver = await hub.receiver(number, selector)
        try:
            if not self.is_closed:
                self._key = (hub.name, self.address.group.lower(), str(number))
                connection.epochs.enter(self._key, self)
                self.answer_attach(capabilities=self._offered_capabilities(), settled=True)
                await self._run(hub, number)
        finally:
            connection.epochs.leave(self._key, self)
            await self._receiver.close()

    def displace(self, reason: RequestRefused) -> None:
        """Detach: another reader has taken over."""
        self.refuse(reason)

    def on_closed(self) -> None:
        """Stop reading, and wake the task."""
        super().on_closed()
        self.session.connection.epochs.leave(self._key, self)
        if self._receiver is not None:
            self._receiver.end()
        self.wake()

    def wake(self) -> None:
        """Check again whether something may be sent."""
        self._woken.set()

    def on_flow(self, flow: Flow) -> None:
        """Set the credit, counted from what the client has received."""
        seen = flow.delivery_count or 0
        self._credit_until = (seen + min(flow.link_credit or 0, _MAX_CREDIT)) & _MASK
        self._is_draining = flow.drain
        self.wake()
        if flow.drain and not self.credit:
            self._report_drained()
        elif flow.drain and self._waiting is not None:
            self._waiting.cancel()  # read once more, then report that there is nothing
        if flow.echo:
            self.session.flow(self, delivery_count=self._sent, credit=self.credit)

    # ---------------------------------------------------------------------- parts

    def _offered_capabilities(self) -> tuple[str, ...]:
        arrow = (ARROW_CAPABILITY,) if self._is_arrow else ()
        return (*arrow, *((METRICS,) if self._has_metrics else ()))

    async def _run(self, hub: Hub, number: int) -> None:
        rest: EventBatch | None = None
        while True:
            max_events = await self._wait_for_credit()
            if self.is_closed:
                return
            if rest is None:
                rest = await self._next_events(hub, number, max_events)
                if rest is None:
                    continue
                # While this waited, credit may have been withdrawn, or other links have filled the
                # buffer.
                max_events = min(self.credit, self.session.window_left)
                if not max_events or not self.session.connection.writable.is_set():
                    continue
            if len(rest) <= max_events:
                batch, rest = rest, None
            else:
                batch, rest = rest.slice(0, max_events), rest.slice(max_events)
            if self._has_metrics:
                await self._refresh_end(hub, number, batch)
            if not self.is_closed:
                self._send(batch)

    async def _wait_for_credit(self) -> int:
        """Wait until events may be sent; return how many."""
        connection = self.session.connection
        while not self.is_closed:
            self._woken.clear()
            max_events = min(self.credit, self.session.window_left, _MAX_EVENTS)
            if max_events and connection.writable.is_set():
                return max_events
            if max_events:
                await connection.writable.wait()
            else:
                await self._woken.wait()
        return 0

    async def _next_events(self, hub: Hub, number: int, max_events: int) -> EventBatch | None:
        """Return the next events; None if there are none while the client drains, or at the end."""
        assert self._receiver is not None  # noqa: S101 - begin has made it
        reading = self._receiver.receive(max_events=max_events, max_bytes=_MAX_BYTES)
        try:
            if not self._is_draining:
                with CancelScope() as self._waiting:
                    return await reading
                return None
            return await self.session.connection.clock.bounded(reading, seconds=_DRAIN_S)
        except TimeoutError:
            self._report_drained()
        except Trimmed:
            # Retention has overtaken a slow reader: it continues with the first event that is kept.
            await self._receiver.close()
            self._receiver = await hub.receiver(number, Selector(what="earliest"))
        except UsageError:
            if not self.is_closed:
                raise
        finally:
            self._waiting = None
        return None

    def _report_drained(self) -> None:
        """Use up the credit and report it, since there are no events."""
        self._sent = (self._sent + self.credit) & _MASK
        self._is_draining = False
        self.session.flow(self, delivery_count=self._sent, credit=0, drain=True)

    def _send(self, batch: EventBatch) -> None:
        session = self.session
        target = FrameTarget(
            channel=session.channel,
            handle=self.handle,
            max_bytes=session.connection.client_frame_bytes,
        )
        if self._is_arrow:
            number = session.reserve_ids(1)
            parts = split(arrow_of(batch), target, delivery_id=number, message_format=ARROW_FORMAT)
            frames = len(parts)
        else:
            first = session.reserve_ids(len(batch))
            end = self._end if self._has_metrics else None
            parts, frames = frames_of(batch, target, first_id=first, end=end)
        self._sent = (self._sent + len(batch)) & _MASK
        session.count_frames(frames)
        session.connection.write(b"".join(parts))

    async def _refresh_end(self, hub: Hub, number: int, batch: EventBatch) -> None:
        """Read the last event, at most once a second; it is never before what is being sent."""
        now = self.session.connection.clock.boottime_s()
        if self._end is None or now - self._end_at >= _END_INTERVAL_S:
            self._end, self._end_at = await hub.last_event(number), now
        if batch.last_sequence > self._end.sequence:
            row = len(batch) - 1
            self._end = LastEvent(
                sequence=batch.last_sequence,
                offset=batch.arrow.column(1)[row].as_py(),
                enqueued_ms=batch.arrow.column(2)[row].value // 1000,
                observed_ms=self._end.observed_ms,
            )
