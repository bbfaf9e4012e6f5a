"""Known bugs of known systems, each put into the real code by one small override.

The simulator must find every one of them: that is how we know that it could find ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from leasehold import Member
from leasehold.core.balance import Plan, Snapshot
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.model import Changes, EndReason, MemberInfo, Ownership, Resource
from leasehold.processor.holdings import Holdings
from leasehold.testing.sim.checks import CheckedRegistry
from leasehold.testing.sim.host import HostClock
from leasehold.testing.sim.store import SimStore
from leasehold.testing.sim.world import Parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.model import HandOver, Lease, Mark, MarkRefusal, Wanted
    from leasehold.stores.rows import ResourceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug: where it was seen, and the part of a world that has it."""

    name: str
    source: str
    parts: Parts


# ------------------------------------------------------------------ the trust window


class TrustFromAnswer(Member):
    """The lease clock starts when the answer arrives."""

    def _trust(self, sent_s: float) -> float:
        return super()._trust(max(sent_s, self._clock.boottime_s()))


class NoMargin(Member):
    """Belief lasts exactly as long as the lease, by a clock that may run slow."""

    def _trust(self, sent_s: float) -> float:
        return sent_s + self.options.timing.lease_s


class EternalBelief(Member):
    """Once a leader, a leader until told otherwise."""

    def _trusts(self) -> bool:
        return self._lease is not None


class SuspendBlindClock(HostClock):
    """CLOCK_MONOTONIC: it stands still while the machine is suspended."""

    def boottime_s(self) -> float:
        return super().boottime_s() - self.host.stood_still_s * self.host.clock_rate


# --------------------------------------------------------------- losing and claiming


class IgnoresLoss(Member):
    """The renewal says nothing about loss, so nobody looks."""

    async def _renew(self, lease: Lease) -> tuple[Changes, float]:
        sent_s = self._clock.boottime_s()
        try:
            return await super()._renew(lease)
        except LeaseLost:
            self._trusted_until_s = self._trust(sent_s)
            return Changes(version=self._view.version), sent_s


class IgnoresBreak(Member):
    """Lost ownership is logged, and the work goes on."""

    def _take_in(self, lease: Lease, changes: Changes, sent_s: float) -> bool:
        kept = tuple(r for r in changes.resources if r.key not in self._holdings.held)
        return super()._take_in(lease, replace(changes, resources=kept, ended=()), sent_s)


class TimeoutIsWon(Member):
    """A claim that got no answer counts as won."""

    async def _claim(self, lease: Lease, wanted: Sequence[Wanted], *, force: bool) -> None:
        try:
            await super()._claim(lease, wanted, force=force)
        except StoreUnavailable:
            for want in wanted:
                self._holdings.open(_hoped_for(lease, want))


class StartsBeforeAgreement(Member):
    """The work starts while the claim is still on its way."""

    async def _claim(self, lease: Lease, wanted: Sequence[Wanted], *, force: bool) -> None:
        for want in wanted:
            self._holdings.open(_hoped_for(lease, want))
        await super()._claim(lease, wanted, force=force)


class ClaimsBlindly(CheckedRegistry):
    """Compare-and-set without the compare: the epoch that was seen is not looked at."""

    def claim(self, lease: Lease, wanted: Sequence[Wanted], **how: Any) -> Sequence[Ownership]:
        current = [replace(w, seen_epoch=self._resources[w.key].epoch) for w in wanted]
        return super().claim(lease, current, **{**how, "force": True})


class SharedName(Member):
    """The holder is known by a name that a second incarnation has too."""

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **{**parts, "identity": lambda: ("same", "same")})
        self.options = replace(self.options, name="worker")


def _hoped_for(lease: Lease, want: Wanted) -> Ownership:
    epoch = want.seen_epoch + 1
    return Ownership(key=want.key, epoch=epoch, holder=lease.holder, token=lease.token)


# ------------------------------------------------------------------------ giving up


class TakesUpAgain(Member):
    """A release without an answer is forgotten, and the key taken up again."""

    def _take_in(self, lease: Lease, changes: Changes, sent_s: float) -> bool:
        different = super()._take_in(lease, changes, sent_s)
        for resource in self._view.resources.values():
            if resource.holder == lease.holder:
                self._holdings.settled(resource.key, epoch=resource.epoch)
                self._take_in_resource(lease, resource, sent_s)
        return different


class StopsAfterwards(Holdings):
    """The message that gives the key up is sent first; the work stops when it is answered."""

    def drained(self, ownership: Ownership, *, reason: str | None = None) -> None:
        del reason
        drain = self._drains.get(ownership.key)
        if drain is not None and ownership.key in self._held:
            self.give_up(ownership, to=drain.to)

    def settled(self, key: str, *, epoch: int) -> None:
        super().settled(key, epoch=epoch)
        if key not in self._leaving and key in self._drains:
            self.close(key, reason="released")


