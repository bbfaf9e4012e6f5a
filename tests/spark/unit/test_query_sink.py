"""A sink behind foreachBatch, and the fence before it: without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from leasehold.clock import SystemClock, system_random
from leasehold.errors import (
    BatchFailed,
    FencedWrite,
    LeaseLost,
    SinkChanged,
    StoreUnavailable,
    UsageError,
)
from leasehold.jobs import Reservation, try_reserve
from leasehold.spark import Batch, Commit, Fence, SinkPosition, Staged, Written
from leasehold.spark.standby_query.fence import QuerySink
from leasehold.spark.standby_query.location import canonical, job_name
from leasehold.stores.memory import MemoryStore

LEASE = timedelta(seconds=30)


class ListSink:
    """Keeps its rows in a list, and the contract of a sink."""

    name = "list"
    atomic = True

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.positions: dict[tuple[str, str], SinkPosition] = {}
        self.discarded: list[object] = []
        self.trouble: list[Exception] = []
        self.does_it_anyway = False
        self.before_commit: Callable[[], object] = lambda: None
        self.closed = False

    def open(self, spark: object) -> None: ...

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        known = {}
        for partition, epoch in epochs.items():
            sunk = self.positions.get((group, partition), SinkPosition())
            known[partition] = sunk
            self.positions[group, partition] = SinkPosition(
                position=sunk.position, epoch=max(epoch, sunk.epoch)
            )
        return known

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None: ...

    def stage(self, frame: Any, batch: Batch) -> Staged:
        return Staged(frame)

    def commit(self, staged: Staged, batch: Batch) -> Written:
        self.before_commit()
        trouble = self.trouble.pop(0) if self.trouble else None
        if trouble is None or self.does_it_anyway:
            self._commit(staged, batch)
        if trouble is not None:
            raise trouble
        return Written(rows=len(staged.inside))

    def _commit(self, staged: Staged, batch: Batch) -> None:
        (part,) = batch.shares
        path = (batch.group, part.range.partition)
        known = self.positions.get(path, SinkPosition())
        if known.epoch > part.epoch:
            raise FencedWrite("an older epoch", key=part.range.partition, epoch=part.epoch)
        if known.position == part.range.end and known.epoch == part.epoch:
            return
        if known.position not in (None, part.range.start):
            raise SinkChanged(f"at {known.position}")
        self.rows += staged.inside
        self.positions[path] = SinkPosition(position=part.range.end, epoch=part.epoch)

    def discard(self, staged: Staged) -> None:
        self.discarded.append(staged.inside)

    def commits(self, group: str) -> Iterator[Commit]:
        return iter(())

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


def reserved(store: MemoryStore, name: str = "rows") -> Reservation:
    answer = try_reserve(name, store=store, lease=LEASE)
    assert isinstance(answer, Reservation)
    return answer


def behind(sink: ListSink, reservation: Reservation, query: str | None = "q1") -> QuerySink:
    return QuerySink(
        sink,
        reservation=reservation,
        query_id=lambda: query,
        clock=SystemClock(),
        rng=system_random(),
    )


def write(to: QuerySink, number: int) -> None:
    to.write([number], number)  # type: ignore[arg-type]


def test_each_batch_is_written_once_however_often_spark_repeats_it(store: MemoryStore) -> None:
    sink = ListSink()
    with reserved(store) as job:
        first = behind(sink, job)
        for number in (0, 1, 1, 2):
            write(first, number)
    with reserved(store) as job:
        second = behind(sink, job)
        for number in (2, 3):  # Spark begins with the batch it has not noted as done
            write(second, number)
    assert sink.rows == [0, 1, 2, 3]
    assert sink.positions["query/rows", "q1"] == SinkPosition(position=4, epoch=2)


@pytest.mark.spec("B5")
def test_a_driver_of_the_past_is_refused_as_soon_as_the_next_has_begun(store: MemoryStore) -> None:
    sink = ListSink()
    old = reserved(store)
    paused = behind(sink, old)
    write(paused, 0)

    def take_over() -> None:
        # While the old one sleeps between its last look and the commit.
        sink.before_commit = lambda: None
        sink.fence("query/rows", {"q1": old.epoch + 1})

    sink.before_commit = take_over
    with pytest.raises(FencedWrite):
        write(paused, 1)
    assert sink.rows == [0]
    assert sink.discarded == [[1]]
    with pytest.raises(FencedWrite, match="knows epoch 2 of 'rows', and this driver has 1"):
        behind(sink, old).prepare()
    old.release()


def test_nothing_is_staged_or_committed_after_the_loss(store: MemoryStore) -> None:
    sink = ListSink()
    job = reserved(store)
    to = behind(sink, job)
    write(to, 0)
    job.release()
    with pytest.raises(LeaseLost):
        write(to, 1)
    assert sink.rows == [0]


@pytest.mark.parametrize("does_it_anyway", [True, False])
def test_a_commit_without_an_answer_is_asked_again(
    store: MemoryStore, does_it_anyway: bool
) -> None:
    sink = ListSink()
    sink.trouble = [StoreUnavailable("no answer"), StoreUnavailable("no answer")]
    sink.does_it_anyway = does_it_anyway
    with reserved(store) as job:
        write(behind(sink, job), 0)
    assert sink.rows == [0]
    assert not sink.discarded


def test_files_of_a_commit_in_doubt_are_not_thrown_away(store: MemoryStore) -> None:
    sink = ListSink()
    job = reserved(store)
    sink.trouble = [StoreUnavailable("no answer")]
    sink.does_it_anyway = True
    to = behind(sink, job)
    to.prepare()
    sink.before_commit = job.release
    with pytest.raises(LeaseLost):
        write(to, 0)
    assert sink.rows == [0]  # it was done, and nobody has heard of it
    assert not sink.discarded


def test_the_waiting_for_a_sink_that_is_away_ends_when_the_driver_gives_up(
    store: MemoryStore,
) -> None:
    sink, begun, ends = ListSink(), threading.Event(), []

    def away() -> None:
        begun.set()
        raise StoreUnavailable("no answer")

    with reserved(store) as job:
        to, fence = behind(sink, job), fence_of(job)
        to.prepare()
        sink.before_commit = away

        def work() -> None:
            with fence.working():
                try:
                    write(to, 0)
                except LeaseLost as lost:
                    ends.append(lost.reason)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert begun.wait(60)
        assert not fence.idle(within_s=0)
        fence.give_up()
        assert fence.idle(within_s=10)
        thread.join()
        assert ends == ["given up"]
        assert fence.remaining() > timedelta(0)  # nobody else is in
    assert not sink.discarded  # it may have been done: the next driver asks the sink
    with reserved(store) as job:
        sink.before_commit = lambda: None
        write(behind(sink, job), 0)
    assert sink.rows == [0]


def test_a_sink_that_a_hanging_batch_has_in_its_hands_is_not_closed(store: MemoryStore) -> None:
    sink = ListSink()
    with reserved(store) as job:
        fence = fence_of(job)
        fence._sinks.append(sink)
        with fence.working():
            fence.close()
            assert not sink.closed
        fence.close()
        assert sink.closed


def test_batches_of_a_new_checkpoint_are_not_taken_for_known_ones(store: MemoryStore) -> None:
    sink = ListSink()
    with reserved(store) as job:
        write(behind(sink, job, "q1"), 0)
        write(behind(sink, job, "q2"), 0)
    assert sink.rows == [0, 0]
    with reserved(store) as job, pytest.raises(SinkChanged):
        write(behind(sink, job, "q1"), 7)


def test_a_query_without_a_checkpoint_at_the_reserved_place_is_refused(store: MemoryStore) -> None:
    with reserved(store) as job:
        to = behind(ListSink(), job, None)
        assert not to.prepare()
        with pytest.raises(BatchFailed, match="same checkpointLocation"):
            write(to, 0)


def test_a_slash_in_a_name_makes_no_two_queries_alike(store: MemoryStore) -> None:
    with reserved(store, "a/b") as job:
        assert behind(ListSink(), job).group == "query/a%2Fb"


def fence_of(job: Reservation) -> Fence:
    return Fence(job, spark=None, checkpoint_location="/ck")  # type: ignore[arg-type]


def test_a_function_is_called_between_two_looks(store: MemoryStore) -> None:
    job = reserved(store)
    fence = fence_of(job)
    calls: list[tuple[object, int, int]] = []
    function = fence.call(lambda frame, batch, it: calls.append((frame, batch, it.epoch)))
    function("rows", 4)  # type: ignore[arg-type]
    assert calls == [("rows", 4, 1)]
    assert timedelta(0) < fence.remaining() <= LEASE
    losing = fence.call(lambda *_: job.release())
    with pytest.raises(LeaseLost):
        losing("rows", 5)  # type: ignore[arg-type]
    assert isinstance(fence.refusal, LeaseLost)
    with pytest.raises(LeaseLost):
        function("rows", 6)  # type: ignore[arg-type]
    assert len(calls) == 1


def test_a_function_under_way_can_be_waited_for(store: MemoryStore) -> None:
    with reserved(store) as job:
        fence, begun, go_on = fence_of(job), threading.Event(), threading.Event()

        def work(*_: object) -> None:
            begun.set()
            go_on.wait(60)

        function = fence.call(work)
        thread = threading.Thread(target=function, args=("rows", 0))
        thread.start()
        assert begun.wait(60)
        assert not fence.idle(within_s=0.01)
        go_on.set()
        assert fence.idle(within_s=30)
        thread.join()


def test_the_options_for_the_data_source_name_key_and_epoch(store: MemoryStore) -> None:
    with reserved(store) as job:
        options = fence_of(job).options()
        assert options == {"fence.key": "job/rows", "fence.epoch": "1", "name": "rows"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/ck", "/data/ck/"),
        ("/data/ck", "file:///data/ck"),
        ("/data/ck", "file:/data/x/../ck"),
        ("hdfs://Name:8020/ck/", "HDFS://name:8020//ck"),
        ("s3a://bucket/a/./ck", "s3a://bucket/a/ck"),
        ("s3a://bucket", "s3a://bucket/"),
    ],
)
def test_spellings_of_one_location_are_one(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)


def test_locations_are_those_that_spark_would_use(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert canonical(str(tmp_path / "link")) == canonical(str(tmp_path / "real"))
    monkeypatch.chdir(tmp_path)
    assert canonical("real") == f"file:{tmp_path}/real"
    assert canonical("/ck", default="hdfs://name:8020") == "hdfs://name:8020/ck"
    assert canonical("/ck", default="hdfs://name:8020") != canonical("/ck")
    with pytest.raises(UsageError, match="checkpoint_location"):
        canonical(" ")


def test_a_long_location_is_reserved_under_a_short_name() -> None:
    assert job_name("file:/ck") == "checkpoint file:/ck"
    long = job_name("file:/" + "x" * 300)
    assert long.startswith("checkpoint sha256 ")
    assert long != job_name("file:/" + "x" * 301)
