"""Streams of the embedded log for the tests of Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from leasehold import LeaseTiming
from leasehold.log import Log

# What is lost is learned of soon, and nothing is lost because the machine is busy.
QUICK = LeaseTiming.of(lease=timedelta(seconds=60), renew_interval=timedelta(seconds=0.5))


def made(directory: Path, *, events: int, partitions: int = 4, stream: str = "orders") -> str:
    """The URL of a store with a stream; event n has the body "n" and the key "k<n % 10>"."""
    url = f"sqlite:///{directory}/leases.db"
    with Log.open(url, volumes=[directory / "volume"]) as log:
        log.create(stream, partitions=partitions)
    sent(url, range(events), partitions=partitions, stream=stream)
    return url


def sent(url: str, numbers: range, *, partitions: int = 4, stream: str = "orders") -> None:
    """Send events with these bodies, in turn to each partition."""
    with Log.open(url) as log, log.producer(stream) as producer:
        futures = []
        for partition in range(partitions):
            mine = numbers[partition::partitions]
            if mine:
                table = pa.table(
                    {
                        "key": [f"k{number % 10}" for number in mine],
                        "body": [str(number).encode() for number in mine],
                    }
                )
                futures.append(producer.send(table, partition=partition))
        for future in futures:
            future.result()
