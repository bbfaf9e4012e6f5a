"""Our source on a hub of the test, and the official client beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from tests.support.hub import RunningHub

from leasehold.azure import EventHubsSource
from leasehold.azure.eventhubs.receiver import EventHubsReceiver
from leasehold.events import Event

TIMEOUT_S = 90.0


def address_of(hub: RunningHub, *, name: str = "hub", **options: object) -> str:
    """The address of a hub, with its key."""
    said = "".join(f"&{option}={quote(str(value))}" for option, value in options.items())
    return f"eventhubs:///?connection={quote(hub.url(name), safe='')}{said}"


def source_of(hub: RunningHub, *, name: str = "hub", **options: object) -> EventHubsSource:
    """A source on a hub."""
    return EventHubsSource(address_of(hub, name=name, **options))


async def taken(receiver: EventHubsReceiver, count: int, *, at_once: int = 1000) -> list[Event]:
    """So many events."""
    found: list[Event] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            found += await receiver.receive(max_events=at_once, max_bytes=1 << 24)
    return found


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test that is async, in a loop of its own."""

    async def run() -> None:
        await test()

    asyncio.run(run())


def send_with_azure_client(hub: RunningHub, events: list[EventData], **how: Any) -> None:
    """Send through the official client, each for itself."""
    with EventHubProducerClient.from_connection_string(hub.url()) as client:
        for event in events:
            batch = client.create_batch(**how)
            batch.add(event)
            client.send_batch(batch)


def receive_with_azure_client(hub: RunningHub, count: int) -> list[EventData]:
    """All events of partition 0, as the official client gives them."""
    found: list[EventData] = []
    client = EventHubConsumerClient.from_connection_string(hub.url(), consumer_group="theirs")
    enough = threading.Event()

    def on_batch(_: object, events: list[EventData]) -> None:
        found.extend(events)
        if len(found) >= count:
            enough.set()

    receive = partial(
        client.receive_batch, on_batch, partition_id="0", starting_position="-1", max_wait_time=1
    )
    thread = threading.Thread(target=receive)
    thread.start()
    try:
        assert enough.wait(TIMEOUT_S)
    finally:
        client.close()
        thread.join(TIMEOUT_S)
    return found
