"""The store's calls on keys, as steps on the documents of their groups.

Keys of one group are one step and one write. Keys of several groups are one step for each group.
Checkpoints go to the checkpoint blob of their holder where it may write one, and otherwise into the
document.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from leasehold.azure.blob_store.checkpoint_blobs import CheckpointBlob, fits
from leasehold.azure.blob_store.container import decode_metadata
from leasehold.azure.blob_store.lease_calls import with_safe_break_time
from leasehold.azure.blob_store.naming import GROUPS, LeaseLocation, part
from leasehold.core.token_digest import (
    lease_with_digest,
    ownership_with_digest,
    with_digests,
)
from leasehold.model import Checkpoint
from leasehold.names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from leasehold.azure.blob_store.document_cache import DocumentCache, HolderSelector, StepContext
    from leasehold.azure.blob_store.group_document import GroupDocument
    from leasehold.azure.blob_store.service_time import LeaseProofs
    from leasehold.clock import Clock
    from leasehold.model import (
        CheckpointWrite,
        HandOver,
        KeyClaim,
        Lease,
        Note,
        Ownership,
        Position,
        Refusal,
        Resource,
    )
    from leasehold.stores.rows import LeaseRow

# A holder that writes checkpoints of one term a third time within this window gets a checkpoint
# blob. One that writes once or twice in each term, as jobs do, would only have to give it back.
_OFTEN_WINDOW_S = 60.0
_OFTEN_WRITES = 2
_MAX = 10_000
# Calls of one holder that write to the document take turns; but none waits for longer.
_LOCK_TIMEOUT_S = 2.0
_Term: TypeAlias = "tuple[str, int]"  # a key and an epoch


class CheckpointCalls:
    """Writes checkpoints, in threads. All writes of a call are of one group."""

    def __init__(self, cache: DocumentCache, proofs: LeaseProofs, clock: Clock) -> None:
        self._cache = cache
        self._proofs = proofs
        self._clock = clock
        self._written_s: dict[tuple[LeaseLocation, str], dict[_Term, list[float]]] = {}
        self._locks: dict[tuple[LeaseLocation, str], threading.Lock] = {}

    def checkpoint(
        self, location: LeaseLocation, writes: Sequence[CheckpointWrite], cancelled: threading.Event
    ) -> Mapping[str, Refusal]:
        """Write checkpoints of one group; return what is refused."""
        digested = with_digests(writes)
        holders = {each.ownership.holder for each in writes}
        proven = self._proofs.of((each.ownership.holder, each.ownership.token) for each in writes)
        only = next(iter(holders)) if len(holders) == 1 and holders == proven else None
        if only is None:
            return self._write_to_document(location, digested, None, proven, cancelled)
        if self._write_to_blob(location, only, digested, cancelled):
            return {}
        if len(self._locks) >= _MAX:
            self._locks.clear()
        lock = self._locks.setdefault((location, only), threading.Lock())
        immediately = lock.acquire(blocking=False)
        locked = immediately or lock.acquire(timeout=_LOCK_TIMEOUT_S)
        try:
            # Each write to the document merges the blob of the one before: first see if there is
            # one.
            if not immediately and self._write_to_blob(location, only, digested, cancelled):
                return {}
            return self._write_to_document(location, digested, only, proven, cancelled)
        finally:
            if locked:
                lock.release()

    def _write_to_document(
        self,
        location: LeaseLocation,
        writes: Sequence[CheckpointWrite],
        only: str | None,
        proven: set[str],
        cancelled: threading.Event,
    ) -> Mapping[str, Refusal]:
        """Write into the document, which names a new blob for ``only`` if it writes often."""
        new_blob = None if only is None else self._new_blob(location, only, writes, cancelled)
        claims = [(each.ownership.key, each.ownership.holder) for each in writes]
        refused, named = self._cache.change(
            location,
            partial(_checkpoint_step, writes, new_blob),
            cancelled,
            liveness_of=lambda document: document.owners_among(claims),
            proven=proven,
            merge_blobs_of={each.ownership.holder for each in writes},
        )
        if new_blob is not None and not named:
            # No document has ever named it, and none will: its name is known here alone.
            self._cache.checkpoint_blobs.drop(location, *new_blob)
            self._cache.checkpoint_blobs.remove(location, dict([new_blob]), cancelled)
        return refused

    def _write_to_blob(
        self,
        location: LeaseLocation,
        holder: str,
        writes: Sequence[CheckpointWrite],
        cancelled: threading.Event,
    ) -> bool:
        """Write to the checkpoint blob; False if the document must decide."""
        with self._cache.copy(location) as known:
            if known is None:
                return False
            document, wall = known
            own = self._cache.checkpoint_blobs.own(location, holder, document)
            if own is None or not all(document.may_write_blob(each.ownership) for each in writes):
                return False
            there, wanted = own.content.checkpoints, dict[str, Checkpoint]()
            for write in writes:
                key = write.ownership.key
                stored = wanted.get(key) or there.get(key)
                for last in (stored, document.checkpoints_by_key.get(key)):
                    if last is not None and last.position > write.position:
                        return False
                wanted[key] = _checkpoint_of(write, wall)
        return self._cache.checkpoint_blobs.write(location, holder, own, wanted, cancelled)

    def _new_blob(
        self,
        location: LeaseLocation,
        holder: str,
        writes: Sequence[CheckpointWrite],
        cancelled: threading.Event,
    ) -> tuple[str, str] | None:
        """Create a blob for a holder that writes often, if these checkpoints fit into one."""
        if not self._writes_often(location, holder, writes):
            return None
        with self._cache.copy(location) as known:
            if known is None or not all(known[0].may_write_blob(each.ownership) for each in writes):
                return None
            wanted = {each.ownership.key: _checkpoint_of(each, known[1]) for each in writes}
        if not fits(CheckpointBlob(checkpoints=wanted).metadata(location.group)):
            return None
        name = self._cache.checkpoint_blobs.create(location, holder, cancelled)
        return None if name is None else (holder, name)

    def _writes_often(
        self, location: LeaseLocation, holder: str, writes: Sequence[CheckpointWrite]
    ) -> bool:
        """Record this write; return whether one of its terms was written often of late."""
        if len(self._written_s) >= _MAX:
            self._written_s.clear()
        now_s, often = self._clock.boottime_s(), False
        known = self._written_s.setdefault((location, holder), {})
        if len(known) >= _MAX:
            known.clear()
        for write in writes:
            times = known.setdefault((write.ownership.key, write.ownership.epoch), [])
            times[:] = [each for each in times if now_s - each <= _OFTEN_WINDOW_S][-_OFTEN_WRITES:]
            often = often or len(times) >= _OFTEN_WRITES
            times.append(now_s)
        return often


def _checkpoint_of(write: CheckpointWrite, wall: datetime) -> Checkpoint:
    owned = write.ownership
    return Checkpoint(key=owned.key, epoch=owned.epoch, position=write.position, updated_at=wall)


def _checkpoint_step(
    writes: Sequence[CheckpointWrite], new_blob: tuple[str, str] | None, context: StepContext
) -> tuple[Mapping[str, Refusal], bool]:
    """Return what is refused, and whether the document names the blob from now on."""
    refused = context.document.checkpoint(writes, context.now, context.wall)
    if new_blob is None or not all(
        context.document.may_write_blob(each.ownership) for each in writes
    ):
        return refused, False
    holder, name = new_blob
    context.document.blob_names[holder] = name
    return refused, True


T = TypeVar("T")
U = TypeVar("U")


class OwnershipCalls:
    """Claims, hand-overs, checkpoints and what operators do, in threads."""

    def __init__(self, cache: DocumentCache, proofs: LeaseProofs, clock: Clock) -> None:
        self._cache = cache
        self._proofs = proofs
        self._checkpoints = CheckpointCalls(cache, proofs, clock)

    # ------------------------------------------------------------ keys

    def declare(self, keys: Sequence[str], cancelled: threading.Event) -> int:
        """Declare keys; return how many were new."""
        return sum(
            self._cache.change(LeaseLocation(group), partial(_declare, batch), cancelled)
            for group, batch in _by_group(keys, str).items()
        )

    def forget(self, keys: Sequence[str], cancelled: threading.Event) -> int:
        """Forget keys; return how many were forgotten."""
        return sum(
            self._cache.change(
                LeaseLocation(group),
                partial(_forget, batch),
                cancelled,
                liveness_of=_owners(batch),
            )
            for group, batch in _by_group(keys, str).items()
        )

    # ------------------------------------------------------------ ownerships

    def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], cancelled: threading.Event, *, force: bool
    ) -> Sequence[Ownership]:
        """Claim keys; return what was won."""
        location = LeaseLocation.of(lease.group, lease.holder)
        by_group = _by_group(wanted, lambda each: each.key)
        away = [group for group in by_group if group != lease.group]
        outsider = (
            self._as_outsider(location, lease, away, cancelled) if away or not wanted else None
        )
        taken: list[Ownership] = []
        for group, batch in by_group.items():
            entering = outsider if group != lease.group else None
            taken += self._cache.change(
                LeaseLocation(group),
                partial(_claim, lease_with_digest(lease), entering, batch, force),
                cancelled,
                liveness_of=_owners([each.key for each in batch], lease.holder),
                proven=self._proofs.of([(lease.holder, lease.token)]),
            )
        return [replace(each, token=lease.token) for each in taken]

    def ask(self, lease: Lease, wanted: KeyClaim, cancelled: threading.Event) -> bool:
        """Ask the owner for a key; return whether the request stands."""
        location, group = LeaseLocation.of(lease.group, lease.holder), group_of(wanted.key)
        outsider = None
        if group != lease.group:
            outsider = self._as_outsider(location, lease, [], cancelled)

        return self._cache.change(
            LeaseLocation(group),
            partial(_ask, lease_with_digest(lease), outsider, wanted),
            cancelled,
            liveness_of=_owners([wanted.key], lease.holder),
            proven=self._proofs.of([(lease.holder, lease.token)]),
        )

    def hand_over(
        self, hand_overs: Sequence[HandOver], limit_s: float, cancelled: threading.Event
    ) -> Sequence[str]:
        """Hand keys over; return those for which it was done."""
        passed: list[str] = []
        for group, batch in _by_group(hand_overs, lambda each: each.ownership.key).items():
            receivers = {each.to for each in batch}
            outsiders = self._outsider_rows(LeaseLocation(group), receivers, cancelled)
            known = with_digests(batch)
            keys = [each.ownership.key for each in batch]
            passed += self._cache.change(
                LeaseLocation(group),
                partial(_hand_over, known, limit_s, outsiders),
                cancelled,
                liveness_of=_owners(keys, *receivers, *(each.ownership.holder for each in batch)),
                proven=self._proven(each.ownership for each in batch),
            )
        return passed

    def release(
        self, ownerships: Sequence[Ownership], notes: Mapping[str, str], cancelled: threading.Event
    ) -> Sequence[str]:
        """Release keys; return those whose ownership is over."""
        return self._change_owned(
            ownerships,
            lambda each: each,
            lambda batch, context: context.document.release(
                [ownership_with_digest(each) for each in batch], notes, context.now, context.wall
            ),
            cancelled,
        )

    def break_(
        self, key: str, epoch: int, after_s: float, cancelled: threading.Event
    ) -> Resource | None:
        """Break the lease of a key's owner."""

        def step(context: StepContext) -> Resource | None:
            slack_s = context.time.slack_s
            broken = context.document.break_after(
                key, epoch, after_s, slack_s=slack_s, now=context.now, wall=context.wall
            )
            return None if broken is None else with_safe_break_time(broken, context)

        return self._cache.change(
            LeaseLocation(group_of(key)), step, cancelled, liveness_of=_owners([key])
        )

    # ------------------------------------------------------------ writes under an ownership

    def checkpoint(
        self, writes: Sequence[CheckpointWrite], cancelled: threading.Event
    ) -> Mapping[str, Refusal]:
        """Write checkpoints, group by group; return what is refused."""
        refused: dict[str, Refusal] = {}
        for group, batch in _by_group(writes, lambda each: each.ownership.key).items():
            refused |= self._checkpoints.checkpoint(LeaseLocation(group), batch, cancelled)
        return refused

    def annotate(self, notes: Sequence[Note], cancelled: threading.Event) -> Sequence[str]:
        """Write notes; return the refused keys."""
        return self._change_owned(
            notes,
            lambda each: each.ownership,
            lambda batch, context: context.document.annotate(
                with_digests(batch),
                context.now,
            ),
            cancelled,
        )

    # ------------------------------------------------------------ operators

    def request_hand_over(self, key: str, epoch: int, to: str, cancelled: threading.Event) -> bool:
        """Request a hand-over to a holder; return whether it was recorded."""
        return self._cache.change(
            LeaseLocation(group_of(key)),
            lambda context: context.document.request_hand_over(
                key, epoch, to, context.now, context.wall
            ),
            cancelled,
            liveness_of=_owners([key], to),
        )

    def request_leave(self, holder: str, cancelled: threading.Event) -> bool:
        """Request that a member leaves; return whether it was recorded."""
        location = self._find_location(holder, cancelled)
        if location is None or not location.group:
            return False
        return self._cache.change(
            location,
            lambda context: context.document.request_leave(holder, context.now, context.wall),
            cancelled,
            liveness_of=lambda _: {holder},
        )

    def reset(
        self, positions: Mapping[str, Position | None], cancelled: threading.Event
    ) -> Mapping[str, str]:
        """Reset checkpoints; all keys are checked before the first group is changed."""
        by_group = _by_group(positions, str)
        if len(by_group) > 1:
            refused: dict[str, str] = {}
            for group, keys in by_group.items():
                refused |= self._cache.read(
                    LeaseLocation(group),
                    partial(_owner_by_key, keys),
                    cancelled,
                    liveness_of=_owners(keys),
                )
            if refused:
                return refused
        refused = {}
        for group, keys in by_group.items():
            wanted = {key: positions[key] for key in keys}
            refused |= self._cache.change(
                LeaseLocation(group),
                partial(_reset, wanted),
                cancelled,
                liveness_of=_owners(keys),
            )
        return refused

    def groups(self, cancelled: threading.Event) -> Sequence[str]:
        """Return the groups that have keys."""
        listed = self._cache.container.list(GROUPS, cancelled)
        return sorted(
            decode_metadata(blob.metadata["group"])
            for blob in listed.values()
            if blob.name.endswith("/book") and blob.metadata.get("keys", "0") != "0"
        )

    # ------------------------------------------------------------ parts

    def _change_owned(
        self,
        items: Sequence[T],
        ownership_of: Callable[[T], Ownership],
        step: Callable[[list[T], StepContext], Iterable[U]],
        cancelled: threading.Event,
    ) -> list[U]:
        """Run a step for each group, which depends on the leases of the owners alone."""
        done: list[U] = []
        for group, batch in _by_group(items, lambda each: ownership_of(each).key).items():
            shown = [ownership_of(each) for each in batch]
            claims = [(each.key, each.holder) for each in shown]
            done += self._cache.change(
                LeaseLocation(group),
                partial(step, batch),
                cancelled,
                liveness_of=partial(_owners_among, claims),
                proven=self._proven(shown),
            )
        return done

    def _proven(self, ownerships: Iterable[Ownership]) -> set[str]:
        return self._proofs.of((each.holder, each.token) for each in ownerships)

    def _as_outsider(
        self,
        location: LeaseLocation,
        lease: Lease,
        groups: Sequence[str],
        cancelled: threading.Event,
    ) -> _Outsider:
        """Return the running lease from its own document; record there the groups it enters."""

        def step(context: StepContext) -> _Outsider:
            row = context.document.live(lease_with_digest(lease), context.now, context.wall)
            for group in groups:
                context.document.note_group_elsewhere(lease.holder, group)
            seen = context.document.keys_elsewhere.get(lease.holder, {})
            return _Outsider(row, {group: each.ended for group, each in seen.items()})

        return self._cache.change(
            location,
            step,
            cancelled,
            liveness_of=lambda _: {lease.holder},
            proven=self._proofs.of([(lease.holder, lease.token)]),
        )

    def _outsider_rows(
        self, location: LeaseLocation, holders: set[str], cancelled: threading.Event
    ) -> list[LeaseRow]:
        """Return the leases that the document lacks, from their own documents."""
        unknown = self._cache.read(
            location,
            lambda context: [each for each in holders if context.document.lease_row(each) is None],
            cancelled,
        )
        found: list[LeaseRow] = []
        for holder in unknown:
            where = self._find_location(holder, cancelled)
            if where is not None:
                row = self._cache.read(
                    where,
                    partial(_lease_row, holder),
                    cancelled,
                    liveness_of=_owners((), holder),
                )
                found += [row] if row is not None and row.ended is None else []
        return found

    def _find_location(self, holder: str, cancelled: threading.Event) -> LeaseLocation | None:
        """Search for the location of a holder's lease, by its name alone."""
        alone = LeaseLocation("", holder)
        if self._cache.container.list(alone.path, cancelled):
            return alone
        listed = self._cache.container.list(GROUPS, cancelled)
        for name in listed:
            if name.endswith(f"/holders/{part(holder)}"):
                document = listed.get(name.removesuffix(f"holders/{part(holder)}") + "book")
                if document is not None and "group" in document.metadata:
                    return LeaseLocation(decode_metadata(document.metadata["group"]))
        return None


