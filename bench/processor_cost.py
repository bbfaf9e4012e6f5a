"""What an event costs on its way to a handler, and how long it takes: ours and azure-eventhub's."""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from azure.eventhub import EventHubConsumerClient
from bench.amqp_peer import peer_server
from bench.processor_scene import BODY_BYTES, PATIENCE_S, STREAM, child, scene, told
from bench.report import Bar, Row, at_most, cost

from leasehold.events import Event
from leasehold.log import LogSource, ProducerOptions
from leasehold.processor import EventProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leasehold.events import EventBatch

_ROWS = 1_000
_PEER = "$Default"


@dataclass(slots=True)
class _Meter:
    """Processor time of the whole process, from one number of events to another."""

    first: int
    last: int
    done: Callable[[], object]
    _marks: list[tuple[int, float]] = field(default_factory=list)

    def at(self, seen: int) -> None:
        if not self._marks and seen >= self.first:
            self._marks.append((seen, time.process_time()))
        elif len(self._marks) == 1 and seen >= self.last:
            self._marks.append((seen, time.process_time()))
            self.done()

    def us(self) -> float:
        (first, first_s), (last, last_s) = self._marks
        return (last_s - first_s) / (last - first) * 1e6


def per_event(
    *, partitions: int, batches: int, events: int, peer_events: int, rounds: int
) -> Sequence[Row]:
    """By turns, so that whatever else the machine does hits both alike."""
    by_way: dict[str, list[float]] = {way: [] for way in ("batch", "event", "batches", "events")}
    with (
        scene(partitions=partitions) as made,
        peer_server(partitions=partitions, body_bytes=BODY_BYTES) as peer,
    ):
        total = made.fill(partitions=partitions, batches=batches, rows=_ROWS)
        for number in range(rounds):
            by_way["batch"].append(asyncio.run(_on_batch(made.url, f"batch{number}", total)))
            by_way["batches"].append(_peer_us(peer, peer_events, in_batches=True))
            by_way["event"].append(
                asyncio.run(_on_event(made.url, f"event{number}", min(events, total)))
            )
            by_way["events"].append(_peer_us(peer, peer_events, in_batches=False))
    return [
        _ratio_row(
            f"on_batch, Arrow, 200-byte events, {partitions} partitions: CPU us per event; peer: "
            "azure-eventhub, receive_batch",
            by_way["batch"],
            by_way["batches"],
            Bar(words="<= 1/50", least=50.0),
        ),
        _ratio_row(
            "on_event, in threads: CPU us per event; peer: azure-eventhub, receive",
            by_way["event"],
            by_way["events"],
            Bar(words="<= 1/5", least=5.0),
        ),
    ]


async def _on_batch(url: str, group: str, total: int) -> float:
    over = asyncio.Event()
    meter = _Meter(first=0, last=total, done=over.set)
    seen = 0

    async def on_open(_: object) -> None:
        meter.at(0)

    async def on_batch(_: object, batch: EventBatch) -> None:
        nonlocal seen
        seen += len(batch)
        meter.at(seen)

    async with LogSource.open(url, STREAM) as source:
        async with EventProcessor(source, url, group, on_batch=on_batch, on_partition_open=on_open):
            await over.wait()
        return meter.us()


async def _on_event(url: str, group: str, total: int) -> float:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    meter = _Meter(first=0, last=total, done=lambda: loop.call_soon_threadsafe(over.set))
    numbers = itertools.count(1)

    async def on_open(_: object) -> None:
        meter.at(0)

    def on_event(_: object, event: Event) -> None:
        del event
        meter.at(next(numbers))

    async with LogSource.open(url, STREAM) as source:
        async with EventProcessor(source, url, group, on_event=on_event, on_partition_open=on_open):
            await over.wait()
        return meter.us()


# --------------------------------------------------------------------- peer


@contextmanager
def _receiving(url: str, **how: Any) -> Iterator[None]:
    """The peer's client at its defaults, which receives in a thread meanwhile."""
    client = EventHubConsumerClient.from_connection_string(url, consumer_group=_PEER)
    receive = client.receive_batch if "on_event_batch" in how else client.receive
    thread = threading.Thread(target=partial(receive, starting_position="-1", **how))
    thread.start()
    try:
        yield
    finally:
        client.close()
        thread.join()


