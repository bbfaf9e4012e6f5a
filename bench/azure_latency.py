"""One event at a time through the endpoint, from just before its sending until it is received.

The sender is azure-eventhub's, in a process of its own, for our receiver and for theirs.
"""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import threading
import time
from functools import partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from bench.azure_hub import BODY_BYTES, endpoint
from bench.report import Row, at_most, cost

from leasehold.azure import EventHubsSource
from leasehold.events import Start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.azure_hub import Endpoint

_PATIENCE_S = 300.0


def latency(*, events: int, every_s: float) -> Sequence[Row]:
    """Both at their defaults, one after the other, each with an endpoint of its own."""
    with endpoint() as hub:
        ours = asyncio.run(_ours_ms(hub, events, every_s))
    with endpoint() as hub:
        theirs = _theirs_ms(hub, events, every_s)
    what = f"an event each {every_s * 1e3:g} ms through the endpoint"
    named = "peer: azure-eventhub, sync receive_batch"
    return [
        cost(f"{what}: p50 ms; {named}", median(ours), median(theirs), at_most(10.0)),
        cost("the same: p99 ms", _p99(ours), _p99(theirs)),
    ]


async def _ours_ms(hub: Endpoint, events: int, every_s: float) -> list[float]:
    taken_ms: list[float] = []
    warm = events // 10
    async with EventHubsSource(hub.address(arrow="off")) as source:
        receiver = await source.receiver(
            "0", group="ours", epoch=1, start=Start.latest(), name="bench"
        )
        sending = asyncio.create_task(asyncio.to_thread(_sent, hub, events + warm, every_s))
        while len(taken_ms) < events + warm:
            batch = await receiver.receive(max_events=100, max_bytes=1 << 20)
            now_ns = time.monotonic_ns()
            taken_ms += [_age_ms(event.body, now_ns) for event in batch]
        await sending
    return taken_ms[warm:]


def _theirs_ms(hub: Endpoint, events: int, every_s: float) -> list[float]:
    taken_ms: list[float] = []
    warm = events // 10
    over = threading.Event()

    def on_batch(_: object, batch: list[Any]) -> None:
        now_ns = time.monotonic_ns()
        taken_ms.extend(_age_ms(b"".join(event.body), now_ns) for event in batch)
        if len(taken_ms) >= events + warm:
            over.set()

    client = EventHubConsumerClient.from_connection_string(hub.connection, consumer_group="theirs")
    receive = partial(client.receive_batch, on_batch, partition_id="0", starting_position="-1")
    thread = threading.Thread(target=receive)
    thread.start()
    _sent(hub, events + warm, every_s)  # its start takes longer than to connect
    assert over.wait(_PATIENCE_S)
    client.close()
    thread.join()
    return taken_ms[warm:]


def _age_ms(body: bytes, now_ns: int) -> float:
    (sent_ns,) = struct.unpack_from(">q", body)
    return float(now_ns - sent_ns) / 1e6


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100)[98]


def _sent(hub: Endpoint, events: int, every_s: float) -> None:
    """In a process of its own: azure-eventhub is no light neighbour."""
    command = [sys.executable, "-m", "bench.azure_latency", str(events), str(every_s)]
    subprocess.run(command, input=hub.connection, text=True, check=True)  # noqa: S603


def _send(connection: str, events: int, every_s: float) -> None:
    with EventHubProducerClient.from_connection_string(connection) as client:
        due_s = 0.0
        for _ in range(events):
            time.sleep(max(due_s - time.monotonic(), 0.0))
            batch = client.create_batch(partition_id="0")
            batch.add(EventData(struct.pack(">q", time.monotonic_ns()) + bytes(BODY_BYTES - 8)))
            client.send_batch(batch)
            due_s = (due_s or time.monotonic()) + every_s  # the first one connects


if __name__ == "__main__":
    _send(sys.stdin.read(), int(sys.argv[1]), float(sys.argv[2]))
