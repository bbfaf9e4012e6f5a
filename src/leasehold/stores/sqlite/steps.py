"""Every changing call as one step on the books. See ``stores/registry.py`` for the rules.

What operators may ask of a store, each as one step on the books, like those of ``steps.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from leasehold.core.lease_rules import Move, break_time, evaluate
from leasehold.core.token_digest import token_digest
from leasehold.model import Changes, EndReason, Ownership, Position, Refusal, State
from leasehold.names import group_of
from leasehold.stores.sqlite.rows import SqliteResourceRow, info_of, info_text, member_of, term_of
from leasehold.stores.validation import (
    RELEASED_BY,
    purge_after_s,
    revoked_as,
    same_position,
    unknown_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.model import (
        CheckpointWrite,
        HandOver,
        KeyClaim,
        Lease,
        MemberInfo,
        Note,
        Resource,
    )
    from leasehold.stores.sqlite.books import UnitOfWork
    from leasehold.stores.sqlite.database import Params
    from leasehold.stores.sqlite.rows import SqliteLeaseRow


def request_hand_over(books: UnitOfWork, key: str, epoch: int, to: str) -> bool:
    """Carry out ``Store.request_hand_over``."""
    receiver = books.living(to)
    if receiver is None or receiver.group != group_of(key) or receiver.dismissed:
        return False
    (info,) = books.tx.one("info", holder=to) or ("{}",)
    return not info_of(info).draining and books.put_question(key, epoch, to)


def request_leave(books: UnitOfWork, holder: str) -> bool:
    """Carry out ``Store.request_leave``."""
    row = books.living(holder)
    if row is None or not row.group:
        return False
    if not row.dismissed:
        row.dismissed = 1
        books.tx.run("lease_dismiss", holder=holder, version=books.next_version())
    return True


def reset(books: UnitOfWork, positions: Mapping[str, Position | None]) -> Mapping[str, str]:
    """See ``Store.reset``.

    Raises:
        UnknownResource: one of the keys is not declared, or is forgotten.
    """
    rows = books.rows(positions)
    for key in positions:
        if key not in rows or rows[key].forgotten:
            raise unknown_key(key)
    books.settle_keys(positions)
    owners = {key: rows[key].holder or rows[key].handed_to for key in positions}
    refused = {key: owner for key, owner in owners.items() if owner is not None}
    if not refused:
        _put_checkpoints(books, [rows[key] for key in _not_yet(books, positions)], positions)
    return refused


def _not_yet(books: UnitOfWork, positions: Mapping[str, Position | None]) -> list[str]:
    """The keys that were not put there before, by the same call."""
    done = {
        key: None if number is None else Position.from_stored(number, offset)
        for key, number, offset in books.tx.all(
            "checkpoints_reset", keys=json.dumps(list(positions))
        )
    }
    return [
        key
        for key, position in positions.items()
        if key not in done or not same_position(done[key], position)
    ]


def _put_checkpoints(
    books: UnitOfWork, rows: list[SqliteResourceRow], positions: Mapping[str, Position | None]
) -> None:
    books.reset_terms(rows)
    written: list[Params] = []
    removed: list[Params] = []
    for row in rows:
        position = positions[row.key]
        if position is None:
            removed.append({"key": row.key})
        else:
            written.append(
                {
                    "key": row.key,
                    "grp": row.group,
                    "epoch": row.epoch,
                    "sequence_number": position.sequence_number,
                    "stream_offset": position.stored_offset,
                    "wall": books.wall,
                }
            )
    books.tx.many("checkpoint_remove", removed)
    books.tx.many("checkpoint_write", written)


def declare(books: UnitOfWork, keys: Sequence[str]) -> int:
    """Carry out ``Store.declare``."""
    version = books.version + 1
    new = books.tx.many(
        "declare", [{"key": key, "grp": group_of(key), "version": version} for key in keys]
    )
    if new:
        books.next_version()
    return new


def forget(books: UnitOfWork, keys: Sequence[str]) -> int:
    """Carry out ``Store.forget``."""
    books.settle_keys(keys)
    rows = books.rows(keys)
    gone = [
        rows[key]
        for key in keys
        if key in rows and not rows[key].forgotten and rows[key].holder is None
    ]
    for row in gone:
        row.forgotten = 1
        books.keep_for(row, None, until=None)
    return len(gone)


def grant(books: UnitOfWork, lease: Lease, info: MemberInfo) -> Lease:
    """Carry out ``Store.grant``."""
    if books.lease(lease.holder) is not None:
        known = books.live(lease)
        _extend(books, known, heard=0)
        return replace(lease, group=known.group, duration_s=known.duration_s)
    for name, group in (("leases_purge", "a group"), ("leases_purge_lone", "")):
        old = books.tx.all(name, now=books.now, after_s=purge_after_s(group))
        books.tx.many("info_drop", [{"holder": holder} for (holder,) in old])
    books.tx.run(
        "lease_add",
        holder=lease.holder,
        token=token_digest(lease.token),
        grp=lease.group,
        duration_s=lease.duration_s,
        wall=books.wall,
        ends_at=books.now + lease.duration_s,
        # Ends of an earlier holder of this name, long purged, are not its own.
        heard=books.version,
        version=books.next_version(),
    )
    books.tx.run("info_write", holder=lease.holder, info=info_text(info))
    return lease


def renew(books: UnitOfWork, lease: Lease, since: int, info: MemberInfo | None) -> Changes:
    """Carry out ``Store.renew``."""
    mine = books.live(lease)
    # Not beyond what there is: a number from elsewhere must not hide what is still to come.
    _extend(books, mine, heard=min(since, books.version))
    if info is not None and _is_news(books, mine, info):
        books.tx.run("info_write", holder=mine.holder, info=info_text(info))
        books.tx.run("lease_touch", holder=mine.holder, version=books.next_version())
    if mine.group:
        books.settle_group(mine.group)
    return _changes(books, mine, since)


def revoke(books: UnitOfWork, lease: Lease, *, lapsed: bool) -> None:
    """Carry out ``Store.revoke``."""
    row = books.lease(lease.holder)
    if row is None or row.ended is not None or row.token != token_digest(lease.token):
        return
    books.end_lease(row.holder, revoked_as(runs=row.runs(books.now), lapsed=lapsed))


def claim(
    books: UnitOfWork, lease: Lease, wanted: Sequence[KeyClaim], *, force: bool
) -> Sequence[Ownership]:
    """Carry out ``Store.claim``."""
    claimer = books.live(lease)
    rows = books.rows(want.key for want in wanted)
    taken = []
    for want in wanted:
        row = rows.get(want.key)
        if row is None or row.forgotten:
            continue
        if books.already_taken(row, want, claimer) or books.take(row, want, claimer, force=force):
            taken.append(
                Ownership(key=row.key, epoch=row.epoch, holder=claimer.holder, token=lease.token)
            )
    return taken


def ask(books: UnitOfWork, lease: Lease, wanted: KeyClaim) -> bool:
    """Carry out ``Store.ask``."""
    asker = books.live(lease)
    return books.put_question(wanted.key, wanted.seen_epoch, asker.holder)


def hand_over(books: UnitOfWork, hand_overs: Sequence[HandOver], limit_s: float) -> Sequence[str]:
    """Carry out ``Store.hand_over``."""
    keys = [each.ownership.key for each in hand_overs]
    books.settle_keys(keys)
    rows = books.rows(keys)
    return [
        each.ownership.key
        for each in hand_overs
        if each.ownership.key in rows and books.pass_on(rows[each.ownership.key], each, limit_s)
    ]


def release(
    books: UnitOfWork, ownerships: Sequence[Ownership], notes: Mapping[str, str]
) -> Sequence[str]:
    """Carry out ``Store.release``."""
    rows = books.rows(ownership.key for ownership in ownerships)
    done = []
    for ownership in ownerships:
        row = rows.get(ownership.key)
        if row is None:
            continue
        move = Move.RELEASE if row.proven_by(ownership) else Move.RELEASE_OTHER
        granted = evaluate(row.state(books.now), move).granted
        if granted:
            # What time has ended was not ended by the release that came after.
            books.settle(row)
            books.end_term(row, EndReason.RELEASED, note=notes.get(row.key))
        if granted or books.ended_by(row, ownership, *RELEASED_BY):
            done.append(row.key)
    return done


def break_(books: UnitOfWork, key: str, epoch: int, after_s: float) -> Resource | None:
    """See ``Store.break_``.

    Raises:
        UnknownResource: there is no such key.
    """
    row = books.rows([key]).get(key)
    if row is None or row.forgotten:
        raise unknown_key(key)
    if row.epoch != epoch:
        return None
    state = row.state(books.now)
    verdict = evaluate(state, Move.BREAK_AFTER if after_s > 0 else Move.BREAK_NOW)
    if not verdict.granted or row.holder is None:
        return None
    if verdict.to is State.BREAKING:
        moment = break_time(
            now=books.now,
            after_s=after_s,
            lease_ends_at=row.lease_ends_at,
            break_at=row.break_at,
        )
        if moment != row.break_at:
            row.break_at = moment
            books.touch(row)
    elif state is State.EXPIRED:
        books.end_lease(row.holder, EndReason.EXPIRED)
    else:
        books.end_term(row, EndReason.BROKEN)
    return row.shown(books.now)


def checkpoint(books: UnitOfWork, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
    """Carry out ``Store.checkpoint``."""
    keys = list(dict.fromkeys(mark.ownership.key for mark in marks))
    rows = books.rows(keys)
    found = books.tx.all("checkpoint_positions", keys=json.dumps(keys))
    stored: dict[str, int] = dict(found)
    refused: dict[str, Refusal] = {}
    fenced: Counter[str] = Counter()
    written: dict[str, Params] = {}
    for mark in marks:
        key, number = mark.ownership.key, mark.position.sequence_number
        if not _may_write(rows.get(key), mark.ownership, books.now):
            fenced[group_of(key)] += 1
            refused[key] = Refusal.FENCED
        elif stored.get(key, number) > number:
            refused[key] = Refusal.BEHIND
        else:
            stored[key] = number
            written[key] = {
                "key": key,
                "grp": group_of(key),
                "epoch": mark.ownership.epoch,
                "sequence_number": number,
                "stream_offset": mark.position.stored_offset,
                "wall": books.wall,
            }
    books.tx.many("checkpoint_write", list(written.values()))
    _count_fenced(books, fenced)
    return refused


def annotate(books: UnitOfWork, notes: Sequence[Note]) -> Sequence[str]:
    """Carry out ``Store.annotate``."""
    rows = books.rows(note.ownership.key for note in notes)
    fenced: Counter[str] = Counter()
    refused: dict[str, None] = {}
    written: list[Params] = []
    for note in notes:
        key = note.ownership.key
        if _may_write(rows.get(key), note.ownership, books.now):
            written.append({"key": key, "epoch": note.ownership.epoch, "note": note.text})
        else:
            fenced[group_of(key)] += 1
            refused[key] = None
    books.tx.many("term_note", written)
    _count_fenced(books, fenced)
    return list(refused)


def _count_fenced(books: UnitOfWork, fenced: Mapping[str, int]) -> None:
    books.tx.many(
        "fenced_add", [{"grp": group, "refused": count} for group, count in fenced.items()]
    )


def _may_write(row: SqliteResourceRow | None, ownership: Ownership, now: float) -> bool:
    if row is None:
        return False
    move = Move.WRITE if row.proven_by(ownership) else Move.WRITE_OTHER
    return evaluate(row.state(now), move).granted


def _extend(books: UnitOfWork, row: SqliteLeaseRow, *, heard: int) -> None:
    row.ends_at = books.now + row.duration_s
    row.heard = max(row.heard, heard)
    books.tx.run("lease_renew", holder=row.holder, ends_at=row.ends_at, heard=heard)


def _is_news(books: UnitOfWork, mine: SqliteLeaseRow, info: MemberInfo) -> bool:
    (stored,) = books.tx.one("info", holder=mine.holder) or ("{}",)
    return stored != info_text(info) and info_of(stored) != info


def _changes(books: UnitOfWork, mine: SqliteLeaseRow, since: int) -> Changes:
    books.flush()
    tx, now, group = books.tx, books.now, mine.group
    next_end_s = _next_end_s(books, mine)
    if since >= books.version:  # a quiet group: there is nothing to look for
        return Changes(version=books.version, next_end_s=next_end_s)
    resources = tx.all("resources_changed_elsewhere", grp=group, holder=mine.holder, since=since)
    members = []
    if group:  # a holder without one watches nobody: it only hears of what is its own
        resources += tx.all("resources_changed", grp=group, since=since)
        members = tx.all("peers_changed", grp=group, since=since)
    ended = tx.all("terms_ended", holder=mine.holder, since=max(since, mine.heard))
    return Changes(
        version=books.version,
        resources=tuple(SqliteResourceRow(*row).shown(now) for row in resources),
        members=tuple(member_of(row, now) for row in members),
        ended=tuple(term_of(row) for row in ended),
        next_end_s=next_end_s,
    )


def _next_end_s(books: UnitOfWork, mine: SqliteLeaseRow) -> float | None:
    if not mine.group:
        return None
    (ends_at,) = books.tx.one("next_end", grp=mine.group, holder=mine.holder) or (None,)
    return None if ends_at is None else max(0.0, ends_at - books.now)
