"""The store's whole state and every step on it, in plain Python: what the memory store runs.

Time is handed in with each step. A step either happens whole or raises before it has changed
anything; the lease rules are asked, not repeated. The SQL stores say the same in SQL.

The order of work in a step is always: *settle* what time has ended, *judge* the request against
the table, *act*. Settling first is what makes "the store's clock alone decides" true: nothing
that has run out is ever seen as held.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from leasehold.core.lease_rules import Move, break_moment, judge, state_of
from leasehold.errors import UnknownResource
from leasehold.model import (
    Changes,
    Checkpoint,
    EndReason,
    MarkRefusal,
    Ownership,
    Peer,
    Resource,
    State,
    Term,
)
from leasehold.names import group_of
from leasehold.stores.shared import HISTORY_LIMIT, lost_lease, purge_after_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Reversible, Sequence
    from datetime import datetime

    from leasehold.model import HandOver, Lease, Mark, MemberInfo, Wanted


@dataclass(slots=True)
class _Lease:
    lease: Lease
    info: MemberInfo
    ends_at: float
    version: int
    ended: EndReason | None = None
    # Own terms that ended, with their version; forgotten once the holder has heard of them.
    ended_terms: list[tuple[int, Term]] = field(default_factory=list)
    owned: dict[str, _Resource] = field(default_factory=dict)


@dataclass(slots=True)
class _Resource:
    key: str
    group: str
    epoch: int
    version: int
    holder: str | None = None
    break_at: float | None = None
    handed_to: str | None = None
    handed_until: float = 0.0
    asked_by: str | None = None
    forgotten: bool = False
    terms: list[Term] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """The keys of a group in order of their last change, and its members likewise."""

    resources: OrderedDict[str, _Resource] = field(default_factory=OrderedDict)
    members: OrderedDict[str, _Lease] = field(default_factory=OrderedDict)
    # Only what may end by time: looked at in every renewal, so it must stay small.
    timed: dict[str, _Resource] = field(default_factory=dict)
    fenced: int = 0


_Row = TypeVar("_Row", _Resource, _Lease)


class Registry:
    """All leases, resources, checkpoints and terms of one store."""

    def __init__(self) -> None:
        """An empty store at version 0."""
        self._version = 0
        self._leases: dict[str, _Lease] = {}
        self._resources: dict[str, _Resource] = {}
        self._groups: dict[str, _Group] = {}
        self._checkpoints: dict[str, Checkpoint] = {}

    # ---------------------------------------------------------------- keys

    def declare(self, keys: Sequence[str]) -> int:
        """See ``Store.declare``."""
        new = 0
        for key in keys:
            row = self._resources.get(key)
            if row is None:
                row = _Resource(key=key, group=group_of(key), epoch=0, version=0)
                self._resources[key] = row
            elif not row.forgotten:
                continue
            row.forgotten = False
            self._touch(row)
            new += 1
        return new

    def forget(self, keys: Sequence[str], now: float, wall: datetime) -> int:
        """See ``Store.forget``."""
        self._settle_keys(keys, now, wall)
        gone = 0
        for key in keys:
            row = self._resources.get(key)
            if row is not None and not row.forgotten and row.holder is None:
                row.forgotten, row.handed_to = True, None
                self._touch(row)
                gone += 1
        return gone

    # -------------------------------------------------------------- leases

    def grant(self, lease: Lease, info: MemberInfo, now: float, wall: datetime) -> Lease:
        """See ``Store.grant``."""
        known = self._leases.get(lease.holder)
        if known is not None:
            self._live(lease, now, wall).ends_at = now + known.lease.duration_s
            return known.lease
        self._purge(now)
        row = _Lease(lease=lease, info=info, ends_at=now + lease.duration_s, version=0)
        self._leases[lease.holder] = row
        self._group(lease.group).members[lease.holder] = row
        self._touch_member(row)
        return lease

    def renew(
        self, lease: Lease, since: int, info: MemberInfo | None, now: float, wall: datetime
    ) -> Changes:
        """See ``Store.renew``."""
        row = self._live(lease, now, wall)
        row.ends_at = now + row.lease.duration_s
        if info is not None and info != row.info:
            row.info = info
            self._touch_member(row)
        if lease.group:
            self._settle_group(self._group(lease.group), now, wall)
        return self._changes(row, since, now)

    def revoke(self, lease: Lease, now: float, wall: datetime) -> None:
        """See ``Store.revoke``."""
        row = self._leases.get(lease.holder)
        if row is None or row.ended is not None or row.lease.token != lease.token:
            return
        expired = row.ends_at <= now
        self._end_lease(row, EndReason.EXPIRED if expired else EndReason.RELEASED, now, wall)

    # ---------------------------------------------------------- ownerships

    def claim(
        self,
        lease: Lease,
        wanted: Sequence[Wanted],
        *,
        force: bool,
        now: float,
        wall: datetime,
    ) -> Sequence[Ownership]:
        """See ``Store.claim``."""
        claimer = self._live(lease, now, wall)
        taken = []
        for want in wanted:
            row = self._resources.get(want.key)
            if row is None or row.forgotten:
                continue
            if self._already_taken(row, want, claimer) or self._take(
                row, want, claimer, force=force, now=now, wall=wall
            ):
                taken.append(self._ownership(row, claimer.lease))
        return taken

    def ask(self, lease: Lease, wanted: Wanted, now: float, wall: datetime) -> bool:
        """See ``Store.ask``."""
        asker = self._live(lease, now, wall)
        self._settle_keys([wanted.key], now, wall)
        row = self._resources.get(wanted.key)
        if row is None or row.holder is None or row.epoch != wanted.seen_epoch:
            return False
        if row.holder == asker.lease.holder:
            return False
        if row.asked_by != lease.holder:
            row.asked_by = lease.holder
            self._touch(row)
        return True

    def hand_over(
        self, hand_overs: Sequence[HandOver], limit_s: float, now: float, wall: datetime
    ) -> Sequence[str]:
        """See ``Store.hand_over``."""
        self._settle_keys([each.ownership.key for each in hand_overs], now, wall)
        return [
            each.ownership.key for each in hand_overs if self._pass_on(each, limit_s, now, wall)
        ]

    def release(self, ownerships: Sequence[Ownership], now: float, wall: datetime) -> Sequence[str]:
        """See ``Store.release``."""
        done = []
        for ownership in ownerships:
            row = self._resources.get(ownership.key)
            if row is None or row.epoch != ownership.epoch:
                continue
            move = Move.RELEASE if self._proves(row, ownership) else Move.RELEASE_OTHER
            if judge(self._state(row, now), move).granted:
                self._end_term(row, EndReason.RELEASED, wall)
                done.append(row.key)
            elif self._ended_by(row, ownership, EndReason.RELEASED):
                done.append(row.key)
        return done

    def break_(
        self, key: str, epoch: int, after_s: float, now: float, wall: datetime
    ) -> Resource | None:
        """See ``Store.break_``."""
        row = self._resources.get(key)
        if row is None or row.forgotten:
            raise UnknownResource(f"{key} is not declared in this store")
        if row.epoch != epoch:
            return None
        state = self._state(row, now)
        move = Move.BREAK_AFTER if after_s > 0 else Move.BREAK_NOW
        verdict = judge(state, move)
        if not verdict.granted or row.holder is None:
            return None
        owner = self._leases[row.holder]
        if verdict.to is State.BREAKING:
            row.break_at = break_moment(
                now=now, after_s=after_s, lease_ends_at=owner.ends_at, break_at=row.break_at
            )
            self._group(row.group).timed[key] = row
            self._touch(row)
        elif state is State.EXPIRED:
            self._end_lease(owner, EndReason.EXPIRED, now, wall)
        else:
            self._end_term(row, EndReason.BROKEN, wall)
        return self._shown(row, now)

    # --------------------------------------------------------- checkpoints

    def checkpoint(
        self, marks: Sequence[Mark], now: float, wall: datetime
    ) -> Mapping[str, MarkRefusal]:
        """See ``Store.checkpoint``."""
        refused = {}
        for mark in marks:
            key, stored = mark.ownership.key, self._checkpoints.get(mark.ownership.key)
            if not self._may_write(mark.ownership, now):
                self._group(group_of(key)).fenced += 1
                refused[key] = MarkRefusal.FENCED
            elif stored is not None and stored.position > mark.position:
                refused[key] = MarkRefusal.BEHIND
            else:
                self._checkpoints[key] = Checkpoint(
                    key=key, epoch=mark.ownership.epoch, position=mark.position, updated_at=wall
                )
        return refused

    # --------------------------------------------------------------- reads

    def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        """See ``Store.checkpoints``."""
        return {key: each for key, each in self._checkpoints.items() if group_of(key) == group}

    def resources(self, group: str, now: float) -> Mapping[str, Resource]:
        """See ``Store.resources``."""
        rows = self._group(group).resources
        return {key: self._shown(rows[key], now) for key in sorted(rows) if not rows[key].forgotten}

    def peers(self, group: str, now: float) -> Mapping[str, Peer]:
        """See ``Store.peers``."""
        rows = self._group(group).members
        return {
            holder: _peer(rows[holder], now)
            for holder in sorted(rows)
            if rows[holder].ended is None and rows[holder].ends_at > now
        }

    def history(self, key: str, limit: int) -> Sequence[Term]:
        """See ``Store.history``."""
        row = self._resources.get(key)
        return [] if row is None else row.terms[: -limit - 1 : -1]

    def fenced_writes(self, group: str) -> int:
        """See ``Store.fenced_writes``."""
        return self._group(group).fenced

    # ------------------------------------------------------------ settling

    def _settle_group(self, group: _Group, now: float, wall: datetime) -> None:
        for member in [m for m in group.members.values() if m.ended is None and m.ends_at <= now]:
            self._end_lease(member, EndReason.EXPIRED, now, wall)
        for row in list(group.timed.values()):
            self._settle(row, now, wall)

    def _settle_keys(self, keys: Iterable[str], now: float, wall: datetime) -> None:
        for key in keys:
            row = self._resources.get(key)
            if row is not None:
                self._settle(row, now, wall)

    def _settle(self, row: _Resource, now: float, wall: datetime) -> None:
        state = self._state(row, now)
        if state is State.EXPIRED and row.holder is not None:
            self._end_lease(self._leases[row.holder], EndReason.EXPIRED, now, wall)
        elif state is State.BROKEN:
            self._end_term(row, EndReason.BROKEN, wall)
        elif row.handed_to is not None and self._lapsed(row, now):
            row.handed_to = None
            self._touch(row)
        if row.handed_to is None and row.break_at is None:
            self._group(row.group).timed.pop(row.key, None)

    def _lapsed(self, row: _Resource, now: float) -> bool:
        receiver = self._leases.get(row.handed_to or "")
        gone = receiver is None or receiver.ended is not None or receiver.ends_at <= now
        return gone or row.handed_until <= now

    # ------------------------------------------------------------- parts

    def _already_taken(self, row: _Resource, want: Wanted, claimer: _Lease) -> bool:
        return row.holder == claimer.lease.holder and row.epoch - want.seen_epoch in (0, 1)

    def _take(
        self,
        row: _Resource,
        want: Wanted,
        claimer: _Lease,
        *,
        force: bool,
        now: float,
        wall: datetime,
    ) -> bool:
        if row.epoch != want.seen_epoch:
            return False
        verdict = judge(self._state(row, now), Move.ACQUIRE_OTHER)
        if not verdict.granted and not force:
            return False
        self._settle(row, now, wall)
        if row.handed_to not in (None, claimer.lease.holder):
            return False
        if row.holder is not None:
            self._end_term(row, EndReason.STOLEN, wall)
        self._begin_term(row, claimer, wall)
        return True

    def _pass_on(self, each: HandOver, limit_s: float, now: float, wall: datetime) -> bool:
        ownership = each.ownership
        row = self._resources.get(ownership.key)
        if row is None or row.epoch != ownership.epoch:
            return False
        owner = self._leases.get(ownership.holder)
        alive = owner is not None and owner.ended is None and owner.lease.token == ownership.token
        kept_for_owner = row.holder is None and row.handed_to == ownership.holder and alive
        move = Move.CHANGE if self._proves(row, ownership) else Move.CHANGE_OTHER
        if judge(self._state(row, now), move).granted:
            self._end_term(row, EndReason.HANDED_OVER, wall)
        elif not kept_for_owner:
            return self._ended_by(row, ownership, EndReason.HANDED_OVER)
        row.handed_to, row.handed_until = each.to, now + limit_s
        self._group(row.group).timed[row.key] = row
        self._touch(row)
        self._settle(row, now, wall)
        return True

    def _begin_term(self, row: _Resource, claimer: _Lease, wall: datetime) -> None:
        row.epoch += 1
        row.holder, row.handed_to = claimer.lease.holder, None
        row.terms.append(
            Term(key=row.key, epoch=row.epoch, holder=claimer.lease.holder, started_at=wall)
        )
        del row.terms[:-HISTORY_LIMIT]
        claimer.owned[row.key] = row
        self._touch(row)

    def _end_term(self, row: _Resource, reason: EndReason, wall: datetime) -> None:
        if row.holder is None:
            return
        owner = self._leases[row.holder]
        owner.owned.pop(row.key, None)
        row.terms[-1] = replace(row.terms[-1], ended_at=wall, reason=reason)
        row.holder = row.asked_by = row.break_at = None
        self._touch(row)
        owner.ended_terms.append((row.version, row.terms[-1]))

    def _end_lease(self, row: _Lease, reason: EndReason, now: float, wall: datetime) -> None:
        row.ended, row.ends_at = reason, min(row.ends_at, now)
        for owned in list(row.owned.values()):
            self._end_term(owned, reason, wall)
        self._touch_member(row)

    def _live(self, lease: Lease, now: float, wall: datetime) -> _Lease:
        row = self._leases.get(lease.holder)
        if row is None:
            raise lost_lease(lease.holder, "unknown")
        if row.lease.token != lease.token:
            raise lost_lease(lease.holder, "another token is in use")
        if row.ended is None and row.ends_at <= now:
            self._end_lease(row, EndReason.EXPIRED, now, wall)
        if row.ended is not None:
            raise lost_lease(lease.holder, row.ended.value)
        return row

    def _may_write(self, ownership: Ownership, now: float) -> bool:
        row = self._resources.get(ownership.key)
        if row is None:
            return False
        move = Move.WRITE if self._proves(row, ownership) else Move.WRITE_OTHER
        return judge(self._state(row, now), move).granted

    def _proves(self, row: _Resource, ownership: Ownership) -> bool:
        if row.holder != ownership.holder or row.epoch != ownership.epoch:
            return False
        return self._leases[ownership.holder].lease.token == ownership.token

    def _ended_by(self, row: _Resource, ownership: Ownership, reason: EndReason) -> bool:
        last = row.terms[-1] if row.terms else None
        return (
            last is not None
            and last.epoch == ownership.epoch
            and last.holder == ownership.holder
            and last.reason is reason
        )

    def _state(self, row: _Resource, now: float) -> State:
        ends_at = 0.0 if row.holder is None else self._leases[row.holder].ends_at
        return state_of(
            held=row.holder is not None, lease_ends_at=ends_at, break_at=row.break_at, now=now
        )

    def _ownership(self, row: _Resource, lease: Lease) -> Ownership:
        return Ownership(key=row.key, epoch=row.epoch, holder=lease.holder, token=lease.token)

    def _shown(self, row: _Resource, now: float) -> Resource:
        return Resource(
            key=row.key,
            epoch=row.epoch,
            state=self._state(row, now),
            version=row.version,
            holder=row.holder,
            handed_to=row.handed_to,
            asked_by=row.asked_by,
            breaking_s=None if row.break_at is None else max(0.0, row.break_at - now),
            forgotten=row.forgotten,
        )

    def _changes(self, mine: _Lease, since: int, now: float) -> Changes:
        group = self._group(mine.lease.group)
        resources = [self._shown(row, now) for row in _newer(group.resources.values(), since)]
        resources += [
            self._shown(row, now)
            for row in mine.owned.values()
            if row.group != mine.lease.group and row.version > since
        ]
        mine.ended_terms = [each for each in mine.ended_terms if each[0] > since]
        return Changes(
            version=self._version,
            resources=tuple(resources),
            peers=tuple(_peer(row, now) for row in _newer(group.members.values(), since)),
            ended=tuple(term for _, term in mine.ended_terms),
        )

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    def _touch(self, row: _Resource) -> None:
        self._version += 1
        row.version = self._version
        group = self._group(row.group)
        group.resources[row.key] = row
        group.resources.move_to_end(row.key)

    def _touch_member(self, row: _Lease) -> None:
        self._version += 1
        row.version = self._version
        self._group(row.lease.group).members.move_to_end(row.lease.holder)

    def _purge(self, now: float) -> None:
        old = [
            row
            for row in self._leases.values()
            if row.ended is not None and row.ends_at + purge_after_s(row.lease.group) < now
        ]
        for row in old:
            del self._leases[row.lease.holder]
            del self._group(row.lease.group).members[row.lease.holder]


def _peer(row: _Lease, now: float) -> Peer:
    return Peer(
        holder=row.lease.holder,
        group=row.lease.group,
        info=row.info,
        alive=row.ended is None and row.ends_at > now,
        version=row.version,
        remaining_s=max(0.0, row.ends_at - now),
    )


def _newer(rows: Reversible[_Row], since: int) -> list[_Row]:
    """Rows in order of change, newest last: take from the end until one is known."""
    newer = []
    for row in reversed(rows):
        if row.version <= since:
            break
        newer.append(row)
    newer.reverse()
    return newer