def _peer_us(url: str, events: int, *, in_batches: bool) -> float:
    over = threading.Event()
    meter = _Meter(first=events // 10, last=events, done=over.set)
    numbers = itertools.count(1)
    seen = 0

    def on_event(_: object, event: object) -> None:
        del event
        meter.at(next(numbers))

    def on_event_batch(_: object, batch: list[object]) -> None:
        nonlocal seen
        seen += len(batch)
        meter.at(seen)

    how = {"on_event_batch": on_event_batch} if in_batches else {"on_event": on_event}
    with _receiving(url, **how):
        assert over.wait(PATIENCE_S)
    return meter.us()


# ------------------------------------------------------------------ latency


def latency(*, events: int, every_s: float) -> Sequence[Row]:
    """One event at a time, from just before its sending to the handler, by one clock."""
    ours = _ours_ms(events, every_s, linger=timedelta(0))
    gathered = _ours_ms(events, every_s, linger=ProducerOptions().linger)
    peer = _peer_ms(events, every_s)
    plain = _plain_ms(events, every_s)
    what = f"an event each {every_s * 1e3:g} ms, sent without linger, to its handler"
    named = "peer: azure-eventhub, receive, at its defaults"
    return [
        cost(f"{what}: p50 ms; {named}", median(ours), median(peer), at_most(5.0)),
        cost("the same: p99 ms", _p99(ours), _p99(peer), at_most(25.0)),
        cost("the same with the producer's default linger: p50 ms", median(gathered)),
        cost("the same: p99 ms", _p99(gathered)),
        cost("only a write and fsync of a file, at that pace: p50 ms", median(plain)),
        cost("the same: p99 ms", _p99(plain)),
    ]


def _ours_ms(events: int, every_s: float, *, linger: timedelta) -> list[float]:
    with scene(partitions=1) as made:
        warm = events // 10
        with (
            child("latency", made.url, f"--events={events + warm}") as process,
            made.log.producer(STREAM, ProducerOptions(linger=linger)) as producer,
        ):
            assert told(process) == "opened"
            for _ in _paced(events + warm, every_s):
                stamp = struct.pack(">q", time.monotonic_ns())
                producer.send(Event(body=stamp + bytes(BODY_BYTES - 8)))
            taken_ms: list[float] = told(process)
    return taken_ms[warm:]


def _plain_ms(events: int, every_s: float) -> list[float]:
    """What the machine takes to store so much, to compare with."""
    taken_ms: list[float] = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in _paced(events, every_s):
            began_s = time.monotonic()
            file.write(bytes(BODY_BYTES))
            os.fsync(file.fileno())
            taken_ms.append((time.monotonic() - began_s) * 1e3)
    return taken_ms


def _paced(count: int, every_s: float) -> Iterator[int]:
    due_s = time.monotonic()
    for number in range(count):
        due_s += every_s
        time.sleep(max(due_s - time.monotonic(), 0.0))
        yield number


def _peer_ms(events: int, every_s: float) -> list[float]:
    taken_ms: list[float] = []
    over = threading.Event()
    warm = events // 10

    def on_event(_: object, event: Any) -> None:
        (sent_ns,) = struct.unpack_from(">q", b"".join(event.body))
        taken_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
        if len(taken_ms) == events + warm:
            over.set()

    with (
        peer_server(partitions=1, body_bytes=BODY_BYTES, every_ms=every_s * 1e3) as url,
        _receiving(url, on_event=on_event),
    ):
        assert over.wait(PATIENCE_S)
    return taken_ms[warm : warm + events]


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100)[98]


def _ratio_row(what: str, ours: list[float], peer: list[float], bar: Bar) -> Row:
    """Less is better; the ratio is the median of those of neighbouring measurements."""
    ratio = median(other / one for one, other in zip(ours, peer, strict=True))
    return Row(
        what=what,
        ours=float(f"{median(ours):.3g}"),
        peer=float(f"{median(peer):.3g}"),
        ratio=float(f"{ratio:.3g}"),
        bar=bar.words,
        met=bar.met(ratio),
    )
