"""What a review found: losses in the middle of a step, resets half done, a sink that is away."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.session.test_pipeline import (
    _break,
    _checkpoints,
    bodies,
    in_background,
    pipeline,
    when,
)
from tests.spark.session.test_pipeline_failures import AT_ONCE, fails_at_42, resets
from tests.support.memory_sink import MemorySink
from tests.support.spark_logs import made, sent

from leasehold.errors import (
    FencedWrite,
    LeaseholdError,
    PositionLost,
    StoreUnavailable,
    StoreUnusable,
    UnknownStream,
    UsageError,
)
from leasehold.events import Event, Start
from leasehold.log import Log
from leasehold.processor import HookEvent, OnTrimmed
from leasehold.spark import Pipeline, PoisonPolicy, SinkPosition
from leasehold.spark.pipeline.events import (
    BatchCommitted,
    BatchPlanned,
    BatchRefused,
    BatchStaged,
    PipelinePartitionClosed,
    PipelinePartitionOpened,
    Waiting,
)
from leasehold.spark.pipeline.owned_partitions import OwnedPartitions


@pytest.mark.spec("S4")
def test_the_rest_of_a_batch_that_was_cut_does_not_outlive_the_loss_of_its_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    closed, calls, lines = threading.Event(), list[int](), list[Pipeline]()

    def fails_then_is_lost(events: DataFrame) -> DataFrame:
        calls.append(events.count())
        if calls[-1] == 100:
            raise ValueError("a bad batch")
        if calls[-1] == 50 and calls.count(50) == 1:
            _break(url)
            assert closed.wait(60)
            shares = lines[0]._owned
            assert shares is not None
            while not shares._new:  # this driver has it back before the staging returns
                threading.Event().wait(0.02)
            raise ValueError("bad, and lost")
        return events

    policy = PoisonPolicy.skip(retries=0, pauses=AT_ONCE)
    line = pipeline(spark, url, sink, when(PipelinePartitionClosed, closed), poison=policy)
    lines.append(line.transform(fails_then_is_lost))
    # The whole batch is tried again after the loss, fails again, and is cut again.
    line.run(until_caught_up=True)
    assert bodies(sink) == list(range(100))


@pytest.mark.spec("S4")
def test_a_start_at_the_end_is_settled_once(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=50), MemorySink()
    pipeline(spark, url, sink, start=Start.latest()).run(until_caught_up=True)
    sent(url, range(50, 100))
    pipeline(spark, url, sink, start=Start.latest()).run(until_caught_up=True)
    assert bodies(sink) == list(range(50, 100))


@pytest.mark.spec("S4")
def test_a_reset_is_carried_out_though_the_sink_was_away_in_the_middle(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    pipeline(spark, url, sink).run(until_caught_up=True)
    resets(url, 90)
    away = [1]
    move = sink.move

    def moves(group: str, places: Mapping[str, SinkPosition]) -> None:
        if away:
            away.pop()
            raise StoreUnavailable("the sink is away")
        move(group, places)

    sink.move = moves  # type: ignore[method-assign]
    waited = threading.Event()
    pipeline(spark, url, sink, when(Waiting, waited)).run(until_caught_up=True)
    assert waited.is_set()
    assert bodies(sink) == sorted([*range(100), *range(90, 100)])
    pipeline(spark, url, sink).run(until_caught_up=True)
    assert len(sink.rows) == 110


@pytest.mark.spec("S4")
def test_a_stream_that_was_made_anew_under_its_name_is_not_taken_for_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    caught, errors = threading.Event(), list[LeaseholdError]()

    def run() -> None:
        try:
            line.run()
        except LeaseholdError as error:
            errors.append(error)

    line = pipeline(spark, url, sink, when(BatchCommitted, caught))
    thread = threading.Thread(target=run)
    thread.start()
    assert caught.wait(60)
    with Log.open(url) as log:
        log.delete("orders")
        log.create("orders", partitions=1)
    sent(url, range(1000, 1150), partitions=1)
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(errors[0], UnknownStream | PositionLost)
    assert bodies(sink) == list(range(100))


@pytest.mark.spec("S4")
def test_a_sink_that_is_away_after_a_refusal_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=100, partitions=1), MemorySink()
    fence, refused = sink.fence, list[BatchRefused]()
    away = [1, 1]

    def disturb(event: HookEvent) -> None:
        if isinstance(event, BatchStaged) and not refused:
            sink.positions["0"] = SinkPosition(position=0, epoch=99)
        if isinstance(event, BatchRefused):
            refused.append(event)
            sink.positions["0"] = SinkPosition(position=0, epoch=1)

    def fences(group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        if refused and away:
            away.pop()
            raise StoreUnavailable("the sink is away")
        return fence(group, epochs)

    sink.fence = fences  # type: ignore[method-assign]
    pipeline(spark, url, sink, disturb).run(until_caught_up=True)
    assert not away
    assert bodies(sink) == list(range(100))


@pytest.mark.spec("S4")
def test_a_stop_does_not_wait_for_ever_for_a_sink_that_is_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=10, partitions=1), MemorySink()

    def away(_batch: object) -> None:
        raise StoreUnavailable("the sink is away")

    sink.before_commit = away
    waits, errors = threading.Event(), list[Exception]()
    line = pipeline(spark, url, sink, when(Waiting, waits), drain_timeout=timedelta(seconds=1))

    def run() -> None:
        try:
            line.run()
        except StoreUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert waits.wait(60)
    line.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert "the sink is away" in str(errors[0])
    assert not sink.rows


@pytest.mark.parametrize("where", ["fence", "stage"])
def test_a_sink_that_can_not_serve_is_told_at_once(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    url, sink = made(tmp_path, events=10, partitions=1), MemorySink()

    def broken(*_: object) -> None:
        raise StoreUnusable("the disk is full")

    setattr(sink, where, broken)
    with pytest.raises(StoreUnusable, match="the disk is full"):
        pipeline(spark, url, sink).run(until_caught_up=True)


@pytest.mark.spec("S4")
@pytest.mark.parametrize("local_events", [1000, 0], ids=["read here", "read by tasks"])
@pytest.mark.parametrize(
    "moment",
    [(BatchCommitted, 0), (BatchPlanned, 1)],
    ids=["committed", "planned"],
)
def test_what_retention_removes_while_the_pipeline_runs_is_passed_over_if_so_chosen(
    spark: SparkSession,
    tmp_path: Path,
    moment: tuple[type[BatchCommitted | BatchPlanned], int],
    local_events: int,
) -> None:
    url, sink = f"sqlite:///{tmp_path}/leases.db", MemorySink()
    with Log.open(url, volumes=[tmp_path / "volume"]) as log:
        log.create("orders", partitions=1, segment_bytes=4096)

        def send(numbers: range) -> None:
            with log.producer("orders") as producer:
                for number in numbers:
                    producer.send(Event(body=str(number).encode().ljust(1000))).result()

        send(range(20))
        first: list[int] = []

        def trim(event: HookEvent) -> None:
            kind, number = moment
            if isinstance(event, kind) and event.number >= number and not first:
                log.trim("orders", execute=True, keep_bytes=8192, past_checkpoints=True)
                first.append(log.info("orders").parts[0].first_sequence)

        line = pipeline(
            spark,
            url,
            sink,
            trim,
            batch_events=2,
            on_trimmed=OnTrimmed.EARLIEST,
            local_events=local_events,
        )
        line.run(until_caught_up=True)
    done = bodies(sink)
    assert len(set(done)) == len(done)
    assert done[:2] == [0, 1]
    assert done[-1] == 19
    assert set(range(first[0], 20)) <= set(done)
    assert len(done) < 20


@pytest.mark.spec("S3")
def test_a_driver_that_waits_for_another_ones_checkpoint_gets_it_later(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark of the last batch failed once; the idle driver writes it again."""
    url, sink = made(tmp_path, events=100, partitions=2), MemorySink()
    mark, failed = OwnedPartitions.write_checkpoints, list[int]()

    def fails_once(self: OwnedPartitions, positions: dict[str, object]) -> object:
        if sink.rows and not failed:
            failed.append(1)
            raise StoreUnavailable("the store is busy")
        return mark(self, positions)  # type: ignore[arg-type]

    monkeypatch.setattr(OwnedPartitions, "write_checkpoints", fails_once)
    committed = threading.Event()
    with in_background(pipeline(spark, url, sink, when(BatchCommitted, committed))):
        assert committed.wait(60)
        pipeline(spark, url, sink, max_partitions=1).run(until_caught_up=True)
    assert failed
    assert _checkpoints(url) == {"0": 49, "1": 49}


