"""The embedded log as an event source.

Guarantees beyond those of every source:

* Partitions that have nothing to read cost next to nothing: one thread watches for all of them.
* A partition never waits for another one, until very many are read at the same moment.
* The stream is the one that existed when the source was made: if it is deleted, or recreated under
  its name, everything raises ``UnknownStream``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread

from leasehold.clock import SystemClock, system_random
from leasehold.errors import BeyondEnd, UnknownStream, UsageError
from leasehold.events.source import PartitionEnds, partition_number
from leasehold.events.start import Start
from leasehold.log.log import Log
from leasehold.log.options import LogOptions
from leasehold.log.receiver import LogReceiver, shielded
from leasehold.log.stream_watcher import StreamWatcher, Wakeup
from leasehold.names import stream_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.events.event import EventBatch
    from leasehold.log.reader import PartitionReader
    from leasehold.log.streams import PartitionInfo, StreamInfo

T = TypeVar("T")

_MAX_EVENTS = 1 << 20
_MAX_BYTES = 1 << 30
_THREADS = 64  # they start when they are needed; each is used only for the time of a read


class LogSource:
    """A stream of a log that is open, which stays open when the source is closed.

    For one event loop. ``async with`` closes it.
    """

    def __init__(self, log: Log, stream: str, *, clock: Clock | None = None) -> None:
        """Look the stream up; this blocks for one query.

        Raises:
            UnknownStream: there is none; the message names those there are.
        """
        self._log = log
        self._stream = log.stream(stream)
        self._owns_log = False
        self._threads = ThreadPoolExecutor(_THREADS, f"leasehold-source-{stream}")
        directory = stream_directory(stream)
        self.watcher = StreamWatcher(
            f"leasehold-watch-{stream}",
            changes=lambda after: log.files.changes(directory, after=after),
            check=self._now,
            clock=clock or SystemClock(),
        )
        self._rng = system_random()
        self._receivers: set[LogReceiver] = set()
        self._closed = False

    @classmethod
    def open(cls, url: str, stream: str, *, name: str = "host") -> Self:
        """Open the log in the database that ``url`` names, for this source alone. This blocks.

        Raises:
            UnknownStream: it has no such stream; the message names those there are.
            InvalidUrl, StoreUnavailable, StoreUnusable: see ``Log.open``.
            UsageError: there is no log.
        """
        log = Log.open(url, name=name, options=LogOptions(run_monitor=False))
        try:
            source = cls(log, stream)
        except BaseException:
            log.close()
            raise
        source._owns_log = True
        return source

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._stream.name

    async def stream_identity(self) -> str:
        """Return the identity of the stream that this source was made for."""
        return self._stream.identity

    async def partitions(self) -> Sequence[str]:
        """Return the ids of all partitions: the numbers from 0 on.

        Raises:
            UnknownStream: the stream was deleted.
        """
        found = await self._run(self._now)
        return tuple(str(number) for number in range(found.partitions))

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return where each of these partitions begins and ends now.

        Raises:
            UsageError: there is no such partition.
            UnknownStream: the stream was deleted.
        """
        numbers = [partition_number(each) for each in partitions]

        def read_info() -> StreamInfo:
            self._now()
            return self._log.info(self.name, partitions=numbers)

        found = await self._run(read_info)
        return {
            str(part.number): PartitionEnds(
                first=part.first_sequence,
                next=part.next_sequence,
                last_enqueued_at=part.last_enqueued_at,
            )
            for part in found.parts
        }

    async def receiver(
        self, partition: str, *, group: str, epoch: int, start: Start, name: str
    ) -> LogReceiver:
        """Open a receiver at ``start`` under ``epoch``."""
        number = partition_number(partition)
        self._check_open()
        wakeup = Wakeup(partition)

        def opened() -> PartitionReader:
            self._now()
            self.watcher.add(wakeup)  # before its first read, so that it misses nothing
            try:
                # Many partitions are read side by side already: no thread more for each of them.
                return self._log.reader(
                    self.name,
                    number,
                    start=start,
                    group=group,
                    epoch=epoch,
                    name=name,
                    ahead=False,
                )
            except BaseException:
                self.watcher.remove(wakeup)
                raise

        opening = self._threads.submit(opened)
        try:
            reader = await shielded(asyncio.wrap_future(opening))
            self._check_open()
        except BaseException:
            # The caller no longer waits. This is called in its thread, so closing waits for it.
            opening.add_done_callback(lambda done: self._abandon(done, wakeup))
            raise
        self._receivers = {each for each in self._receivers if not each.closed}
        made = LogReceiver(
            reader, wakeup, watcher=self.watcher, threads=self._threads, rng=self._rng
        )
        self._receivers.add(made)
        return made

    async def close(self) -> None:
        """Close all receivers; waiting ones are woken. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for receiver in self._receivers:
            receiver.end()
        with CancelScope(shield=True):
            await to_thread.run_sync(self._shut, limiter=CapacityLimiter(1))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --------------------------------------------------------------- parts

    def _now(self) -> StreamInfo:
        """Return the stream as it is now, in a thread."""
        found = self._log.stream(self.name)
        if found.created_at != self._stream.created_at:
            raise UnknownStream(
                f"the stream {self.name!r} of {self._stream.created_at} was deleted, and made anew "
                f"at {found.created_at}: make another source for the new one"
            )
        return found

    async def _run(self, work: Callable[[], T]) -> T:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _abandon(self, opening: Future[PartitionReader], wakeup: Wakeup) -> None:
        self.watcher.remove(wakeup)
        if not opening.cancelled() and opening.exception() is None:
            opening.result().close()

    def _shut(self) -> None:
        for receiver in self._receivers:
            receiver.reader.close()
        self._receivers.clear()
        self.watcher.close()
        self._threads.shutdown()
        if self._owns_log:
            self._log.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the source of {self.name!r} is closed: open another one")


class LogRanges:
    """A stream of a log that is open. The log is closed with it if ``owns_log``.

    ``pinned``: it is the stream that was there when this was made; of one that was recreated under
    its name nothing is returned.
    """

    def __init__(
        self, log: Log, stream: str, *, owns_log: bool = False, pinned: bool = False
    ) -> None:
        """Look the stream up."""
        self._log = log
        self._stream = log.stream(stream)
        self._owns_log = owns_log
        self._pinned = pinned

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._stream.name

    @property
    def identity(self) -> str:
        """The identity of the stream that was there when this was made."""
        return self._stream.identity

    def partitions(self) -> Sequence[str]:
        """Return the ids of all partitions."""
        found = self._same(self._log.stream(self.name))
        return tuple(str(number) for number in range(found.partitions))

    def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Return where each of these partitions begins and ends now."""
        numbers = map(partition_number, partitions)
        found = self._same(self._log.info(self.name, partitions=numbers))
        return {
            str(part.number): PartitionEnds(
                first=part.first_sequence,
                next=self._end(part),
                last_enqueued_at=part.last_enqueued_at,
            )
            for part in found.parts
        }

    def _same(self, found: StreamInfo) -> StreamInfo:
        if self._pinned and found.created_at != self._stream.created_at:
            raise UnknownStream(
                f"the stream {self.name!r} of {self._stream.created_at} was deleted, and made anew "
                f"at {found.created_at}: its events have other numbers; start again, with another "
                "group or with its checkpoints reset"
            )
        return found

    def _end(self, part: PartitionInfo) -> int:
        """Return the end; raise if the last segment cannot be read, where the log has its start."""
        if part.segments and part.last_enqueued_at is None:
            return self.find(str(part.number), Start.latest())
        return part.next_sequence

    def find(self, partition: str, start: Start) -> int:
        """Return the sequence number that ``start`` means now."""
        number = partition_number(partition)
        with self._log.reader(self.name, number, start=start, ahead=False) as reader:
            return reader.position

    def read(
        self, partition: str, start: int, end: int, *, bodies: bool = True
    ) -> Iterator[EventBatch]:
        """Yield the events from ``start`` up to, and without, ``end``."""
        if start >= end:
            return
        number = partition_number(partition)
        # A task for each core leaves none for a thread that compares checksums ahead.
        with self._log.reader(
            self.name, number, start=Start.sequence(start), ahead=False, bodies=bodies
        ) as reader:
            while (left := end - reader.position) > 0:
                batch = reader.read(
                    max_events=min(left, _MAX_EVENTS), max_bytes=_MAX_BYTES, fresh=True
                )
                if batch is None:
                    raise BeyondEnd(
                        f"partition {partition} of {self.name!r} ends before event "
                        f"{reader.position}, and events up to {end} were asked for: it has never "
                        "been that long, or the stream was made anew",
                        end=reader.position,
                    )
                yield batch

    def close(self) -> None:
        """Close the log, if it was opened for this source."""
        if self._owns_log:
            self._log.close()


def open_source(stream: str, *, store_url: str, name: str) -> LogSource:
    """Open a stream of the log in the store; ``events.source_urls`` calls this for ``log:``."""
    return LogSource.open(store_url, stream, name=name)


def open_ranges(stream: str, *, store_url: str, name: str, pinned: bool) -> LogRanges:
    """Open a stream for reading ranges; ``events.source_urls`` calls this for ``log:``."""
    with ExitStack() as undo:
        log = Log.open(store_url, name=name, options=LogOptions(run_monitor=False))
        undo.callback(log.close)
        made = LogRanges(log, stream, owns_log=True, pinned=pinned)
        undo.pop_all()
    return made
