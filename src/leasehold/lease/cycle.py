"""One cycle of a member (renew, plan, act), and the keys that it holds.

A key is in exactly one of these states, and moves only forward::

    (nothing) ──open──> held ──drain──> held, draining ──> leaving ──settled──> (nothing)
                          └─────────────── close ────────────────────────────────^

A key that was only reserved for this member goes to ``leaving`` directly, when it is passed on.

``held``: owned until the local deadline. ``draining``: still held, its work is stopping.
``leaving``: no longer held; the release or hand-over is sent, and repeated until the store shows
that it has arrived. The same epoch is never held again.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import anyio

from leasehold.clock import SystemClock, host_name, new_suffix, new_token, system_random
from leasehold.core import balance
from leasehold.core.backoff import Backoff
from leasehold.core.balance import Plan
from leasehold.core.lease_timing import CLOCK_RATE_ERROR, cycle_pause_s, early_cycle_s
from leasehold.errors import (
    LeaseholdError,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from leasehold.lease.group_state import GroupState
from leasehold.model import EndReason, HandOver, Lease, MemberInfo, Ownership, Resource, State
from leasehold.names import holder_id

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.lease.options import MemberOptions
    from leasehold.model import Changes, KeyClaim
    from leasehold.ports import KeyHandler, Store

log = logging.getLogger("leasehold.member")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """An ownership to be given up, to a holder or, without one, to anybody.

    ``in_order``: its work was stopped in good order, and its last position stored.
    """

    ownership: Ownership
    to: str | None
    in_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drain:
    to: str | None
    until_s: float


class Holdings:
    """The keys of one lease. Tells the keeper of each change, exactly once."""

    def __init__(self, keeper: KeyHandler) -> None:
        """Hold nothing."""
        self._handler = keeper
        self._held: dict[str, Ownership] = {}
        self._drains: dict[str, _Drain] = {}
        self._leaving: dict[str, Leaving] = {}

    @property
    def held(self) -> Mapping[str, Ownership]:
        """What is believed, if the trust window lasts."""
        return self._held

    @property
    def leaving(self) -> Mapping[str, Leaving]:
        """What is to be given up."""
        return self._leaving

    @property
    def empty(self) -> bool:
        """Whether nothing is held and nothing is left to be given up."""
        return not self._held and not self._leaving

    def open(self, ownership: Ownership) -> None:
        """Begin to believe, unless this epoch is known already."""
        known = self._held.get(ownership.key)
        if known is not None and known.epoch >= ownership.epoch:
            return
        if known is not None:
            self.close(known.key, reason="lost")
        gone = self._leaving.get(ownership.key)
        if gone is not None and gone.ownership.epoch >= ownership.epoch:
            return
        self._leaving.pop(ownership.key, None)
        self._held[ownership.key] = ownership
        log.info("owned: %s, epoch %d", ownership.key, ownership.epoch)
        self._handler.opened(ownership)

    def close(self, key: str, *, reason: str) -> None:
        """Stop believing, and have the work stopped."""
        ownership = self._held.pop(key, None)
        self._drains.pop(key, None)
        if ownership is not None:
            log.info("closed: %s, epoch %d (%s)", key, ownership.epoch, reason)
            self._handler.closed(ownership, reason)

    def close_held(self, *, reason: str) -> None:
        """Stop believing in everything. An error of the keeper does not keep the rest open."""
        errors: list[Exception] = []
        for key in list(self._held):
            try:
                self.close(key, reason=reason)
            except Exception as error:  # noqa: BLE001
                errors.append(error)
        if errors:
            raise errors[0]

    def close_all(self, *, reason: str) -> None:
        """Stop believing in everything, and forget what was to be given up."""
        self._leaving.clear()
        self.close_held(reason=reason)

    def drain(self, key: str, *, to: str | None, until_s: float) -> None:
        """Stop the work on a key in good order, then give it up.

        A key that is stopping already only gets its time shortened: a break may come while a
        hand-over is under way.
        """
        ownership, begun = self._held.get(key), self._drains.get(key)
        if ownership is None:
            return
        if begun is not None:
            self._drains[key] = _Drain(to=begun.to, until_s=min(until_s, begun.until_s))
            return
        self._drains[key] = _Drain(to=to, until_s=until_s)
        if self._handler.drain(ownership):
            self.drained(ownership)

    def drained(self, ownership: Ownership, *, reason: str | None = None) -> None:
        """The work under this ownership has stopped: stop believing, and give it up."""
        drain = self._drains.get(ownership.key)
        if drain is not None and self._held.get(ownership.key) == ownership:
            self.close(ownership.key, reason=reason or ("handed_over" if drain.to else "released"))
            self.give_up(ownership, to=drain.to, in_order=reason is None)

    def believed(self, key: str, now_s: float) -> Ownership | None:
        """The ownership of a key, unless the time to stop its work is over."""
        drain = self._drains.get(key)
        return None if drain and drain.until_s <= now_s else self._held.get(key)

    def all_believed(self, now_s: float) -> list[Ownership]:
        """All ownerships but those whose time to stop is over."""
        late = set(self.overdue(now_s))
        return [each for key, each in list(self._held.items()) if key not in late]

    def overdue(self, now_s: float) -> list[str]:
        """Keys whose work did not stop in time."""
        # Asked from other threads too: the list is made in one step.
        return [key for key, drain in list(self._drains.items()) if drain.until_s <= now_s]

    def force_overdue(self, now_s: float) -> None:
        """Stop by force what did not stop in time, and give it up."""
        for key in self.overdue(now_s):
            self.drained(self._held[key], reason="drain_timeout")

    def next_deadline_s(self) -> float:
        """When the next key must have stopped."""
        return min((drain.until_s for drain in self._drains.values()), default=math.inf)

    def give_up(self, ownership: Ownership, *, to: str | None, in_order: bool = False) -> None:
        """Have the message sent that ends this ownership."""
        self._leaving[ownership.key] = Leaving(ownership=ownership, to=to, in_order=in_order)

    def settled(self, key: str, *, epoch: int) -> None:
        """The store's word: this epoch has ended."""
        leaving = self._leaving.get(key)
        if leaving is not None and leaving.ownership.epoch <= epoch:
            del self._leaving[key]


