"""A standby inside one process: what ends it, what it refuses, what it tells."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.memory_sink import MemorySink

from leasehold.errors import StoreError, StoreUnavailable, UsageError
from leasehold.insight.jobs import job_log
from leasehold.jobs import Outcome, Reservation, reserve, try_reserve
from leasehold.names import job_key
from leasehold.ports import Store
from leasehold.spark import Fence, StandbyChanged
from leasehold.spark.standby_query import Standby
from leasehold.spark.standby_query.events import StandbyState
from leasehold.spark.standby_query.location import canonical, job_name
from leasehold.stores import open_store

Function = Callable[[DataFrame, int, Fence], None]


class Scene:
    """Files as a stream, a checkpoint, and a store."""

    def __init__(self, spark: SparkSession, location: Path) -> None:
        self.spark = spark
        self.files = location / "files"
        self.files.mkdir()
        (self.files / "one.txt").write_text("1\n2\n3\n", encoding="utf-8")
        self.checkpoint = str(location / "checkpoint")
        self.url = f"sqlite:///{location}/leases.db"
        self.events: list[StandbyChanged] = []
        self.change = threading.Condition()

    def tell(self, event: StandbyChanged) -> None:
        with self.change:
            self.events.append(event)
            self.change.notify_all()

    def until(self, what: StandbyState) -> StandbyChanged:
        with self.change:
            assert self.change.wait_for(lambda: what in self.changes(), timeout=100), self.events
            return next(each for each in self.events if each.what is what)

    def changes(self) -> list[StandbyState]:
        return [each.what for each in self.events]

    def query(self, function: Function, *, once: bool = True) -> Callable[..., StreamingQuery]:
        return self.made(lambda fence: fence.call(function), once=once)

    def made(
        self, make: Callable[[Fence], Callable[[DataFrame, int], None]], *, once: bool = False
    ) -> Callable[..., StreamingQuery]:
        def build(spark: SparkSession, fence: Fence) -> StreamingQuery:
            writer = (
                spark.readStream.text(str(self.files))
                .writeStream.option("checkpointLocation", self.checkpoint)
                .foreachBatch(make(fence))
            )
            trigger: Any = (
                {"availableNow": True} if once else {"processingTime": "100 milliseconds"}
            )
            return writer.trigger(**trigger).start()

        return build

    def standby(self, build: Callable[..., Any], **options: Any) -> Standby:
        given = {"name": "rows", "lease": timedelta(seconds=60), "spark": self.spark, **options}
        return Standby(
            build,
            checkpoint_location=self.checkpoint,
            store=self.url,
            on_event=self.tell,
            **given,
        )

    def ask(self, question: Callable[[Store], Any]) -> Any:
        async def read() -> Any:
            async with open_store(self.url) as store:
                return await question(store)

        return anyio.run(read)


async def read_history(store: Store, key: str) -> Any:
    return await store.history(key)


@contextmanager
def running(driver: Standby) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=driver.run)
    thread.start()
    try:
        yield thread
    finally:
        driver.stop()
        thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Scene:
    return Scene(spark, tmp_path)


@pytest.mark.spec("S5")
def test_a_query_that_ends_is_released_and_its_batch_is_there_for_operators(scene: Scene) -> None:
    rows: list[str] = []

    def collect(frame: DataFrame, batch_id: int, fence: Fence) -> None:
        assert batch_id == 0
        assert fence.epoch == 1
        rows.extend(row.value for row in frame.collect())

    scene.standby(scene.query(collect)).run()
    assert sorted(rows) == ["1", "2", "3"]
    assert scene.changes() == [StandbyState.ACTIVE, StandbyState.BATCH, StandbyState.ENDED]
    assert scene.events[-1].batch == 0
    stored = scene.ask(lambda store: store.checkpoints("job"))[job_key("rows")]
    assert (stored.epoch, stored.position.sequence_number) == (1, 0)
    location = job_key(job_name(canonical(scene.checkpoint)))
    for key in (job_key("rows"), location):
        (term,) = scene.ask(partial(read_history, key=key))
        assert term.reason.value == "released"


def test_a_query_that_fails_is_started_again_and_its_error_is_raised_in_the_end(
    scene: Scene,
) -> None:
    epochs: list[int] = []

    def fail(_frame: DataFrame, _batch: int, fence: Fence) -> None:
        epochs.append(fence.epoch)
        raise ValueError("these rows are bad")

    with pytest.raises(Exception, match="these rows are bad"):
        scene.standby(scene.query(fail), restarts=1).run()
    assert epochs == [1, 2]
    assert scene.changes() == [StandbyState.ACTIVE, StandbyState.FAILED] * 2
    runs = scene.ask(partial(job_log, name="rows"))
    assert [(each.epoch, each.outcome, each.note.words) for each in runs] == [
        (epoch, Outcome.FAILED, "ValueError: these rows are bad") for epoch in (2, 1)
    ]
    assert not scene.spark.streams.active


def test_what_is_no_query_or_has_another_checkpoint_is_refused_and_stopped(scene: Scene) -> None:
    with pytest.raises(UsageError, match="must return the started query"):
        scene.standby(lambda *_: None).run()
    (run,) = scene.ask(partial(job_log, name="rows"))
    assert run.outcome is Outcome.FAILED
    assert run.note.words.startswith("UsageError: ")
    build = scene.query(lambda *_: None, once=False)
    wrong = scene.standby(build)
    wrong._location = f"{scene.checkpoint}-of-another"
    with pytest.raises(UsageError, match=r"keeps its progress at file:.*checkpoint, and file:"):
        wrong.run()
    assert not scene.spark.streams.active
    assert scene.changes() == [StandbyState.ACTIVE, StandbyState.ACTIVE]


@pytest.mark.spec("S5")
def test_two_names_on_one_location_exclude_each_other(scene: Scene) -> None:
    location = job_name(canonical(scene.checkpoint))
    other = try_reserve("other", also=[location], store=scene.url)
    assert isinstance(other, Reservation)
    with running(scene.standby(scene.query(lambda *_: None))) as thread:
        text = scene.until(StandbyState.WAITING).text
        assert f"held by {other.holder}" in text
        assert "a query of another name works on this location" in text
        other.release()
        scene.until(StandbyState.ENDED)
        thread.join(60)


def test_an_operator_can_send_a_driver_home(scene: Scene) -> None:
    with running(
        scene.standby(scene.query(lambda *_: None, once=False), lease=timedelta(seconds=12))
    ):
        scene.until(StandbyState.BATCH)
        (holder,) = scene.ask(lambda store: store.members("job"))
        assert scene.ask(lambda store: store.request_leave(holder))
        scene.until(StandbyState.STOPPED)
    assert scene.changes()[-2:] == [StandbyState.ASKED, StandbyState.STOPPED]
    assert not scene.spark.streams.active


def test_a_stop_waits_for_the_batch_under_way(scene: Scene) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work(_frame: DataFrame, batch_id: int, fence: Fence) -> None:
        begun.set()
        go_on.wait(60)
        fence.check()
        done.append(batch_id)

    driver = scene.standby(scene.query(work, once=False))
    with running(driver):
        assert begun.wait(60)
        driver.stop()
        go_on.set()
    assert done == [0]
    assert scene.changes()[-1] is StandbyState.STOPPED
    stored = scene.ask(lambda store: store.checkpoints("job"))[job_key("rows")]
    assert stored.position.sequence_number == 0


@pytest.mark.spec("S5")
def test_a_stop_does_not_wait_for_a_sink_that_is_away(scene: Scene) -> None:
    sink, asked = MemorySink(), threading.Event()

    def away(_: object) -> None:
        asked.set()
        raise StoreUnavailable("no answer")

    sink.before_commit = away
    build = scene.made(lambda fence: fence.to(sink))
    driver = scene.standby(build, drain=timedelta(seconds=0.2))
    with running(driver) as thread:
        assert asked.wait(60)
        driver.stop()
        thread.join(60)
        assert scene.changes() == [
            StandbyState.ACTIVE,
            StandbyState.STOPPED,
        ]  # long before the lease was over
    assert not sink.discarded  # the commit is in doubt: the next driver asks the sink
    (term,) = scene.ask(partial(read_history, key=job_key("rows")))
    assert term.reason.value == "released"
    sink.before_commit = lambda _: None
    again = scene.standby(build)
    with running(again):
        scene.until(StandbyState.BATCH)
    assert sorted(row["value"] for row in sink.rows) == ["1", "2", "3"]


@pytest.mark.spec("S5")
@pytest.mark.parametrize("by_an_operator", [False, True])
def test_a_stop_does_not_wait_for_a_function_that_hangs(scene: Scene, by_an_operator: bool) -> None:
    begun, go_on, epochs = threading.Event(), threading.Event(), []

    def hang(_frame: DataFrame, _batch: int, fence: Fence) -> None:
        epochs.append(fence.epoch)
        begun.set()
        go_on.wait(120)

    driver = scene.standby(
        scene.query(hang, once=False),
        lease=timedelta(seconds=6),
        drain=timedelta(seconds=0.2),
        exit_when_stuck=False,
    )
    try:
        with running(driver) as thread:
            assert begun.wait(60)
            if by_an_operator:
                (holder,) = scene.ask(lambda store: store.members("job"))
                assert scene.ask(lambda store: store.request_leave(holder))
            else:
                driver.stop()
            thread.join(60)
            assert not thread.is_alive()
            assert scene.changes()[-1] is StandbyState.STUCK
            # Others can have it, and this one did not let go before it had said so.
            with reserve("rows", store=scene.url, wait=timedelta(seconds=60)) as job:
                assert job.epoch == epochs[0] + 1
    finally:
        go_on.set()
        for query in scene.spark.streams.active:
            query.stop()


def test_a_store_that_can_not_be_opened_is_told_before_anything_runs(
    scene: Scene, tmp_path: Path
) -> None:
    scene.url = f"sqlite:///{tmp_path}/no/such/place/leases.db"
    with pytest.raises(StoreError):
        scene.standby(scene.query(lambda *_: None)).run()
    with pytest.raises(UsageError):
        Standby(lambda *_: None, name="", checkpoint_location="x", store=scene.url)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Standby(lambda *_: None, name="x", checkpoint_location="", store=scene.url)  # type: ignore[arg-type]
    assert not scene.events
