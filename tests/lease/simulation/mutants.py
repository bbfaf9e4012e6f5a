"""Known bugs of known systems, each put into the real code by replacing one part of it.

The simulator must find every one of them: that is how we know that it could find ours.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from tests.support.replaced import Replacement, replaces

from leasehold.core.balance import Plan, Snapshot, Strategy
from leasehold.core.lease_timing import LeaseTiming
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.model import (
    Changes,
    CheckpointWrite,
    EndReason,
    HandOver,
    KeyClaim,
    Lease,
    MemberInfo,
    Ownership,
    Refusal,
)
from leasehold.names import group_of
from leasehold.testing.sim.checks import CheckedRegistry
from leasehold.testing.sim.host import HOST, Host, HostClock, HostKeyHandler
from leasehold.testing.sim.store import SimStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug: where it was seen, and the parts that have it."""

    name: str
    source: str
    parts: tuple[Replacement, ...]


# ------------------------------------------------------------------ the trust window

TRUST = "leasehold.core.lease_timing:LeaseTiming.trusted_until"


@replaces(TRUST)
def trust_from_answer(original: Any) -> Any:
    """The lease clock starts when the answer arrives."""

    def trusted_until(self: LeaseTiming, sent_at_s: float) -> float:
        until_s: float = original(self, max(sent_at_s, HostClock(HOST.get()).boottime_s()))
        return until_s

    return trusted_until


@replaces(TRUST)
def no_margin(_original: Any) -> Any:
    """Belief lasts exactly as long as the lease, by a clock that may run slow."""

    def trusted_until(self: LeaseTiming, sent_at_s: float) -> float:
        return sent_at_s + self.lease_s

    return trusted_until


@replaces(TRUST)
def eternal_belief(_original: Any) -> Any:
    """Once a leader, a leader until told otherwise."""

    def trusted_until(self: LeaseTiming, sent_at_s: float) -> float:
        del sent_at_s
        return math.inf

    return trusted_until


@replaces("leasehold.testing.sim.host:HostClock.boottime_s")
def suspend_blind_clock(original: Any) -> Any:
    """CLOCK_MONOTONIC: it stands still while the machine is suspended."""

    def boottime_s(self: HostClock) -> float:
        now_s: float = original(self)
        return now_s - self.host.paused_total_s * self.host.clock_rate

    return boottime_s


# --------------------------------------------------------------- losing and claiming

RENEW = "leasehold.testing.sim.store:SimStore.renew"
CLAIM = "leasehold.testing.sim.store:SimStore.claim"


@replaces("leasehold.lease.cycle:Cycle._renew")
def ignores_loss(original: Any) -> Any:
    """The renewal says nothing about loss, so nobody looks."""

    async def renew(self: Any, lease: Lease) -> tuple[Changes, float]:
        sent_s = self._clock.boottime_s()
        try:
            answer: tuple[Changes, float] = await original(self, lease)
        except LeaseLost:
            self._trusted_until_s = self.options.timing.trusted_until(sent_s)
            return Changes(version=self._group_state.version), sent_s
        return answer

    return renew


