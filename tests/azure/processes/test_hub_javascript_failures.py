"""The client of npm (@azure/event-hubs), unmodified, when connections break and owners fight."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from tests.support.hub import RunningHub, running_hub
from tests.support.hub_js.child import Child, node_child

READERS = {"plain": "0", "numbered": "1"}  # what the producer sends to partitions 0 and 1
STOLEN = "ReceiverDisconnectedError"  # their word for amqp:link:stolen


@pytest.fixture
def client() -> Iterator[Child]:
    with node_child("client.js") as made:
        yield made


def _seen(client: Child, name: str) -> list[int]:
    """What a reader was given, in order."""
    return list(chain.from_iterable(client.values("seen", name=name)))


def _once(numbers: list[int]) -> list[int]:
    """Without what came again."""
    return list(dict.fromkeys(numbers))


def _stored(hub: RunningHub, partition: int) -> list[int]:
    return [int(body) for body in hub.bodies(partition)]


def _goes_on(client: Child) -> None:
    """Wait until ten more events were sent, and until the readers have seen what came since."""
    sent = max(client.values("sent"), default=0) + 10
    client.wait(sent=sent)
    client.until(lambda: all(sent in _seen(client, name) for name in READERS))


def _begin(client: Child, url: str) -> None:
    """A producer and two readers at work."""
    for name, partition in READERS.items():
        client.do("read", name=name, url=url, partition=partition)
    client.do("produce", url=url)
    _goes_on(client)


def _end(client: Child) -> list[int]:
    """All that was sent: each reader has seen it, and nothing before what was ahead of it."""
    _goes_on(client)
    client.do("enough")
    sent = list(range(client.wait(name="producer", left=True)["count"]))
    client.until(lambda: all(sent[-1] in _seen(client, name) for name in READERS))
    for name in READERS:
        assert _once(_seen(client, name)) == sent
    assert client.values("error", name="producer") == []
    return sent


def test_nothing_is_lost_when_connections_break_and_numbered_events_are_stored_once(
    tmp_path: Path, client: Child
) -> None:
    with running_hub(tmp_path) as hub:
        _begin(client, hub.url())
        assert hub.reset_all() >= 4
        _goes_on(client)
        assert hub.reset_all() >= 4
        sent = _end(client)
        assert _once(_stored(hub, 0)) == sent
        assert _stored(hub, 1) == sent


def test_nothing_is_lost_when_the_hub_ends_and_comes_back(tmp_path: Path, client: Child) -> None:
    with running_hub(tmp_path) as hub:
        port = hub.port
        _begin(client, hub.url())
    with running_hub(tmp_path, port=port) as hub:
        sent = _end(client)
        # What the producer has numbered is known while the hub runs, and not any longer.
        assert [_once(_stored(hub, partition)) for partition in (0, 1)] == [sent, sent]


def test_an_owner_of_a_higher_level_takes_a_partition_over(tmp_path: Path, client: Child) -> None:
    def errors(name: str) -> list[str]:
        return client.values("message", name=name, error=STOLEN)

    with running_hub(tmp_path, partitions=1) as hub:
        hub.store(b"0")

        def read(name: str, level: int | None) -> None:
            client.do("read", name=name, url=hub.url(), partition="0", level=level)

        # This client takes a level of 0 for none, where it has no store for checkpoints.
        for name, level in (("free", None), ("low", 1), ("high", 2)):
            read(name, level)
            client.wait(name=name, seen=[0])
        for name in ("free", "low"):
            client.wait(name=name, error=STOLEN)
            client.wait(name=name, closed="OwnershipLost")
        read("lower", 1)
        read("without", None)
        others = ("free", "low", "lower", "without")
        client.until(lambda: all(errors(name) for name in others))
        assert "New receiver 'nil' with higher epoch of '1'" in errors("free")[0]
        assert "New receiver 'nil' with higher epoch of '2'" in errors("low")[0]
        assert "A receiver with a higher epoch '2' already exists" in errors("lower")[0]
        assert "non-epoch receiver is not allowed" in errors("without")[0]

        hub.store(b"1")
        client.wait(name="high", seen=[1])
        # All others try again and again, and are told so: none gets what is there by now.
        before = {name: len(errors(name)) for name in others}
        client.until(lambda: all(len(errors(name)) > before[name] + 1 for name in others))
        assert [_seen(client, name) for name in others] == [[0], [0], [], []]
        assert errors("high") == []

        # Who was refused is let in when the owner has left.
        for name in ("free", "lower", "without", "high"):
            client.do("leave", name=name)
            client.wait(name=name, left=True)
        client.until(lambda: 1 in _seen(client, "low"))
