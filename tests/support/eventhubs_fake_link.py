"""A link of the Event Hubs source without a network, and frames as a server writes them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pyarrow as pa

from leasehold.azure.amqp.composites import Composite, Source, Target
from leasehold.azure.amqp.frames import frame
from leasehold.azure.amqp.performatives import Attach, Begin, Transfer
from leasehold.azure.amqp.types import Long, Symbol, Timestamp
from leasehold.azure.eventhubs.address import parse
from leasehold.azure.eventhubs.connection import HubConnection
from leasehold.azure.eventhubs.event_link import EventLink, LinkRequest
from leasehold.azure.eventhubs.session import HubSession
from leasehold.clock import SystemClock
from leasehold.events import Event, EventBatch

CHANNEL, HANDLE = 3, 7
HOST = parse("eventhubs://app:key@contoso/orders", {})


class FakeLink:
    """A connection with one attached link; ``serve`` passes frames to it."""

    def __init__(self, *, max_events: int = 100_000, max_bytes: int = 1 << 30) -> None:
        self.connection = HubConnection(HOST, clock=SystemClock(), container="test")
        self.session = HubSession(self.connection, 0)
        self.connection._sessions[0] = self.session
        begin = Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1)
        self.serve(begin)
        request = LinkRequest(
            path="orders/ConsumerGroups/g/Partitions/0",
            selector="",
            receiver="me",
            epoch=1,
            arrow=False,
            max_events=max_events,
            max_bytes=max_bytes,
        )
        self.flows: list[tuple[int, int]] = []
        self.session.flow = self._flow  # type: ignore[method-assign]
        self.link = EventLink(self.session, "line", request)
        where = Source(address="x")
        self.serve(
            Attach(
                name="line",
                handle=HANDLE,
                role=False,
                source=where,
                target=Target(address="y"),
                initial_delivery_count=0,
            )
        )

    def _flow(self, link: object, *, delivered: int, credit: int) -> None:
        self.flows.append((delivered, credit))

    def serve(self, performative: Composite, payload: bytes = b"") -> None:
        self.connection.data_received(frame(CHANNEL, performative.encode() + payload))

    def take(self, max_events: int) -> pa.RecordBatch:
        found = self.link.take(max_events=max_events, max_bytes=1 << 20)
        assert found is not None
        return found

    def taken(self) -> list[Event]:
        found: list[Event] = []
        while (batch := self.link.take(max_events=7, max_bytes=1 << 30)) is not None:
            batch.validate(full=True)
            found += EventBatch(partition="0", arrow=batch)
        return found


def in_loop(test: Callable[[], None]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def annotations_of(number: int, **more: object) -> dict[object, object]:
    return {
        Symbol("x-opt-sequence-number"): Long(number),
        Symbol("x-opt-offset"): str(number * 1000),
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000 + number),
        **{Symbol(name.replace("_", "-")): value for name, value in more.items()},
    }


def transfers(message: bytes, number: int, *, room: int = 1 << 30) -> list[bytes]:
    """The frames of one event."""
    parts = [message[at : at + room] for at in range(0, len(message), room)]
    made = []
    for at, part in enumerate(parts):
        head = Transfer(
            handle=HANDLE,
            delivery_id=None if at else number,
            delivery_tag=None if at else struct.pack(">I", number),
            message_format=None if at else 0,
            settled=True,
            more=at + 1 < len(parts),
        )
        made.append(frame(CHANNEL, head.encode() + part))
    return made
