"""The pipeline: every event once, whoever comes, goes, is paused, refused or answered too late."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.support.memory_sink import MemorySink
from tests.support.spark_logs import QUICK, made, sent

from leasehold.errors import StoreUnavailable
from leasehold.names import partition_group, partition_key
from leasehold.processor import HookEvent
from leasehold.spark import Pipeline, PipelineOptions, SinkPosition
from leasehold.spark.pipeline.events import (
    BatchCommitted,
    BatchPlanned,
    BatchRefused,
    BatchStaged,
    PipelinePartitionClosed,
    PipelinePartitionOpened,
)
from leasehold.stores import open_store


def bodies(sink: MemorySink) -> list[int]:
    return sorted(int(row["body"]) for row in sink.rows)


def pipeline(
    spark: SparkSession,
    url: str,
    sink: MemorySink,
    *hooks: Callable[[HookEvent], None],
    batch_events: int = 100,
    **options: object,
) -> Pipeline:
    chosen = PipelineOptions(batch_events=batch_events, timing=QUICK, **options)  # type: ignore[arg-type]
    return Pipeline(spark, "log:orders", url, "sums", options=chosen, hooks=hooks).write_to(sink)


@contextmanager
def in_background(line: Pipeline) -> Iterator[threading.Thread]:
    """Run it in a thread; at the end it is stopped in good order."""
    thread = threading.Thread(target=line.run)
    thread.start()
    try:
        yield thread
    finally:
        line.stop()
        thread.join(60)
        assert not thread.is_alive()


def when(kind: type[HookEvent], happened: threading.Event) -> Callable[[HookEvent], None]:
    return lambda event: happened.set() if isinstance(event, kind) else None


@pytest.mark.spec("S1", "S4")
def test_every_event_is_committed_once_in_bounded_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=1000), MemorySink()
    events: list[HookEvent] = []
    totals = pipeline(spark, url, sink, events.append, batch_events=300).run(until_caught_up=True)
    assert bodies(sink) == list(range(1000))
    assert totals.rows == totals.rows_out == 1000
    assert totals.batches == 4
    assert max(each.rows for each in events if isinstance(each, BatchCommitted)) <= 300
    assert {key: each.position for key, each in sink.positions.items()} == dict.fromkeys(
        "0123", 250
    )
    checkpoints = _checkpoints(url)
    assert checkpoints == dict.fromkeys("0123", 249)


@pytest.mark.spec("S1")
def test_the_function_sees_one_batch_and_its_rows_are_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=200), MemorySink()

    def count_by_key(events: DataFrame) -> DataFrame:
        return events.groupBy("key").agg(f.count("*").alias("events"))

    line = pipeline(spark, url, sink, batch_events=100, columns=("key",)).transform(count_by_key)
    line.run(until_caught_up=True)
    sums: Counter[str] = Counter()
    for row in sink.rows:
        sums[row["key"]] += row["events"]
    assert sums == Counter({f"k{number}": 20 for number in range(10)})
    assert len(sink.rows) > 10  # of two batches


@pytest.mark.spec("S1")
def test_a_batch_too_big_for_the_driver_is_read_by_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=500), MemorySink()
    pipeline(spark, url, sink, batch_events=500, local_events=0).run(until_caught_up=True)
    assert bodies(sink) == list(range(500))


@pytest.mark.spec("S1")
def test_an_empty_round_costs_no_job(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=0), MemorySink()
    opened, events = threading.Event(), list[HookEvent]()
    line = pipeline(spark, url, sink, events.append, when(PipelinePartitionOpened, opened))
    with in_background(line):
        assert opened.wait(60)
        before = spark.sparkContext._jsc.sc().dagScheduler().nextJobId()
        threading.Event().wait(0.5)
        after = spark.sparkContext._jsc.sc().dagScheduler().nextJobId()
    assert before == after
    assert not [each for each in events if isinstance(each, BatchPlanned)]


@pytest.mark.spec("S3", "B3")
def test_a_second_driver_takes_its_share_and_nothing_comes_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=400), MemorySink()
    first_works, second_works, shared = threading.Event(), threading.Event(), threading.Event()
    closed: list[PipelinePartitionClosed] = []

    def note(event: HookEvent) -> None:
        if isinstance(event, PipelinePartitionClosed):
            closed.append(event)
            if len(closed) == 2:
                shared.set()

    first = pipeline(spark, url, sink, when(BatchCommitted, first_works), note, batch_events=20)
    second = pipeline(spark, url, sink, when(BatchCommitted, second_works), batch_events=20)
    with in_background(first):
        assert first_works.wait(60)
        with in_background(second):
            assert shared.wait(60)
            assert [each.reason for each in closed] == ["handed_over"] * 2
            sent(url, range(400, 600))
            assert second_works.wait(60)
    count = 600
    pipeline(spark, url, sink, batch_events=1000).run(until_caught_up=True)
    assert bodies(sink) == list(range(count))
    assert len({each.holder for each in sink.history}) >= 2


@pytest.mark.spec("S4", "B5")
def test_a_driver_whose_lease_was_broken_commits_nothing_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The batch is staged, then the sink hears of a newer owner: refused, and done again."""
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    refused = list[BatchRefused]()

    def take_it_away(event: HookEvent) -> None:
        if isinstance(event, BatchStaged) and not refused:
            # A new owner, elsewhere, has fenced the sink; this driver does not know yet.
            sink.positions["0"] = SinkPosition(position=sink.positions["0"].position, epoch=99)
        if isinstance(event, BatchRefused):
            refused.append(event)
            sink.positions["0"] = SinkPosition(position=0, epoch=1)

    pipeline(spark, url, sink, take_it_away).run(until_caught_up=True)
    assert refused[0].by_sink
    assert refused[0].rows == 100
    assert bodies(sink) == list(range(100))
    assert sink.discarded >= 1


