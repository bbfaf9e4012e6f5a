"""Reads a partition in pieces as big as a client wants them.

The log gives one frame at a time, which is what somebody once sent in one call. Many small ones are
put together here, within one look: for a client that has credit for hundreds of events, a look and
a write for each of its frames would be most of the work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError
from leasehold.log.events import joined
from leasehold.sources.receiver import LogReceiver

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from concurrent.futures import Executor

    from leasehold.log.events import EventBatch
    from leasehold.log.reader import PartitionReader
    from leasehold.sources.bell import Bell
    from leasehold.sources.watch import Watcher


class GatheringReceiver(LogReceiver):
    """As ``LogReceiver``, with as many frames in a batch as fit.

    Whatever is wrong with a frame, those before it are given; the next look tells of it.
    """

    def __init__(
        self,
        reader: PartitionReader,
        bell: Bell,
        *,
        watcher: Watcher,
        threads: Executor,
        rng: random.Random,
        check: Callable[[], None],
    ) -> None:
        """See ``LogReceiver``. ``check`` raises, before each look, when it is not to go on."""
        super().__init__(reader, bell, watcher=watcher, threads=threads, rng=rng)
        self._check = check
        self._trouble: LeaseholdError | None = None

    async def close(self) -> None:
        """Also of one that was ended before: its files are closed here. Again is harmless."""
        self.end()
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(self._threads, self._reader.close))

    def _look(self, most_events: int, most_bytes: int, *, fresh: bool) -> EventBatch | None:
        self._check()
        trouble, self._trouble = self._trouble, None
        if trouble is not None and self.reader.position == self._position:
            raise trouble
        first = super()._look(most_events, most_bytes, fresh=fresh)
        if first is None:
            return None
        found, events, size = [first], len(first), int(first.arrow.nbytes)
        while events < most_events and size < most_bytes:
            more = self._after(most_events - events, most_bytes - size)
            if more is None:
                break
            found.append(more)
            events += len(more)
            size += int(more.arrow.nbytes)
        return joined(found) if len(found) > 1 else first

    def _after(self, most_events: int, most_bytes: int) -> EventBatch | None:
        try:
            return self.reader.read(most_events=most_events, most_bytes=most_bytes)
        except LeaseholdError as error:
            self._trouble = error
            return None
