"""The pipeline in trouble: bad functions, bad events, sinks and checkpoints that contradict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.spark.session.test_pipeline import bodies, pipeline
from tests.support.memory_sink import MemorySink
from tests.support.spark_logs import made, sent

from leasehold.core.backoff import Backoff
from leasehold.errors import BatchFailed, PositionLost, SinkChanged, StoreUnavailable, UsageError
from leasehold.events import Event, Start
from leasehold.log import Log, LogDeadLetters
from leasehold.model import Position
from leasehold.names import partition_key
from leasehold.processor import HookEvent, OnTrimmed
from leasehold.spark import Batch, Pipeline, PipelineOptions, PoisonPolicy, SinkPosition
from leasehold.spark.pipeline.events import BatchCommitted, Waiting
from leasehold.stores import open_store

AT_ONCE = Backoff(base_s=0.0, max_s=0.0)


def fails_at_42(events: DataFrame) -> DataFrame:
    """Raises in a task, where the event is read."""
    number = events.body.cast("string").cast("int")
    return events.withColumn("checked", f.when(number == 42, f.raise_error(f.lit("42!"))))


def resets(url: str, position: int | None) -> None:
    """What ``leasehold checkpoints reset`` does."""

    async def now() -> None:
        async with open_store(url) as store:
            path = None if position is None else Position(sequence_number=position - 1)
            assert not await store.reset({partition_key("orders", "sums", "0"): path})

    anyio.run(now)


@pytest.mark.spec("S4", "B6")
def test_a_function_that_fails_stops_the_pipeline_and_the_range_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    policy = PoisonPolicy.stop(retries=1, pauses=AT_ONCE)
    line = pipeline(spark, url, sink, batch_events=40, poison=policy).transform(fails_at_42)
    with pytest.raises(BatchFailed, match=r"0\[40, 80\).*2 times.*nothing.*42!") as caught:
        line.run(until_caught_up=True)
    assert caught.value.ranges == ("0[40, 80)",)
    assert bodies(sink) == list(range(40))
    assert sink.positions["0"].position == 40


@pytest.mark.spec("S4", "B6")
def test_one_bad_event_goes_to_the_dead_letters_and_all_others_are_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=100, partitions=2), MemorySink()
    with Log.open(url) as log:
        log.create("dead", partitions=1)
        letters = LogDeadLetters(log, "dead")
        policy = PoisonPolicy.dead_letter(retries=0, pauses=AT_ONCE)
        line = pipeline(spark, url, sink, poison=policy, dead_letters=letters)
        totals = line.transform(fails_at_42).run(until_caught_up=True)
        with log.reader("dead", 0) as reader:
            (letter,) = [event for batch in reader.batches() for event in batch]
    assert letter.body == b"42"
    assert letter.properties["leasehold-partition"] == "0"
    assert letter.properties["leasehold-sequence-number"] == "21"
    assert bodies(sink) == [number for number in range(100) if number != 42]
    assert totals.dropped == 1
    assert sink.positions["0"].position == 50


@pytest.mark.spec("B6")
def test_a_function_that_fails_on_no_events_at_all_stops_under_every_policy(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=50), MemorySink()

    def broken(events: DataFrame) -> DataFrame:
        return events.select("no_such_column")

    policy = PoisonPolicy.skip(retries=0, pauses=AT_ONCE)
    with pytest.raises(BatchFailed, match="no_such_column"):
        pipeline(spark, url, sink, poison=policy).transform(broken).run(until_caught_up=True)
    assert not sink.rows
    assert not any(path.position for path in sink.positions.values())


@pytest.mark.spec("B6")
def test_a_function_that_returns_no_frame_is_told_so(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=10), MemorySink()
    policy = PoisonPolicy.stop(retries=0)
    line = pipeline(spark, url, sink, poison=policy).transform(lambda events: events.count())  # type: ignore[arg-type, return-value]
    with pytest.raises(BatchFailed, match=r"once.*returned int, not a DataFrame"):
        line.run(until_caught_up=True)


def test_workers_that_do_not_know_us_are_told_before_any_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, sink = made(tmp_path, events=1, partitions=1), MemorySink()
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other))
    with pytest.raises(UsageError, match="set PYSPARK_PYTHON="):
        pipeline(spark, url, sink).run()


@pytest.mark.spec("S4")
def test_after_a_crash_the_sink_is_believed_where_it_is_ahead(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Committed to the sink, and killed before the checkpoint was written."""
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    sink.positions["0"] = SinkPosition(position=60, epoch=0)
    pipeline(spark, url, sink).run(until_caught_up=True)
    assert bodies(sink) == list(range(60, 100))


