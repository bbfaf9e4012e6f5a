"""The group documents: fetched when they have changed, and written by compare-and-set.

A step is a function of a ``StepContext``: the document, the time, and whose lease has expired. It
runs on the cached copy. A change is written only if the document has not been written since;
otherwise the step runs again on the new document. A result without a change is returned only if the
copy was found to be current during the call.

Before a step, each expired lease is *fenced*: its blob is deleted, which the service does only
while no lease runs on it. So a late renewal finds nothing, and what has ended stays ended. Before a
step that takes a key or a part of it from a holder is written, that holder's checkpoint blob is
sealed and merged into the document (``checkpoint_blobs``).

Old terms move to a history blob of their key, so that the document stays small. They are written
there first, and each is known by its epoch: doing it twice, or stopping in between, is safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from leasehold.azure.blob_store.checkpoint_blobs import CheckpointBlobs
from leasehold.azure.blob_store.container import encode_metadata
from leasehold.azure.blob_store.document_json import (
    at_wall,
    from_json,
    terms_from_json,
    terms_to_json,
    to_json,
)
from leasehold.azure.blob_store.group_document import GroupDocument
from leasehold.azure.blob_store.naming import UNGROUPED, LeaseLocation, history_blob
from leasehold.azure.blob_store.service_time import service_time_now, wall
from leasehold.clock import new_suffix
from leasehold.core.backoff import Backoff
from leasehold.errors import LeaseLost, StoreUnavailable, UnknownResource
from leasehold.stores.validation import HISTORY_LIMIT

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime

    from leasehold.azure.blob_store.checkpoint_blobs import CheckpointBlob
    from leasehold.azure.blob_store.container import Container, ListedBlob
    from leasehold.azure.blob_store.service_time import ServiceTime
    from leasehold.clock import Clock
    from leasehold.model import Checkpoint, Term
    from leasehold.stores.rows import ResourceRow

# Terms of a key in the document: up to the first number, and the second after archiving. Each write
# archives a share of the full keys, so that no call takes long. All keys get there in time, long
# before the oldest terms of one would be dropped.
_ARCHIVE_ABOVE_TERMS = 8
_TERMS_LEFT = 4
_SHARES = 32
_MAX_ARCHIVE_ATTEMPTS = 20


class HistoryArchive:
    """Moves old terms out of documents into history blobs, and reads them back."""

    def __init__(self, container: Container) -> None:
        self._container = container

    def archive_old_terms(self, document: GroupDocument, cancelled: threading.Event) -> bool:
        """Move the oldest terms of the fullest keys out; return whether any key was full."""
        full = [row for row in document.rows if len(row.terms) > _ARCHIVE_ABOVE_TERMS]
        full.sort(key=lambda row: len(row.terms), reverse=True)
        for row in full[: 1 + len(full) // _SHARES]:
            self._move(document, row, cancelled)
        return bool(full)

    def history(self, key: str, terms: list[Term], cancelled: threading.Event) -> list[Term]:
        """Return all terms of a key, oldest first; ``terms`` are those of the document."""
        found = self._container.get(history_blob(key), cancelled)
        older = terms_from_json(key, found.body) if found is not None else []
        return _joined(older, terms)

    def _move(self, document: GroupDocument, row: ResourceRow, cancelled: threading.Event) -> None:
        leaving, staying = row.terms[:-_TERMS_LEFT], row.terms[-_TERMS_LEFT:]
        name = history_blob(row.key)
        for _ in range(_MAX_ARCHIVE_ATTEMPTS):
            found = self._container.get(name, cancelled)
            older = terms_from_json(row.key, found.body) if found is not None else []
            body = terms_to_json(row.key, _joined(older, leaving)[-HISTORY_LIMIT:])
            etag = found.etag if found is not None else None
            if found is not None and found.body == body:
                break
            try:
                done = self._container.put(name, body, etag=etag, metadata={}, cancelled=cancelled)
            except StoreUnavailable:
                continue  # unknown: read again, and find out
            if done is not None:
                break
        else:
            raise StoreUnavailable(f"the history of {row.key} can not be written")
        row.terms[:] = staying
        document.archived.add(row.key)


def _joined(older: list[Term], etag: list[Term]) -> list[Term]:
    by_epoch = {term.epoch: term for term in older} | {term.epoch: term for term in etag}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


T = TypeVar("T")
HolderSelector = Callable[[GroupDocument], set[str]]

_MAX_ATTEMPTS = 60
_BACKOFF = Backoff(base_s=0.01, max_s=0.5)
_SPARES = 1
# Calls of one process take turns, so that they do not conflict; but none waits for longer.
_LOCK_TIMEOUT_S = 0.5


def no_holders(_document: GroupDocument) -> set[str]:
    """Select no holders: for steps that do not depend on anyone's lease."""
    return set()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A location as one listing shows it. ``etag`` is that of its document, if it exists."""

    location: LeaseLocation
    etag: str | None
    blobs: Mapping[str, ListedBlob]

    def runs(self, holder: str) -> bool:
        """Return whether the lease of this holder runs, by the service's clock."""
        found = self.blobs.get(self.location.holder_blob(holder))
        return found is not None and found.locked

    def shows(self, holder: str) -> bool:
        """Return whether this holder has a blob."""
        return self.location.holder_blob(holder) in self.blobs


