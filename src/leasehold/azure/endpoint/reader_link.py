"""From the log to a client: as many events as it has credit for, settled when they are sent.

One batch of a link is in memory, and is written when the client has read most of what came before.
A link that waits costs nothing: the log's own watch wakes it.
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
_WRAP = 0xFFFF_FFFF
_MAX_CREDIT = 1 << 30  # counts are compared around the end of their circle
_MAX_EVENTS = 2000
_MAX_BYTES = 512 << 10
_DRAIN_S = 0.05
_END_EVERY_S = 1.0


class ReaderLink(EndpointLink):
    """On which a client reads a partition for a group."""

    def __init__(self, session: EndpointSession, attach: Attach, address: NodeAddress) -> None:
        """Read nothing yet."""
        super().__init__(session, attach, address)
        wanted = attach.desired_capabilities or ()
        self._is_arrow = ARROW_CAPABILITY in wanted
        self._has_metrics = METRICS in wanted
        epoch = (attach.properties or {}).get(EPOCH)
        self.epoch: int | None = epoch if isinstance(epoch, int) else None
        self._receiver: LogReceiver | None = None
        self._place = ("", "", "")
        self._sent = 0
        self._credit_until = 0
        self._is_draining = False
        self._woken = asyncio.Event()
        self._waiting: CancelScope | None = None  # for events, without a limit
        self._end: LastEvent | None = None
        self._end_at = 0.0

    @property
    def credit(self) -> int:
        """For how many events the client has room."""
        left = (self._credit_until - self._sent) & _WRAP
        return left if left <= _WRAP >> 1 else 0

    async def begin(self) -> None:
        """Find the partition and where to begin; then read until the end. See ``EndpointLink``."""
        connection = self.session.connection
        if self.epoch is not None and self.epoch < 0:
            raise RequestRefused(ARGUMENT, f"The epoch '{self.epoch}' is below zero.")
        source = self.attach.source
        selector = selector_of(source.filter if source is not None else None)
        hub = await connection.streams.find(self.address.hub)
        number = hub.number_of(self.address.partition)
        self._receiver = await hub.receiver(number, selector)
        try:
            if not self.is_over:
                self._place = (hub.name, self.address.group.lower(), str(number))
                connection.epochs.enter(self._place, self)
                self.answer(capabilities=self._offered(), settled=True)
                await self._run(hub, number)
        finally:
            connection.epochs.leave(self._place, self)
            await self._receiver.close()

    def steal(self, why: RequestRefused) -> None:
        """Another one reads from now on."""
        self.refuse(why)

    def over(self) -> None:
        """Stop; what waits is woken."""
        super().over()
        self.session.connection.epochs.leave(self._place, self)
        if self._receiver is not None:
            self._receiver.end()
        self.wake()

    def wake(self) -> None:
        """Look again whether something may be sent."""
        self._woken.set()

    def on_flow(self, flow: Flow) -> None:
        """Credit, by the client's count of what it has seen."""
        seen = flow.delivery_count or 0
        self._credit_until = (seen + min(flow.link_credit or 0, _MAX_CREDIT)) & _WRAP
        self._is_draining = flow.drain
        self.wake()
        if flow.drain and not self.credit:
            self._drained()
        elif flow.drain and self._waiting is not None:
            self._waiting.cancel()  # look once more, and tell that there is nothing
        if flow.echo:
            self.session.flow(self, delivery_count=self._sent, credit=self.credit)

    # ---------------------------------------------------------------------- parts

    def _offered(self) -> tuple[str, ...]:
        arrow = (ARROW_CAPABILITY,) if self._is_arrow else ()
        return (*arrow, *((METRICS,) if self._has_metrics else ()))

    async def _run(self, hub: Hub, number: int) -> None:
        rest: EventBatch | None = None
        while True:
            most = await self._ready()
            if self.is_over:
                return
            if rest is None:
                rest = await self._received(hub, number, most)
                if rest is None:
                    continue
                most = min(self.credit, self.session.room)  # it may have been taken back
                if not most or not self.session.connection.writable.is_set():
                    continue  # or others have filled the buffer meanwhile
            batch, rest = (
                (rest, None) if len(rest) <= most else (rest.slice(0, most), rest.slice(most))
            )
            if self._has_metrics:
                await self._look_at_end(hub, number, batch)
            if not self.is_over:
                self._send(batch)

    async def _ready(self) -> int:
        """Wait until the client has room; return for how many events."""
        connection = self.session.connection
        while not self.is_over:
            self._woken.clear()
            most = min(self.credit, self.session.room, _MAX_EVENTS)
            if most and connection.writable.is_set():
                return most
            if most:
                await connection.writable.wait()
            else:
                await self._woken.wait()
        return 0

    async def _received(self, hub: Hub, number: int, most: int) -> EventBatch | None:
        """The next events. None: there is nothing while the client drains, or the link is over."""
        assert self._receiver is not None  # noqa: S101 - begin has made it
        reading = self._receiver.receive(max_events=most, max_bytes=_MAX_BYTES)
        try:
            if not self._is_draining:
                with CancelScope() as self._waiting:
                    return await reading
                return None
            return await self.session.connection.clock.bounded(reading, seconds=_DRAIN_S)
        except TimeoutError:
            self._drained()
        except Trimmed:
            # Retention has overtaken a slow reader: it goes on with the first one that is kept.
            await self._receiver.close()
            self._receiver = await hub.receiver(number, Selector(what="earliest"))
        except UsageError:
            if not self.is_over:
                raise
        finally:
            self._waiting = None
        return None

    def _drained(self) -> None:
        """There is nothing: use the credit up, and say so."""
        self._sent = (self._sent + self.credit) & _WRAP
        self._is_draining = False
        self.session.flow(self, delivery_count=self._sent, credit=0, drain=True)

    def _send(self, batch: EventBatch) -> None:
        session = self.session
        way = FrameTarget(
            channel=session.channel,
            handle=self.handle,
            max_bytes=session.connection.peer_frame_bytes,
        )
        if self._is_arrow:
            number = session.take_ids(1)
            parts = split(arrow_of(batch), way, delivery_id=number, message_format=ARROW_FORMAT)
            frames = len(parts)
        else:
            first = session.take_ids(len(batch))
            end = self._end if self._has_metrics else None
            parts, frames = frames_of(batch, way, first_id=first, end=end)
        self._sent = (self._sent + len(batch)) & _WRAP
        session.transferred(frames)
        session.connection.write(b"".join(parts))

    async def _look_at_end(self, hub: Hub, number: int, batch: EventBatch) -> None:
        """Know about where the end is, once a second; never before what is being sent."""
        now = self.session.connection.clock.boottime_s()
        if self._end is None or now - self._end_at >= _END_EVERY_S:
            self._end, self._end_at = await hub.end_of(number), now
        if batch.last_sequence > self._end.sequence:
            row = len(batch) - 1
            self._end = LastEvent(
                sequence=batch.last_sequence,
                offset=batch.arrow.column(1)[row].as_py(),
                enqueued_ms=batch.arrow.column(2)[row].value // 1000,
                asked_ms=self._end.asked_ms,
            )
