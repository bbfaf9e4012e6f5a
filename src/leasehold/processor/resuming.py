"""Where each partition goes on: after its checkpoint, or where the options say (C3).

Checkpoints are read after the partition was claimed, never before: a former owner may have
written until that moment. Partitions that are opened together share one call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from leasehold.core.ladder import Ladder
from leasehold.errors import StoreError

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from leasehold.clock import Clock
    from leasehold.model import Checkpoint

_PAUSES = Ladder(base_s=0.05, most_s=1.0)


@dataclass(slots=True, kw_only=True)
class _Round:
    found: Mapping[str, Checkpoint] = field(default_factory=dict)
    done: bool = False


class Resuming:
    """Answers for one group. All in one event loop."""

    def __init__(
        self,
        load: Callable[[], Awaitable[Mapping[str, Checkpoint]]],
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """``load`` reads all checkpoints of the group."""
        self._load = load
        self._clock = clock
        self._rng = rng
        self._lock = anyio.Lock()
        self._next: _Round | None = None

    async def checkpoint(self, key: str) -> Checkpoint | None:
        """The checkpoint as it is after this call began. Store trouble is waited out."""
        turn = self._next = self._next or _Round()
        async with self._lock:
            if not turn.done:
                await self._clock.sleep(0)  # those who were opened together come along
                if self._next is turn:
                    self._next = None  # whoever asks from now on needs a newer answer
                turn.found = await self._loaded()
                turn.done = True
        return turn.found.get(key)

    async def _loaded(self) -> Mapping[str, Checkpoint]:
        failures = 0
        while True:
            try:
                return await self._load()
            except StoreError:
                failures += 1
                await self._clock.sleep(_PAUSES.pause_s(failures, self._rng))
