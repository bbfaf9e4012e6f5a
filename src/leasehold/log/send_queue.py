"""The queue of one producer to one partition, and the thread that sends it.

Small sends are gathered into one batch while they linger. What was taken from the queue is numbered
and delivered before anything else is taken, so the order is kept; a retry has the same numbers, so
nothing is stored twice.

``PendingSend`` is one call of ``send``: its future completes when all parts are stored or one has
failed. ``ByteLimit`` bounds the memory of what waits. ``PartitionGrowth`` tracks the number of
partitions while the stream may grow; sending never waits for that query, except for a partition
that is not known yet.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.errors import BufferFull, LeaseholdError, ResendUncertain, UsageError
from leasehold.events.event import Event, sent_batch
from leasehold.log.owner_link import OwnerClient
from leasehold.log.producer_batch import ProducerBatch, joined, receipts_of
from leasehold.log.segment_format import ProducerStamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leasehold.clock import Clock
    from leasehold.log.options import ProducerOptions
    from leasehold.log.partition_router import PartitionRouter
    from leasehold.log.producer_batch import Receipt, StoredBatch
    from leasehold.log.streams import StreamInfo

_PART_BYTES = 2048  # of memory, for each part beside its own bytes: its future and its queue entry


class PendingSend:
    """Parts of what was sent, on their way to one partition or several."""

    def __init__(self, parts: int) -> None:
        """``parts`` is how many answers there will be."""
        self.future: Future[tuple[Receipt, ...]] = Future()
        self.future.set_running_or_notify_cancel()  # what was sent cannot be called back
        self._left = parts
        self._receipts: list[Receipt] = []
        self._lock = threading.Lock()

    def stored(self, receipts: list[Receipt]) -> None:
        """One part is stored."""
        with self._lock:
            self._receipts += receipts
            self._left -= 1
            over = not self._left
        if over and not self.future.done():
            self._receipts.sort(key=lambda receipt: receipt.partition)
            self.future.set_result(joined(self._receipts))

    def failed(self, error: BaseException) -> None:
        """One part could not be stored; the others may be."""
        with self._lock:
            first = not self.future.done()
            self._left -= 1
            if first:
                self.future.set_exception(error)


class ByteLimit:
    """Bounds the bytes that wait to be stored; callers block while it is full.

    Each part counts with what it takes in memory, which is more than an event of a few bytes.
    """

    def __init__(self, max_bytes: int, *, clock: Clock) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._changed = threading.Condition()
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """How many bytes are taken by what waits to be stored."""
        return self._used_bytes

    def acquire(
        self, size: int, *, parts: int, timeout_s: float, begin_flush: Callable[[], None]
    ) -> None:
        """Wait until these parts fit. What is bigger than the limit may enter alone."""
        size += parts * _PART_BYTES
        with self._changed:
            if self._has_room(size):
                self._used_bytes += size
                return
        begin_flush()  # nothing may linger while a caller waits for space
        until = self._clock.boottime_s() + timeout_s
        with self._changed:
            while not self._has_room(size):
                remaining_s = until - self._clock.boottime_s()
                if remaining_s <= 0:
                    raise BufferFull(
                        f"{self._used_bytes} bytes wait to be stored, {self._max_bytes} may, "
                        f"and there was no room for {size} more in {timeout_s:g} s: send slower, "
                        "or look why the partition's owner does not store"
                    )
                self._changed.wait(remaining_s)
            self._used_bytes += size

    def release(self, size: int, *, parts: int) -> None:
        """Release the bytes of these parts."""
        with self._changed:
            self._used_bytes -= size + parts * _PART_BYTES
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._used_bytes or self._used_bytes + size <= self._max_bytes


def cut(batch: pa.RecordBatch, max_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the batch in slices of about ``max_bytes`` with their sizes; events are not cut."""
    size = int(batch.nbytes)
    if size <= max_bytes or batch.num_rows == 1:
        yield batch, size
        return
    half = batch.num_rows // 2
    yield from cut(batch.slice(0, half), max_bytes)
    yield from cut(batch.slice(half), max_bytes)


log = logging.getLogger("leasehold.log")

REFRESH_INTERVAL_S = 1.0


