"""A Spark driver in a process of its own, for tests that pause, stop and kill it.

Its session is up before it is told anything. It reads one JSON object per line from stdin: what to
run; ``{"stop": true}`` stops that in good order, ``{"pause": true}`` stops the whole process, as
SIGSTOP does, between stage and commit of the next batch. It writes one JSON object per line to
stdout.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.jvm import UNCOMPILED, quick_jvm
from tests.support.pausing import pause_me

from leasehold.clock import SystemClock
from leasehold.errors import LeaseholdError
from leasehold.runtime.stop_signals import SAME_S, stop_on_signals
from leasehold.spark import DeltaSink, Fence, StandbyChanged, session
from leasehold.spark.standby_query import Standby, leave_immediately

ROWS = 10
CLOCK = SystemClock()
_STDOUT = 1
_LINES = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to run.

    ``does``: ``plain``: a query whose function appends to a file, as people write it; ``fenced``: a
    standby that writes to Delta; ``stuck``: a standby whose function does not end. ``pauses_at``:
    the batch in whose middle a plain one stops its whole process.
    """

    does: str
    name: str
    checkpoint: str
    output: str
    store: str = ""
    lease_s: float = 4.0
    pauses_at: int = -1


def say(event: str, **what: object) -> None:
    with _LINES:
        os.write(_STDOUT, (json.dumps({"event": event, **what}) + "\n").encode())


def pause(batch_id: int, store: str) -> None:
    """Stop this process and Spark's, until somebody sends SIGCONT to both."""
    say("paused", batch=batch_id)
    pause_me(store, group=True)


class PausingSink(DeltaSink):
    """Stops the process between stage and commit of the next batch, once that is wanted."""

    wanted = threading.Event()
    store = ""

    def commit(self, staged: Any, batch: Any) -> Any:
        if self.wanted.is_set():
            self.wanted.clear()
            pause(batch.number, self.store)
        try:
            written = super().commit(staged, batch)
        except LeaseholdError as error:
            say("refused", batch=batch.number, why=type(error).__name__)
            raise
        say("written", batch=batch.number)
        return written


def rows(spark: SparkSession) -> DataFrame:
    """The same ten values in each batch of the same number, whoever runs it."""
    stream = spark.readStream.format("rate-micro-batch")
    return stream.option("rowsPerBatch", ROWS).option("numPartitions", 1).load().select("value")


def started(task: Task, spark: SparkSession, function: Callable[..., None]) -> StreamingQuery:
    writer = rows(spark).writeStream.option("checkpointLocation", task.checkpoint)
    return writer.trigger(processingTime="200 milliseconds").foreachBatch(function).start()


def plain(task: Task, spark: SparkSession) -> None:
    def append(frame: DataFrame, batch_id: int) -> None:
        values = [row.value for row in frame.collect()]
        if batch_id == task.pauses_at:
            pause(batch_id, task.store)
        with Path(task.output).open("a", encoding="utf-8") as file:
            file.writelines(f"{value}\n" for value in values)
        say("written", batch=batch_id)

    try:
        started(task, spark, append).awaitTermination()
    except Exception as error:  # noqa: BLE001 - that it fails is what is shown
        say("died", why=str(error)[:400])
    say("over")


def build(task: Task) -> Callable[[SparkSession, Fence], StreamingQuery]:
    def fenced(spark: SparkSession, fence: Fence) -> StreamingQuery:
        sink = PausingSink(task.output)
        sink.store = task.store
        return started(task, spark, fence.to(sink))

    def stuck(spark: SparkSession, fence: Fence) -> StreamingQuery:
        def forever(frame: DataFrame, batch_id: int, fence: Fence) -> None:
            say("written", batch=batch_id)
            threading.Event().wait()

        return started(task, spark, fence.call(forever))

    return stuck if task.does == "stuck" else fenced


def tell(event: StandbyChanged) -> None:
    say(event.what.value, epoch=event.epoch, batch=event.batch, text=event.text)


class Later(SystemClock):
    """Runs ahead of the machine's once that is wanted."""

    ahead_s = 0.0

    def boottime_s(self) -> float:
        return super().boottime_s() + self.ahead_s


CLOCK_OF_SIGNALS = Later()


class Signalled(Standby):
    """Says that it was told to stop; a further signal is a second one from there on."""

    def stop(self) -> None:
        super().stop()
        CLOCK_OF_SIGNALS.ahead_s += SAME_S
        say("stopping")


def main() -> None:
    with ExitStack() as signals:
        listen(signals)


def listen(signals: ExitStack) -> None:
    settings = UNCOMPILED | {
        "spark.driver.extraJavaOptions": quick_jvm(),
        "spark.driver.memory": "512m",
    }
    spark = session("driver", master="local[1]", settings=settings)
    spark.range(1).collect()
    say("ready")
    driver: Standby | None = None
    work: threading.Thread | None = None
    for line in sys.stdin:
        task_options = json.loads(line)
        if "pause" in task_options:
            PausingSink.wanted.set()
            continue
        if "stop" in task_options:
            for query in [] if driver else spark.streams.active:
                query.stop()
            if driver is not None:
                driver.stop()
            continue
        if work is not None:
            work.join()
        task = Task(**task_options)
        if task.does == "plain":
            work = threading.Thread(target=plain, args=(task, spark))
        else:
            driver = Signalled(
                build(task),
                name=task.name,
                checkpoint_location=task.checkpoint,
                store=task.store,
                spark=spark,
                lease=timedelta(seconds=task.lease_s),
                exit_when_stuck=task.does == "stuck",
                on_event=tell,
            )
            signals.enter_context(
                stop_on_signals(first=driver.stop, again=leave_immediately, clock=CLOCK_OF_SIGNALS)
            )
            work = threading.Thread(target=run, args=(driver,))
        work.daemon = True
        work.start()


def run(driver: Standby) -> None:
    try:
        driver.run()
    except Exception as error:  # noqa: BLE001
        say("failed", text=str(error)[:400])
    say("over")


if __name__ == "__main__":
    main()
