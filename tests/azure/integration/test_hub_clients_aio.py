"""The asynchronous clients of azure-eventhub in trouble, and both kinds of clients with TLS."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub import aio as azure_aio
from azure.eventhub.exceptions import ConnectError
from tests.support.hub import RunningHub, running_hub, tls_of, until

# The clients leave sockets open when they are closed: they are collected while that is allowed.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::ResourceWarning")]
GROUP = "$Default"
TLS_PORT = 5671  # the clients take no other
_TIMEOUT_S = 90.0


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@asynccontextmanager
async def _receiving(
    url: str,
    take: Callable[[Any], None],
    *,
    failed: Callable[[Exception], None] = lambda _: None,
    options: dict[str, Any] | None = None,
    **how: Any,
) -> AsyncIterator[None]:
    """A consumer of partition 0 that receives until the block ends."""
    client = azure_aio.EventHubConsumerClient.from_connection_string(url, GROUP, **(options or {}))

    async def on_event(_: Any, event: Any) -> None:
        take(event)

    async def on_error(_: Any, error: Exception) -> None:
        failed(error)

    async with client:
        receiving = asyncio.create_task(
            client.receive(
                on_event, on_error=on_error, partition_id="0", starting_position="-1", **how
            )
        )
        try:
            yield
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)


async def _until(is_so: Callable[[], object]) -> None:
    await asyncio.to_thread(until, is_so, timeout_s=_TIMEOUT_S)


def test_nothing_is_lost_when_connections_break(tmp_path: Path) -> None:
    seen: list[int] = []

    async def run(hub: RunningHub) -> None:
        producer = azure_aio.EventHubProducerClient.from_connection_string(
            hub.url(), retry_backoff_factor=0.05
        )
        async with (
            _receiving(hub.url(), lambda event: seen.append(int(event.body_as_str()))),
            producer,
        ):
            for number in range(60):
                await producer.send_event(EventData(f"{number}"), partition_id="0")
                if number in {20, 40}:
                    assert await asyncio.to_thread(hub.reset_all)
            await _until(lambda: 59 in seen)

    with running_hub(tmp_path, partitions=1) as hub:
        asyncio.run(run(hub))
        assert sorted({int(body) for body in hub.bodies()}) == list(range(60))
        assert sorted(set(seen)) == list(range(60))


def test_an_owner_of_a_higher_level_takes_a_partition_over(tmp_path: Path) -> None:
    errors: dict[str, list[Exception]] = {"low": [], "high": [], "late": []}

    async def run(hub: RunningHub) -> None:
        def reads_with(epoch: int) -> bool:
            readers = hub.server.epochs._readers.get(("hub", "$default", "0"), [])
            return [each.epoch for each in readers] == [epoch]

        def receiving(name: str, level: int) -> Any:
            failed = errors[name].append
            return _receiving(hub.url(), lambda _: None, failed=failed, owner_level=level)

        async with receiving("low", 1):
            await _until(lambda: reads_with(1))
            async with receiving("high", 2):
                await _until(lambda: errors["low"] and reads_with(2))
                async with receiving("late", 0):
                    await _until(lambda: errors["late"])
                assert reads_with(2)

    with running_hub(tmp_path) as hub:
        asyncio.run(run(hub))
    assert "amqp:link:stolen" in str(errors["low"][0])
    assert "higher epoch '2' already exists" in str(errors["late"][0])
    assert not errors["high"]


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[RunningHub, dict[str, Any]]]:
    """A hub with TLS at an address of this process's own, and what its clients need to trust it."""
    process = os.getpid()
    address = f"127.{process % 250 + 1}.{process // 250 % 250}.1"
    context, cert = tls_of(tmp_path, address)
    with running_hub(tmp_path, tls=context, host=address, port=TLS_PORT) as hub:
        assert "UseDevelopmentEmulator" not in hub.url()
        yield hub, {"connection_verify": str(cert)}


def test_the_blocking_clients_use_tls(encrypted: tuple[RunningHub, dict[str, Any]]) -> None:
    hub, trust = encrypted
    with EventHubProducerClient.from_connection_string(hub.url(), **trust) as producer:
        producer.send_event(EventData("safe"), partition_id="0")
    found: list[str] = []
    consumer = EventHubConsumerClient.from_connection_string(hub.url(), GROUP, **trust)

    def take(_: Any, event: Any) -> None:
        found.append(event.body_as_str())
        consumer.close()

    with consumer:
        consumer.receive(take, partition_id="0", starting_position="-1")
    assert found == ["safe"]


def test_the_clients_refuse_a_certificate_that_nobody_told_them_to_trust(
    encrypted: tuple[RunningHub, dict[str, Any]],
) -> None:
    hub, _ = encrypted
    how: dict[str, Any] = {"retry_total": 0}
    with (
        EventHubProducerClient.from_connection_string(hub.url(), **how) as producer,
        pytest.raises(ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        producer.send_event(EventData("secret"), partition_id="0")

    async def run() -> None:
        async with azure_aio.EventHubProducerClient.from_connection_string(hub.url(), **how) as it:
            with pytest.raises(ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await it.send_event(EventData("secret"), partition_id="0")

    asyncio.run(run())
    assert hub.bodies() == []


def test_the_asynchronous_clients_use_tls(encrypted: tuple[RunningHub, dict[str, Any]]) -> None:
    hub, trust = encrypted
    found: list[str] = []

    async def run() -> None:
        producer = azure_aio.EventHubProducerClient.from_connection_string(hub.url(), **trust)
        async with producer:
            await producer.send_event(EventData("safe"), partition_id="0")

        def take(event: Any) -> None:
            found.append(event.body_as_str())

        async with _receiving(hub.url(), take, options=trust):
            await _until(lambda: found)

    asyncio.run(run())
    assert found == ["safe"]
