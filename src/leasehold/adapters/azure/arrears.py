"""Checkpoints that our store has taken and that are not in the records of Azure's clients yet.

Guarantees:

* One write is under way at a time, so none overtakes a newer one of the same partition.
* Whoever has them written waits for a limited time: what takes longer goes on behind it. Storage
  that hangs holds up nobody.
* What failed is tried again when ``retry`` is called, unless somebody else has had the partition
  since: its own checkpoint must not be overwritten by an older one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from leasehold.clock import Clock
    from leasehold.model import Mark, Position

log = logging.getLogger("leasehold.azure")


class Arrears:
    """Those of one host. For one event loop."""

    def __init__(self, put: Callable[[str, Position], Awaitable[None]], *, clock: Clock) -> None:
        """Nothing is due. ``put`` writes the checkpoint of a key to theirs."""
        self._put = put
        self._clock = clock
        self._due: dict[str, Mark] = {}
        self._failed: dict[str, Mark] = {}
        self._writing: asyncio.Task[None] | None = None
        self._is_told = False

    @property
    def failed(self) -> bool:
        """Whether something is there to be tried again."""
        return bool(self._failed)

    def owes(self, key: str) -> bool:
        """Whether the checkpoint of this key is not in theirs yet."""
        return key in self._due or key in self._failed

    def add(self, marks: Iterable[Mark]) -> None:
        """These are due; each takes the place of an older one of its key."""
        for mark in marks:
            self._failed.pop(mark.ownership.key, None)
            self._due[mark.ownership.key] = mark

    def retry(self, allowed: Callable[[Mark], bool]) -> None:
        """What failed is due again if it is ``allowed``, and else forgotten."""
        failed, self._failed = self._failed, {}
        self._due = {key: mark for key, mark in failed.items() if allowed(mark)} | self._due

    def forget(self, key: str) -> None:
        """Nothing is due for this key any more."""
        self._due.pop(key, None)
        self._failed.pop(key, None)

    async def write(self, *, limit_s: float) -> None:
        """Write what is due. Return in time, whatever has come of it."""
        if not self._due:
            return
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._written())
        try:
            await self._clock.bounded(asyncio.shield(self._writing), seconds=limit_s)
        except TimeoutError:
            self._tell("no answer in time")

    async def close(self) -> None:
        """What is under way is given up; if its event loop has ended, it was already."""
        writing, self._writing = self._writing, None
        if writing is not None and writing.get_loop() is asyncio.get_running_loop():
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _written(self) -> None:
        """Until nothing is due."""
        while due := list(self._due.items()):
            done = await asyncio.gather(*(self._one(key, mark) for key, mark in due))
            for (key, mark), is_done in zip(due, done, strict=True):
                if self._due.get(key) is mark:  # else a newer one has taken its place
                    del self._due[key]
                    if not is_done:
                        self._failed[key] = mark
        self._is_told = self._is_told and bool(self._failed)

    async def _one(self, key: str, mark: Mark) -> bool:
        try:
            await self._put(key, mark.position)
        except StoreUnavailable as trouble:
            self._tell(f"{key}: {trouble}")
            return False
        return True

    def _tell(self, trouble: str) -> None:
        # Said once: it is tried again in every cycle.
        level = logging.DEBUG if self._is_told else logging.WARNING
        log.log(level, "a checkpoint is not in the records of Azure's clients yet: %s", trouble)
        self._is_told = True
