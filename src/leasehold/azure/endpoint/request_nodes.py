"""The node that describes hubs and their partitions.

Nodes for requests: a link to ask on, and one of the same session that the answers go to.

The node to which clients bring their tokens.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from leasehold.azure.amqp.composites import Accepted, Rejected
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.messages import answer_to, read_message
from leasehold.azure.amqp.performatives import Disposition
from leasehold.azure.amqp.types import Array, Int, Long, Symbol, Timestamp
from leasehold.azure.endpoint.delivery import FrameTarget, split
from leasehold.azure.endpoint.error_conditions import (
    NOT_FOUND,
    TOO_BIG,
    TOO_MANY,
    RequestRefused,
    refused_for,
    unauthorized,
)
from leasehold.azure.endpoint.links import EndpointLink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasehold.azure.amqp.composites import Composite
    from leasehold.azure.amqp.messages import Message
    from leasehold.azure.amqp.performatives import Attach, Flow, Transfer
    from leasehold.azure.endpoint.addresses import NodeAddress
    from leasehold.azure.endpoint.connection import ClientConnection
    from leasehold.azure.endpoint.session import EndpointSession

_CREDIT = 100
_MAX_ANSWERS = 200
_MAX_WAITING_BYTES = 1 << 20
_MAX_REQUEST_BYTES = 64 << 10
_MAX_REQUEST_VALUES = 1000

Reply = tuple["Mapping[str, object]", object]


class Node(Protocol):
    """What answers."""

    def ask(self, request: Message, reply: Callable[[Reply], None]) -> None:
        """Answer a request, now or later."""
        ...


def done(status: int, words: str, value: object = None) -> Reply:
    """The answer to a request that was fulfilled."""
    return {"status-code": Int(status), "status-description": words}, value


def failed(why: RequestRefused) -> Reply:
    """The answer to one that was not."""
    status = {
        "status-code": Int(why.status),
        "status-description": why.description,
        # Where azure-eventhub for Python looks for it, to show it.
        "statusDescription": why.description,
        "error-condition": Symbol(why.condition),
    }
    return status, None


class RequestLink(EndpointLink):
    """On which a client asks."""

    def __init__(
        self, session: EndpointSession, attach: Attach, address: NodeAddress, *, node: Node
    ) -> None:
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
        if len(self._parts) + len(payload) > _MAX_REQUEST_BYTES:
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
            request = read_message(data, max_values=_MAX_REQUEST_VALUES)
        except AmqpFault as fault:
            why = RequestRefused(fault.condition, fault.description)
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


class AnswerLink(EndpointLink):
    """On which a client hears the answers, as it has credit for them."""

    def __init__(self, session: EndpointSession, attach: Attach, address: NodeAddress) -> None:
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
        if len(self._waiting) >= _MAX_ANSWERS or self._waiting_bytes > _MAX_WAITING_BYTES:
            self.refuse(RequestRefused(TOO_MANY, "The client asks without hearing the answers."))
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
            way = FrameTarget(
                channel=self.session.channel,
                handle=self.handle,
                max_bytes=self.session.connection.peer_frame_bytes,
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


_ACCEPTED = 202
_UNKNOWN = RequestRefused("amqp:not-implemented", "Only put-token is known here.", status=501)


class TokenNode:
    """``$cbs`` of one connection: what a token allows, it allows to this connection."""

    def __init__(self, connection: ClientConnection) -> None:
        """For this connection."""
        self._connection = connection

    def ask(self, request: Message, reply: Callable[[Reply], None]) -> None:
        """Take a token, or say what is wrong with it."""
        asked = request.application_properties
        if text(asked.get("operation")) != "put-token":
            reply(failed(_UNKNOWN))
            return
        try:
            self._connection.grant(
                token=request.value, kind=asked.get("type"), audience=asked.get("name")
            )
        except RequestRefused as why:
            reply(failed(why))
        else:
            reply(done(_ACCEPTED, "Accepted"))


_HUB, _PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
_OK = 200
_REQUEST_BYTES = 192 << 10  # of memory at the most, while the log is asked
_NEVER_MS = -62_135_596_800_000  # the first moment of the calendar, which stands for none


class ManagementNode:
    """``$management`` of one connection."""

    def __init__(self, connection: ClientConnection) -> None:
        """For this connection."""
        self._connection = connection

    def ask(self, request: Message, reply: Callable[[Reply], None]) -> None:
        """Look, and answer when that is done."""
        task = self._connection.spawn(self._answer(request, reply))
        self._connection.hold(_REQUEST_BYTES)  # who asks faster than the log answers has to wait
        task.add_done_callback(lambda _: self._connection.release(_REQUEST_BYTES))

    async def _answer(self, request: Message, reply: Callable[[Reply], None]) -> None:
        try:
            found = await self._found(request)
        except Exception as error:  # noqa: BLE001 - whoever asks is told, whatever it is
            reply(failed(refused_for(error)))
        else:
            reply(done(_OK, "OK", found))

    async def _found(self, request: Message) -> dict[str, object]:
        asked = request.application_properties
        kind, name = text(asked.get("type")), text(asked.get("name"))
        if not any(each.covers_hub(name) for each in self._connection.grants):
            raise unauthorized("the hub")
        if text(asked.get("operation")).upper() != "READ" or kind not in {_HUB, _PARTITION}:
            raise RequestRefused(
                "amqp:not-implemented", "Only READ of a hub or a partition is known here."
            )
        if not name:
            raise RequestRefused(NOT_FOUND, "The request names no hub.", status=404)
        hub = await self._connection.streams.find(name)
        if kind == _HUB:
            created_at = datetime.fromisoformat(hub.info.created_at)
            if created_at.tzinfo is None:
                created_at = created_at.replace(tzinfo=UTC)
            count = hub.info.partitions
            return {
                "name": hub.name,
                "type": _HUB,
                "created_at": Timestamp(int(created_at.timestamp() * 1000)),
                "partition_count": Int(count),
                "partition_ids": Array(tuple(str(number) for number in range(count))),
                "georeplication_factor": Int(1),
            }
        number = hub.number_of(text(asked.get("partition")))
        part, end = await self._connection.streams.run(lambda: hub.described(number))
        return {
            "name": hub.name,
            "type": _PARTITION,
            "partition": str(number),
            "begin_sequence_number": Long(part.first_sequence if part.events else -1),
            "begin_sequence_number_epoch": Int(-1),
            "last_enqueued_sequence_number": Long(end.sequence),
            "last_enqueued_sequence_number_epoch": Int(-1),
            "last_enqueued_offset": str(end.offset),
            "last_enqueued_time_utc": Timestamp(end.enqueued_ms if part.events else _NEVER_MS),
            "is_partition_empty": not part.events,
        }
