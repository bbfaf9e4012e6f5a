"""What was received and waits for its handler: bounded by events and by bytes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from leasehold.log.events import EventBatch


class Intake:
    """A queue for one receiver and one handler, in one event loop.

    It takes a batch whenever it is below its limits, so it holds at most its limits and one batch
    more.
    """

    def __init__(self, *, most_events: int, most_bytes: int) -> None:
        """Empty."""
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._batches: deque[tuple[EventBatch, int]] = deque()
        self._events = 0
        self._bytes = 0
        self._closed = False
        self._changed = anyio.Event()

    def __len__(self) -> int:
        """How many events wait."""
        return self._events

    @property
    def waiting_bytes(self) -> int:
        """How many bytes wait."""
        return self._bytes

    async def room(self) -> None:
        """Return when there is room for another batch."""
        while self._events >= self._most_events or self._bytes >= self._most_bytes:
            await self._changed.wait()

    def put(self, batch: EventBatch) -> None:
        """Add a batch."""
        size = batch.arrow.nbytes
        self._batches.append((batch, size))
        self._events += len(batch)
        self._bytes += size
        self._tell()

    async def get(self) -> EventBatch | None:
        """The next batch; None once it is closed."""
        while not self._closed:
            if self._batches:
                batch, size = self._batches.popleft()
                self._events -= len(batch)
                self._bytes -= size
                self._tell()
                return batch
            await self._changed.wait()
        return None

    def close(self) -> None:
        """Hand out nothing more, and forget what waits."""
        self._closed = True
        self._batches.clear()
        self._events = self._bytes = 0
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
