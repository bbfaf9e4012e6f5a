"""The books during one transaction: rows read once, changed in memory, written together.

The rules are those of ``stores/registry.py``, step by step, and are asked from the same table.
What differs is only where the rows are: they are fetched by key, many at once, and what changed
goes back in a few statements, so that thousands of keys cost one transaction and not thousands
of questions. All changes of one transaction have the same version: nobody can see half of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leasehold.core.lease_rules import Move, evaluate
from leasehold.core.token_digest import token_digest
from leasehold.model import EndReason, State
from leasehold.stores.sqlite.rows import SqliteLeaseRow, SqliteResourceRow
from leasehold.stores.validation import HISTORY_LIMIT, OPERATOR, lost_lease

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from leasehold.model import HandOver, KeyClaim, Lease, Ownership
    from leasehold.stores.sqlite.database import Params, Transaction


class UnitOfWork:
    """Leases and resources as one transaction sees and changes them."""

    def __init__(self, tx: Transaction, *, version: int, now: float, wall: datetime) -> None:
        """Open them at ``version``, at the moment ``now`` of the store's clock."""
        self.tx = tx
        self.now = now
        self.wall = wall.isoformat()
        self.version = version
        self._next = version + 1
        self._leases: dict[str, SqliteLeaseRow | None] = {}
        self._rows: dict[str, SqliteResourceRow] = {}
        self._changed: dict[str, SqliteResourceRow] = {}
        self._begun: list[Params] = []
        self._ended: list[Params] = []
        self._guests: set[tuple[str, str]] = set()

    # -------------------------------------------------------- what is there

    def lease(self, holder: str) -> SqliteLeaseRow | None:
        """The lease of ``holder``, ended or not."""
        if holder not in self._leases:
            found = self.tx.one("lease", holder=holder)
            self._leases[holder] = None if found is None else SqliteLeaseRow(*found)
        return self._leases[holder]

    def live(self, lease: Lease) -> SqliteLeaseRow:
        """The lease, if it is to be believed.

        Raises:
            LeaseLost: it has ended, or its token is another.
        """
        row = self.lease(lease.holder)
        if row is None:
            raise lost_lease(lease.holder, "unknown")
        if row.token != token_digest(lease.token):
            raise lost_lease(lease.holder, "holder_id_in_use")
        if row.ended is None and row.ends_at <= self.now:
            self.end_lease(row.holder, EndReason.EXPIRED)
        if row.ended is not None:
            raise lost_lease(lease.holder, row.ended)
        return row

    def living(self, holder: str) -> SqliteLeaseRow | None:
        """The lease of a holder whose token is not known, if it runs."""
        row = self.lease(holder)
        if row is not None and row.ended is None and row.ends_at <= self.now:
            self.end_lease(holder, EndReason.EXPIRED)
        return None if row is None or row.ended is not None else row

    def rows(self, keys: Iterable[str]) -> Mapping[str, SqliteResourceRow]:
        """The resources that have been asked for so far, these included, by key."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._rows]
        if missing:
            for found in self.tx.all("resources_by_key", keys=json.dumps(missing)):
                self._rows[found[0]] = SqliteResourceRow(*found)
        return self._rows

    # ------------------------------------------------------------ settling

    def settle_group(self, group: str) -> None:
        """End what time has ended in a group."""
        for (holder,) in self.tx.all("leases_run_out", grp=group, now=self.now):
            self.end_lease(holder, EndReason.EXPIRED)
        due = [key for (key,) in self.tx.all("resources_due", grp=group, now=self.now)]
        self.settle_keys(due)

    def settle_keys(self, keys: Iterable[str]) -> None:
        """End what time has ended on these keys."""
        keys = list(keys)
        rows = self.rows(keys)
        for key in keys:
            if key in rows:
                self.settle(rows[key])

    def settle(self, row: SqliteResourceRow) -> None:
        """End what time has ended on this key."""
        state = row.state(self.now)
        if state is State.EXPIRED and row.holder is not None:
            self.end_lease(row.holder, EndReason.EXPIRED)
        elif state is State.BROKEN:
            self.end_term(row, EndReason.BROKEN)
        elif row.handed_to != row.kept_for(self.now):
            self.keep_for(row, None, until=None)

    # -------------------------------------------------------------- moves

    def already_taken(
        self, row: SqliteResourceRow, want: KeyClaim, claimer: SqliteLeaseRow
    ) -> bool:
        """Whether the claim was granted before, and the key is still leased."""
        mine = row.holder == claimer.holder and row.epoch - want.seen_epoch in {0, 1}
        return mine and row.state(self.now) is State.LEASED

    def take(
        self, row: SqliteResourceRow, want: KeyClaim, claimer: SqliteLeaseRow, *, force: bool
    ) -> bool:
        """Give the key to the claimer, if it can be had; say whether."""
        if row.epoch != want.seen_epoch:
            return False
        mine = row.holder == claimer.holder
        move = Move.ACQUIRE_SAME if mine else Move.ACQUIRE_OTHER
        if not evaluate(row.state(self.now), move).granted and (mine or not force):
            return False
        self.settle(row)
        if row.handed_to not in {None, claimer.holder}:
            return False
        if row.holder is not None:
            self.end_term(row, EndReason.STOLEN)
        self._begin_term(row, claimer, note=want.note)
        return True

    def put_question(self, key: str, epoch: int, asker: str) -> bool:
        """Note that ``asker`` would like to have the key; say whether the question stands."""
        self.settle_keys([key])
        row = self.rows([key]).get(key)
        if row is None or row.holder in {None, asker} or row.epoch != epoch:
            return False
        if row.asked_by != asker:
            row.asked_by = asker
            self.touch(row)
        return True

    def pass_on(self, row: SqliteResourceRow, each: HandOver, limit_s: float) -> bool:
        """Keep the key for the one it is handed to; say whether it was passed, now or before."""
        ownership = each.ownership
        move = Move.CHANGE if row.proven_by(ownership) else Move.CHANGE_OTHER
        if evaluate(row.state(self.now), move).granted:
            self.end_term(row, EndReason.HANDED_OVER, note=each.note)
        elif not self._kept_for(row, ownership):
            passed_before = row.epoch == ownership.epoch and row.handed_by == ownership.holder
            return self.ended_by(row, ownership, EndReason.HANDED_OVER) or (
                passed_before and self._known(ownership)
            )
        row.handed_by = ownership.holder
        self.keep_for(row, each.to, until=self.now + limit_s)
        self.settle(row)
        return True

    def ended_by(self, row: SqliteResourceRow, ownership: Ownership, *reasons: EndReason) -> bool:
        """Whether this very ownership was ended so before: the call is a repetition."""
        if not self._known(ownership) or ownership.epoch <= row.epoch - HISTORY_LIMIT:
            return False
        self.flush()
        found = self.tx.one("term", key=row.key, epoch=ownership.epoch)
        return found in [(ownership.holder, reason.stored) for reason in reasons]

    def _kept_for(self, row: SqliteResourceRow, ownership: Ownership) -> bool:
        """Whether the key was handed to this holder, which did not claim it yet."""
        if row.holder is not None or row.epoch != ownership.epoch:
            return False
        return row.kept_for(self.now) == ownership.holder and self._known(ownership)

    def _known(self, ownership: Ownership) -> bool:
        lease = self.lease(ownership.holder)
        return lease is not None and lease.token == token_digest(ownership.token)

    def keep_for(self, row: SqliteResourceRow, holder: str | None, *, until: float | None) -> None:
        """Keep a free key for one holder, or for nobody any more."""
        receiver = None if holder is None else self.lease(holder)
        row.handed_to, row.handed_until, row.kept_until = holder, until, None
        if until is not None and receiver is not None and receiver.ended is None:
            row.kept_until = min(until, receiver.ends_at)
        self.touch(row)

    # ---------------------------------------------------- ends and beginnings

    def end_term(
        self, row: SqliteResourceRow, reason: EndReason, *, note: str | None = None
    ) -> None:
        """The key is free; the term has its end and its reason, and the note if there is one."""
        if row.holder is None:
            return
        self._free(row)
        self.touch(row)
        self._write_end(row, reason, note=note)

    def end_lease(self, holder: str, reason: EndReason) -> None:
        """End a lease and all that it covers, in as many statements for one key as for many."""
        self.flush()  # what was changed before must not be overtaken by the statements here
        row = self.lease(holder)
        ends_at = self.now if row is None else min(row.ends_at, self.now)
        if row is not None:
            row.ended, row.ends_at = reason.value, ends_at
        for each in self._rows.values():
            if each.holder == holder:
                self._free(each)
                each.version = self._next
            if each.handed_to == holder:
                each.kept_until = None
        self.version = self._next
        end: Params = {
            "holder": holder,
            "ends_at": ends_at,
            "wall": self.wall,
            "reason": reason.value,
            "version": self._next,
        }
        self.tx.run("lease_end", **end)
        self.tx.run("lease_end_terms", **end)
        self.tx.run("lease_end_resources", holder=holder, version=self._next)
        self.tx.run("guest_drop", holder=holder)

    def reset_terms(self, rows: Iterable[SqliteResourceRow]) -> None:
        """Raise the epochs of keys that nobody owns: terms of the operator, of no length."""
        rows = list(rows)
        for row in rows:
            row.epoch += 1
            row.handed_by = None
            self.touch(row)
            self._write_begin(row, OPERATOR)
        self.flush()  # ends are written before beginnings, and these come after
        for row in rows:
            self._write_end(row, EndReason.RESET)

    @staticmethod
    def _free(row: SqliteResourceRow) -> None:
        row.holder = row.asked_by = row.break_at = row.lease_token = None
        row.lease_ends_at = 0.0

    def _begin_term(self, row: SqliteResourceRow, claimer: SqliteLeaseRow, *, note: str) -> None:
        row.epoch += 1
        row.holder = claimer.holder
        row.handed_to = row.handed_until = row.handed_by = row.kept_until = None
        row.lease_token, row.lease_ends_at = claimer.token, claimer.ends_at
        if claimer.group != row.group:
            self._guests.add((row.group, claimer.holder))
        self.touch(row)
        self._write_begin(row, claimer.holder, note=note)

    def _write_begin(self, row: SqliteResourceRow, holder: str, *, note: str = "") -> None:
        self._begun.append(
            {
                "key": row.key,
                "epoch": row.epoch,
                "holder": holder,
                "wall": self.wall,
                "note": note,
            }
        )

    def _write_end(
        self, row: SqliteResourceRow, reason: EndReason, *, note: str | None = None
    ) -> None:
        self._ended.append(
            {
                "key": row.key,
                "epoch": row.epoch,
                "wall": self.wall,
                "reason": reason.stored,
                "version": self._next,
                "note": note,
            }
        )

    # ------------------------------------------------------------- writing

    def touch(self, row: SqliteResourceRow) -> None:
        """The row has changed: watchers are to be told, and it is to be written."""
        self.version = row.version = self._next
        self._changed[row.key] = row

    def next_version(self) -> int:
        """The version for a change that the caller writes itself."""
        self.version = self._next
        return self._next

    def flush(self) -> None:
        """Write what has changed so far, so that queries see it."""
        self.tx.many("term_end", self._ended)
        self.tx.many("term_begin", self._begun)
        self.tx.many(
            "term_prune",
            [
                {"key": begun["key"], "epoch": int(begun["epoch"] or 0) - HISTORY_LIMIT}
                for begun in self._begun
                if int(begun["epoch"] or 0) > HISTORY_LIMIT
            ],
        )
        self.tx.many("resource_write", [row.params() for row in self._changed.values()])
        self.tx.many("guest_add", [{"grp": grp, "holder": each} for grp, each in self._guests])
        self._ended, self._begun, self._changed, self._guests = [], [], {}, set()

    def finish(self) -> None:
        """Write the rest, and the version if there is a new one."""
        self.flush()
        if self.version == self._next:
            self.tx.run("meta_write", version=self.version)
