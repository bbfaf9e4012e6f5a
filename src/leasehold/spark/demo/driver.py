"""One driver of the demo, a program: a Spark of one core, and a pipeline from flights to delays.

It runs until SIGTERM, or until the demo is gone: then it ends at once, with all it has started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TextIO

from leasehold.core.lease_timing import Timing
from leasehold.errors import LeaseholdError
from leasehold.spark.demo.brake import Brake, WatchedSink
from leasehold.spark.demo.delays import delays
from leasehold.spark.demo.drivers import DriverSettings
from leasehold.spark.demo.messages import Kind, Moment, Said
from leasehold.spark.demo.processes import session_members
from leasehold.spark.pipeline.options import PipelineOptions
from leasehold.spark.pipeline.pipeline import Pipeline
from leasehold.spark.sessions import session
from leasehold.spark.sinks.delta.sink import DeltaSink

# Compiled once and collected by one thread: on few cores a session starts in half the time.
_SPARK = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def main(settings: DriverSettings) -> None:
    """Run the pipeline."""
    brake, lock = Brake(), threading.Lock()

    def tell(said: Said) -> None:
        with lock:
            print(said.line(), flush=True)  # noqa: T201 - the demo reads it

    listener = threading.Thread(target=_listen, args=(sys.stdin, brake), daemon=True)
    listener.start()
    spark = session(f"delays, driver {settings.name}", master="local[1]", settings=_SPARK)
    tell(Said(kind=Kind.READY, epochs={}))
    sink = WatchedSink(DeltaSink(settings.table), brake=brake, tell=tell)
    options = PipelineOptions(
        columns=("body",),
        batch_events=10_000,  # so that there is always a batch to be disturbed
        timing=Timing.of(lease=timedelta(seconds=settings.lease_s)),
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
    tell(Said(kind=Kind.ENDED, epochs={}))
    spark.stop()


def _listen(words: TextIO, brake: Brake) -> None:
    """Do what the demo says; when it is gone, end with all that was started here."""
    for line in words:
        match line.split():
            case ["halt", moment, least_rows]:
                brake.ask(Moment(moment), least_rows=int(least_rows))
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
