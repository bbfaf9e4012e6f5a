"""What becomes of a batch that can not be staged or committed, without Spark: errors are played."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from leasehold.core.backoff import Backoff
from leasehold.errors import (
    BatchFailed,
    DataDamaged,
    SinkChanged,
    SinkUnfit,
    StoreUnavailable,
    StoreUnusable,
    VolumeUnusable,
)
from leasehold.processor import HookEvent
from leasehold.spark import Batch, BatchPart, PipelineOptions, PoisonPolicy, Staged, Written
from leasehold.spark.pipeline.batch_errors import storage_error_in
from leasehold.spark.pipeline.committing import Committing
from leasehold.spark.pipeline.engine import RunContext
from leasehold.spark.pipeline.events import (
    BatchAttemptFailed,
    BatchCommitted,
    EventDropped,
    Waiting,
    pace,
)
from leasehold.spark.pipeline.staging import Staging, Work
from leasehold.spark.reading import Range
from leasehold.testing.clock import ManualClock

AT_ONCE = Backoff(base_s=0.0, max_s=0.0)
FRAME = object.__new__(DataFrame)
EMPTY = object.__new__(DataFrame)


def of_a_task(kind: str, message: str) -> PySparkException:
    """An error of a task as Spark tells it."""
    return PySparkException(
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times\n"
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "reading.py", line 150, in _pieces\n'
        "sqlite3.OperationalError: disk I/O error\n"
        "\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "reading.py", line 158, in _pieces\n'
        f"{kind}: {message}\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(Runner.scala)\n"
    )


class Scene:
    """One batch; the sink's ``stage`` raises what ``plays`` says, and then takes it."""

    def __init__(self, policy: PoisonPolicy, *plays: Exception, rows: int = 4) -> None:
        self.plays: Iterator[Exception] = iter(plays)
        self.events: list[HookEvent] = []
        self.cuts: list[tuple[Range, ...]] = []
        self.atomic = True
        self.probes: Iterator[Exception] = iter(())
        self.probed = 0
        self.is_held = True
        self.jobs: list[str] = []
        self.last: BatchCommitted | None = None
        share = BatchPart(range=Range(partition="7", start=10, end=10 + rows), epoch=3)
        self.batch = Batch(
            group="partition/orders/sums",
            number=5,
            shares=(share,),
            holder="driver",
            began_at=datetime(2026, 5, 4, tzinfo=UTC),
        )
        self._policy = policy

    def staged(self, *, is_part: bool = False) -> Staged | None:
        staging = Staging(
            self._context(), split=lambda *parts: self.cuts.extend(parts), last=lambda: self.last
        )
        try:
            return staging.staged(self._work(is_part=is_part))
        finally:
            staging.close()

    def committing(self) -> Callable[[], bool]:
        """Each call commits the batch; the sink's ``commit`` raises what ``plays`` says."""
        committing = Committing(self._context())
        return lambda: committing.commit(self._work(), Staged("rows"))

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.events]

    def _work(self, *, is_part: bool = False) -> Work:
        key = SimpleNamespace(key="7")
        handle = SimpleNamespace(valid=self.is_held, ownership=key, check=lambda: None)
        return Work(
            batch=self.batch,
            handles={"7": cast("Any", handle)},
            began_s=0.0,
            since_s=0.0,
            planned_s=0.0,
            lag_events=0,
            is_part=is_part,
        )

    def _commit(self, staged: Staged, batch: Batch) -> Written:
        assert (staged.inside, batch) == ("rows", self.batch)
        error = next(self.plays, None)
        if error is not None:
            raise error
        return Written(rows=batch.rows)

    def _stage(self, frame: DataFrame, batch: Batch) -> Staged:
        assert batch is self.batch
        self.probed += frame is EMPTY
        error = next(self.probes if frame is EMPTY else self.plays, None)
        if error is not None:
            raise error
        return Staged("nothing" if frame is EMPTY else "rows")

    def _context(self) -> RunContext:
        nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        context = SimpleNamespace(
            setJobGroup=lambda _, text, **__: self.jobs.append(text),
            setLocalProperty=nothing,
            _jsc=object(),
            _gateway=None,
        )
        ends = {"7": SimpleNamespace(first=0)}
        parts: dict[str, Any] = {
            "spark": SimpleNamespace(sparkContext=context),
            "frames": SimpleNamespace(of=lambda _: FRAME, empty=lambda: EMPTY),
            "function": lambda frame: frame,
            "sink": SimpleNamespace(
                atomic=self.atomic, stage=self._stage, commit=self._commit, discard=nothing
            ),
            "owned": SimpleNamespace(holder="driver", pause=nothing, write_checkpoints=nothing),
            "source": SimpleNamespace(name="orders", ends=lambda _: ends),
            "options": PipelineOptions(poison=self._policy),
            "event_bus": SimpleNamespace(tell=self.events.append),
            "clock": ManualClock(),
            "rng": random.Random(1),
            "is_stopping": lambda: False,
        }
        return RunContext(**parts)


