"""Sessions of a connection to a hub, and their links.

A session counts incoming transfers, since every flow reports them. A link has a local handle, and a
remote one, which the server's frames carry.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from leasehold.azure.amqp.composites import Accepted
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.performatives import Attach, Begin, Detach, Disposition, Flow, Transfer
from leasehold.azure.eventhubs.service_errors import (
    LOST,
    ServiceError,
    ServiceRefused,
    service_error_of,
)

if TYPE_CHECKING:
    from leasehold.azure.amqp.composites import Composite

T = TypeVar("T")

WINDOW = 0x7FFF_FFFF
_MASK = 0xFFFF_FFFF
_MAX_HANDLES = 200  # of one session: some servers allow 255


def new_future() -> asyncio.Future[T]:
    """Return a future whose exception is not logged if it is never awaited."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


class PartialDelivery:
    """The parts of a delivery of at most ``max_bytes``, until it is complete."""

    def __init__(self, *, max_bytes: int) -> None:
        self.size = 0
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._head: Transfer | None = None

    @property
    def in_progress(self) -> bool:
        """Whether there is a part of a delivery."""
        return self._head is not None

    def add(self, transfer: Transfer, payload: bytes) -> tuple[Transfer, bytes] | None:
        """Add a part; return the first transfer and all bytes if it completes the delivery."""
        head = self._head or transfer
        self.size += len(payload)
        if payload:
            self._parts.append(payload)
        self._head = head
        is_too_big = self.size > self._max_bytes
        if transfer.more and not transfer.aborted and not is_too_big:
            return None
        parts, self._parts, self._head, self.size = self._parts, [], None, 0
        if is_too_big:
            raise AmqpFault(f"a message has more than {self._max_bytes} bytes")
        return None if transfer.aborted else (head, b"".join(parts))


class FrameSender(Protocol):
    """The part of a connection that a session uses."""

    def send(self, channel: int, performative: Composite, payload: bytes = b"") -> None:
        """Write a frame."""
        ...


class HubLink:
    """A link, one-way. ``service_error`` is why it has ended, None before that."""

    def __init__(self, session: HubSession, name: str) -> None:
        self.session = session
        self.name = name
        self.handle = session.take_handle(self)
        self.service_error: ServiceError | None = None
        self.attached: asyncio.Future[Attach] = new_future()

    @property
    def is_closed(self) -> bool:
        """Whether the link has ended."""
        return self.service_error is not None

    def on_attach(self, attach: Attach) -> None:
        """Record the answer of the server."""
        if not self.attached.done():
            self.attached.set_result(attach)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Take a message, or a part of one."""

    def on_flow(self, flow: Flow) -> None:
        """Take credit for sending."""

    def on_end(self, service_error: ServiceError) -> None:
        """Record that the link was detached by the server, or lost with its connection."""
        if self.service_error is None:
            self.service_error = service_error
            if not self.attached.done():
                self.attached.set_exception(ServiceRefused(service_error))

    def detach(self) -> None:
        """Detach the link. Safe to call twice."""
        if self.service_error is None:
            self.on_end(ServiceError(condition=LOST, description="closed by us"))
            self.session.send(Detach(handle=self.handle, closed=True))


class HubSession:
    """A channel of a connection. ``began`` is done when the server has answered."""

    def __init__(self, sender: FrameSender, channel: int) -> None:
        self.channel = channel
        self.next_incoming = 0
        self.service_error: ServiceError | None = None
        self.began: asyncio.Future[Begin] = new_future()
        self._sender = sender
        self._next_outgoing = 0
        self._by_local_handle: dict[int, HubLink] = {}
        self._by_remote_handle: dict[int, HubLink] = {}
        self.send(
            Begin(
                next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW, handle_max=255
            )
        )

    @property
    def has_room(self) -> bool:
        """Whether there is room for another link."""
        return len(self._by_local_handle) < _MAX_HANDLES

    def take_handle(self, link: HubLink) -> int:
        """Assign the lowest free handle to this link."""
        handle = next(number for number in range(_MASK) if number not in self._by_local_handle)
        self._by_local_handle[handle] = link
        return handle

    def send(self, performative: Composite) -> None:
        """Send a performative on this channel."""
        self._sender.send(self.channel, performative)

    def transfer(self, link: HubLink, payload: bytes, *, tag: bytes) -> int:
        """Send a message; return its delivery id."""
        number, self._next_outgoing = self._next_outgoing, (self._next_outgoing + 1) & _MASK
        self._sender.send(
            self.channel,
            Transfer(
                handle=link.handle,
                delivery_id=number,
                delivery_tag=tag,
                message_format=0,
                settled=False,
            ),
            payload,
        )
        return number

    def accept(self, first: int, last: int) -> None:
        """Accept deliveries that the server has not settled itself."""
        self.send(Disposition(role=True, first=first, last=last, settled=True, state=Accepted()))

    def flow(self, link: HubLink, *, delivered: int, credit: int) -> None:
        """Give credit for deliveries after the first ``delivered``."""
        self.send(
            Flow(
                next_incoming_id=self.next_incoming & _MASK,
                incoming_window=WINDOW,
                next_outgoing_id=self._next_outgoing,
                outgoing_window=WINDOW,
                handle=link.handle,
                delivery_count=delivered & _MASK,
                link_credit=credit,
            )
        )

    # ---------------------------------------------------- from the server

    def link(self, handle: int) -> HubLink | None:
        """Return the link with this remote handle."""
        return self._by_remote_handle.get(handle)

    def on_begin(self, begin: Begin) -> None:
        """Record the answer of the server."""
        self.next_incoming = begin.next_outgoing_id
        if not self.began.done():
            self.began.set_result(begin)

    def on_attach(self, attach: Attach) -> None:
        """Pass the answer of the server to its link."""
        for link in self._by_local_handle.values():
            if link.name == attach.name and attach.handle not in self._by_remote_handle:
                self._by_remote_handle[attach.handle] = link
                link.on_attach(attach)
                return

    def on_detach(self, detach: Detach) -> None:
        """End a link that the server has detached, or confirm our own detach."""
        link = self._by_remote_handle.pop(detach.handle, None)
        if link is None:
            return
        self._by_local_handle.pop(link.handle, None)
        if not link.is_closed:
            link.on_end(service_error_of(detach.error, instead="the link was closed by the server"))
            self.send(Detach(handle=link.handle, closed=True))

    def on_flow(self, flow: Flow) -> None:
        """Pass credit to its link; answer a request for the session's state."""
        link = None if flow.handle is None else self._by_remote_handle.get(flow.handle)
        if link is not None:
            link.on_flow(flow)
        if flow.echo:
            self.send(
                Flow(
                    next_incoming_id=self.next_incoming & _MASK,
                    incoming_window=WINDOW,
                    next_outgoing_id=self._next_outgoing,
                    outgoing_window=WINDOW,
                )
            )

    def on_end(self, service_error: ServiceError) -> None:
        """End all links."""
        self.service_error = service_error
        if not self.began.done():
            self.began.set_exception(ServiceRefused(service_error))
        links, self._by_local_handle, self._by_remote_handle = self._by_local_handle, {}, {}
        for link in links.values():
            link.on_end(service_error)
