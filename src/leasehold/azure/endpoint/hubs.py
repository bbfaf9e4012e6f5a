"""The streams of the log, as hubs: found by name, written to, read from and described.

What blocks runs in threads. Readers wait for the log's own watch: nothing is asked again and again.

Reads a partition in pieces as big as a client wants them.

The log gives one frame at a time, which is what somebody once sent in one call. Many small ones are
put together here, within one look: for a client that has credit for hundreds of events, a look and
a write for each of its frames would be most of the work.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from leasehold.azure.endpoint.delivery import LastEvent
from leasehold.azure.endpoint.error_conditions import NOT_FOUND, OUT_OF_RANGE, RequestRefused
from leasehold.azure.endpoint.selectors import begun
from leasehold.clock import system_random
from leasehold.errors import LeaseholdError, UnknownStream, UsageError
from leasehold.events.event import joined
from leasehold.events.source import partition_number
from leasehold.events.start import Start
from leasehold.log.options import ProducerOptions
from leasehold.log.receiver import LogReceiver, shielded
from leasehold.log.stream_watcher import StreamWatcher, Wakeup
from leasehold.log.streams import stream_directory

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
    """As ``LogReceiver``, with as many frames in a batch as fit.

    Whatever is wrong with a frame, those before it are given; the next look tells of it.
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
        self._trouble: LeaseholdError | None = None

    async def close(self) -> None:
        """Also of one that was ended before: its files are closed here. Again is harmless."""
        self.end()
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(self._threads, self._reader.close))

    def _read(self, max_events: int, max_bytes: int, *, fresh: bool) -> EventBatch | None:
        self._check()
        trouble, self._trouble = self._trouble, None
        if trouble is not None and self.reader.position == self._position:
            raise trouble
        first = super()._read(max_events, max_bytes, fresh=fresh)
        if first is None:
            return None
        found, events, size = [first], len(first), int(first.arrow.nbytes)
        while events < max_events and size < max_bytes:
            more = self._after(max_events - events, max_bytes - size)
            if more is None:
                break
            found.append(more)
            events += len(more)
            size += int(more.arrow.nbytes)
        return joined(found) if len(found) > 1 else first

    def _after(self, max_events: int, max_bytes: int) -> EventBatch | None:
        try:
            return self.reader.read(max_events=max_events, max_bytes=max_bytes)
        except LeaseholdError as error:
            self._trouble = error
            return None


T = TypeVar("T")

_THREADS = 32  # they begin when they are needed; each is had only for as long as a look takes
# Clients send batches that are whole: nothing is to be gathered. What waits is bounded by the
# connections, far below this, so that sending never blocks.
_SENDING = ProducerOptions(linger=timedelta(0), max_pending_bytes=1 << 30)
_MILLISECOND = timedelta(milliseconds=1)


