"""Requests to a node of a hub: credit, and links that the node has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from leasehold.azure.amqp.composites import Composite, Error, Source, Target
from leasehold.azure.amqp.messages import Message, answer_to, read_message
from leasehold.azure.amqp.performatives import Attach, Begin, Detach, Flow, Transfer
from leasehold.azure.eventhubs.connection_manager import MANAGEMENT, Requests
from leasehold.azure.eventhubs.service_errors import LOST, ServiceError, ServiceRefused
from leasehold.azure.eventhubs.session import HubSession

CREDIT = 2
IDLE = Error(condition="amqp:link:detach-forced", description="idle for 00:10:00")


class Node:
    """A node with little credit, which answers when it is told to."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.requests: list[Message] = []
        self.session = HubSession(self, 0)
        begin = Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1)
        self.session.on_begin(begin)
        self._came = asyncio.Event()
        self.open: dict[bool, int] = {}  # by whether it is the answers: the handle

    def send(self, channel: int, performative: Composite, payload: bytes = b"") -> None:
        asyncio.get_running_loop().call_soon(self._heard, performative, payload)

    def _heard(self, said: Composite, payload: bytes) -> None:
        if isinstance(said, Attach):
            self.names.append(said.name)
            handle = self.open[bool(said.role)] = 100 + len(self.names)
            self.session.on_attach(
                Attach(
                    name=said.name,
                    handle=handle,
                    role=not said.role,
                    source=Source(address=MANAGEMENT),
                    target=Target(address=MANAGEMENT),
                    initial_delivery_count=0 if said.role else None,
                )
            )
            if not said.role:
                self.credit(0)
        elif isinstance(said, Transfer):
            self.requests.append(read_message(payload))
            self._came.set()

    def credit(self, taken: int) -> None:
        self.session.on_flow(
            Flow(
                next_incoming_id=0,
                incoming_window=1,
                next_outgoing_id=0,
                outgoing_window=1,
                handle=self.open[False],
                delivery_count=taken,
                link_credit=CREDIT,
            )
        )

    def answer(self, request: Message) -> None:
        made = answer_to(request, status={"status-code": 200}, value={"name": "hub"})
        link = self.session.link(self.open[True])
        assert link is not None
        head = Transfer(handle=self.open[True], delivery_id=0, delivery_tag=b"t", settled=True)
        link.on_transfer(head, made.encode())

    async def until(self, count: int) -> None:
        async with asyncio.timeout(90):
            while len(self.requests) < count:
                self._came.clear()
                await self._came.wait()


def in_loop(test: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(90):
            await test(Node())

    asyncio.run(run())


async def idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_no_more_is_asked_than_the_node_gives_credit_for() -> None:
    """The service gives 100, ends the link that takes more, and a hub may have 256 partitions."""

    async def test(node: Node) -> None:
        requests = Requests(node.session, MANAGEMENT)
        asking = [asyncio.create_task(requests.request({"operation": "READ"})) for _ in range(5)]
        await node.until(2)
        await idle()
        assert len(node.requests) == CREDIT
        node.credit(2)
        await node.until(4)
        await idle()
        assert len(node.requests) == 2 * CREDIT
        node.credit(4)
        await node.until(5)
        for each in node.requests:
            node.answer(each)
        await asyncio.gather(*asking)

    in_loop(test)


@pytest.mark.parametrize("ended", [[True, False], [True], [False]])
def test_links_that_the_node_has_ended_are_made_anew_for_the_next_question(
    ended: list[bool],
) -> None:
    async def test(node: Node) -> None:
        requests = Requests(node.session, MANAGEMENT)
        for number in range(1, 4):
            asking = asyncio.create_task(requests.request({"operation": "READ"}))
            await node.until(number)
            node.answer(node.requests[-1])
            assert (await asking).value == {"name": "hub"}
            for each in ended:
                node.session.on_detach(Detach(handle=node.open[each], closed=True, error=IDLE))
        assert len(node.names) == len(set(node.names)) == 6

    in_loop(test)


def test_who_asks_on_a_connection_that_is_over_is_told_at_once() -> None:
    async def test(node: Node) -> None:
        requests = Requests(node.session, MANAGEMENT)
        await idle()
        node.session.on_end(ServiceError(condition=LOST, description="reset"))
        with pytest.raises(ServiceRefused, match="reset"):
            await requests.request({"operation": "READ"})

    in_loop(test)
