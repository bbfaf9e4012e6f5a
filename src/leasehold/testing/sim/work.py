"""The handlers of a simulated host: quick, slow, failing, with checkpoints of their own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from leasehold.errors import CheckpointBehind
from leasehold.names import partition_key
from leasehold.processor.handlers import Handlers
from leasehold.testing.sim.sinks import SinkRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.log.events import Event, EventBatch
    from leasehold.processor.context import PartitionContext
    from leasehold.testing.sim.deliveries import Deliveries
    from leasehold.testing.sim.faults import WorkRates
    from leasehold.testing.sim.host import Host, HostClock
    from leasehold.testing.sim.sinks import FencedSink


class HandlerBroke(Exception):
    """The handler fails, this time."""


class SimHandler:
    """Puts every event into the sink, and then says that it is done.

    Half of the hosts ask before they write whether they may; the others rely on the fence.
    """

    def __init__(
        self,
        host: Host,
        clock: HostClock,
        sink: FencedSink,
        deliveries: Deliveries,
        rates: Callable[[], WorkRates],
    ) -> None:
        """``rates`` tells how bad the day is now."""
        self._host = host
        self._clock = clock
        self._sink = sink
        self._deliveries = deliveries
        self._rates = rates
        self._asks_first = host.rng.random() < 0.5

    def handlers(self, *, one_by_one: bool, limit_s: float | None) -> Handlers:
        """The same as the functions of a processor."""
        if one_by_one:
            return Handlers(on_event=self.on_event, limit_s=limit_s)
        return Handlers(on_batch=self.on_batch, limit_s=limit_s)

    async def on_batch(self, context: PartitionContext, batch: EventBatch) -> None:
        """Handle a batch."""
        await self._handle(context, batch.first_sequence, batch.last_sequence)

    async def on_event(self, context: PartitionContext, event: Event) -> None:
        """Handle an event."""
        await self._handle(context, event.sequence_number, event.sequence_number)

    async def _handle(self, context: PartitionContext, first: int, last: int) -> None:
        key = partition_key(context.stream, context.group, context.partition)
        self._deliveries.begun(self._host, key, context.epoch, first, last)
        well = False
        try:
            await self._work(context, key, first, last)
            well = True
        finally:
            self._deliveries.ended(key, context.epoch, well=well)

    async def _work(self, context: PartitionContext, key: str, first: int, last: int) -> None:
        rates, rng = self._rates(), self._host.rng
        slow = rates.handler_slow and rng.random() < rates.handler_slow
        await self._clock.sleep(rng.uniform(0.0, rates.slow_s if slow else rates.usual_s))
        until = rng.randint(first, last)
        await self._put(context, key, first, until)
        if rates.own_checkpoints and rng.random() < rates.own_checkpoints:
            self._deliveries.asks(key, context.epoch, until)
            with suppress(CheckpointBehind):  # one that was written for it was further
                await context.checkpoint(until)
        if rates.handler_fails and rng.random() < rates.handler_fails:
            raise HandlerBroke(f"simulated: the handler fails at event {until}")
        if until < last:
            await self._put(context, key, until + 1, last)

    async def _put(self, context: PartitionContext, key: str, first: int, last: int) -> None:
        rates, rng = self._rates(), self._host.rng
        if self._asks_first:
            context.check()
        late = rates.late and rng.random() < rates.late
        after_s = rng.uniform(0.0, rates.late_s) if late else 0.0
        try:
            await self._sink.write(key, context.epoch, first, last, after_s=after_s)
        except SinkRefused:
            await self._host.gate()
            raise
        await self._host.gate()
        self._deliveries.has_effect(key, context.epoch, last)
