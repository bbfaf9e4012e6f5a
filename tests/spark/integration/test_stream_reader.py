"""The stream reader as Spark calls it, on a real log and without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.support.spark_streams import STREAM, Stream, numbered, opened_stream

from leasehold.errors import BeyondEnd, StoreUnavailable, Trimmed, UsageError
from leasehold.events import PartitionEnds
from leasehold.log.source import LogRanges
from leasehold.spark.reading import close_stream
from leasehold.spark.schema import EVENTS
from leasehold.spark.source import LeaseholdSource
from leasehold.spark.source.options import parse
from leasehold.spark.source.stream import EventStream, Offsets
from leasehold.testing.clock import ManualClock

ALL = ReadAllAvailable()


class Impatient(ManualClock):
    """Its time passes as soon as somebody waits for it."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    with opened_stream(tmp_path, segment_bytes=65536) as made:
        yield made
        close_stream(STREAM, made.url)


def reader(stream: Stream, **options: str) -> EventStream:
    given = {"store": stream.url, "path": STREAM} | options
    return EventStream(EVENTS, parse(given))


def read(source: EventStream, start: Offsets, end: Offsets) -> list[tuple[str, int]]:
    """The events of a batch, read by copies of the reader as the tasks have them."""
    found = []
    for task in source.partitions(start, end):
        copy, part = pickle.loads(pickle.dumps((source, task)))
        for batch in copy.read(part):
            rows = batch.select(["partition", "sequence_number"]).to_pylist()
            found += [(row["partition"], row["sequence_number"]) for row in rows]
    return sorted(found)


@pytest.mark.spec("S2")
def test_batches_between_offsets_follow_each_other_without_gap(stream: Stream) -> None:
    stream.send(0, numbered(0, 5))
    stream.send(1, numbered(0, 2))
    source = reader(stream)

    first = source.initialOffset()
    second = source.latestOffset(first, ALL)
    stream.send(0, numbered(5, 3))
    third = source.latestOffset(second, ALL)

    assert (first, second) == ({"0": 0, "1": 0, "2": 0}, {"0": 5, "1": 2, "2": 0})
    assert third == source.reportLatestOffset() == {"0": 8, "1": 2, "2": 0}
    assert read(source, first, second) == [*(("0", n) for n in range(5)), ("1", 0), ("1", 1)]
    assert read(source, second, third) == [("0", n) for n in range(5, 8)]
    assert read(source, third, third) == []
    assert json.loads(json.dumps(third)) == third


def test_a_limit_bounds_each_batch_and_is_shared_by_lag(stream: Stream) -> None:
    stream.send(0, numbered(0, 90))
    stream.send(1, numbered(0, 10))
    source = reader(stream, maxEventsPerTrigger="20")
    limit = source.getDefaultReadLimit()

    end = source.latestOffset(source.initialOffset(), limit)

    assert limit == ReadMaxRows(20)
    assert end == {"0": 18, "1": 2, "2": 0}
    assert source.latestOffset(end, ALL) == {"0": 90, "1": 10, "2": 0}
    assert reader(stream).getDefaultReadLimit() == ALL


def test_each_partition_may_start_elsewhere(stream: Stream) -> None:
    for partition in range(3):
        stream.send(partition, numbered(0, 5))
    source = reader(stream, start="latest", starts='{"0": 3, "1": "earliest"}')

    first = source.initialOffset()
    stream.send(2, numbered(5, 1))

    assert first == {"0": 3, "1": 0, "2": 5}
    assert source.initialOffset() == first
    assert source.latestOffset(first, ALL) == {"0": 5, "1": 5, "2": 6}


def test_only_the_partitions_asked_for_are_read(stream: Stream) -> None:
    for partition in range(3):
        stream.send(partition, numbered(0, 5))
    source = reader(stream, partitions="2,0")

    first = source.initialOffset()

    assert first == {"2": 0, "0": 0}
    assert source.latestOffset(first, ALL) == {"2": 5, "0": 5}
    assert source.latestOffset({"1": 2}, ALL) == {"1": 2, "2": 5, "0": 5}


def test_what_happens_to_a_partition_that_is_not_read_stops_nothing(stream: Stream) -> None:
    for first in range(0, 4000, 500):
        stream.send(0, numbered(first, 500))
    stream.send(1, numbered(0, 5))
    stream.log.trim(STREAM, execute=True, keep_bytes=1)
    for trimmed in ("fail", "earliest"):
        source = reader(stream, partitions="1", onTrimmed=trimmed)
        # Trimmed; trimmed and in the checkpoint; beyond the end; not there any more.
        for left_out in ({}, {"0": 10}, {"2": 9}, {"7": 3}):
            start = {"1": 2} | left_out
            end = source.latestOffset(start, ALL)
            assert end == {"1": 5} | left_out
            assert read(source, start, end) == [("1", n) for n in range(2, 5)]
            assert read(source, end, end) == []
    with pytest.raises(UsageError, match="'orders' has no partition 7"):
        reader(stream, partitions="7").latestOffset({"7": 3}, ALL)