class PartitionGrowth:
    """The partitions of a growing stream. Safe to use from several threads."""

    def __init__(
        self, stream: StreamInfo, read_stream: Callable[[], StreamInfo], *, clock: Clock
    ) -> None:
        self._stream = stream
        self._read_stream = read_stream
        self._clock = clock
        self._refreshed_at = clock.boottime_s()
        self._lock = threading.Lock()
        self._refreshing: threading.Thread | None = None
        self._closed = False

    @property
    def stream(self) -> StreamInfo:
        """The stream as it was last read."""
        return self._stream

    def refresh_if_due(self) -> None:
        """Start to read the stream again if the last read is a second old; do not wait."""
        now = self._clock.boottime_s()
        if now - self._refreshed_at < REFRESH_INTERVAL_S:
            return
        with self._lock:
            if self._closed or now - self._refreshed_at < REFRESH_INTERVAL_S:
                return
            if self._refreshing is not None and self._refreshing.is_alive():
                return
            self._refreshed_at = now
            name = f"leasehold-growth-{self._stream.name}"
            self._refreshing = threading.Thread(target=self._refresh, name=name, daemon=True)
            self._refreshing.start()

    def stream_with(self, partition: int | None) -> StreamInfo:
        """Return the stream; read it first if it has no such partition yet."""
        stream = self._stream
        if isinstance(partition, int) and partition >= stream.partitions:
            self._refresh()
        return self._stream

    def close(self) -> None:
        """Wait for a read in progress, and start no other."""
        with self._lock:
            self._closed = True
            refreshing = self._refreshing
        if refreshing is not None:
            refreshing.join()

    def _refresh(self) -> None:
        try:
            found = self._read_stream()
        except LeaseholdError as error:  # deleted, or no answer: the delivery reports that
            log.info("%s could not be looked at: %s", self._stream.name, error)
            return
        with self._lock:
            if found.partitions > self._stream.partitions:  # reads may overtake one another
                log.info("%s has %d partitions now", found.name, found.partitions)
                self._stream = found


_MAX_BATCHES = 32  # delivered together; the owner remembers twice as many of each producer


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedEvents:
    """Events of one call of ``send``, or a part of them. One alone is made a batch with others."""

    what: Event | pa.RecordBatch
    count: int
    size: int
    put_at: float
    pending: PendingSend


