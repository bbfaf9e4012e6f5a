"""One running query of a standby: its end, its progress, and how it is stopped."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from leasehold.errors import CheckpointBehind, LeaseLost, StoreError, UsageError
from leasehold.spark.queries.location import canonical

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

    from leasehold.jobs import Reservation
    from leasehold.spark.queries.fence import Fence

log = logging.getLogger("leasehold.spark")

_LOOK_S = 0.05


class Progress(StreamingQueryListener):
    """Stores the number of each batch that is done as the checkpoint of the job, for operators.

    It comes a moment after the batch, so nothing rests on it. What was heard before the query is
    known is kept.
    """

    def __init__(self, reservation: Reservation, told: Callable[[int], None]) -> None:
        """``told`` hears of each batch."""
        self._reservation = reservation
        self._told = told
        self._run: str | None = None
        self._early: dict[str, int] = {}
        self._lock = threading.Lock()
        self.last: int | None = None

    def follow(self, run: str) -> None:
        """From now on this run of a query counts."""
        self._run = run
        if run in self._early:
            self._done(self._early[run])

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """See Spark."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """See Spark."""
        run, batch = str(event.progress.runId), int(event.progress.batchId)
        if self._run is None:
            self._early[run] = batch
        elif run == self._run:
            self._done(batch)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """See Spark."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """See Spark."""

    def catch_up(self, batch: int | None) -> None:
        """The query has ended, and this was its last batch: Spark may not have told of it."""
        if batch is not None:
            self._done(batch)

    def _done(self, batch: int) -> None:
        with self._lock:
            if self.last is not None and batch <= self.last:
                return
            self.last = batch
        self._told(batch)
        try:
            self._reservation.mark(batch)
        except (LeaseLost, CheckpointBehind) as refused:
            log.debug("batch %d: %s", batch, refused)
        except StoreError as error:
            log.warning("the number of batch %d could not be stored: %s", batch, error)


class RunningQuery:
    """A query that was started, and the fence it writes under."""

    def __init__(self, query: StreamingQuery, fence: Fence) -> None:
        """Nothing is watched yet."""
        self._query = query
        self._fence = fence
        self._ended = threading.Event()

    def check_location(self, reserved: str, *, default: str) -> None:
        """Return if the query keeps its progress at the place that is reserved.

        Raises:
            UsageError: it is another place.
        """
        try:
            root = str(self._query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001
        except Exception:  # noqa: BLE001 - a query of another kind does not tell
            return
        used = canonical(root, default=default)
        if used != reserved:
            raise UsageError(
                f"the query keeps its progress at {used}, and {reserved} is reserved: set "
                ".option('checkpointLocation', fence.checkpoint_location)"
            )

    def watch(self, ended: Callable[[Exception | None], None]) -> None:
        """Have ``ended`` called, in a thread of its own, when the query has ended."""

        def wait() -> None:
            found: Exception | None = None
            try:
                self._query.awaitTermination()
            except Exception as error:  # noqa: BLE001 - whatever ended it
                found = error
            self._ended.set()
            ended(found)

        name = f"waits for {self._fence.name}"
        threading.Thread(target=wait, name=name, daemon=True).start()

    def stop(self, *, more_time: Callable[[], bool]) -> bool:
        """Stop it; True when nothing of it runs any more, False if there was no ``more_time``."""

        def stop() -> None:
            with suppress(Exception):  # it may have failed meanwhile, and has ended then as well
                if not self._ended.is_set():
                    self._query.stop()

        stopping = threading.Thread(target=stop, name=f"stops {self._fence.name}", daemon=True)
        stopping.start()
        while True:
            stopping.join(_LOOK_S)
            if not stopping.is_alive() and self._fence.idle(within_s=_LOOK_S):
                return True
            if not more_time():
                return False


def kill_java() -> None:
    """End Spark's own process, if this one has started it: it must not go on alone."""
    gateway = SparkContext._gateway  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    if process is not None:
        with suppress(OSError):
            process.kill()
