"""A log on disk, batches for it staged without Spark, and what is in it afterwards."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from leasehold.clock import new_token
from leasehold.events import Start
from leasehold.log import Log
from leasehold.spark import BatchPart
from leasehold.spark.log_writer.publication import CommitRequest
from leasehold.spark.log_writer.publisher import Publisher
from leasehold.spark.log_writer.staged_rows import StagedFile, StagingPlan, stage
from leasehold.spark.reading import Range

STREAM = "orders"
PARTITIONS = 3
GROUP = "partition/clicks/copy"


def make_log(url: str, directory: Path, *, stream: str = STREAM) -> None:
    """A stream with three partitions, on one volume."""
    with Log.open(url, volumes=[directory / "volume"]) as log:
        log.create(stream, partitions=PARTITIONS)


def table(name: str, count: int, *, start: int = 0) -> pa.RecordBatch:
    """Events ``<name>:<number>`` with seven keys."""
    numbers = range(start, start + count)
    return pa.RecordBatch.from_pydict(
        {
            "key": [f"k{number % 7}" for number in numbers],
            "body": [f"{name}:{number}".encode() for number in numbers],
        }
    )


def staged(plan: StagingPlan, name: str, count: int, *, tasks: int = 2) -> list[StagedFile]:
    """The events of a batch as so many tasks stage them."""
    size = -(-count // tasks)
    files = (
        stage(
            [table(name, min(size, count - task * size), start=task * size)],
            plan,
            task=task,
            token=new_token(),
        )
        for task in range(tasks)
    )
    return [each for each in files if each is not None]


def batch_part(part: str, start: int, end: int, epoch: int = 1) -> BatchPart:
    return BatchPart(range=Range(partition=part, start=start, end=end), epoch=epoch)


def commit_request(
    *parts: BatchPart, producer: str = "a", sink: str = "sink/test", **more: object
) -> CommitRequest:
    fields: dict[str, object] = {
        "sink": sink,
        "group": GROUP,
        "producer": producer,
        "parts": parts,
        "holder": "driver-1",
        "began_at": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
    }
    return CommitRequest(**fields | more)  # type: ignore[arg-type]


def query_request(
    batch: int, *, epoch: int = 0, checkpoint: str = "query", **more: object
) -> CommitRequest:
    """The request of a streaming query for its batch of this number."""
    fields = {"sink": "query/test", "group": "query/test", "producer": "", "by_number": True}
    return commit_request(batch_part(checkpoint, batch, batch + 1, epoch), **fields | more)  # type: ignore[arg-type]


def bodies(url: str, stream: str = STREAM) -> list[str]:
    """All events of the stream, partition by partition."""
    found = []
    with Log.open(url) as log:
        for number in range(log.stream(stream).partitions):
            with log.reader(stream, number, start=Start.earliest()) as reader:
                found += [event.body.decode() for batch in reader.batches() for event in batch]
    return found


def counted(url: str, stream: str = STREAM) -> dict[str, int]:
    """How many different events of each batch there are; fails if one is there twice."""
    found = bodies(url, stream)
    twice = [body for body, count in Counter(found).items() if count > 1]
    assert not twice, f"{len(twice)} events are stored twice: {twice[:5]}"
    return dict(Counter(body.partition(":")[0] for body in found))


def left_over(directory: Path) -> list[Path]:
    """The files that are still staged."""
    return sorted(directory.rglob("*.arrow"))


def publisher(url: str, *, stream: str = STREAM, **more: object) -> Publisher:
    return Publisher.open(stream, url, **more)  # type: ignore[arg-type]
