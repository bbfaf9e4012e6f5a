"""Unmodified clients of Event Hubs (azure-eventhub, sync and aio) against a hub."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub import aio as azure_aio
from azure.eventhub.exceptions import AuthenticationError, ConnectError, EventHubError
from tests.support.hub import RunningHub, running_hub, until

from leasehold.events import partition_of

# The clients leave sockets open when they are closed: they are collected while that is allowed.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::ResourceWarning")]
GROUP = "$Default"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub"), partitions=4) as running:
        running.log.create("other", partitions=1)
        yield running


def _producer(url: str, **options: Any) -> EventHubProducerClient:
    return EventHubProducerClient.from_connection_string(url, **options)


@contextmanager
def _receiving(
    url: str,
    take: Callable[[Any, Any], None],
    *,
    failed: Callable[[Any], None] | None = None,
    **how: Any,
) -> Iterator[EventHubConsumerClient]:
    """A consumer whose ``receive`` runs in a thread until the block ends."""
    group = how.pop("consumer_group", GROUP)
    client = EventHubConsumerClient.from_connection_string(url, consumer_group=group)
    told = failed or (lambda _: None)

    def run() -> None:
        client.receive(on_event=take, on_error=lambda _, error: told(error), **how)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield client
    finally:
        client.close()
        thread.join(90)
        assert not thread.is_alive()


def _received(url: str, count: int, **how: Any) -> list[EventData]:
    found: list[EventData] = []
    with _receiving(url, lambda _, event: found.append(event), **how):
        until(lambda: len(found) >= count)
    return found


def test_a_producer_sends_by_partition_by_key_and_in_turn(hub: RunningHub) -> None:
    with _producer(hub.url()) as producer:
        about = producer.get_eventhub_properties()
        assert about["eventhub_name"] == "hub"
        assert about["partition_ids"] == ["0", "1", "2", "3"]
        assert producer.get_partition_properties("1")["is_empty"]

        batch = producer.create_batch(partition_id="1")
        rich = EventData(b"rich")
        rich.properties = {"number": 5, "text": "t", "bytes": b"\x00"}
        rich.content_type, rich.message_id, rich.correlation_id = "text/plain", "id", "other"
        for event in (EventData("one"), rich):
            batch.add(event)
        producer.send_batch(batch)
        producer.send_event(EventData(bytes(900_000)), partition_id="1")

        keyed = producer.create_batch(partition_key="a key")
        for number in range(300):
            keyed.add(EventData(f"{number}"))
        producer.send_batch(keyed)

        before = Counter({number: len(hub.events(number)) for number in range(4)})
        for _ in range(8):
            producer.send_event(EventData(b"in turn"))
        after = Counter({number: len(hub.events(number)) for number in range(4)})
        assert set((after - before).values()) == {2}

        about_one = producer.get_partition_properties("1")
        last = hub.events(1)[-1]
        assert about_one["last_enqueued_sequence_number"] == last.sequence_number
        assert about_one["last_enqueued_offset"] == str(last.offset)
        assert not about_one["is_empty"]

    partition = partition_of("a key", 4)
    stored = [event.body for event in hub.events(partition) if event.key == "a key"]
    assert stored == [f"{number}".encode() for number in range(300)]

    first, second, third = _received(hub.url(), 3, partition_id="1", starting_position="-1")[:3]
    assert (first.body_as_str(), first.sequence_number) == ("one", 0)
    assert second.properties == {b"number": 5, b"text": b"t", b"bytes": b"\x00"}
    assert (second.content_type, second.message_id) == ("text/plain", "id")
    assert second.correlation_id == "other"
    assert b"".join(third.body) == bytes(900_000)  # type: ignore[arg-type]


def test_a_consumer_begins_at_every_kind_of_place(hub: RunningHub) -> None:
    with _producer(hub.url("other")) as producer:
        batch = producer.create_batch()
        for number in range(5):
            batch.add(EventData(f"{number}"))
        producer.send_batch(batch)
    third = hub.events(0, "other")[2]
    assert third.enqueued_at is not None
    url, only = hub.url("other"), {"partition_id": "0"}

    wanted: dict[Any, str] = {
        ("-1", False): "0",
        (str(third.offset), False): "3",
        (str(third.offset), True): "2",
        (2, False): "3",
        (2, True): "2",
        (datetime(2020, 1, 1, tzinfo=UTC), False): "0",
    }

    def first(position_of: tuple[Any, bool]) -> str:
        position, inclusive = position_of
        how = {"starting_position": position, "starting_position_inclusive": inclusive}
        return _received(url, 1, consumer_group=f"g{len(str(position_of))}", **how, **only)[
            0
        ].body_as_str()

    with ThreadPoolExecutor(len(wanted)) as threads:
        assert dict(zip(wanted, threads.map(first, wanted), strict=True)) == wanted


def test_a_consumer_hears_of_the_end_and_of_what_comes(hub: RunningHub) -> None:
    seen: list[tuple[str, Any]] = []

    def take(context: Any, event: Any) -> None:
        seen.append((event.body_as_str(), context.last_enqueued_event_properties))

    how: dict[str, Any] = {"partition_id": "2", "starting_position": "@latest"}
    with _receiving(hub.url(), take, track_last_enqueued_event_properties=True, **how):
        until(lambda: ("hub", "$default", "2") in hub.server.epochs._readers)
        receipt = hub.store(b"news", partition=2)
        until(lambda: seen)
    [(body, end)] = seen
    assert body == "news"
    assert end["sequence_number"] == receipt.first_sequence


@pytest.mark.soak  # the asynchronous client does the same: this one spins while it waits
def test_an_owner_of_a_higher_level_takes_a_partition_over(hub: RunningHub) -> None:
    errors: dict[str, list[Any]] = {"low": [], "high": [], "late": []}
    key = ("hub", "$default", "3")

    def reads_with(epoch: int) -> bool:
        return [each.epoch for each in hub.server.epochs._readers.get(key, [])] == [epoch]

    def receiving(name: str, level: int) -> Any:
        return _receiving(
            hub.url(),
            lambda *_: None,
            failed=errors[name].append,
            partition_id="3",
            owner_level=level,
        )

    with receiving("low", 1):
        until(lambda: reads_with(1))
        with receiving("high", 2):
            until(lambda: errors["low"])
            until(lambda: reads_with(2))
            with receiving("late", 0):
                until(lambda: errors["late"])
            assert reads_with(2)
    assert "amqp:link:stolen" in str(errors["low"][0])
    assert "higher epoch '2' already exists" in str(errors["late"][0])
    assert not errors["high"]


def test_an_unknown_hub_and_a_wrong_key_are_told_apart(hub: RunningHub) -> None:
    unknown = hub.url("nothing")
    wrong = hub.url().replace("a-key-for-tests", "another-key")
    for url, expected, words in (
        (unknown, ConnectError, "404.*'nothing' could not be found: a hub is a stream"),
        (wrong, AuthenticationError, "[Aa]uthenticat|InvalidSignature"),
    ):
        with _producer(url, retry_total=0) as producer:
            with pytest.raises(expected, match=words):
                producer.get_eventhub_properties()
            with pytest.raises(EventHubError):
                producer.send_event(EventData("x"))


def test_nothing_is_lost_when_connections_break(tmp_path: Path) -> None:
    with running_hub(tmp_path, partitions=1) as hub:
        seen: list[int] = []
        how: dict[str, Any] = {"partition_id": "0", "starting_position": "-1"}
        with (
            _receiving(hub.url(), lambda _, event: seen.append(int(event.body_as_str())), **how),
            _producer(hub.url(), retry_backoff_factor=0.05) as producer,
        ):
            for number in range(60):
                producer.send_event(EventData(f"{number}"), partition_id="0")
                if number in {20, 40}:
                    assert hub.reset_all()
            until(lambda: 59 in seen)
        stored = [int(body) for body in hub.bodies()]
        assert sorted(set(stored)) == list(range(60))
        assert sorted(set(seen)) == list(range(60))


def test_the_asynchronous_clients_send_and_receive(hub: RunningHub) -> None:
    async def run() -> list[str]:
        producer = azure_aio.EventHubProducerClient.from_connection_string(hub.url())
        async with producer:
            batch = await producer.create_batch(partition_id="0")
            for number in range(50):
                batch.add(EventData(f"async {number}"))
            await producer.send_batch(batch)
        found: list[str] = []
        over = asyncio.Event()
        consumer = azure_aio.EventHubConsumerClient.from_connection_string(
            hub.url(), consumer_group="aio"
        )

        async def take(_: Any, events: Any) -> None:
            found.extend(event.body_as_str() for event in events)
            if "async 49" in found:
                over.set()

        async with consumer:
            receiving = asyncio.create_task(
                consumer.receive_batch(take, partition_id="0", starting_position="-1")
            )
            await asyncio.wait_for(over.wait(), 90)
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
        return [body for body in found if body.startswith("async")]

    assert asyncio.run(run()) == [f"async {number}" for number in range(50)]
