"""The program of one driver of the demo: Spark with one core, a pipeline from flights to delays.

It runs until SIGTERM. If the demo itself ends, the driver kills all it has started and exits.

``WatchedSink`` reports what happens to each commit, and can pause at one exact point. It changes
nothing: the commit after the pause is the same call as without it. So a driver that was stopped
there behaves as after a real pause of its machine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from leasehold.core.lease_timing import LeaseTiming
from leasehold.errors import FencedWrite, LeaseholdError
from leasehold.spark.demo.delays import delays
from leasehold.spark.demo.drivers import DriverSettings, session_members
from leasehold.spark.demo.screen import DriverReport, LineKind, WaitPoint
from leasehold.spark.pipeline.options import PipelineOptions
from leasehold.spark.pipeline.pipeline import Pipeline
from leasehold.spark.sessions import session
from leasehold.spark.sinks.delta.sink import DeltaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.sinks.port import Batch, Commit, Sink, SinkPosition, Staged, Written


class DriverBrake:
    """Pauses the next batch at a given point. Safe to use from several threads."""

    def __init__(self) -> None:
        self._wanted: WaitPoint | None = None
        self._min_rows = 0
        self._go = threading.Event()

    def ask(self, moment: WaitPoint, *, min_rows: int = 0) -> None:
        """Pause the next batch of at least ``min_rows`` rows that reaches the point."""
        self._go.clear()
        self._min_rows = min_rows
        self._wanted = moment

    def go(self) -> None:
        """Resume the paused batch."""
        self._wanted = None
        self._go.set()

    def wait_at(self, moment: WaitPoint, *, rows: int, tell: Callable[[], None]) -> None:
        """Return immediately, or, if a pause was requested, call ``tell`` and wait for ``go``."""
        if self._wanted is moment and rows >= self._min_rows:
            self._wanted = None
            tell()
            self._go.wait()


class WatchedSink:
    """A ``Sink`` before another one."""

    def __init__(
        self, inner: Sink, *, brake: DriverBrake, tell: Callable[[DriverReport], None]
    ) -> None:
        self._inner = inner
        self._brake = brake
        self._tell = tell

    @property
    def name(self) -> str:
        """The name of the wrapped sink."""
        return self._inner.name

    @property
    def atomic(self) -> bool:
        """Whether the wrapped sink is atomic."""
        return self._inner.atomic

    def open(self, spark: SparkSession) -> None:
        """Open the sink."""
        self._inner.open(spark)

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Raise the epochs and return what was known before."""
        return self._inner.fence(group, epochs)

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Set the positions."""
        self._inner.move(group, places)

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """Stage the rows of the batch."""
        return self._inner.stage(frame, batch)

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """Commit the staged rows together with the positions."""
        self._say(LineKind.STAGED, batch)
        self._wait_at(WaitPoint.STAGED, batch)
        try:
            written = self._inner.commit(staged, batch)
        except FencedWrite as error:
            self._say(LineKind.REFUSED, batch, words=str(error))
            raise
        self._say(LineKind.COMMITTED, batch)
        self._wait_at(WaitPoint.COMMITTED, batch)
        return written

    def discard(self, staged: Staged) -> None:
        """Remove the staged rows."""
        self._inner.discard(staged)

    def commits(self, group: str) -> Iterator[Commit]:
        """Return the commits of the group, oldest first."""
        return self._inner.commits(group)

    def close(self) -> None:
        """Close the sink."""
        self._inner.close()

    def _wait_at(self, moment: WaitPoint, batch: Batch) -> None:
        self._brake.wait_at(moment, rows=batch.rows, tell=lambda: self._say(LineKind.WAITS, batch))

    def _say(self, kind: LineKind, batch: Batch, *, words: str = "") -> None:
        epochs = {each.range.partition: each.epoch for each in batch.shares}
        self._tell(DriverReport(kind=kind, rows=batch.rows, epochs=epochs, words=words))


# Compiled once and collected by one thread: on few cores a session starts in half the time.
_SPARK = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def main(settings: DriverSettings) -> None:
    """Run the pipeline."""
    brake, lock = DriverBrake(), threading.Lock()

    def tell(said: DriverReport) -> None:
        with lock:
            print(said.line(), flush=True)  # noqa: T201 - the demo reads it

    listener = threading.Thread(target=_listen, args=(sys.stdin, brake), daemon=True)
    listener.start()
    spark = session(f"delays, driver {settings.name}", master="local[1]", settings=_SPARK)
    tell(DriverReport(kind=LineKind.READY, epochs={}))
    sink = WatchedSink(DeltaSink(settings.table), brake=brake, tell=tell)
    options = PipelineOptions(
        columns=("body",),
        batch_events=10_000,  # so that there is always a batch to be disturbed
        timing=LeaseTiming.of(lease=timedelta(seconds=settings.lease_s)),
        interval=timedelta(seconds=settings.interval_s),
    )
    pipeline = Pipeline(
        spark,
        f"log:{settings.stream}",
        settings.url,
        settings.group,
        name=settings.name,
        options=options,
    )
    pipeline.transform(delays).write_to(sink).run()
    tell(DriverReport(kind=LineKind.ENDED, epochs={}))
    spark.stop()


def _listen(words: TextIO, brake: DriverBrake) -> None:
    """Carry out the demo's commands; when it has ended, kill everything that was started here."""
    for line in words:
        match line.split():
            case ["halt", moment, min_rows]:
                brake.ask(WaitPoint(moment), min_rows=int(min_rows))
            case ["go"]:
                brake.go()
    for pid in session_members(os.getsid(0)):
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    try:
        main(DriverSettings(**json.loads(sys.argv[1])))
    except LeaseholdError as error:
        sys.exit(f"error: {error}")