@replaces(RENEW)
def ignores_break(original: Any) -> Any:
    """Lost ownership is logged, and the work goes on."""

    async def renew(
        self: SimStore, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        changes: Changes = await original(self, lease, since=since, info=info)
        held = {each.key for each in self.host.locally_owned()}
        kept = tuple(each for each in changes.resources if each.key not in held)
        return replace(changes, resources=kept, ended=())

    return renew


@replaces(CLAIM)
def timeout_is_won(original: Any) -> Any:
    """A claim that got no answer counts as won."""

    async def claim(
        self: SimStore, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        answer = original(self, lease, wanted, force=force)
        try:
            # Shorter than the member waits, who would take no answer for none.
            return await HostClock(self.host).bounded(answer, seconds=0.2 * lease.duration_s)
        except (StoreUnavailable, TimeoutError):
            return [_hoped_for(lease, want) for want in wanted]

    return claim


@replaces(CLAIM)
def starts_before_agreement(original: Any) -> Any:
    """The work starts while the claim is still on its way."""

    async def claim(
        self: SimStore, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool = False
    ) -> Sequence[Ownership]:
        keeper = self.host.key_handler
        assert keeper is not None
        begun = _begun(keeper)
        hoped = [each for want in wanted if (each := _hoped_for(lease, want)) not in begun]
        for each in hoped:
            keeper.opened(each)
        won: Sequence[Ownership] = ()
        try:
            won = await original(self, lease, wanted, force=force)
        finally:
            for each in hoped:
                if each not in won and self.host.running:
                    begun[each] = False
                    keeper.closed(each, "not granted")
        return won

    return claim


@replaces("leasehold.testing.sim.host:HostKeyHandler.opened")
def begins_once(original: Any) -> Any:
    """What has begun with the claim does not begin again with the answer."""

    def opened(self: HostKeyHandler, ownership: Ownership) -> None:
        begun = _begun(self)
        if not begun.get(ownership, False):
            begun[ownership] = True
            original(self, ownership)

    return opened


def _begun(keeper: HostKeyHandler) -> dict[Ownership, bool]:
    """What was begun with a claim, and whether it goes on."""
    begun: dict[Ownership, bool] = keeper.__dict__.setdefault("begun", {})
    return begun


@replaces("leasehold.stores.registry:Registry.claim")
def claims_blindly(original: Any) -> Any:
    """Compare-and-set without the compare: the epoch that was seen is not looked at."""

    def claim(
        self: CheckedRegistry,
        lease: Lease,
        wanted: Sequence[KeyClaim],
        *,
        force: bool,
        now: float,
        wall: datetime,
    ) -> Sequence[Ownership]:
        del force
        known = self.resources(lease.group, now)
        current = [replace(want, seen_epoch=known[want.key].epoch) for want in wanted]
        won: Sequence[Ownership] = original(self, lease, current, force=True, now=now, wall=wall)
        return won

    return claim


@replaces("leasehold.testing.sim.host:Host.new_identity")
def shared_identity(_original: Any) -> Any:
    """Every incarnation draws the same suffix and token."""

    def new_identity(self: Host) -> tuple[str, str]:
        del self
        return "same", "same"

    return new_identity


@replaces("leasehold.lease.cycle:holder_id")
def shared_name(original: Any) -> Any:
    """The holder is known by a name that a second incarnation has too."""

    def holder_id(name: str, *, host: str, suffix: str) -> str:
        del name
        holder: str = original("worker", host=host, suffix=suffix)
        return holder

    return holder_id


def _hoped_for(lease: Lease, want: KeyClaim) -> Ownership:
    epoch = want.seen_epoch + 1
    return Ownership(key=want.key, epoch=epoch, holder=lease.holder, token=lease.token)


# ------------------------------------------------------------------------ giving up


@replaces(RENEW)
def hears_all_again(original: Any) -> Any:
    """A member that has forgotten asks for everything, not for the changes."""

    async def renew(
        self: SimStore, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        del since
        changes: Changes = await original(self, lease, since=0, info=info)
        return changes

    return renew


@replaces("leasehold.lease.cycle:Holdings.open")
def takes_up_again(original: Any) -> Any:
    """A release without an answer is forgotten, and the key taken up again."""

    def open_(self: Any, ownership: Ownership) -> None:
        self.settled(ownership.key, epoch=ownership.epoch)
        original(self, ownership)

    return open_


@replaces("leasehold.testing.sim.host:HostKeyHandler.drain")
def says_stopped(_original: Any) -> Any:
    """The message that gives the key up is sent first ..."""

    def drain(self: HostKeyHandler, ownership: Ownership) -> bool:
        del self, ownership
        return True

    return drain


@replaces("leasehold.testing.sim.host:HostKeyHandler.closed")
def stops_afterwards(original: Any) -> Any:
    """... and the work stops some time later."""

    def closed(self: HostKeyHandler, ownership: Ownership, reason: str) -> None:
        if reason in ("released", "handed_over"):
            asyncio.get_running_loop().call_later(2.0, original, self, ownership, reason)
        else:
            original(self, ownership, reason)

    return closed


@replaces("leasehold.testing.sim.host:HostKeyHandler.closed")
def tells_nobody(original: Any) -> Any:
    """Belief ends in time, and the work goes on: nobody tells it to stop."""

    def closed(self: HostKeyHandler, ownership: Ownership, reason: str) -> None:
        if reason != "local_deadline":
            original(self, ownership, reason)

    return closed


@replaces("leasehold.lease.cycle:Holdings.force_overdue")
def waits_for_ever(_original: Any) -> Any:
    """Work that does not stop is waited for, whatever the deadline."""

    def force_overdue(self: Any, now_s: float) -> None:
        del self, now_s

    return force_overdue


@replaces("leasehold.stores.registry:Registry.release")
def releases_blindly(original: Any) -> Any:
    """Release names no epoch and no token: whoever has the key loses it."""

    def release(
        self: CheckedRegistry,
        ownerships: Sequence[Ownership],
        notes: Mapping[str, str],
        now: float,
        wall: datetime,
    ) -> Sequence[str]:
        blind = [_as_owner(self, each, now) for each in ownerships]
        done: Sequence[str] = original(self, blind, notes, now, wall)
        return done

    return release


@replaces("leasehold.stores.registry:Registry.hand_over")
def hands_over_blindly(original: Any) -> Any:
    """The same, for what goes to somebody."""

    def hand_over(
        self: CheckedRegistry,
        hand_overs: Sequence[HandOver],
        limit_s: float,
        now: float,
        wall: datetime,
    ) -> Sequence[str]:
        blind = [
            replace(each, ownership=_as_owner(self, each.ownership, now)) for each in hand_overs
        ]
        done: Sequence[str] = original(self, blind, limit_s, now, wall)
        return done

    return hand_over


def _as_owner(registry: CheckedRegistry, ownership: Ownership, now: float) -> Ownership:
    """The ownership of whoever has the key now."""
    resource = registry.resources(group_of(ownership.key), now)[ownership.key]
    lease = registry.lease_of(resource.holder or "")
    if lease is None:
        return ownership
    return replace(ownership, epoch=resource.epoch, holder=lease.holder, token=lease.token)


@replaces("leasehold.stores.registry:Ledger._lapsed")
def keeps_for_ever(_original: Any) -> Any:
    """A key handed over to somebody who never comes is kept for ever."""

    def lapsed(self: Any, row: Any, now: float) -> bool:
        del self, row, now
        return False

    return lapsed


# ------------------------------------------------------------------ limits of time


@replaces("leasehold.lease.cycle:Cycle._cycle")
def forgets_limits_at_reconnect(original: Any) -> Any:
    """The first cycle after an outage gives what is handed over its whole time again."""
    failed: set[Any] = set()

    async def cycle(self: Any) -> Plan:
        if self in failed:
            for key, drain in list(self._holdings._drains.items()):
                self._holdings._drains[key] = replace(drain, until_s=math.inf)
        failed.add(self)
        plan: Plan = await original(self)
        failed.discard(self)
        return plan

    return cycle


# ------------------------------------------------------------------------- the store

CHECKPOINT = "leasehold.stores.registry:Registry.checkpoint"


@replaces(CHECKPOINT)
def checkpoints_go_back(original: Any) -> Any:
    """The last checkpoint to arrive wins, not the furthest."""

    def checkpoint(
        self: CheckedRegistry, marks: Sequence[CheckpointWrite], now: float, wall: datetime
    ) -> Mapping[str, Refusal]:
        for mark in marks:
            self.forget_checkpoint(mark.ownership.key)
        refused: Mapping[str, Refusal] = original(self, marks, now, wall)
        return refused

    return checkpoint


@replaces(CHECKPOINT)
def unfenced_writes(original: Any) -> Any:
    """A checkpoint is accepted from anybody."""

    def checkpoint(
        self: CheckedRegistry, marks: Sequence[CheckpointWrite], now: float, wall: datetime
    ) -> Mapping[str, Refusal]:
        blind = [replace(mark, ownership=_as_owner(self, mark.ownership, now)) for mark in marks]
        refused: Mapping[str, Refusal] = original(self, blind, now, wall)
        return refused

    return checkpoint


@replaces("leasehold.stores.registry:Ledger.end_term")
def forgets_epochs(original: Any) -> Any:
    """The record is deleted at release, and its epoch with it."""

    def end_term(self: Any, row: Any, reason: EndReason, wall: datetime) -> None:
        original(self, row, reason, wall)
        if reason is EndReason.RELEASED:
            row.epoch = 0

    return end_term


@replaces("leasehold.stores.registry:Registry.renew")
def observers_duration(original: Any) -> Any:
    """Expiry is judged by the observer's own setting instead of the duration in the record."""

    def renew(
        self: CheckedRegistry,
        lease: Lease,
        since: int,
        info: MemberInfo | None,
        now: float,
        wall: datetime,
    ) -> Changes:
        changes: Changes = original(self, lease, since, info, now, wall)
        self.end_what_is_over(lease.group, now + 0.5 * lease.duration_s, wall)
        return changes

    return renew


@replaces(RENEW)
def wall_clock_judges(original: Any) -> Any:
    """Whether a lease has ended is judged by the wall clock of whoever looks."""

    async def renew(
        self: SimStore, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        def judged_by_me(registry: Any) -> None:
            now = self.server.now() + self.host.wall_error_s
            registry.end_what_is_over(lease.group, now, self.server.wall())

        await self.send(judged_by_me)
        changes: Changes = await original(self, lease, since=since, info=info)
        return changes

    return renew


# ----------------------------------------------------------------------- the balance

PLAN = "leasehold.core.balance:plan"


@replaces(PLAN)
def counts_only_owners(original: Any) -> Any:
    """A member that owns nothing is not seen."""

    def plan(strategy: Strategy, snapshot: Snapshot, me: str, rng: Random) -> Plan:
        owners = {each.holder or each.handed_to for each in snapshot.resources.values()} | {me}
        seen = {holder: info for holder, info in snapshot.members.items() if holder in owners}
        found: Plan = original(strategy, replace(snapshot, members=seen), me, rng)
        return found

    return plan


@replaces(PLAN)
def keeps_the_remainder(original: Any) -> Any:
    """The first comer keeps what does not divide evenly."""

    def plan(strategy: Strategy, snapshot: Snapshot, me: str, rng: Random) -> Plan:
        found: Plan = original(strategy, snapshot, me, rng)
        if snapshot.members[me].draining:
            return found
        return replace(found, hand_over=dict(list(found.hand_over.items())[1:]))

    return plan


@replaces(PLAN)
def sees_the_leaving_as_active(original: Any) -> Any:
    """A member that is leaving is still given keys."""

    def plan(strategy: Strategy, snapshot: Snapshot, me: str, rng: Random) -> Plan:
        active = {h: replace(info, draining=False) for h, info in snapshot.members.items()}
        found: Plan = original(strategy, replace(snapshot, members=active), me, rng)
        return found

    return plan


@replaces(PLAN)
def leaves_expired_alone(original: Any) -> Any:
    """What expired is not taken while the balance looks right."""

    def plan(strategy: Strategy, snapshot: Snapshot, me: str, rng: Random) -> Plan:
        found: Plan = original(strategy, snapshot, me, rng)
        enough = len(snapshot.resources) // max(1, len(snapshot.members))
        held = sum(each.holder == me for each in snapshot.resources.values())
        return replace(found, claim=()) if held >= enough > 0 else found

    return plan


@replaces(PLAN)
def assigns_anew(_original: Any) -> Any:
    """Every change of membership deals all keys out again, whoever has them."""

    def plan(strategy: Strategy, snapshot: Snapshot, me: str, rng: Random) -> Plan:
        del strategy, rng
        takers = sorted(h for h, info in snapshot.members.items() if not info.draining)
        keys = sorted(snapshot.resources)
        target = {key: takers[n % len(takers)] for n, key in enumerate(keys)} if takers else {}
        mine = [key for key in keys if snapshot.resources[key].holder == me]
        return Plan(
            claim=tuple(
                snapshot.wanted(key)
                for key, to in target.items()
                if to == me and not snapshot.resources[key].holder
            ),
            hand_over={key: target[key] for key in mine if target.get(key, me) != me},
            release=() if takers else tuple(mine),
        )

    return plan


MUTANTS = [
    Mutant(name=name, source=source, parts=tuple(parts))
    for name, source, *parts in (
        ("trust from the answer", "KCL DynamoDBLeaseRenewer", trust_from_answer),
        ("no margin", "Spark operator docs: 15 s / 14 s", no_margin),
        ("eternal belief", "oban#1488: a leader for 19 days", eternal_belief),
        ("suspend-blind clock", "CLOCK_MONOTONIC on Linux", suspend_blind_clock),
        ("ignores loss", "APScheduler 4 extend_acquired_*", ignores_loss),
        ("ignores break", "async-kinesis heartbeat", ignores_break),
        ("time-out is won", "azure-eventhub 5.15.1", timeout_is_won),
        ("starts too early", "fabric8#7350", starts_before_agreement, begins_once),
        ("claims blindly", "@azure/event-hubs, jedis store", claims_blindly),
        ("shared name", "oban-py#32, rq#1531", shared_identity, shared_name),
        ("takes up again", "dynamodb-lock-client#116", takes_up_again, hears_all_again),
        ("stops afterwards", "cilium#42920", says_stopped, stops_afterwards),
        ("tells nobody", "functions-host#2968", tells_nobody),
        ("waits for ever", "js#31546", waits_for_ever),
        ("releases blindly", "rq-scheduler, ShedLock JDBC", releases_blindly, hands_over_blindly),
        ("keeps for ever", "KCL#1743, #1718, #1765", keeps_for_ever),
        ("checkpoints go back", "BlobCheckpointStore 1.2.0", checkpoints_go_back),
        ("unfenced writes", "all newer Event Hubs SDKs", unfenced_writes),
        ("forgets epochs", "async-kinesis item TTL, KCL#461", forgets_epochs),
        ("observer's duration", "fabric8#7160", observers_duration),
        ("wall clock judges", "Event Hubs SDKs, Quartz", wall_clock_judges),
        ("forgets limits at reconnect", "an outage at a hand-over", forgets_limits_at_reconnect),
        ("counts only owners", "js#6945", counts_only_owners),
        ("keeps the remainder", "azure-eventhub 5.15.1", keeps_the_remainder),
        ("leaving seen as active", "KCL#1452", sees_the_leaving_as_active),
        ("leaves expired alone", "zio-kinesis#1083", leaves_expired_alone),
        ("assigns anew", "Kafka eager rebalance", assigns_anew),
    )
]
