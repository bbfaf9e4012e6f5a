"""Every call of a store as one step, in plain Python: what the memory store runs.

Time is handed in with each step. A step either happens whole or raises before it has changed
anything; the lease rules are asked, not repeated. The SQL stores say the same in SQL.

A step judges the request against the table, in the state that the store's clock gives, *settles*
what time has ended on the keys it is about to change, and acts. So nothing that has run out is ever
seen as held, and what time has ended keeps that reason in the history.

The rows of the memory store, and the elementary steps on them, which every call is made of.

Terms begin and end here and nowhere else, time is settled here, and every change gets its version
here. What the calls are is said in ``registry.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leasehold.core.lease_rules import Move, break_time, evaluate, state_of
from leasehold.model import (
    Changes,
    Checkpoint,
    EndReason,
    Ownership,
    Refusal,
    Resource,
    State,
    Term,
)
from leasehold.names import group_of
from leasehold.stores.rows import GroupRow, LeaseRow, ResourceRow, member_of, newer
from leasehold.stores.validation import (
    HISTORY_LIMIT,
    OPERATOR,
    RELEASED_BY,
    lost_lease,
    purge_after_s,
    revoked_as,
    same_position,
    unknown_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from leasehold.model import (
        CheckpointWrite,
        HandOver,
        KeyClaim,
        Lease,
        MemberInfo,
        MemberRecord,
        Note,
        Position,
    )


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
            raise lost_lease(lease.holder, "holder_id_in_use")
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
        return evaluate(self._state(row, now), move).granted

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
            members=tuple(member_of(row, now) for row in newer(group.members.values(), since)),
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


class Registry(Ledger):
    """Every call of the contract as one step on the ledger."""

    # ---------------------------------------------------------------- keys

    def declare(self, keys: Sequence[str]) -> int:
        new = 0
        for key in keys:
            row = self._resources.get(key)
            if row is None:
                row = ResourceRow(key=key, group=group_of(key), epoch=0, version=0)
                self._resources[key] = row
            elif not row.forgotten:
                continue
            row.forgotten = False
            self._touch(row)
            new += 1
        return new

    def forget(self, keys: Sequence[str], now: float, wall: datetime) -> int:
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
        known = self._leases.get(lease.holder)
        if known is not None:
            self._live(lease, now, wall).ends_at = now + known.lease.duration_s
            return known.lease
        self._purge(now)
        row = LeaseRow(lease=lease, info=info, ends_at=now + lease.duration_s, version=0)
        self._leases[lease.holder] = row
        self._group(lease.group).members[lease.holder] = row
        self._touch_member(row)
        return lease

    def renew(
        self, lease: Lease, since: int, info: MemberInfo | None, now: float, wall: datetime
    ) -> Changes:
        row = self._live(lease, now, wall)
        row.ends_at = now + row.lease.duration_s
        if info is not None and info != row.info:
            row.info = info
            self._touch_member(row)
        if lease.group:
            self._settle_group(self._group(lease.group), now, wall)
        return self._changes(row, since, now)

    def revoke(self, lease: Lease, now: float, wall: datetime, *, lapsed: bool = False) -> None:
        row = self._leases.get(lease.holder)
        if row is None or row.ended is not None or row.lease.token != lease.token:
            return
        self._end_lease(row, revoked_as(runs=row.ends_at > now, lapsed=lapsed), now, wall)

    # ---------------------------------------------------------- ownerships

    def claim(
        self,
        lease: Lease,
        wanted: Sequence[KeyClaim],
        *,
        force: bool,
        now: float,
        wall: datetime,
    ) -> Sequence[Ownership]:
        claimer = self._live(lease, now, wall)
        taken = []
        for want in wanted:
            row = self._resources.get(want.key)
            if row is None or row.forgotten:
                continue
            if self._already_taken(row, want, claimer, now) or self._take(
                row, want, claimer, force=force, now=now, wall=wall
            ):
                taken.append(self._ownership(row, claimer.lease))
        return taken

    def ask(self, lease: Lease, wanted: KeyClaim, now: float, wall: datetime) -> bool:
        asker = self._live(lease, now, wall)
        return self._put_question(wanted.key, wanted.seen_epoch, asker.lease.holder, now, wall)

    def hand_over(
        self, hand_overs: Sequence[HandOver], limit_s: float, now: float, wall: datetime
    ) -> Sequence[str]:
        self._settle_keys([each.ownership.key for each in hand_overs], now, wall)
        return [
            each.ownership.key for each in hand_overs if self._pass_on(each, limit_s, now, wall)
        ]

    def release(
        self,
        ownerships: Sequence[Ownership],
        notes: Mapping[str, str],
        now: float,
        wall: datetime,
    ) -> Sequence[str]:
        done = []
        for ownership in ownerships:
            row = self._resources.get(ownership.key)
            if row is None:
                continue
            move = Move.RELEASE if self._proves(row, ownership) else Move.RELEASE_OTHER
            granted = evaluate(self._state(row, now), move).granted
            if granted:
                # What time has ended was not ended by the release that came after.
                self._settle(row, now, wall)
                if row.holder is not None and row.key in notes:
                    self.put_note(row, notes[row.key])
                self.end_term(row, EndReason.RELEASED, wall)
            if granted or self._ended_by(row, ownership, *RELEASED_BY):
                done.append(row.key)
        return done

    def break_(
        self, key: str, epoch: int, after_s: float, now: float, wall: datetime
    ) -> Resource | None:
        row = self._declared(key)
        if row.epoch != epoch:
            return None
        state = self._state(row, now)
        move = Move.BREAK_AFTER if after_s > 0 else Move.BREAK_NOW
        verdict = evaluate(state, move)
        if not verdict.granted or row.holder is None:
            return None
        owner = self._leases[row.holder]
        if verdict.to is State.BREAKING:
            moment = break_time(
                now=now, after_s=after_s, lease_ends_at=owner.ends_at, break_at=row.break_at
            )
            if moment != row.break_at:
                row.break_at = moment
                self._group(row.group).timed[key] = row
                self._touch(row)
        elif state is State.EXPIRED:
            self._end_lease(owner, EndReason.EXPIRED, now, wall)
        else:
            self.end_term(row, EndReason.BROKEN, wall)
        return self._shown(row, now)

    # --------------------------------------------------------- checkpoints

    def checkpoint(
        self, marks: Sequence[CheckpointWrite], now: float, wall: datetime
    ) -> Mapping[str, Refusal]:
        refused = {}
        for mark in marks:
            key, stored = mark.ownership.key, self._checkpoints.get(mark.ownership.key)
            if not self._may_write(mark.ownership, now):
                self._group(group_of(key)).fenced += 1
                refused[key] = Refusal.FENCED
            elif stored is not None and stored.position > mark.position:
                refused[key] = Refusal.BEHIND
            else:
                self._checkpoints[key] = Checkpoint(
                    key=key, epoch=mark.ownership.epoch, position=mark.position, updated_at=wall
                )
        return refused

    def annotate(self, notes: Sequence[Note], now: float) -> Sequence[str]:
        refused: dict[str, None] = {}
        for note in notes:
            key = note.ownership.key
            if self._may_write(note.ownership, now):
                self.put_note(self._resources[key], note.text)
            else:
                self._group(group_of(key)).fenced += 1
                refused[key] = None
        return list(refused)

    # ----------------------------------------------------------- operators

    def request_hand_over(self, key: str, epoch: int, to: str, now: float, wall: datetime) -> bool:
        receiver = self._living(to, now, wall)
        if receiver is None or receiver.lease.group != group_of(key):
            return False
        if receiver.info.draining or receiver.leave_requested:
            return False
        return self._put_question(key, epoch, to, now, wall)

    def request_leave(self, holder: str, now: float, wall: datetime) -> bool:
        row = self._living(holder, now, wall)
        if row is None or not row.lease.group:
            return False
        if not row.leave_requested:
            row.leave_requested = True
            self._touch_member(row)
        return True

    def reset(
        self, positions: Mapping[str, Position | None], now: float, wall: datetime
    ) -> Mapping[str, str]:
        rows = [self._declared(key) for key in positions]
        self._settle_keys(positions, now, wall)
        refused = {}
        for row in rows:
            owner = row.holder or row.handed_to
            if owner is not None:
                refused[row.key] = owner
        if not refused:
            for row in rows:
                self._put_checkpoint(row, positions[row.key], wall)
        return refused

    # --------------------------------------------------------------- reads

    def groups(self) -> Sequence[str]:
        return sorted(
            name
            for name, group in self._groups.items()
            if not all(row.forgotten for row in group.resources.values())
        )

    def checkpoints(self, group: str) -> Mapping[str, Checkpoint]:
        start = f"{group}/"  # rules most keys out for less than looking for the last slash
        return {
            key: each
            for key, each in self._checkpoints.items()
            if key.startswith(start) and group_of(key) == group
        }

    def resources(self, group: str, now: float) -> Mapping[str, Resource]:
        rows = self._group(group).resources
        return {key: self._shown(rows[key], now) for key in sorted(rows) if not rows[key].forgotten}

    def members(self, group: str, now: float) -> Mapping[str, MemberRecord]:
        rows = self._group(group).members
        return {
            holder: member_of(rows[holder], now)
            for holder in sorted(rows)
            if rows[holder].ended is None and rows[holder].ends_at > now
        }

    def history(self, key: str, limit: int) -> Sequence[Term]:
        row = self._resources.get(key)
        return [] if row is None else row.terms[: -limit - 1 : -1]

    def fenced_writes(self, group: str) -> int:
        return self._group(group).fenced

    # --------------------------------------------------------------- parts

    def _declared(self, key: str) -> ResourceRow:
        row = self._resources.get(key)
        if row is None or row.forgotten:
            raise unknown_key(key)
        return row

    def _put_question(self, key: str, epoch: int, asker: str, now: float, wall: datetime) -> bool:
        self._settle_keys([key], now, wall)
        row = self._resources.get(key)
        if row is None or row.holder in (None, asker) or row.epoch != epoch:
            return False
        if row.asked_by != asker:
            row.asked_by = asker
            self._touch(row)
        return True

    def _put_checkpoint(self, row: ResourceRow, position: Position | None, wall: datetime) -> None:
        """Put the checkpoint of a key that nobody owns there, in a new epoch."""
        stored = self._checkpoints.get(row.key)
        was_reset = bool(row.terms) and row.terms[-1].reason is EndReason.RESET
        if was_reset and same_position(stored.position if stored else None, position):
            return
        self.reset_term(row, wall)
        if position is None:
            self._checkpoints.pop(row.key, None)
        else:
            self._checkpoints[row.key] = Checkpoint(
                key=row.key, epoch=row.epoch, position=position, updated_at=wall
            )

    def _already_taken(
        self, row: ResourceRow, want: KeyClaim, claimer: LeaseRow, now: float
    ) -> bool:
        mine = row.holder == claimer.lease.holder and row.epoch - want.seen_epoch in (0, 1)
        return mine and self._state(row, now) is State.LEASED

    def _take(
        self,
        row: ResourceRow,
        want: KeyClaim,
        claimer: LeaseRow,
        *,
        force: bool,
        now: float,
        wall: datetime,
    ) -> bool:
        if row.epoch != want.seen_epoch:
            return False
        mine = row.holder == claimer.lease.holder
        move = Move.ACQUIRE_SAME if mine else Move.ACQUIRE_OTHER
        verdict = evaluate(self._state(row, now), move)
        if not verdict.granted and (mine or not force):
            return False
        self._settle(row, now, wall)
        if row.handed_to not in (None, claimer.lease.holder):
            return False
        if row.holder is not None:
            self.end_term(row, EndReason.STOLEN, wall)
        self.begin_term(row, claimer, wall)
        if want.note:
            self.put_note(row, want.note)
        return True

    def _pass_on(self, each: HandOver, limit_s: float, now: float, wall: datetime) -> bool:
        ownership = each.ownership
        row = self._resources.get(ownership.key)
        if row is None:
            return False
        move = Move.CHANGE if self._proves(row, ownership) else Move.CHANGE_OTHER
        if evaluate(self._state(row, now), move).granted:
            if each.note is not None:
                self.put_note(row, each.note)
            self.end_term(row, EndReason.HANDED_OVER, wall)
        elif not self._kept_for(row, ownership, now):
            passed_before = row.epoch == ownership.epoch and row.handed_by == ownership.holder
            return self._ended_by(row, ownership, EndReason.HANDED_OVER) or (
                passed_before and self._known(ownership)
            )
        row.handed_to, row.handed_until = each.to, now + limit_s
        row.handed_by = ownership.holder
        self._group(row.group).timed[row.key] = row
        self._touch(row)
        self._settle(row, now, wall)
        return True
