"""What all links of clients have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.azure.amqp.composites import Source, Target
from leasehold.azure.amqp.faults import AmqpFault
from leasehold.azure.amqp.performatives import Attach

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from leasehold.azure.amqp.performatives import Flow, Transfer
    from leasehold.azure.endpoint.addresses import NodeAddress
    from leasehold.azure.endpoint.error_conditions import RequestRefused
    from leasehold.azure.endpoint.session import EndpointSession

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
