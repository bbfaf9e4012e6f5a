"""A sink behind ``foreachBatch``: each batch of a query once, refused to drivers of the past.

The sink's group is ``query/<name>``. Its one partition is the id of the checkpoint, not a fixed
word: batches of a new checkpoint begin at 0 again, and would all be taken for known ones. The
position is the number of the next batch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasehold.core.backoff import Ladder
from leasehold.errors import (
    BatchFailed,
    FencedWrite,
    LeaseLost,
    SinkChanged,
    SinkUnfit,
    StoreUnavailable,
)
from leasehold.spark.ranges import Range
from leasehold.spark.sinks.port import Batch, Share

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from leasehold.clock import Clock
    from leasehold.jobs import Reservation
    from leasehold.spark.sinks.port import Sink, Staged

log = logging.getLogger("leasehold.spark")

_PAUSES = Ladder(base_s=0.05, most_s=1.0)


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
        # The key has the name quoted: a slash in it can not make two groups alike.
        self.group = f"query/{reservation.key.partition('/')[2]}"
        self._partition: str | None = None
        self._next: int | None = None

    def prepare(self) -> bool:
        """Shut former drivers out, if the checkpoint has a name yet; say whether it has.

        Raises:
            FencedWrite: the sink knows a higher epoch.
            StoreUnavailable: it can not be reached.
        """
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
        """Write one batch, unless the sink holds it already.

        Raises:
            LeaseLost: this driver is not in charge any more; nothing was written.
            FencedWrite: the sink says so.
            SinkUnfit, SinkChanged: it can not take the batch; nothing was written.
        """
        self._reservation.check()
        if not self.prepare() or self._partition is None:
            raise BatchFailed(
                f"batch {batch_id} of {self._reservation.name!r} has no checkpoint at the location "
                "that is reserved: give the query the same checkpointLocation"
            )
        if self._next is not None and batch_id < self._next:
            log.info("%s: batch %d is there already", self._reservation.name, batch_id)
            return
        place = Range(partition=self._partition, start=batch_id, end=batch_id + 1)
        batch = Batch(
            group=self.group,
            number=batch_id,
            shares=(Share(range=place, epoch=self._reservation.epoch),),
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
                # It may have been done. The sink knows, and says so when it is asked again: by us,
                # or, if the driver stops or loses its reservation meanwhile, by the next one.
                failures += 1
                log.warning("batch %d: no answer to the commit: %s", batch.number, error)
                self._reservation.lost.wait(_PAUSES.pause_s(failures, self._rng))
            except (LeaseLost, SinkChanged, SinkUnfit):
                if not failures:  # else it may be there, and would lose its files
                    self._sink.discard(staged)
                raise
            else:
                return
