"""The links of clients: those on which they send, and those on which they receive.

**Send.** Events are durable in the log before they are accepted. A delivery is one event or a
batch. It is accepted as a whole when all of it is stored, or rejected with a reason that the client
shows. The order of a link's deliveries to a partition is kept. A delivery is decoded into an Arrow
batch in one pass. Its events usually differ in their bodies only, so the sections before a body are
decoded only if they differ from those of the event before.

**Receive.** A client gets as many events as it has credit for, settled when sent. Each link has one
batch in memory, and writes it when the client has read most of what was sent before. A link that
waits costs nothing: the log's own watcher wakes it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from anyio import CancelScope

from leasehold.azure.amqp.composites import Accepted, Rejected, Source, Target
from leasehold.azure.amqp.event_properties import MessageHead, head_of, split_message
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import (
    ARROW_CAPABILITY,
    ARROW_FORMAT,
    BATCH_FORMAT,
    DATA,
    MESSAGE_ANNOTATIONS,
    sections,
)
from leasehold.azure.amqp.performatives import Attach, Disposition
from leasehold.azure.amqp.types import Int, Long, Short, Symbol
from leasehold.azure.endpoint import retries
from leasehold.azure.endpoint.delivery import FrameTarget, LastEvent, arrow_of, frames_of, split
from leasehold.azure.endpoint.error_conditions import ARGUMENT, TOO_BIG, RequestRefused, refused_for
from leasehold.azure.endpoint.selectors import Selector, selector_of
from leasehold.clock import new_token
from leasehold.errors import LeaseholdError, Trimmed, UnknownStream, UsageError
from leasehold.events.event import SENT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.azure.amqp.performatives import Flow, Transfer
    from leasehold.azure.endpoint.addresses import NodeAddress
    from leasehold.azure.endpoint.hubs import Hub
    from leasehold.azure.endpoint.session import EndpointSession
    from leasehold.events.event import EventBatch
    from leasehold.log.receiver import LogReceiver

SETTLED, MIXED = 1, 2


class EndpointLink:
    """A link, made when a client attaches; ``begin`` opens or refuses it.

    After the answer, ``attach`` keeps only its handle and its role, to save memory: a client needs
    no token to open the link that takes tokens.
    """

    def __init__(self, session: EndpointSession, attach: Attach, address: NodeAddress) -> None:
        self.session = session
        self.attach = attach
        self.address = address
        self.handle = attach.handle
        self.first_delivery = attach.initial_delivery_count or 0
        self.is_open = False
        self.is_closed = False

    def open(self) -> None:
        """Start ``begin`` as a task; the session refuses the link if it fails."""
        self.session.connection.spawn(self.session.begin(self))

    async def begin(self) -> None:
        """Open what the address names, and answer. Runs in a task of the connection."""
        self.answer_attach()

    def answer_attach(
        self,
        *,
        capabilities: tuple[str, ...] = (),
        properties: Mapping[Any, Any] | None = None,
        settled: bool = False,
    ) -> None:
        """Send the attach. Source and target are never null: some clients require them."""
        attach = self.attach
        self.session.send(
            Attach(
                name=attach.name,
                handle=self.handle,
                role=not attach.role,
                snd_settle_mode=SETTLED if settled else MIXED,
                rcv_settle_mode=0,
                source=attach.source or Source(),
                target=attach.target or Target(),
                initial_delivery_count=0,
                max_message_size=self.session.options.max_message_bytes,
                offered_capabilities=capabilities or None,
                properties=properties,
            )
        )
        self.is_open = True
        self.attach = _minimal(attach, name="")

    def refuse(self, reason: RequestRefused) -> None:
        """Detach with a reason, whether the attach was answered or not. Safe to call twice."""
        if self.is_closed:
            return
        if not self.is_open:
            self.attach = _minimal(self.attach, name=self.attach.name)
            self.answer_attach()
        self.session.detach(self, reason)
        self.on_closed()

    def on_closed(self) -> None:
        """Release what the link uses; called however it ends. Safe to call twice."""
        self.is_closed = True
        self.session.forget(self)

    # ---------------------------------------------------- frames from the client

    def on_flow(self, flow: Flow) -> None:
        """Take credit, or news of what the client has to send."""

    def on_transfer(self, transfer: Transfer, payload: memoryview) -> None:
        """Take a message, or a part of one."""
        del transfer, payload
        raise AmqpFault(
            "a transfer came on a link that only receives", condition="amqp:not-allowed"
        )


def _minimal(attach: Attach, *, name: str) -> Attach:
    """Return the fields that an answer always needs and can always repeat."""
    return Attach(name=name, handle=attach.handle, role=attach.role)


# ------------------------------------------------------------------------- send

_PROPERTIES = SENT_SCHEMA.field("properties").type
_U32 = struct.Struct(">I").unpack_from
_DATA8, _DATA32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_NO_HEAD = MessageHead()
_NO_MATCH = b"\xff"  # no section begins with it
_CACHED_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredEvents:
    """The events of one delivery. ``sequence``: the client's number of the first, if any."""

    batch: pa.RecordBatch
    sequence: int | None = None


