"""A link that receives the events of one partition: its credit, and the events that wait.

Guarantees:

* What waits is bounded, in events by the credit, and in bytes by giving credit only for as many
  events as fit if they are as big as those before; for few, until the first have arrived. If there
  are more bytes than that, the credit is withdrawn; then only events in flight still arrive. A link
  to a server that ignores its credit is detached.
* Credit is given again as soon as half of it is used and there is room, so the server does not have
  to wait until all is taken.
* Frames like those before them are decoded without parsing each field.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.azure.amqp.composites import Source, Target
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import ARROW_CAPABILITY, ARROW_FORMAT
from leasehold.azure.amqp.performatives import Attach, Detach
from leasehold.azure.amqp.types import Described, Long, Symbol
from leasehold.azure.eventhubs.fast_decode import FrameDecoder, learn_layout
from leasehold.azure.eventhubs.rows import EventRow, RowTuple, arrow_of, batch_of, read_row, size_of
from leasehold.azure.eventhubs.service_errors import DAMAGED, TOO_MANY, ServiceError
from leasehold.azure.eventhubs.session import HubLink, PartialDelivery
from leasehold.log.segment_format import MAX_BODY_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.azure.amqp.performatives import Transfer
    from leasehold.azure.eventhubs.session import HubSession

MAX_DELIVERY_BYTES = MAX_BODY_BYTES + (1 << 20)  # the service allows 20 MB, a log far more
_MAX_LAYOUTS = 8
_SELECTOR = "apache.org:selector-filter:string"
_EPOCH = "com.microsoft:epoch"
_RECEIVER = "com.microsoft:receiver-name"
_GEOREPLICATION = "com.microsoft:georeplication"
_INITIAL_EVENT_BYTES = 1 << 16  # assumed until the first events have arrived, so few are requested


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRequest:
    """What to request: the events of ``path`` from ``selector`` on, and how."""

    path: str
    selector: str
    receiver: str
    epoch: int | None
    arrow: bool
    max_events: int
    max_bytes: int


class EventLink(HubLink):
    """A link that attaches when it is made; ``attached`` is done when the server has answered."""

    def __init__(self, session: HubSession, name: str, request: LinkRequest) -> None:
        super().__init__(session, name)
        self._request = request
        self._rows: list[EventRow | RowTuple] = []
        self._batches: deque[pa.RecordBatch] = deque()
        self._waiting_events = 0
        self._waiting_bytes = 0
        self._delivered = 0
        self._credit = 0
        self._event_bytes: float | None = None
        self._partial = PartialDelivery(max_bytes=MAX_DELIVERY_BYTES)
        self._decoders: list[FrameDecoder] = []
        self._channel = b""
        self._handles: frozenset[bytes] = frozenset()
        self._wakeup = asyncio.Event()
        self._send_attach()

    @property
    def waiting_events(self) -> int:
        """How many events have arrived and were not taken yet."""
        return self._waiting_events

    @property
    def waiting_bytes(self) -> int:
        """About how many bytes wait, with those of an incomplete delivery."""
        return self._waiting_bytes + self._partial.size

    async def wait(self) -> None:
        """Wait until an event has arrived or the link has ended. Safe to cancel."""
        while not self._waiting_events and not self.is_closed:
            self._wakeup.clear()
            await self._wakeup.wait()

    def take(self, *, max_events: int, max_bytes: int) -> pa.RecordBatch | None:
        """Return waiting events, at least one if there is any, and give credit for more."""
        if self._batches:
            found = self._take_batch(max_events, max_bytes)
        elif self._rows:
            found = self._take_rows(max_events, max_bytes)
        else:
            return None
        self._replenish_credit()
        return found

    def wake(self) -> None:
        """Wake ``wait``."""
        self._wakeup.set()

    # ---------------------------------------------------- from the server

    def on_attach(self, attach: Attach) -> None:
        """Give credit, unless the server refuses: then it detaches next."""
        self._delivered = attach.initial_delivery_count or 0
        super().on_attach(attach)
        if attach.source is not None and not self.is_closed:
            self._replenish_credit()

    def on_end(self, service_error: ServiceError) -> None:
        """Record why the link has ended, and wake ``wait``."""
        super().on_end(service_error)
        self._wakeup.set()

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Take a message that no known layout matches, or a part of one."""
        if self.is_closed:
            return
        try:
            whole = self._partial.add(transfer, payload)
            if whole is None:
                return
            head, message = whole
            if head.message_format == ARROW_FORMAT:
                self._add_arrow_batch(message)
            else:
                self._rows.append(read_row(message))
                self._count_arrived(1, len(message))
        except AmqpFault as fault:
            self._fail(ServiceError(condition=DAMAGED, description=fault.description))
            return
        if (
            head.settled is not True
            and transfer.settled is not True
            and head.delivery_id is not None
        ):
            self.session.accept(head.delivery_id, head.delivery_id)

    def on_remote_handle(self, channel: int, handle: int) -> None:
        """Record the channel and the handle that the server's frames have."""
        self._channel = channel.to_bytes(2, "big")
        written = {b"\x70" + handle.to_bytes(4, "big")}
        if handle < 1 << 8:
            written.add(bytes((0x52, handle)))
        if not handle:
            written.add(b"\x43")
        self._handles = frozenset(written)

    def learn_layout(self, whole: bytes, transfer: Transfer) -> None:
        """Learn the layout of a frame that was parsed field by field."""
        single = not transfer.more and not self._partial.in_progress
        if single and transfer.settled and not transfer.message_format:
            layout = learn_layout(whole) if len(self._decoders) < _MAX_LAYOUTS else None
            if layout is not None and all(layout is not each.layout for each in self._decoders):
                made = FrameDecoder(layout, channel=self._channel, handles=self._handles)
                self._decoders.insert(0, made)

    def take_frames(self, data: bytes, at: int, end: int) -> int:
        """Take all frames from ``at`` on that have a known layout; return where they end."""
        if self._partial.in_progress or self.is_closed:
            return at
        begin, known = at, len(self._rows)
        for number, decoder in enumerate(self._decoders):
            at = decoder.take_frames(data, at, end, self._rows)
            if at != begin:
                if number:
                    self._decoders.insert(0, self._decoders.pop(number))
                count = len(self._rows) - known
                self.session.next_incoming += count
                self._count_arrived(count, at - begin)
                break
        return at

    def after_read(self) -> None:
        """Wake ``wait`` and update the credit, once all received bytes are decoded."""
        self._wakeup.set()
        if self._waiting_events > 2 * self._request.max_events:
            text = "the server has sent more events than it was allowed to"
            self._fail(ServiceError(condition=TOO_MANY, description=text))
        elif self.waiting_bytes > self._request.max_bytes:
            if self._credit:
                self._flow(0)  # events in flight still arrive
        else:
            self._replenish_credit()

    # ------------------------------------------------------------- parts

    def _fail(self, service_error: ServiceError) -> None:
        self.on_end(service_error)
        self.session.send(Detach(handle=self.handle, closed=True))

    def _add_arrow_batch(self, payload: bytes) -> None:
        """Add an Arrow batch from the server."""
        batch = batch_of(payload)
        if batch.num_rows:
            if self._rows:  # they arrived before the batch, and are taken before it
                self._batches.append(arrow_of(self._rows))
                self._rows = []
            self._batches.append(batch)
            self._count_arrived(batch.num_rows, len(payload))

    def _count_arrived(self, events: int, size: int) -> None:
        self._waiting_events += events
        self._waiting_bytes += size
        self._delivered += events
        self._credit = max(self._credit - events, 0)
        each, known = size / events, self._event_bytes
        # Bigger events raise the estimate immediately, smaller ones lower it slowly: bytes matter.
        self._event_bytes = each if known is None else max(each, known + (each - known) * 0.25)

    def _take_rows(self, max_events: int, max_bytes: int) -> pa.RecordBatch:
        rows = self._rows
        if len(rows) <= max_events and self._waiting_bytes <= max_bytes:
            found = arrow_of(rows)
            self._rows = []
            self._waiting_events = self._waiting_bytes = 0
            return found
        count = total = 0
        for row in rows[:max_events]:
            total += size_of(row)
            if count and total > max_bytes:
                break
            count += 1
        found = arrow_of(rows[:count])
        del rows[:count]
        share = self._waiting_bytes * count // self._waiting_events
        self._waiting_events -= count
        self._waiting_bytes -= share
        return found

    def _take_batch(self, max_events: int, max_bytes: int) -> pa.RecordBatch:
        batch = self._batches[0]
        count = min(batch.num_rows, max_events)
        size = batch.nbytes
        if size > max_bytes:
            count = max(min(count, max_bytes * batch.num_rows // size), 1)
        if count == batch.num_rows:
            self._batches.popleft()
        else:
            self._batches[0] = batch.slice(count)
        share = self._waiting_bytes * count // self._waiting_events
        self._waiting_events -= count
        self._waiting_bytes -= share
        return batch.slice(0, count)

    def _replenish_credit(self) -> None:
        """Give credit, once there is enough of it for a frame."""
        if self.is_closed or not self.attached.done():
            return
        request = self._request
        event_bytes = max(self._event_bytes or _INITIAL_EVENT_BYTES, 1.0)
        room = (request.max_bytes - self.waiting_bytes) / event_bytes
        credit = min(request.max_events - self._waiting_events, int(room))
        if not self._waiting_events:
            credit = max(credit, 1)
        if credit - self._credit >= max(min(request.max_events, int(room)) // 2, 1):
            self._flow(credit)

    def _flow(self, credit: int) -> None:
        self._credit = credit
        self.session.flow(self, delivered=self._delivered, credit=credit)

    def _send_attach(self) -> None:
        request = self._request
        properties: dict[Symbol, object] = {Symbol(_RECEIVER): request.receiver}
        if request.epoch is not None:
            properties[Symbol(_EPOCH)] = Long(request.epoch)
        selector = Described(Symbol(_SELECTOR), request.selector)
        capabilities = (ARROW_CAPABILITY,) if request.arrow else ()
        self.session.send(
            Attach(
                name=self.name,
                handle=self.handle,
                role=True,
                snd_settle_mode=1,
                rcv_settle_mode=0,
                source=Source(address=request.path, filter={Symbol(_SELECTOR): selector}),
                target=Target(address=self.name),
                desired_capabilities=(_GEOREPLICATION, *capabilities),
                properties=properties,
            )
        )
