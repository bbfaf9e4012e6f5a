"""The fence of a query: whether this driver may still write, and sinks that know it.

``check`` asks the clock and the lease. That is a courtesy to everybody: after it returned the
process may be paused for an hour. What keeps the rows of such a driver out is the sink, which is
shown the epoch with every commit: ``to`` for the sinks of this project, ``options`` for our data
source. ``call`` has only the courtesy: at least once.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.clock import SystemClock, system_random
from leasehold.errors import LeaseLost
from leasehold.spark.queries.location import query_id
from leasehold.spark.queries.sink import QuerySink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.clock import Clock
    from leasehold.jobs import Reservation
    from leasehold.spark.sinks.port import Sink

    OnBatch = Callable[[DataFrame, int], None]
    OnFencedBatch = Callable[[DataFrame, int, "Fence"], None]


class Fence:
    """For one term of one driver. All methods may be called from any thread."""

    def __init__(
        self,
        reservation: Reservation,
        *,
        spark: SparkSession,
        checkpoint_location: str,
        clock: Clock | None = None,
    ) -> None:
        """The fence of the query that ``reservation`` was made for."""
        self.name = reservation.name
        self.key = reservation.key
        self.epoch = reservation.epoch
        self.holder = reservation.holder
        self.checkpoint_location = checkpoint_location
        self.refusal: LeaseLost | None = None
        self.last_batch: int | None = None
        self._reservation = reservation
        self._spark = spark
        self._clock = clock or SystemClock()
        self._rng = system_random()
        self._sinks: list[Sink] = []
        self._busy = 0
        self._change = threading.Condition()

    def __repr__(self) -> str:
        return f"<Fence of {self.name!r}, epoch {self.epoch}>"

    def check(self) -> None:
        """Return if this driver may go on at this very moment.

        Raises:
            LeaseLost: it may not, with the reason.
        """
        self._reservation.check()

    def remaining(self) -> timedelta:
        """How long it is until the query must have stopped, if no renewal succeeds any more."""
        return self._reservation.remaining()

    def options(self) -> dict[str, str]:
        """For ``writeStream.format("leasehold").options(**fence.options())``."""
        return {"fence.key": self.key, "fence.epoch": str(self.epoch), "name": self.name}

    def to(self, sink: Sink) -> OnBatch:
        """A function for ``foreachBatch`` that writes to a sink, each batch once.

        The sink is opened here, and fenced as soon as the checkpoint has a name: from then on no
        former driver can write to it. A batch that it holds already is skipped.

        Raises:
            FencedWrite: the sink knows a higher epoch; this driver is too late.
            SinkUnfit, SinkChanged, StoreUnavailable: it can not be used; the message says why.
        """
        sink.open(self._spark)
        self._sinks.append(sink)
        made = QuerySink(
            sink,
            reservation=self._reservation,
            query_id=lambda: query_id(self._spark, self.checkpoint_location),
            clock=self._clock,
            rng=self._rng,
        )
        made.prepare()

        def write(frame: DataFrame, batch_id: int) -> None:
            with self.working():
                made.write(frame, batch_id)
                self.last_batch = batch_id

        return write

    def call(self, function: OnFencedBatch) -> OnBatch:
        """A function for ``foreachBatch`` that calls ``function(frame, batch_id, fence)``.

        At least once: a batch may be written again by the driver that follows, and by one that was
        paused in the middle of it. Show ``fence.epoch`` to what you write to, or keep ``batch_id``
        with the rows.
        """

        def write(frame: DataFrame, batch_id: int) -> None:
            with self.working():
                self.check()
                function(frame, batch_id, self)
                self.check()  # else Spark would note the batch as done
                self.last_batch = batch_id

        return write

    # ------------------------------------------------------------ for the standby

    @contextmanager
    def working(self) -> Iterator[None]:
        """A batch is being written; a refusal is kept."""
        with self._change:
            self._busy += 1
        try:
            yield
        except LeaseLost as lost:
            self.refusal = lost
            raise
        finally:
            with self._change:
                self._busy -= 1
                self._change.notify_all()

    def idle(self, *, within_s: float) -> bool:
        """Wait until no batch is being written; False if that takes longer.

        Spark's own stop does not wait for a function in Python.
        """
        with self._change:
            return self._change.wait_for(lambda: not self._busy, timeout=within_s)

    def give_up(self) -> None:
        """No more order: the reservation is renewed no more, and ``check`` fails in a moment.

        That ends the waiting for a sink that is away. A commit in doubt is left to the next driver,
        which asks the sink.
        """
        self._reservation.give_up()

    def close(self) -> None:
        """Close the sinks, unless a batch that hangs still has one in its hands."""
        if not self.idle(within_s=0):
            return
        while self._sinks:
            self._sinks.pop().close()
