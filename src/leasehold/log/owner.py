"""The owner of a partition: stores what waits, all of it with one wait for the volumes.

One thread for each partition that this process owns. It takes every parcel that waits, its own
and forwarded ones, writes a frame for each, syncs once, and answers all. While it syncs, others
queue. Nothing is answered before it is on all volumes.

When the segment is taken over by somebody else, the thread ends: what was not answered is answered
with ``Moved``, and the producers hand it to the new owner, who knows what it has already.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError, LeaseLost, UnknownFile, UsageError
from leasehold.log.counts import Numbers
from leasehold.log.frame import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    check_storable,
    encode_events,
    encode_segment_header,
)
from leasehold.log.index import IndexBuilder
from leasehold.log.parcel import Moved, Stored
from leasehold.log.producers import encode_producers
from leasehold.log.takeover import begin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from leasehold.clock import Clock
    from leasehold.files.namespace import Namespace
    from leasehold.log.counts import Counts
    from leasehold.log.frame import Encoded
    from leasehold.log.parcel import Parcel, Partition
    from leasehold.log.streams import StreamSettings
    from leasehold.log.takeover import Opening

Answer = Future[tuple[Stored, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    parcels: Sequence[Parcel]
    durable: bool
    answer: Answer = field(default_factory=Future)


class PartitionOwner:
    """Made when a segment was opened by ``takeover.take``. Safe to use from several threads."""

    def __init__(
        self,
        partition: Partition,
        opening: Opening,
        settings: StreamSettings,
        *,
        files: Namespace,
        clock: Clock,
        counts: Counts,
        rolled: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread. It calls ``rolled`` after a segment was closed and another begun."""
        self._tell_rolled = rolled
        self._has_rolled = False
        self.partition = partition
        self._settings = settings
        self._files = files
        self._clock = clock
        self._counts = counts
        self._writer = opening.writer
        self._ledger = opening.ledger
        self._index: IndexBuilder | None = None  # none: the segment has no bytes yet
        self._began_at = 0.0
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._closing = False
        self._ended: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run,
            name=f"leasehold-owner-{partition.stream}-{partition.number}",
            daemon=True,
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still takes parcels."""
        return self._ended is None and not self._closing

    @property
    def path(self) -> str:
        """The segment that is being written."""
        return self._writer.path

    def submit(self, parcels: Sequence[Parcel], *, durable: bool) -> Answer:
        """Queue parcels that share one fate; the answer comes when all of them are stored.

        Raises:
            Moved: this process is not the owner any more. The answer may say so too.
        """
        job = _Job(parcels=parcels, durable=durable)
        with self._changed:
            if not self.alive:
                raise Moved(f"{self.path} is not written here any more: {self._ended or 'closed'}")
            self._waiting.append(job)
            self._changed.notify()
        return job.answer

    def close(self) -> None:
        """Store what waits, seal the segment, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        jobs: list[_Job] = []
        try:
            while jobs := self._next():
                self._serve(jobs)
            self._seal()
        except BaseException as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            self._end(error, jobs)
        else:
            self._end(Moved(f"{self.path} was closed"), [])

    def _next(self) -> list[_Job]:
        """Everything that waits; nothing when it is time to close."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            jobs = list(self._waiting)
            self._waiting.clear()
            return jobs

    def _serve(self, jobs: list[_Job]) -> None:
        jobs = [job for job in jobs if _storable(job)]
        if not jobs:
            return
        before = self._ledger.next_sequence
        answers = [tuple(self._store(parcel) for parcel in job.parcels) for job in jobs]
        if any(job.durable for job in jobs):
            self._writer.sync()
        else:
            self._writer.flush()
        stored = [each for answer in answers for each in answer]
        frames = sum(
            each.skipped < parcel.batch.num_rows
            for each, parcel in zip(
                stored, (parcel for job in jobs for parcel in job.parcels), strict=True
            )
        )
        self._counts.add(
            Numbers(
                events=self._ledger.next_sequence - before,
                frames=frames,
                commits=1,
                duplicates=sum(each.skipped for each in stored),
            )
        )
        for job, answer in zip(jobs, answers, strict=True):
            job.answer.set_result(answer)
        if self._has_rolled:
            self._has_rolled = False
            self._tell_rolled()

    def _store(self, parcel: Parcel) -> Stored:
        """Write what is new of a parcel, as one frame."""
        new, batch = self._ledger.new_of(parcel), parcel.batch
        if new.skip:
            batch = batch.slice(new.skip)
        first = self._ledger.next_sequence
        if batch.num_rows:
            self._append(batch, parcel, new.skip)
        return Stored(first_sequence=first, skipped=new.skip, stored_as=new.stored_as)

    def _append(self, batch: pa.RecordBatch, parcel: Parcel, skip: int) -> None:
        if self._index is not None and self._is_full(batch.nbytes):
            self._roll()
        index = self._index or self._begin()
        stamp = parcel.stamp
        frame = encode_events(
            batch,
            base_sequence=self._ledger.next_sequence,
            offset=self._ledger.next_offset,
            enqueued_us=self._ledger.time_us(self._now_us()),
            epoch=self._writer.epoch,
            producer=type(stamp)(producer=stamp.producer, sequence=stamp.sequence + skip),
            base_offset=index.index.segment.base_offset,
        )
        self._write(frame)
        index.add(frame.header, batch.column(0))

    def _is_full(self, more_bytes: int) -> bool:
        age_s = self._clock.boottime_s() - self._began_at
        return (
            self._writer.length + more_bytes > self._settings.segment_bytes
            or age_s > self._settings.segment_age_s
        )

    def _begin(self) -> IndexBuilder:
        """Write what every segment begins with: its header, and how far each producer is."""
        ledger, now_us = self._ledger, self._ledger.time_us(self._now_us())
        header = SegmentHeader(
            partition=self.partition.number,
            base_sequence=ledger.next_sequence,
            base_offset=ledger.next_offset,
            created_us=now_us,
            epoch=self._writer.epoch,
        )
        self._began_at = self._clock.boottime_s()
        self._index = IndexBuilder(header)
        self._writer.write(encode_segment_header(header))
        ledger.next_offset += SEGMENT_HEADER_BYTES
        producers = encode_producers(
            ledger.producers,
            base_sequence=ledger.next_sequence,
            offset=ledger.next_offset,
            enqueued_us=now_us,
            epoch=self._writer.epoch,
            base_offset=header.base_offset,
        )
        self._write(producers)
        self._index.add(producers.header)
        return self._index

    def _write(self, frame: Encoded) -> None:
        for part in frame.parts:
            self._writer.write(part)
        self._ledger.stored(frame.header)

    def _roll(self) -> None:
        """Seal the segment and begin the next, if nobody else does."""
        self._seal()
        self._writer = begin(
            self._files, self.partition, self._settings, base=self._ledger.next_sequence
        )
        self._index = None
        self._has_rolled = True

    def _seal(self) -> None:
        if self._index is not None:
            end = self._index.encode(
                now_us=self._ledger.time_us(self._now_us()), epoch=self._writer.epoch
            )
            for part in end.parts:
                self._writer.write(part)
            self._ledger.next_offset += end.length
        self._writer.close()

    def _end(self, error: BaseException, jobs: list[_Job]) -> None:
        """Take nothing more, and answer all that is unanswered."""
        with self._changed:
            self._ended = error
            jobs = [job for job in jobs if not job.answer.done()]
            tried = sum(len(job.parcels) for job in jobs)
            jobs += self._waiting
            self._waiting.clear()
        if isinstance(error, LeaseLost | UnknownFile):
            self._counts.add(Numbers(fenced=tried))
        with suppress(LeaseholdError, OSError):
            self._writer.close()
        for job in jobs:
            moved = Moved(f"{self.path} is not written here any more: {error}")
            moved.__cause__ = error
            job.answer.set_exception(moved)

    def _now_us(self) -> int:
        return int(self._clock.utc_now().timestamp() * 1_000_000)


def _storable(job: _Job) -> bool:
    """Whether a job can be stored; if not, it alone is told so, before anything is written."""
    try:
        for parcel in job.parcels:
            check_storable(parcel.batch, parcel.stamp)
    except UsageError as error:
        job.answer.set_exception(error)
        return False
    return True
