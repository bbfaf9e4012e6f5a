"""The books during one transaction: rows read once, changed in memory, written together.

The rules are those of ``stores/registry.py``, step by step, and are asked from the same table.
What differs is only where the rows are: they are fetched by key, many at once, and what changed
goes back in a few statements, so that thousands of keys cost one transaction and not thousands
of questions. All changes of one transaction have the same version: nobody can see half of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leasehold.core.lease_rules import Move, judge
from leasehold.model import EndReason, State
from leasehold.stores.shared import HISTORY_LIMIT, lost_lease
from leasehold.stores.sqlite.rows import LeaseRow, ResourceRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from leasehold.model import HandOver, Lease, Ownership, Wanted
    from leasehold.stores.sqlite.database import Params, Transaction


class Books:
    """Leases and resources as one transaction sees and changes them."""

    def __init__(self, tx: Transaction, *, version: int, now: float, wall: datetime) -> None:
        """Open them at ``version``, at the moment ``now`` of the store's clock."""
        self.tx = tx
        self.now = now
        self.wall = wall.isoformat()
        self.version = version
        self._next = version + 1
        self._leases: dict[str, LeaseRow | None] = {}
        self._rows: dict[str, ResourceRow] = {}
        self._changed: dict[str, ResourceRow] = {}
        self._begun: list[Params] = []
        self._ended: list[Params] = []

    # -------------------------------------------------------- what is there

    def lease(self, holder: str) -> LeaseRow | None:
        """The lease of ``holder``, ended or not."""
        if holder not in self._leases:
            found = self.tx.one("lease", holder=holder)
            self._leases[holder] = None if found is None else LeaseRow(*found)
        return self._leases[holder]

    def live(self, lease: Lease) -> LeaseRow:
        """The lease, if it is to be believed.

        Raises:
            LeaseLost: it has ended, or its token is another.
        """
        row = self.lease(lease.holder)
        if row is None:
            raise lost_lease(lease.holder, "unknown")
        if row.token != lease.token:
            raise lost_lease(lease.holder, "another token is in use")
        if row.ended is None and row.ends_at <= self.now:
            self.end_lease(row.holder, EndReason.EXPIRED)
        if row.ended is not None:
            raise lost_lease(lease.holder, row.ended)
        return row

    def rows(self, keys: Iterable[str]) -> Mapping[str, ResourceRow]:
        """The resources that have been asked for so far, these included, by key."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._rows]
        if missing:
            for found in self.tx.all("resources_by_key", keys=json.dumps(missing)):
                self._rows[found[0]] = ResourceRow(*found)
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
                self._settle(rows[key])

    def _settle(self, row: ResourceRow) -> None:
        state = row.state(self.now)
        if state is State.EXPIRED and row.holder is not None:
            self.end_lease(row.holder, EndReason.EXPIRED)
        elif state is State.BROKEN:
            self.end_term(row, EndReason.BROKEN)
        elif row.handed_to is not None and self._lapsed(row):
            self.keep_for(row, None, until=None)

    def _lapsed(self, row: ResourceRow) -> bool:
        receiver = self.lease(row.handed_to or "")
        over = row.handed_until is None or row.handed_until <= self.now
        return over or receiver is None or not receiver.runs(self.now)

    # -------------------------------------------------------------- moves

    def take(self, row: ResourceRow, want: Wanted, claimer: LeaseRow, *, force: bool) -> bool:
        """Give the key to the claimer, if it can be had; say whether."""
        if row.epoch != want.seen_epoch:
            return False
        if not judge(row.state(self.now), Move.ACQUIRE_OTHER).granted and not force:
            return False
        self._settle(row)
        if row.handed_to not in {None, claimer.holder}:
            return False
        if row.holder is not None:
            self.end_term(row, EndReason.STOLEN)
        self._begin_term(row, claimer)
        return True

    def pass_on(self, row: ResourceRow, each: HandOver, limit_s: float) -> bool:
        """Keep the key for the one it is handed to; say whether it was passed, now or before."""
        ownership = each.ownership
        if row.epoch != ownership.epoch:
            return False
        move = Move.CHANGE if row.proven_by(ownership) else Move.CHANGE_OTHER
        if judge(row.state(self.now), move).granted:
            self.end_term(row, EndReason.HANDED_OVER)
        elif not self._kept_for(row, ownership):
            return row.ended_by(ownership, EndReason.HANDED_OVER)
        self.keep_for(row, each.to, until=self.now + limit_s)
        self._settle(row)
        return True

    def _kept_for(self, row: ResourceRow, ownership: Ownership) -> bool:
        if row.holder is not None or row.handed_to != ownership.holder:
            return False
        owner = self.lease(ownership.holder)
        return owner is not None and owner.ended is None and owner.token == ownership.token

    def keep_for(self, row: ResourceRow, holder: str | None, *, until: float | None) -> None:
        """Keep a free key for one holder, or for nobody any more."""
        row.handed_to, row.handed_until = holder, until
        self.touch(row)

    # ---------------------------------------------------- ends and beginnings

    def end_term(self, row: ResourceRow, reason: EndReason) -> None:
        """The key is free; the term has its end and its reason."""
        if row.holder is None:
            return
        self._free(row, reason)
        self.touch(row)
        self._ended.append(
            {
                "key": row.key,
                "epoch": row.epoch,
                "wall": self.wall,
                "reason": reason.value,
                "version": self._next,
            }
        )

    def end_lease(self, holder: str, reason: EndReason) -> None:
        """End a lease and all that it covers, in as many statements for one key as for many."""
        self.flush()  # what was changed before must not be overtaken by the statements here
        row = self.lease(holder)
        if row is not None:
            row.ended, row.ends_at = reason.value, min(row.ends_at, self.now)
        for covered in self._rows.values():
            if covered.holder == holder:
                self._free(covered, reason)
                covered.version = self._next
        self.version = self._next
        end = {
            "holder": holder,
            "wall": self.wall,
            "reason": reason.value,
            "version": self._next,
        }
        self.tx.run("lease_end", now=self.now, **end)
        self.tx.run("lease_end_terms", **end)
        self.tx.run("lease_end_resources", holder=holder, version=self._next)

    @staticmethod
    def _free(row: ResourceRow, reason: EndReason) -> None:
        row.holder = row.asked_by = row.break_at = row.lease_token = None
        row.lease_ends_at = 0.0
        row.last_reason = reason.value

    def _begin_term(self, row: ResourceRow, claimer: LeaseRow) -> None:
        row.epoch += 1
        row.holder, row.handed_to, row.handed_until = claimer.holder, None, None
        row.lease_token, row.lease_ends_at = claimer.token, claimer.ends_at
        row.last_holder, row.last_reason = claimer.holder, None
        self.touch(row)
        self._begun.append(
            {"key": row.key, "epoch": row.epoch, "holder": claimer.holder, "wall": self.wall}
        )

    # ------------------------------------------------------------- writing

    def touch(self, row: ResourceRow) -> None:
        """The row has changed: watchers are to be told, and it is to be written."""
        self.version = row.version = self._next
        self._changed[row.key] = row

    def touch_with(self) -> int:
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
        self._ended, self._begun, self._changed = [], [], {}

    def finish(self) -> None:
        """Write the rest, and the version if there is a new one."""
        self.flush()
        if self.version == self._next:
            self.tx.run("meta_write", version=self.version)
