"""From a client into the log: events are durable before they are accepted.

A delivery is one event or a batch; it is accepted as a whole when all of it is stored, or rejected
with a reason that the client shows. The order of a link's deliveries to a partition is kept.

From the bytes of a delivery to a batch that the log stores, in one pass.

The events of a delivery usually differ in their bodies only: what stands before a body is looked at
when it is not the same as that of the event before.
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
_NEVER = b"\xff"  # no section begins so
_MANY = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredEvents:
    """The events of one delivery. ``sequence`` is the client's own number of the first, if any."""

    batch: pa.RecordBatch
    sequence: int | None = None


def intake_of(data: bytes, message_format: int) -> DeliveredEvents:
    """The events in a delivery: one, or those of a batch.

    Raises:
        AmqpFault: it is damaged, or there is none.
    """
    if message_format == BATCH_FORMAT:
        return _of_batch(data)
    body, head, _ = split_message(data)
    return _made([body], [head], MessageHead())


def _of_batch(data: bytes) -> DeliveredEvents:
    bodies: list[bytes] = []
    heads: list[MessageHead] = []
    at, around = _envelope(data)
    end, starts = len(data), data.startswith
    known, step, head = _NEVER, 0, _NO_HEAD  # of the event before: all up to its body, its length
    prefix, prefix_head = b"", _NO_HEAD  # sections before a body, and what they say
    while at < end:
        if starts(known, at) and at + step <= end:
            bodies.append(data[at + len(known) : at + step])
            heads.append(head)
            at += step
            continue
        first, after = _bounds(data, at)
        if first < 0:  # a section that is no event
            at = after
            continue
        is_same = starts(prefix, first)
        body_at = _body_at(data, first + len(prefix) if is_same else first, after)
        if body_at >= 0:
            body, head = data[body_at:after], prefix_head if is_same else _NO_HEAD
        else:
            body, head, place = split_message(data[first:after])
            if place is not None:
                prefix, prefix_head = data[first : first + place[0]], head
                body_at = first + sum(place)
        bodies.append(body)
        heads.append(head)
        known, step = (data[at:body_at], after - at) if body_at >= 0 else (_NEVER, 0)
        at = after
    return _made(bodies, heads, around)


def _body_at(data: bytes, at: int, end: int) -> int:
    """Where the body begins, if a data section begins here and ends there; else -1."""
    if data.startswith(_DATA8, at) and at + 5 <= end and at + 5 + data[at + 4] == end:
        return at + 5
    if data.startswith(_DATA32, at) and at + 8 <= end and at + 8 + _U32(data, at + 4)[0] == end:
        return at + 8
    return -1


def _bounds(data: bytes, at: int) -> tuple[int, int]:
    """Where the event in the data section at ``at`` begins and ends; -1 for another section."""
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


def _envelope(data: bytes) -> tuple[int, MessageHead]:
    """Where the first event of a batch is, and what stands before all of them."""
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


def _made(
    bodies: Sequence[bytes], heads: Sequence[MessageHead], around: MessageHead
) -> DeliveredEvents:
    """The columns. An event without a key has that of the batch around it."""
    if not bodies:
        raise AmqpFault("a delivery has no event")
    count, kinds = len(bodies), set(map(id, heads))
    first = heads[0]
    if len(kinds) == 1:
        key = around.key if first.key is None else first.key
        keys = (
            pa.nulls(count, pa.utf8())
            if key is None
            else pa.repeat(pa.scalar(key, pa.utf8()), count)
        )
    else:
        keys = pa.array([around.key if each.key is None else each.key for each in heads], pa.utf8())
    if any(each.properties for each in ((first,) if len(kinds) == 1 else heads)):
        properties = pa.array([each.properties for each in heads], _PROPERTIES)
    else:
        properties = _no_properties(max(count, _MANY)).slice(0, count)
    columns = [keys, pa.array(bodies, pa.binary()), properties]
    number = first.sequence if first.sequence is not None else around.sequence
    return DeliveredEvents(
        batch=pa.RecordBatch.from_arrays(columns, schema=SENT_SCHEMA), sequence=number
    )


log = logging.getLogger("leasehold.azure.endpoint")

_CREDIT = 1000
_DELIVERY_BYTES = 2048  # of memory, beside its own bytes
_ID_DIGITS = 12  # of 4 bits each: JavaScript must be able to count so far
_MAX_SEQUENCE = 2**31 - 1


