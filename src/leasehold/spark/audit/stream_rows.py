"""The rows of a log sink as an audit sees them: the events of its stream, up to one moment.

The numbers of these events are those of the stream they were written to. Of which event of the
source one was made it says itself, where it does: in its properties ``partition`` and
``sequence_number``, or in the fields of these names in a body of JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from leasehold.clock import SystemClock
from leasehold.errors import StoreUnavailable, Trimmed
from leasehold.sources.ranges import open_ranges
from leasehold.spark.audit.rows import NUMBER, PARTITION
from leasehold.spark.log_writer.publication_ledger import Book
from leasehold.spark.pipeline.frames import Frames
from leasehold.spark.ranges import Range
from leasehold.spark.reading import events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

_CARRIERS = ("properties", "body")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMoment:
    """A stream up to one moment. ``numbered``: its events say of which event they were made."""

    stream: str
    store: str
    ranges: tuple[Range, ...]
    numbered: bool

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows: with the event of each, or else only as many as there are."""
        columns = _CARRIERS if self.numbered else ("offset",)
        frames = Frames(spark, f"log:{self.stream}", self.store, columns=columns)
        frame = frames.of(self.ranges) if any(map(len, self.ranges)) else frames.none()
        if not self.numbered:
            return frame
        return frame.select(
            _said(PARTITION).alias(PARTITION), _said(NUMBER).cast("long").alias(NUMBER)
        )


def stream_moment(stream: str, store: str) -> StreamMoment:
    """The stream as it is now. What was committed before is in it.

    Raises:
        StoreUnavailable: a batch is committed and not published yet.
        Trimmed: retention has removed events, so nobody can tell which there were.
        UnknownStream, StoreUnusable, DataDamaged, VolumeUnusable: it can not be read.
    """
    _check_published(stream, store)
    source = open_ranges(stream, store_url=store, name="audit")
    try:
        ends = source.ends(source.partitions())
    finally:
        source.close()
    gone = sum(each.first for each in ends.values())
    if gone:
        raise Trimmed(
            f"retention has removed {gone:,} events of {stream!r}, and with them rows of the sink: "
            "audit before it does so, or keep them longer",
            earliest=max(each.first for each in ends.values()),
        )
    ranges = tuple(
        Range(partition=part, start=each.first, end=each.next) for part, each in ends.items()
    )
    firsts = [
        Range(partition=each.partition, start=each.start, end=each.start + 1)
        for each in ranges
        if len(each)
    ]
    numbered = any(
        tells_its_event(row["properties"], row["body"])
        for batch in events(f"log:{stream}", store, firsts, _CARRIERS)
        for row in batch.to_pylist()
    )
    return StreamMoment(stream=stream, store=store, ranges=ranges, numbered=numbered)


def tells_its_event(
    properties: Mapping[str, str] | list[tuple[str, str]] | None, body: bytes
) -> bool:
    """Whether an event of a log sink says of which event it was made."""
    found = dict(properties or {})
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        decoded = None
    if isinstance(decoded, dict):
        found = decoded | found
    return all(found.get(name) is not None for name in (PARTITION, NUMBER))


def _said(name: str) -> Column:
    """What an event says of ``name``; null if nothing."""
    in_body = F.get_json_object(F.col("body").cast("string"), f"$.{name}")
    return F.coalesce(F.col("properties").getItem(name), in_body)


def _check_published(stream: str, store: str) -> None:
    """Readers see a part of a batch while it is published: that is no moment to count."""
    book = Book.open(store, clock=SystemClock())
    try:
        left = book.files_left(stream)
    finally:
        book.close()
    if left:
        raise StoreUnavailable(
            f"a batch for {stream!r} is committed and not published yet: wait until its driver is "
            "done, or start a driver, which publishes it; then audit again"
        )