def read_delivery(data: bytes, message_format: int) -> DeliveredEvents:
    """Decode a delivery: one event, or a batch."""
    if message_format == BATCH_FORMAT:
        return _read_batch(data)
    body, head, _ = split_message(data)
    return _to_arrow([body], [head], MessageHead())


def _read_batch(data: bytes) -> DeliveredEvents:
    bodies: list[bytes] = []
    heads: list[MessageHead] = []
    at, envelope = _read_envelope(data)
    end, starts_with = len(data), data.startswith
    # Of the event before: its bytes up to the body, its length, and its head.
    known, step, head = _NO_MATCH, 0, _NO_HEAD
    # The sections before a body that were decoded last, and the head they make.
    prefix, prefix_head = b"", _NO_HEAD
    while at < end:
        if starts_with(known, at) and at + step <= end:
            bodies.append(data[at + len(known) : at + step])
            heads.append(head)
            at += step
            continue
        first, after = _event_bounds(data, at)
        if first < 0:  # a section without an event
            at = after
            continue
        is_same = starts_with(prefix, first)
        body_at = _body_at(data, first + len(prefix) if is_same else first, after)
        if body_at >= 0:
            body, head = data[body_at:after], prefix_head if is_same else _NO_HEAD
        else:
            body, head, body_position = split_message(data[first:after])
            if body_position is not None:
                prefix, prefix_head = data[first : first + body_position[0]], head
                body_at = first + sum(body_position)
        bodies.append(body)
        heads.append(head)
        known, step = (data[at:body_at], after - at) if body_at >= 0 else (_NO_MATCH, 0)
        at = after
    return _to_arrow(bodies, heads, envelope)


def _body_at(data: bytes, at: int, end: int) -> int:
    """Return where the body begins if one data section spans ``at`` to ``end``; else -1."""
    if data.startswith(_DATA8, at) and at + 5 <= end and at + 5 + data[at + 4] == end:
        return at + 5
    if data.startswith(_DATA32, at) and at + 8 <= end and at + 8 + _U32(data, at + 4)[0] == end:
        return at + 8
    return -1


def _event_bounds(data: bytes, at: int) -> tuple[int, int]:
    """Return where the event in the data section at ``at`` begins and ends; -1 for others."""
    if data.startswith(_DATA8, at) and at + 5 <= len(data):
        first = at + 5
        after = first + data[at + 4]
    elif data.startswith(_DATA32, at) and at + 8 <= len(data):
        first = at + 8
        after = first + _U32(data, at + 4)[0]
    else:
        code, _, _, size = next(sections(memoryview(data)[at:]))
        if code == DATA:
            raise AmqpFault("a batch has a data section that is no event")
        return -1, at + size
    if after > len(data):
        raise AmqpFault("a batch ends inside an event")
    return first, after


def _read_envelope(data: bytes) -> tuple[int, MessageHead]:
    """Return where the first event of a batch begins, and the head before all events."""
    at = 0
    for code, start, _, end in sections(data):
        if code >= DATA:
            at = start
            break
        at = end
    if not at:
        return 0, _NO_HEAD
    found = [data[s:e] for code, s, _, e in sections(data[:at]) if code == MESSAGE_ANNOTATIONS]
    return at, head_of(b"".join(found))


@lru_cache(maxsize=4)
def _no_properties(count: int) -> pa.Array:
    return pa.array([None] * count, _PROPERTIES)