class SendQueue:
    """One partition for one producer. ``put`` is for any thread."""

    def __init__(
        self,
        router: PartitionRouter,
        options: ProducerOptions,
        *,
        producer_id: bytes,
        max_bytes: int,
        byte_limit: ByteLimit,
        clock: Clock,
    ) -> None:
        """Start the thread. ``max_bytes`` go into one batch, or one bigger event."""
        self._router = router
        self._options = options
        self._producer_id = producer_id
        self._max_bytes = max_bytes
        self._byte_limit = byte_limit
        self._clock = clock
        self._linger_s = options.linger.total_seconds()
        self._owner_client = OwnerClient(
            clock=clock, owner_timeout_s=options.owner_timeout.total_seconds()
        )
        self._changed = threading.Condition()
        self._items: deque[QueuedEvents] = deque()
        self._events = 0
        self._bytes = 0
        self._queued_count = 0
        self._done_count = 0
        self._flush_up_to = 0  # items up to this number do not linger
        self._next_number = 0
        # Taken from the queue, and still counted by the byte limit.
        self._in_flight: tuple[QueuedEvents, ...] = ()
        self._closing = False
        name = f"leasehold-send-{router.partition.stream}-{router.partition.number}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(
        self, parts: Sequence[tuple[Event | pa.RecordBatch, int]], pending: PendingSend
    ) -> None:
        """Queue events, as parts that are each small enough for a batch, with their sizes."""
        now = self._clock.boottime_s()
        with self._changed:
            if self._closing:
                self._byte_limit.release(sum(size for _, size in parts), parts=len(parts))
                for _ in parts:
                    pending.failed(UsageError("the producer was closed: open another one"))
                return
            was_full, was_empty = self._is_full(), not self._items
            for what, size in parts:
                count = 1 if isinstance(what, Event) else int(what.num_rows)
                self._items.append(
                    QueuedEvents(what=what, count=count, size=size, put_at=now, pending=pending)
                )
                self._events += count
                self._bytes += size
                self._queued_count += 1
            if was_empty or self._is_full() != was_full:
                self._changed.notify_all()

    def begin_flush(self) -> int:
        """Let nothing that is queued linger; return the number of the last item."""
        with self._changed:
            self._flush_up_to = self._queued_count
            self._changed.notify_all()
            return self._queued_count

    def wait(self, number: int, *, timeout_s: float | None) -> bool:
        """Wait until that item and all before it are answered."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done_count >= number, timeout_s)

    def close(self) -> None:
        """Deliver what is queued, and end the thread."""
        with self._changed:
            self._closing = True
            self._flush_up_to = self._queued_count
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        batches: list[list[QueuedEvents]] = []
        try:
            while batches := self._next_batches():
                self._deliver(batches)
                with self._changed:
                    self._done_count += sum(len(items) for items in batches)
                    self._changed.notify_all()
        except BaseException as error:  # a bug must not let a caller wait forever
            self._fail(batches, error)
            raise
        finally:
            self._owner_client.close()

    def _fail(self, batches: Sequence[Sequence[QueuedEvents]], error: BaseException) -> None:
        """Accept nothing more, and fail all that is unanswered."""
        with self._changed:
            self._closing = True
            left = [*(item for items in batches for item in items), *self._items]
            self._in_flight += tuple(self._items)
            self._items.clear()
            self._done_count = self._queued_count
            self._changed.notify_all()
        self._release()
        for item in left:
            item.pending.failed(RuntimeError(f"the lane has ended: {error!r}"))

    def _next_batches(self) -> list[list[QueuedEvents]]:
        """Return all that waits, as batches, once it need not linger; an empty list at the end."""
        with self._changed:
            while not self._is_ready():
                if self._closing and not self._items:
                    return []
                self._changed.wait(self._linger_left_s())
            batches = list(self._gather())
            self._in_flight = tuple(item for items in batches for item in items)
            return batches

    def _is_full(self) -> bool:
        return (
            self._events >= self._options.batch_events or self._bytes >= self._options.batch_bytes
        )

    def _is_ready(self) -> bool:
        if not self._items:
            return False
        return (
            self._is_full()
            or self._flush_up_to > self._done_count
            or (self._linger_left_s() or 0.0) <= 0
        )

    def _linger_left_s(self) -> float | None:
        """Return how long the oldest item may linger yet."""
        if not self._items:
            return None
        return self._items[0].put_at + self._linger_s - self._clock.boottime_s()

    def _gather(self) -> Iterator[list[QueuedEvents]]:
        """Take items off the queue, as many in each batch as its bytes allow.

        More events than need be waited for are welcome: big frames are cheaper to read.
        """
        for _ in range(_MAX_BATCHES):
            items: list[QueuedEvents] = []
            events = size = 0
            while self._items and (not items or size + self._items[0].size <= self._max_bytes):
                items.append(self._items.popleft())
                events += items[-1].count
                size += items[-1].size
            if not items:
                return
            self._events -= events
            self._bytes -= size
            yield items

    def _deliver(self, batches: Sequence[Sequence[QueuedEvents]]) -> None:
        deadline_s = batches[0][0].put_at + self._options.deliver_timeout.total_seconds()
        try:
            answer = self._router.deliver(
                self._numbered(batches),
                durable=self._options.durable,
                owner_client=self._owner_client,
                deadline_s=deadline_s,
            )
        except Exception as error:  # noqa: BLE001 - it is raised by the future
            self._answer(batches, error)
        else:
            self._answer(batches, answer)

    def _numbered(self, batches: Sequence[Sequence[QueuedEvents]]) -> list[ProducerBatch]:
        """Number each batch with the sequence of this producer. Numbers are used only once."""
        numbered = []
        for items in batches:
            stamp = ProducerStamp(producer=self._producer_id, sequence=self._next_number)
            self._next_number += sum(item.count for item in items)
            numbered.append(ProducerBatch(stamp=stamp, batch=_as_record_batch(items)))
        return numbered

    def _answer(
        self, batches: Sequence[Sequence[QueuedEvents]], answer: tuple[StoredBatch, ...] | Exception
    ) -> None:
        self._release()
        if isinstance(answer, Exception):
            for items in batches:
                for item in items:
                    item.pending.failed(answer)
            return
        number = self._router.partition.number
        for items, stored in zip(batches, answer, strict=True):
            start = 0
            for item in items:
                try:
                    receipts = receipts_of(stored, partition=number, start=start, count=item.count)
                except ResendUncertain as error:
                    item.pending.failed(error)
                else:
                    item.pending.stored(receipts)
                start += item.count

    def _release(self) -> None:
        """Release what was taken from the byte limit, once."""
        in_flight, self._in_flight = self._in_flight, ()
        self._byte_limit.release(sum(item.size for item in in_flight), parts=len(in_flight))


def _as_record_batch(items: Sequence[QueuedEvents]) -> pa.RecordBatch:
    """Return all their events as one batch."""
    batches: list[pa.RecordBatch] = []
    alone: list[Event] = []
    for item in items:
        if isinstance(item.what, Event):
            alone.append(item.what)
            continue
        if alone:
            batches.append(sent_batch(alone))
            alone = []
        batches.append(item.what)
    if alone:
        batches.append(sent_batch(alone))
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
