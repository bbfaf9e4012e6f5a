"""Sessions of client connections: their links, and their transfer windows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.frames import frame
from leasehold.azure.amqp.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Transfer,
)
from leasehold.azure.endpoint.addresses import CBS, MANAGEMENT, NodeAddress, parse_address
from leasehold.azure.endpoint.error_conditions import (
    NOT_FOUND,
    RequestRefused,
    refused_for,
    unauthorized,
)
from leasehold.azure.endpoint.links import EndpointLink, ReaderLink, SenderLink
from leasehold.azure.endpoint.request_nodes import (
    AnswerLink,
    ManagementNode,
    RequestLink,
    TokenNode,
)
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.azure.amqp.composites import Composite
    from leasehold.azure.endpoint.connection import ClientConnection
    from leasehold.azure.endpoint.options import HubOptions

log = logging.getLogger("leasehold.azure.endpoint")

_MASK = 0xFFFF_FFFF
_INCOMING_WINDOW = 1 << 20  # transfers; credit and the limits of the connection apply earlier
_OUTGOING_WINDOW = 65536
_MAX_WINDOW = 1 << 30  # ids wrap around: a difference must fit into half their range


class EndpointSession:
    """One session, made when a client begins it."""

    def __init__(self, connection: ClientConnection, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.channel = channel
        self.options: HubOptions = connection.options
        self._links: dict[int, EndpointLink] = {}
        self._ended: set[int] = set()  # handles that the client does not know to be detached yet
        self._next_outgoing = 1
        self._next_incoming = begin.next_outgoing_id
        self._window_end = 1 + min(begin.incoming_window, _MAX_WINDOW)
        self._next_delivery = 0
        self.send(
            Begin(
                remote_channel=channel,
                next_outgoing_id=self._next_outgoing,
                incoming_window=_INCOMING_WINDOW,
                outgoing_window=_OUTGOING_WINDOW,
                handle_max=self.options.max_links - 1,
            )
        )

    @property
    def links(self) -> Iterable[EndpointLink]:
        """The current links."""
        return tuple(self._links.values())

    @property
    def window_left(self) -> int:
        """How many transfers the client still takes."""
        left = (self._window_end - self._next_outgoing) & _MASK
        return left if left <= _MASK >> 1 else 0

    # ------------------------------------------------------------- to the client

    def send(self, what: Composite) -> None:
        """Send one performative."""
        self.connection.write(frame(self.channel, what.encode()))

    def flow(
        self, link: EndpointLink, *, delivery_count: int, credit: int, drain: bool = False
    ) -> None:
        """Send the state of a link and of this session."""
        self.send(
            Flow(
                next_incoming_id=self._next_incoming & _MASK,
                incoming_window=_INCOMING_WINDOW,
                next_outgoing_id=self._next_outgoing,
                outgoing_window=_OUTGOING_WINDOW,
                handle=link.handle,
                delivery_count=delivery_count & _MASK,
                link_credit=credit,
                drain=drain,
            )
        )

    def reserve_ids(self, deliveries: int) -> int:
        """Reserve consecutive delivery ids; return the first."""
        first = self._next_delivery
        self._next_delivery = (first + deliveries) & _MASK
        return first

    def count_frames(self, frames: int) -> None:
        """Count transfer frames that were written."""
        self._next_outgoing = (self._next_outgoing + frames) & _MASK

    def answer_link(self, address: NodeAddress) -> AnswerLink | None:
        """Return the link on which the client takes the answers of a node."""
        found = (each for each in self._links.values() if isinstance(each, AnswerLink))
        return next((each for each in found if each.address.path == address.path), None)

    def detach(self, link: EndpointLink, reason: RequestRefused) -> None:
        """Detach a link; what the client still sends on it is ignored."""
        self.send(Detach(handle=link.handle, closed=True, error=reason.error))
        self._ended.add(link.handle)

    def forget(self, link: EndpointLink) -> None:
        """Remove a link that has ended."""
        if self._links.get(link.handle) is link:
            del self._links[link.handle]
            self.connection.count_link(-1)

    def on_closed(self) -> None:
        """End all links; called when the session has ended."""
        for link in self.links:
            link.on_closed()

    # ----------------------------------------------------------- from the client

    def on_frame(self, what: Composite, payload: memoryview) -> None:
        """Take a frame of this session."""
        match what:
            case Transfer():
                self._next_incoming = (self._next_incoming + 1) & _MASK
                if what.handle not in self._ended:
                    self._attached_link(what.handle).on_transfer(what, payload)
            case Flow():
                self._on_flow(what)
            case Disposition():
                pass  # everything sent to clients is settled already
            case Attach():
                self._on_attach(what)
            case Detach():
                self._on_detach(what)
            case _:
                raise AmqpFault(f"{type(what).__name__} has no place in a session")

    def _on_flow(self, flow: Flow) -> None:
        seen = 1 if flow.next_incoming_id is None else flow.next_incoming_id
        self._window_end = (seen + min(flow.incoming_window, _MAX_WINDOW)) & _MASK
        if flow.handle is not None:
            link = self._links.get(flow.handle)
            if link is not None:  # it may have been refused in the meantime
                link.on_flow(flow)
        for link in self.links:
            if isinstance(link, ReaderLink):
                link.wake()

    def _on_attach(self, attach: Attach) -> None:
        if attach.handle in self._links or attach.handle >= self.options.max_links:
            raise AmqpFault(
                f"the handle {attach.handle} is in use, or beyond the {self.options.max_links} "
                "that there are",
                condition="amqp:session:handle-in-use",
            )
        self.connection.count_link(1)
        self._ended.discard(attach.handle)
        link = self._new_link(attach)
        self._links[attach.handle] = link
        try:
            self._authorize(link)
        except RequestRefused as reason:
            link.refuse(reason)
            return
        link.open()

    def _new_link(self, attach: Attach) -> EndpointLink:
        """Make the link for an attach; ``_authorize`` refuses one with an unknown address."""
        end = attach.source if attach.role else attach.target
        address = parse_address(end.address if end is not None else None)
        if address is None:
            return EndpointLink(self, attach, NodeAddress())
        if address.node:
            if attach.role:
                return AnswerLink(self, attach, address)
            node = TokenNode if address.node == CBS else ManagementNode
            return RequestLink(self, attach, address, node=node(self.connection))
        kind = ReaderLink if attach.role else SenderLink
        return kind(self, attach, address)

    def _authorize(self, link: EndpointLink) -> None:
        """Refuse a link without a valid token; the answer does not reveal what exists."""
        if link.address.node == CBS:
            return
        if not self.connection.grants:
            raise unauthorized("the address of this link")
        if link.address.node == MANAGEMENT:
            return
        if not link.address.hub or bool(link.address.group) != link.attach.role:
            raise RequestRefused(NOT_FOUND, "The messaging entity could not be found.", status=404)
        if not self.connection.allows(link.address.path):
            raise unauthorized("the address of this link")

    async def begin(self, link: EndpointLink) -> None:
        """Open a link, or refuse it; nothing is raised."""
        try:
            await link.begin()
        except RequestRefused as reason:
            link.refuse(reason)
        except AmqpFault as fault:
            link.refuse(RequestRefused(fault.condition, fault.description))
        except LeaseholdError as error:
            log.warning("the link to %s ends: %s", link.address.path, error)
            link.refuse(refused_for(error))
        except Exception as error:
            log.exception("the link to %s ends", link.address.path)
            link.refuse(refused_for(error))

    def _on_detach(self, detach: Detach) -> None:
        self._ended.discard(detach.handle)
        link = self._links.get(detach.handle)
        if link is not None:
            link.on_closed()
            self.send(Detach(handle=detach.handle, closed=detach.closed))

    def _attached_link(self, handle: int) -> EndpointLink:
        link = self._links.get(handle)
        if link is None or not link.is_open:
            raise AmqpFault(
                f"there is no link with the handle {handle}",
                condition="amqp:session:unattached-handle",
            )
        return link
