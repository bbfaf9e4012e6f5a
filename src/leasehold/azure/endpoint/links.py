"""A link of a client: what all kinds of them have in common."""

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
    """Made when a client attaches. ``begin`` says whether it gets what it wants.

    Once it was answered, nothing of what the client has said is kept but what is used: anybody may
    have a link to bring a token on. ``attach`` then has only its handle and its role.
    """

    def __init__(self, session: EndpointSession, attach: Attach, address: NodeAddress) -> None:
        """Answer nothing yet."""
        self.session = session
        self.attach = attach
        self.address = address
        self.handle = attach.handle
        self.first_delivery = attach.initial_delivery_count or 0
        self.is_open = False
        self.is_over = False

    def open(self) -> None:
        """Begin. What can not be had is refused."""
        self.session.connection.spawn(self.session.begin(self))

    async def begin(self) -> None:
        """Open what is behind it, and answer. Runs beside everything else of the connection.

        Raises:
            Refused: it can not be had.
            LeaseholdError: the log can not serve.
        """
        self.answer()

    def answer(
        self,
        *,
        capabilities: tuple[str, ...] = (),
        properties: Mapping[Any, Any] | None = None,
        settled: bool = False,
    ) -> None:
        """Say that it is attached. Source and target are always there: clients insist on them.

        Raises:
            AmqpFault: what the client has said can not be said back.
        """
        asked = self.attach
        self.session.send(
            Attach(
                name=asked.name,
                handle=self.handle,
                role=not asked.role,
                snd_settle_mode=SETTLED if settled else MIXED,
                rcv_settle_mode=0,
                source=asked.source or Source(),
                target=asked.target or Target(),
                initial_delivery_count=0,
                max_message_size=self.session.options.max_message_bytes,
                offered_capabilities=capabilities or None,
                properties=properties,
            )
        )
        self.is_open = True
        self.attach = _bare(asked, name="")

    def refuse(self, why: RequestRefused) -> None:
        """End it with a reason, whether it was attached or not. Again is harmless."""
        if self.is_over:
            return
        if not self.is_open:
            self.attach = _bare(self.attach, name=self.attach.name)
            self.answer()
        self.session.detach(self, why)
        self.over()

    def over(self) -> None:
        """It has ended, for whatever reason. Again is harmless."""
        self.is_over = True
        self.session.forget(self)

    # ------------------------------------------- what the client sends on it

    def on_flow(self, flow: Flow) -> None:
        """The client gives credit, or says how much it has to send."""

    def on_transfer(self, transfer: Transfer, payload: memoryview) -> None:
        """The client sends a message, or a part of one."""
        del transfer, payload
        raise AmqpFault(
            "a transfer came on a link that only receives", condition="amqp:not-allowed"
        )


def _bare(attach: Attach, *, name: str) -> Attach:
    """What is always needed of it, and can always be said back."""
    return Attach(name=name, handle=attach.handle, role=attach.role)
