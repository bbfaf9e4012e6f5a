"""``Member``: holds its share of the keys of a group, under one lease."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from leasehold.errors import CheckpointBehind, FencedWrite, LeaseLost, UsageError
from leasehold.lease.cycle import Cycle
from leasehold.lease.group_state import sanitized
from leasehold.model import CheckpointWrite, Ownership, Position, Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from leasehold.lease.group_state import GroupState

_LONGEST_WATCH_S = 3600.0
_SHORTEST_WATCH_S = 0.01


class Member(Cycle):
    """One member of a group.

    Guarantees:

    - A member holds a key (``holds``) only while no other member of the group does, unless a
      strategy or an operator takes it forcibly.
    - Each loss is reported to the key handler once.
    - If the store cannot be reached, the member stops holding its keys in time, and their work is
      stopped.
    """

    def __repr__(self) -> str:
        return f"<Member {self.holder or self.options.name} holding {len(self.held())}>"

    @property
    def view(self) -> GroupState:
        """What this member knows of its group."""
        return self._group_state

    def holds(self, key: str) -> Ownership | None:
        """Return the ownership of ``key`` if the work may act on it now."""
        return self._holdings.believed(key, self._clock.boottime_s()) if self._trusts() else None

    def held(self) -> list[Ownership]:
        """Return all ownerships that the work may act on now."""
        return self._holdings.all_believed(self._clock.boottime_s()) if self._trusts() else []

    @property
    def settled(self) -> bool:
        """Whether it has joined and no release or hand-over is pending."""
        return self._lease is not None and not self._holdings.leaving

    def report_loads(self, loads: Mapping[str, float]) -> None:
        """Publish the loads of the keys held here with the next renewal."""
        self._info = sanitized(replace(self._info, loads=dict(loads)))

    def report_failing(self, failing: Mapping[str, str]) -> None:
        """Publish which keys' work fails with the next renewal, of so many keys as may be told."""
        self._info = sanitized(replace(self._info, failing=dict(failing)))

    def pass_on(self, ownership: Ownership, *, reason: str) -> bool:
        """Close a key whose work is stuck, and hand it to the member with the fewest keys.

        From then on this member takes no more keys than it has now, until ``recovered``: otherwise
        the strategy would bring the key back. False, and nothing is changed, if the key is not held
        or no other member has room for it.
        """
        key = ownership.key
        # A key that is being handed over counts for its receiver.
        owners = Counter(
            each.holder or each.handed_to for each in self._group_state.resources.values()
        )
        receivers = [
            holder
            for holder, member in self._group_state.members.items()
            if holder != self.holder
            and not member.info.draining
            and (member.info.most is None or owners[holder] < member.info.most)
        ]
        if not receivers or self._holdings.held.get(key) != ownership:
            return False
        receiver = min(receivers, key=lambda holder: (owners[holder], holder))
        self._holdings.close(key, reason=reason)
        self._holdings.give_up(ownership, to=receiver)
        self._passed_on[key] = receiver
        self._info = replace(self._info, most=len(self._holdings.held))
        self._last_plan = None
        self._wake.set()
        return True

    def recovered(self) -> None:
        """Take a full share again."""
        if self._info.most != self.options.most:
            self._info = replace(self._info, most=self.options.most)
            self._last_plan = None
            self._wake.set()

    def drain(self) -> None:
        """Start to leave: hand all keys over to the others, then end the lease."""
        self._info = replace(self._info, draining=True)
        self._wake.set()

    def drained(self, ownership: Ownership) -> None:
        """Report that the work under this ownership has stopped (for the key handler)."""
        self._holdings.drained(ownership)
        self._wake.set()

    def trusted_for_s(self) -> float:
        """Return the time to the local deadline if no renewal succeeds."""
        return max(0.0, self._trusted_until_s - self._clock.boottime_s()) if self._trusts() else 0.0

    async def mark(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        """Write positions in one call; return the refused ones. What was fenced is closed.

        Raises:
            LeaseLost: the local deadline passed before the answer: they may have been written.
            StoreUnavailable: unknown whether they were written; the same call may be repeated.
        """
        refused = await self._call("checkpoint", self._store.checkpoint(marks))
        for write in marks:
            if refused.get(write.ownership.key) is Refusal.FENCED:
                self.fenced(write.ownership)
        return refused

    async def checkpoint(self, positions: Mapping[str, Position]) -> None:
        """Write positions under the ownerships held here, in one call.

        Raises:
            LeaseLost: one of the keys is not held here, and nothing was written; or the local
                deadline passed before the answer, and they may have been written.
            FencedWrite: the store refused at least one, whose ownership has ended; all such keys
                are closed. The other positions were written.
            CheckpointBehind: at least one is before the stored position. The others were written.
            StoreUnavailable: unknown whether it was written; the same call may be repeated.
        """
        writes = [
            CheckpointWrite(ownership=self._must_hold(key), position=position)
            for key, position in positions.items()
        ]
        refused = await self.mark(writes)
        fenced = [each for each in writes if refused.get(each.ownership.key) is Refusal.FENCED]
        if fenced:
            raise _fenced_write([each.ownership for each in fenced])
        if refused:
            raise CheckpointBehind(
                f"the checkpoint of {', '.join(refused)} lies before the one that is stored: "
                "it stays where it is; write positions in order"
            )

    def fenced(self, ownership: Ownership) -> None:
        """Close an ownership under which a write was fenced, if it is held, and release it.

        Not only the store fences writes: a sink may have done so, or the handler may have written
        after the local deadline. If the store still counts the key as held here, no other member
        could have it; if not, the release changes nothing.
        """
        known = self._holdings.held.get(ownership.key)
        if known is not None and known.epoch == ownership.epoch:
            self._holdings.close(ownership.key, reason="fenced")
            self._holdings.give_up(known, to=None)
            self._wake.set()

    def _must_hold(self, key: str) -> Ownership:
        ownership = self.holds(key)
        if ownership is None:
            raise LeaseLost(
                f"{key} is not held here: ask holds(key) before you act on it",
                key=key,
                reason="not_held",
            )
        return ownership

    # ------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Cycle until ``drain`` has been carried out. Cancelling closes everything at once.

        After it was cancelled, ``leave`` frees the keys; without it they are free when the lease
        ends.
        """
        if self._running:
            raise UsageError("run() is under way already: one loop per member")
        self._running = True
        errors: list[Exception] = []
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ending, self._watch, tasks.cancel_scope, errors)
                await self._ending(self._loop, tasks.cancel_scope, errors)
        finally:
            self._running = False
            self._abandon_lease()
            self._holdings.close_all(reason="shutdown")
        if errors:
            raise errors[0]

    async def leave(self) -> None:
        """Close all, release all, end the lease: for a member whose ``run`` has ended or never ran.

        Raises:
            UsageError: ``run`` is in progress; use ``drain``.
            StoreUnavailable: the lease will expire.
        """
        if self._running:
            raise UsageError("leave() was called while run() is under way: call drain() instead")
        await self._end()

    async def _loop(self) -> None:
        while not self.left:
            await self._wait(await self.step())

    async def _watch(self) -> None:
        """Stop work whose deadline has passed, whatever the loop is waiting for.

        A call to the store may hang, also for a while after a suspend; the work on keys that are no
        longer held must not wait for it. When the member is cancelled its work ends here
        immediately, not when the store's driver returns.
        """
        try:
            while True:
                now_s = self._clock.boottime_s()
                if self._lease is not None and not self._trusts():
                    # Permanent: an answer that comes now must not make the same lease valid again.
                    self._lapsed = True
                    self._holdings.close_held(reason="local_deadline")
                if self._holdings.overdue(now_s):
                    self._holdings.force_overdue(now_s)
                    self._wake.set()  # the release has to be sent
                until_s = self._holdings.next_deadline_s()
                if self._trusts():
                    until_s = min(until_s, self._trusted_until_s)
                self._watch_again = anyio.Event()
                pause_s = min(until_s - now_s, self._clock.slice_s, _LONGEST_WATCH_S)
                pause_s = max(pause_s, _SHORTEST_WATCH_S)  # never spin
                with suppress(TimeoutError):
                    await self._clock.bounded(self._watch_again.wait(), seconds=pause_s)
        finally:
            self._holdings.close_held(reason="shutdown")

    async def _ending(
        self,
        work: Callable[[], Awaitable[None]],
        scope: anyio.CancelScope,
        errors: list[Exception],
    ) -> None:
        """Run ``work``, then cancel the others too; keep an error, to raise it alone."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001
            errors.append(error)
        finally:
            scope.cancel()

    async def _wait(self, pause_s: float) -> None:
        if self._lease is not None:
            # Directly before the deadline no call could be answered in time: wait, never spin.
            left_s = self._trusted_until_s - self._clock.boottime_s()
            pause_s = min(pause_s, max(left_s, _SHORTEST_WATCH_S))
        with suppress(TimeoutError):
            await self._clock.bounded(self._wake.wait(), seconds=pause_s)
            self._wake = anyio.Event()


def _fenced_write(ownerships: list[Ownership]) -> FencedWrite:
    first = ownerships[0]
    return FencedWrite(
        f"the checkpoint of {', '.join(each.key for each in ownerships)} was refused: the "
        f"ownership (epoch {first.epoch}) has ended; stop the work on it",
        key=first.key,
        epoch=first.epoch,
        reason="fenced",
    )
