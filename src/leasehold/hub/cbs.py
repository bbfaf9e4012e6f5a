"""The node to which clients bring their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.hub.nodes import done, failed, text
from leasehold.hub.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.amqp.messages import Message
    from leasehold.hub.connection import Connection
    from leasehold.hub.nodes import Reply

_ACCEPTED = 202
_UNKNOWN = Refused("amqp:not-implemented", "Only put-token is known here.", status=501)


class TokenNode:
    """``$cbs`` of one connection: what a token allows, it allows to this connection."""

    def __init__(self, connection: Connection) -> None:
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
        except Refused as why:
            reply(failed(why))
        else:
            reply(done(_ACCEPTED, "Accepted"))