def skip(retries: int = 0) -> PoisonPolicy:
    return PoisonPolicy.skip(retries=retries, pauses=AT_ONCE)


STOP = PoisonPolicy.stop(retries=0, pauses=AT_ONCE)
AWAY = "events 7[10, 14) of 'orders' can not be read: no answer in 30 s"


@pytest.mark.spec("B6")
@pytest.mark.parametrize("policy", [skip(), STOP])
@pytest.mark.parametrize("is_part", [False, True])
def test_a_store_that_tasks_do_not_reach_is_waited_for(policy: PoisonPolicy, is_part: bool) -> None:
    away = of_a_task("leasehold.errors.StoreUnavailable", AWAY)
    scene = Scene(policy, away, away, StoreUnavailable("away"), away)

    staged = scene.staged(is_part=is_part)

    assert staged is not None
    assert staged.inside == "rows"
    assert scene.kinds() == ["Waiting"] * 4 + ["BatchStaged"]
    assert isinstance(scene.events[0], Waiting)
    assert str(scene.events[0].error) == AWAY


@pytest.mark.spec("B6")
@pytest.mark.parametrize("policy", [skip(), STOP])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    "error",
    [
        DataDamaged("events 7[10, 14) can not be read: checksum"),
        VolumeUnusable("events 7[10, 14) can not be read: gone"),
        of_a_task("leasehold.errors.DataDamaged", "events 7[10, 14) can not be read: checksum"),
        of_a_task("leasehold.errors.VolumeUnusable", "rows can not be written: No space left"),
        of_a_task("leasehold.errors.StoreUnusable", "events 7[10, 14) can not be read: too new"),
    ],
    ids=["damage", "volume", "damage in a task", "full disk of a task", "store of a task"],
)
def test_damage_and_disks_stop_the_pipeline_under_every_policy(
    policy: PoisonPolicy, rows: int, error: Exception
) -> None:
    scene = Scene(policy, error, rows=rows)

    with pytest.raises(
        BatchFailed, match=r"batch 5 \(7\[10, 1\d\)\) failed once .*can not be"
    ) as e:
        scene.staged(is_part=rows == 1)

    assert "no fault of the events" in str(e.value)
    assert e.value.ranges == (f"7[10, {10 + rows})",)
    assert e.value.__cause__ is error
    assert not scene.cuts
    assert scene.kinds() == ["BatchAttemptFailed"]


@pytest.mark.spec("B6")
def test_a_disk_is_tried_as_often_as_the_policy_says() -> None:
    error = of_a_task("leasehold.errors.VolumeUnusable", "rows can not be written: No space left")
    scene = Scene(skip(retries=2), error, error)
    assert scene.staged() is not None
    assert scene.kinds() == ["BatchAttemptFailed", "BatchAttemptFailed", "BatchStaged"]


@pytest.mark.spec("B6")
def test_one_transient_failure_does_not_drop_a_single_event() -> None:
    scene = Scene(skip(retries=2), ValueError("once"), ValueError("twice"), rows=1)

    staged = scene.staged(is_part=True)

    assert staged is not None
    assert staged.inside == "rows"
    assert not any(isinstance(each, EventDropped) for each in scene.events)


@pytest.mark.spec("B6")
def test_a_single_event_that_fails_as_often_as_the_policy_says_is_dropped() -> None:
    scene = Scene(skip(retries=2), *[ValueError("bad")] * 3, rows=1)

    staged = scene.staged(is_part=True)

    assert staged is not None
    assert staged.inside == "nothing"
    assert scene.kinds() == ["BatchAttemptFailed"] * 3 + ["EventDropped"]


@pytest.mark.spec("B6")
def test_a_part_with_several_events_is_tried_once_and_cut() -> None:
    scene = Scene(skip(retries=2), ValueError("bad"))
    assert scene.staged(is_part=True) is None
    assert [str(part) for (part,) in scene.cuts] == ["7[10, 12)", "7[12, 14)"]


