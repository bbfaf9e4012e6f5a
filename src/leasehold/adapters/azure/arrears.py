"""Checkpoints that our store has taken and that are not in the records of Azure's clients yet.

Guarantees:

* One write of a partition is under way at a time, so none overtakes a newer one; and none that
  hangs holds up another partition.
* Whoever has them written waits for a limited time: what takes longer goes on behind it. Storage
  that hangs holds up nobody.
* What failed is tried again when ``retry`` is called, unless somebody else has had the partition
  since: its own checkpoint must not be overwritten by an older one. The same holds for what had to
  wait for the write before it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from leasehold.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from leasehold.clock import Clock
    from leasehold.model import Mark, Position

log = logging.getLogger("leasehold.azure")


class Arrears:
    """Those of one host. For one event loop."""

    def __init__(
        self,
        put: Callable[[str, Position], Awaitable[None]],
        *,
        allowed: Callable[[Mark], bool],
        clock: Clock,
    ) -> None:
        """Nothing is due. ``put`` writes the checkpoint of a key to theirs.

        ``allowed``: whether nobody else has had the partition of a mark since.
        """
        self._put = put
        self._allowed = allowed
        self._clock = clock
        self._due: dict[str, Mark] = {}
        self._failed: dict[str, Mark] = {}
        self._newest: dict[str, Mark] = {}
        self._lanes: dict[str, asyncio.Task[None]] = {}
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
        for mark in filter(self._is_news, marks):
            self._failed.pop(mark.ownership.key, None)
            self._due[mark.ownership.key] = self._newest[mark.ownership.key] = mark

    def inherit(self, marks: Iterable[Mark]) -> None:
        """Somebody before us could not write these: they are tried as what failed here."""
        for mark in filter(self._is_news, marks):
            if not self.owes(mark.ownership.key):
                self._failed[mark.ownership.key] = self._newest[mark.ownership.key] = mark

    def retry(self) -> None:
        """What failed is due again if it is allowed, and else forgotten."""
        failed, self._failed = self._failed, {}
        self._due = {key: mark for key, mark in failed.items() if self._allowed(mark)} | self._due

    def forget(self, key: str) -> None:
        """Nothing is due for this key any more."""
        self._due.pop(key, None)
        self._failed.pop(key, None)
        self._newest.pop(key, None)

    async def write(self, *, limit_s: float, keys: Collection[str] | None = None) -> None:
        """Write what is due. Return in time, whatever has come of it.

        Only the ``keys`` are waited for, if they are given.
        """
        loop = asyncio.get_running_loop()
        for key in [each for each in self._due if each not in self._lanes]:
            self._lanes[key] = loop.create_task(self._written(key))
        waited = [lane for key, lane in self._lanes.items() if keys is None or key in keys]
        if waited:
            try:
                await self._clock.bounded(asyncio.wait(waited), seconds=limit_s)
            except TimeoutError:
                self._tell("no answer in time")

    async def close(self) -> None:
        """What is under way is given up; if its event loop has ended, it was already."""
        loop, lanes = asyncio.get_running_loop(), [*self._lanes.values()]
        self._lanes.clear()
        left = [each for each in lanes if each.get_loop() is loop]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _written(self, key: str) -> None:
        """Until nothing is due for this key."""
        try:
            has_waited = False
            while (mark := self._due.get(key)) is not None:
                # If it is not allowed any more, the next look at the records has the last word.
                is_stale = has_waited and not self._allowed(mark)
                is_done = not is_stale and await self._one(key, mark)
                has_waited = True
                if self._due.get(key) is mark:  # else a newer one has taken its place
                    del self._due[key]
                    if not is_done:
                        self._failed[key] = mark
        finally:
            self._lanes.pop(key, None)
        self._is_told = self._is_told and bool(self._due or self._failed)

    async def _one(self, key: str, mark: Mark) -> bool:
        try:
            await self._put(key, mark.position)
        except StoreUnavailable as trouble:
            self._tell(f"{key}: {trouble}")
            return False
        return True

    def _is_news(self, mark: Mark) -> bool:
        known = self._newest.get(mark.ownership.key)
        if known is None or known.ownership.epoch != mark.ownership.epoch:
            return True
        return known.position <= mark.position

    def _tell(self, trouble: str) -> None:
        # Said once: it is tried again in every cycle.
        level = logging.DEBUG if self._is_told else logging.WARNING
        log.log(level, "a checkpoint is not in the records of Azure's clients yet: %s", trouble)
        self._is_told = True