def _to_arrow(
    bodies: Sequence[bytes], heads: Sequence[MessageHead], envelope: MessageHead
) -> DeliveredEvents:
    """Make the batch; an event without a key gets that of the envelope."""
    if not bodies:
        raise AmqpFault("a delivery has no event")
    count, kinds = len(bodies), set(map(id, heads))
    first = heads[0]
    if len(kinds) == 1:
        key = envelope.key if first.key is None else first.key
        keys = (
            pa.nulls(count, pa.utf8())
            if key is None
            else pa.repeat(pa.scalar(key, pa.utf8()), count)
        )
    else:
        keys = pa.array(
            [envelope.key if each.key is None else each.key for each in heads], pa.utf8()
        )
    if any(each.properties for each in ((first,) if len(kinds) == 1 else heads)):
        properties = pa.array([each.properties for each in heads], _PROPERTIES)
    else:
        properties = _no_properties(max(count, _CACHED_ROWS)).slice(0, count)
    columns = [keys, pa.array(bodies, pa.binary()), properties]
    number = first.sequence if first.sequence is not None else envelope.sequence
    return DeliveredEvents(
        batch=pa.RecordBatch.from_arrays(columns, schema=SENT_SCHEMA), sequence=number
    )


log = logging.getLogger("leasehold.azure.endpoint")

_CREDIT = 1000
_DELIVERY_BYTES = 2048  # of memory, besides its own bytes
_ID_DIGITS = 12  # hexadecimal: the id must be exact as a JavaScript number
_MAX_SEQUENCE = 2**31 - 1