@pytest.mark.spec("B6")
def test_a_sink_that_is_away_while_no_events_are_tried_is_waited_for() -> None:
    scene = Scene(skip(), ValueError("bad"))
    scene.probes = iter(
        [StoreUnavailable("away"), of_a_task("leasehold.errors.StoreUnavailable", "x")]
    )
    assert scene.staged() is None
    assert scene.kinds() == ["BatchAttemptFailed", "Waiting", "Waiting"]
    assert len(scene.cuts) == 2


@pytest.mark.spec("B6")
def test_a_disk_that_fails_while_no_events_are_tried_stops_the_pipeline() -> None:
    scene = Scene(skip(), ValueError("bad"))
    scene.probes = iter([VolumeUnusable("full")])
    with pytest.raises(BatchFailed, match=r"7\[10, 14\).*full.*no fault of the events"):
        scene.staged()


def test_an_error_of_the_function_that_only_speaks_of_ours_is_its_own() -> None:
    assert storage_error_in(of_a_task("ValueError", "leasehold.errors.DataDamaged: no")) is None
    assert storage_error_in(of_a_task("leasehold.errors.SinkUnfit", "an event is too big")) is None
    assert storage_error_in(of_a_task("leasehold.errors.Nothing", "of this name")) is None
    assert storage_error_in(RuntimeError("leasehold.errors.StoreUnavailable: not of Spark")) is None
    assert storage_error_in(Py4JError("gone")) is None
    unusable = StoreUnusable("too new")
    assert storage_error_in(unusable) is unusable


def test_trouble_without_words_is_trouble() -> None:
    text = "Traceback (most recent call last):\nleasehold.errors.StoreUnavailable\n\n\tat java"
    found = storage_error_in(PySparkException(text))
    assert isinstance(found, StoreUnavailable)
    assert str(found) == "StoreUnavailable"


def test_a_failure_is_told_in_the_words_of_the_task() -> None:
    error = of_a_task("leasehold.errors.DataDamaged", "events 7[10, 14) can not be read")
    scene = Scene(STOP, error)
    with pytest.raises(BatchFailed):
        scene.staged()
    (tried,) = scene.events
    assert isinstance(tried, BatchAttemptFailed)
    assert str(tried.error) == "events 7[10, 14) can not be read"


NAMED = r"^batch 5 \(7\[10, 14\)\): "


@pytest.mark.spec("S4")
@pytest.mark.parametrize("policy", [skip(retries=3), STOP])
@pytest.mark.parametrize("kind", [SinkUnfit, SinkChanged])
def test_a_sink_that_does_not_take_the_rows_is_told_at_once_with_partition_and_range(
    policy: PoisonPolicy, kind: type[SinkUnfit | SinkChanged]
) -> None:
    scene = Scene(policy, kind("the table has other columns"))
    with pytest.raises(kind, match=f"{NAMED}the table has other columns$"):
        scene.staged()
    assert scene.kinds() == []


@pytest.mark.spec("S4")
@pytest.mark.parametrize("kind", [SinkUnfit, SinkChanged])
def test_a_commit_that_the_sink_does_not_take_names_partition_and_range(
    kind: type[SinkUnfit | SinkChanged],
) -> None:
    scene = Scene(STOP, kind("the table is gone"))
    with pytest.raises(kind, match=f"{NAMED}the table is gone$"):
        scene.committing()()


@pytest.mark.spec("S4")
def test_staged_rows_that_are_gone_again_and_again_name_partition_and_range() -> None:
    scene = Scene(STOP, *(BatchFailed("the staging table was dropped") for _ in range(3)))
    commit = scene.committing()
    assert (commit(), commit()) == (False, False)
    with pytest.raises(BatchFailed, match=f"{NAMED}the staging table was dropped$"):
        commit()


@pytest.mark.spec("S4")
def test_partition_and_range_are_named_once() -> None:
    scene = Scene(STOP, SinkUnfit("7[10, 14) does not fit"))
    with pytest.raises(SinkUnfit, match=r"^7\[10, 14\) does not fit$"):
        scene.staged()


def test_a_job_is_described_by_its_batch_and_by_how_the_one_before_went() -> None:
    scene = Scene(STOP)
    assert scene.committing()() is True
    (committed,) = scene.events
    scene.staged()
    assert isinstance(committed, BatchCommitted)
    scene.last = committed
    scene.staged()
    first = "partition/orders/sums batch 5: 4 events, 7[10, 14)"
    assert scene.jobs == [first, f"{first}; batch 5 took {pace(committed)}"]