@pytest.mark.spec("S4")
def test_a_commit_whose_answer_was_lost_is_not_done_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=300), MemorySink()
    left = [2]

    def lose(_batch: object) -> None:
        if left[0]:
            left[0] -= 1
            raise StoreUnavailable("the answer was lost")

    sink.after_commit = lose
    totals = pipeline(spark, url, sink).run(until_caught_up=True)
    assert bodies(sink) == list(range(300))
    assert totals.rows == 300


@pytest.mark.spec("S4")
def test_a_commit_that_could_not_be_sent_is_sent_again(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=300), MemorySink()
    left = [3]

    def fail(_batch: object) -> None:
        if left[0]:
            left[0] -= 1
            raise StoreUnavailable("no connection")

    sink.before_commit = fail
    pipeline(spark, url, sink).run(until_caught_up=True)
    assert bodies(sink) == list(range(300))


@pytest.mark.spec("S4")
def test_a_job_is_cancelled_when_its_partition_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    begun, tries, threads = tmp_path / "begun", [], list[threading.Thread]()

    def slow(events: DataFrame) -> DataFrame:
        tries.append(1)
        if len(tries) > 1:
            return events

        def endless(batches):  # type: ignore[no-untyped-def]
            begun.touch()
            threading.Event().wait()
            yield from batches

        def take_away() -> None:
            while not begun.exists():
                threading.Event().wait(0.02)
            _break(url)

        taking = threading.Thread(target=take_away)
        taking.start()
        threads.append(taking)
        return events.mapInArrow(endless, events.schema)

    line = pipeline(spark, url, sink, local_events=0).transform(slow)
    line.run(until_caught_up=True)
    threads[0].join(60)
    assert bodies(sink) == list(range(100))
    assert line.totals.refused == 1


@pytest.mark.spec("S1")
def test_the_job_says_in_sparks_pages_what_it_does(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=10, partitions=1), MemorySink()
    seen = []

    def look(events: DataFrame) -> DataFrame:
        seen.append(spark.sparkContext.getLocalProperty("spark.job.description"))
        return events

    pipeline(spark, url, sink).transform(look).run(until_caught_up=True)
    assert seen == ["partition/orders/sums batch 0: 10 events, 0[0, 10)"]


def _checkpoints(url: str) -> dict[str, int]:
    async def read() -> dict[str, int]:
        async with open_store(url) as store:
            found = await store.checkpoints(partition_group("orders", "sums"))
            return {
                key.rpartition("/")[2]: each.position.sequence_number for key, each in found.items()
            }

    return anyio.run(read)


def _break(url: str) -> None:
    key = partition_key("orders", "sums", "0")

    async def now() -> None:
        async with open_store(url) as store:
            found = (await store.resources(partition_group("orders", "sums")))[key]
            await store.break_(key, epoch=found.epoch, after=timedelta(0))

    anyio.run(now)
