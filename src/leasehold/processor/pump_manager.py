"""The work side: one pump for each partition that is owned, and a watchdog that looks at them.

All methods are called in the loop of the user, but for those that say otherwise. Nothing here can
delay the lease side.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from leasehold.core.load_meter import rounded
from leasehold.core.stall_rule import StallVerdict
from leasehold.errors import LeaseholdError
from leasehold.names import partition_key
from leasehold.processor.checkpoint_writer import CheckpointLoader
from leasehold.processor.context import PartitionContext
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
    from collections.abc import Callable, Mapping

    from anyio.abc import TaskGroup

    from leasehold.clock import Clock
    from leasehold.core.load_meter import LoadMeter
    from leasehold.events.event import EventBatch
    from leasehold.events.source import EventSource
    from leasehold.lease.handle import Handle
    from leasehold.model import Ownership, Position
    from leasehold.processor.checkpoint_writer import Told
    from leasehold.processor.context import Transacting
    from leasehold.processor.events import EventBus
    from leasehold.processor.handlers import HandlerCall, Handlers
    from leasehold.processor.lease_thread import LeaseThread
    from leasehold.processor.options import ProcessorOptions
    from leasehold.runtime.loop_thread import LoopLink

log = logging.getLogger("leasehold.processor")

_LONGEST_LOOK_S = 15.0
_SHORTEST_LOOK_S = 0.05
_MOVING = frozenset(
    (PartitionState.WAITING, PartitionState.HANDLING, PartitionState.STUCK, PartitionState.OPENING)
)
# Ends that this host brings about itself: in the history they look like orderly ones.
_GIVEN_UP = frozenset(("drain_timeout", "stalled", "error", "shutdown"))
_CLOSED_BY = {
    "handed_over": CloseReason.HANDED_OVER,
    "released": CloseReason.HANDED_OVER,
    "stalled": CloseReason.STALLED,
    "broken": CloseReason.BROKEN,
}


class PumpManager:
    """The pumps of one processor."""

    def __init__(
        self,
        source: EventSource,
        lease_side: LeaseThread,
        *,
        group: str,
        options: ProcessorOptions,
        handlers: Handlers,
        bridge: LoopLink,
        board: EventBus,
        clock: Clock,
        rng: random.Random,
        transactions: Transacting | None = None,
    ) -> None:
        """Nothing is owned yet. ``run`` has to be running before anything is."""
        self.source = source
        self.stream = source.name
        self.group = group
        self.options = options
        self.handlers = handlers
        self.board = board
        self.clock = clock
        self.rng = rng
        self.transactions = transactions
        self.stopping = False
        self.resuming = CheckpointLoader(
            lambda: bridge.on_lease(lease_side.checkpoints), clock=clock, rng=rng
        )
        self._lease_side = lease_side
        self._bridge = bridge
        self._pumps: dict[tuple[str, int], Pump] = {}
        self._abandoned: list[HandlerCall] = []
        self._capped_at_s: float | None = None
        self._known: frozenset[str] = frozenset()
        self._trouble: BaseException | None = None
        self._tasks: TaskGroup | None = None
        self._idle = anyio.Event()

    @property
    def pumps(self) -> list[Pump]:
        """All that have not ended."""
        return list(self._pumps.values())

    @property
    def abandoned_calls(self) -> int:
        """How many threads go on with a call that nobody waits for."""
        return sum(call.running for call in self._abandoned)

    async def run(self) -> None:
        """Work until cancelled; then every pump is ended."""
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

    # ------------------------------------------- told by the lease side

    def open(self, tenure: Handle) -> None:
        """Begin to work on a partition."""
        if tenure.ended is not None or self._tasks is None:
            return  # it was lost before it was begun
        pump = Pump(tenure, self)
        self._pumps[tenure.ownership.key, tenure.ownership.epoch] = pump
        self._tasks.start_soon(self._run_pump, pump)

    def drain(self, ownership: Ownership) -> None:
        """Stop in good order, and say so."""
        pump = self._pumps.get((ownership.key, ownership.epoch))
        if pump is None:
            self._bridge.to_lease(lambda: self._lease_side.drained(ownership))
        else:
            pump.drain()

    def close(self, ownership: Ownership, reason: str) -> None:
        """Stop at once."""
        pump = self._pumps.get((ownership.key, ownership.epoch))
        if pump is not None:
            closed_by = _CLOSED_BY.get(reason) or self._forced(reason)
            if closed_by is CloseReason.STALLED:
                self._tell_stalled(pump, "passed on to another host", given_up=True)
            pump.close(closed_by, given_up=reason in _GIVEN_UP)

    def _forced(self, reason: str) -> CloseReason:
        if reason != "shutdown":
            return CloseReason.LOST
        return CloseReason.SHUTDOWN if self.stopping else CloseReason.ERROR

    # ----------------------------------------------- what pumps ask for

    def put_mark(
        self, ownership: Ownership, position: Position, within_s: float, told: Told
    ) -> None:
        """Have a position stored. From any thread."""
        self._lease_side.marks.put(ownership, position, within_s=within_s, told=told)

    def refused(self, tenure: Handle, position: Position) -> None:
        """A checkpoint came after the end of its ownership, and was not even sent."""
        self.board.tell(
            CheckpointRefused(
                holder=tenure.ownership.holder,
                partition=tenure.partition,
                epoch=tenure.ownership.epoch,
                sequence_number=position.sequence_number,
                why=tenure.ended or "local_deadline",
            )
        )

    def fenced(self, tenure: Handle) -> None:
        """The store has refused a write under this ownership: the member has yet to hear of it."""
        self._bridge.to_lease(lambda: self._lease_side.fenced(tenure.ownership))

    def weigh(self, meter: LoadMeter, done: EventBatch, now_s: float) -> None:
        """Note what a partition has cost."""
        if self.options.load is LoadMeasure.BYTES:
            meter.add(done.arrow.nbytes, now_s)
        else:
            meter.add(len(done), now_s)

    def loads(self) -> Mapping[str, float]:
        """How heavy each partition is, by its key."""
        now_s = self.clock.boottime_s()
        lag = self.options.load is LoadMeasure.LAG
        return {
            pump.tenure.ownership.key: rounded(
                pump.vigil.lag_events if lag else pump.meter.rate(now_s)
            )
            for pump in self.pumps
        }

    def late(self, ownership: Ownership) -> None:
        """A handler in a thread is over its limit: its partition goes to another host."""
        pump = self._pumps.get((ownership.key, ownership.epoch))
        if pump is not None:
            pump.vigil.late = True
            self._stalled(pump, give_up=True)

    def ask_for_repeats(self, tenure: Handle, position: int) -> None:
        """Find out, beside the work, how many of the events to come may have been handled."""
        if tenure.ownership.epoch > 1 and self._tasks is not None:
            self._tasks.start_soon(self._count_repeats, tenure, position)

    async def on_error(
        self, contexts: tuple[object, object], error: BaseException, *, by_user: bool = False
    ) -> None:
        """Tell the user's error handler. What that raises is logged.

        ``by_user``: a function of the user's has raised it, and its lines are worth to be seen.
        """
        # An error of ours, such as of a source that is away, says all of it in its message.
        trace = error if by_user or not isinstance(error, LeaseholdError) else None
        words = (self._place_of(contexts[0]), reason_of(error))
        log.error("%s: %s", *words, exc_info=trace, extra={"error": error})
        await self._guarded(self.handlers.on_error, contexts, error)

    def _place_of(self, context: object) -> str:
        if isinstance(context, PartitionContext):
            return f"partition {context.partition} (epoch {context.epoch}) of {self.stream}"
        return f"{self.stream} for {self.group}"

    async def call_user(
        self, function: Callable[..., Any] | None, contexts: tuple[object, object], *values: object
    ) -> None:
        """Call one of the user's functions. What it raises goes to the error handler."""
        try:
            await self.handlers.tell(function, contexts, *values)
        except Exception as error:  # noqa: BLE001
            await self.on_error(contexts, error, by_user=True)

    def trouble(self, error: BaseException) -> None:
        """A cycle of the member failed: an error outside any partition.

        The user's function is told of one at a time; of those that come meanwhile, of the last.
        """
        told, self._trouble = self._trouble is not None, error
        if not told and self._tasks is not None:
            self._tasks.start_soon(self._tell_trouble)

    async def _tell_trouble(self) -> None:
        while (error := self._trouble) is not None:
            await self._guarded(self.handlers.on_error, (None, None), error)
            if self._trouble is error:
                self._trouble = None

    def abandoned(self, call: HandlerCall) -> None:
        """A thread goes on with a call that nobody waits for."""
        self._abandoned.append(call)

    def ended(self, pump: Pump, *, in_order: bool) -> None:
        """The pump has ended; in order means: the member may give the partition away now."""
        ownership = pump.tenure.ownership
        self._pumps.pop((ownership.key, ownership.epoch), None)
        if in_order:
            self._bridge.to_lease(lambda: self._lease_side.drained(ownership))
        self._idle.set()
        self._idle = anyio.Event()

    async def _run_pump(self, pump: Pump) -> None:
        try:
            await pump.run()
        except Exception as error:  # noqa: BLE001
            # A fault of ours. The partition must not stay with a host that does nothing for it.
            await self.on_error(pump.contexts, error)
            self.ended(pump, in_order=False)
            ownership = pump.tenure.ownership
            self._bridge.to_lease(lambda: self._lease_side.give_up(ownership, "error"))

    async def _guarded(
        self, function: Callable[..., Any] | None, contexts: tuple[object, object], *values: object
    ) -> None:
        try:
            await self.handlers.tell(function, contexts, *values)
        except Exception:
            log.exception("on_error failed")

    async def _count_repeats(self, tenure: Handle, position: int) -> None:
        with suppress(Exception):  # it is only a number; an error here must not end the pumps
            if await self._bridge.on_lease(lambda: self._lease_side.follows_order(tenure)):
                return
            ends = await self.source.ends([tenure.partition])
            events = max(0, ends[tenure.partition].next - position)
            if events:
                self.board.tell(
                    PossibleRepeats(
                        holder=tenure.ownership.holder,
                        partition=tenure.partition,
                        epoch=tenure.ownership.epoch,
                        events=events,
                    )
                )

    # -------------------------------------------------------- partitions

    async def discover(self) -> None:
        """Declare the partitions that the source has and the store may not know (P1).

        Raises:
            LeaseholdError: the source or the store can not be asked.
        """
        found = frozenset(await self.source.partitions())
        new = found - self._known
        if new:
            keys = sorted(partition_key(self.stream, self.group, each) for each in new)
            await self._bridge.on_lease(lambda: self._lease_side.declare(keys))
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
        every_s = min(max(self.options.stall.check_interval_s, _SHORTEST_LOOK_S), _LONGEST_LOOK_S)
        while True:
            await self.clock.sleep(every_s)
            self._forget_ended_calls()
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001
                await self.on_error((None, None), error)

    async def _look(self) -> None:
        rule, now_s = self.options.stall, self.clock.boottime_s()
        moving = [pump for pump in self.pumps if pump.state in _MOVING]
        quiet = [
            p for p in moving if not p.work_waits and p.still_s(now_s) >= rule.check_interval_s
        ]
        asked = self.pumps if self.options.load is LoadMeasure.LAG else quiet
        if asked:
            ends = await self.source.ends([pump.tenure.partition for pump in asked])
            for pump in asked:
                end = ends.get(pump.tenure.partition)
                pump.vigil.lag_events = 0
                if end is not None and pump.next is not None:
                    pump.vigil.lag_events = max(0, end.next - pump.next)
        for pump in moving:
            if pump.vigil.kept:
                self._give_up(pump)
            waits, still_s = pump.work_waits, pump.still_s(now_s)
            if pump in quiet and not waits and pump.state is not PartitionState.OPENING:
                waits, still_s = pump.vigil.lag_events > 0, pump.vigil.behind_s(now_s)
            waits = waits or pump.state is PartitionState.OPENING
            verdict = rule.judge(work_waits=waits, still_s=still_s)
            if verdict is not StallVerdict.FINE:
                self._stalled(pump, give_up=verdict is StallVerdict.GIVE_UP)

    def _give_up(self, pump: Pump) -> None:
        """Have the partition passed on; ``close`` is told, or ``kept`` if nobody can take it."""
        pump.vigil.given_up, pump.vigil.kept = True, False
        self._capped_at_s = self.clock.boottime_s()
        ownership = pump.tenure.ownership
        self._bridge.to_lease(lambda: self._lease_side.give_up(ownership, "stalled"))

    def kept(self, ownership: Ownership) -> None:
        """Nobody could take a partition that was given up: it is tried again."""
        pump = self._pumps.get((ownership.key, ownership.epoch))
        if pump is not None and pump.vigil.given_up:
            pump.vigil.kept = True
            if not pump.vigil.kept_told:
                pump.vigil.kept_told = True
                self._tell_stalled(pump, "kept, since no other host can take it", given_up=False)

    def _stalled(self, pump: Pump, *, give_up: bool) -> None:
        reported, pump.vigil.reported = pump.vigil.reported, True
        if give_up:
            if not pump.vigil.given_up:
                self._give_up(pump)
        elif not reported:
            self._tell_stalled(pump, "", given_up=False)
            pump.reopen()

    def _tell_stalled(self, pump: Pump, what: str, *, given_up: bool) -> None:
        still_s, limit_s = pump.still_s(self.clock.boottime_s()), self.handlers.limit_s
        why = f"no progress for {still_s:.1f} s ({pump.state.value})"
        if pump.vigil.late and limit_s is not None:
            why = f"a handler is over handler_timeout ({limit_s:g} s) and can not be stopped"
        words = f"{why}: {what}" if what else why
        log.warning("partition %s: %s", pump.tenure.partition, words)
        self.board.tell(
            Stalled(
                holder=pump.tenure.ownership.holder,
                partition=pump.tenure.partition,
                epoch=pump.tenure.ownership.epoch,
                still_s=still_s,
                given_up=given_up,
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
        # What was not a thread may be stuck again at once: leave the others a while with it.
        if ended or capped_s >= self.options.stall.stall_after_s:
            self._capped_at_s = None
            self._bridge.to_lease(self._lease_side.recovered)
