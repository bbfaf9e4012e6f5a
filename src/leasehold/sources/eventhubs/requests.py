"""Questions to a node of the hub, and its answers: ``$cbs`` for tokens, ``$management`` for facts.

Guarantees: an answer goes to the one who asked, however many ask at once; if the connection ends,
all of them are told.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

from leasehold.amqp.composites import Source, Target
from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import Message, read_message
from leasehold.amqp.performatives import Attach
from leasehold.sources.eventhubs.refusals import Refused, status_refusal
from leasehold.sources.eventhubs.session import Gathering, Link, answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.amqp.performatives import Flow, Transfer
    from leasehold.sources.eventhubs.refusals import Refusal
    from leasehold.sources.eventhubs.session import Session

CBS, MANAGEMENT = "$cbs", "$management"
_CREDIT = 1_000
_CORRELATION = 5
_OK = range(200, 300)
_CODES = ("status-code", "statusCode")
_WORDS = ("status-description", "statusDescription")
_CONDITIONS = ("error-condition", "errorCondition")


class _Asking(Link):
    """Our requests go out here, once the server gives credit."""

    def __init__(self, session: Session, name: str, node: str) -> None:
        super().__init__(session, name)
        self.ready: asyncio.Future[None] = answer()
        session.say(
            Attach(
                name=name,
                handle=self.handle,
                role=False,
                source=Source(address=node),
                target=Target(address=node),
                initial_delivery_count=0,
            )
        )

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit and not self.ready.done():
            self.ready.set_result(None)

    def on_end(self, refusal: Refusal) -> None:
        super().on_end(refusal)
        if not self.ready.done():
            self.ready.set_exception(Refused(refusal))


class _Answers(Link):
    """The answers come in here."""

    def __init__(self, session: Session, name: str, node: str) -> None:
        super().__init__(session, name)
        self.waiting: dict[str, asyncio.Future[Message]] = {}
        self._gathering = Gathering()
        self._delivered = 0
        self._used = 0
        session.say(
            Attach(
                name=name,
                handle=self.handle,
                role=True,
                source=Source(address=node),
                target=Target(address=node),
            )
        )

    def on_attach(self, attach: Attach) -> None:
        self._delivered = attach.initial_delivery_count or 0
        super().on_attach(attach)
        self.session.flow(self, delivered=self._delivered, credit=_CREDIT)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        whole = self._gathering.add(transfer, payload)
        if whole is None:
            return
        head, data = whole
        self._delivered += 1
        self._used += 1
        if self._used >= _CREDIT // 2:
            self._used = 0
            self.session.flow(self, delivered=self._delivered, credit=_CREDIT)
        if not head.settled and head.delivery_id is not None:
            self.session.accept(head.delivery_id, head.delivery_id)
        message = read_message(data)
        correlation = message.properties[_CORRELATION : _CORRELATION + 1]
        asked = self.waiting.pop(str(correlation[0]) if correlation else "", None)
        if asked is not None and not asked.done():
            asked.set_result(message)

    def on_end(self, refusal: Refusal) -> None:
        super().on_end(refusal)
        waiting, self.waiting = self.waiting, {}
        for asked in waiting.values():
            if not asked.done():
                asked.set_exception(Refused(refusal))


class Requests:
    """One node. Made and used in one event loop."""

    def __init__(self, session: Session, node: str) -> None:
        """Attach both ways."""
        self._numbers = count(1)
        self._answers = _Answers(session, f"{node}-answers", node)
        self._asking = _Asking(session, f"{node}-requests", node)

    async def ask(self, what: Mapping[str, object], value: object = None) -> Message:
        """The answer to a request with these application properties.

        Raises:
            Refused: the node has refused it, or the connection was lost.
        """
        await asyncio.shield(self._answers.attached)
        await asyncio.shield(self._asking.ready)
        if self._answers.refusal is not None:
            raise Refused(self._answers.refusal)
        name = f"leasehold-{next(self._numbers)}"
        asked: asyncio.Future[Message] = answer()
        self._answers.waiting[name] = asked
        request = Message(
            properties=(name,), application_properties=dict(what), value=value
        ).encode()
        try:
            self._asking.session.transfer(self._asking, request, tag=name.encode())
            found = await asked
        finally:
            self._answers.waiting.pop(name, None)
        _check(found)
        return found


def _check(found: Message) -> None:
    status = found.application_properties
    code = _first(status, _CODES)
    if not isinstance(code, int):
        raise AmqpFault("an answer of the hub says no status")
    if code not in _OK:
        words, condition = _first(status, _WORDS), _first(status, _CONDITIONS)
        raise Refused(status_refusal(code, str(words or ""), str(condition or "")))


def _first(found: Mapping[object, object], names: tuple[str, ...]) -> object:
    return next((found[name] for name in names if name in found), None)
