"""Sessions and their links, as the connection sees them: who gets which frame.

A session counts what came in, since every flow has to say it. A link has a handle of ours, and one
of the server's, by which its frames are known.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from leasehold.azure.amqp.composites import Accepted
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.performatives import Attach, Begin, Detach, Disposition, Flow, Transfer
from leasehold.azure.eventhubs.service_errors import LOST, ServiceError, ServiceRefused, refusal_of

if TYPE_CHECKING:
    from leasehold.azure.amqp.composites import Composite

T = TypeVar("T")

WINDOW = 0x7FFF_FFFF
_MASK = 0xFFFF_FFFF
_MAX_HANDLES = 200  # of one session: some servers allow 255


def answer() -> asyncio.Future[T]:
    """Something to be awaited, whose error is nobody's business if nobody does."""
    made: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    made.add_done_callback(lambda done: done.cancelled() or done.exception())
    return made


class PartialDelivery:
    """The parts of a delivery, until it is whole."""

    def __init__(self, *, max_bytes: int) -> None:
        """Nothing is under way; a delivery has ``max_bytes`` at most."""
        self.size = 0
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._head: Transfer | None = None

    @property
    def under_way(self) -> bool:
        """Whether a part of a delivery is here."""
        return self._head is not None

    def add(self, transfer: Transfer, payload: bytes) -> tuple[Transfer, bytes] | None:
        """The first frame and all bytes of the delivery that is whole with this one.

        Raises:
            AmqpFault: it is bigger than any message may be; it is forgotten.
        """
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
    """What a session needs of its connection."""

    def send(self, channel: int, performative: Composite, payload: bytes = b"") -> None:
        """Write a frame."""
        ...


class HubLink:
    """One direction of one conversation. ``over`` once it has ended, with why in ``refusal``."""

    def __init__(self, session: HubSession, name: str) -> None:
        """Not attached yet."""
        self.session = session
        self.name = name
        self.handle = session.take_handle(self)
        self.refusal: ServiceError | None = None
        self.attached: asyncio.Future[Attach] = answer()

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.refusal is not None

    def on_attach(self, attach: Attach) -> None:
        """The server has answered."""
        if not self.attached.done():
            self.attached.set_result(attach)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """A message came, or a part of one."""

    def on_flow(self, flow: Flow) -> None:
        """The server has said how much it may be sent."""

    def on_end(self, refusal: ServiceError) -> None:
        """It is over: detached by the server, or lost with its connection."""
        if self.refusal is None:
            self.refusal = refusal
            if not self.attached.done():
                self.attached.set_exception(ServiceRefused(refusal))

    def detach(self) -> None:
        """Say that nothing more is wanted."""
        if self.refusal is None:
            self.on_end(ServiceError(condition=LOST, description="closed by us"))
            self.session.say(Detach(handle=self.handle, closed=True))


class HubSession:
    """A channel of a connection. ``began`` is done when the server has answered."""

    def __init__(self, sender: FrameSender, channel: int) -> None:
        """Say begin."""
        self.channel = channel
        self.next_incoming = 0
        self.refusal: ServiceError | None = None
        self.began: asyncio.Future[Begin] = answer()
        self._sender = sender
        self._next_outgoing = 0
        self._ours: dict[int, HubLink] = {}
        self._theirs: dict[int, HubLink] = {}
        self.say(
            Begin(
                next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW, handle_max=255
            )
        )

    @property
    def has_room(self) -> bool:
        """Whether another link fits in."""
        return len(self._ours) < _MAX_HANDLES

    def take_handle(self, link: HubLink) -> int:
        """The lowest handle that is free, for this link."""
        handle = next(number for number in range(_MASK) if number not in self._ours)
        self._ours[handle] = link
        return handle

    def say(self, performative: Composite) -> None:
        """Send it on this channel."""
        self._sender.send(self.channel, performative)

    def transfer(self, link: HubLink, payload: bytes, *, tag: bytes) -> int:
        """Send a message; gives the number of its delivery."""
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
        """Settle deliveries that the server has not settled itself."""
        self.say(Disposition(role=True, first=first, last=last, settled=True, state=Accepted()))

    def flow(self, link: HubLink, *, delivered: int, credit: int) -> None:
        """Let the server send so many more deliveries after the first ``delivered``."""
        self.say(
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

    # ------------------------------------------------------ what comes in

    def link(self, handle: int) -> HubLink | None:
        """The link by the server's handle."""
        return self._theirs.get(handle)

    def on_begin(self, begin: Begin) -> None:
        """The server has answered."""
        self.next_incoming = begin.next_outgoing_id
        if not self.began.done():
            self.began.set_result(begin)

    def on_attach(self, attach: Attach) -> None:
        """The server has answered to one of our links."""
        for link in self._ours.values():
            if link.name == attach.name and attach.handle not in self._theirs:
                self._theirs[attach.handle] = link
                link.on_attach(attach)
                return

    def on_detach(self, detach: Detach) -> None:
        """The server has ended a link, or has heard that we have."""
        link = self._theirs.pop(detach.handle, None)
        if link is None:
            return
        self._ours.pop(link.handle, None)
        if not link.over:
            link.on_end(refusal_of(detach.error, instead="the link was closed by the server"))
            self.say(Detach(handle=link.handle, closed=True))

    def on_flow(self, flow: Flow) -> None:
        """Credit, or only news of the session."""
        link = None if flow.handle is None else self._theirs.get(flow.handle)
        if link is not None:
            link.on_flow(flow)
        if flow.echo:
            self.say(
                Flow(
                    next_incoming_id=self.next_incoming & _MASK,
                    incoming_window=WINDOW,
                    next_outgoing_id=self._next_outgoing,
                    outgoing_window=WINDOW,
                )
            )

    def on_end(self, refusal: ServiceError) -> None:
        """All links are lost."""
        self.refusal = refusal
        if not self.began.done():
            self.began.set_exception(ServiceRefused(refusal))
        links, self._ours, self._theirs = self._ours, {}, {}
        for link in links.values():
            link.on_end(refusal)
