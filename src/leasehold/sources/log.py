"""The embedded log as an event source.

Guarantees beyond those of every source:

* Partitions that have nothing to read cost next to nothing: one thread watches for all of them.
* A partition never waits for another one, until very many are read at the same moment.
* The stream is the one that was there when the source was made: if it is deleted, and be it made
  anew under its name, everything is refused with ``UnknownStream``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread

from leasehold.clock import SystemClock, system_random
from leasehold.errors import UnknownStream, UsageError
from leasehold.log.log import Log
from leasehold.log.options import LogOptions
from leasehold.log.streams import stream_directory
from leasehold.sources.bell import Bell
from leasehold.sources.port import PartitionEnds, partition_number
from leasehold.sources.receiver import LogReceiver, shielded
from leasehold.sources.watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.log.reader import PartitionReader
    from leasehold.log.start import Start
    from leasehold.log.streams import StreamInfo

T = TypeVar("T")

_THREADS = 64  # they begin when they are needed; each is had only for as long as a look takes


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
        self.watcher = Watcher(
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
            UnknownStore, StoreUnavailable, StoreUnusable: see ``Log.open``.
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

    async def partitions(self) -> Sequence[str]:
        """See ``EventSource``. Here they are the numbers from 0 on.

        Raises:
            UnknownStream: the stream was deleted.
        """
        found = await self._run(self._now)
        return tuple(str(number) for number in range(found.partitions))

    async def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """See ``EventSource``.

        Raises:
            UsageError: there is no such partition.
            UnknownStream: the stream was deleted.
        """
        numbers = [partition_number(each) for each in partitions]

        def look() -> StreamInfo:
            self._now()
            return self._log.info(self.name, partitions=numbers)

        found = await self._run(look)
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
        """See ``EventSource``."""
        number = partition_number(partition)
        self._check_open()
        bell = Bell(partition)

        def opened() -> PartitionReader:
            self._now()
            self.watcher.enter(bell)  # before its first look, so that it misses nothing
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
                self.watcher.leave(bell)
                raise

        opening = self._threads.submit(opened)
        try:
            reader = await shielded(asyncio.wrap_future(opening))
            self._check_open()
        except BaseException:
            # Nobody waits for it any more. This is called in its thread, so closing waits for it.
            opening.add_done_callback(lambda done: self._abandon(done, bell))
            raise
        self._receivers = {each for each in self._receivers if not each.closed}
        made = LogReceiver(reader, bell, watcher=self.watcher, threads=self._threads, rng=self._rng)
        self._receivers.add(made)
        return made

    async def close(self) -> None:
        """See ``EventSource``. Receivers that wait are woken. Again is harmless."""
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
        """The stream as it is now, in a thread."""
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

    def _abandon(self, opening: Future[PartitionReader], bell: Bell) -> None:
        self.watcher.leave(bell)
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