@pytest.mark.spec("S4")
def test_a_partition_that_is_taken_over_while_it_is_opened_is_left_to_its_owner(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, sink = made(tmp_path, events=20, partitions=1), MemorySink()
    move, taken = sink.move, list[int]()

    def moves(group: str, places: Mapping[str, SinkPosition]) -> None:
        if not taken:
            taken.append(1)
            _break(url)
            raise FencedWrite("a newer epoch", key="0", epoch=1, reason="fenced")
        move(group, places)

    sink.move = moves  # type: ignore[method-assign]
    pipeline(spark, url, sink).run(until_caught_up=True)
    assert bodies(sink) == list(range(20))


@pytest.mark.spec("B6")
def test_dead_letters_that_are_away_are_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=50, partitions=1), MemorySink()

    class Letters:
        tries = 0

        async def send(self, letters: object) -> None:
            self.tries += 1
            if self.tries == 1:
                raise StoreUnavailable("no place for letters")

        async def close(self) -> None:
            pass

    letters = Letters()
    policy = PoisonPolicy.dead_letter(retries=0, pauses=AT_ONCE)
    line = pipeline(spark, url, sink, poison=policy, dead_letters=letters)
    line.transform(fails_at_42).run(until_caught_up=True)
    assert letters.tries == 2
    assert bodies(sink) == [number for number in range(50) if number != 42]


def test_the_words_on_the_callers_jobs_are_taken_off(spark: SparkSession, tmp_path: Path) -> None:
    url, sink = made(tmp_path, events=5, partitions=1), MemorySink()
    pipeline(spark, url, sink).run(until_caught_up=True)
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_a_pipeline_does_not_write_to_the_stream_it_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = made(tmp_path, events=5, partitions=1)
    sink = MemorySink()
    sink.stream, sink.store = "orders", url  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="without end"):
        pipeline(spark, url, sink).run(until_caught_up=True)


def test_an_error_while_partitions_come_does_not_hold_the_end_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The commit of the batch before fails for good while a partition is being opened."""
    url, sink = made(tmp_path, events=10, partitions=1), MemorySink()
    opened = threading.Event()

    def broken(_batch: object) -> None:
        with Log.open(url) as log:
            log.grow("orders", partitions=2)
        raise StoreUnusable("the disk is full")

    sink.before_commit = broken
    with pytest.raises(StoreUnusable):
        pipeline(spark, url, sink, when(PipelinePartitionOpened, opened)).run()
    assert opened.is_set()
