"""Hubs: streams of the log, found by name, written to, read from and described.

Calls that block run in threads. Readers wait for the log's own watcher: they do not poll.

A reader coalesces: the log returns one stored frame at a time, which is what a producer once sent
in one call. Small frames are joined up to the client's credit, since a read and a write for each
of them would be most of the work.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from leasehold.azure.endpoint.delivery import LastEvent
from leasehold.azure.endpoint.error_conditions import NOT_FOUND, OUT_OF_RANGE, RequestRefused
from leasehold.azure.endpoint.selectors import open_at_selector
from leasehold.clock import system_random
from leasehold.errors import LeaseholdError, UnknownStream, UsageError
from leasehold.events.event import joined
from leasehold.events.source import partition_number
from leasehold.events.start import Start
from leasehold.log.options import ProducerOptions
from leasehold.log.receiver import LogReceiver, shielded
from leasehold.log.stream_watcher import StreamWatcher, Wakeup
from leasehold.names import stream_directory

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from concurrent.futures import Executor

    import pyarrow as pa

    from leasehold.azure.endpoint.selectors import Selector
    from leasehold.clock import Clock
    from leasehold.events.event import EventBatch
    from leasehold.log.log import Log
    from leasehold.log.producer import Producer, Sent
    from leasehold.log.reader import PartitionReader
    from leasehold.log.streams import PartitionInfo, StreamInfo


class CoalescingReceiver(LogReceiver):
    """A ``LogReceiver`` that joins as many stored frames as fit into one batch.

    If a frame cannot be read, those before it are returned; the next call raises the error.
    """

    def __init__(
        self,
        reader: PartitionReader,
        wakeup: Wakeup,
        *,
        watcher: StreamWatcher,
        threads: Executor,
        rng: random.Random,
        check: Callable[[], None],
    ) -> None:
        """See ``LogReceiver``. ``check`` raises, before each look, when it is not to go on."""
        super().__init__(reader, wakeup, watcher=watcher, threads=threads, rng=rng)
        self._check = check
        self._pending_error: LeaseholdError | None = None

    async def close(self) -> None:
        """Close the files, also if the receiver was ended before. Safe to call twice."""
        self.end()
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(self._threads, self._reader.close))

    def _read(self, max_events: int, max_bytes: int, *, fresh: bool) -> EventBatch | None:
        self._check()
        error, self._pending_error = self._pending_error, None
        if error is not None and self.reader.position == self._position:
            raise error
        first = super()._read(max_events, max_bytes, fresh=fresh)
        if first is None:
            return None
        found, events, size = [first], len(first), int(first.arrow.nbytes)
        while events < max_events and size < max_bytes:
            more = self._read_next(max_events - events, max_bytes - size)
            if more is None:
                break
            found.append(more)
            events += len(more)
            size += int(more.arrow.nbytes)
        return joined(found) if len(found) > 1 else first

    def _read_next(self, max_events: int, max_bytes: int) -> EventBatch | None:
        try:
            return self.reader.read(max_events=max_events, max_bytes=max_bytes)
        except LeaseholdError as error:
            self._pending_error = error
            return None


T = TypeVar("T")

_THREADS = 32  # started when needed; each is busy only for the time of one read
# Clients send whole batches, so there is nothing to coalesce. The connections bound what is
# pending, far below this, so that sending never blocks.
_PRODUCER_OPTIONS = ProducerOptions(linger=timedelta(0), max_pending_bytes=1 << 30)


class Hub:
    """One stream of the log; a stream created again under its name is another hub."""

    def __init__(
        self, log: Log, info: StreamInfo, *, threads: ThreadPoolExecutor, clock: Clock
    ) -> None:
        self.name = info.name
        self.info = info
        self._log = log
        self._threads = threads
        self._clock = clock
        self._rng = system_random()
        self._producer: Producer | None = None
        self._is_closed = False
        directory = stream_directory(info.name)
        self._watcher = StreamWatcher(
            f"leasehold-hub-{info.name}",
            changes=lambda after: log.files.changes(directory, after=after),
            check=self._check_same_stream,
            clock=clock,
        )

    @property
    def producer(self) -> Producer:
        """The producer of all senders. Its first use reads the database: call it in a thread."""
        if self._producer is None:
            self._producer = self._log.producer(self.name, _PRODUCER_OPTIONS)
        return self._producer

    def send(self, batch: pa.RecordBatch, *, partition: int | None) -> Sent:
        """Store events; the future is done when they are durable."""
        try:
            return self.producer.send(batch, partition=partition)
        except UsageError as error:
            raise self._recreated_or(error) from error

    def number_of(self, partition: str) -> int:
        """Return the number of a partition; refuse one that does not exist."""
        try:
            return self.info.checked(partition_number(partition))
        except UsageError as error:
            raise RequestRefused(
                OUT_OF_RANGE,
                f"The specified partition '{partition[:40]}' is invalid for an EventHub partition "
                f"sender or receiver. It should be between 0 and {self.info.partitions - 1}.",
                status=404,
            ) from error

    async def receiver(self, partition: int, selector: Selector) -> CoalescingReceiver:
        """Open a receiver of a partition, where the selector says."""
        wakeup = Wakeup(str(partition))

        def open_receiver() -> CoalescingReceiver:
            try:
                self._watcher.add(wakeup)  # before its first read, so that it misses nothing
            except UsageError as error:
                raise self._recreated_or(error) from error
            try:
                reader = open_at_selector(
                    selector,
                    lambda: self._last_position(partition),
                    lambda start: self._log.reader(self.name, partition, start=start, ahead=False),
                )
            except BaseException:
                self._watcher.remove(wakeup)
                raise
            return CoalescingReceiver(
                reader,
                wakeup,
                watcher=self._watcher,
                threads=self._threads,
                rng=self._rng,
                check=self._check_open,
            )

        opening = self._threads.submit(open_receiver)
        try:
            return await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(
                lambda done: (
                    None if done.cancelled() or done.exception() else _abandon(done.result())
                )
            )
            raise

    def describe(self, partition: int) -> tuple[PartitionInfo, LastEvent]:
        """Return a partition and its last event. Blocks."""
        [part] = self._log.info(self.name, partitions=[partition]).parts
        last = part.last_enqueued_at
        now_ms = int(self._clock.utc_now().timestamp() * 1000)
        if not part.events or last is None:
            return part, LastEvent(observed_ms=now_ms)
        _, offset = self._last_position(partition)
        return part, LastEvent(
            sequence=part.next_sequence - 1,
            offset=offset,
            enqueued_ms=int(last.timestamp() * 1000),
            observed_ms=now_ms,
        )

    async def last_event(self, partition: int) -> LastEvent:
        """Return the last event of a partition."""
        loop = asyncio.get_running_loop()
        return (await loop.run_in_executor(self._threads, self.describe, partition))[1]

    def close(self) -> None:
        """Store what was sent, and end the threads. Blocks."""
        self._is_closed = True
        if self._producer is not None:
            self._producer.close()
        self._watcher.close()

    def _last_position(self, partition: int) -> tuple[int, int]:
        """Return the number and the offset of the last event; -1 if there is none."""
        [part] = self._log.info(self.name, partitions=[partition]).parts
        if not part.events:
            return -1, -1
        start = Start.sequence(part.next_sequence - 1)
        with self._log.reader(self.name, partition, start=start, ahead=False) as reader:
            batch = reader.read(max_events=1, fresh=True)
        return (
            (-1, -1) if batch is None else (batch.last_sequence, batch.arrow.column(1)[0].as_py())
        )

    def _recreated_or(self, error: UsageError) -> LeaseholdError:
        """Return the error for a link that still uses this hub after it was closed."""
        return self._recreated() if self._is_closed else error

    def _check_open(self) -> None:
        if self._is_closed:  # closing wakes receivers that wait
            raise self._recreated()

    def _recreated(self) -> UnknownStream:
        return UnknownStream(f"the stream {self.name!r} was deleted and made anew")

    def _check_same_stream(self) -> StreamInfo:
        found = self._log.stream(self.name)
        if found.created_at != self.info.created_at:
            raise self._recreated()
        return found


class Hubs:
    """All hubs of a log. For one event loop."""

    def __init__(self, log: Log, *, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, "leasehold-hub")
        self._lock = threading.Lock()
        self._hubs: dict[str, Hub] = {}

    async def find(self, name: str) -> Hub:
        """Return the hub of this name, with its current partitions."""
        return await self.run_in_thread(lambda: self._find(name))

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run something that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Store what was sent, and end the threads. Blocks."""
        with self._lock:
            hubs = tuple(self._hubs.values())
            self._hubs.clear()
        for hub in hubs:
            hub.close()
        self._threads.shutdown()

    def _find(self, name: str) -> Hub:
        try:
            info = self._log.stream(name)
        except UnknownStream as error:
            raise RequestRefused(
                NOT_FOUND,
                f"The messaging entity '{name[:100]}' could not be found: a hub is a stream of "
                "the log, and its name counts to the letter.",
                status=404,
            ) from error
        with self._lock:
            hub = self._hubs.get(name)
            replaced = None
            if hub is None or hub.info.created_at != info.created_at:
                replaced = hub
                hub = Hub(self._log, info, threads=self._threads, clock=self._clock)
                self._hubs[name] = hub
            hub.info = info
            hub.producer  # noqa: B018 - made here, in a thread
        if replaced is not None:
            replaced.close()
        return hub


def _abandon(receiver: CoalescingReceiver) -> None:
    receiver.end()
    receiver.reader.close()