@dataclass(frozen=True, slots=True)
class _Outsider:
    """A lease of another location, and by group the version up to which it knows its terms."""

    row: LeaseRow
    seen: Mapping[str, int]

    def enter(self, document: GroupDocument) -> None:
        """Copy the lease into a document."""
        document.add_outsider(self.row, seen=self.seen.get(document.location.group, 0))


def _by_group(items: Iterable[T], key_of: Callable[[T], str]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for each in items:
        found.setdefault(group_of(key_of(each)), []).append(each)
    return found


def _owners(keys: Sequence[str], *more: str) -> HolderSelector:
    def liveness_of(document: GroupDocument) -> set[str]:
        return document.owners(keys) | set(more)

    return liveness_of


def _owners_among(claims: Sequence[tuple[str, str]], document: GroupDocument) -> set[str]:
    return document.owners_among(claims)


# ------------------------------------------------------------------ steps


def _declare(keys: Sequence[str], context: StepContext) -> int:
    return context.document.declare(keys)


def _forget(keys: Sequence[str], context: StepContext) -> int:
    return context.document.forget(keys, context.now, context.wall)


def _claim(
    lease: Lease,
    outsider: _Outsider | None,
    wanted: Sequence[KeyClaim],
    force: bool,  # noqa: FBT001
    context: StepContext,
) -> Sequence[Ownership]:
    if outsider is not None:
        outsider.enter(context.document)
    return context.document.claim(lease, wanted, force=force, now=context.now, wall=context.wall)


def _ask(lease: Lease, outsider: _Outsider | None, wanted: KeyClaim, context: StepContext) -> bool:
    if outsider is not None:
        outsider.enter(context.document)
    return context.document.ask(lease, wanted, context.now, context.wall)


def _hand_over(
    hand_overs: Sequence[HandOver],
    limit_s: float,
    outsiders: Sequence[LeaseRow],
    context: StepContext,
) -> Sequence[str]:
    for row in outsiders:
        context.document.add_outsider(row)
    until_s = limit_s + context.time.slack_s if limit_s else 0.0
    return context.document.hand_over(hand_overs, until_s, context.now, context.wall)


def _owner_by_key(keys: Sequence[str], context: StepContext) -> dict[str, str]:
    return context.document.owner_by_key(keys, context.now)


def _reset(positions: Mapping[str, Position | None], context: StepContext) -> Mapping[str, str]:
    return context.document.reset(positions, context.now, context.wall)


def _lease_row(holder: str, context: StepContext) -> LeaseRow | None:
    return context.document.lease_row(holder)
