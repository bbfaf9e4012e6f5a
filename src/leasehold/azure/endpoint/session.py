"""A session of a connection: its links, and how much may be on its way."""

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
from leasehold.azure.endpoint.addresses import CBS, MANAGEMENT, NodeAddress, address_of
from leasehold.azure.endpoint.error_conditions import (
    NOT_FOUND,
    RequestRefused,
    refused_for,
    unauthorized,
)
from leasehold.azure.endpoint.links import EndpointLink
from leasehold.azure.endpoint.reader_link import ReaderLink
from leasehold.azure.endpoint.request_nodes import (
    AnswerLink,
    ManagementNode,
    RequestLink,
    TokenNode,
)
from leasehold.azure.endpoint.sender_link import SenderLink
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.azure.amqp.composites import Composite
    from leasehold.azure.endpoint.connection import ClientConnection
    from leasehold.azure.endpoint.options import HubOptions

log = logging.getLogger("leasehold.azure.endpoint")

_WRAP = 0xFFFF_FFFF
_WINDOW = 1 << 20  # transfers; credit and the limits of the connection hold earlier
_OUTGOING = 65536
_WIDEST = 1 << 30  # numbers of transfers are compared around the end of their circle


class EndpointSession:
    """Made when a client begins one."""

    def __init__(self, connection: ClientConnection, channel: int, begin: Begin) -> None:
        """Answer with a session of ours."""
        self.connection = connection
        self.channel = channel
        self.options: HubOptions = connection.options
        self._links: dict[int, EndpointLink] = {}
        self._ended: set[int] = set()  # handles of which the client does not know yet
        self._next_outgoing = 1
        self._next_incoming = begin.next_outgoing_id
        self._window_end = 1 + min(begin.incoming_window, _WIDEST)
        self._next_delivery = 0
        self.send(
            Begin(
                remote_channel=channel,
                next_outgoing_id=self._next_outgoing,
                incoming_window=_WINDOW,
                outgoing_window=_OUTGOING,
                handle_max=self.options.max_links - 1,
            )
        )

    @property
    def links(self) -> Iterable[EndpointLink]:
        """Those there are now."""
        return tuple(self._links.values())

    @property
    def room(self) -> int:
        """How many transfers the client takes yet."""
        left = (self._window_end - self._next_outgoing) & _WRAP
        return left if left <= _WRAP >> 1 else 0

    # ------------------------------------------------------------- to the client

    def send(self, what: Composite) -> None:
        """One performative."""
        self.connection.write(frame(self.channel, what.encode()))

    def flow(
        self, link: EndpointLink, *, delivery_count: int, credit: int, drain: bool = False
    ) -> None:
        """Say how far a link is, and how far this session is."""
        self.send(
            Flow(
                next_incoming_id=self._next_incoming & _WRAP,
                incoming_window=_WINDOW,
                next_outgoing_id=self._next_outgoing,
                outgoing_window=_OUTGOING,
                handle=link.handle,
                delivery_count=delivery_count & _WRAP,
                link_credit=credit,
                drain=drain,
            )
        )

    def take_ids(self, deliveries: int) -> int:
        """The first of as many delivery ids, each used once."""
        first = self._next_delivery
        self._next_delivery = (first + deliveries) & _WRAP
        return first

    def transferred(self, frames: int) -> None:
        """So many transfer frames were written."""
        self._next_outgoing = (self._next_outgoing + frames) & _WRAP

    def answer_link(self, address: NodeAddress) -> AnswerLink | None:
        """The link on which the client wants the answers of a node."""
        found = (each for each in self._links.values() if isinstance(each, AnswerLink))
        return next((each for each in found if each.address.path == address.path), None)

    def detach(self, link: EndpointLink, why: RequestRefused) -> None:
        """End a link: what the client still sends on it is not looked at."""
        self.send(Detach(handle=link.handle, closed=True, error=why.error))
        self._ended.add(link.handle)

    def forget(self, link: EndpointLink) -> None:
        """It has ended."""
        if self._links.get(link.handle) is link:
            del self._links[link.handle]
            self.connection.count_link(-1)

    def over(self) -> None:
        """The session has ended, and all its links with it."""
        for link in self.links:
            link.over()

    # ----------------------------------------------------------- from the client

    def take(self, what: Composite, payload: memoryview) -> None:
        """A frame of this session.

        Raises:
            AmqpFault: it has no place here.
        """
        match what:
            case Transfer():
                self._next_incoming = (self._next_incoming + 1) & _WRAP
                if what.handle not in self._ended:
                    self._link(what.handle).on_transfer(what, payload)
            case Flow():
                self._on_flow(what)
            case Disposition():
                pass  # all that is sent to clients is settled already
            case Attach():
                self._on_attach(what)
            case Detach():
                self._on_detach(what)
            case _:
                raise AmqpFault(f"{type(what).__name__} has no place in a session")

    def _on_flow(self, flow: Flow) -> None:
        seen = 1 if flow.next_incoming_id is None else flow.next_incoming_id
        self._window_end = (seen + min(flow.incoming_window, _WIDEST)) & _WRAP
        if flow.handle is not None:
            link = self._links.get(flow.handle)
            if link is not None:  # it may have been refused meanwhile
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
        link = self._made(attach)
        self._links[attach.handle] = link
        try:
            self._check(link)
        except RequestRefused as why:
            link.refuse(why)
            return
        link.open()

    def _made(self, attach: Attach) -> EndpointLink:
        """The link that an attach asks for; one that names nothing we have is refused later."""
        end = attach.source if attach.role else attach.target
        address = address_of(end.address if end is not None else None)
        if address is None:
            return EndpointLink(self, attach, NodeAddress())
        if address.node:
            if attach.role:
                return AnswerLink(self, attach, address)
            node = TokenNode if address.node == CBS else ManagementNode
            return RequestLink(self, attach, address, node=node(self.connection))
        kind = ReaderLink if attach.role else SenderLink
        return kind(self, attach, address)

    def _check(self, link: EndpointLink) -> None:
        """Let nobody have anything without a token, not even the word that it is not there."""
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
        """Open a link, or refuse it."""
        try:
            await link.begin()
        except RequestRefused as why:
            link.refuse(why)
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
            link.over()
            self.send(Detach(handle=detach.handle, closed=detach.closed))

    def _link(self, handle: int) -> EndpointLink:
        link = self._links.get(handle)
        if link is None or not link.is_open:
            raise AmqpFault(
                f"there is no link with the handle {handle}",
                condition="amqp:session:unattached-handle",
            )
        return link