class SenderLink(EndpointLink):
    """On which a client sends events."""

    def __init__(self, session: EndpointSession, attach: Attach, address: NodeAddress) -> None:
        """Take nothing yet."""
        super().__init__(session, attach, address)
        self._hub: Hub | None = None
        self._partition: int | None = None
        self._who: retries.Identity | None = None
        self._parts = bytearray()
        self._head: Transfer | None = None
        self._taken = 0
        self._loop = asyncio.get_running_loop()
        # Answers of the log, put in by its threads, and told to the client all at once.
        self._done: list[tuple[Transfer, int, Future[Any]]] = []
        self._lock = threading.Lock()

    async def begin(self) -> None:
        """Find the hub and the partition; see ``EndpointLink``."""
        hub = await self.session.connection.streams.find(self.address.hub)
        if self.address.partition:
            self._partition = hub.number_of(self.address.partition)
        if self.is_over:
            return
        self._hub = hub
        if retries.CAPABILITY in (self.attach.desired_capabilities or ()):
            properties = self._numbered(hub)
            self.answer(capabilities=(retries.CAPABILITY,), properties=properties)
        else:
            self.answer()
        self._give_credit()

    def on_transfer(self, transfer: Transfer, payload: memoryview) -> None:
        """A delivery, or a part of it."""
        if self._head is None:
            self._head = transfer
        most, connection = self.session.options.max_message_bytes, self.session.connection
        if len(self._parts) + len(payload) > most:
            words = f"The received message exceeds the limit of {most} bytes on this link."
            self.refuse(RequestRefused(TOO_BIG, words))
            return
        if transfer.more and not transfer.aborted:
            self._parts += payload
            connection.gather(len(payload))
            return
        head, self._head = self._head, None
        data = b"".join((self._parts, payload))
        self._forget_parts()
        self._taken += 1
        if self._taken % (_CREDIT // 2) == 0:
            self._give_credit()
        if not transfer.aborted:
            connection.hold(len(data) + _DELIVERY_BYTES)
            self._take(head, data)

    def over(self) -> None:
        """Forget a delivery that is not whole; what was taken is stored."""
        self._forget_parts()
        super().over()

    # ---------------------------------------------------------------------- parts

    def _forget_parts(self) -> None:
        self.session.connection.gather(-len(self._parts))
        self._parts = bytearray()

    def _give_credit(self) -> None:
        count = self.first_delivery + self._taken
        self.session.flow(self, delivery_count=count, credit=_CREDIT)

    def _numbered(self, hub: Hub) -> dict[Symbol, object]:
        """Agree with a client on the id and the numbers that it repeats events by."""
        asked = self.attach.properties or {}
        number = _whole(asked.get(retries.PRODUCER_ID), bits=64)
        given = _whole(asked.get(retries.SEQUENCE), bits=32)
        epoch = _whole(asked.get(retries.EPOCH), bits=16)
        if number is None:
            number = int(new_token()[:_ID_DIGITS], 16)
        if self._partition is not None:
            self._who = (hub.name, hub.info.created_at, self._partition, number)
        known = self.session.connection.retries.last(self._who) if self._who is not None else None
        # What the client thinks goes before what is known: it may be about to repeat the rest.
        last = known or 0 if given is None else given
        return {
            Symbol(retries.PRODUCER_ID): Long(number),
            Symbol(retries.EPOCH): Short(epoch or 0),
            Symbol(retries.SEQUENCE): Int(min(last, _MAX_SEQUENCE)),
        }

    def _take(self, head: Transfer, data: bytes) -> None:
        """Hand a whole delivery to the log."""
        try:
            stored = self._sent(data, head.message_format or 0)
        except AmqpFault as fault:
            stored = Future()
            stored.set_exception(RequestRefused(fault.condition, fault.description))
        except Exception as error:
            if not isinstance(error, LeaseholdError):
                log.exception("a delivery to %s can not be stored", self.address.path)
            stored = Future()
            stored.set_exception(error)
        size = len(data) + _DELIVERY_BYTES
        stored.add_done_callback(lambda done: self._told(head, size, done))

    def _sent(self, data: bytes, message_format: int) -> Future[Any]:
        assert self._hub is not None  # noqa: S101 - transfers come after begin
        found = intake_of(data, message_format)
        batch = found.batch
        known = self.session.connection.retries
        if self._who is None or found.sequence is None:
            return self._hub.send(batch, partition=self._partition)
        numbered = retries.Numbered(first=found.sequence, contents=retries.contents_of(batch))
        skip, sent = known.repeated(self._who, numbered)
        if sent is not None:
            return sent
        stored = self._hub.send(batch.slice(skip), partition=self._partition)
        known.sent(self._who, numbered.after(skip), stored)
        return stored

    def _told(self, head: Transfer, size: int, done: Future[Any]) -> None:
        """In any thread: the log has answered."""
        with self._lock:
            is_first = not self._done
            self._done.append((head, size, done))
        if is_first:
            with suppress(RuntimeError):  # the loop has ended, and the client with it
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        """Tell the client of all answers that are there; neighbours with one frame."""
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
        if first >= 0 and not self.is_over:
            self.session.send(
                Disposition(role=True, first=first, last=last, settled=True, state=Accepted())
            )

    def _reject(self, head: Transfer, error: BaseException) -> None:
        why = refused_for(error)
        log.warning("a delivery to %s is rejected: %s", self.address.path, why.description)
        if self.is_over:
            return
        number = head.delivery_id or 0
        if not head.settled:
            state = Rejected(error=why.error)
            self.session.send(
                Disposition(role=True, first=number, last=number, settled=True, state=state)
            )
        if isinstance(error, UnknownStream):
            self.refuse(why)  # a new link may find another stream of this name


def _whole(value: object, *, bits: int) -> int | None:
    """A number that a client gave, if it is one that fits into the field it is answered in."""
    half = 1 << (bits - 1)
    return value if isinstance(value, int) and -half <= value < half else None
