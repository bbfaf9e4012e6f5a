"""Leases on blobs: grant, renew and revoke, each as calls to the service and a step on the book.

A holder has one blob with one real lease. To renew is to renew that lease, whatever the holder
owns. A lease is over when the service says so, and ended when a book says so; between the two the
blob is removed, so that nothing can bring the lease back.

How often a member looks who is alive.

A listing costs twelve times as much as a reading of the book that has not changed, and whoever
finds somebody dead tells all the others by the book. So the members of a group of partitions take
turns: of four each looks in every second third of a lease, of six and more in every third one, in
an order that follows from their names and the service's clock. Up to three, and in all other
groups, each renewal looks. So does one that has not looked for nearly a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leasehold.azure.blob_store.container import CREATED, NOT_FOUND, OK
from leasehold.azure.blob_store.naming import ALONE, LeaseLocation, lease_id, token_digest
from leasehold.azure.blob_store.service_time import moment
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.model import EndReason, Lease
from leasehold.names import PARTITION
from leasehold.stores.validation import lost_lease

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from leasehold.azure.blob_store.document_cache import DocumentCache, DocumentStep, GroupListing
    from leasehold.azure.blob_store.group_document import GroupDocument
    from leasehold.azure.blob_store.service_time import LeaseProofs, ServiceTime
    from leasehold.clock import Clock
    from leasehold.model import Changes, MemberInfo, Resource, Term

_IN_A_TURN, _MAX_TURNS = 2, 3  # two look in each turn: one of them may be the dead one
_SLOTS = 3  # of a lease: members renew about so often
_LONGEST = 0.95
_MAX = 10_000


def turns(members: int) -> int:
    """In one of how many turns a member looks, in a group of so many."""
    return max(1, min(members // _IN_A_TURN, _MAX_TURNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastLook:
    """When a holder looked last, and the company that it found itself in."""

    looked_s: float
    slot: int
    rank: int
    turns: int
    shortest_s: float


class LookSchedule:
    """The turns of each holder of this process."""

    def __init__(self, clock: Clock) -> None:
        """Nobody has looked yet."""
        self._clock = clock
        self._seen: dict[tuple[str, str], _LastLook] = {}

    def due(self, lease: Lease, now: ServiceTime | None) -> bool:
        """Whether this renewal has to look; ``now`` by the service's clock."""
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
        """It has looked in a renewal that began then.

        ``leases_s`` are the members of its group, with the lengths of their leases.
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
        """It is over."""
        self._seen.pop((lease.group, lease.holder), None)


def _slot(now: ServiceTime, shortest_s: float) -> int:
    return int(now.low_s * _SLOTS / shortest_s)


_ROUNDS = 4
_LOOKS = 3
_MAX_SWEPT = 4
# A book of somebody alone that was not written for so long, and whose lease does not run, is old.
_OLD_S = 2 * 3600.0


def bare(lease: Lease) -> Lease:
    """As books know it: with the digest of its token."""
    return replace(lease, token=token_digest(lease.token))


class BlobLeases:
    """The three calls about leases, by threads."""

    def __init__(self, shelf: DocumentCache, proofs: LeaseProofs, clock: Clock) -> None:
        """Over the books and the blobs of one container."""
        self._shelf = shelf
        self._proofs = proofs
        self._clock = clock
        self._watch = LookSchedule(clock)

    # ------------------------------------------------------------ grant

    def grant(self, lease: Lease, info: MemberInfo, given_up: threading.Event) -> Lease:
        """See ``Store.grant``."""
        home = LeaseLocation.of(lease.group, lease.holder)
        look = self._shelf.look(home, given_up)
        known = self._shelf.read(
            home, lambda turn: turn.book.lease_row(lease.holder), given_up, look=look
        )
        runs = True
        if known is None:
            self._acquire(home, lease, given_up)
        elif look.runs(lease.holder) and known.ended is None:
            runs = self._renew_blob(home, lease, known.lease.duration_s, given_up)
        granted = self._shelf.change(
            home,
            lambda turn: turn.book.grant(bare(lease), info, turn.now, turn.wall),
            given_up,
            concerns=lambda _: {lease.holder},
            proven=self._proofs.of([(lease.holder, lease.token)]),
        )
        if not runs:
            # It is in the book, and yet not ours to renew: somebody has broken it, past all books.
            raise lost_lease(lease.holder, EndReason.BROKEN.value)
        self._sweep(home, look, given_up)
        return replace(granted, token=lease.token)

    def _acquire(self, home: LeaseLocation, lease: Lease, given_up: threading.Event) -> None:
        blob = home.holder_blob(lease.holder)
        for _ in range(_ROUNDS):
            try:
                # That it is there already is no refusal: the call may be a repetition.
                self._shelf.container.put(blob, b"", etag=None, metadata={}, given_up=given_up)
            except StoreUnavailable:
                if given_up.is_set():
                    raise
            answer = self._shelf.container.lease(
                blob,
                "acquire",
                given_up,
                proposed_lease_id=lease_id(lease.token),
                lease_duration=int(lease.duration_s),
            )
            if answer.status == CREATED:
                self._note(lease, answer.sent_s, lease.duration_s)
                return
            if answer.status != NOT_FOUND:
                raise lost_lease(lease.holder, "holder_id_in_use")
        raise StoreUnavailable(f"the blob of {lease.holder} does not stay where it is put")

    def _sweep(self, home: LeaseLocation, look: GroupListing, given_up: threading.Event) -> None:
        """Remove blobs that nobody needs: of members that never came into the book, or ended."""
        start = home.holder_blob("")
        over = {
            name
            for name, blob in look.blobs.items()
            if name.startswith(start) and blob.lease_state == "expired"
        }
        if over:
            over -= self._shelf.read(home, lambda turn: _living_blobs(turn.book), given_up)
        self._shelf.slips.sweep(
            home,
            lambda: self._shelf.read(home, lambda turn: dict(turn.book.slips), given_up),
            given_up,
        )
        if not home.group:
            over |= self._old_loners(given_up)
        for name in sorted(over)[:_MAX_SWEPT]:
            self._shelf.container.delete(name, given_up)

    def _old_loners(self, given_up: threading.Event) -> set[str]:
        """The blobs of holders without a group that ended long ago: nobody else would look."""
        blobs = self._shelf.container.list(ALONE, given_up).values()
        latest = self._shelf.container.wire.latest
        before_s = latest.date_s - _OLD_S if latest is not None else 0.0
        start = {blob.name: "/".join(blob.name.split("/")[:2]) for blob in blobs}
        busy = {start[blob.name] for blob in blobs if blob.locked or blob.modified_s >= before_s}
        return {name for name, place in start.items() if place not in busy}

    # ------------------------------------------------------------ renew

    def renew(
        self, lease: Lease, since: int, info: MemberInfo | None, given_up: threading.Event
    ) -> Changes:
        """See ``Store.renew``; not every renewal looks who else is alive: see ``watch``."""
        home = LeaseLocation.of(lease.group, lease.holder)
        began_s = self._clock.boottime_s()
        for tried in range(1 + _LOOKS):
            alone = tried == 0 and not self._watch.due(lease, self._now())
            look = (self._shelf.glance if alone else self._shelf.look)(home, given_up)
            duration_s, groups, lengths_s = self._shelf.read(
                home, lambda turn: _known(turn.book, lease.holder), given_up, look=look
            )
            # What the book has ended is not kept alive for the books of other groups.
            runs = duration_s > 0 and (alone or look.runs(lease.holder))
            renewed = runs and self._renew_blob(home, lease, duration_s, given_up)
            if alone and not renewed:
                continue  # why is seen by a look
            abroad = {group: self._news_abroad(lease.holder, group, given_up) for group in groups}
            try:
                heard = self._heard(
                    lease, since, info, look, abroad, given_up, renewed=renewed, alone=alone
                )
            except _NotRenewed:
                continue  # it was not renewed, and yet it runs: look once more
            if not alone:
                self._watch.looked(lease, lengths_s, self._now(), began_s=began_s)
            return heard
        # It runs and is not ours to renew: somebody has broken or taken it, past all books.
        raise lost_lease(lease.holder, EndReason.BROKEN.value)

    def _heard(
        self,
        lease: Lease,
        since: int,
        info: MemberInfo | None,
        look: GroupListing,
        abroad: Mapping[str, _News],
        given_up: threading.Event,
        *,
        renewed: bool,
        alone: bool,
    ) -> Changes:
        def step(turn: DocumentStep) -> Changes:
            turn.book.live(bare(lease), turn.now, turn.wall)
            if not renewed:
                raise _NotRenewed("it runs")
            for group, news in abroad.items():
                turn.book.hear(lease.holder, group, news.keys, news.ended)
            told = turn.book.renew(bare(lease), since, info, turn.now, turn.wall)
            resources = [cautious(each, turn) for each in told.resources]
            for group, keys in turn.book.news_abroad(lease.holder, since).items():
                if group in abroad:
                    resources += [abroad[group].shown[key] for key in keys]
            return replace(told, resources=tuple(resources))

        return self._shelf.change(
            look.home,
            step,
            given_up,
            # Without a look nobody but ourselves is judged.
            concerns=lambda book: {lease.holder} | (set() if alone else book.everybody()),
            proven={lease.holder} if renewed else (),
            # What was not renewed may be over since it was looked at.
            look=look if renewed else None,
            told_by_version=True,
        )

    def _renew_blob(
        self, home: LeaseLocation, lease: Lease, duration_s: float, given_up: threading.Event
    ) -> bool:
        answer = self._shelf.container.lease(
            home.holder_blob(lease.holder), "renew", given_up, lease_id=lease_id(lease.token)
        )
        if answer.status == OK:
            self._note(lease, answer.sent_s, duration_s)
            return True
        self._proofs.drop(lease.holder)
        return False

    def _news_abroad(self, holder: str, group: str, given_up: threading.Event) -> _News:
        def news(turn: DocumentStep) -> _News:
            keys, ended = turn.book.news_for(holder)
            shown = [cautious(each, turn) for each in turn.book.shown(keys, turn.now)]
            return _News(keys=keys, ended=ended, shown={each.key: each for each in shown})

        return self._shelf.read(LeaseLocation(group), news, given_up)

    # ------------------------------------------------------------ revoke

    def revoke(self, lease: Lease, given_up: threading.Event) -> None:
        """See ``Store.revoke``."""
        home = LeaseLocation.of(lease.group, lease.holder)

        def end(turn: DocumentStep) -> list[str] | None:
            row = turn.book.lease_row(lease.holder)
            if row is None or row.lease.token != bare(lease).token:
                return None
            turn.book.revoke(bare(lease), turn.now, turn.wall)
            return list(turn.book.abroad.get(lease.holder, ()))

        proven = self._proofs.of([(lease.holder, lease.token)])
        groups = self._shelf.change(
            home, end, given_up, concerns=lambda _: {lease.holder}, proven=proven
        )
        if groups is None:
            return
        for group in groups:
            self._shelf.change(
                LeaseLocation(group),
                end,
                given_up,
                concerns=lambda _: {lease.holder},
                proven=proven,
            )
        self._proofs.drop(lease.holder)
        self._watch.forget(lease)
        self._shelf.slips.drop(home, lease.holder)
        blob, shown = home.holder_blob(lease.holder), lease_id(lease.token)
        if not self._shelf.container.delete(blob, given_up, lease_id=shown):
            self._shelf.container.delete(blob, given_up)

    def _now(self) -> ServiceTime | None:
        return moment(self._shelf.container.wire, self._clock)

    def _note(self, lease: Lease, sent_s: float, duration_s: float) -> None:
        self._proofs.note(lease.holder, lease.token, sent_s=sent_s, duration_s=duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """What a holder has to hear of its keys in one other group."""

    keys: dict[str, int]
    ended: list[tuple[int, Term]]
    shown: dict[str, Resource]


class _NotRenewed(LeaseLost):
    """The lease could not be renewed, and the service does not say that it is over."""


def cautious(resource: Resource, turn: DocumentStep) -> Resource:
    """The time until a break is told so short that it is true whatever the exact time is."""
    if resource.breaking_s is None:
        return resource
    return replace(resource, breaking_s=max(0.0, resource.breaking_s - turn.moment.slack_s))


def _known(book: GroupDocument, holder: str) -> tuple[float, list[str], dict[str, float]]:
    """How long the lease of a holder lasts, 0 if it is over; and the company that it is in.

    That is the other groups that it has keys of, and how long the lease of each member lasts.
    """
    row = book.lease_row(holder)
    lives = row is not None and row.ended is None
    duration_s = row.lease.duration_s if row and lives else 0.0
    rows = [book.lease_row(each) for each in book.everybody()]
    lengths_s = {
        each.lease.holder: each.lease.duration_s
        for each in rows
        if each is not None and book.is_member(each)
    }
    return duration_s, list(book.abroad.get(holder, ())), lengths_s


def _living_blobs(book: GroupDocument) -> set[str]:
    rows = (book.lease_row(holder) for holder in book.everybody())
    return {book.home.holder_blob(row.lease.holder) for row in rows if row is not None}
