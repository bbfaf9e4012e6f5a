"""The rows of the memory store, and the elementary steps on them, which every call is made of.

Terms begin and end here and nowhere else, time is settled here, and every change gets its version
here. What the calls are is said in ``registry.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leasehold.core.lease_rules import Move, judge, state_of
from leasehold.model import Changes, EndReason, Ownership, Resource, State, Term
from leasehold.stores.rows import GroupRow, LeaseRow, ResourceRow, newer, peer_of
from leasehold.stores.validation import HISTORY_LIMIT, OPERATOR, lost_lease, purge_after_s

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from leasehold.model import Checkpoint, Lease


class Ledger:
    """All leases, resources, checkpoints and terms of one store."""

    def __init__(self) -> None:
        """An empty store at version 0."""
        self._version = 0
        self._leases: dict[str, LeaseRow] = {}
        self._resources: dict[str, ResourceRow] = {}
        self._groups: dict[str, GroupRow] = {}
        self._checkpoints: dict[str, Checkpoint] = {}

    # ---------------------------------------------------- beginnings and ends

    def begin_term(self, row: ResourceRow, claimer: LeaseRow, wall: datetime) -> None:
        """Make ``claimer`` the owner, in a new epoch. Every change of owner passes here."""
        row.epoch += 1
        row.holder, row.handed_to, row.handed_by = claimer.lease.holder, None, None
        if claimer.lease.group != row.group:
            self._group(row.group).guests[claimer.lease.holder] = claimer
            claimer.abroad[row.key] = row
        self._remember(
            row, Term(key=row.key, epoch=row.epoch, holder=claimer.lease.holder, started_at=wall)
        )
        claimer.owned[row.key] = row
        self._touch(row)

    def end_term(self, row: ResourceRow, reason: EndReason, wall: datetime) -> None:
        """Leave the key without an owner. Every end of a term passes here."""
        if row.holder is None:
            return
        owner = self._leases[row.holder]
        owner.owned.pop(row.key, None)
        owner.abroad.pop(row.key, None)
        row.terms[-1] = replace(row.terms[-1], ended_at=wall, reason=reason)
        row.holder = row.asked_by = row.break_at = None
        self._touch(row)
        owner.ended_terms.append((row.version, row.terms[-1]))

    def reset_term(self, row: ResourceRow, wall: datetime) -> None:
        """Raise the epoch of a key that nobody owns: a term of the operator, of no length."""
        row.epoch += 1
        row.handed_by = None
        self._remember(
            row,
            Term(
                key=row.key,
                epoch=row.epoch,
                holder=OPERATOR,
                started_at=wall,
                ended_at=wall,
                reason=EndReason.RESET,
            ),
        )
        self._touch(row)

    def put_note(self, row: ResourceRow, text: str) -> None:
        """Say this of the term that lasts. No watcher is told."""
        row.terms[-1] = replace(row.terms[-1], note=text)

    def _remember(self, row: ResourceRow, term: Term) -> None:
        row.terms.append(term)
        del row.terms[:-HISTORY_LIMIT]

    def _end_lease(self, row: LeaseRow, reason: EndReason, now: float, wall: datetime) -> None:
        row.ended, row.ends_at = reason, min(row.ends_at, now)
        for owned in list(row.owned.values()):
            broken = owned.break_at is not None and owned.break_at <= row.ends_at
            self.end_term(owned, EndReason.BROKEN if broken else reason, wall)
        self._touch_member(row)

    # ------------------------------------------------------------ settling

    def _settle_group(self, group: GroupRow, now: float, wall: datetime) -> None:
        leases = [*group.members.values(), *group.guests.values()]
        for lease in [each for each in leases if each.ended is None and each.ends_at <= now]:
            self._end_lease(lease, EndReason.EXPIRED, now, wall)
        for row in list(group.timed.values()):
            self._settle(row, now, wall)

    def _settle_keys(self, keys: Iterable[str], now: float, wall: datetime) -> None:
        for key in keys:
            row = self._resources.get(key)
            if row is not None:
                self._settle(row, now, wall)

    def _settle(self, row: ResourceRow, now: float, wall: datetime) -> None:
        state = self._state(row, now)
        if state is State.EXPIRED and row.holder is not None:
            self._end_lease(self._leases[row.holder], EndReason.EXPIRED, now, wall)
        elif state is State.BROKEN:
            self.end_term(row, EndReason.BROKEN, wall)
        elif row.handed_to is not None and self._lapsed(row, now):
            row.handed_to = None
            self._touch(row)
        if row.handed_to is None and row.break_at is None:
            self._group(row.group).timed.pop(row.key, None)

    def _lapsed(self, row: ResourceRow, now: float) -> bool:
        receiver = self._leases.get(row.handed_to or "")
        gone = receiver is None or receiver.ended is not None or receiver.ends_at <= now
        return gone or row.handed_until <= now

    # ------------------------------------------------------- what is there

    def _live(self, lease: Lease, now: float, wall: datetime) -> LeaseRow:
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

    def _living(self, holder: str, now: float, wall: datetime) -> LeaseRow | None:
        """The lease of a holder whose token is not known, if it runs."""
        row = self._leases.get(holder)
        if row is not None and row.ended is None and row.ends_at <= now:
            self._end_lease(row, EndReason.EXPIRED, now, wall)
        return None if row is None or row.ended is not None else row

    def _may_write(self, ownership: Ownership, now: float) -> bool:
        row = self._resources.get(ownership.key)
        if row is None:
            return False
        move = Move.WRITE if self._proves(row, ownership) else Move.WRITE_OTHER
        return judge(self._state(row, now), move).granted

    def _proves(self, row: ResourceRow, ownership: Ownership) -> bool:
        if row.holder != ownership.holder or row.epoch != ownership.epoch:
            return False
        return self._leases[ownership.holder].lease.token == ownership.token

    def _kept_for(self, row: ResourceRow, ownership: Ownership, now: float) -> bool:
        """Whether the key was handed to this holder, which did not claim it yet."""
        if row.holder is not None or row.epoch != ownership.epoch:
            return False
        waiting = row.handed_to == ownership.holder and not self._lapsed(row, now)
        return waiting and self._known(ownership)

    def _known(self, ownership: Ownership) -> bool:
        lease = self._leases.get(ownership.holder)
        return lease is not None and lease.lease.token == ownership.token

    def _ended_by(self, row: ResourceRow, ownership: Ownership, *reasons: EndReason) -> bool:
        """Whether this very ownership was ended so before: the call is a repetition."""
        return self._known(ownership) and any(
            term.epoch == ownership.epoch
            and term.holder == ownership.holder
            and term.reason in reasons
            for term in row.terms
        )

    def _state(self, row: ResourceRow, now: float) -> State:
        ends_at = 0.0 if row.holder is None else self._leases[row.holder].ends_at
        return state_of(
            held=row.holder is not None, lease_ends_at=ends_at, break_at=row.break_at, now=now
        )

    def _ownership(self, row: ResourceRow, lease: Lease) -> Ownership:
        return Ownership(key=row.key, epoch=row.epoch, holder=lease.holder, token=lease.token)

    def _shown(self, row: ResourceRow, now: float) -> Resource:
        return Resource(
            key=row.key,
            epoch=row.epoch,
            state=self._state(row, now),
            version=row.version,
            holder=row.holder,
            handed_to=None if row.handed_to and self._lapsed(row, now) else row.handed_to,
            asked_by=row.asked_by,
            breaking_s=None if row.break_at is None else max(0.0, row.break_at - now),
            forgotten=row.forgotten,
        )

    def _changes(self, mine: LeaseRow, since: int, now: float) -> Changes:
        # A holder without a group watches nobody: it only hears of what is its own.
        group = self._group(mine.lease.group) if mine.lease.group else GroupRow()
        resources = [self._shown(row, now) for row in newer(group.resources.values(), since)]
        resources += [self._shown(row, now) for row in mine.abroad.values() if row.version > since]
        mine.ended_terms = [each for each in mine.ended_terms if each[0] > since]
        return Changes(
            version=self._version,
            resources=tuple(resources),
            peers=tuple(peer_of(row, now) for row in newer(group.members.values(), since)),
            ended=tuple(term for _, term in mine.ended_terms),
            next_end_s=self._next_end_s(mine, group, now),
        )

    def _next_end_s(self, mine: LeaseRow, group: GroupRow, now: float) -> float | None:
        """How long until time next ends something here, other than the lease that asks."""
        timed = group.timed.values()
        receivers = (self._leases.get(row.handed_to or "") for row in timed)
        leases = (*group.members.values(), *group.guests.values(), *filter(None, receivers))
        ends = [row.ends_at for row in leases if row.ended is None and row is not mine]
        ends += [row.break_at for row in timed if row.break_at is not None]
        ends += [row.handed_until for row in timed if row.handed_to is not None]
        return max(0.0, min(ends) - now) if ends else None

    # ------------------------------------------------------------- writing

    def _group(self, name: str) -> GroupRow:
        return self._groups.setdefault(name, GroupRow())

    def _touch(self, row: ResourceRow) -> None:
        self._version += 1
        row.version = self._version
        group = self._group(row.group)
        group.resources[row.key] = row
        group.resources.move_to_end(row.key)

    def _touch_member(self, row: LeaseRow) -> None:
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
            for group in self._groups.values():
                group.members.pop(row.lease.holder, None)
                group.guests.pop(row.lease.holder, None)