def _with_holdings(kind: type[Holdings]) -> type[Member]:
    class Mutated(Member):
        def __init__(self, *args: Any, **parts: Any) -> None:
            super().__init__(*args, **parts)
            self._holdings = kind(parts["keeper"])

    return Mutated


class TellsNobody(Holdings):
    """Belief ends in time, and the work goes on: nobody tells it to stop."""

    def close(self, key: str, *, reason: str) -> None:
        if reason == "trust window over":
            self._held.pop(key, None)
            self._drains.pop(key, None)
        else:
            super().close(key, reason=reason)


class WaitsForEver(Holdings):
    """Work that does not stop is waited for, whatever the deadline."""

    def force_overdue(self, now_s: float) -> None:
        del now_s


class ReleasesBlindly(CheckedRegistry):
    """Release names no epoch and no token: whoever has the key loses it."""

    def release(self, ownerships: Sequence[Ownership], *rest: Any) -> Sequence[str]:
        return super().release([self._as_owner(each) for each in ownerships], *rest)

    def hand_over(
        self, hand_overs: Sequence[HandOver], limit_s: float, now: float, wall: datetime
    ) -> Sequence[str]:
        blind = [replace(each, ownership=self._as_owner(each.ownership)) for each in hand_overs]
        return super().hand_over(blind, limit_s, now, wall)

    def _as_owner(self, ownership: Ownership) -> Ownership:
        row = self._resources[ownership.key]
        if row.holder is None:
            return ownership
        token = self._leases[row.holder].lease.token
        return replace(ownership, epoch=row.epoch, holder=row.holder, token=token)


class KeepsForEver(CheckedRegistry):
    """A key handed over to somebody who never comes is kept for ever."""

    def _lapsed(self, row: ResourceRow, now: float) -> bool:
        del row, now
        return False


# ------------------------------------------------------------------------- the store


class CheckpointsGoBack(CheckedRegistry):
    """The last checkpoint to arrive wins, not the furthest."""

    def checkpoint(
        self, marks: Sequence[Mark], now: float, wall: datetime
    ) -> Mapping[str, MarkRefusal]:
        for mark in marks:
            self._checkpoints.pop(mark.ownership.key, None)
        return super().checkpoint(marks, now, wall)


class UnfencedWrites(CheckedRegistry):
    """A checkpoint is accepted from anybody."""

    def _may_write(self, ownership: Ownership, now: float) -> bool:
        del ownership, now
        return True


class ForgetsEpochs(CheckedRegistry):
    """The record is deleted at release, and its epoch with it."""

    def end_term(self, row: ResourceRow, reason: EndReason, wall: datetime) -> None:
        super().end_term(row, reason, wall)
        if reason is EndReason.RELEASED:
            row.epoch = 0


class ObserversDuration(CheckedRegistry):
    """Expiry is judged by the observer's own setting instead of the duration in the record."""

    def renew(
        self, lease: Lease, since: int, info: MemberInfo | None, now: float, wall: datetime
    ) -> Changes:
        early = now + 0.5 * lease.duration_s
        changes = super().renew(lease, since, info, now, wall)
        self._settle_group(self._group(lease.group), early, wall)
        return changes


class WallClockJudges(SimStore):
    """Whether a lease has ended is judged by the wall clock of whoever looks."""

    async def renew(
        self, lease: Lease, *, since: int = 0, info: MemberInfo | None = None
    ) -> Changes:
        server, error_s = self._server, self._host.wall_error_s

        def judged_by_me(registry: Any) -> Changes:
            registry._settle_group(
                registry._group(lease.group),
                server.now() + error_s,
                server.wall(),
            )
            changes: Changes = registry.renew(lease, since, info, server.now(), server.wall())
            return changes

        return await self._send(judged_by_me)


# ----------------------------------------------------------------------- the balance


class CountsOnlyOwners(Member):
    """A member that owns nothing is not seen."""

    def _plan(self, lease: Lease) -> Plan:
        owners = {r.holder or r.handed_to for r in self._view.resources.values()} | {lease.holder}
        hidden = {h: p for h, p in self._view.peers.items() if h not in owners}
        for holder in hidden:
            self._view._peers.pop(holder)
        try:
            return super()._plan(lease)
        finally:
            self._view._peers.update(hidden)


class KeepsTheRemainder(Member):
    """The first comer keeps what does not divide evenly."""

    def _plan(self, lease: Lease) -> Plan:
        plan = super()._plan(lease)
        if self._info.draining:
            return plan
        return replace(plan, hand_over=dict(list(plan.hand_over.items())[1:]))


