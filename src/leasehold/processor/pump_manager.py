"""Runs one pump for each owned partition, discovers partitions, and watches for stalls.

All methods are called in the user's loop, except those that say otherwise. Nothing here can delay
the lease thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from leasehold.core.backoff import Backoff
from leasehold.core.load_meter import rounded
from leasehold.core.stall_rule import StallState
from leasehold.errors import LeaseholdError
from leasehold.names import partition_key
from leasehold.processor.checkpoint_writer import CheckpointLoader
from leasehold.processor.context import AsyncPartitionContext
from leasehold.processor.events import (
    CheckpointRefused,
    CloseReason,
    PartitionState,
    PossibleRepeats,
    Stalled,
)
from leasehold.processor.options import LoadMeasure
from leasehold.processor.pump import Pump
from leasehold.runtime.tracebacks import reason_of

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup

    from leasehold.clock import Clock
    from leasehold.core.load_meter import LoadMeter
    from leasehold.events.event import EventBatch
    from leasehold.events.source import EventSource
    from leasehold.lease.handle import Handle
    from leasehold.model import Ownership, Position
    from leasehold.processor.checkpoint_writer import WriteCallback
    from leasehold.processor.context import Transacting
    from leasehold.processor.events import EventBus
    from leasehold.processor.handlers import HandlerCall, Handlers
    from leasehold.processor.lease_thread import LeaseThread
    from leasehold.processor.options import ProcessorOptions
    from leasehold.runtime.loop_thread import LoopLink

T = TypeVar("T")

log = logging.getLogger("leasehold.processor")

_MAX_CHECK_INTERVAL_S = 15.0
_MIN_CHECK_INTERVAL_S = 0.05
_MOVING = frozenset(
    (
        PartitionState.WAITING,
        PartitionState.HANDLING,
        PartitionState.STUCK,
        PartitionState.OPENING,
        PartitionState.STALLED,
    )
)
_RETRY_BACKOFF = Backoff(base_s=0.1, max_s=15.0)
_MAX_COUNT_ATTEMPTS = 50
# Reasons by which this host ends its own term: the history shows an orderly end.
_GIVEN_UP = frozenset(("drain_timeout", "stalled", "error", "shutdown"))
_CLOSED_BY = {
    "handed_over": CloseReason.HANDED_OVER,
    "released": CloseReason.HANDED_OVER,
    "stalled": CloseReason.STALLED,
    "broken": CloseReason.BROKEN,
}


class PumpManager:
    """The pumps of one processor. ``run`` must be running before anything is owned."""

    def __init__(
        self,
        source: EventSource,
        lease_thread: LeaseThread,
        *,
        group: str,
        options: ProcessorOptions,
        handlers: Handlers,
        loop_link: LoopLink,
        event_bus: EventBus,
        clock: Clock,
        rng: random.Random,
        transactions: Transacting | None = None,
    ) -> None:
        self.source = source
        self.stream = source.name
        self.group = group
        self.options = options
        self.handlers = handlers
        self.event_bus = event_bus
        self.clock = clock
        self.rng = rng
        self.transactions = transactions
        self.stopping = False
        self.checkpoint_loader = CheckpointLoader(
            lambda: loop_link.on_lease(lease_thread.checkpoints), clock=clock, rng=rng
        )
        self._lease_thread = lease_thread
        self._loop_link = loop_link
        self._pumps: dict[tuple[str, int], Pump] = {}
        self._abandoned: list[HandlerCall] = []
        self._capped_at_s: float | None = None
        self._known: frozenset[str] = frozenset()
        self._member_error: BaseException | None = None
        self._tasks: TaskGroup | None = None
        self._idle = anyio.Event()

    @property
    def pumps(self) -> list[Pump]:
        """All pumps that have not ended."""
        return list(self._pumps.values())

    @property
    def abandoned_calls(self) -> int:
        """How many threads continue with a handler call that is no longer awaited."""
        return sum(call.running for call in self._abandoned)

    async def run(self) -> None:
        """Work until cancelled; then end every pump."""
        async with anyio.create_task_group() as self._tasks:
            try:
                self._tasks.start_soon(self._watch)
                await self._discover_again()
            finally:
                for pump in self.pumps:
                    pump.close(CloseReason.SHUTDOWN if self.stopping else CloseReason.ERROR)

    async def empty(self) -> None:
        """Return when no pump is left."""
        while self._pumps:
            await self._idle.wait()

    # ------------------------------------- called by the lease thread

    def open(self, handle: Handle) -> None:
        """Begin to work on a partition."""
        if handle.ended is not None or self._tasks is None:
            return  # it was lost before the work began
        pump = Pump(handle, self)
        self._pumps[handle.ownership.key, handle.ownership.epoch] = pump
        self._tasks.start_soon(self._run_pump, pump)

    def drain(self, ownership: Ownership) -> None:
        """Stop the pump gracefully, and report it to the lease thread."""
        pump = self._pumps.get((ownership.key, ownership.epoch))
        if pump is None:
            self._loop_link.to_lease(lambda: self._lease_thread.drained(ownership))
        else:
            pump.drain()

    def close(self, ownership: Ownership, reason: str) -> None:
        """Stop the pump immediately."""
        pump = self._pumps.get((ownership.key, ownership.epoch))
        if pump is not None:
            closed_by = _CLOSED_BY.get(reason) or self._forced_close_reason(reason)
            if closed_by is CloseReason.STALLED:
                self._report_stalled(pump, "passed on to another host", given_up=True)
            pump.close(closed_by, given_up=reason in _GIVEN_UP)

    def _forced_close_reason(self, reason: str) -> CloseReason:
        if reason != "shutdown":
            return CloseReason.LOST
        return CloseReason.SHUTDOWN if self.stopping else CloseReason.ERROR

    # ------------------------------------------------- called by pumps

    def write_checkpoint(
        self, ownership: Ownership, position: Position, within_s: float, on_done: WriteCallback
    ) -> None:
        """Have a position stored. From any thread."""
        self._lease_thread.checkpoint_writer.put(
            ownership, position, within_s=within_s, on_done=on_done
        )

    def refused(self, handle: Handle, position: Position) -> None:
        """Report a checkpoint that came after the end of its ownership and was not sent."""
        self.event_bus.tell(
            CheckpointRefused(
                holder=handle.ownership.holder,
                partition=handle.partition,
                epoch=handle.ownership.epoch,
                sequence_number=position.sequence_number,
                why=handle.ended or "local_deadline",
            )
        )

    def fenced(self, handle: Handle) -> None:
        """Report that the store refused a write under this ownership before the member knew."""
        self._loop_link.to_lease(lambda: self._lease_thread.fenced(handle.ownership))

    def measure_load(self, meter: LoadMeter, done: EventBatch, now_s: float) -> None:
        """Add handled events to the load of a partition."""
        if self.options.load is LoadMeasure.BYTES:
            meter.add(done.arrow.nbytes, now_s)
        else:
            meter.add(len(done), now_s)

    def loads(self) -> Mapping[str, float]:
        """Return the load of each partition, by its key."""
        now_s = self.clock.boottime_s()
        lag = self.options.load is LoadMeasure.LAG
        return {
            pump.handle.ownership.key: rounded(
                pump.stall_watch.lag_events if lag else pump.meter.rate(now_s)
            )
            for pump in self.pumps
        }

    def failing(self) -> Mapping[str, str]:
        """Return where the handlers of partitions fail now, by their keys."""
        return {
            pump.handle.ownership.key: "at {}, attempt {}".format(*pump.delivery.failing)
            for pump in self.pumps
            if pump.delivery.failing is not None
        }

    def late(self, ownership: Ownership) -> None:
        """Give up a partition whose handler, in a thread, is over its timeout."""
        pump = self._pumps.get((ownership.key, ownership.epoch))
        if pump is not None:
            pump.stall_watch.late = True
            self._stalled(pump, give_up=True)

    def count_repeats(self, handle: Handle, position: int, *, checkpoint_epoch: int) -> None:
        """Start to count how many of the next events may have been handled before."""
        if handle.ownership.epoch > 1 and self._tasks is not None:
            self._tasks.start_soon(self._count_repeats, handle, position, checkpoint_epoch)

    async def on_error(
        self, contexts: tuple[object, object], error: BaseException, *, by_user: bool = False
    ) -> None:
        """Log the error and call the user's error handler. What that raises is logged.

        ``by_user``: a function of the user raised it, so its traceback is worth logging.
        """
        # The message of a LeaseholdError, such as of an unavailable source, is enough.
        trace = error if by_user or not isinstance(error, LeaseholdError) else None
        message = (self._describe(contexts[0]), reason_of(error))
        log.error("%s: %s", *message, exc_info=trace, extra={"error": error})
        await self._guarded(self.handlers.on_error, contexts, error)

    def _describe(self, context: object) -> str:
        if isinstance(context, AsyncPartitionContext):
            return f"partition {context.partition} (epoch {context.epoch}) of {self.stream}"
        return f"{self.stream} for {self.group}"

    async def call_user(
        self, function: Callable[..., Any] | None, contexts: tuple[object, object], *values: object
    ) -> None:
        """Call one of the user's functions. What it raises goes to the error handler."""
        try:
            await self.handlers.invoke(function, contexts, *values)
        except Exception as error:  # noqa: BLE001
            await self.on_error(contexts, error, by_user=True)

    def member_failed(self, error: BaseException) -> None:
        """Report a failed cycle of the member: an error outside any partition.

        One call of the error handler runs at a time; of the errors that come in the meantime, the
        last is reported.
        """
        reporting, self._member_error = self._member_error is not None, error
        if not reporting and self._tasks is not None:
            self._tasks.start_soon(self._report_member_error)

    async def _report_member_error(self) -> None:
        while (error := self._member_error) is not None:
            await self._guarded(self.handlers.on_error, (None, None), error)
            if self._member_error is error:
                self._member_error = None

    def abandoned(self, call: HandlerCall) -> None:
        """Count a thread that continues with a call that is no longer awaited."""
        self._abandoned.append(call)

    def ended(self, pump: Pump, *, in_order: bool) -> None:
        """Remove a pump; ``in_order``: the member may now give the partition away."""
        ownership = pump.handle.ownership
        self._pumps.pop((ownership.key, ownership.epoch), None)
        if in_order:
            self._loop_link.to_lease(lambda: self._lease_thread.drained(ownership))
        self._idle.set()
        self._idle = anyio.Event()

    async def _run_pump(self, pump: Pump) -> None:
        try:
            await pump.run()
        except Exception as error:  # noqa: BLE001
            # A bug in Leasehold. The partition must not stay with a host that does not work on it.
            await self.on_error(pump.contexts, error)
            self.ended(pump, in_order=False)
            ownership = pump.handle.ownership
            self._loop_link.to_lease(lambda: self._lease_thread.give_up(ownership, "error"))

    async def _guarded(
        self, function: Callable[..., Any] | None, contexts: tuple[object, object], *values: object
    ) -> None:
        try:
            await self.handlers.invoke(function, contexts, *values)
        except Exception:
            log.exception("on_error failed")

    async def _count_repeats(self, handle: Handle, position: int, checkpoint_epoch: int) -> None:
        """Report them; repeat after an error while the partition is held. No pump waits for it."""
        events = 0
        for failures in range(1, _MAX_COUNT_ATTEMPTS + 1):
            try:
                events = await self._possible_repeats(handle, position, checkpoint_epoch)
                break
            except Exception as error:  # noqa: BLE001
                log.info("partition %s: repeats not counted yet: %s", handle.partition, error)
            await self.clock.sleep(_RETRY_BACKOFF.pause_s(failures, self.rng))
            if not handle.valid:
                return
        if events:
            self.event_bus.tell(
                PossibleRepeats(
                    holder=handle.ownership.holder,
                    partition=handle.partition,
                    epoch=handle.ownership.epoch,
                    events=events,
                )
            )

    async def _possible_repeats(self, handle: Handle, position: int, checkpoint_epoch: int) -> int:
        if await self._loop_link.on_lease(
            lambda: self._lease_thread.follows_orderly_end(
                handle, checkpoint_epoch=checkpoint_epoch
            )
        ):
            return 0
        asked, limit_s = self.source.ends([handle.partition]), self.options.stall.stall_after_s
        ends = await self._from_source("ends", asked, limit_s)
        return max(0, ends[handle.partition].next - position)

    # -------------------------------------------------------- partitions

    async def discover(self) -> None:
        """Declare the partitions that the source has and the store may not know (P1)."""
        limit_s = self.options.discovery_interval.total_seconds()
        asked = self.source.partitions()
        found = frozenset(await self._from_source("partitions", asked, limit_s))
        new = found - self._known
        if new:
            keys = sorted(partition_key(self.stream, self.group, each) for each in new)
            await self._loop_link.on_lease(lambda: self._lease_thread.declare(keys))
            self._known |= new

    async def _discover_again(self) -> None:
        while True:
            await self.clock.sleep(self.options.discovery_interval.total_seconds())
            try:
                await self.discover()
            except Exception as error:  # noqa: BLE001
                await self.on_error((None, None), error)

    # ---------------------------------------------------------- watchdog

    async def _watch(self) -> None:
        interval_s = min(
            max(self.options.stall.check_interval_s, _MIN_CHECK_INTERVAL_S), _MAX_CHECK_INTERVAL_S
        )
        while True:
            await self.clock.sleep(interval_s)
            self._forget_ended_calls()
            try:
                await self._check_pumps()
            except Exception as error:  # noqa: BLE001
                await self.on_error((None, None), error)

    async def _check_pumps(self) -> None:
        rule, now_s = self.options.stall, self.clock.boottime_s()
        moving = [pump for pump in self.pumps if pump.state in _MOVING]
        quiet = [
            p for p in moving if not p.work_waits and p.still_s(now_s) >= rule.check_interval_s
        ]
        await self._measure_lag(self.pumps if self.options.load is LoadMeasure.LAG else quiet)
        for pump in moving:
            if pump.stall_watch.kept:
                self._give_up(pump)
            waits, still_s = pump.work_waits, pump.still_s(now_s)
            if pump in quiet and not waits and not pump.opening:
                waits, still_s = pump.stall_watch.lag_events > 0, pump.stall_watch.behind_s(now_s)
            waits = waits or pump.opening
            verdict = rule.evaluate(work_waits=waits, still_s=still_s)
            if verdict is not StallState.FINE:
                self._stalled(pump, give_up=verdict is StallState.GIVE_UP)

    async def _measure_lag(self, pumps: list[Pump]) -> None:
        """Ask the source how many events wait; without an answer, the known ends still count.

        What hangs a receiver may hang this call, too. The watchdog must not hang with it.
        """
        if not pumps:
            return
        asked, limit_s = [p.handle.partition for p in pumps], self.options.stall.stall_after_s
        try:
            ends = await self._from_source("ends", self.source.ends(asked), limit_s)
        except Exception as error:  # noqa: BLE001
            await self.on_error((None, None), error)
        else:
            for pump in pumps:
                end = ends.get(pump.handle.partition)
                pump.stall_watch.end_next = 0 if end is None else end.next
        for pump in pumps:
            watch = pump.stall_watch
            watch.lag_events = 0 if pump.next is None else max(0, watch.end_next - pump.next)

    async def _from_source(self, name: str, answer: Awaitable[T], limit_s: float) -> T:
        try:
            return await self.clock.bounded(answer, seconds=limit_s)
        except TimeoutError as late:
            message = f"the source gave no answer to {name} within {limit_s:g} s"
            raise TimeoutError(message) from late

    def _give_up(self, pump: Pump) -> None:
        """Have the partition passed on; ``close`` or ``keep_stalled`` follows."""
        pump.stall_watch.given_up, pump.stall_watch.kept = True, False
        self._capped_at_s = self.clock.boottime_s()
        ownership = pump.handle.ownership
        self._loop_link.to_lease(lambda: self._lease_thread.give_up(ownership, "stalled"))

    def keep_stalled(self, ownership: Ownership) -> None:
        """Keep a partition that no other host could take; it is offered again later."""
        pump = self._pumps.get((ownership.key, ownership.epoch))
        if pump is not None and pump.stall_watch.given_up:
            pump.stall_watch.kept = True
            if not pump.stall_watch.kept_reported:
                pump.stall_watch.kept_reported = True
                self._report_stalled(pump, "kept, since no other host can take it", given_up=False)

    def _stalled(self, pump: Pump, *, give_up: bool) -> None:
        watch, now_s = pump.stall_watch, self.clock.boottime_s()
        reported, watch.reported = watch.reported, True
        if give_up and not watch.given_up:
            self._give_up(pump)
            return
        what = ""
        # Also while no other host can take it: what was wrong at the source may be over by now.
        if now_s >= watch.reopen_at_s and pump.reopen():
            watch.reopened += 1
            watch.reopen_at_s = now_s + self.options.stall.reopen_backoff.pause_s(
                watch.reopened, self.rng
            )
            what = f"its receiver is reopened (attempt {watch.reopened})"
        if what or not (reported or give_up):
            self._report_stalled(pump, what, given_up=False)

    def _report_stalled(self, pump: Pump, what: str, *, given_up: bool) -> None:
        still_s, limit_s = pump.still_s(self.clock.boottime_s()), self.handlers.timeout_s
        why = f"no progress for {still_s:.1f} s ({pump.state.value})"
        if pump.stall_watch.late and limit_s is not None:
            why = f"a handler is over handler_timeout ({limit_s:g} s) and can not be stopped"
        message = f"{why}: {what}" if what else why
        log.warning("partition %s: %s", pump.handle.partition, message)
        self.event_bus.tell(
            Stalled(
                holder=pump.handle.ownership.holder,
                partition=pump.handle.partition,
                epoch=pump.handle.ownership.epoch,
                still_s=still_s,
                given_up=given_up,
                reopened=pump.stall_watch.reopened,
            )
        )

    def _forget_ended_calls(self) -> None:
        ended = bool(self._abandoned)
        self._abandoned = [call for call in self._abandoned if call.running]
        if self._abandoned:
            return
        capped_s = 0.0
        if self._capped_at_s is not None:
            capped_s = self.clock.boottime_s() - self._capped_at_s
        # What was not a thread may get stuck again immediately: give other hosts some time.
        if ended or capped_s >= self.options.stall.stall_after_s:
            self._capped_at_s = None
            self._loop_link.to_lease(self._lease_thread.recovered)
