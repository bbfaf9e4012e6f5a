"""The work of a simulated host: handlers of every style, a fenced sink, and dead letters.

The sink is outside, beyond the reach of a lease, fenced by epochs. A write that was sent is in
flight, whatever becomes of its handler: it arrives after the handler was cancelled, and after the
host has crashed. So a former owner does write late; the sink refuses it once a later owner has
written.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from leasehold.errors import CheckpointBehind, LeaseLost
from leasehold.names import partition_key
from leasehold.processor.handlers import Handlers, PartitionClient, PullHandlers
from leasehold.testing.sim.loop import simulated_sleep
from leasehold.testing.sim.threads import Blocking, SimThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.events.dead_letters import DeadLetter
    from leasehold.events.event import Event, EventBatch
    from leasehold.processor.context import AsyncPartitionContext, PartitionContext
    from leasehold.testing.sim.deliveries import Deliveries
    from leasehold.testing.sim.faults import WorkRates
    from leasehold.testing.sim.host import Host, HostClock

    Context = AsyncPartitionContext | PartitionContext


class Style(Enum):
    """How the user's code gets its events."""

    ASYNC = "async"
    THREAD = "thread"
    PULL = "pull"


class SinkRefused(Exception):
    """A later owner has written: this one is a zombie."""


class SimulatedFailure(Exception):
    """The handler fails, this time."""


class FencedSink:
    """Takes events; in each partition none of an older epoch after a newer one."""

    def __init__(self, deliveries: Deliveries) -> None:
        self.refused = 0
        self._deliveries = deliveries
        self._epochs: dict[str, int] = {}

    async def write(self, key: str, epoch: int, first: int, last: int, *, after_s: float) -> None:
        """Send events: they arrive after a while, even if the caller is gone by then."""
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


class SimDeadLetters:
    """A host's connection to the dead letters: late, or failing before or after they are stored."""

    def __init__(self, host: Host, deliveries: Deliveries, rates: Callable[[], WorkRates]) -> None:
        self._host = host
        self._deliveries = deliveries
        self._rates = rates

    async def send(self, letters: Sequence[DeadLetter]) -> None:
        """Store them; this may raise OSError, also when they are stored."""
        await self._travel()
        for each in letters:
            key = partition_key(each.stream, each.group, each.partition)
            self._deliveries.letter_stored(key, each.event.sequence_number)
        await self._travel()

    async def close(self) -> None:
        """Close nothing."""

    async def _travel(self) -> None:
        rates, rng = self._rates(), self._host.rng
        if rates.late and rng.random() < rates.late:
            await simulated_sleep(rng.uniform(0.0, rates.late_s))
        await self._host.gate()
        if rates.letters_fail and rng.random() < rates.letters_fail:
            raise OSError("simulated: no answer from the dead letters")


