"""A stream with known events, for tests that read it with Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from leasehold.events import Event
from leasehold.log import Log, LogOptions, ProducerOptions

SOON = timedelta(seconds=100)
STREAM = "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of a log of its own."""

    log: Log
    url: str
    root: Path

    def send(self, partition: int, *frames: list[Event]) -> None:
        """Store the events, each list as one frame."""
        options = ProducerOptions(linger=timedelta(0), durable=False)
        with self.log.producer(STREAM, options) as producer:
            for frame in frames:
                producer.send(frame, partition=partition).result(SOON.total_seconds())

    def files(self) -> list[Path]:
        """All files of its volume."""
        return [each for each in (self.root / "volume").rglob("*") if each.is_file()]


@contextmanager
def opened_stream(
    root: Path, *, partitions: int = 3, segment_bytes: int = 1 << 20
) -> Iterator[Stream]:
    """Make a log with one empty stream."""
    url = f"sqlite:///{root}/log.db"
    options = LogOptions(run_monitor=False)
    with Log.open(url, volumes=[root / "volume"], options=options) as log:
        log.create(STREAM, partitions=partitions, segment_bytes=segment_bytes)
        yield Stream(log=log, url=url, root=root)


def numbered(first: int, count: int, *, keys: int = 3) -> list[Event]:
    """Events whose bodies are JSON with their numbers; every ``keys``-th has no key."""
    return [
        Event(
            body=f'{{"n": {number}, "name": "e{number}"}}'.encode(),
            key=None if number % keys == 0 else f"k{number % keys}",
            properties={"n": str(number)} if number % 2 else {},
        )
        for number in range(first, first + count)
    ]
