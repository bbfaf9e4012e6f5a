"""Receives one partition of the embedded log.

The position is moved only by a ``receive`` that returns: what a thread has read for a cancelled
call is read again by the next one.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from leasehold.errors import UsageError
from leasehold.events.start import Start
from leasehold.log.stream_watcher import WakeupOrigin

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from concurrent.futures import Executor

    from leasehold.events.event import EventBatch
    from leasehold.log.reader import PartitionReader
    from leasehold.log.stream_watcher import StreamWatcher, Wakeup

T = TypeVar("T")

# The watcher notifies when there is more, by more than one way. This is for unforeseen cases.
POLL_ANYWAY_S = 60.0
_SHORTEST_S = 0.02  # without notifications: poll, with pauses that grow
_LONGEST_S = 1.0


class LogReceiver:
    """Made by ``LogSource.receiver``. For one task; another one may close it."""

    def __init__(
        self,
        reader: PartitionReader,
        wakeup: Wakeup,
        *,
        watcher: StreamWatcher,
        threads: Executor,
        rng: random.Random,
    ) -> None:
        """Use an open reader, and a wakeup that was added before the reader was opened."""
        self._reader = reader
        self._wakeup = wakeup
        self._watcher = watcher
        self._threads = threads
        self._rng = rng
        self._position = reader.position
        self._pause_s = 0.0
        self._reading: asyncio.Future[EventBatch | None] | None = None
        self._waiting = False
        self._closed = False

    @property
    def position(self) -> int:
        """The sequence number of the next event."""
        return self._position

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def is_waiting(self) -> bool:
        """Whether it waits, after all preparations for waiting."""
        return self._waiting

    @property
    def origin(self) -> WakeupOrigin:
        """What will notify it that there is more."""
        return self._wakeup.origin

    @property
    def reader(self) -> PartitionReader:
        """What it reads with; not to be moved by others."""
        return self._reader

    async def receive(self, *, max_events: int, max_bytes: int) -> EventBatch:
        """Wait for the next events, and return at least one."""
        while True:
            self._check_open()
            fresh = self._wakeup.clear()
            batch = await self._run_read(partial(self._read, max_events, max_bytes, fresh=fresh))
            if batch is not None:
                self._pause_s = 0.0
                self._position = batch.last_sequence + 1
                return batch
            self._check_open()
            with self._watcher.waiting(self._wakeup):
                self._waiting = True
                try:
                    await self._wakeup.wait(self._pause())
                finally:
                    self._waiting = False

    async def close(self) -> None:
        """Close it; a waiting ``receive`` raises ``UsageError``. Safe to call twice."""
        if not self._closed:
            self.end()
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(self._threads, self._reader.close))

    def end(self) -> None:
        """Refuse further calls and wake a waiting one; the caller closes the reader."""
        self._closed = True
        self._watcher.remove(self._wakeup)
        self._wakeup.notify()

    async def _run_read(self, read: Callable[[], EventBatch | None]) -> EventBatch | None:
        """Read in a thread. If this is cancelled, the next call waits for that read to end."""
        loop = asyncio.get_running_loop()
        if self._reading is not None:
            await asyncio.wait((self._reading,))
        self._reading = loop.run_in_executor(self._threads, read)
        try:
            return await shielded(self._reading)
        except UsageError:
            self._check_open()  # closed during the read: raise that
            raise
        finally:
            if self._reading.done():
                self._reading = None

    def _read(self, max_events: int, max_bytes: int, *, fresh: bool) -> EventBatch | None:
        """Read what is there, in a thread; if nothing, watch for more."""
        reader = self._reader
        if reader.position != self._position:  # the last batch was not returned
            reader.seek(Start.sequence(self._position))
        batch = reader.read(max_events=max_events, max_bytes=max_bytes, fresh=fresh)
        while batch is None and self._watcher.watch(
            self._wakeup, reader.watched(), remote=reader.written_elsewhere
        ):
            batch = reader.read(max_events=max_events, max_bytes=max_bytes)
        return batch

    def _pause(self) -> float:
        if self._wakeup.origin is not WakeupOrigin.NOBODY:
            return POLL_ANYWAY_S * self._rng.uniform(1.0, 1.5)  # not all at the same time
        self._pause_s = min(max(self._pause_s * 2, _SHORTEST_S), _LONGEST_S)
        return self._pause_s

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(
                f"the receiver of partition {self._reader.partition} of {self._reader.stream!r} is "
                "closed: open another one"
            )


async def shielded(answer: asyncio.Future[T]) -> T:
    """Await what continues when this is cancelled; its error is dropped then."""
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(answer)
