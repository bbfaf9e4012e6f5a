"""The fence of a query: whether this driver may still write, and sinks that know its epoch.

``check`` asks the clock and the lease, which only saves work: after it returned the process may be
paused for an hour. What keeps the rows of such a driver out is the sink, which gets the epoch with
every commit: ``to`` for the sinks of this project, ``options`` for the data source. ``call`` has
only the check: at least once.

``QuerySink`` is a sink behind ``foreachBatch``: each batch of a query once, refused to former
drivers. Its group is ``query/<name>``. Its one partition is the id of the checkpoint, not a fixed
name: batches of a new checkpoint begin at 0 again, and would all be taken for known ones. The
position is the number of the next batch.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.clock import SystemClock, system_random
from leasehold.core.backoff import Backoff
from leasehold.errors import (
    BatchFailed,
    FencedWrite,
    LeaseLost,
    SinkChanged,
    SinkUnfit,
    StoreUnavailable,
)
from leasehold.spark.reading import Range
from leasehold.spark.sinks.port import Batch, BatchPart
from leasehold.spark.standby_query.location import query_id

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.clock import Clock
    from leasehold.jobs import Reservation
    from leasehold.spark.sinks.port import Sink, Staged

log = logging.getLogger("leasehold.spark")

_BACKOFF = Backoff(base_s=0.05, max_s=1.0)


class QuerySink:
    """One sink of one query, under one reservation. One thread at a time."""

    def __init__(
        self,
        sink: Sink,
        *,
        reservation: Reservation,
        query_id: Callable[[], str | None],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """``sink`` is open. ``query_id``: of the checkpoint; None while it has none."""
        self._sink = sink
        self._reservation = reservation
        self._query_id = query_id
        self._clock = clock
        self._rng = rng
        # The key has the name quoted: a slash in it cannot make two groups equal.
        self.group = f"query/{reservation.key.partition('/')[2]}"
        self._partition: str | None = None
        self._next: int | None = None

    def prepare(self) -> bool:
        """Fence former drivers, if the checkpoint has an id yet; return whether it has."""
        if self._partition is not None:
            return True
        partition = self._query_id()
        if partition is None:
            return False
        if self._sink.atomic:
            epoch = self._reservation.epoch
            known = self._sink.fence(self.group, {partition: epoch}).get(partition)
            if known is not None and known.epoch > epoch:
                raise FencedWrite(
                    f"{self._sink.name} knows epoch {known.epoch} of {self._reservation.name!r}, "
                    f"and this driver has {epoch}: another one has taken over; or the store with "
                    "the leases was made anew, then use another name",
                    key=self._reservation.key,
                    epoch=epoch,
                    reason="fenced",
                )
            self._next = None if known is None else known.position
        self._partition = partition
        return True

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch, unless the sink holds it already."""
        self._reservation.check()
        if not self.prepare() or self._partition is None:
            raise BatchFailed(
                f"batch {batch_id} of {self._reservation.name!r} has no checkpoint at the location "
                "that is reserved: give the query the same checkpointLocation"
            )
        if self._next is not None and batch_id < self._next:
            log.info("%s: batch %d is there already", self._reservation.name, batch_id)
            return
        batch_range = Range(partition=self._partition, start=batch_id, end=batch_id + 1)
        batch = Batch(
            group=self.group,
            number=batch_id,
            shares=(BatchPart(range=batch_range, epoch=self._reservation.epoch),),
            holder=self._reservation.holder,
            began_at=self._clock.utc_now(),
        )
        staged = self._sink.stage(frame, batch)
        self._commit(staged, batch)
        self._next = batch_id + 1

    def _commit(self, staged: Staged, batch: Batch) -> None:
        failures = 0
        while True:
            try:
                self._reservation.check()
                self._sink.commit(staged, batch)
            except StoreUnavailable as error:
                # It may have been done. The sink finds out when it is asked again: by this driver,
                # or, if it stops or loses its reservation in the meantime, by the next one.
                failures += 1
                log.warning("batch %d: no answer to the commit: %s", batch.number, error)
                self._reservation.lost.wait(_BACKOFF.pause_s(failures, self._rng))
            except (LeaseLost, SinkChanged, SinkUnfit):
                if not failures:  # else it may be there, and would lose its files
                    self._sink.discard(staged)
                raise
            else:
                return


if TYPE_CHECKING:
    OnBatch = Callable[[DataFrame, int], None]
    OnFencedBatch = Callable[[DataFrame, int, "Fence"], None]


class Fence:
    """The fence of one term of one driver. All methods may be called from any thread."""

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
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"<Fence of {self.name!r}, epoch {self.epoch}>"

    def check(self) -> None:
        """Return if this driver may continue now.

        Raises:
            LeaseLost: it may not, with the reason.
        """
        self._reservation.check()

    def remaining(self) -> timedelta:
        """Return the time until the query must have stopped if no further renewal succeeds."""
        return self._reservation.remaining()

    def options(self) -> dict[str, str]:
        """Return the options for ``writeStream.format("leasehold").options(**fence.options())``."""
        return {"fence.key": self.key, "fence.epoch": str(self.epoch), "name": self.name}

    def to(self, sink: Sink) -> OnBatch:
        """Return a function for ``foreachBatch`` that writes to a sink, each batch once.

        The sink is opened here, and fenced as soon as the checkpoint has an id: from then on no
        former driver can write to it. A batch that it holds already is skipped.

        Raises:
            FencedWrite: the sink knows a higher epoch; this driver is too late.
            SinkUnfit, SinkChanged, StoreUnavailable: it cannot be used; the message says why.
        """
        sink.open(self._spark)
        self._sinks.append(sink)
        query_sink = QuerySink(
            sink,
            reservation=self._reservation,
            query_id=lambda: query_id(self._spark, self.checkpoint_location),
            clock=self._clock,
            rng=self._rng,
        )
        query_sink.prepare()

        def write(frame: DataFrame, batch_id: int) -> None:
            with self.working():
                query_sink.write(frame, batch_id)
                self.last_batch = batch_id

        return write

    def call(self, function: OnFencedBatch) -> OnBatch:
        """Return a function for ``foreachBatch`` that calls ``function(frame, batch_id, fence)``.

        At least once: a batch may be written again by the next driver, and by one that was paused
        while it was writing. Pass ``fence.epoch`` to what you write to, or store ``batch_id`` with
        the rows.
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
        """Count a batch that is being written; keep a refusal."""
        with self._changed:
            self._busy += 1
        try:
            yield
        except LeaseLost as lost:
            self.refusal = lost
            raise
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def idle(self, *, within_s: float) -> bool:
        """Wait until no batch is being written; return False if that takes longer.

        Spark's own stop does not wait for a function in Python.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout=within_s)

    def give_up(self) -> None:
        """Stop renewing the reservation; ``check`` fails soon after.

        That ends the wait for a sink that does not answer. A commit in doubt is left to the next
        driver, which asks the sink.
        """
        self._reservation.give_up()

    def close(self) -> None:
        """Close the sinks, unless a batch that hangs still uses one."""
        if not self.idle(within_s=0):
            return
        while self._sinks:
            self._sinks.pop().close()