@pytest.mark.spec("S4")
def test_a_sink_that_was_made_anew_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = made(tmp_path, events=100, partitions=1)
    pipeline(spark, url, MemorySink()).run(until_caught_up=True)
    other = MemorySink()
    with pytest.raises(SinkChanged, match=r"holds nothing of partition 0 .* up to 99 were"):
        pipeline(spark, url, other).run(until_caught_up=True)
    assert not other.rows


@pytest.mark.spec("S4")
def test_a_sink_that_was_restored_to_an_older_state_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    pipeline(spark, url, sink).run(until_caught_up=True)
    sink.positions["0"] = SinkPosition(position=30, epoch=1)
    sent(url, range(100, 101), partitions=1)  # or there may be nothing to open the sink for
    with pytest.raises(SinkChanged, match="holds events up to 29 of partition 0"):
        pipeline(spark, url, sink).run(until_caught_up=True)


@pytest.mark.spec("S4")
def test_an_operators_reset_is_honoured_once(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    pipeline(spark, url, sink).run(until_caught_up=True)
    resets(url, 90)
    pipeline(spark, url, sink).run(until_caught_up=True)
    assert bodies(sink) == sorted([*range(100), *range(90, 100)])
    pipeline(spark, url, sink).run(until_caught_up=True)
    assert len(sink.rows) == 110


@pytest.mark.spec("B5")
def test_a_sink_of_another_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=10, partitions=1), MemorySink()
    sink.positions["0"] = SinkPosition(position=5, epoch=99)
    with pytest.raises(SinkChanged, match=r"heard of epoch 99 .* store is at 1"):
        pipeline(spark, url, sink).run(until_caught_up=True)
    assert not sink.rows


@pytest.mark.spec("S4")
def test_a_place_beyond_the_end_of_the_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=10, partitions=1), MemorySink()
    sink.positions["0"] = SinkPosition(position=500, epoch=0)
    with pytest.raises(PositionLost, match=r"partition 0 .* go on at event 500.* before event 10"):
        pipeline(spark, url, sink).run(until_caught_up=True)
    assert not sink.rows


