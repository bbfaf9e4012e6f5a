"""Request nodes: ``$cbs``, which takes tokens, and ``$management``, which describes hubs.

A client opens two links to a node in one session: it sends requests on one and gets the answers on
the other.
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
    """Something that answers requests."""

    def on_request(self, request: Message, reply: Callable[[Reply], None]) -> None:
        """Answer a request, now or later."""
        ...


def success_reply(status: int, description: str, value: object = None) -> Reply:
    """Return the answer to a request that was fulfilled."""
    return {"status-code": Int(status), "status-description": description}, value


def error_reply(reason: RequestRefused) -> Reply:
    """Return the answer to a request that was refused."""
    status = {
        "status-code": Int(reason.status),
        "status-description": reason.description,
        # azure-eventhub for Python reads the description from this key.
        "statusDescription": reason.description,
        "error-condition": Symbol(reason.condition),
    }
    return status, None


class RequestLink(EndpointLink):
    """A link on which a client sends requests to ``node``."""

    def __init__(
        self, session: EndpointSession, attach: Attach, address: NodeAddress, *, node: Node
    ) -> None:
        super().__init__(session, attach, address)
        self._node = node
        self._parts = bytearray()
        self._deliveries = 0

    def open(self) -> None:
        """Answer immediately, without a task."""
        self.answer_attach()
        self._give_credit()

    def on_transfer(self, transfer: Transfer, payload: memoryview) -> None:
        """Take a request, or a part of it."""
        if len(self._parts) + len(payload) > _MAX_REQUEST_BYTES:
            raise AmqpFault("a request is too big", condition=TOO_BIG)
        self._parts += payload
        self.session.connection.count_partial(len(payload))
        if transfer.more and not transfer.aborted:
            return
        data = bytes(self._parts)
        self._drop_parts()
        self._deliveries += 1
        if transfer.aborted:
            return
        try:
            request = read_message(data, max_values=_MAX_REQUEST_VALUES)
        except AmqpFault as fault:
            reason = RequestRefused(fault.condition, fault.description)
            self._settle(transfer, Rejected(error=reason.error))
        else:
            self._settle(transfer, Accepted())
            self._node.on_request(request, lambda reply: self._reply(request, reply))
        if self._deliveries % (_CREDIT // 2) == 0:
            self._give_credit()

    def on_closed(self) -> None:
        """Drop an incomplete request."""
        self._drop_parts()
        super().on_closed()

    def _drop_parts(self) -> None:
        self.session.connection.count_partial(-len(self._parts))
        self._parts = bytearray()

    def _give_credit(self) -> None:
        count = self.first_delivery + self._deliveries
        self.session.flow(self, delivery_count=count, credit=_CREDIT)

    def _settle(self, transfer: Transfer, state: Composite) -> None:
        number = transfer.delivery_id or 0
        if not transfer.settled:
            self.session.send(
                Disposition(role=True, first=number, last=number, settled=True, state=state)
            )

    def _reply(self, request: Message, reply: Reply) -> None:
        link = self.session.answer_link(self.address)
        if link is not None and not self.is_closed:
            status, value = reply
            link.enqueue(answer_to(request, status=status, value=value).encode())


class AnswerLink(EndpointLink):
    """A link on which a client gets answers, as it has credit for them."""

    def __init__(self, session: EndpointSession, attach: Attach, address: NodeAddress) -> None:
        super().__init__(session, attach, address)
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._sent = 0
        self._credit_until = 0

    def open(self) -> None:
        """Answer immediately, without a task."""
        self.answer_attach(settled=True)

    def enqueue(self, message: bytes) -> None:
        """Send an answer, or keep it until there is credit."""
        if len(self._waiting) >= _MAX_ANSWERS or self._waiting_bytes > _MAX_WAITING_BYTES:
            self.refuse(RequestRefused(TOO_MANY, "The client asks without hearing the answers."))
            return
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        self._send()

    def on_flow(self, flow: Flow) -> None:
        """Set the credit, and send what waits for it."""
        self._credit_until = (flow.delivery_count or 0) + (flow.link_credit or 0)
        self._send()

    def _send(self) -> None:
        while self._waiting and self._sent < self._credit_until and not self.is_closed:
            target = FrameTarget(
                channel=self.session.channel,
                handle=self.handle,
                max_bytes=self.session.connection.client_frame_bytes,
            )
            message = self._waiting.popleft()
            self._waiting_bytes -= len(message)
            parts = split(message, target, delivery_id=self.session.reserve_ids(1))
            self._sent += 1
            self.session.count_frames(len(parts))
            self.session.connection.write(b"".join(parts))


def text_or_empty(value: Any) -> str:
    """Return a value of a request, or an empty text if it is not a text."""
    return value if isinstance(value, str) else ""


_ACCEPTED = 202
_UNKNOWN = RequestRefused("amqp:not-implemented", "Only put-token is known here.", status=501)


class TokenNode:
    """The ``$cbs`` of one connection: a token counts for this connection only."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def on_request(self, request: Message, reply: Callable[[Reply], None]) -> None:
        """Take a token, or answer why it is not valid."""
        properties = request.application_properties
        if text_or_empty(properties.get("operation")) != "put-token":
            reply(error_reply(_UNKNOWN))
            return
        try:
            self._connection.grant(
                token=request.value, kind=properties.get("type"), audience=properties.get("name")
            )
        except RequestRefused as reason:
            reply(error_reply(reason))
        else:
            reply(success_reply(_ACCEPTED, "Accepted"))


_HUB, _PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
_OK = 200
_REQUEST_BYTES = 192 << 10  # the most memory that one request takes while the log is read
_NEVER_MS = -62_135_596_800_000  # the year 1, which clients show as "no time"


class ManagementNode:
    """The ``$management`` of one connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def on_request(self, request: Message, reply: Callable[[Reply], None]) -> None:
        """Read the log in a task, then answer."""
        task = self._connection.spawn(self._answer(request, reply))
        # A client that sends requests faster than the log answers has to wait.
        self._connection.hold(_REQUEST_BYTES)
        task.add_done_callback(lambda _: self._connection.release(_REQUEST_BYTES))

    async def _answer(self, request: Message, reply: Callable[[Reply], None]) -> None:
        try:
            found = await self._found(request)
        except Exception as error:  # noqa: BLE001 - every error is answered
            reply(error_reply(refused_for(error)))
        else:
            reply(success_reply(_OK, "OK", found))

    async def _found(self, request: Message) -> dict[str, object]:
        properties = request.application_properties
        kind, name = text_or_empty(properties.get("type")), text_or_empty(properties.get("name"))
        if not any(each.covers_hub(name) for each in self._connection.grants):
            raise unauthorized("the hub")
        if text_or_empty(properties.get("operation")).upper() != "READ" or kind not in {
            _HUB,
            _PARTITION,
        }:
            raise RequestRefused(
                "amqp:not-implemented", "Only READ of a hub or a partition is known here."
            )
        if not name:
            raise RequestRefused(NOT_FOUND, "The request names no hub.", status=404)
        hub = await self._connection.hubs.find(name)
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
        number = hub.number_of(text_or_empty(properties.get("partition")))
        part, end = await self._connection.hubs.run_in_thread(lambda: hub.describe(number))
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
