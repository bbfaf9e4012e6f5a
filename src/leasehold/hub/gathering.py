"""Reads a partition in pieces as big as a client wants them.

The log gives one frame at a time, which is what somebody once sent in one call. Many small ones are
put together here, within one look: for a client that has credit for hundreds of events, a look and
a write for each of its frames would be most of the work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.log.events import joined
from leasehold.sources.receiver import LogReceiver

if TYPE_CHECKING:
    from leasehold.log.events import EventBatch


class GatheringReceiver(LogReceiver):
    """As ``LogReceiver``, with as many frames in a batch as fit."""

    async def close(self) -> None:
        """Also of one that was ended before: its files are closed here. Again is harmless."""
        self.end()
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(self._threads, self._reader.close))

    def _look(self, most_events: int, most_bytes: int, *, fresh: bool) -> EventBatch | None:
        first = super()._look(most_events, most_bytes, fresh=fresh)
        if first is None:
            return None
        found, events, size = [first], len(first), int(first.arrow.nbytes)
        while events < most_events and size < most_bytes:
            more = self.reader.read(most_events=most_events - events, most_bytes=most_bytes - size)
            if more is None:
                break
            found.append(more)
            events += len(more)
            size += int(more.arrow.nbytes)
        return joined(found) if len(found) > 1 else first