@dataclass(slots=True)
class _CachedDocument:
    """A document as it was last read or written."""

    etag: str | None
    body: bytes
    modified_s: float = 0.0
    # Parsed from the body, and not in use.
    spare: deque[GroupDocument] = field(default_factory=lambda: deque(maxlen=_SPARES))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step works on."""

    document: GroupDocument
    time: ServiceTime
    expired: Collection[str]

    @property
    def now(self) -> float:
        """The earliest that the time can be."""
        return self.time.low_s

    @property
    def wall(self) -> datetime:
        """The wall-clock time; it never goes back in one document."""
        return wall(max(self.time.low_s, self.document.wall_s))


class DocumentCache:
    """All documents of one container. Safe to use from several threads."""

    def __init__(self, container: Container, *, clock: Clock, rng: random.Random) -> None:
        self.container = container
        self.archive = HistoryArchive(container)
        self.checkpoint_blobs = CheckpointBlobs(container)
        self._clock = clock
        self._rng = rng
        self._cached: dict[LeaseLocation, _CachedDocument] = {}
        self._last_seen: dict[
            LeaseLocation, _CachedDocument
        ] = {}  # also while it is being rewritten
        self._locks: dict[LeaseLocation, threading.Lock] = {}

    # ------------------------------------------------------------ read and change

    def change(
        self,
        location: LeaseLocation,
        step: Callable[[StepContext], T],
        cancelled: threading.Event,
        *,
        liveness_of: HolderSelector = no_holders,
        proven: Collection[str] = (),
        listing: GroupListing | None = None,
        only_new_version: bool = False,
        merge_blobs_of: Collection[str] = (),
    ) -> T:
        """Run a step on a document and write the result.

        ``liveness_of`` selects the holders on whose leases the step depends; the leases of
        ``proven`` are known to run. ``only_new_version``: write only if the version rose.
        ``merge_blobs_of``: the step reads the positions of these holders, so their checkpoint blobs
        are merged first.

        A ``LeaseLost`` or ``UnknownResource`` of the step is raised after its changes are written.
        """
        lock = self._locks.setdefault(location, threading.Lock())
        locked = lock.acquire(timeout=_LOCK_TIMEOUT_S)
        sealed: dict[str, CheckpointBlob] = {}
        try:
            for attempt in range(1, _MAX_ATTEMPTS + 1):
                first = attempt == 1
                cached, context, current = self._prepare(
                    location, liveness_of, proven, listing, cancelled, use_cached=first, fence=True
                )
                listing = None
                before = context.document.version
                context, result, merged = self._run_step(
                    cached, context, step, merge_blobs_of, sealed, cancelled
                )
                if only_new_version and context.document.version == before and not merged:
                    body = cached.body
                else:
                    body = self._serialize(context, cached, cancelled)
                done = (
                    current
                    if body == cached.body
                    else self._write(context, cached, body, cancelled)
                )
                if body == cached.body:
                    cached.spare.append(context.document)
                if done:
                    self.checkpoint_blobs.remove(location, merged, cancelled)
                    if isinstance(result, LeaseLost | UnknownResource):
                        raise result
                    return result
                if body != cached.body and cancelled.wait(_BACKOFF.pause_s(attempt, self._rng)):
                    break
        finally:
            if locked:
                lock.release()
        raise StoreUnavailable(
            f"too many others write the book of {location.group or location.holder} at the same "
            "time: checkpoint less often, or split the group"
        )

    def read(
        self,
        location: LeaseLocation,
        look_up: Callable[[StepContext], T],
        cancelled: threading.Event,
        *,
        liveness_of: HolderSelector = no_holders,
        listing: GroupListing | None = None,
    ) -> T:
        """Run a function on a current document, and change nothing."""
        if listing is None and liveness_of is not no_holders:
            listing = self.list_group(location, cancelled)
        cached, context, _ = self._prepare(
            location, liveness_of, (), listing, cancelled, use_cached=False, fence=False
        )
        context.document.apply_liveness(context.now, context.expired)
        result = look_up(context)
        cached.spare.append(context.document)
        return result

    def list_group(self, location: LeaseLocation, cancelled: threading.Event) -> GroupListing:
        """List a location: whose lease runs, and whether the document has changed."""
        blobs = self.container.list(location.path, cancelled)
        document = blobs.get(location.document_blob)
        return GroupListing(
            location=location, etag=document.etag if document else None, blobs=blobs
        )

    def poll_document(self, location: LeaseLocation, cancelled: threading.Event) -> GroupListing:
        """Fetch the document alone, which is cheaper: no lease is found to be over."""
        return GroupListing(location=location, etag=self._fetch(location, cancelled).etag, blobs={})

    def checkpoints(
        self, location: LeaseLocation, cancelled: threading.Event
    ) -> dict[str, Checkpoint]:
        """Return all positions, those in checkpoint blobs too."""
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            cached, context, _ = self._prepare(
                location, no_holders, (), None, cancelled, use_cached=False, fence=False
            )
            blobs, complete = self.checkpoint_blobs.all(location, context.document, cancelled)
            found = context.document.checkpoints_with(blobs)
            cached.spare.append(context.document)
            # A newer document has merged a missing blob; or else the blob was empty.
            if complete or self._fetch(location, cancelled).etag == cached.etag:
                return found
            if cancelled.wait(_BACKOFF.pause_s(attempt, self._rng)):
                break
        raise StoreUnavailable(f"the positions of {location.group} change hands all the time")

    @contextmanager
    def copy(self, location: LeaseLocation) -> Iterator[tuple[GroupDocument, datetime] | None]:
        """Lend the document as last seen, and the time; None if either is unknown. Read-only.

        The service is not asked: the copy may be old.
        """
        cached, now = (
            self._last_seen.get(location),
            service_time_now(self.container.http_client, self._clock),
        )
        if cached is None or now is None:
            yield None
            return
        document = self._document(location, cached)
        try:
            yield document, wall(max(now.low_s, document.wall_s))
        finally:
            cached.spare.append(document)

    # ------------------------------------------------------------ steps

    def _run_step(
        self,
        cached: _CachedDocument,
        context: StepContext,
        step: Callable[[StepContext], T],
        merge_blobs_of: Collection[str],
        sealed: dict[str, CheckpointBlob],
        cancelled: threading.Event,
    ) -> tuple[StepContext, T | LeaseLost | UnknownResource, dict[str, str]]:
        """Run a step with all checkpoint blobs merged that it needs; return also those, by holder.

        ``sealed`` are the blobs whose content is known by now, by name.
        """
        location = context.document.location
        sealed |= self.checkpoint_blobs.sealed(
            location, context.document, merge_blobs_of, cancelled
        )
        while True:
            merged = _merge_sealed(context.document, sealed)
            held_before = context.document.held_keys()
            result = _call_step(step, context)
            losing = context.document.holders_with_losses(held_before)
            if not losing:
                return context, result, merged
            # Run it again with their positions. If the document is old by now, it is not written.
            sealed |= self.checkpoint_blobs.sealed(location, context.document, losing, cancelled)
            context = replace(context, document=self._document(location, cached))

    def _prepare(
        self,
        location: LeaseLocation,
        liveness_of: HolderSelector,
        proven: Collection[str],
        listing: GroupListing | None,
        cancelled: threading.Event,
        *,
        use_cached: bool,
        fence: bool,
    ) -> tuple[_CachedDocument, StepContext, bool]:
        """Return the cached document, the context, and whether the document is current."""
        cached = self._cached.get(location)
        now = service_time_now(self.container.http_client, self._clock)
        current = False
        if listing is not None:
            cached, current = self._fetch_if_changed(location, listing.etag, cancelled), True
        elif cached is None or not use_cached or now is None:
            cached, current = self._fetch(location, cancelled), True
        document = self._document(location, cached)
        unproven = liveness_of(document) - set(proven)
        if listing is None and any(_is_live_member(document, each) for each in unproven):
            listing = self.list_group(location, cancelled)
            if listing.etag != cached.etag:
                cached.spare.append(document)
                cached = self._fetch_if_changed(location, listing.etag, cancelled)
                document = self._document(location, cached)
                unproven = liveness_of(document) - set(proven)
            current = True
        expired = self._expired(
            document, unproven, listing, cancelled, fence=fence, etag=cached.etag
        )
        now = service_time_now(self.container.http_client, self._clock)
        if now is None:  # the machine was suspended in between: ask again
            self._fetch(location, cancelled)
            now = service_time_now(self.container.http_client, self._clock)
        if now is None:
            raise StoreUnavailable(
                "the blob service does not say what time it is: see that nothing between here and "
                "there takes the Date from its answers"
            )
        return cached, StepContext(document=document, time=now, expired=expired), current

    def _expired(
        self,
        document: GroupDocument,
        names: Collection[str],
        listing: GroupListing | None,
        cancelled: threading.Event,
        *,
        fence: bool,
        etag: str | None,
    ) -> set[str]:
        listings = {listing.location: listing} if listing is not None else {}
        elsewhere = [each for each in names if not _is_live_member(document, each)]
        locations = {_location_of(document, each) for each in elsewhere} - {None}
        self._list_groups(
            [location for location in locations if location and location not in listings],
            listings,
            cancelled,
        )
        expired = set()
        for name in names:
            location = _location_of(document, name)
            if location is None or listings[location].runs(name):
                continue
            # A member that joined after the listing is not in it, and is alive.
            unseen = location == document.location and listing is not None and listing.etag != etag
            if fence:
                gone = self.container.delete(location.holder_blob(name), cancelled)
            else:
                gone = listings[location].shows(name) or not unseen
            if gone:
                expired.add(name)
        return expired

    def _list_groups(
        self,
        locations: Collection[LeaseLocation],
        listings: dict[LeaseLocation, GroupListing],
        cancelled: threading.Event,
    ) -> None:
        """List each group once, and all holders without a group in one request."""
        alone = [location for location in locations if not location.group]
        if len(alone) > 1:
            blobs = self.container.list(UNGROUPED, cancelled)
            listings |= {
                location: GroupListing(location=location, etag=None, blobs=blobs)
                for location in alone
            }
        for location in locations:
            if location not in listings:
                listings[location] = self.list_group(location, cancelled)

    # ------------------------------------------------------------ copies

    def _document(self, location: LeaseLocation, cached: _CachedDocument) -> GroupDocument:
        with suppress(IndexError):
            return cached.spare.pop()
        if not cached.body:
            return GroupDocument(location)
        return from_json(location, cached.body, modified_s=cached.modified_s)

    def _fetch_if_changed(
        self, location: LeaseLocation, etag: str | None, cancelled: threading.Event
    ) -> _CachedDocument:
        cached = self._cached.get(location)
        if cached is not None and cached.etag == etag:
            return cached
        if etag is None:
            return self._remember(location, None, b"")
        return self._fetch(location, cancelled)

    def _fetch(self, location: LeaseLocation, cancelled: threading.Event) -> _CachedDocument:
        cached = self._cached.get(location)
        known = cached.etag if cached is not None else None
        found = self.container.get(location.document_blob, cancelled, etag=known or "")
        if found is None:
            return self._remember(location, None, b"")
        if cached is not None and found.etag == known:
            return cached
        return self._remember(location, found.etag, found.body, found.modified_s)

    def _remember(
        self, location: LeaseLocation, etag: str | None, body: bytes, modified_s: float = 0.0
    ) -> _CachedDocument:
        cached = _CachedDocument(etag, body, modified_s)
        self._cached[location] = self._last_seen[location] = cached
        return cached

    # ------------------------------------------------------------ writing

    def _serialize(
        self, context: StepContext, cached: _CachedDocument, cancelled: threading.Event
    ) -> bytes:
        document, body = context.document, to_json(context.document)
        if body == cached.body or (
            not cached.body and body == to_json(GroupDocument(document.location))
        ):
            return cached.body
        if self.archive.archive_old_terms(document, cancelled):
            body = to_json(document)
        return at_wall(body, document, int(context.wall.timestamp()))

    def _write(
        self, context: StepContext, cached: _CachedDocument, body: bytes, cancelled: threading.Event
    ) -> bool:
        """Write the document unless it was written since; return whether it was written."""
        location, write_id = context.document.location, new_suffix()
        metadata = {
            "group": encode_metadata(location.group),
            "keys": str(context.document.shared_keys),
            "mark": write_id,
        }
        self._cached.pop(location, None)
        put = partial(
            self.container.put, location.document_blob, body, etag=cached.etag, metadata=metadata
        )
        try:
            etag = put(cancelled=cancelled)
        except StoreUnavailable:
            # Unknown: if the last write there is this one, it was done.
            found = self.container.get(location.document_blob, cancelled)
            if found is None or found.metadata.get("mark") != write_id:
                return False
            etag = found.etag
        if etag is None:
            return False
        if not context.document.new_breaks:  # otherwise the time of the write must be read
            self._remember(location, etag, body).spare.append(context.document)
        return True


def _call_step(
    step: Callable[[StepContext], T], context: StepContext
) -> T | LeaseLost | UnknownResource:
    context.document.apply_liveness(context.now, context.expired)
    try:
        return step(context)
    except (LeaseLost, UnknownResource) as refusal:
        # Raised after what has expired is recorded, and if the document is current.
        return refusal


def _merge_sealed(document: GroupDocument, sealed: Mapping[str, CheckpointBlob]) -> dict[str, str]:
    """Merge sealed blobs into a document that names them; return those, by holder."""
    if not sealed:
        return {}
    blobs = {
        each: document.location.checkpoint_blob(each, name)
        for each, name in document.blob_names.items()
    }
    named = {each: name for each, name in document.blob_names.items() if blobs[each] in sealed}
    document.merge_blobs({each: sealed[blobs[each]] for each in named})
    return named


def _is_live_member(document: GroupDocument, holder: str) -> bool:
    row = document.lease_row(holder)
    return row is not None and row.ended is None and document.is_member(row)


def _location_of(document: GroupDocument, holder: str) -> LeaseLocation | None:
    """Return where the lease of a known holder is stored; None if it is over or unknown."""
    row = document.lease_row(holder)
    if row is None or row.ended is not None:
        return None
    return LeaseLocation.of(row.lease.group, holder)
