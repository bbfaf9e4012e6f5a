"""Links on which clients send: events are durable in the log before they are accepted.

A delivery is one event or a batch. It is accepted as a whole when all of it is stored, or rejected
with a reason that the client shows. The order of a link's deliveries to a partition is kept.

A delivery is decoded into an Arrow batch in one pass. Its events usually differ in their bodies
only, so the sections before a body are decoded only if they differ from those of the event before.
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

from leasehold.azure.amqp.composites import Accepted, Rejected
from leasehold.azure.amqp.event_properties import MessageHead, head_of, split_message
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import BATCH_FORMAT, DATA, MESSAGE_ANNOTATIONS, sections
from leasehold.azure.amqp.performatives import Disposition
from leasehold.azure.amqp.types import Int, Long, Short, Symbol
from leasehold.azure.endpoint import retries
from leasehold.azure.endpoint.error_conditions import TOO_BIG, RequestRefused, refused_for
from leasehold.azure.endpoint.links import EndpointLink
from leasehold.clock import new_token
from leasehold.errors import LeaseholdError, UnknownStream
from leasehold.events.event import SENT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.azure.amqp.performatives import Attach, Transfer
    from leasehold.azure.endpoint.addresses import NodeAddress
    from leasehold.azure.endpoint.hubs import Hub
    from leasehold.azure.endpoint.session import EndpointSession

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
