"""A consumer group for tests: a hub over a log, and the stock clients of azure-eventhub at it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from azure.eventhub import EventHubConsumerClient as BlockingClient
from azure.eventhub.aio import EventHubConsumerClient

from leasehold.azure import HubOptions, HubServer
from leasehold.events import Event
from leasehold.log import Log

HUB, CONSUMERS = "orders", "$Default"
# A client that is closed while it connects leaves its sockets to the collector.
LEFT_OPEN = (
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
)
TIMEOUT_S = 100.0


@dataclass(kw_only=True)
class Deliveries:
    """The events that each client or host was given, in order; filled from any thread."""

    items: list[tuple[str, str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, who: str, partition: str, number: int) -> None:
        with self.lock:
            self.items.append((who, partition, number))

    def events(self) -> set[tuple[str, int]]:
        with self.lock:
            return {(partition, number) for _, partition, number in self.items}

    def twice(self, who: Callable[[str], bool]) -> list[tuple[str, int]]:
        """What was given more than once to some of them."""
        with self.lock:
            times = Counter((partition, n) for name, partition, n in self.items if who(name))
        return [event for event, count in times.items() if count > 1]

    def by(self, who: str) -> int:
        with self.lock:
            return sum(1 for name, _, _ in self.items if name == who)


@dataclass(kw_only=True)
class Hub:
    """A hub with one stream, and all that was sent to it."""

    log: Log
    server: HubServer
    partitions: list[str]
    sent: set[tuple[str, int]] = field(default_factory=set)
    deliveries: Deliveries = field(default_factory=Deliveries)

    @property
    def namespace(self) -> str:
        """As their clients name it in their records."""
        host, port = self.server.address
        return f"{host}:{port}"

    @property
    def address(self) -> str:
        """For our own source. It holds a key."""
        connection = quote(self.server.connection_string(HUB), safe="")
        return f"eventhubs:///{HUB}?connection={connection}"

    async def send(self, each: int) -> None:
        """So many events to each partition, stored when this returns."""

        def send() -> None:
            with self.log.producer(HUB) as producer:
                waits = [
                    producer.send(Event(body=b"x"), partition=int(partition))
                    for partition in self.partitions
                    for _ in range(each)
                ]
                for wait in waits:
                    for receipt in wait.result():
                        first = receipt.first_sequence
                        numbers = range(first, first + receipt.count)
                        self.sent |= {(str(receipt.partition), number) for number in numbers}

        await asyncio.to_thread(send)

    async def all_seen(self) -> None:
        """Wait until every event was given to somebody."""
        await until(lambda: self.deliveries.events() >= self.sent)

    def client(self, name: str, store: Any, **options: Any) -> Client:
        """A stock asynchronous client."""
        made = EventHubConsumerClient.from_connection_string(
            self.server.connection_string(HUB), CONSUMERS, checkpoint_store=store, **options
        )
        return Client(name=name, deliveries=self.deliveries, client=made)

    def blocking_client(self, name: str, store: Any, **options: Any) -> BlockingReader:
        """A stock blocking client."""
        made = BlockingClient.from_connection_string(
            self.server.connection_string(HUB), CONSUMERS, checkpoint_store=store, **options
        )
        return BlockingReader(name=name, deliveries=self.deliveries, client=made)


@dataclass(kw_only=True)
class Client:
    """A stock client that writes a checkpoint after each batch, and says what it works on."""

    name: str
    deliveries: Deliveries
    client: EventHubConsumerClient
    owned: set[str] = field(default_factory=set)
    errors: list[Exception] = field(default_factory=list)
    busy: int = 0
    _task: asyncio.Task[None] | None = None

    def start(self) -> Client:
        receive = self.client.receive_batch(
            self._on_batch,
            on_error=self._on_error,
            on_partition_initialize=self._on_open,
            on_partition_close=self._on_close,
            starting_position="-1",
        )
        self._task = asyncio.create_task(receive)
        return self

    async def stop(self) -> None:
        """Close it as their documentation says, when it has written its checkpoints."""
        await until(lambda: not self.busy)
        await self.client.close()
        if self._task is not None:
            await self._task  # it sleeps its interval out

    async def _on_batch(self, context: Any, events: list[Any]) -> None:
        self.busy += 1
        try:
            for event in events:
                self.deliveries.add(self.name, context.partition_id, event.sequence_number)
            if events:
                await context.update_checkpoint(events[-1])
        finally:
            self.busy -= 1

    async def _on_error(self, context: Any, error: Exception) -> None:
        self.errors.append(error)

    async def _on_open(self, context: Any) -> None:
        self.owned.add(context.partition_id)

    async def _on_close(self, context: Any, reason: Any) -> None:
        self.owned.discard(context.partition_id)


@dataclass(kw_only=True)
class BlockingReader:
    """The same with a blocking client, in a thread."""

    name: str
    deliveries: Deliveries
    client: BlockingClient
    owned: set[str] = field(default_factory=set)
    errors: list[Exception] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> BlockingReader:
        def receive() -> None:
            self.client.receive_batch(
                self._on_batch,
                on_error=lambda _, error: self.errors.append(error),
                on_partition_initialize=lambda context: self.owned.add(context.partition_id),
                on_partition_close=lambda context, _: self.owned.discard(context.partition_id),
                starting_position="-1",
            )

        self._thread = threading.Thread(target=receive, name=self.name, daemon=True)
        self._thread.start()
        return self

    async def stop(self) -> None:
        await asyncio.to_thread(self.client.close)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _on_batch(self, context: Any, events: list[Any]) -> None:
        for event in events:
            self.deliveries.add(self.name, context.partition_id, event.sequence_number)
        if events:
            context.update_checkpoint(events[-1])


async def until(true: Callable[[], bool]) -> None:
    """Return when it is so; fail if it does not come to pass."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if true():
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def hub(path: Path, *, partitions: int) -> AsyncIterator[Hub]:
    """A log in a directory, and a server for it on a free port."""
    url = f"sqlite:///{path}/log.db"
    log = await asyncio.to_thread(lambda: Log.open(url, volumes=[path / "disk"]))
    try:
        log.create(HUB, partitions=partitions)
        async with HubServer(log, HubOptions(port=0)) as server:
            ids = [str(number) for number in range(partitions)]
            yield Hub(log=log, server=server, partitions=ids)
    finally:
        await asyncio.to_thread(log.close)
        gc.collect()  # what Azure's client has left open must not outlive this test
