"""Sends events to a stream, dead letters too.

Guarantees:

* A future that has a result means: stored on all volumes, once, and (unless ``durable`` is off)
  safe from a power cut. One that fails with ``StoreUnavailable``: stored once, or not at all.
* Events of one producer to one partition are stored in the order they were sent in; so are those
  with one key.
* What is tried again, after a lost answer or a change of owner, is not stored twice.
* While it sends, it checks every second whether the stream has more partitions, and uses them.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Self, TypeAlias

from anyio import CapacityLimiter, to_thread
from crc32c import crc32c

from leasehold.clock import new_token
from leasehold.errors import UsageError
from leasehold.events.event import Event, partition_of, sent_batch, split_by_key
from leasehold.log.options import ProducerOptions
from leasehold.log.segment_format import MAX_BODY_BYTES
from leasehold.log.send_queue import ByteLimit, PartitionGrowth, PendingSend, SendQueue, cut
from leasehold.names import seconds_of
from leasehold.runtime.process_check import ProcessCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    import pyarrow as pa

    from leasehold.clock import Clock
    from leasehold.events.dead_letters import DeadLetter
    from leasehold.log.log import Log
    from leasehold.log.partition_router import PartitionRouter
    from leasehold.log.producer_batch import Receipt
    from leasehold.log.streams import StreamInfo

Sent: TypeAlias = "Future[tuple[Receipt, ...]]"
_OVERHEAD_BYTES = 16  # the offsets of an event in its columns
_FRAME_ROOM_BYTES = 1 << 20  # of a frame, for what is stored beside its events
_LONGEST_WAIT_S = 366 * 24 * 3600.0


class Producer:
    """Made by ``Log.producer``. Safe to use from several threads. Closing sends what waits."""

    def __init__(
        self,
        stream: StreamInfo,
        options: ProducerOptions | None,
        *,
        seat_of: Callable[[int], PartitionRouter],
        look: Callable[[], StreamInfo],
        clock: Clock,
    ) -> None:
        """``look`` reads the stream again. The first event for a partition starts its thread."""
        self._growth = PartitionGrowth(stream, look, clock=clock)
        self._options = options or ProducerOptions()
        self._id = self._options.producer_id or bytes.fromhex(new_token())
        # What is stored beside small events may take more space than they do.
        self._max_bytes = min(
            self._options.batch_bytes, stream.settings.segment_bytes // 4, MAX_BODY_BYTES // 8
        )
        self._max_event_bytes = min(
            stream.settings.segment_bytes, MAX_BODY_BYTES - _FRAME_ROOM_BYTES
        )
        self._process_check = ProcessCheck("the producer")
        self._router_of = seat_of
        self._clock = clock
        self._byte_limit = ByteLimit(self._options.max_pending_bytes, clock=clock)
        # The same for the same producer id: what it sends again goes to the same partitions.
        self._round_robin = count(crc32c(self._id) % stream.partitions)
        self._lock = threading.Lock()
        self._queues: dict[int, SendQueue] = {}
        self._closed = False

    @property
    def id(self) -> bytes:
        """The 16 bytes by which the log knows this producer."""
        return self._id

    @property
    def stream(self) -> StreamInfo:
        """The stream it sends to, as it was at the last check."""
        return self._growth.stream

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def waiting_bytes(self) -> int:
        """How many bytes are taken by what waits to be stored."""
        return self._byte_limit.used_bytes

    def send(
        self,
        what: Event | Sequence[Event] | pa.RecordBatch | pa.Table,
        *,
        key: str | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Send events; the future has a receipt for each partition they went to.

        They go to ``partition`` if it is given, else by key: an event's own, or ``key`` for those
        that have none. All events of a call that have no key at all go to one partition; the next
        call takes the next one. Blocks while too much waits.

        Raises:
            UsageError: it cannot be sent, or the producer is closed.
            BufferFull: too much has been waiting for ``send_timeout``.
            UnknownStream: the stream was deleted.
        """
        self._process_check.check()
        self._growth.refresh_if_due()
        stream = self._growth.stream_with(partition)
        by_partition: Mapping[int, Sequence[tuple[Event | pa.RecordBatch, int]]]
        if isinstance(what, Event) and not what.properties:
            by_partition = {
                self._partition_for(stream, what, key, partition): [_with_size(what, key)]
            }
        else:
            batch = sent_batch(what)
            if key is not None:
                batch = _with_key(batch, key)
            parts = self._split(stream, batch, partition)
            by_partition = {number: self._cut(part) for number, part in parts.items()}
        return self._put(by_partition)

    def flush(self, timeout: timedelta | None = None) -> bool:
        """Wait for all that was sent before: True if all of it was stored or failed in time.

        The futures have the outcome. Without ``timeout`` that takes ``deliver_timeout`` at
        most.

        Raises:
            InvalidDuration: ``timeout`` is not a timedelta, or below zero.
        """
        self._process_check.check()
        deadline = None
        if timeout is not None:
            timeout_s = seconds_of(timeout, what="timeout", min_s=0.0, max_s=_LONGEST_WAIT_S)
            deadline = self._clock.boottime_s() + timeout_s
        with self._lock:
            queues = tuple(self._queues.values())
        marks = [(queue, queue.begin_flush()) for queue in queues]
        return all(
            queue.wait(
                mark,
                timeout_s=None
                if deadline is None
                else max(deadline - self._clock.boottime_s(), 0.0),
            )
            for queue, mark in marks
        )

    def close(self) -> None:
        """Send what waits, wait for the answers, and end all threads. Safe to call twice.

        Raises:
            UsageError: this process was forked from the one that opened it.
        """
        self._process_check.check()
        with self._lock:
            self._closed = True
            queues = tuple(self._queues.values())
        self._begin_flush()
        for queue in queues:
            queue.close()
        self._growth.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _put(
        self, by_partition: Mapping[int, Sequence[tuple[Event | pa.RecordBatch, int]]]
    ) -> Sent:
        """Queue the parts for each partition, when the byte limit allows all of them."""
        queues = [self._queue(number) for number in by_partition]
        pending = PendingSend(sum(map(len, by_partition.values())))
        if not by_partition:
            pending.future.set_result(())
            return pending.future
        sizes = [size for parts in by_partition.values() for _, size in parts]
        timeout_s = self._options.send_timeout.total_seconds()
        self._byte_limit.acquire(
            sum(sizes), parts=len(sizes), timeout_s=timeout_s, begin_flush=self._begin_flush
        )
        for queue, parts in zip(queues, by_partition.values(), strict=True):
            queue.put(parts, pending)
        return pending.future

    def _partition_for(
        self, stream: StreamInfo, event: Event, key: str | None, partition: int | None
    ) -> int:
        """Return the partition of a single event."""
        key = key if event.key is None else event.key
        by_key = None if key is None else partition_of(key, stream.partitions)
        if len(event.body) + len(key or "") > self._max_event_bytes:
            raise self._too_big(len(event.body) + len(key or ""))
        if partition is not None:
            return stream.checked(partition)
        return next(self._round_robin) % stream.partitions if by_key is None else by_key

    def _split(
        self, stream: StreamInfo, batch: pa.RecordBatch, partition: int | None
    ) -> dict[int, pa.RecordBatch]:
        """Return the events by partition."""
        partitions = stream.partitions
        if partition is not None:
            partition = stream.checked(partition)
        if not batch.num_rows:
            return {}
        if partition is not None or partitions == 1:
            return {partition or 0: batch}
        keys = batch.column(0)
        if keys.null_count == len(keys):
            return {next(self._round_robin) % partitions: batch}
        keyless = next(self._round_robin) % partitions if keys.null_count else 0
        return split_by_key(batch, partitions, keyless=keyless)

    def _cut(self, batch: pa.RecordBatch) -> Sequence[tuple[pa.RecordBatch, int]]:
        parts = tuple(cut(batch, self._max_bytes))
        biggest = max(size for _, size in parts)
        if biggest > self._max_event_bytes:
            raise self._too_big(biggest)
        return parts

    def _too_big(self, size: int) -> UsageError:
        return UsageError(
            f"an event has {size} bytes, and one of {self.stream.name!r} may have "
            f"{self._max_event_bytes} (a segment has {self.stream.settings.segment_bytes}): send "
            "smaller events, or use a stream with bigger segments"
        )

    def _queue(self, number: int) -> SendQueue:
        queue = self._queues.get(number)
        if queue is not None and not self._closed:
            return queue
        with self._lock:
            if self._closed:
                raise UsageError("the producer is closed: open another one")
            if number not in self._queues:
                self._queues[number] = SendQueue(
                    self._router_of(number),
                    self._options,
                    producer_id=self._id,
                    max_bytes=self._max_bytes,
                    byte_limit=self._byte_limit,
                    clock=self._clock,
                )
            return self._queues[number]

    def _begin_flush(self) -> None:
        for queue in tuple(self._queues.values()):
            queue.begin_flush()