@pytest.mark.spec("S4")
def test_events_that_retention_removed_are_a_choice(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with Log.open(url, volumes=[tmp_path / "volume"]) as log:
        log.create("orders", partitions=1, segment_bytes=4096)
        with log.producer("orders") as producer:
            for number in range(20):
                body = str(number).encode()
                producer.send(Event(body=body.ljust(1000))).result()
        log.trim("orders", execute=True, keep_bytes=8192)
        first = log.info("orders").parts[0].first_sequence
    assert 0 < first < 20
    sink = MemorySink()
    sink.positions["0"] = SinkPosition(position=0, epoch=0)
    with pytest.raises(PositionLost, match=rf"events 0 to {first - 1} of partition 0"):
        pipeline(spark, url, sink).run(until_caught_up=True)
    pipeline(spark, url, sink, on_trimmed=OnTrimmed.EARLIEST).run(until_caught_up=True)
    assert bodies(sink) == list(range(first, 20))


@pytest.mark.spec("S1")
def test_a_group_may_begin_at_the_end(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=100), MemorySink()
    pipeline(spark, url, sink, start=Start.latest()).run(until_caught_up=True)
    assert not sink.rows


@pytest.mark.spec("S4")
def test_a_function_instead_of_a_sink_gets_the_epochs_and_the_checkpoint_follows(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = made(tmp_path, events=100, partitions=2)
    seen: list[tuple[int, Batch]] = []

    def note(frame: DataFrame, batch: Batch) -> None:
        seen.append((frame.count(), batch))

    line = Pipeline(spark, "orders", url, "sums").foreach_batch(note)
    line.run(until_caught_up=True)
    assert [count for count, _ in seen] == [100]
    assert [part.epoch for part in seen[0][1].shares] == [1, 1]
    Pipeline(spark, "orders", url, "sums").foreach_batch(note).run(until_caught_up=True)
    assert len(seen) == 1


def test_a_pipeline_needs_a_sink_and_has_only_one(spark: SparkSession, tmp_path: Path) -> None:
    url = made(tmp_path, events=1, partitions=1)
    with pytest.raises(UsageError, match="needs a sink"):
        Pipeline(spark, "orders", url, "sums").run()
    line = Pipeline(spark, "orders", url, "sums").write_to(MemorySink())
    with pytest.raises(UsageError, match="one sink"):
        line.write_to(MemorySink())
    line.run(until_caught_up=True)
    with pytest.raises(UsageError, match="run once"):
        line.run()


@pytest.mark.spec("S4", "B6")
@pytest.mark.parametrize("local_events", [0, 1000], ids=["in tasks", "in the driver"])
def test_a_segment_that_can_not_be_read_is_named_and_no_event_is_dropped(
    spark: SparkSession, tmp_path: Path, local_events: int
) -> None:
    url, sink = made(tmp_path, events=40, partitions=1), MemorySink()
    for path in (tmp_path / "volume").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"k7", b"k8"))
    policy = PoisonPolicy.skip(retries=0, pauses=AT_ONCE)
    line = pipeline(spark, url, sink, poison=policy, local_events=local_events)
    with pytest.raises(BatchFailed, match=r"0\[0, 40\).*no fault of the events") as caught:
        line.run(until_caught_up=True)
    assert caught.value.ranges == ("0[0, 40)",)
    assert not sink.rows
    assert not sink.positions["0"].position


@pytest.mark.spec("S4", "B6")
def test_a_store_that_only_tasks_miss_for_a_while_costs_no_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=40, partitions=1), MemorySink()
    away = tmp_path / "away"
    away.touch()

    def reaches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if away.exists():
            away.unlink()
            raise StoreUnavailable("no answer in 30 s")
        yield from batches

    policy = PoisonPolicy.skip(retries=0, pauses=AT_ONCE)
    waits: list[HookEvent] = []
    line = pipeline(spark, url, sink, waits.append, poison=policy)
    line.transform(lambda events: events.coalesce(1).mapInArrow(reaches, events.schema))
    assert line.run(until_caught_up=True).dropped == 0
    assert [str(each.error) for each in waits if isinstance(each, Waiting)] == ["no answer in 30 s"]
    assert bodies(sink) == list(range(40))


@pytest.mark.spec("B6")
def test_a_function_instead_of_a_sink_is_not_called_to_find_a_bad_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = made(tmp_path, events=4, partitions=1)
    seen: list[tuple[str, list[int]]] = []

    def note(frame: DataFrame, batch: Batch) -> None:
        found = [int(row.body) for row in frame.collect()]
        if 2 in found:
            raise ValueError("2!")
        seen.append((batch.label, found))

    policy = PoisonPolicy.skip(retries=0, pauses=AT_ONCE)
    result: list[HookEvent] = []
    options = PipelineOptions(poison=policy)
    line = Pipeline(spark, "orders", url, "sums", options=options, hooks=[result.append])
    assert line.foreach_batch(note).run(until_caught_up=True).dropped == 1
    assert seen == [("0[0, 2)", [0, 1]), ("0[3, 4)", [3])]
    lags = [each.lag_events for each in result if isinstance(each, BatchCommitted)]
    assert lags == [2, 1, 0]
