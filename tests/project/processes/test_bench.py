"""The benchmarks that need processes run: the peer's server, and hosts that are killed."""

from __future__ import annotations

import struct
import threading
from typing import Any

import pytest
from azure.eventhub import EventHubConsumerClient
from bench import processor_cost, processor_group, processor_host, stores
from bench.__main__ import PARTS, part, run
from bench.amqp_peer import peer_server

PATIENCE_S = 120


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nonsense"]) == 2
    assert "balance, stores" in capsys.readouterr().err
    assert [part(name).name for name in PARTS] == list(PARTS)


@pytest.mark.server
def test_postgres_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.databases import GIVEN_SERVER
    from tests.support.postgres import url_of

    monkeypatch.setenv(GIVEN_SERVER, url_of("postgres"))
    (job,) = [each for each in stores.jobs(stores.SMALL, ["postgres"]) if each.what == "postgres"]
    rows = job.run()
    assert len(rows) == 10
    assert all(row.what.startswith("postgres: ") for row in rows)


def test_the_unmodified_client_of_the_peer_receives_from_the_server() -> None:
    events: list[Any] = []
    over = threading.Event()

    def on_event(_: object, event: object) -> None:
        events.append(event)
        if len(events) == 5:
            over.set()

    with peer_server(partitions=2, body_bytes=200, every_ms=2.0) as url:
        client = EventHubConsumerClient.from_connection_string(
            url, consumer_group="$Default", prefetch=2
        )
        thread = threading.Thread(
            target=client.receive,
            args=(on_event,),
            kwargs={"partition_id": "0", "starting_position": "-1"},
        )
        thread.start()
        try:
            assert over.wait(PATIENCE_S)
            assert client.get_partition_ids() == ["0", "1"]
        finally:
            client.close()
            thread.join()
    assert [event.sequence_number for event in events[:5]] == list(range(5))
    bodies = [b"".join(event.body) for event in events]
    assert {len(body) for body in bodies} == {200}
    sent = [struct.unpack_from(">q", body)[0] for body in bodies]
    assert sent == sorted(set(sent))


def test_what_an_event_costs_is_measured_on_both_sides() -> None:
    rows = processor_cost.per_event(partitions=1, batches=1, events=100, peer_events=600, rounds=1)
    assert len(rows) == 2
    for row in rows:
        assert isinstance(row.peer, float)
        assert isinstance(row.ours, float)
        assert row.ratio == pytest.approx(row.peer / row.ours, rel=0.02)


def test_killed_hosts_are_measured_and_nothing_is_lost() -> None:
    longest, middle, twice, lost = processor_group.killed(
        hosts=2, partitions=2, lease_s=3.0, kills=1
    )
    assert isinstance(longest.ours, float)
    assert isinstance(middle.ours, float)
    assert longest.ours >= middle.ours > 0
    assert isinstance(twice.ours, int)
    assert lost.ours == 0


def test_an_idle_host_is_measured() -> None:
    (share,) = processor_host.idle(partitions=2, settle_s=0.0, window_s=0.1)
    assert isinstance(share.ours, float)


def test_the_memory_of_a_slow_host_is_measured() -> None:
    grown, *_, waiting, before, mapped = processor_host.memory(partitions=8, seconds=0.1)
    assert grown.bar == "<= 3 (queues)"
    for row in (waiting, before, mapped):
        assert isinstance(row.ours, int | float)
        assert row.ours > 0
