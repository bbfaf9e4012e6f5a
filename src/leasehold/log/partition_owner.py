"""The owner of a partition: stores all queued batches with one wait for the volumes.

There is one thread for each partition that this process owns. It takes every producer batch that
waits, local and forwarded, writes a frame for each, syncs once, and answers all. Nothing is
answered before it is on all volumes. When another process takes the segment over, the thread ends:
unanswered batches fail with ``OwnerMoved``, and the producers send them to the new owner.

``AppendState`` is what an owner must know to continue: next numbers, times, and the numbers of
each producer. It comes from the last segment, and decides which parts of a batch are new. Sequence
numbers have no gaps, offsets and times never decrease, and nothing is stored twice.

A process becomes the owner by opening a new segment at the end of the partition. The file layer
admits one writer and fences the one before. After it has created its segment, the process lists the
segments again: if a later one exists, it gives up. Retention never removes the newest segment.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.errors import (
    DataDamaged,
    FileExists,
    FileHeld,
    LeaseholdError,
    LeaseLost,
    RecoveryInProgress,
    UnknownFile,
    UsageError,
)
from leasehold.files.model import FileState
from leasehold.log.mapped_segment import MappedSegment
from leasehold.log.producer_batch import OwnerMoved, StoredBatch, StoredPart, StoreOutcome
from leasehold.log.producer_states import (
    DEFAULT_LIMIT,
    NumberState,
    ProducerStates,
    encode_producers,
    newest_producers,
    note_producer,
)
from leasehold.log.segment import IndexBuilder
from leasehold.log.segment_format import (
    SEGMENT_HEADER_BYTES,
    FrameKind,
    ProducerStamp,
    SegmentHeader,
    check_storable,
    encode_events,
    encode_segment_header,
    padded,
)
from leasehold.log.segment_list import ListedSegment
from leasehold.log.streams import LogCounts, base_of, segment_path, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from leasehold.clock import Clock
    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace
    from leasehold.files.writer import FileWriter
    from leasehold.log.producer_batch import ProducerBatch, StreamPartition
    from leasehold.log.segment import Segment
    from leasehold.log.segment_format import EncodedFrame, FrameHeader
    from leasehold.log.streams import LogCounters, StreamSettings

_REMEMBERED = 64


@dataclass(slots=True, kw_only=True)
class AppendState:
    """The state of one partition at its end."""

    next_sequence: int = 0
    next_offset: int = 0
    last_us: int = 0
    producers: ProducerStates = field(default_factory=ProducerStates)
    # The last frames of each producer: its first number, how many, the first sequence number.
    recent: dict[bytes, deque[tuple[int, int, int]]] = field(default_factory=dict)

    @classmethod
    def after(cls, segment: Segment) -> AppendState:
        """Return the state after the last whole frame of a segment."""
        append_state = cls(
            next_sequence=segment.next_sequence,
            next_offset=segment.header.base_offset + padded(len(segment)),
            last_us=segment.header.created_us,
            producers=segment.producers(),
        )
        for header in segment.frames():
            append_state.last_us = max(append_state.last_us, header.last_us)
            append_state._remember_frame(header)
        return append_state

    def parts_of(self, producer_batch: ProducerBatch) -> list[StoredPart]:
        """Return the parts of a producer batch: those to store, and those stored before."""
        first, end = producer_batch.stamp.sequence, producer_batch.end
        known = self.producers.get(producer_batch.stamp.producer)
        if known is None or first > known.last_sequence:
            return [StoredPart(count=end - first)]
        if producer_batch.in_order:
            known = replace(known, gaps=(), known_from=0)
        parts: list[StoredPart] = []
        for part_first, part_end, state in known.split(first, end):
            if state is NumberState.STORED:
                parts += self._stored_before(producer_batch.stamp.producer, part_first, part_end)
            else:
                new = state is NumberState.NOT_STORED
                outcome = StoreOutcome.STORED if new else StoreOutcome.UNKNOWN
                parts.append(StoredPart(count=part_end - part_first, outcome=outcome))
        return parts

    def _stored_before(self, producer: bytes, first: int, end: int) -> Iterator[StoredPart]:
        """Yield where these numbers are stored, frame by frame, as far as that is known."""
        frames = sorted(self.recent.get(producer, ()))
        while first < end:
            until, stored_as = end, -1
            for number, count, base in frames:
                if number > first:
                    until = min(until, number)
                    break
                if first < number + count:
                    until, stored_as = min(end, number + count), base + first - number
                    break
            yield StoredPart(
                count=until - first, first_sequence=stored_as, outcome=StoreOutcome.DUPLICATE
            )
            first = until

    def time_us(self, now_us: int) -> int:
        """Return the time to store events under: now, but never before that of an earlier one."""
        self.last_us = max(self.last_us, now_us)
        return self.last_us

    def stored(self, header: FrameHeader) -> None:
        """Continue after a frame that was written."""
        self.next_sequence = max(self.next_sequence, header.next_sequence)
        self.next_offset = header.offset + header.length
        note_producer(self.producers, header)
        self._remember_frame(header)
        if len(self.producers) > 2 * DEFAULT_LIMIT:
            self.producers = newest_producers(self.producers)
            self.recent = {
                each: self.recent[each] for each in self.producers if each in self.recent
            }

    def _remember_frame(self, header: FrameHeader) -> None:
        if header.kind is FrameKind.EVENTS:
            frames = self.recent.setdefault(header.stamp.producer, deque(maxlen=_REMEMBERED))
            frames.append((header.stamp.sequence, header.count, header.base_sequence))


_RECOVERY_LIMIT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSegment:
    """A new segment, open for writing at the end of a partition, and the state before it."""

    writer: FileWriter
    append_state: AppendState


def newest_segment(
    files: Namespace, partition: StreamPartition, *, from_base: int = 0
) -> FileStatus | None:
    """Return the last segment of a partition, if any; the list begins at ``from_base``."""
    found = _segments(files, partition, from_base=from_base)
    return found[-1] if found else None


def open_next_segment(
    files: Namespace, partition: StreamPartition, settings: StreamSettings, *, from_base: int
) -> OpenedSegment:
    """Open the next segment of a partition."""
    found = _segments(files, partition, from_base=from_base)
    if found and found[-1].state is not FileState.CLOSED:
        raise OwnerMoved(f"{found[-1].path} is being written by {found[-1].holder}")
    _close_earlier(files, found[:-1])
    if found and not found[-1].length:
        return _reopen_empty(files, partition, found[-1].path)
    if not found:
        return OpenedSegment(
            writer=create_segment(files, partition, settings, base=0), append_state=AppendState()
        )
    append_state = _state_after(files, found[-1])
    if append_state.next_sequence == base_of(found[-1].path):
        _discard_without_events(files, found[-1])
        raise OwnerMoved(f"{found[-1].path} had no whole event and was removed")
    return OpenedSegment(
        writer=create_segment(files, partition, settings, base=append_state.next_sequence),
        append_state=append_state,
    )


def create_segment(
    files: Namespace, partition: StreamPartition, settings: StreamSettings, *, base: int
) -> FileWriter:
    """Create the segment that begins at ``base``, if it is the last one then."""
    path = segment_path(partition.stream, partition.number, base)
    try:
        writer = files.create(
            path, replication=settings.replication or None, block_bytes=settings.block_bytes
        )
    except (FileExists, FileHeld, RecoveryInProgress) as error:
        raise OwnerMoved(f"{path} was created by somebody else: {error}") from error
    _check_last(files, partition, writer, base)
    return writer


def _reopen_empty(files: Namespace, partition: StreamPartition, path: str) -> OpenedSegment:
    """Open a last segment that has no bytes; the state is in the segment before."""
    base = base_of(path) or 0
    before = [each for each in _segments(files, partition) if each.length and each.path < path]
    append_state = AppendState(next_sequence=base)
    if before:
        append_state = _state_after(files, before[-1])
    if append_state.next_sequence != base:
        raise DataDamaged(
            f"{path} should follow event {append_state.next_sequence - 1}, which is the last one "
            f"in {before[-1].path}: verify the stream"
        )
    try:
        writer = files.append(path)
    except (FileHeld, RecoveryInProgress, UnknownFile) as error:
        raise OwnerMoved(f"{path} was opened by somebody else: {error}") from error
    if writer.length:
        writer.close()
        raise OwnerMoved(f"{path} was written by somebody else")
    _check_last(files, partition, writer, base)
    return OpenedSegment(writer=writer, append_state=append_state)


def _state_after(files: Namespace, status: FileStatus) -> AppendState:
    """Return what is known after a segment, from a volume on which it is sound."""
    mapped = MappedSegment(ListedSegment(base=base_of(status.path) or 0, path=status.path), files)
    while True:
        try:
            return AppendState.after(mapped.whole)
        except DataDamaged as damage:
            mapped.repair(damage)


def _check_last(
    files: Namespace, partition: StreamPartition, writer: FileWriter, base: int
) -> None:
    """Discard the new segment if a later one exists: this process was too late."""
    found = segments(files, partition.stream, partition.number, from_base=base + 1)
    later = [each.path for each in found]
    if later:
        with suppress(LeaseLost, UnknownFile):
            writer.discard()
        raise OwnerMoved(f"the partition has gone on: {later[-1]}")


def _close_earlier(files: Namespace, earlier: Sequence[FileStatus]) -> None:
    """Close what is open before the last segment: an owner that was too late crashed there."""
    for each in earlier:
        if each.state is not FileState.CLOSED:
            with suppress(UnknownFile):
                status = files.recover(each.path, timeout=_RECOVERY_LIMIT)
                if not status.length:
                    files.delete(each.path, by_log=True)


def _discard_without_events(files: Namespace, status: FileStatus) -> None:
    """Remove a last segment that has bytes and no event: a first batch that was cut short."""
    with suppress(FileHeld, RecoveryInProgress, LeaseLost, UnknownFile):
        writer = files.append(status.path)
        if writer.length == status.length:
            writer.discard()
        else:
            writer.close()


def _segments(
    files: Namespace, partition: StreamPartition, *, from_base: int = 0
) -> list[FileStatus]:
    found = segments(files, partition.stream, partition.number, from_base=from_base)
    if from_base and not found:  # the stream was deleted, and perhaps recreated
        return _segments(files, partition)
    return found


Answer = Future[tuple[StoredBatch, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _AppendJob:
    batches: Sequence[ProducerBatch]
    durable: bool
    answer: Answer = field(default_factory=Future)


class PartitionOwner:
    """Writes the segments of one partition. Safe to use from several threads."""

    def __init__(
        self,
        partition: StreamPartition,
        opened: OpenedSegment,
        settings: StreamSettings,
        *,
        files: Namespace,
        clock: Clock,
        counts: LogCounters,
        on_roll: Callable[[], None] = lambda: None,
        has_thread: bool = True,
    ) -> None:
        """Start the thread. It calls ``on_roll`` after a segment was closed and another begun.

        Without a thread the caller has to call ``store_submitted``.
        """
        self._on_roll = on_roll
        self._has_rolled = False
        self.partition = partition
        self._settings = settings
        self._files = files
        self._clock = clock
        self._counts = counts
        self._writer = opened.writer
        self._append_state = opened.append_state
        self._index: IndexBuilder | None = None  # none: the segment has no bytes yet
        self._began_at = 0.0
        self._changed = threading.Condition()
        self._queue: deque[_AppendJob] = deque()
        self._closing = False
        self._ended: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run,
            name=f"leasehold-owner-{partition.stream}-{partition.number}",
            daemon=True,
        )
        if has_thread:
            self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still accepts producer batches."""
        return self._ended is None and not self._closing

    @property
    def path(self) -> str:
        """The segment that is being written."""
        return self._writer.path

    def submit(self, batches: Sequence[ProducerBatch], *, durable: bool) -> Answer:
        """Queue producer batches; the answer comes when all of them are stored."""
        job = _AppendJob(batches=batches, durable=durable)
        with self._changed:
            if not self.alive:
                raise OwnerMoved(
                    f"{self.path} is not written here any more: {self._ended or 'closed'}"
                )
            self._queue.append(job)
            self._changed.notify()
        return job.answer

    def close(self) -> None:
        """Store what waits, seal the segment, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def store_submitted(self) -> None:
        """Store what was submitted, in the thread of the caller."""
        with self._changed:
            jobs = list(self._queue)
            self._queue.clear()
        try:
            self._store_jobs(jobs)
        except LeaseholdError as error:
            self._end(error, jobs)

    def _run(self) -> None:
        jobs: list[_AppendJob] = []
        try:
            while jobs := self._next_jobs():
                self._store_jobs(jobs)
            self._seal()
        except BaseException as error:  # noqa: BLE001 - no caller may wait forever
            self._end(error, jobs)
        else:
            self._end(OwnerMoved(f"{self.path} was closed"), [])

    def _next_jobs(self) -> list[_AppendJob]:
        """Return all queued jobs; an empty list when it is time to close."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            jobs = list(self._queue)
            self._queue.clear()
            return jobs

    def _store_jobs(self, jobs: list[_AppendJob]) -> None:
        jobs = [job for job in jobs if _is_storable(job)]
        if not jobs:
            return
        before = self._append_state.next_sequence
        answers = [
            tuple(self._store(producer_batch) for producer_batch in job.batches) for job in jobs
        ]
        if any(job.durable for job in jobs):
            self._writer.sync()
        else:
            self._writer.flush()
        stored = [each for answer in answers for each in answer]
        self._counts.add(
            LogCounts(
                events=self._append_state.next_sequence - before,
                frames=sum(
                    part.outcome is StoreOutcome.STORED for each in stored for part in each.parts
                ),
                commits=1,
                duplicates=sum(each.count(StoreOutcome.DUPLICATE) for each in stored),
            )
        )
        for job, answer in zip(jobs, answers, strict=True):
            job.answer.set_result(answer)
        if self._has_rolled:
            self._has_rolled = False
            self._on_roll()

    def _store(self, producer_batch: ProducerBatch) -> StoredBatch:
        """Write what is new of a producer batch: usually all of it, as one frame."""
        parts, at = self._append_state.parts_of(producer_batch), 0
        for index, part in enumerate(parts):
            if part.outcome is StoreOutcome.STORED:
                parts[index] = replace(part, first_sequence=self._append_state.next_sequence)
                stamp = producer_batch.stamp
                if at:
                    stamp = ProducerStamp(producer=stamp.producer, sequence=stamp.sequence + at)
                whole = len(parts) == 1
                batch = producer_batch.batch
                self._append(batch if whole else batch.slice(at, part.count), stamp)
            at += part.count
        return StoredBatch(parts=tuple(parts))

    def _append(self, batch: pa.RecordBatch, stamp: ProducerStamp) -> None:
        if self._index is not None and self._is_full(batch.nbytes):
            self._roll()
        index = self._index or self._begin()
        frame = encode_events(
            batch,
            base_sequence=self._append_state.next_sequence,
            offset=self._append_state.next_offset,
            enqueued_us=self._append_state.time_us(self._now_us()),
            epoch=self._writer.epoch,
            producer=stamp,
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
        """Write what every segment begins with: its header, and the state of each producer."""
        append_state, now_us = self._append_state, self._append_state.time_us(self._now_us())
        header = SegmentHeader(
            partition=self.partition.number,
            base_sequence=append_state.next_sequence,
            base_offset=append_state.next_offset,
            created_us=now_us,
            epoch=self._writer.epoch,
        )
        self._began_at = self._clock.boottime_s()
        self._index = IndexBuilder(header)
        self._writer.write(encode_segment_header(header))
        append_state.next_offset += SEGMENT_HEADER_BYTES
        producers = encode_producers(
            append_state.producers,
            base_sequence=append_state.next_sequence,
            offset=append_state.next_offset,
            enqueued_us=now_us,
            epoch=self._writer.epoch,
            base_offset=header.base_offset,
        )
        self._write(producers)
        self._index.add(producers.header)
        return self._index

    def _write(self, frame: EncodedFrame) -> None:
        for part in frame.parts:
            self._writer.write(part)
        self._append_state.stored(frame.header)

    def _roll(self) -> None:
        """Seal the segment and begin the next, if no other process does."""
        self._seal()
        self._writer = create_segment(
            self._files, self.partition, self._settings, base=self._append_state.next_sequence
        )
        self._index = None
        self._has_rolled = True

    def _seal(self) -> None:
        if self._index is not None:
            end = self._index.encode(
                now_us=self._append_state.time_us(self._now_us()), epoch=self._writer.epoch
            )
            for part in end.parts:
                self._writer.write(part)
            self._append_state.next_offset += end.length
        self._writer.close()

    def _end(self, error: BaseException, jobs: list[_AppendJob]) -> None:
        """Accept nothing more, and fail all unanswered jobs."""
        with self._changed:
            self._ended = error
            jobs = [job for job in jobs if not job.answer.done()]
            tried = sum(len(job.batches) for job in jobs)
            jobs += self._queue
            self._queue.clear()
        if isinstance(error, LeaseLost | UnknownFile):
            self._counts.add(LogCounts(fenced=tried))
        with suppress(LeaseholdError, OSError):
            self._writer.close()
        for job in jobs:
            moved = OwnerMoved(f"{self.path} is not written here any more: {error}")
            moved.__cause__ = error
            job.answer.set_exception(moved)

    def _now_us(self) -> int:
        return int(self._clock.utc_now().timestamp() * 1_000_000)


def _is_storable(job: _AppendJob) -> bool:
    """Return whether a job can be stored; if not, fail this job before anything is written."""
    try:
        for producer_batch in job.batches:
            check_storable(producer_batch.batch, producer_batch.stamp)
    except UsageError as error:
        job.answer.set_exception(error)
        return False
    return True