class SenderLink(EndpointLink):
    """A link on which a client sends events."""

    def __init__(self, session: EndpointSession, attach: Attach, address: NodeAddress) -> None:
        super().__init__(session, attach, address)
        self._hub: Hub | None = None
        self._partition: int | None = None
        self._producer: retries.ProducerIdentity | None = None
        self._parts = bytearray()
        self._head: Transfer | None = None
        self._deliveries = 0
        self._loop = asyncio.get_running_loop()
        # Answers of the log, added by its threads, and sent to the client together.
        self._done: list[tuple[Transfer, int, Future[Any]]] = []
        self._lock = threading.Lock()

    async def begin(self) -> None:
        """Find the hub and the partition, answer, and give credit."""
        hub = await self.session.connection.hubs.find(self.address.hub)
        if self.address.partition:
            self._partition = hub.number_of(self.address.partition)
        if self.is_closed:
            return
        self._hub = hub
        if retries.CAPABILITY in (self.attach.desired_capabilities or ()):
            properties = self._agree_on_numbers(hub)
            self.answer_attach(capabilities=(retries.CAPABILITY,), properties=properties)
        else:
            self.answer_attach()
        self._give_credit()

    def on_transfer(self, transfer: Transfer, payload: memoryview) -> None:
        """Take a delivery, or a part of it."""
        if self._head is None:
            self._head = transfer
        max_bytes, connection = self.session.options.max_message_bytes, self.session.connection
        if len(self._parts) + len(payload) > max_bytes:
            text = f"The received message exceeds the limit of {max_bytes} bytes on this link."
            self.refuse(RequestRefused(TOO_BIG, text))
            return
        if transfer.more and not transfer.aborted:
            self._parts += payload
            connection.count_partial(len(payload))
            return
        head, self._head = self._head, None
        data = b"".join((self._parts, payload))
        self._drop_parts()
        self._deliveries += 1
        if self._deliveries % (_CREDIT // 2) == 0:
            self._give_credit()
        if not transfer.aborted:
            connection.hold(len(data) + _DELIVERY_BYTES)
            self._store_delivery(head, data)

    def on_closed(self) -> None:
        """Drop an incomplete delivery; complete ones are still stored."""
        self._drop_parts()
        super().on_closed()

    # ---------------------------------------------------------------------- parts

    def _drop_parts(self) -> None:
        self.session.connection.count_partial(-len(self._parts))
        self._parts = bytearray()

    def _give_credit(self) -> None:
        count = self.first_delivery + self._deliveries
        self.session.flow(self, delivery_count=count, credit=_CREDIT)

    def _agree_on_numbers(self, hub: Hub) -> dict[Symbol, object]:
        """Return the producer id and the last number, for a client with idempotent retries."""
        properties = self.attach.properties or {}
        number = _fitting_int(properties.get(retries.PRODUCER_ID), bits=64)
        given = _fitting_int(properties.get(retries.SEQUENCE), bits=32)
        epoch = _fitting_int(properties.get(retries.EPOCH), bits=16)
        if number is None:
            number = int(new_token()[:_ID_DIGITS], 16)
        if self._partition is not None:
            self._producer = (hub.name, hub.info.created_at, self._partition, number)
        known = None
        if self._producer is not None:
            known = self.session.connection.retries.last(self._producer)
        # The client's own number comes first: it may be about to repeat the events after it.
        last = known or 0 if given is None else given
        return {
            Symbol(retries.PRODUCER_ID): Long(number),
            Symbol(retries.EPOCH): Short(epoch or 0),
            Symbol(retries.SEQUENCE): Int(min(last, _MAX_SEQUENCE)),
        }

    def _store_delivery(self, head: Transfer, data: bytes) -> None:
        """Pass a complete delivery to the log."""
        try:
            stored = self._send_to_log(data, head.message_format or 0)
        except AmqpFault as fault:
            stored = Future()
            stored.set_exception(RequestRefused(fault.condition, fault.description))
        except Exception as error:
            if not isinstance(error, LeaseholdError):
                log.exception("a delivery to %s can not be stored", self.address.path)
            stored = Future()
            stored.set_exception(error)
        size = len(data) + _DELIVERY_BYTES
        stored.add_done_callback(lambda done: self._on_stored(head, size, done))

    def _send_to_log(self, data: bytes, message_format: int) -> Future[Any]:
        assert self._hub is not None  # noqa: S101 - transfers come after begin
        found = read_delivery(data, message_format)
        batch = found.batch
        known = self.session.connection.retries
        if self._producer is None or found.sequence is None:
            return self._hub.send(batch, partition=self._partition)
        numbered = retries.NumberedEvents(
            first=found.sequence, checksums=retries.checksums_of(batch)
        )
        skip, sent_before = known.find_repeated(self._producer, numbered)
        if sent_before is not None:
            return sent_before
        stored = self._hub.send(batch.slice(skip), partition=self._partition)
        known.record_sent(self._producer, numbered.skip(skip), stored)
        return stored

    def _on_stored(self, head: Transfer, size: int, done: Future[Any]) -> None:
        """Queue the answer of the log for the event loop. Called in any thread."""
        with self._lock:
            is_first = not self._done
            self._done.append((head, size, done))
        if is_first:
            with suppress(RuntimeError):  # the loop has ended, and the client with it
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        """Send all queued answers; one frame for accepted deliveries with consecutive ids."""
        with self._lock:
            answers, self._done = self._done, []
        self.session.connection.release(sum(held for _, held, _ in answers))
        first = last = -1
        for head, _, done in answers:
            error = CancelledError() if done.cancelled() else done.exception()
            number = head.delivery_id or 0
            if error is not None:
                self._reject(head, error)
            elif not head.settled:
                if first >= 0 and number == last + 1:
                    last = number
                else:
                    self._accept(first, last)
                    first = last = number
        self._accept(first, last)

    def _accept(self, first: int, last: int) -> None:
        if first >= 0 and not self.is_closed:
            self.session.send(
                Disposition(role=True, first=first, last=last, settled=True, state=Accepted())
            )

    def _reject(self, head: Transfer, error: BaseException) -> None:
        reason = refused_for(error)
        log.warning("a delivery to %s is rejected: %s", self.address.path, reason.description)
        if self.is_closed:
            return
        number = head.delivery_id or 0
        if not head.settled:
            state = Rejected(error=reason.error)
            self.session.send(
                Disposition(role=True, first=number, last=number, settled=True, state=state)
            )
        if isinstance(error, UnknownStream):
            self.refuse(reason)  # a new link may find another stream of this name


def _fitting_int(value: object, *, bits: int) -> int | None:
    """Return a number from a client if it fits into the field of the answer."""
    half = 1 << (bits - 1)
    return value if isinstance(value, int) and -half <= value < half else None


# ---------------------------------------------------------------------- receive

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