class SimHandler:
    """Puts every event into the sink, and then returns.

    Half of the hosts check before they write whether they may; the others rely on the fence.
    ``rates`` returns the current faults. Which events always fail depends on ``seed``.
    """

    def __init__(
        self,
        host: Host,
        clock: HostClock,
        sink: FencedSink,
        deliveries: Deliveries,
        rates: Callable[[], WorkRates],
        *,
        seed: int,
    ) -> None:
        self.threads = SimThreads(host, clock, rates)
        self.clients: set[PartitionClient] = set()
        self._host = host
        self._clock = clock
        self._sink = sink
        self._deliveries = deliveries
        self._rates = rates
        self._seed = seed
        self._checks_first = host.rng.random() < 0.5
        self._callers: set[asyncio.Task[None]] = set()

    def handlers(self, style: Style, *, one_by_one: bool, timeout_s: float | None) -> Handlers:
        """Return the functions of a processor."""
        if style is Style.PULL:
            pull = PullHandlers()
            self._start_caller(self._pull(pull))
            return Handlers(
                on_batch=self._offers(pull),
                on_partition_open=pull.opened,
                on_partition_close=pull.closed,
                on_drain=pull.drains,
                timeout_s=timeout_s,
            )
        functions: tuple[Callable[..., Any], Callable[..., Any]] = (self.on_batch, self.on_event)
        if style is Style.THREAD:
            functions = self.on_batch_in_thread, self.on_event_in_thread
        return Handlers(
            on_batch=None if one_by_one else functions[0],
            on_event=functions[1] if one_by_one else None,
            timeout_s=timeout_s,
            threads=self.threads,
        )

    def kill(self) -> list[asyncio.Task[Any]]:
        """End all that runs beside the processor, with the process; return its tasks."""
        callers = list(self._callers)
        for caller in callers:
            caller.cancel()
        return callers + self.threads.kill()

    async def on_batch(self, context: AsyncPartitionContext, batch: EventBatch) -> None:
        """Handle a batch."""
        await self._handle(context, batch.first_sequence, batch.last_sequence)

    async def on_event(self, context: AsyncPartitionContext, event: Event) -> None:
        """Handle an event."""
        await self._handle(context, event.sequence_number, event.sequence_number)

    def on_batch_in_thread(self, context: PartitionContext, batch: EventBatch) -> Blocking:
        """Handle a batch in a simulated thread."""
        return Blocking(self._handle(context, batch.first_sequence, batch.last_sequence))

    def on_event_in_thread(self, context: PartitionContext, event: Event) -> Blocking:
        """Handle an event in a simulated thread."""
        return Blocking(self._handle(context, event.sequence_number, event.sequence_number))

    # --------------------------------------------------------- the pull style

    def _offers(self, pull: PullHandlers) -> Callable[..., Any]:
        async def offer(context: AsyncPartitionContext, batch: EventBatch) -> None:
            try:
                await pull.handle(context, batch)
            except BaseException:
                key = partition_key(context.stream, context.group, context.partition)
                self._deliveries.offer_ended(key, context.epoch)
                raise

        return offer

    async def _pull(self, pull: PullHandlers) -> None:
        async for client in pull.clients():
            self.clients.add(client)
            self._start_caller(self._receive(client))

    async def _receive(self, client: PartitionClient) -> None:
        rates = self._rates()
        try:
            await self._clock.sleep(self._host.rng.uniform(0.0, rates.slow_s))
            async for batch in client:
                await self._handle(client.context, batch.first_sequence, batch.last_sequence)
        except (LeaseLost, SinkRefused):
            return  # its caller has noticed the loss: the client is of no use any more
        finally:
            self.clients.discard(client)

    def _start_caller(self, caller: Any) -> None:
        task = asyncio.create_task(caller)
        self._callers.add(task)
        task.add_done_callback(self._caller_ended)

    def _caller_ended(self, task: asyncio.Task[None]) -> None:
        self._callers.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._deliveries.caller_failed(self._host, task.exception())

    # --------------------------------------------------------------- the work

    async def _handle(self, context: Context, first: int, last: int) -> None:
        key = partition_key(context.stream, context.group, context.partition)
        self._deliveries.begun(self._host, key, context.epoch, first, last)
        succeeded = False
        try:
            await self._work(context, key, first, last)
            succeeded = True
        finally:
            self._deliveries.ended(key, context.epoch, succeeded=succeeded)

    async def _work(self, context: Context, key: str, first: int, last: int) -> None:
        rates, rng = self._rates(), self._host.rng
        slow = rates.handler_slow and rng.random() < rates.handler_slow
        await self._clock.sleep(rng.uniform(0.0, rates.slow_s if slow else rates.usual_s))
        poison = self._first_poison(key, first, last) if rates.poison else None
        if poison is not None:
            if poison > first:
                await self._put(context, key, first, poison - 1)
            raise SimulatedFailure(f"simulated: no handler can take event {poison}")
        until = rng.randint(first, last)
        await self._put(context, key, first, until)
        if rates.own_checkpoints and rng.random() < rates.own_checkpoints:
            self._deliveries.checkpoint_requested(key, context.epoch, until)
            with suppress(CheckpointBehind):  # a later one had been written for it
                await self._checkpoint(context, until)
                self._deliveries.checkpoint_stored(key, context.epoch, until)
        if rates.handler_fails and rng.random() < rates.handler_fails:
            raise SimulatedFailure(f"simulated: the handler fails at event {until}")
        if until < last:
            await self._put(context, key, until + 1, last)

    async def _put(self, context: Context, key: str, first: int, last: int) -> None:
        rates, rng = self._rates(), self._host.rng
        if self._checks_first:
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

    async def _checkpoint(self, context: Context, at: int) -> None:
        # A simulated thread awaits what a real one blocks on.
        await asyncio.wrap_future(context._begin_checkpoint(at))  # noqa: SLF001

    def _first_poison(self, key: str, first: int, last: int) -> int | None:
        limit = self._rates().poison * 2**32
        numbers = range(first, last + 1)
        return next((n for n in numbers if _draw(f"{self._seed}/{key}/{n}") < limit), None)


def _draw(text: str) -> int:
    return zlib.crc32(text.encode())
