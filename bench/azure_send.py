"""Sending to the endpoint with azure-eventhub: what an event costs it, once it is durable.

The client counts an event as sent when the endpoint has accepted it, and the endpoint accepts what
is in the log. At the end the endpoint is killed, and what was accepted is looked for in its log.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from azure.eventhub import EventData, EventHubProducerClient
from bench.azure_hub import BODY_BYTES, endpoint, opened_log, stored
from bench.report import Row, at_most, cost, exactly, rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.azure_hub import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    endpoint_us: float
    client_us: float
    per_s: float


def sending(*, events: int, sizes: Sequence[int]) -> Sequence[Row]:
    """The same events in batches of several sizes."""
    with endpoint() as made:
        with EventHubProducerClient.from_connection_string(made.connection) as client:
            _send(client, made, events=max(sizes), size=max(sizes))  # to be connected, and warm
            by_size = {size: _send(client, made, events=events, size=size) for size in sizes}
        made.kill()
        with opened_log(made.root) as log:
            found = sum(stored(log).values())
    accepted = max(sizes) + events * len(sizes)
    rows = []
    for size, sent in by_size.items():
        bar = at_most(5.0) if size == max(sizes) else None
        what = f"azure-eventhub sends 200-byte events in batches of {size:,}"
        rows += [
            cost(f"{what}: the endpoint's CPU us per event", sent.endpoint_us, bar=bar),
            cost("the same: the client's CPU us per event", sent.client_us),
            rate("the same: events/s", sent.per_s),
        ]
    lost = f"of {accepted:,} accepted events, missing in the log after kill -9 of the endpoint"
    return [*rows, cost(lost, accepted - found, bar=exactly(0))]


def _send(client: EventHubProducerClient, made: Endpoint, *, events: int, size: int) -> _Sent:
    body = bytes(BODY_BYTES)
    before = (made.cpu_s(), time.process_time(), time.monotonic())
    for _ in range(-(-events // size)):
        batch = client.create_batch(partition_id="0")
        for _ in range(size):
            batch.add(EventData(body))
        client.send_batch(batch)
    after = (made.cpu_s(), time.process_time(), time.monotonic())
    taken = [last - first for first, last in zip(before, after, strict=True)]
    return _Sent(
        endpoint_us=taken[0] / events * 1e6,
        client_us=taken[1] / events * 1e6,
        per_s=events / taken[2],
    )
