"""A book: all that is known of one group, as the rules of the memory store work on it.

It holds the keys of the group, the leases of its members, and a copy of the lease of each outsider
that has, had or is to have one of its keys. It does not know who is alive: the service does, and
whoever takes a step says so first (``judge_alive``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.azure.blob_store.lease_lengths import LONGEST_S
from leasehold.model import State
from leasehold.names import group_of
from leasehold.stores.registry import Registry
from leasehold.stores.rows import LeaseRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from leasehold.azure.blob_store.checkpoint_blobs import CheckpointBlob
    from leasehold.azure.blob_store.naming import LeaseLocation
    from leasehold.model import Checkpoint, Lease, Ownership, Resource, Term
    from leasehold.stores.rows import ResourceRow

    # By key: the token, the epoch, and what is under way.
    Tenure = dict[str, tuple[str, int, float | None, str | None]]

# Longer than any lease lasts, and long enough for whoever asks what became of a lease.
_REMEMBERED_S = LONGEST_S + 3600.0
_MAX_IDLE_GUESTS = 200


class KeysElsewhere:
    """What a holder has heard of its keys in the book of another group.

    ``keys`` says for each the version there and the version here at which it was noted.
    """

    def __init__(self, *, ended: int = 0, keys: dict[str, tuple[int, int]] | None = None) -> None:
        """Nothing heard yet, unless told."""
        self.ended = ended
        self.keys = keys or {}


class GroupDocument(Registry):
    """The registry of one home. ``spilled`` are the keys whose older terms are kept elsewhere."""

    def __init__(self, home: LeaseLocation) -> None:
        """An empty book."""
        super().__init__()
        self.home = home
        self.abroad: dict[str, dict[str, KeysElsewhere]] = {}
        self.spilled: set[str] = set()
        # By holder the name of the slip that it writes its positions on.
        self.slips: dict[str, str] = {}
        # Breaks of this very step: the break before it, and how long after its writing it is due.
        self.fresh: dict[str, tuple[float | None, float]] = {}
        self.wall_s = 0

    @property
    def version(self) -> int:
        """Of the last change that watchers are told of."""
        return self._version

    @property
    def shared_keys(self) -> int:
        """How many keys are shared out."""
        return sum(not row.forgotten for row in self._resources.values())

    @property
    def rows(self) -> Iterable[ResourceRow]:
        """All keys, forgotten ones too."""
        return self._resources.values()

    def lease_row(self, holder: str) -> LeaseRow | None:
        """The lease of a member or an outsider, living or ended."""
        return self._leases.get(holder)

    def live(self, lease: Lease, now: float, wall: datetime) -> LeaseRow:
        """The living lease that this token proves.

        Raises:
            LeaseLost: there is none.
        """
        return self._live(lease, now, wall)

    # ------------------------------------------------------------ who is alive

    def owners(self, keys: Iterable[str]) -> set[str]:
        """Those on whose life it depends what can be done with these keys."""
        rows = [row for row in map(self._resources.get, keys) if row is not None]
        return {name for row in rows for name in (row.holder, row.handed_to) if name}

    def proving(self, claims: Iterable[tuple[str, str]]) -> set[str]:
        """Of (key, holder) those holders that the book has for the owner of that key."""
        found = ((self._resources.get(key), holder) for key, holder in claims)
        return {holder for row, holder in found if row is not None and row.holder == holder}

    def everybody(self) -> set[str]:
        """All whose end is to be noted here: living members, owners, and receivers."""
        members = {
            holder
            for holder, row in self._leases.items()
            if row.ended is None and row.lease.group == self.home.group
        }
        return members | self.owners(self._resources)

    def judge_alive(self, now: float, dead: Collection[str]) -> None:
        """Take the service's word: these leases are over, and all others run.

        When a lease ends is not known; it is at most its duration from now.
        """
        for holder, row in self._leases.items():
            if row.ended is None:
                row.ends_at = now if holder in dead else now + row.lease.duration_s

    def adopt(self, row: LeaseRow, *, heard: int = 0) -> None:
        """Know the lease of an outsider, which is kept in another book.

        What it has ``heard`` of its ended terms there need not be kept here any longer.
        """
        holder = row.lease.holder
        known = self._leases.get(holder)
        if known is not None and known.lease.token == row.lease.token:
            known.ended_terms = [each for each in known.ended_terms if each[0] > heard]
        if known is None:
            copied = LeaseRow(lease=row.lease, info=row.info, ends_at=row.ends_at, version=0)
            self._leases[holder] = copied
            self._group(row.lease.group).members[holder] = copied

    def kept_leases(self) -> list[LeaseRow]:
        """Those that are to be written down, in the order of their last change."""
        named = {name for row in self.rows for name in (row.handed_to, row.handed_by) if name}
        guests = self._group(self.home.group).guests
        idle = [row for row in guests.values() if not row.owned and row.lease.holder not in named]
        idle.sort(key=lambda row: row.version)
        dropped = {row.lease.holder for row in idle[:-_MAX_IDLE_GUESTS]}
        kept = [
            row
            for holder, row in self._leases.items()
            if holder not in dropped
            and (self.is_member(row) or holder in named or holder in guests)
        ]
        return sorted(kept, key=lambda row: row.version)

    def is_member(self, row: LeaseRow) -> bool:
        """Whether the lease is kept here, and not only known."""
        home = self.home
        return row.lease.group == home.group and (
            bool(home.group) or row.lease.holder == home.holder
        )

    def is_guest(self, row: LeaseRow) -> bool:
        """Whether an outsider has, or had, a key of this group."""
        return row.lease.holder in self._group(self.home.group).guests

    def _purge(self, now: float) -> None:
        old = [
            row.lease.holder
            for row in self._leases.values()
            if row.ended is not None and row.ends_at + _REMEMBERED_S < now
        ]
        for holder in old:
            row = self._leases.pop(holder)
            self.abroad.pop(holder, None)
            self.slips.pop(holder, None)
            self._group(row.lease.group).members.pop(holder, None)
            self._group(self.home.group).guests.pop(holder, None)

    def owned_of(self, keys: Iterable[str], now: float) -> dict[str, str]:
        """Those of the keys that somebody owns or is to have, with who it is.

        Raises:
            UnknownResource: one of them is not declared.
        """
        shown = [self._shown(self._declared(key), now) for key in keys]
        held = {State.LEASED, State.BREAKING}
        found = (
            (each.key, each.holder if each.state in held else each.handed_to) for each in shown
        )
        return {key: owner for key, owner in found if owner is not None}

    def break_after(
        self, key: str, epoch: int, after_s: float, *, slack_s: float, now: float, wall: datetime
    ) -> Resource | None:
        """See ``Store.break_``: due ``after_s`` from when it is *written*, by the service's clock.

        A write may take effect long after this step, and the owner may have renewed in between.

        Raises:
            UnknownResource: there is no such key.
        """
        row = self._declared(key)
        before = row.break_at
        shown = self.break_(key, epoch, after_s + slack_s if after_s else 0.0, now, wall)
        if row.holder is not None and row.break_at != before:
            lease = self._leases[row.holder].lease
            self.fresh[key] = (before, min(after_s, lease.duration_s))
        return shown

    # ------------------------------------------------------------ slips

    def with_slips(self, slips: Mapping[str, CheckpointBlob]) -> dict[str, Checkpoint]:
        """The checkpoints, with what these holders have written on the slips that are named here.

        What stands on a slip for a key that its holder does not own, or not any more, is nothing.
        """
        marks = dict(self._checkpoints)
        for holder, slip in slips.items():
            for key, mark in slip.marks.items():
                row, stored = self._resources.get(key), marks.get(key)
                owned = row is not None and (row.holder, row.epoch) == (holder, mark.epoch)
                if owned and (stored is None or stored.position <= mark.position):
                    marks[key] = mark
        return marks

    def fold(self, slips: Mapping[str, CheckpointBlob]) -> None:
        """Take what is on these slips into the book, which names them no longer."""
        self._checkpoints = self.with_slips(slips)
        for holder in slips:
            self.slips.pop(holder, None)

    def tenures(self) -> dict[str, Tenure]:
        """By holder with a slip, all that its right to write on it stands on."""
        return {holder: self._tenure(holder) for holder in self.slips}

    def loosened(self, before: Mapping[str, Tenure]) -> set[str]:
        """Those whose slip is still named here, though they have lost a part of that since."""
        return {
            holder
            for holder in self.slips
            if not before.get(holder, {}).items() <= self._tenure(holder).items()
        }

    def may_jot(self, ownership: Ownership) -> bool:
        """Whether this copy lets the owner write on its slip, if its lease runs."""
        row, lease = self._resources.get(ownership.key), self._leases.get(ownership.holder)
        if row is None or lease is None or lease.ended is not None or not self.is_member(lease):
            return False
        plain = row.break_at is None and row.handed_to is None
        return plain and self._proves(row, ownership)

    def _tenure(self, holder: str) -> Tenure:
        row = self._leases.get(holder)
        if row is None or row.ended is not None:
            return {}
        held: Tenure = {
            key: (row.lease.token, each.epoch, each.break_at, each.handed_to)
            for key, each in row.owned.items()
        }
        held[""] = (row.lease.token, 0, None, None)  # the lease itself
        return held

    # ------------------------------------------------------------ keys abroad

    def news_for(self, holder: str) -> tuple[dict[str, int], list[tuple[int, Term]]]:
        """The versions of an outsider's keys here, and its terms here that have ended."""
        row = self._leases.get(holder)
        if row is None:
            return {}, []
        keys = {key: owned.version for key, owned in row.owned.items()}
        return keys, list(row.ended_terms)

    def shown(self, keys: Iterable[str], now: float) -> list[Resource]:
        """These keys as they are."""
        return [self._shown(self._resources[key], now) for key in keys if key in self._resources]

    def goes_abroad(self, holder: str, group: str) -> None:
        """Note that a member may own keys of another group: its renewals look there."""
        self.abroad.setdefault(holder, {}).setdefault(group, KeysElsewhere())

    def hear(
        self, holder: str, group: str, keys: dict[str, int], ended: list[tuple[int, Term]]
    ) -> None:
        """Note what has become of a member's keys abroad, under versions of this book."""
        heard, row = self.abroad[holder][group], self._leases[holder]
        for version, term in ended:
            if version > heard.ended:
                heard.ended = version
                self._version += 1
                row.ended_terms.append((self._version, term))
        for key in [key for key in heard.keys if key not in keys]:
            del heard.keys[key]
        for key, version in keys.items():
            if heard.keys.get(key, (0, 0))[0] != version:
                self._version += 1
                heard.keys[key] = (version, self._version)

    def news_abroad(self, holder: str, since: int) -> dict[str, list[str]]:
        """By group, the keys abroad of which something was heard after ``since``."""
        return {
            group: [key for key, (_, here) in heard.keys.items() if here > since]
            for group, heard in self.abroad.get(holder, {}).items()
        }

    # ------------------------------------------------------------ writing out

    def restore(self, *, version: int, fenced: int) -> None:
        """Begin to read a book that was written out."""
        self._version = version
        self._group(self.home.group).fenced = fenced

    def restore_lease(self, row: LeaseRow, *, guest: bool) -> None:
        """Leases come in the order of their last change."""
        self._leases[row.lease.holder] = row
        self._group(row.lease.group).members[row.lease.holder] = row
        if guest:
            self._group(self.home.group).guests[row.lease.holder] = row

    def restore_key(self, row: ResourceRow) -> None:
        """Keys come in the order of their last change, after the leases."""
        self._resources[row.key] = row
        group = self._group(group_of(row.key))
        group.resources[row.key] = row
        if row.break_at is not None or row.handed_to is not None:
            group.timed[row.key] = row
        owner = self._leases.get(row.holder or "")
        if owner is not None:
            owner.owned[row.key] = row
            if owner.lease.group != row.group:
                owner.abroad[row.key] = row

    @property
    def marks(self) -> dict[str, Checkpoint]:
        """The checkpoints, by key."""
        return self._checkpoints

    @property
    def fenced(self) -> int:
        """How many writes were refused, ever."""
        return self._group(self.home.group).fenced

    def in_order(self) -> list[ResourceRow]:
        """The keys in the order of their last change."""
        return sorted(self.rows, key=lambda row: row.version)
