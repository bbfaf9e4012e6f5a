"""A pipeline's driver in a process of its own, for tests and measurements that do it harm.

Takes its settings as one JSON object (``Settings``) and says everything on stdout, one JSON object
per line: ``up`` (Spark runs, the group is not joined), ``joining``, ``opened``, ``closed``,
``planned``, ``fencing``, ``fenced``, ``staged``, ``committing``, ``sunk`` (the sink has it, nobody
knows yet), ``committed``, ``refused``, ``tried``, ``copied``, ``ended``.

It is told on stdin, one JSON object per line: ``{"do": "go"}`` joins the group,
``{"do": "hold", "at": ["staged"]}`` makes it wait at the next such moment, after it has said it
with ``"held": true``, ``{"do": "release"}`` lets it go on, ``{"do": "copy", "to": "other"}`` writes
all events to another stream, and ``{"do": "stop"}`` ends it in good order, as SIGTERM does. When
nobody is left to tell it anything, it ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from leasehold import LeaseTiming
from leasehold.clock import SystemClock
from leasehold.processor import HookEvent
from leasehold.spark import DeltaSink, Pipeline, PipelineOptions, session
from leasehold.spark.pipeline.events import (
    BatchAttemptFailed,
    BatchCommitted,
    BatchEvent,
    BatchPlanned,
    BatchRefused,
    BatchStaged,
    PipelinePartitionClosed,
    PipelinePartitionOpened,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark import Batch, Commit, Sink, SinkPosition, Staged, Written

CLOCK = SystemClock()
STDOUT = 1
LOST_PARENT = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the driver behaves.

    ``task_s``: what a task waits for each batch of Arrow. ``trap``: the first task that finds no
    such file makes it, with its own process id in it, and then waits to be killed. ``witness``: a
    task writes into this file where it has our code from. ``go``: join the group at once.
    ``master``: nothing leaves it to ``spark-submit``.
    """

    master: str
    store: str
    stream: str
    group: str
    name: str
    table: str
    conf: dict[str, str] = field(default_factory=dict)
    lease_s: float = 4.0
    renew_s: float | None = None
    batch_events: int = 2_000
    local_events: int = 0
    tasks: int | None = None
    interval_s: float = 0.0
    task_s: float = 0.0
    trap: str = ""
    witness: str = ""
    until_caught_up: bool = False
    go: bool = True
    hold: tuple[str, ...] = ()

    def options(self) -> PipelineOptions:
        return PipelineOptions(
            batch_events=self.batch_events,
            local_events=self.local_events,
            interval=timedelta(seconds=self.interval_s),
            tasks=self.tasks,
            timing=LeaseTiming.of(
                lease=timedelta(seconds=self.lease_s),
                renew_interval=None if self.renew_s is None else timedelta(seconds=self.renew_s),
            ),
            discovery_interval=timedelta(seconds=1),
        )


class Voice:
    """Says what happens, and waits where it was told to."""

    def __init__(self, hold: Iterable[str] = ()) -> None:
        self._hold = set(hold)
        self._released = threading.Event()

    def say(self, event: str, **what: object) -> None:
        """One line in one write: lines of several threads never mix, and a kill leaves whole ones.

        The first time after it was asked for, wait here.
        """
        held = event in self._hold
        if held:
            self._hold.discard(event)
            self._released.clear()
        note = {"event": event, "held": held, "when_s": CLOCK.boottime_s(), **what}
        os.write(STDOUT, (json.dumps(note) + "\n").encode())
        if held:
            self._released.wait()

    def hold(self, at: Iterable[str]) -> None:
        self._hold = set(at)

    def release(self) -> None:
        self._released.set()

    def hook(self, event: HookEvent) -> None:
        """See ``leasehold.spark.pipeline.events``."""
        match event:
            case PipelinePartitionOpened():
                self.say(
                    "opened",
                    partition=event.partition,
                    epoch=event.epoch,
                    position=event.position,
                    by=event.by,
                )
            case PipelinePartitionClosed():
                self.say(
                    "closed", partition=event.partition, epoch=event.epoch, reason=str(event.reason)
                )
            case BatchPlanned():
                self.say("planned", **_batch(event))
            case BatchStaged():
                self.say("staged", **_batch(event))
            case BatchCommitted():
                self.say("committed", batch_s=event.batch_s, lag=event.lag_events, **_batch(event))
            case BatchRefused():
                self.say("refused", why=event.why, by_sink=event.by_sink, **_batch(event))
            case BatchAttemptFailed():
                self.say("tried", why=str(event.error)[:500], **_batch(event))
            case _:
                pass