def _with_size(event: Event, key: str | None) -> tuple[Event, int]:
    """Return the event as it is queued, and about how many bytes it takes."""
    if event.key is None and key is not None:
        event = replace(event, key=key)
    return event, len(event.body) + len(event.key or "") + _OVERHEAD_BYTES


def _with_key(batch: pa.RecordBatch, key: str) -> pa.RecordBatch:
    """Set the key of events that have none."""
    if not isinstance(key, str):
        raise UsageError(f"a key is text, not {type(key).__name__}: write key=str(…)")
    return batch.set_column(0, batch.schema.field(0), batch.column(0).fill_null(key))


class LogDeadLetters:
    """Dead letters in a stream of the log, partitioned by the keys of the events."""

    def __init__(self, log: Log, stream: str) -> None:
        """Look the stream up; this blocks for one query.

        Raises:
            UnknownStream: there is none; the message names those there are.
        """
        self.stream = stream
        self._producer = log.producer(stream, ProducerOptions(linger=timedelta(0)))
        self._limiter = CapacityLimiter(1)

    async def send(self, letters: Sequence[DeadLetter]) -> None:
        """Store the letters. A letter that is too big is stored with a shorter error.

        If cancelled, it returns immediately and continues in its thread: they may be stored or not.

        Raises:
            StoreUnavailable: they could not be stored in time; they may be stored or not.
            BufferFull: too much waits to be stored.
            UnknownStream: the stream was deleted.
            UsageError: one can never be stored, it is too big for the stream; or this is closed.
        """
        if letters:
            # A stop must not have to wait for the timeout of a failing log.
            await to_thread.run_sync(
                self._store, letters, limiter=self._limiter, abandon_on_cancel=True
            )

    async def close(self) -> None:
        """Close the producer. The log stays open."""
        await to_thread.run_sync(self._producer.close, limiter=self._limiter)

    def _store(self, letters: Sequence[DeadLetter]) -> None:
        try:
            self._producer.send([_event(each, each.properties()) for each in letters]).result()
        except UsageError:
            if len(letters) == 1:
                self._store_short(letters[0])
            else:
                for each in letters:
                    self._store([each])

    def _store_short(self, letter: DeadLetter) -> None:
        try:
            self._producer.send([_event(letter, letter.short_properties())]).result()
        except UsageError as error:
            raise UsageError(
                f"event {letter.event.sequence_number} of partition {letter.partition} of "
                f"{letter.stream!r} can not be put into the dead letters in {self.stream!r}: "
                f"{error}"
            ) from error


def _event(letter: DeadLetter, properties: dict[str, str]) -> Event:
    return Event(key=letter.event.key, body=letter.event.body, properties=properties)
