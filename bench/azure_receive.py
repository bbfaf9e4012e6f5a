"""Receiving from an Event Hubs endpoint: our receiver and azure-eventhub's, on the same events.

The endpoint runs in a process of its own, over a log with a backlog; both clients read all of it in
this process, by turns, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from azure.eventhub import EventHubConsumerClient
from bench.azure_hub import endpoint
from bench.report import Bar, Row

from leasehold.azure import EventHubsSource
from leasehold.events import Start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure.eventhub import EventData
    from bench.azure_hub import Endpoint

_PATIENCE_S = 300.0
_FASTER = Bar(words=">= 8 times", least=8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    cpu_us: float
    per_s: float


def receiving(*, events: int, theirs: int, rounds: int) -> Sequence[Row]:
    """What an event costs the process that receives it, and how many come in a second."""
    plain: list[_Cost] = []
    arrow: list[_Cost] = []
    peer: list[_Cost] = []
    with endpoint(events=events) as hub:
        for _ in range(rounds):
            plain.append(asyncio.run(_ours(hub, events, arrow="off")))
            peer.append(_theirs(hub, theirs))
            arrow.append(asyncio.run(_ours(hub, events, arrow="on")))
    named = "peer: azure-eventhub, sync receive_batch at its defaults"
    return [
        _times("receive 200-byte events over plain AMQP: CPU us per event; " + named, plain, peer),
        _faster("the same: events/s", plain, peer),
        _times("receive the same as Arrow batches: CPU us per event", arrow, peer),
        _faster("the same: events/s", arrow, peer),
    ]


async def _ours(hub: Endpoint, events: int, *, arrow: str) -> _Cost:
    async with EventHubsSource(hub.address(arrow=arrow)) as source:
        receiver = await source.receiver(
            "0", group="ours", epoch=1, start=Start.earliest(), name="bench"
        )
        seen, first = 0, 0
        began = (0.0, 0.0)
        while seen < events:
            seen += len(await receiver.receive(max_events=10_000, max_bytes=8 << 20))
            if not first:  # the first ones came while it was being opened
                first, began = seen, (time.process_time(), time.monotonic())
        ended = (time.process_time(), time.monotonic())
    return _cost(began, ended, seen - first)


def _theirs(hub: Endpoint, events: int) -> _Cost:
    marks: list[tuple[int, float, float]] = []
    seen = 0
    over = threading.Event()

    def on_batch(_: object, batch: list[EventData]) -> None:
        nonlocal seen
        seen += len(batch)
        if not marks or (seen >= events and len(marks) == 1):
            marks.append((seen, time.process_time(), time.monotonic()))
        if len(marks) == 2:
            over.set()

    client = EventHubConsumerClient.from_connection_string(hub.connection, consumer_group="theirs")
    receive = partial(client.receive_batch, on_batch, partition_id="0", starting_position="-1")
    thread = threading.Thread(target=receive)
    thread.start()
    assert over.wait(_PATIENCE_S)
    client.close()
    thread.join()
    (first, *began), (last, *ended) = marks
    return _cost((began[0], began[1]), (ended[0], ended[1]), last - first)


def _cost(began: tuple[float, float], ended: tuple[float, float], events: int) -> _Cost:
    return _Cost(cpu_us=(ended[0] - began[0]) / events * 1e6, per_s=events / (ended[1] - began[1]))


def _times(what: str, ours: list[_Cost], peer: list[_Cost]) -> Row:
    """The ratio is the median of those of neighbouring measurements."""
    ratio = median(other.cpu_us / one.cpu_us for one, other in zip(ours, peer, strict=True))
    one, other = median(each.cpu_us for each in ours), median(each.cpu_us for each in peer)
    return _row(what, one, other, ratio)


def _faster(what: str, ours: list[_Cost], peer: list[_Cost]) -> Row:
    ratio = median(one.per_s / other.per_s for one, other in zip(ours, peer, strict=True))
    one, other = median(each.per_s for each in ours), median(each.per_s for each in peer)
    return _row(what, one, other, ratio)


def _row(what: str, ours: float, peer: float, ratio: float) -> Row:
    return Row(
        what=what,
        ours=float(f"{ours:.3g}"),
        peer=float(f"{peer:.3g}"),
        ratio=float(f"{ratio:.3g}"),
        bar=_FASTER.words,
        met=_FASTER.met(ratio),
    )
