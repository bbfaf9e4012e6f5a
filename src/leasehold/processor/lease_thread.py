"""The lease thread: the member of a processor and its checkpoint writer.

Everything here runs in one event loop in which no handler ever runs, so that no handler can delay a
renewal. Calls to the pumps go through the ``LoopLink``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

import anyio

from leasehold.core.balance import Strategy
from leasehold.errors import StoreUnavailable
from leasehold.lease.handle import Handle
from leasehold.lease.member import Member
from leasehold.model import EndReason
from leasehold.names import last_part, partition_group
from leasehold.processor.checkpoint_writer import CheckpointWriter
from leasehold.processor.events import CycleDone, Overtaken

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.lease.cycle import CycleReport
    from leasehold.model import Checkpoint, Ownership
    from leasehold.ports import Store
    from leasehold.processor.events import EventBus
    from leasehold.processor.options import ProcessorOptions
    from leasehold.processor.pump_manager import PumpManager
    from leasehold.runtime.loop_thread import LoopLink

T = TypeVar("T")

log = logging.getLogger("leasehold.processor")

_IN_ORDER = frozenset((EndReason.HANDED_OVER, EndReason.RELEASED))
_MAX_TERMS = 20


class LeaseThread:
    """The member of one processor, and its key handler. Set ``pump_manager`` before ``run``."""

    pump_manager: PumpManager

    def __init__(
        self,
        store: Store,
        *,
        stream: str,
        group: str,
        name: str,
        options: ProcessorOptions,
        loop_link: LoopLink,
        event_bus: EventBus,
        clock: Clock,
        rng: random.Random,
        identity: Callable[[], tuple[str, str]] | None = None,
    ) -> None:
        self.store = store
        self.keys_group = partition_group(stream, group)
        self._options = options
        self._loop_link = loop_link
        self._event_bus = event_bus
        self._clock = clock
        self._handles: dict[str, Handle] = {}
        self._checked_at_s = clock.boottime_s()
        self._silent_s = 0.0
        self._unanswered = False
        self._failing: Mapping[str, str] = {}
        self._gave_up = False
        self.member = Member(
            store,
            options.member(group=self.keys_group, name=name),
            keeper=self,
            clock=clock,
            rng=rng,
            identity=identity,
            told=self._cycle_done,
        )
        self.checkpoint_writer = CheckpointWriter(
            self.member, clock=clock, rng=rng, event_bus=event_bus, wake=loop_link.to_lease
        )

    async def run(self) -> None:
        """Keep the lease until ``Member.drain`` was carried out.

        Cancelling closes all partitions immediately. An error is raised as it is, not in a group.
        """
        errors: list[Exception] = []

        async def ending(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001
                errors.append(error)
            finally:
                self.checkpoint_writer.close()
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ending, self.checkpoint_writer.run)
            await ending(self.member.run)
        if errors:
            raise errors[0]

    # ------------------------------------------------- called by the member

    def opened(self, ownership: Ownership) -> None:
        """Have a pump opened for the ownership."""
        handle = self._handles[ownership.key] = Handle(ownership=ownership, member=self.member)
        self._loop_link.to_work(lambda: self.pump_manager.open(handle))

    def drain(self, ownership: Ownership) -> bool:
        """Have the pump drained; ``drained`` follows later."""
        self._loop_link.to_work(lambda: self.pump_manager.drain(ownership))
        return False

    def closed(self, ownership: Ownership, reason: str) -> None:
        """End the handle, drop pending checkpoints, and have the pump closed."""
        handle = self._handles.get(ownership.key)
        if handle is not None and handle.ownership == ownership:
            handle.ended = reason
            del self._handles[ownership.key]
        self.checkpoint_writer.drop(ownership)
        self._loop_link.to_work(lambda: self.pump_manager.close(ownership, reason))

    # ---------------------------------------------- called by the work loop

    def drained(self, ownership: Ownership) -> None:
        """Report that the work under this ownership has stopped gracefully."""
        self.member.drained(ownership)

    def fenced(self, ownership: Ownership) -> None:
        """Report that the store refused a write under this ownership: it has ended."""
        self.member.fenced(ownership)

    def give_up(self, ownership: Ownership, reason: str) -> None:
        """Pass a stalled partition on, if another member can take it."""
        if not self.member.pass_on(ownership, reason=reason):
            self._loop_link.to_work(lambda: self.pump_manager.keep_stalled(ownership))

    def recovered(self) -> None:
        """Report that nothing is stuck: this host may take its full share again."""
        self.member.recovered()

    async def declare(self, keys: Sequence[str]) -> None:
        """Declare the keys in the store."""
        await self._bounded("declare", self.store.declare(keys))

    async def checkpoints(self) -> Mapping[str, Checkpoint]:
        """Return all checkpoints of the group."""
        return await self._bounded("checkpoints", self.store.checkpoints(self.keys_group))

    async def follows_orderly_end(self, handle: Handle, *, checkpoint_epoch: int) -> bool:
        """Return whether every term since the checkpoint ended gracefully.

        ``checkpoint_epoch``: the term that wrote the checkpoint; 0 if there is none. What a term
        after that one did has no checkpoint. A reset by an operator is where it begins again.
        """
        key, epoch = handle.ownership.key, handle.ownership.epoch
        terms = await self._bounded("history", self.store.history(key, limit=_MAX_TERMS))
        for term in terms:
            if term.reason is EndReason.RESET or term.epoch < checkpoint_epoch:
                break
            if term.epoch < epoch and term.reason not in _IN_ORDER:
                return False
        return True

    async def _bounded(self, name: str, answer: Awaitable[T]) -> T:
        self.member.calls[name] += 1
        limit_s = self._options.timing.call_s
        try:
            return await self._clock.bounded(answer, seconds=limit_s)
        except TimeoutError as late:
            raise StoreUnavailable(f"{name}: no answer within {limit_s:g} s") from late

    def _cycle_done(self, report: CycleReport) -> None:
        self._event_bus.tell(
            CycleDone(
                holder=self.member.holder or self.member.options.name,
                elapsed_s=report.elapsed_s,
                held=report.held,
                calls=dict(report.calls),
                error=report.error,
            )
        )
        for each in report.overtaken:
            partition = last_part(each.key)
            self._event_bus.tell(
                Overtaken(holder=each.holder, partition=partition, epoch=each.epoch)
            )
        if report.error is not None:
            error = report.error
            self._loop_link.to_work(lambda: self.pump_manager.member_failed(error))
        if self._options.strategy is Strategy.BY_LOAD:
            self._loop_link.to_work(self._report_loads)
        self._check_work_loop()

    def _check_work_loop(self) -> None:
        """Ask the work loop for a sign of life; leave the group if none came for too long.

        The watchdog lives in the loop that may be blocked. A host whose loop is blocked must not
        keep its partitions.
        """
        now_s, limit_s = self._clock.boottime_s(), self._options.stall.give_up_after_s
        if self._unanswered:
            # A pause of the whole process does not count: only time between two checks does.
            self._silent_s += min(now_s - self._checked_at_s, 2 * self._options.timing.renew_s)
        self._checked_at_s, self._unanswered = now_s, True
        if limit_s is not None and self._silent_s > limit_s and not self._gave_up:
            self._gave_up = True
            log.error("the event loop of %s does not turn: leaving", self.member.holder)
            self.member.drain()
        self._loop_link.to_work(self._work_loop_answered)

    def _work_loop_answered(self) -> None:
        self._silent_s, self._unanswered = 0.0, False
        failing = self.pump_manager.failing()
        if failing != self._failing:
            self._failing = failing
            self._loop_link.to_lease(lambda: self.member.report_failing(failing))

    def _report_loads(self) -> None:
        loads = self.pump_manager.loads()
        self._loop_link.to_lease(lambda: self.member.report_loads(loads))
