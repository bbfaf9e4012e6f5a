"""What wakes one receiver that waits: rung by any thread, heard in the receiver's event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum


class Sight(Enum):
    """Who will tell that there is more."""

    KERNEL = "kernel"  # a segment is open, and the kernel watches it
    JOURNAL = "journal"  # none is open: the journal will have a line about the next one
    NOBODY = "nobody"  # one is open, and the kernel can not watch it


class Bell:
    """Made in the event loop of its receiver. A ring is heard, also if nobody waits yet."""

    def __init__(self, partition: str) -> None:
        """Silent."""
        self.partition = partition
        # These belong to the watcher, under its lock.
        self.sight = Sight.JOURNAL
        self.paths: tuple[str, ...] = ()
        self.numbers: tuple[int, ...] = ()  # the kernel's, for the paths
        self.state: object = None  # that of the paths, before they were watched
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._fresh = False

    def ring(self, *, fresh: bool = False) -> None:
        """Wake the receiver, from any thread; ``fresh``: it should ask the journal."""
        with suppress(RuntimeError):  # the loop has ended, and nobody waits in it
            self._loop.call_soon_threadsafe(self._ring, fresh)

    def still(self) -> bool:
        """Forget all rings before the look that follows; say whether one was ``fresh``."""
        fresh, self._fresh = self._fresh, False
        self._rung.clear()
        return fresh

    async def wait(self, most_s: float) -> None:
        """Return when it was rung since ``still``, or when the time is over."""
        timer = self._loop.call_later(most_s, self._rung.set)
        try:
            await self._rung.wait()
        finally:
            timer.cancel()

    def _ring(self, fresh: bool) -> None:  # noqa: FBT001 - the loop calls it by position
        self._fresh = self._fresh or fresh
        self._rung.set()
