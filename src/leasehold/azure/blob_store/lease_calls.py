"""Leases on blobs: grant, renew and revoke, each as requests and a step on the document.

A holder has one blob with one real lease. To renew is to renew that lease, whatever the holder
owns. A lease is over when the service says so, and ended when a document says so. Between the two
the blob is deleted, so that nothing can bring the lease back.

A listing costs twelve times as much as polling an unchanged document, and a member that finds an
expired lease records it in the document for all others. So the members of a partition group take
turns to list. Of four, each lists in every second third of a lease; of six and more, in every third
one. The order follows from their names and the service's clock. Up to three members, and in all
other groups, each renewal lists. So does one that has not listed for nearly a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leasehold.azure.blob_store.container import CREATED, NOT_FOUND, OK
from leasehold.azure.blob_store.naming import UNGROUPED, LeaseLocation, lease_id
from leasehold.azure.blob_store.service_time import service_time_now
from leasehold.core.token_digest import lease_with_digest
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.model import EndReason, Lease
from leasehold.names import PARTITION
from leasehold.stores.validation import lost_lease

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from leasehold.azure.blob_store.document_cache import DocumentCache, GroupListing, StepContext
    from leasehold.azure.blob_store.group_document import GroupDocument
    from leasehold.azure.blob_store.service_time import LeaseProofs, ServiceTime
    from leasehold.clock import Clock
    from leasehold.model import Changes, MemberInfo, Resource, Term

_IN_A_TURN, _MAX_TURNS = 2, 3  # two list in each turn: one of them may have crashed
_SLOTS = 3  # of a lease: members renew about this often
_LONGEST = 0.95
_MAX = 10_000


def turns(members: int) -> int:
    """Return in one of how many turns a member lists, in a group of this size."""
    return max(1, min(members // _IN_A_TURN, _MAX_TURNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastLook:
    """When a holder listed last, and its rank among the members then."""

    looked_s: float
    slot: int
    rank: int
    turns: int
    shortest_s: float


class LookSchedule:
    """Decides which renewals of this process list the group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str], _LastLook] = {}

    def due(self, lease: Lease, now: ServiceTime | None) -> bool:
        """Return whether this renewal must list; ``now`` by the service's clock."""
        seen = self._seen.get((lease.group, lease.holder))
        if seen is None or now is None or seen.turns == 1:
            return True
        if self._clock.boottime_s() - seen.looked_s >= _LONGEST * seen.shortest_s:
            return True
        slot = _slot(now, seen.shortest_s)
        return slot != seen.slot and slot % seen.turns == seen.rank % seen.turns

    def looked(
        self,
        lease: Lease,
        leases_s: Mapping[str, float],
        now: ServiceTime | None,
        *,
        began_s: float,
    ) -> None:
        """Record a listing by a renewal that began at ``began_s``.

        ``leases_s`` has the lease lengths of the members of its group.
        """
        if now is None or lease.holder not in leases_s:
            return
        shares = lease.group.startswith(f"{PARTITION}/")
        if len(self._seen) >= _MAX:
            self._seen.clear()
        shortest_s = min(leases_s.values())
        self._seen[lease.group, lease.holder] = _LastLook(
            looked_s=began_s,
            slot=_slot(now, shortest_s),
            rank=sorted(leases_s).index(lease.holder),
            turns=turns(len(leases_s)) if shares else 1,
            shortest_s=shortest_s,
        )

    def forget(self, lease: Lease) -> None:
        """Forget a lease that is over."""
        self._seen.pop((lease.group, lease.holder), None)


def _slot(now: ServiceTime, shortest_s: float) -> int:
    return int(now.low_s * _SLOTS / shortest_s)


_MAX_ACQUIRE_ATTEMPTS = 4
_MAX_LOOKS = 3
_MAX_SWEPT = 4
# The document of a holder without a group is old after this time, if its lease does not run.
_OLD_S = 2 * 3600.0


