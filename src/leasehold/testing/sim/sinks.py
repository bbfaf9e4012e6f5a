"""Where handlers put their results: outside, beyond the reach of a lease, guarded by epochs.

A write that was sent is on its way, whatever becomes of its handler: it arrives after the handler
was cancelled, and after the host has died. So a former owner does write late; the sink refuses it
once a later owner has written.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.testing.sim.deliveries import Deliveries


class SinkRefused(Exception):
    """A later owner has written: this one is a zombie."""


class FencedSink:
    """Takes the events of all partitions; in each, none of an older epoch after a newer one."""

    def __init__(self, deliveries: Deliveries) -> None:
        """Empty; ``deliveries`` looks on."""
        self.refused = 0
        self._deliveries = deliveries
        self._epochs: dict[str, int] = {}

    async def write(self, key: str, epoch: int, first: int, last: int, *, after_s: float) -> None:
        """Put events there: they arrive after a while, even if the caller is gone by then.

        Raises:
            SinkRefused: the epoch is an old one.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        if after_s:
            loop.call_later(after_s, self._arrive, answer, key, epoch, first, last)
        else:
            self._arrive(answer, key, epoch, first, last)
        if not await answer:
            raise SinkRefused(f"epoch {epoch} of {key} is over: {self._epochs[key]} has written")

    def _arrive(
        self, answer: asyncio.Future[bool], key: str, epoch: int, first: int, last: int
    ) -> None:
        accepted = self._takes(key, epoch)
        if accepted:
            self._epochs[key] = max(epoch, self._epochs.get(key, 0))
            self._deliveries.effect(key, epoch, first, last)
        else:
            self.refused += 1
        if not answer.done():
            answer.set_result(accepted)

    def _takes(self, key: str, epoch: int) -> bool:
        return epoch >= self._epochs.get(key, 0)