class Hub:
    """One stream, as long as it is the same one."""

    def __init__(
        self, log: Log, info: StreamInfo, *, threads: ThreadPoolExecutor, clock: Clock
    ) -> None:
        """Start nothing yet."""
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
            check=self._same,
            clock=clock,
        )

    @property
    def producer(self) -> Producer:
        """What everybody sends with. The first use asks the database, in a thread."""
        if self._producer is None:
            self._producer = self._log.producer(self.name, _SENDING)
        return self._producer

    def send(self, batch: pa.RecordBatch, *, partition: int | None) -> Sent:
        """Store events; the future tells when they are.

        Raises:
            UnknownStream: there is another stream of this name by now.
            LeaseholdError: the log does not take them.
        """
        try:
            return self.producer.send(batch, partition=partition)
        except UsageError as error:
            raise self._over_or(error) from error

    def number_of(self, partition: str) -> int:
        """The number of a partition.

        Raises:
            Refused: there is none of that name.
        """
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
        """Read a partition. Nobody ends this reader but the hub.

        Raises:
            Refused: it is to begin beyond the end.
            UnknownStream: there is another stream of this name by now.
            LeaseholdError: the log can not be read.
        """
        wakeup = Wakeup(str(partition))

        def opened() -> CoalescingReceiver:
            try:
                self._watcher.add(wakeup)  # before its first look, so that it misses nothing
            except UsageError as error:
                raise self._over_or(error) from error
            try:
                reader = begun(
                    selector,
                    lambda: self._last(partition),
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

        opening = self._threads.submit(opened)
        try:
            return await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(
                lambda done: (
                    None if done.cancelled() or done.exception() else _abandon(done.result())
                )
            )
            raise

    def described(self, partition: int) -> tuple[PartitionInfo, LastEvent]:
        """A partition and its last event, in a thread.

        Raises:
            LeaseholdError: the log can not be read.
        """
        [part] = self._log.info(self.name, partitions=[partition]).parts
        last = part.last_enqueued_at
        now_ms = int(self._clock.utc_now().timestamp() * 1000)
        if not part.events or last is None:
            return part, LastEvent(asked_ms=now_ms)
        _, offset = self._last(partition)
        return part, LastEvent(
            sequence=part.next_sequence - 1,
            offset=offset,
            enqueued_ms=int(last.timestamp() * 1000),
            asked_ms=now_ms,
        )

    async def end_of(self, partition: int) -> LastEvent:
        """The last event of a partition.

        Raises:
            LeaseholdError: the log can not be read.
        """
        loop = asyncio.get_running_loop()
        return (await loop.run_in_executor(self._threads, self.described, partition))[1]

    def close(self) -> None:
        """Store what was sent, and end the threads. Blocks."""
        self._is_closed = True
        if self._producer is not None:
            self._producer.close()
        self._watcher.close()

    def _last(self, partition: int) -> tuple[int, int]:
        """The number and the offset of the last event; -1 where there is none."""
        [part] = self._log.info(self.name, partitions=[partition]).parts
        if not part.events:
            return -1, -1
        start = Start.sequence(part.next_sequence - 1)
        with self._log.reader(self.name, partition, start=start, ahead=False) as reader:
            batch = reader.read(max_events=1, fresh=True)
        return (
            (-1, -1) if batch is None else (batch.last_sequence, batch.arrow.column(1)[0].as_py())
        )

    def _over_or(self, error: UsageError) -> LeaseholdError:
        """What a link is told that still has this hub: all but the hub itself ends with it."""
        return self._another() if self._is_closed else error

    def _check_open(self) -> None:
        if self._is_closed:  # whoever waits is woken then
            raise self._another()

    def _another(self) -> UnknownStream:
        return UnknownStream(f"the stream {self.name!r} was deleted and made anew")

    def _same(self) -> StreamInfo:
        found = self._log.stream(self.name)
        if found.created_at != self.info.created_at:
            raise self._another()
        return found


class Hubs:
    """All hubs of a log. For one event loop."""

    def __init__(self, log: Log, *, clock: Clock) -> None:
        """Look at nothing yet."""
        self._log = log
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, "leasehold-hub")
        self._lock = threading.Lock()
        self._hubs: dict[str, Hub] = {}

    async def find(self, name: str) -> Hub:
        """The hub of this name, with the partitions it has now.

        Raises:
            Refused: there is none.
            StoreUnavailable: the database does not answer.
        """
        return await self.run(lambda: self._found(name))

    async def run(self, work: Callable[[], T]) -> T:
        """Do something that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Store what was sent, and end the threads. Blocks."""
        with self._lock:
            hubs = tuple(self._hubs.values())
            self._hubs.clear()
        for hub in hubs:
            hub.close()
        self._threads.shutdown()

    def _found(self, name: str) -> Hub:
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
            old = None
            if hub is None or hub.info.created_at != info.created_at:
                old = hub
                hub = Hub(self._log, info, threads=self._threads, clock=self._clock)
                self._hubs[name] = hub
            hub.info = info
            hub.producer  # noqa: B018 - made here, in a thread
        if old is not None:
            old.close()
        return hub


def _abandon(receiver: CoalescingReceiver) -> None:
    receiver.end()
    receiver.reader.close()