class LeaseCalls:
    """The three calls about leases, in threads."""

    def __init__(self, cache: DocumentCache, proofs: LeaseProofs, clock: Clock) -> None:
        self._cache = cache
        self._proofs = proofs
        self._clock = clock
        self._look_schedule = LookSchedule(clock)

    # ------------------------------------------------------------ grant

    def grant(self, lease: Lease, info: MemberInfo, cancelled: threading.Event) -> Lease:
        """Grant a lease, or repeat a grant."""
        location = LeaseLocation.of(lease.group, lease.holder)
        listing = self._cache.list_group(location, cancelled)
        known = self._cache.read(
            location,
            lambda context: context.document.lease_row(lease.holder),
            cancelled,
            listing=listing,
        )
        runs = True
        if known is None:
            self._acquire(location, lease, cancelled)
        elif listing.runs(lease.holder) and known.ended is None:
            runs = self._renew_blob(location, lease, known.lease.duration_s, cancelled)
        granted = self._cache.change(
            location,
            lambda context: context.document.grant(
                lease_with_digest(lease), info, context.now, context.wall
            ),
            cancelled,
            liveness_of=lambda _: {lease.holder},
            proven=self._proofs.of([(lease.holder, lease.token)]),
        )
        if not runs:
            # It is in the document and cannot be renewed: it was broken outside of the store.
            raise lost_lease(lease.holder, EndReason.BROKEN.value)
        self._sweep(location, listing, cancelled)
        return replace(granted, token=lease.token)

    def _acquire(self, location: LeaseLocation, lease: Lease, cancelled: threading.Event) -> None:
        blob = location.holder_blob(lease.holder)
        for _ in range(_MAX_ACQUIRE_ATTEMPTS):
            try:
                # That it exists is not a refusal: the call may be a repetition.
                self._cache.container.put(blob, b"", etag=None, metadata={}, cancelled=cancelled)
            except StoreUnavailable:
                if cancelled.is_set():
                    raise
            response = self._cache.container.lease(
                blob,
                "acquire",
                cancelled,
                proposed_lease_id=lease_id(lease.token),
                lease_duration=int(lease.duration_s),
            )
            if response.status == CREATED:
                self._note(lease, response.sent_s, lease.duration_s)
                return
            if response.status != NOT_FOUND:
                raise lost_lease(lease.holder, "holder_id_in_use")
        raise StoreUnavailable(f"the blob of {lease.holder} does not stay where it is put")

    def _sweep(
        self, location: LeaseLocation, listing: GroupListing, cancelled: threading.Event
    ) -> None:
        """Delete blobs of members that never reached the document, or that ended."""
        start = location.holder_blob("")
        over = {
            name
            for name, blob in listing.blobs.items()
            if name.startswith(start) and blob.lease_state == "expired"
        }
        if over:
            over -= self._cache.read(
                location, lambda context: _living_blobs(context.document), cancelled
            )
        self._cache.checkpoint_blobs.sweep(
            location,
            lambda: self._cache.read(
                location, lambda context: dict(context.document.blob_names), cancelled
            ),
            cancelled,
        )
        if not location.group:
            over |= self._old_ungrouped(cancelled)
        for name in sorted(over)[:_MAX_SWEPT]:
            self._cache.container.delete(name, cancelled)

    def _old_ungrouped(self, cancelled: threading.Event) -> set[str]:
        """Return blobs of holders without a group that ended long ago."""
        blobs = self._cache.container.list(UNGROUPED, cancelled).values()
        latest = self._cache.container.http_client.latest
        before_s = latest.date_s - _OLD_S if latest is not None else 0.0
        start = {blob.name: "/".join(blob.name.split("/")[:2]) for blob in blobs}
        busy = {start[blob.name] for blob in blobs if blob.locked or blob.modified_s >= before_s}
        return {name for name, folder in start.items() if folder not in busy}

    # ------------------------------------------------------------ renew

    def renew(
        self, lease: Lease, since: int, info: MemberInfo | None, cancelled: threading.Event
    ) -> Changes:
        """Renew a lease; ``LookSchedule`` decides whether this also lists the group."""
        location = LeaseLocation.of(lease.group, lease.holder)
        began_s = self._clock.boottime_s()
        for attempt in range(1 + _MAX_LOOKS):
            document_only = attempt == 0 and not self._look_schedule.due(lease, self._now())
            listing = (self._cache.poll_document if document_only else self._cache.list_group)(
                location, cancelled
            )
            duration_s, groups, lengths_s = self._cache.read(
                location,
                lambda context: _known(context.document, lease.holder),
                cancelled,
                listing=listing,
            )
            # What the document has ended is not kept alive for the documents of other groups.
            runs = duration_s > 0 and (document_only or listing.runs(lease.holder))
            renewed = runs and self._renew_blob(location, lease, duration_s, cancelled)
            if document_only and not renewed:
                continue  # a listing shows why
            elsewhere = {
                group: self._changes_elsewhere(lease.holder, group, cancelled) for group in groups
            }
            try:
                changes = self._renew_in_document(
                    lease,
                    since,
                    info,
                    listing,
                    elsewhere,
                    cancelled,
                    renewed=renewed,
                    document_only=document_only,
                )
            except _NotRenewed:
                continue  # it was not renewed, and yet it runs: list again
            if not document_only:
                self._look_schedule.looked(lease, lengths_s, self._now(), began_s=began_s)
            return changes
        # It runs and cannot be renewed: it was broken or taken outside of the store.
        raise lost_lease(lease.holder, EndReason.BROKEN.value)

    def _renew_in_document(
        self,
        lease: Lease,
        since: int,
        info: MemberInfo | None,
        listing: GroupListing,
        elsewhere: Mapping[str, _ChangesElsewhere],
        cancelled: threading.Event,
        *,
        renewed: bool,
        document_only: bool,
    ) -> Changes:
        def step(context: StepContext) -> Changes:
            context.document.live(lease_with_digest(lease), context.now, context.wall)
            if not renewed:
                raise _NotRenewed("it runs")
            for group, changes in elsewhere.items():
                context.document.apply_changes_elsewhere(
                    lease.holder, group, changes.keys, changes.ended
                )
            told = context.document.renew(
                lease_with_digest(lease), since, info, context.now, context.wall
            )
            resources = [with_safe_break_time(each, context) for each in told.resources]
            for group, keys in context.document.changed_elsewhere(lease.holder, since).items():
                if group in elsewhere:
                    resources += [elsewhere[group].shown[key] for key in keys]
            return replace(told, resources=tuple(resources))

        return self._cache.change(
            listing.location,
            step,
            cancelled,
            # Without a listing only this holder is judged.
            liveness_of=lambda document: (
                {lease.holder} | (set() if document_only else document.live_holders())
            ),
            proven={lease.holder} if renewed else (),
            # What was not renewed may have expired since the listing.
            listing=listing if renewed else None,
            only_new_version=True,
        )

    def _renew_blob(
        self, location: LeaseLocation, lease: Lease, duration_s: float, cancelled: threading.Event
    ) -> bool:
        response = self._cache.container.lease(
            location.holder_blob(lease.holder), "renew", cancelled, lease_id=lease_id(lease.token)
        )
        if response.status == OK:
            self._note(lease, response.sent_s, duration_s)
            return True
        self._proofs.drop(lease.holder)
        return False

    def _changes_elsewhere(
        self, holder: str, group: str, cancelled: threading.Event
    ) -> _ChangesElsewhere:
        def changes(context: StepContext) -> _ChangesElsewhere:
            keys, ended = context.document.outsider_changes(holder)
            shown = [
                with_safe_break_time(each, context)
                for each in context.document.shown(keys, context.now)
            ]
            return _ChangesElsewhere(
                keys=keys, ended=ended, shown={each.key: each for each in shown}
            )

        return self._cache.read(LeaseLocation(group), changes, cancelled)

    # ------------------------------------------------------------ revoke

    def revoke(self, lease: Lease, cancelled: threading.Event, *, lapsed: bool = False) -> None:
        """End a lease."""
        location = LeaseLocation.of(lease.group, lease.holder)

        def end(context: StepContext) -> list[str] | None:
            row = context.document.lease_row(lease.holder)
            if row is None or row.lease.token != lease_with_digest(lease).token:
                return None
            context.document.revoke(
                lease_with_digest(lease), context.now, context.wall, lapsed=lapsed
            )
            return list(context.document.keys_elsewhere.get(lease.holder, ()))

        proven = self._proofs.of([(lease.holder, lease.token)])
        groups = self._cache.change(
            location, end, cancelled, liveness_of=lambda _: {lease.holder}, proven=proven
        )
        if groups is None:
            return
        for group in groups:
            self._cache.change(
                LeaseLocation(group),
                end,
                cancelled,
                liveness_of=lambda _: {lease.holder},
                proven=proven,
            )
        self._proofs.drop(lease.holder)
        self._look_schedule.forget(lease)
        self._cache.checkpoint_blobs.drop(location, lease.holder)
        blob, shown = location.holder_blob(lease.holder), lease_id(lease.token)
        if not self._cache.container.delete(blob, cancelled, lease_id=shown):
            self._cache.container.delete(blob, cancelled)

    def _now(self) -> ServiceTime | None:
        return service_time_now(self._cache.container.http_client, self._clock)

    def _note(self, lease: Lease, sent_s: float, duration_s: float) -> None:
        self._proofs.note(lease.holder, lease.token, sent_s=sent_s, duration_s=duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangesElsewhere:
    """Changes of a holder's keys in one other group."""

    keys: dict[str, int]
    ended: list[tuple[int, Term]]
    shown: dict[str, Resource]


class _NotRenewed(LeaseLost):
    """The lease could not be renewed, and the service does not say that it is over."""


def with_safe_break_time(resource: Resource, context: StepContext) -> Resource:
    """Shorten the time until a break, so that it is safe for any true time."""
    if resource.breaking_s is None:
        return resource
    return replace(resource, breaking_s=max(0.0, resource.breaking_s - context.time.slack_s))


def _known(document: GroupDocument, holder: str) -> tuple[float, list[str], dict[str, float]]:
    """Return a holder's lease duration (0 if it is over), its other groups, and all durations.

    The other groups are those that it has keys of; the durations are by member.
    """
    row = document.lease_row(holder)
    lives = row is not None and row.ended is None
    duration_s = row.lease.duration_s if row and lives else 0.0
    rows = [document.lease_row(each) for each in document.live_holders()]
    lengths_s = {
        each.lease.holder: each.lease.duration_s
        for each in rows
        if each is not None and document.is_member(each)
    }
    return duration_s, list(document.keys_elsewhere.get(holder, ())), lengths_s


def _living_blobs(document: GroupDocument) -> set[str]:
    rows = (document.lease_row(holder) for holder in document.live_holders())
    return {document.location.holder_blob(row.lease.holder) for row in rows if row is not None}
