"""The document of one group, on which the rules of the memory store work.

It has the keys of the group, the leases of its members, and a copy of the lease of each outsider
that has, had or is to get one of its keys. It does not know who is alive: the service does, and the
caller passes that in before each step (``apply_liveness``).
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

    # By key: the token, the epoch, a pending break, and a pending hand-over.
    HeldKeys = dict[str, tuple[str, int, float | None, str | None]]

# Longer than any lease lasts, and long enough to answer what became of a lease.
_REMEMBERED_S = LONGEST_S + 3600.0
_MAX_IDLE_GUESTS = 200


class KeysElsewhere:
    """What a document knows of one member's keys in another group.

    ``keys`` has for each key its version there, and the version here at which it was recorded.
    ``ended`` is the version there up to which ended terms are recorded.
    """

    def __init__(self, *, ended: int = 0, keys: dict[str, tuple[int, int]] | None = None) -> None:
        self.ended = ended
        self.keys = keys or {}


class GroupDocument(Registry):
    """The registry of one location. ``archived``: the keys with older terms in a history blob."""

    def __init__(self, location: LeaseLocation) -> None:
        super().__init__()
        self.location = location
        self.keys_elsewhere: dict[str, dict[str, KeysElsewhere]] = {}
        self.archived: set[str] = set()
        # By holder: the name of its checkpoint blob.
        self.blob_names: dict[str, str] = {}
        # Breaks of this step: the break before it, and how long after the write it is due.
        self.new_breaks: dict[str, tuple[float | None, float]] = {}
        self.wall_s = 0

    @property
    def version(self) -> int:
        """The version of the last change that members are notified of."""
        return self._version

    @property
    def shared_keys(self) -> int:
        """The number of keys that are declared and not forgotten."""
        return sum(not row.forgotten for row in self._resources.values())

    @property
    def rows(self) -> Iterable[ResourceRow]:
        """All keys, forgotten ones too."""
        return self._resources.values()

    def lease_row(self, holder: str) -> LeaseRow | None:
        """Return the lease of a member or an outsider, running or ended."""
        return self._leases.get(holder)

    def live(self, lease: Lease, now: float, wall: datetime) -> LeaseRow:
        """Return the running lease that this token proves, or raise ``LeaseLost``."""
        return self._live(lease, now, wall)

    # ------------------------------------------------------------ who is alive

    def owners(self, keys: Iterable[str]) -> set[str]:
        """Return the owners and receivers of these keys."""
        rows = [row for row in map(self._resources.get, keys) if row is not None]
        return {name for row in rows for name in (row.holder, row.handed_to) if name}

    def owners_among(self, claims: Iterable[tuple[str, str]]) -> set[str]:
        """Of (key, holder) pairs, return the holders that own that key here."""
        found = ((self._resources.get(key), holder) for key, holder in claims)
        return {holder for row, holder in found if row is not None and row.holder == holder}

    def live_holders(self) -> set[str]:
        """Return all whose end must be recorded: live members, owners and receivers."""
        members = {
            holder
            for holder, row in self._leases.items()
            if row.ended is None and row.lease.group == self.location.group
        }
        return members | self.owners(self._resources)

    def apply_liveness(self, now: float, expired: Collection[str]) -> None:
        """Mark these leases as expired and all others as running, as the service reports.

        When a running lease ends is not known; it is at most its duration from now.
        """
        for holder, row in self._leases.items():
            if row.ended is None:
                row.ends_at = now if holder in expired else now + row.lease.duration_s

    def add_outsider(self, row: LeaseRow, *, seen: int = 0) -> None:
        """Copy the lease of an outsider from its own document.

        Ended terms up to the version ``seen`` are recorded there, and are dropped here.
        """
        holder = row.lease.holder
        known = self._leases.get(holder)
        if known is not None and known.lease.token == row.lease.token:
            known.ended_terms = [each for each in known.ended_terms if each[0] > seen]
        if known is None:
            copied = LeaseRow(lease=row.lease, info=row.info, ends_at=row.ends_at, version=0)
            self._leases[holder] = copied
            self._group(row.lease.group).members[holder] = copied

    def leases_to_store(self) -> list[LeaseRow]:
        """Return the leases to write, in the order of their last change."""
        named = {name for row in self.rows for name in (row.handed_to, row.handed_by) if name}
        guests = self._group(self.location.group).guests
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
        """Return whether this is the lease's own document, and not one with a copy."""
        location = self.location
        return row.lease.group == location.group and (
            bool(location.group) or row.lease.holder == location.holder
        )

    def is_guest(self, row: LeaseRow) -> bool:
        """Return whether an outsider has, or had, a key of this group."""
        return row.lease.holder in self._group(self.location.group).guests

    def _purge(self, now: float) -> None:
        old = [
            row.lease.holder
            for row in self._leases.values()
            if row.ended is not None and row.ends_at + _REMEMBERED_S < now
        ]
        for holder in old:
            row = self._leases.pop(holder)
            self.keys_elsewhere.pop(holder, None)
            self.blob_names.pop(holder, None)
            self._group(row.lease.group).members.pop(holder, None)
            self._group(self.location.group).guests.pop(holder, None)

    def owner_by_key(self, keys: Iterable[str], now: float) -> dict[str, str]:
        """Return those of the keys that have an owner or receiver, with its name."""
        shown = [self._shown(self._declared(key), now) for key in keys]
        held = {State.LEASED, State.BREAKING}
        found = (
            (each.key, each.holder if each.state in held else each.handed_to) for each in shown
        )
        return {key: owner for key, owner in found if owner is not None}

    def break_after(
        self, key: str, epoch: int, after_s: float, *, slack_s: float, now: float, wall: datetime
    ) -> Resource | None:
        """Break a lease ``after_s`` from when this is *written*, by the service's clock.

        A write may take effect long after this step, and the owner may have renewed in between.
        """
        row = self._declared(key)
        before = row.break_at
        shown = self.break_(key, epoch, after_s + slack_s if after_s else 0.0, now, wall)
        if row.holder is not None and row.break_at != before:
            lease = self._leases[row.holder].lease
            self.new_breaks[key] = (before, min(after_s, lease.duration_s))
        return shown

    # ------------------------------------------------------------ checkpoint blobs

    def checkpoints_with(self, blobs: Mapping[str, CheckpointBlob]) -> dict[str, Checkpoint]:
        """Return the checkpoints, with those in the checkpoint blobs of these holders.

        A blob's position counts only for a key that its holder owns, under the key's epoch.
        """
        checkpoints = dict(self._checkpoints)
        for holder, blob in blobs.items():
            for key, checkpoint in blob.checkpoints.items():
                row, stored = self._resources.get(key), checkpoints.get(key)
                owned = row is not None and (row.holder, row.epoch) == (holder, checkpoint.epoch)
                if owned and (stored is None or stored.position <= checkpoint.position):
                    checkpoints[key] = checkpoint
        return checkpoints

    def merge_blobs(self, blobs: Mapping[str, CheckpointBlob]) -> None:
        """Merge these checkpoint blobs into the document, which no longer names them."""
        self._checkpoints = self.checkpoints_with(blobs)
        for holder in blobs:
            self.blob_names.pop(holder, None)

    def held_keys(self) -> dict[str, HeldKeys]:
        """Return what each holder with a checkpoint blob holds now."""
        return {holder: self._held_keys_of(holder) for holder in self.blob_names}

    def holders_with_losses(self, before: Mapping[str, HeldKeys]) -> set[str]:
        """Return the holders whose blob is still named, but that lost a part of ``before``."""
        return {
            holder
            for holder in self.blob_names
            if not before.get(holder, {}).items() <= self._held_keys_of(holder).items()
        }

    def may_write_blob(self, ownership: Ownership) -> bool:
        """Return whether the owner may write its checkpoint blob, if its lease runs."""
        row, lease = self._resources.get(ownership.key), self._leases.get(ownership.holder)
        if row is None or lease is None or lease.ended is not None or not self.is_member(lease):
            return False
        plain = row.break_at is None and row.handed_to is None
        return plain and self._proves(row, ownership)

    def _held_keys_of(self, holder: str) -> HeldKeys:
        row = self._leases.get(holder)
        if row is None or row.ended is not None:
            return {}
        held: HeldKeys = {
            key: (row.lease.token, each.epoch, each.break_at, each.handed_to)
            for key, each in row.owned.items()
        }
        held[""] = (row.lease.token, 0, None, None)  # the lease itself
        return held

    # ------------------------------------------------------------ keys elsewhere

    def outsider_changes(self, holder: str) -> tuple[dict[str, int], list[tuple[int, Term]]]:
        """Return the versions of an outsider's keys here, and its terms that ended."""
        row = self._leases.get(holder)
        if row is None:
            return {}, []
        keys = {key: owned.version for key, owned in row.owned.items()}
        return keys, list(row.ended_terms)

    def shown(self, keys: Iterable[str], now: float) -> list[Resource]:
        """Return these keys as they are."""
        return [self._shown(self._resources[key], now) for key in keys if key in self._resources]

    def note_group_elsewhere(self, holder: str, group: str) -> None:
        """Record that a member may own keys of another group: its renewals read it."""
        self.keys_elsewhere.setdefault(holder, {}).setdefault(group, KeysElsewhere())

    def apply_changes_elsewhere(
        self, holder: str, group: str, keys: dict[str, int], ended: list[tuple[int, Term]]
    ) -> None:
        """Record changes of a member's keys in another group, under versions of this document."""
        seen, row = self.keys_elsewhere[holder][group], self._leases[holder]
        for version, term in ended:
            if version > seen.ended:
                seen.ended = version
                self._version += 1
                row.ended_terms.append((self._version, term))
        for key in [key for key in seen.keys if key not in keys]:
            del seen.keys[key]
        for key, version in keys.items():
            if seen.keys.get(key, (0, 0))[0] != version:
                self._version += 1
                seen.keys[key] = (version, self._version)

    def changed_elsewhere(self, holder: str, since: int) -> dict[str, list[str]]:
        """Return by group the keys elsewhere that changed after ``since``."""
        return {
            group: [key for key, (_, here) in seen.keys.items() if here > since]
            for group, seen in self.keys_elsewhere.get(holder, {}).items()
        }

    # ------------------------------------------------------------ storing

    def restore(self, *, version: int, fenced: int) -> None:
        """Begin to read a stored document."""
        self._version = version
        self._group(self.location.group).fenced = fenced

    def restore_lease(self, row: LeaseRow, *, guest: bool) -> None:
        """Add a stored lease. Leases come in the order of their last change."""
        self._leases[row.lease.holder] = row
        self._group(row.lease.group).members[row.lease.holder] = row
        if guest:
            self._group(self.location.group).guests[row.lease.holder] = row

    def restore_key(self, row: ResourceRow) -> None:
        """Add a stored key. Keys come after the leases, in the order of their last change."""
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
    def checkpoints_by_key(self) -> dict[str, Checkpoint]:
        """The checkpoints, by key, without those in checkpoint blobs."""
        return self._checkpoints

    @property
    def fenced(self) -> int:
        """The number of writes that were ever refused."""
        return self._group(self.location.group).fenced

    def in_order(self) -> list[ResourceRow]:
        """Return the keys in the order of their last change."""
        return sorted(self.rows, key=lambda row: row.version)