def _batch(event: BatchEvent) -> dict[str, object]:
    ranges = [[each.partition, each.start, each.end] for each in event.ranges]
    return {"number": event.number, "rows": event.rows, "ranges": ranges}


class Watched:
    """A sink that says when it is asked for something, and when it has done it."""

    def __init__(self, sink: Sink, voice: Voice) -> None:
        self._sink = sink
        self._voice = voice

    @property
    def name(self) -> str:
        return self._sink.name

    @property
    def atomic(self) -> bool:
        return self._sink.atomic

    def open(self, spark: SparkSession) -> None:
        self._sink.open(spark)

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        self._voice.say("fencing", epochs=dict(epochs))
        found = self._sink.fence(group, epochs)
        self._voice.say("fenced", epochs=dict(epochs))
        return found

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        self._sink.move(group, places)

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        return self._sink.stage(frame, batch)

    def commit(self, staged: Staged, batch: Batch) -> Written:
        self._voice.say("committing", number=batch.number)
        found = self._sink.commit(staged, batch)
        self._voice.say("sunk", number=batch.number, rows=found.rows)
        return found

    def discard(self, staged: Staged) -> None:
        self._sink.discard(staged)

    def commits(self, group: str) -> Iterator[Commit]:
        return self._sink.commits(group)

    def close(self) -> None:
        self._sink.close()


def transformation(*, task_s: float, trap: str, witness: str) -> Any:
    """The rows as they are, each with the length of its body; tasks may be slow, or trapped."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if witness:
                import leasehold

                Path(witness).write_text(str(leasehold.__file__), encoding="utf-8")
            if trap:
                try:
                    trap_file = os.open(trap, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                except FileExistsError:
                    pass
                else:
                    os.write(trap_file, b"%d\n" % os.getpid())
                    threading.Event().wait()
            if task_s:
                threading.Event().wait(task_s)
            yield batch

    def transform(events: DataFrame) -> DataFrame:
        found = events.selectExpr("partition", "sequence_number", "key", "length(body) AS size")
        return found.mapInArrow(work, found.schema) if task_s or trap or witness else found

    return transform


def copy(spark: SparkSession, given: Settings, to: str) -> None:
    """All events of the stream to another one of the same log, by Spark's own reader and writer."""
    spark.createDataFrame([], "body string")  # makes the session that of this thread: see the docs
    found = spark.read.format("leasehold").option("store", given.store).load(given.stream)
    rows = found.select("key", "body").write.format("leasehold").option("store", given.store)
    rows.mode("append").save(to)


def listen(
    voice: Voice, go: threading.Event, pipeline: Pipeline, copies: Callable[[str], None]
) -> None:
    """Do what is said on stdin, until nobody is there who could say anything."""
    for line in sys.stdin:
        order = json.loads(line)
        match order["do"]:
            case "go":
                go.set()
            case "hold":
                voice.hold(order["at"])
            case "release":
                voice.release()
            case "copy":
                copies(order["to"])
                voice.say("copied")
            case "stop":
                voice.release()
                pipeline.stop()
    os._exit(LOST_PARENT)


def main(text: str) -> None:
    given = Settings(**json.loads(text))
    voice = Voice(given.hold)
    go = threading.Event()
    if given.go:
        go.set()
    spark = session(given.name, master=given.master or None, settings=given.conf)
    pipeline = Pipeline(
        spark,
        f"log:{given.stream}",
        given.store,
        given.group,
        name=given.name,
        options=given.options(),
        hooks=[voice.hook],
    )
    pipeline.transform(transformation(task_s=given.task_s, trap=given.trap, witness=given.witness))
    pipeline.write_to(Watched(DeltaSink(given.table), voice))
    voice.say("up", app=spark.sparkContext.applicationId, pid=os.getpid())
    orders = (voice, go, pipeline, partial(copy, spark, given))
    threading.Thread(target=listen, args=orders, daemon=True).start()
    go.wait()
    voice.say("joining")
    pipeline.run(until_caught_up=given.until_caught_up)
    voice.say("ended", where=str(Path(given.table)))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
