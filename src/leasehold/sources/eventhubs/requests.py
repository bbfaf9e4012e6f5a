"""Questions to a node of the hub, and its answers: ``$cbs`` for tokens, ``$management`` for facts.

Guarantees: an answer goes to the one who asked, however many ask at once, and no more are sent than
the node gives credit for. If the connection ends, all of them are told. A node may end its links
when nobody has asked for a while, as the service does: they are made anew for the next question.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

from leasehold.amqp.composites import Source, Target
from leasehold.amqp.faults import AmqpFault
from leasehold.amqp.messages import Message, read_message
from leasehold.amqp.performatives import Attach
from leasehold.sources.eventhubs.service_errors import Refused, status_refusal
from leasehold.sources.eventhubs.session import Gathering, Link, answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.amqp.performatives import Flow, Transfer
    from leasehold.sources.eventhubs.service_errors import Refusal
    from leasehold.sources.eventhubs.session import Session

CBS, MANAGEMENT = "$cbs", "$management"
_CREDIT = 1_000
_MOST_ANSWER_BYTES = 4 << 20
_CORRELATION = 5
_OK = range(200, 300)
_CODES = ("status-code", "statusCode")
_WORDS = ("status-description", "statusDescription")
_CONDITIONS = ("error-condition", "errorCondition")


class _Asking(Link):
    """Our requests go out here, once the server gives credit."""

    def __init__(self, session: Session, name: str, node: str) -> None:
        super().__init__(session, name)
        self._bell = asyncio.Event()
        self._sent = 0
        self._until = 0
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
        self._until = (flow.delivery_count or 0) + (flow.link_credit or 0)
        self._bell.set()

    def on_end(self, refusal: Refusal) -> None:
        super().on_end(refusal)
        self._bell.set()

    async def send(self, payload: bytes, *, tag: bytes) -> None:
        """Send a request, when there is credit for it.

        Raises:
            Refused: the link has ended.
        """
        while self.refusal is None and self._sent >= self._until:
            self._bell.clear()
            await self._bell.wait()
        if self.refusal is not None:
            raise Refused(self.refusal)
        self._sent += 1
        self.session.transfer(self, payload, tag=tag)


class _Answers(Link):
    """The answers come in here."""

    def __init__(self, session: Session, name: str, node: str) -> None:
        super().__init__(session, name)
        self.waiting: dict[str, asyncio.Future[Message]] = {}
        self._gathering = Gathering(most_bytes=_MOST_ANSWER_BYTES)
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
        self._session = session
        self._node = node
        self._numbers = count(1)
        self._links: tuple[Link, ...] = ()
        self._attach()

    async def ask(self, what: Mapping[str, object], value: object = None) -> Message:
        """The answer to a request with these application properties.

        Raises:
            Refused: the node has refused it, or the connection was lost.
        """
        if self._session.refusal is not None:
            raise Refused(self._session.refusal)
        if self._answers.over or self._asking.over:
            self._attach()
        answers, asking = self._answers, self._asking
        await asyncio.shield(answers.attached)
        if answers.refusal is not None:
            raise Refused(answers.refusal)
        name = f"leasehold-{next(self._numbers)}"
        asked: asyncio.Future[Message] = answer()
        answers.waiting[name] = asked
        request = Message(
            properties=(name,), application_properties=dict(what), value=value
        ).encode()
        try:
            await asking.send(request, tag=name.encode())
            found = await asked
        finally:
            answers.waiting.pop(name, None)
        _check(found)
        return found

    def _attach(self) -> None:
        number = next(self._numbers)
        for link in self._links:
            link.detach()  # one of the two may still be there; who waits on it is told
        self._answers = _Answers(self._session, f"{self._node}-answers-{number}", self._node)
        self._asking = _Asking(self._session, f"{self._node}-requests-{number}", self._node)
        self._links = (self._answers, self._asking)


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
