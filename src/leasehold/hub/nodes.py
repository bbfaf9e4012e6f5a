"""Nodes for requests: a link to ask on, and one of the same session that the answers go to."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from leasehold.amqp.composites import Accepted, Rejected
from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import answer_to, read_message
from leasehold.amqp.performatives import Disposition
from leasehold.amqp.values import Int, Symbol
from leasehold.hub.delivery import Way, split
from leasehold.hub.links import Link
from leasehold.hub.refusals import TOO_BIG, TOO_MANY, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.amqp.composites import Composite
    from leasehold.amqp.messages import Message
    from leasehold.amqp.performatives import Attach, Flow, Transfer
    from leasehold.hub.addresses import Address
    from leasehold.hub.session import Session

_CREDIT = 100
_MOST_ANSWERS = 200
_MOST_WAITING_BYTES = 1 << 20
_MOST_REQUEST_BYTES = 64 << 10
_MOST_REQUEST_VALUES = 1000

Reply = tuple["Mapping[str, object]", object]


class Node(Protocol):
    """What answers."""

    def ask(self, request: Message, reply: Callable[[Reply], None]) -> None:
        """Answer a request, now or later."""
        ...


def done(status: int, words: str, value: object = None) -> Reply:
    """The answer to a request that was fulfilled."""
    return {"status-code": Int(status), "status-description": words}, value


def failed(why: Refused) -> Reply:
    """The answer to one that was not."""
    status = {
        "status-code": Int(why.status),
        "status-description": why.description,
        # Where azure-eventhub for Python looks for it, to show it.
        "statusDescription": why.description,
        "error-condition": Symbol(why.condition),
    }
    return status, None


class RequestLink(Link):
    """On which a client asks."""

    def __init__(self, session: Session, attach: Attach, address: Address, *, node: Node) -> None:
        """Ask ``node``."""
        super().__init__(session, attach, address)
        self._node = node
        self._parts = bytearray()
        self._taken = 0

    def open(self) -> None:
        """Answer at once."""
        self.answer()
        self._give_credit()

    def on_transfer(self, transfer: Transfer, payload: memoryview) -> None:
        """One request, or a part of it."""
        if len(self._parts) + len(payload) > _MOST_REQUEST_BYTES:
            raise AmqpFault("a request is too big", condition=TOO_BIG)
        self._parts += payload
        self.session.connection.gather(len(payload))
        if transfer.more and not transfer.aborted:
            return
        data = bytes(self._parts)
        self._forget_parts()
        self._taken += 1
        if transfer.aborted:
            return
        try:
            request = read_message(data, most_values=_MOST_REQUEST_VALUES)
        except AmqpFault as fault:
            why = Refused(fault.condition, fault.description)
            self._settle(transfer, Rejected(error=why.error))
        else:
            self._settle(transfer, Accepted())
            self._node.ask(request, lambda reply: self._reply(request, reply))
        if self._taken % (_CREDIT // 2) == 0:
            self._give_credit()

    def over(self) -> None:
        """Forget a request that is not whole."""
        self._forget_parts()
        super().over()

    def _forget_parts(self) -> None:
        self.session.connection.gather(-len(self._parts))
        self._parts = bytearray()

    def _give_credit(self) -> None:
        count = self.first_delivery + self._taken
        self.session.flow(self, delivery_count=count, credit=_CREDIT)

    def _settle(self, transfer: Transfer, state: Composite) -> None:
        number = transfer.delivery_id or 0
        if not transfer.settled:
            self.session.send(
                Disposition(role=True, first=number, last=number, settled=True, state=state)
            )

    def _reply(self, request: Message, reply: Reply) -> None:
        link = self.session.answer_link(self.address)
        if link is not None and not self.is_over:
            status, value = reply
            link.put(answer_to(request, status=status, value=value).encode())


class AnswerLink(Link):
    """On which a client hears the answers, as it has credit for them."""

    def __init__(self, session: Session, attach: Attach, address: Address) -> None:
        """Nothing to say yet."""
        super().__init__(session, attach, address)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._sent = 0
        self._until = 0

    def open(self) -> None:
        """Answer at once."""
        self.answer(settled=True)

    def put(self, message: bytes) -> None:
        """Send an answer, or keep it until there is credit."""
        if len(self._waiting) >= _MOST_ANSWERS or self._waiting_bytes > _MOST_WAITING_BYTES:
            self.refuse(Refused(TOO_MANY, "The client asks without hearing the answers."))
            return
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        self._send()

    def on_flow(self, flow: Flow) -> None:
        """Credit."""
        self._until = (flow.delivery_count or 0) + (flow.link_credit or 0)
        self._send()

    def _send(self) -> None:
        while self._waiting and self._sent < self._until and not self.is_over:
            way = Way(
                channel=self.session.channel,
                handle=self.handle,
                most_bytes=self.session.connection.peer_frame_bytes,
            )
            message = self._waiting.popleft()
            self._waiting_bytes -= len(message)
            parts = split(message, way, delivery_id=self.session.take_ids(1))
            self._sent += 1
            self.session.transferred(len(parts))
            self.session.connection.write(b"".join(parts))


def text(value: Any) -> str:
    """A value of a request that should be text."""
    return value if isinstance(value, str) else ""
