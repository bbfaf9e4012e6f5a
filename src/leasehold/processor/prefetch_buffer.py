"""What was received and waits for its handler: bounded by events and by bytes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anyio

from leasehold.log.events import joined

if TYPE_CHECKING:
    from leasehold.log.events import EventBatch

_MOST_COPIED_BYTES = 256 << 10


class Intake:
    """A queue for one receiver and one handler, in one event loop.

    It takes a batch whenever it is below its limits, so it holds at most its limits and one batch
    more.
    """

    def __init__(self, *, most_events: int, most_bytes: int, batch_events: int = 1) -> None:
        """Empty. Small batches that wait are handed out together, up to ``batch_events``."""
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._batch_events = batch_events
        self._batches: deque[tuple[EventBatch, int]] = deque()
        self._events = 0
        self._bytes = 0
        self._closed = False
        self._changed = anyio.Event()

    def __len__(self) -> int:
        """How many events wait."""
        return self._events

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
                batch = self._together()
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

    def _together(self) -> EventBatch:
        """The first batch, with those that follow if all of them are small.

        A trickle is stored in frames of an event or two; when many of them wait, a call for each
        would cost more than to copy them.
        """
        taken: list[EventBatch] = []
        events = total_bytes = 0
        while self._batches:
            batch, size = self._batches[0]
            fits = (
                events + len(batch) <= self._batch_events
                and total_bytes + size <= _MOST_COPIED_BYTES
            )
            if taken and not fits:
                break
            self._batches.popleft()
            self._events -= len(batch)
            self._bytes -= size
            events, total_bytes = events + len(batch), total_bytes + size
            taken.append(batch)
        return taken[0] if len(taken) == 1 else joined(taken)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