class SeesTheLeavingAsActive(Member):
    """A member that is leaving is still given keys."""

    def _plan(self, lease: Lease) -> Plan:
        peers = self._view._peers
        saved = dict(peers)
        own, self._info = self._info, replace(self._info, draining=False)
        for holder, peer in saved.items():
            peers[holder] = replace(peer, info=replace(peer.info, draining=False))
        try:
            return super()._plan(lease)
        finally:
            self._info = own
            peers.update(saved)


class LeavesExpiredAlone(Member):
    """What expired is not taken while the balance looks right."""

    def _plan(self, lease: Lease) -> Plan:
        plan = super()._plan(lease)
        enough = len(self._view.resources) // max(1, len(self._view.peers))
        if len(self._holdings.held) >= enough > 0:
            return replace(plan, claim=())
        return plan


class AssignsAnew(Member):
    """Every change of membership deals all keys out again, whoever has them."""

    def _plan(self, lease: Lease) -> Plan:
        takers = sorted(h for h, p in self._view.peers.items() if not p.info.draining)
        keys = sorted(self._view.resources)
        target = {key: takers[n % len(takers)] for n, key in enumerate(keys)} if takers else {}
        members = {holder: peer.info for holder, peer in self._view.peers.items()}
        snapshot = Snapshot(members=members, resources=self._view.resources)

        def mine(resource: Resource) -> bool:
            return resource.holder == lease.holder

        return Plan(
            claim=tuple(
                snapshot.wanted(key)
                for key, to in target.items()
                if to == lease.holder and not self._view.resources[key].holder
            ),
            hand_over={
                key: to
                for key, to in target.items()
                if mine(self._view.resources[key]) and to != lease.holder
            },
            release=() if takers else tuple(k for k in keys if mine(self._view.resources[k])),
        )


MUTANTS = [
    Mutant(name=name, source=source, parts=parts)
    for name, source, parts in (
        ("trust from the answer", "KCL DynamoDBLeaseRenewer", Parts(member=TrustFromAnswer)),
        ("no margin", "Spark operator docs: 15 s / 14 s", Parts(member=NoMargin)),
        ("eternal belief", "oban#1488: a leader for 19 days", Parts(member=EternalBelief)),
        ("suspend-blind clock", "CLOCK_MONOTONIC on Linux", Parts(clock=SuspendBlindClock)),
        ("ignores loss", "APScheduler 4 extend_acquired_*", Parts(member=IgnoresLoss)),
        ("ignores break", "async-kinesis heartbeat", Parts(member=IgnoresBreak)),
        ("time-out is won", "azure-eventhub 5.15.1", Parts(member=TimeoutIsWon)),
        ("starts too early", "fabric8#7350", Parts(member=StartsBeforeAgreement)),
        ("claims blindly", "@azure/event-hubs, jedis store", Parts(registry=ClaimsBlindly)),
        ("shared name", "oban-py#32, rq#1531", Parts(member=SharedName)),
        ("takes up again", "dynamodb-lock-client#116", Parts(member=TakesUpAgain)),
        ("stops afterwards", "cilium#42920", Parts(member=_with_holdings(StopsAfterwards))),
        ("tells nobody", "functions-host#2968", Parts(member=_with_holdings(TellsNobody))),
        ("waits for ever", "js#31546", Parts(member=_with_holdings(WaitsForEver))),
        ("releases blindly", "rq-scheduler, ShedLock JDBC", Parts(registry=ReleasesBlindly)),
        ("keeps for ever", "KCL#1743, #1718, #1765", Parts(registry=KeepsForEver)),
        ("checkpoints go back", "BlobCheckpointStore 1.2.0", Parts(registry=CheckpointsGoBack)),
        ("unfenced writes", "all newer Event Hubs SDKs", Parts(registry=UnfencedWrites)),
        ("forgets epochs", "async-kinesis item TTL, KCL#461", Parts(registry=ForgetsEpochs)),
        ("observer's duration", "fabric8#7160", Parts(registry=ObserversDuration)),
        ("wall clock judges", "Event Hubs SDKs, Quartz", Parts(store=WallClockJudges)),
        ("counts only owners", "js#6945", Parts(member=CountsOnlyOwners)),
        ("keeps the remainder", "azure-eventhub 5.15.1", Parts(member=KeepsTheRemainder)),
        ("leaving seen as active", "KCL#1452", Parts(member=SeesTheLeavingAsActive)),
        ("leaves expired alone", "zio-kinesis#1083", Parts(member=LeavesExpiredAlone)),
        ("assigns anew", "Kafka eager rebalance", Parts(member=AssignsAnew)),
    )
]