T = TypeVar("T")

_WAIT_FOR_OTHERS = 0.1
_WAIT_FOR_WORD = 0.1
_BY_ITS_HOLDER = frozenset((EndReason.RELEASED, EndReason.HANDED_OVER, EndReason.LAPSED))

log = logging.getLogger("leasehold.member")


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """One cycle: how long it took, what is held after it, which calls were made, what failed.

    ``overtaken``: was somebody else's already when it was given away in good order.
    """

    elapsed_s: float
    held: int
    calls: Counter[str]
    error: LeaseholdError | None = None
    overtaken: tuple[Ownership, ...] = ()


class Cycle:
    """What a member does in each cycle, and until when it believes. ``Member`` is its face."""

    def __init__(
        self,
        store: Store,
        options: MemberOptions,
        *,
        keeper: KeyHandler,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        identity: Callable[[], tuple[str, str]] | None = None,
        told: Callable[[CycleReport], None] | None = None,
    ) -> None:
        """Know nothing yet: the first step joins the group.

        ``keeper`` does the work on what is owned. ``clock``, ``rng`` and ``identity`` (which
        gives the suffix of a new holder id and a new token) are the machine's, unless handed in.
        ``told`` hears of every cycle.
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
        self._backoff = Backoff(base_s=options.timing.renew_s / 8, max_s=options.timing.renew_s)
        self._wake = anyio.Event()
        self._watch_again = anyio.Event()
        self._holdings = Holdings(keeper)
        self._lease: Lease | None = None
        self._given_up: Lease | None = None
        self._gave_up_in_order = True
        self._trusted_until_s = 0.0
        self._next_end_s = math.inf
        self._due_s: float | None = None
        self._lapsed = False
        self._group_state = GroupState()
        self._last_plan: Plan | None = None
        self._failures = 0
        self._running = False
        self._joined_once = False
        self._on_cycle = told
        self._reported: Counter[str] = Counter()
        self._passed_on: dict[str, str] = {}
        self._overtaken: list[Ownership] = []

    # ----------------------------------------------------------- the cycle

    @property
    def holder(self) -> str | None:
        """The id under which this member is known now; None before it has joined."""
        return self._lease.holder if self._lease else None

    async def step(self) -> float:
        """One cycle; returns how long to wait until the next.

        Raises:
            StoreUnusable: at the first attempt. Later store trouble is logged, and tried again.
        """
        started = self._clock.boottime_s()
        due_s, self._due_s = self._due_s, None
        self._holdings.force_overdue(started)
        try:
            plan = await self._cycle()
        except StoreError as error:
            self._report(started, error)
            if isinstance(error, StoreUnusable) and not self._joined_once:
                raise  # it never worked: somebody has to mend it first
            self._failures += 1
            log.warning(
                "%s: store trouble, failure %d in a row: %s",
                self.holder or self.options.name,
                self._failures,
                error,
                extra={"holder": self.holder, "failures": self._failures},
            )
            return self._backoff.pause_s(self._failures, self._rng)
        except LeaseLost as lost:
            self._lose_lease(lost.reason)
            self._report(started, lost)
            self._failures += 1
            return 0.0 if self._failures == 1 else self._backoff.pause_s(self._failures, self._rng)
        self._failures = 0
        self._report(started)
        pause_s = cycle_pause_s(
            interval_s=self.options.timing.renew_s,
            elapsed_s=self._clock.boottime_s() - started,
            stable=plan.stable,
            hurries=self.options.strategy.hurries,
            expecting=bool(plan.expecting or plan.steal),
        )
        if self._info.draining and self._holdings.empty:
            # All is given up; only the store's word for it is waited for.
            pause_s = min(pause_s, self.options.timing.renew_s * _WAIT_FOR_WORD)
        return self._until_next_end(pause_s, due_s)

    def _until_next_end(self, pause_s: float, due_s: float | None) -> float:
        """The pause, or less if somebody's lease ends before: its keys are without an owner then.

        Such a look comes between two others and moves neither: ``due_s`` is when the cycle is due
        that it came before. Else a death would bring all members into step, and they would go on
        renewing at the same moment for ever.
        """
        now_s = self._clock.boottime_s()
        if due_s is not None:
            pause_s = min(pause_s, max(0.0, due_s - now_s))
        if self._next_end_s - now_s >= pause_s:
            return pause_s
        early_s = early_cycle_s(
            next_end_s=self._next_end_s - now_s,
            lease_s=self.options.timing.lease_s,
            interval_s=self.options.timing.renew_s,
            chance=self._rng.random(),
            again=due_s is not None,
        )
        if early_s >= pause_s:
            return pause_s
        self._due_s = now_s + pause_s
        return early_s

    def _report(self, started_s: float, error: LeaseholdError | None = None) -> None:
        overtaken, self._overtaken = tuple(self._overtaken), []
        if self._on_cycle is not None:
            calls, self._reported = self.calls - self._reported, self.calls.copy()
            elapsed_s = self._clock.boottime_s() - started_s
            held = len(self._holdings.held)
            self._on_cycle(
                CycleReport(
                    elapsed_s=elapsed_s, held=held, calls=calls, error=error, overtaken=overtaken
                )
            )

    async def _end(self) -> None:
        self._holdings.close_all(reason="shutdown")
        self._abandon_lease()
        self.left = True
        lease, self._given_up = self._given_up, None
        if lease is not None:
            await self._revoke(lease)

    def _abandon_lease(self) -> None:
        """Keep the lease only to revoke it: in ``leave``, or before joining again."""
        if self._lease is not None:
            self._gave_up_in_order = self._trusts()
            self._lease, self._given_up = None, self._lease

    async def _revoke(self, lease: Lease) -> None:
        """End a lease that is not relied on any more; the history says if it was lost before."""
        lapsed = not self._gave_up_in_order
        await self._call("revoke", self._store.revoke(lease, lapsed=lapsed))

    async def _cycle(self) -> Plan:
        """Renew, plan, act; return the plan."""
        if self._lease is not None:
            self._must_trust()
        elif self._info.draining:
            await self._end()  # nothing is held, so nothing is left to be done
            return Plan()
        lease = self._lease or await self._join()
        announced = self._published(lease)
        changes, sent_s = await self._renew(lease)
        different = self._apply_changes(lease, changes, sent_s)
        self._uncap_if_short(lease)
        if (
            self._info.draining
            and not (announced and announced.draining)
            and self._has_receivers(lease)
        ):
            # The others hear within a cycle that this member leaves, and are waiting for its
            # keys when it passes them on in the next one.
            self._last_plan = None
            return Plan()
        plan = self._last_plan
        if different or plan is None or not plan.stable:
            plan = self._last_plan = self._plan(lease)
            await self._act(lease, plan)
        # Else the same snapshot would give the same plan again: nothing to do.
        await self._send_leaving()
        if self._info.draining and self._holdings.empty and plan.stable:
            await self._end()
        return plan

    async def _join(self) -> Lease:
        """Get a lease, and look around.

        The grant says *draining*, so that nobody hands keys to a member that may never have heard
        of its lease; the first renewal after an answer takes that back.
        """
        if self._given_up is not None:
            await self._revoke(self._given_up)
        suffix, token = self._identity()
        holder = holder_id(self.options.name, host=self._info.host, suffix=suffix)
        group, lease_s = self.options.group, self.options.timing.lease_s
        # Without an answer it is unknown whether the lease exists: then it is to be revoked.
        self._given_up = Lease(holder=holder, token=token, group=group, duration_s=lease_s)
        sent_s = self._clock.boottime_s()
        lease = await self._call(
            "grant",
            self._store.grant(
                holder=holder,
                token=token,
                group=group,
                duration=timedelta(seconds=lease_s),
                info=replace(self._info, draining=True),
            ),
        )
        self._lease, self._given_up, self._lapsed = lease, None, False
        self._group_state, self._last_plan, self._joined_once = GroupState(), None, True
        self._trusted_until_s = self._trust(sent_s)
        # The first answer shows that this member is heard; so the second call takes *draining*
        # back, and from then on it counts.
        await self._renew_and_apply(lease)
        await self._renew_and_apply(lease)
        # Hosts that are started together should see each other before they share out the keys.
        await self._clock.sleep(self.options.timing.renew_s * _WAIT_FOR_OTHERS)
        self._must_trust()
        return lease

    async def _renew_and_apply(self, lease: Lease) -> None:
        changes, sent_s = await self._renew(lease)
        self._apply_changes(lease, changes, sent_s)

    async def _renew(self, lease: Lease) -> tuple[Changes, float]:
        # Judged by the store's word, not by what was sent: an older message may arrive late.
        known = self._published(lease)
        info = None if known in (None, self._info) else self._info
        sent_s = self._clock.boottime_s()
        changes = await self._call(
            "renew", self._store.renew(lease, since=self._group_state.version, info=info)
        )
        self._trusted_until_s = self._trust(sent_s)
        self._must_trust()
        # Counted from the answer: later than the store does, so that it has ended by then.
        left_s = math.inf if changes.next_end_s is None else changes.next_end_s
        self._next_end_s = self._clock.boottime_s() + left_s
        return changes, sent_s

    def _published(self, lease: Lease) -> MemberInfo | None:
        """What the others know of this member, as far as it knows."""
        member = self._group_state.members.get(lease.holder)
        return member.info if member else None

    def _has_receivers(self, lease: Lease) -> bool:
        takers = (h for h, member in self._group_state.members.items() if not member.info.draining)
        return not self._holdings.empty and any(holder != lease.holder for holder in takers)

    def _uncap_if_short(self, lease: Lease) -> None:
        """What is stuck here had to go elsewhere; if there is no room for it, it is better here."""
        if self._info.most == self.options.most:
            return
        members = {holder: member.info for holder, member in self._group_state.members.items()}
        members[lease.holder] = self._info
        room = [info.most for info in members.values() if not info.draining]
        owned = balance.Snapshot(
            members=members, resources=self._group_state.resources
        ).keys_by_owner()
        keys = sum(len(each) for each in owned.values())
        if None not in room and sum(most or 0 for most in room) < keys:
            self._info = replace(self._info, most=self.options.most)
            self._last_plan = None

    def _apply_changes(self, lease: Lease, changes: Changes, sent_s: float) -> bool:
        different = self._group_state.apply(changes)
        if any(
            member.holder == lease.holder and member.leave_requested for member in changes.members
        ):
            self._info = replace(self._info, draining=True)
        for term in changes.ended:
            leaving = self._holdings.leaving.get(term.key)
            if leaving is not None and term.reason not in _BY_ITS_HOLDER:
                self._overtake(leaving, epoch=term.epoch)
            ownership = self._holdings.held.get(term.key)
            if ownership is not None and ownership.epoch == term.epoch:
                self._holdings.close(term.key, reason=term.reason.value if term.reason else "lost")
        for resource in changes.resources:
            self._apply_resource(lease, resource, sent_s)
        return different

    def _apply_resource(self, lease: Lease, resource: Resource, sent_s: float) -> None:
        still_mine = lease.holder in (resource.holder, resource.handed_to)
        over = resource.epoch - 1 if still_mine else resource.epoch
        self._holdings.settled(resource.key, epoch=over)
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
            self._drain(resource.key, to=None, until_s=until_s)
        elif resource.asked_by is not None:
            self._drain(resource.key, to=resource.asked_by)

    def _plan(self, lease: Lease) -> Plan:
        members = {holder: member.info for holder, member in self._group_state.members.items()}
        snapshot = balance.Snapshot(
            members={**members, lease.holder: self._info}, resources=self._without_passed_on()
        )
        return balance.plan(self.options.strategy, snapshot, lease.holder, self._rng)

    def _without_passed_on(self) -> Mapping[str, Resource]:
        """The resources of the view, with what is on its way to another member counted there.

        Else the plan would see one key too many here, and give away a healthy one as well.
        """
        leaving = self._holdings.leaving
        self._passed_on = {key: to for key, to in self._passed_on.items() if key in leaving}
        if not self._passed_on:
            return self._group_state.resources
        moved = {
            key: replace(self._group_state.resources[key], holder=None, handed_to=to)
            for key, to in self._passed_on.items()
            if key in self._group_state.resources
        }
        return {**self._group_state.resources, **moved}

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

    async def _claim(self, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool) -> None:
        won = await self._call("claim", self._store.claim(lease, wanted, force=force))
        self._must_trust()
        for ownership in won:
            self._holdings.open(ownership)

    async def _send_leaving(self) -> None:
        leaving = list(self._holdings.leaving.values())
        # Whether the receiver still lives is for the store to say: if not, the key is free.
        passed = [each for each in leaving if each.to is not None]
        dropped = [each for each in leaving if each.to is None]
        if passed:
            sent = [HandOver(ownership=each.ownership, to=each.to or "") for each in passed]
            limit = timedelta(seconds=self.options.kept_s)
            done = await self._call("hand_over", self._store.hand_over(sent, limit=limit))
            for each in passed:
                if each.ownership.key in done:
                    self._holdings.settled(each.ownership.key, epoch=each.ownership.epoch)
                else:
                    self._holdings.give_up(each.ownership, to=None, in_order=each.in_order)
        if dropped:
            given_up = [each.ownership for each in dropped]
            done = await self._call("release", self._store.release(given_up))
            for each in dropped:
                if each.ownership.key not in done:
                    self._overtake(each, epoch=each.ownership.epoch)
                self._holdings.settled(each.ownership.key, epoch=each.ownership.epoch)

    def _overtake(self, leaving: Leaving, *, epoch: int) -> None:
        """Somebody has taken what was on its way out in good order: note it, once."""
        ownership = leaving.ownership
        if leaving.in_order and ownership.epoch == epoch and ownership not in self._overtaken:
            self._overtaken.append(ownership)

    def _drain(self, key: str, *, to: str | None, until_s: float | None = None) -> None:
        if until_s is None:
            until_s = self._clock.boottime_s() + self.options.drain_timeout.total_seconds()
        self._holdings.drain(key, to=to, until_s=until_s)
        self._watch_again.set()

    def _kept_for_me(self, lease: Lease, key: str) -> Ownership:
        epoch = self._group_state.resources[key].epoch
        return Ownership(key=key, epoch=epoch, holder=lease.holder, token=lease.token)

    # --------------------------------------------------------------- trust

    def _trust(self, sent_s: float) -> float:
        return self.options.timing.trusted_until(sent_s)

    def _trusts(self) -> bool:
        if self._lease is None or self._lapsed:
            return False
        return self._clock.boottime_s() < self._trusted_until_s

    def _must_trust(self) -> None:
        """Check that the trust window lasts.

        Raises:
            LeaseLost: it is over.
        """
        if not self._trusts():
            raise LeaseLost("the trust window is over", reason="local_deadline")

    def _lose_lease(self, reason: str) -> None:
        log.warning(
            "%s: lease lost (%s); joining again",
            self.holder,
            reason,
            extra={"holder": self.holder, "reason": reason},
        )
        self._holdings.close_all(reason=reason)
        self._abandon_lease()
        self._gave_up_in_order = False

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