def test_available_now_goes_no_further_than_what_was_there(stream: Stream) -> None:
    stream.send(0, numbered(0, 5))
    source = reader(stream)
    first = source.initialOffset()

    source.prepareForTriggerAvailableNow()
    stream.send(0, numbered(5, 5))
    stream.log.grow(STREAM, partitions=4)
    stream.send(3, numbered(0, 1))
    end = source.latestOffset(first, ALL)

    assert end == {"0": 5, "1": 0, "2": 0}
    assert source.latestOffset(end, ALL) == end


def test_new_partitions_are_read_from_their_first_event(stream: Stream) -> None:
    source = reader(stream, start="latest")
    first = source.initialOffset()

    stream.log.grow(STREAM, partitions=4)
    stream.send(3, numbered(0, 2))
    end = source.latestOffset(first, ALL)

    assert end == first | {"3": 2}
    assert read(source, first, end) == [("3", 0), ("3", 1)]


def test_a_checkpoint_beyond_the_end_is_refused(stream: Stream) -> None:
    stream.send(1, numbered(0, 5))
    source = reader(stream)

    with pytest.raises(BeyondEnd, match=r"event 9 of partition 1 of 'orders'.*\[0, 5\)"):
        source.latestOffset({"0": 0, "1": 9, "2": 0}, ALL)
    with pytest.raises(BeyondEnd, match=r"events 1\[3, 9\) of 'orders' can not be read"):
        read(source, {"1": 3}, {"1": 9})


def test_events_that_retention_removed_stop_the_query_or_are_left_out(stream: Stream) -> None:
    for first in range(0, 4000, 500):
        stream.send(0, numbered(first, 500))
    stream.log.trim(STREAM, execute=True, keep_bytes=1)
    kept = stream.log.info(STREAM).parts[0].first_sequence
    start = {"0": 10, "1": 0, "2": 0}

    with pytest.raises(Trimmed, match=rf"events \[10, {kept}\) of partition 0"):
        reader(stream).latestOffset(start, ALL)

    source = reader(stream, onTrimmed="earliest")
    end = source.latestOffset(start, ReadMaxRows(100))
    assert end["0"] == kept + 100
    assert read(source, start, end) == [("0", n) for n in range(kept, kept + 100)]
    assert reader(stream).initialOffset()["0"] == kept


def test_places_that_are_not_there_are_refused_at_the_start(stream: Stream) -> None:
    stream.send(0, numbered(0, 5))

    with pytest.raises(BeyondEnd, match="seq:9 of partition 0 of 'orders'"):
        reader(stream, partitions="0", start="seq:9").initialOffset()
    with pytest.raises(UsageError, match="'orders' has no partition 7: it has 0 to 2"):
        reader(stream, partitions="0,7").initialOffset()
    with pytest.raises(UsageError, match="'orders' has no partition 9"):
        reader(stream, starts='{"9": 0}').initialOffset()


def test_a_store_that_does_not_answer_is_asked_again_for_a_while(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.send(0, numbered(0, 5))
    ends, troubles = LogRanges.ends, [4]

    def troubled(self: LogRanges, wanted: Sequence[str]) -> Mapping[str, PartitionEnds]:
        if troubles[0]:
            troubles[0] -= 1
            raise StoreUnavailable("no answer")
        return ends(self, wanted)

    monkeypatch.setattr(LogRanges, "ends", troubled)
    clock = Impatient()
    source = EventStream(EVENTS, parse({"store": stream.url, "path": STREAM}), clock=clock)

    assert source.reportLatestOffset() is None
    assert source.latestOffset({}, ALL) == {"0": 5}
    troubles[0] = 10**6
    began_s = clock.boottime_s()
    with pytest.raises(StoreUnavailable):
        source.latestOffset({}, ALL)
    assert 50 < clock.boottime_s() - began_s <= 60


def test_a_commit_of_the_source_does_nothing_and_no_task_reads_nothing(stream: Stream) -> None:
    source = reader(stream)

    source.commit({"0": 0})

    assert list(source.read(InputPartition(None))) == []


def test_a_data_source_gives_the_readers_their_options(stream: Stream) -> None:
    made = LeaseholdSource({"store": stream.url, "path": STREAM, "onTrimmed": "earliest"})

    assert isinstance(made.streamReader(EVENTS), EventStream)
    assert made.schema() == EVENTS
    with pytest.raises(UsageError, match="onTrimmed is for a stream"):
        made.reader(EVENTS)
