"""A link on which the events of one partition come in: credit, and what waits to be taken.

Guarantees:

* What waits is bounded: by the credit in events, and in bytes by asking for no more events than fit
  if they are as big as those before; few, until the first have come. If they are bigger and there
  is more than agreed, the credit is taken back; then only what is on its way already still comes.
  A server that does not keep to it is left.
* The server may send again as soon as half of the credit is used and there is room: it is never
  waited for until all is gone.
* Frames like those before them are taken without looking at each field.
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
from leasehold.azure.eventhubs.fast_decode import FrameDecoder, learn
from leasehold.azure.eventhubs.rows import EventRow, RowTuple, arrow_of, batch_of, read_row, size_of
from leasehold.azure.eventhubs.service_errors import DAMAGED, TOO_MANY, ServiceError
from leasehold.azure.eventhubs.session import HubLink, PartialDelivery
from leasehold.log.segment_format import MAX_BODY_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.azure.amqp.performatives import Transfer
    from leasehold.azure.eventhubs.session import HubSession

MAX_DELIVERY_BYTES = MAX_BODY_BYTES + (1 << 20)  # the service allows 20 MB, a log far more
_MAX_SHAPES = 8
_SELECTOR = "apache.org:selector-filter:string"
_EPOCH = "com.microsoft:epoch"
_RECEIVER = "com.microsoft:receiver-name"
_GEOREPLICATION = "com.microsoft:georeplication"
_FIRST_GUESS_BYTES = 1 << 16  # few events are asked for until it is known how big they are


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRequest:
    """What to ask the server for: the events of ``path`` that the ``selector`` names, and how."""

    path: str
    selector: str
    receiver: str
    epoch: int | None
    arrow: bool
    max_events: int
    max_bytes: int


class EventLink(HubLink):
    """Attached when it is made; the server's answer is awaited with ``attached``."""

    def __init__(self, session: HubSession, name: str, wanted: LinkRequest) -> None:
        """Say attach."""
        super().__init__(session, name)
        self._wanted = wanted
        self._rows: list[EventRow | RowTuple] = []
        self._batches: deque[pa.RecordBatch] = deque()
        self._waiting_events = 0
        self._waiting_bytes = 0
        self._delivered = 0
        self._credit = 0
        self._each_bytes: float | None = None
        self._gathering = PartialDelivery(max_bytes=MAX_DELIVERY_BYTES)
        self._readers: list[FrameDecoder] = []
        self._channel = b""
        self._handles: frozenset[bytes] = frozenset()
        self._bell = asyncio.Event()
        self._say_attach()

    @property
    def waiting_events(self) -> int:
        """How many events have come and were not taken yet."""
        return self._waiting_events

    @property
    def waiting_bytes(self) -> int:
        """About how many bytes they have."""
        return self._waiting_bytes + self._gathering.size

    async def wait(self) -> None:
        """Return when something has come, or the link is over. Cancelled, nothing is lost."""
        while not self._waiting_events and not self.over:
            self._bell.clear()
            await self._bell.wait()

    def take(self, *, max_events: int, max_bytes: int) -> pa.RecordBatch | None:
        """What has come, at least one event if there is any; then the server may send more.

        Raises:
            AmqpFault: an event can not be read.
        """
        if self._batches:
            found = self._take_batch(max_events, max_bytes)
        elif self._rows:
            found = self._take_rows(max_events, max_bytes)
        else:
            return None
        self._top_up()
        return found

    def ring(self) -> None:
        """Wake who waits."""
        self._bell.set()

    # ------------------------------------------------------ what comes in

    def on_attach(self, attach: Attach) -> None:
        """See ``HubLink``. A server that refuses says so next."""
        self._delivered = attach.initial_delivery_count or 0
        super().on_attach(attach)
        if attach.source is not None and not self.over:
            self._top_up()

    def on_end(self, refusal: ServiceError) -> None:
        """See ``HubLink``."""
        super().on_end(refusal)
        self._bell.set()

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """A message came the slow way, or a part of one."""
        if self.over:
            return
        try:
            whole = self._gathering.add(transfer, payload)
            if whole is None:
                return
            head, message = whole
            if head.message_format == ARROW_FORMAT:
                self._take_in(message)
            else:
                self._rows.append(read_row(message))
                self._came(1, len(message))
        except AmqpFault as fault:
            self._give_up(ServiceError(condition=DAMAGED, description=fault.description))
            return
        if (
            head.settled is not True
            and transfer.settled is not True
            and head.delivery_id is not None
        ):
            self.session.accept(head.delivery_id, head.delivery_id)

    def placed(self, channel: int, handle: int) -> None:
        """The server's name for this link, as it is in each of its frames."""
        self._channel = channel.to_bytes(2, "big")
        written = {b"\x70" + handle.to_bytes(4, "big")}
        if handle < 1 << 8:
            written.add(bytes((0x52, handle)))
        if not handle:
            written.add(b"\x43")
        self._handles = frozenset(written)

    def learn(self, whole: bytes, transfer: Transfer) -> None:
        """Remember what a frame looks like that came the slow way."""
        single = not transfer.more and not self._gathering.under_way
        if single and transfer.settled and not transfer.message_format:
            shape = learn(whole) if len(self._readers) < _MAX_SHAPES else None
            if shape is not None and all(shape is not each.shape for each in self._readers):
                made = FrameDecoder(shape, channel=self._channel, handles=self._handles)
                self._readers.insert(0, made)

    def run(self, data: bytes, at: int, end: int) -> int:
        """Take all frames from ``at`` on that have a known shape; gives where they end."""
        if self._gathering.under_way or self.over:
            return at
        begin, known = at, len(self._rows)
        for number, reader in enumerate(self._readers):
            at = reader.run(data, at, end, self._rows)
            if at != begin:
                if number:
                    self._readers.insert(0, self._readers.pop(number))
                count = len(self._rows) - known
                self.session.next_incoming += count
                self._came(count, at - begin)
                break
        return at

    def settle(self) -> None:
        """All that came at once is in: wake who waits, and see to the credit."""
        self._bell.set()
        if self._waiting_events > 2 * self._wanted.max_events:
            words = "the server has sent more events than it was allowed to"
            self._give_up(ServiceError(condition=TOO_MANY, description=words))
        elif self.waiting_bytes > self._wanted.max_bytes:
            if self._credit:
                self._flow(0)  # what is on its way still comes
        else:
            self._top_up()

    # ------------------------------------------------------------- parts

    def _give_up(self, refusal: ServiceError) -> None:
        self.on_end(refusal)
        self.session.say(Detach(handle=self.handle, closed=True))

    def _take_in(self, payload: bytes) -> None:
        """An Arrow batch of the server."""
        batch = batch_of(payload)
        if batch.num_rows:
            if self._rows:  # they came before it, and are to be taken before it
                self._batches.append(arrow_of(self._rows))
                self._rows = []
            self._batches.append(batch)
            self._came(batch.num_rows, len(payload))

    def _came(self, events: int, size: int) -> None:
        self._waiting_events += events
        self._waiting_bytes += size
        self._delivered += events
        self._credit = max(self._credit - events, 0)
        each, known = size / events, self._each_bytes
        # Bigger ones count at once, smaller ones by and by: the bound is on bytes.
        self._each_bytes = each if known is None else max(each, known + (each - known) * 0.25)

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

    def _top_up(self) -> None:
        """Let the server send, once that is worth a frame."""
        if self.over or not self.attached.done():
            return
        wanted = self._wanted
        each_bytes = max(self._each_bytes or _FIRST_GUESS_BYTES, 1.0)
        room = (wanted.max_bytes - self.waiting_bytes) / each_bytes
        credit = min(wanted.max_events - self._waiting_events, int(room))
        if not self._waiting_events:
            credit = max(credit, 1)
        if credit - self._credit >= max(min(wanted.max_events, int(room)) // 2, 1):
            self._flow(credit)

    def _flow(self, credit: int) -> None:
        self._credit = credit
        self.session.flow(self, delivered=self._delivered, credit=credit)

    def _say_attach(self) -> None:
        wanted = self._wanted
        properties: dict[Symbol, object] = {Symbol(_RECEIVER): wanted.receiver}
        if wanted.epoch is not None:
            properties[Symbol(_EPOCH)] = Long(wanted.epoch)
        selector = Described(Symbol(_SELECTOR), wanted.selector)
        capabilities = (ARROW_CAPABILITY,) if wanted.arrow else ()
        self.session.say(
            Attach(
                name=self.name,
                handle=self.handle,
                role=True,
                snd_settle_mode=1,
                rcv_settle_mode=0,
                source=Source(address=wanted.path, filter={Symbol(_SELECTOR): selector}),
                target=Target(address=self.name),
                desired_capabilities=(_GEOREPLICATION, *capabilities),
                properties=properties,
            )
        )
