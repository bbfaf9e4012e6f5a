"""``Member``: holds its share of a group, by one lease. The package's docstring has the design."""

from __future__ import annotations

import logging
import os
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import anyio

from leasehold.clock import SystemClock, host_name, new_suffix, new_token, system_random
from leasehold.core import balance, pace
from leasehold.core.balance import Plan
from leasehold.core.ladder import Ladder
from leasehold.core.timing import CLOCK_RATE_ERROR
from leasehold.core.view import View
from leasehold.errors import FencedWrite, LeaseLost, StoreUnavailable, UsageError
from leasehold.model import (
    HandOver,
    Lease,
    Mark,
    MarkRefusal,
    MemberInfo,
    Ownership,
    Position,
    Resource,
    State,
)
from leasehold.names import holder_id
from leasehold.processor.holdings import Holdings

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.model import Changes, Wanted
    from leasehold.ports import Keeper, Store
    from leasehold.processor.options import MemberOptions

T = TypeVar("T")

_WAIT_FOR_OTHERS = 0.1

log = logging.getLogger("leasehold.member")


class Member:
    """One member of a group.

    Guarantees: a key is believed to be owned (``holds``) only while no other member of the group
    believes so, unless a strategy or an operator takes it by force; what is lost is told to the
    keeper once; when the store can not be reached, belief ends in time.
    """

    def __init__(
        self,
        store: Store,
        options: MemberOptions,
        *,
        keeper: Keeper,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        identity: Callable[[], tuple[str, str]] | None = None,
    ) -> None:
        """Know nothing yet: the first step joins the group.

        ``keeper`` does the work on what is owned. ``clock``, ``rng`` and ``identity`` (which
        gives the suffix of a new holder id and a new token) are the machine's, unless handed in.
        """
        self.options = options
        self.calls: Counter[str] = Counter()
        self.left = False
        self._store = store
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._identity = identity or (lambda: (new_suffix(), new_token()))
        self._info = MemberInfo(
            host=host_name(), pid=os.getpid(), weight=options.weight, most=options.most
        )
        self._ladder = Ladder(base_s=options.timing.renew_s / 8, most_s=options.timing.renew_s)
        self._wake = anyio.Event()
        self._holdings = Holdings(keeper)
        self._lease: Lease | None = None
        self._given_up: Lease | None = None
        self._trusted_until_s = 0.0
        self._view = View()
        self._info_sent: MemberInfo | None = None
        self._last_plan: Plan | None = None
        self._failures = 0
        self._running = False

    # ------------------------------------------------------- for the owner

    @property
    def holder(self) -> str | None:
        """The id under which this member is known now; None before it has joined."""
        return self._lease.holder if self._lease else None

    @property
    def view(self) -> View:
        """What this member knows of its group."""
        return self._view

    def holds(self, key: str) -> Ownership | None:
        """The ownership of ``key`` if it may be acted upon at this very moment."""
        return self._holdings.believed(key, self._clock.boottime_s()) if self._trusts() else None

    def held(self) -> list[Ownership]:
        """All that may be acted upon at this very moment."""
        return self._holdings.all_believed(self._clock.boottime_s()) if self._trusts() else []

    @property
    def settled(self) -> bool:
        """Whether it has joined and nothing it wants to give up is on its way."""
        return self._lease is not None and not self._holdings.leaving

    def report_loads(self, loads: Mapping[str, float]) -> None:
        """Tell the group, with the next renewal, how heavy the keys held here are."""
        self._info = replace(self._info, loads=dict(loads))

    def drain(self) -> None:
        """Begin to leave: hand everything over to the others, then end the lease."""
        self._info = replace(self._info, draining=True)
        self._wake.set()

    def drained(self, key: str) -> None:
        """The keeper's answer to ``drain``: the work on this key has stopped."""
        self._holdings.drained(key, reason="handed over")
        self._wake.set()

    async def checkpoint(self, positions: Mapping[str, Position]) -> None:
        """Write positions under the ownerships held here, in one call.

        Raises:
            LeaseLost: one of the keys is not held here any more; nothing was written.
            FencedWrite: the store refused one: it has another owner. The key is closed.
            StoreUnavailable: unknown whether it was written; the same call may be repeated.
        """
        marks = [Mark(ownership=self._must_hold(k), position=p) for k, p in positions.items()]
        refused = await self._call("checkpoint", self._store.checkpoint(marks))
        for key in [key for key, why in refused.items() if why is MarkRefusal.FENCED]:
            self._holdings.close(key, reason="fenced")
            raise FencedWrite(f"{key}: the checkpoint was refused, it has another owner", key=key)

    # ------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Cycle until ``drain`` has been carried out. Cancelling closes everything at once.

        After it was cancelled, ``leave`` frees the keys; without it they are free when the lease
        ends.
        """
        self._running = True
        try:
            while not self.left:
                await self._wait(await self.step())
        finally:
            self._running = False
            self._holdings.close_all(reason="shutdown")

    async def step(self) -> float:
        """One cycle; returns how long to wait until the next. Store trouble is not raised."""
        started = self._clock.boottime_s()
        try:
            plan = await self._cycle()
        except StoreUnavailable as trouble:
            self._failures += 1
            log.warning("store unavailable", extra={"holder": self.holder, "why": str(trouble)})
            return self._ladder.pause_s(self._failures, self._rng)
        except LeaseLost as lost:
            self._lose_lease(lost.reason)
            return 0.0
        self._failures = 0
        return pace.pause_s(
            interval_s=self.options.timing.renew_s,
            elapsed_s=self._clock.boottime_s() - started,
            stable=plan.stable,
            hurries=self.options.strategy.hurries,
            expecting=bool(plan.expecting or plan.steal),
        )

    async def leave(self) -> None:
        """Close all, release all, end the lease: for a member whose ``run`` has ended or never ran.

        Raises:
            UsageError: ``run`` is under way; use ``drain``.
            StoreUnavailable: the lease will end by itself.
        """
        if self._running:
            raise UsageError("leave() was called while run() is under way: call drain() instead")
        await self._end()

    async def _end(self) -> None:
        self._holdings.close_all(reason="shutdown")
        lease, self._lease, self.left = self._lease, None, True
        if lease is not None:
            await self._call("revoke", self._store.revoke(lease))

    # ----------------------------------------------------------- its parts

    async def _cycle(self) -> Plan:
        """Renew, plan, act; return the plan."""
        if self._lease is not None:
            self._must_trust()
        lease = self._lease or await self._join()
        announced = self._info_sent is not None and self._info_sent.draining
        different = self._take_in(lease, *await self._renew(lease))
        self._force_overdue_drains()
        leaving = self._info.draining and not self._holdings.empty
        if leaving and not announced and len(self._view.peers) > 1:
            # The others hear of it within a cycle, and are waiting when the keys are passed on.
            plan = self._last_plan = Plan(hand_over=dict.fromkeys(self._holdings.held, ""))
        elif different or leaving or self._last_plan is None or not self._last_plan.stable:
            plan = self._last_plan = self._plan(lease)
            await self._act(lease, plan)
        else:
            # The same snapshot would give the same plan: nothing.
            plan = self._last_plan
        await self._send_leaving()
        if self._info.draining and self._holdings.empty and plan.stable:
            await self._end()
        return plan

    async def _join(self) -> Lease:
        if self._given_up is not None:
            await self._call("revoke", self._store.revoke(self._given_up))
            self._given_up = None
        suffix, token = self._identity()
        sent_s = self._clock.boottime_s()
        lease = await self._call(
            "grant",
            self._store.grant(
                holder=holder_id(self.options.name, host=self._info.host, suffix=suffix),
                token=token,
                group=self.options.group,
                duration=timedelta(seconds=self.options.timing.lease_s),
                info=self._info,
            ),
        )
        self._lease, self._view, self._last_plan = lease, View(), None
        self._info_sent = self._info
        self._trusted_until_s = self._trust(sent_s)
        # Hosts that are started together should see each other before they share out the keys.
        await self._clock.sleep(self.options.timing.renew_s * _WAIT_FOR_OTHERS)
        return lease

    async def _renew(self, lease: Lease) -> tuple[Changes, float]:
        info = None if self._info == self._info_sent else self._info
        sent_s = self._clock.boottime_s()
        changes = await self._call(
            "renew", self._store.renew(lease, since=self._view.version, info=info)
        )
        if info is not None:
            self._info_sent = info
        self._trusted_until_s = self._trust(sent_s)
        self._must_trust()
        return changes, sent_s

    def _take_in(self, lease: Lease, changes: Changes, sent_s: float) -> bool:
        different = self._view.apply(changes)
        for term in changes.ended:
            ownership = self._holdings.held.get(term.key)
            if ownership is not None and ownership.epoch == term.epoch:
                self._holdings.close(term.key, reason=term.reason.value if term.reason else "lost")
        for resource in changes.resources:
            self._take_in_resource(lease, resource, sent_s)
        return different

    def _take_in_resource(self, lease: Lease, resource: Resource, sent_s: float) -> None:
        mine = lease.holder in (resource.holder, resource.handed_to)
        self._holdings.settled(resource.key, epoch=resource.epoch - mine)
        if resource.holder != lease.holder:
            self._holdings.close(resource.key, reason="lost")
            return
        self._holdings.open(
            Ownership(
                key=resource.key, epoch=resource.epoch, holder=lease.holder, token=lease.token
            )
        )
        if resource.state is State.BREAKING and resource.breaking_s is not None:
            # Counted from the moment of asking, and short of a clock that runs slow.
            until_s = sent_s + resource.breaking_s * (1 - CLOCK_RATE_ERROR)
            self._holdings.drain(resource.key, to=None, until_s=until_s)
        elif resource.asked_by in self._view.peers:
            self._drain(resource.key, to=resource.asked_by)

    def _plan(self, lease: Lease) -> Plan:
        members = {holder: peer.info for holder, peer in self._view.peers.items()}
        snapshot = balance.Snapshot(
            members={**members, lease.holder: self._info}, resources=self._view.resources
        )
        return balance.plan(self.options.strategy, snapshot, lease.holder, self._rng)

    async def _act(self, lease: Lease, plan: Plan) -> None:
        for wanted, force in ((plan.claim, False), (plan.steal, True)):
            if wanted:
                await self._claim(lease, wanted, force=force)
        for key, to in plan.hand_over.items():
            if key in self._holdings.held:
                self._drain(key, to=to)
            elif key not in self._holdings.leaving:
                self._holdings.give_up(self._kept_for_me(lease, key), to=to)
        for key in plan.release:
            self._drain(key, to=None)

    async def _claim(self, lease: Lease, wanted: Sequence[Wanted], *, force: bool) -> None:
        won = await self._call("claim", self._store.claim(lease, wanted, force=force))
        self._must_trust()
        for ownership in won:
            log.info("owned", extra={"key": ownership.key, "epoch": ownership.epoch})
            self._holdings.open(ownership)

    async def _send_leaving(self) -> None:
        leaving = list(self._holdings.leaving.values())
        peers = self._view.peers
        passed = [
            HandOver(ownership=each.ownership, to=each.to)
            for each in leaving
            if each.to is not None and each.to in peers
        ]
        dropped = [each.ownership for each in leaving if each.to is None or each.to not in peers]
        if passed:
            limit = self.options.hand_over_limit
            done = await self._call("hand_over", self._store.hand_over(passed, limit=limit))
            for each in passed:
                if each.ownership.key in done:
                    self._holdings.settled(each.ownership.key, epoch=each.ownership.epoch)
                else:
                    self._holdings.give_up(each.ownership, to=None)
        if dropped:
            await self._call("release", self._store.release(dropped))
            for ownership in dropped:
                self._holdings.settled(ownership.key, epoch=ownership.epoch)

    def _drain(self, key: str, *, to: str | None) -> None:
        until_s = self._clock.boottime_s() + self.options.drain_limit.total_seconds()
        self._holdings.drain(key, to=to, until_s=until_s)

    def _force_overdue_drains(self) -> None:
        for key in self._holdings.overdue(self._clock.boottime_s()):
            self._holdings.drained(key, reason="drain limit")

    def _kept_for_me(self, lease: Lease, key: str) -> Ownership:
        epoch = self._view.resources[key].epoch
        return Ownership(key=key, epoch=epoch, holder=lease.holder, token=lease.token)

    # ---------------------------------------------------------------- trust

    def _trust(self, sent_s: float) -> float:
        return self.options.timing.trusted_until(sent_s)

    def _trusts(self) -> bool:
        return self._lease is not None and self._clock.boottime_s() < self._trusted_until_s

    def _must_trust(self) -> None:
        """Give the lease up if its window has passed.

        Raises:
            LeaseLost: it has.
        """
        if not self._trusts():
            raise LeaseLost("the trust window is over", reason="trust window over")

    def _must_hold(self, key: str) -> Ownership:
        ownership = self.holds(key)
        if ownership is None:
            raise LeaseLost(f"{key} is not held here any more", key=key, reason="not held")
        return ownership

    def _lose_lease(self, reason: str) -> None:
        log.warning("lease lost", extra={"holder": self.holder, "reason": reason})
        self._holdings.close_all(reason=reason)
        self._lease, self._given_up = None, self._lease

    async def _call(self, name: str, answer: Awaitable[T]) -> T:
        """One call to the store, never longer than the trust that is left.

        Raises:
            StoreUnavailable: no answer in time: unknown.
            LeaseLost: there is no trust left to wait with.
        """
        self.calls[name] += 1
        limit_s = self.options.timing.call_s
        if self._lease is not None:
            limit_s = min(limit_s, self._trusted_until_s - self._clock.boottime_s())
        try:
            return await self._clock.bounded(answer, seconds=max(0.0, limit_s))
        except TimeoutError as late:
            if self._lease is not None:
                self._must_trust()
            raise StoreUnavailable(f"{name}: no answer within {limit_s:.3g} s") from late

    async def _wait(self, pause_s: float) -> None:
        if self._lease is not None:
            until_s = min(self._trusted_until_s, self._holdings.next_deadline_s())
            pause_s = min(pause_s, max(0.0, until_s - self._clock.boottime_s()))
        try:
            await self._clock.bounded(self._wake.wait(), seconds=pause_s)
        except TimeoutError:
            return
        self._wake = anyio.Event()
