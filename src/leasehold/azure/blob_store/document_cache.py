"""The books: read when they have changed, and written by compare-and-set.

A step is a function of a ``DocumentStep``: the book, the time, and who is alive by the service's
word. It is taken on the copy that we have; what it changed is written only if nobody has written
since, and else it is taken again on what is there now. An answer that changed nothing is given only
if the copy was found to be current during the call. Before a step, each lease that is over is
*fenced*: its blob is removed, which the service does only while no lease runs on it. A late renewal
then finds nothing to renew: what was ended stays ended. And before a step that takes a key, or a
part of the right to it, from somebody is written, the slip of that holder is sealed and taken into
the book (see ``slips``).

Old terms: they leave the book for a blob of their key, so that the book stays small.

They are written there before the book without them is, and each is known by its epoch: whoever
does it twice, or stops in between, has changed nothing.
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
from leasehold.azure.blob_store.container import in_metadata
from leasehold.azure.blob_store.document_json import (
    at_wall,
    from_json,
    terms_from_json,
    terms_to_json,
    to_json,
)
from leasehold.azure.blob_store.group_document import GroupDocument
from leasehold.azure.blob_store.naming import ALONE, LeaseLocation, history_blob
from leasehold.azure.blob_store.service_time import moment, wall
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

# A key has up to so many terms in the book, and fewer after a spill. Only a share of the full keys
# at a time, so that no call takes long; but all have had their turn after so many writes, long
# before one has so many terms that the oldest are dropped.
_MANY = 8
_FEW = 4
_SHARES = 32
_ARCHIVE_TRIES = 20


class HistoryArchive:
    """Moves old terms out of books, and finds them again."""

    def __init__(self, container: Container) -> None:
        """Move nothing yet."""
        self._container = container

    def relieve(self, book: GroupDocument, given_up: threading.Event) -> bool:
        """Move the oldest terms of the fullest keys out, if there are many; whether there were."""
        full = [row for row in book.rows if len(row.terms) > _MANY]
        full.sort(key=lambda row: len(row.terms), reverse=True)
        for row in full[: 1 + len(full) // _SHARES]:
            self._move(book, row, given_up)
        return bool(full)

    def history(self, key: str, terms: list[Term], given_up: threading.Event) -> list[Term]:
        """All terms that are kept of a key, oldest first; ``terms`` are those of the book."""
        found = self._container.get(history_blob(key), given_up)
        older = terms_from_json(key, found.body) if found is not None else []
        return _joined(older, terms)

    def _move(self, book: GroupDocument, row: ResourceRow, given_up: threading.Event) -> None:
        leaving, staying = row.terms[:-_FEW], row.terms[-_FEW:]
        name = history_blob(row.key)
        for _ in range(_ARCHIVE_TRIES):
            found = self._container.get(name, given_up)
            older = terms_from_json(row.key, found.body) if found is not None else []
            body = terms_to_json(row.key, _joined(older, leaving)[-HISTORY_LIMIT:])
            etag = found.etag if found is not None else None
            if found is not None and found.body == body:
                break
            try:
                done = self._container.put(name, body, etag=etag, metadata={}, given_up=given_up)
            except StoreUnavailable:
                continue  # unknown: read again, and find out
            if done is not None:
                break
        else:
            raise StoreUnavailable(f"the history of {row.key} can not be written")
        row.terms[:] = staying
        book.spilled.add(row.key)


def _joined(older: list[Term], newer: list[Term]) -> list[Term]:
    by_epoch = {term.epoch: term for term in older} | {term.epoch: term for term in newer}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


T = TypeVar("T")
Concerns = Callable[[GroupDocument], set[str]]

_TRIES = 60
_LADDER = Backoff(base_s=0.01, max_s=0.5)
_SPARES = 1
# Calls of one process take turns, so as not to be in each other's way, but nobody waits for long.
_COURTESY_S = 0.5


def nobody(_book: GroupDocument) -> set[str]:
    """For steps that do not depend on anybody's life."""
    return set()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A home as one listing shows it. ``etag`` is that of its book, if there is one."""

    home: LeaseLocation
    etag: str | None
    blobs: Mapping[str, ListedBlob]

    def runs(self, holder: str) -> bool:
        """Whether the lease of this holder runs, by the service's clock."""
        found = self.blobs.get(self.home.holder_blob(holder))
        return found is not None and found.locked

    def shows(self, holder: str) -> bool:
        """Whether there is a blob of this holder at all."""
        return self.home.holder_blob(holder) in self.blobs


@dataclass(slots=True)
class _CachedDocument:
    """A book as it was last read or written."""

    etag: str | None
    body: bytes
    modified_s: float = 0.0
    # Read from the body already, and not in use.
    spare: deque[GroupDocument] = field(default_factory=lambda: deque(maxlen=_SPARES))


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentStep:
    """What a step works on."""

    book: GroupDocument
    moment: ServiceTime
    dead: Collection[str]

    @property
    def now(self) -> float:
        """It is not earlier than this."""
        return self.moment.low_s

    @property
    def wall(self) -> datetime:
        """The same for people; it never goes back in one book."""
        return wall(max(self.moment.low_s, self.book.wall_s))


class DocumentCache:
    """All books of one container. Safe to use from several threads."""

    def __init__(self, container: Container, *, clock: Clock, rng: random.Random) -> None:
        """Know nothing yet."""
        self.container = container
        self.spill = HistoryArchive(container)
        self.slips = CheckpointBlobs(container)
        self._clock = clock
        self._rng = rng
        self._kept: dict[LeaseLocation, _CachedDocument] = {}
        self._last: dict[LeaseLocation, _CachedDocument] = {}  # also while it is written anew
        self._turns: dict[LeaseLocation, threading.Lock] = {}

    # ------------------------------------------------------------ the two ways

    def change(
        self,
        home: LeaseLocation,
        step: Callable[[DocumentStep], T],
        given_up: threading.Event,
        *,
        concerns: Concerns = nobody,
        proven: Collection[str] = (),
        look: GroupListing | None = None,
        told_by_version: bool = False,
        folds: Collection[str] = (),
    ) -> T:
        """Take a step on a book and write it down.

        ``concerns`` names those on whose life the step depends, and ``proven`` those of them that
        are known to live. ``told_by_version``: nothing is worth writing unless the version rose.
        ``folds``: the step looks at the positions of these, so that their slips are taken in first.

        Raises:
            LeaseLost: the step says so; what time has ended is written down all the same.
            UnknownResource: the step says so.
            StoreUnavailable: no answer, or too many others write at the same time.
        """
        turns = self._turns.setdefault(home, threading.Lock())
        in_turn = turns.acquire(timeout=_COURTESY_S)
        sealed: dict[str, CheckpointBlob] = {}
        try:
            for tried in range(1, _TRIES + 1):
                first = tried == 1
                kept, turn, current = self._turn(
                    home, concerns, proven, look, given_up, trust=first, fence=True
                )
                look = None
                before = turn.book.version
                turn, answer, folded = self._stepped(kept, turn, step, folds, sealed, given_up)
                if told_by_version and turn.book.version == before and not folded:
                    body = kept.body
                else:
                    body = self._written_out(turn, kept, given_up)
                done = current if body == kept.body else self._write(turn, kept, body, given_up)
                if body == kept.body:
                    kept.spare.append(turn.book)
                if done:
                    self.slips.remove(home, folded, given_up)
                    if isinstance(answer, LeaseLost | UnknownResource):
                        raise answer
                    return answer
                if body != kept.body and given_up.wait(_LADDER.pause_s(tried, self._rng)):
                    break
        finally:
            if in_turn:
                turns.release()
        raise StoreUnavailable(
            f"too many others write the book of {home.group or home.holder} at the same time: "
            "checkpoint less often, or split the group"
        )

    def read(
        self,
        home: LeaseLocation,
        look_up: Callable[[DocumentStep], T],
        given_up: threading.Event,
        *,
        concerns: Concerns = nobody,
        look: GroupListing | None = None,
    ) -> T:
        """Answer from a book that is current, and change nothing."""
        if look is None and concerns is not nobody:
            look = self.look(home, given_up)
        kept, turn, _ = self._turn(home, concerns, (), look, given_up, trust=False, fence=False)
        turn.book.judge_alive(turn.now, turn.dead)
        answer = look_up(turn)
        kept.spare.append(turn.book)
        return answer

    def look(self, home: LeaseLocation, given_up: threading.Event) -> GroupListing:
        """One listing: who is alive in a home, and whether its book has changed."""
        blobs = self.container.list(home.path, given_up)
        book = blobs.get(home.book)
        return GroupListing(home=home, etag=book.etag if book else None, blobs=blobs)

    def glance(self, home: LeaseLocation, given_up: threading.Event) -> GroupListing:
        """The book alone, which is cheaper: nobody is found to be dead."""
        return GroupListing(home=home, etag=self._fetched(home, given_up).etag, blobs={})

    def checkpoints(self, home: LeaseLocation, given_up: threading.Event) -> dict[str, Checkpoint]:
        """All positions, those on slips too.

        Raises:
            StoreUnavailable: no answer, or the slips are sealed again and again.
        """
        for tried in range(1, _TRIES + 1):
            kept, turn, _ = self._turn(home, nobody, (), None, given_up, trust=False, fence=False)
            slips, complete = self.slips.all(home, turn.book, given_up)
            found = turn.book.with_slips(slips)
            kept.spare.append(turn.book)
            # One that is gone was taken in by a newer book; else there was nothing on it.
            if complete or self._fetched(home, given_up).etag == kept.etag:
                return found
            if given_up.wait(_LADDER.pause_s(tried, self._rng)):
                break
        raise StoreUnavailable(f"the positions of {home.group} change hands all the time")

    @contextmanager
    def copy(self, home: LeaseLocation) -> Iterator[tuple[GroupDocument, datetime] | None]:
        """The book as it was last seen, and the time; None if either is not known. Not to change.

        Nothing is asked of the service: it may be old.
        """
        kept, now = self._last.get(home), moment(self.container.wire, self._clock)
        if kept is None or now is None:
            yield None
            return
        book = self._book(home, kept)
        try:
            yield book, wall(max(now.low_s, book.wall_s))
        finally:
            kept.spare.append(book)

    # ------------------------------------------------------------ a turn

    def _stepped(
        self,
        kept: _CachedDocument,
        turn: DocumentStep,
        step: Callable[[DocumentStep], T],
        folds: Collection[str],
        sealed: dict[str, CheckpointBlob],
        given_up: threading.Event,
    ) -> tuple[DocumentStep, T | LeaseLost | UnknownResource, dict[str, str]]:
        """Take a step with all slips taken in that it needs; by holder, those that it took in.

        ``sealed`` are those that are known by now, by their blobs.
        """
        home = turn.book.home
        sealed |= self.slips.sealed(home, turn.book, folds, given_up)
        while True:
            folded = _folded(turn.book, sealed)
            tenures = turn.book.tenures()
            answer = _taken(step, turn)
            loose = turn.book.loosened(tenures)
            if not loose:
                return turn, answer, folded
            # Once more, with what is on them. If the book is old by now, it is not written.
            sealed |= self.slips.sealed(home, turn.book, loose, given_up)
            turn = replace(turn, book=self._book(home, kept))

    def _turn(
        self,
        home: LeaseLocation,
        concerns: Concerns,
        proven: Collection[str],
        look: GroupListing | None,
        given_up: threading.Event,
        *,
        trust: bool,
        fence: bool,
    ) -> tuple[_CachedDocument, DocumentStep, bool]:
        """The book, who is dead, and whether the book was found to be current in this call."""
        kept = self._kept.get(home)
        now = moment(self.container.wire, self._clock)
        current = False
        if look is not None:
            kept, current = self._as_listed(home, look.etag, given_up), True
        elif kept is None or not trust or now is None:
            kept, current = self._fetched(home, given_up), True
        book = self._book(home, kept)
        unproven = concerns(book) - set(proven)
        if look is None and any(_is_here(book, each) for each in unproven):
            look = self.look(home, given_up)
            if look.etag != kept.etag:
                kept.spare.append(book)
                kept = self._as_listed(home, look.etag, given_up)
                book = self._book(home, kept)
                unproven = concerns(book) - set(proven)
            current = True
        dead = self._dead(book, unproven, look, given_up, fence=fence, newer=kept.etag)
        now = moment(self.container.wire, self._clock)
        if now is None:  # the machine slept in between: look once more
            self._fetched(home, given_up)
            now = moment(self.container.wire, self._clock)
        if now is None:
            raise StoreUnavailable(
                "the blob service does not say what time it is: see that nothing between here and "
                "there takes the Date from its answers"
            )
        return kept, DocumentStep(book=book, moment=now, dead=dead), current

    def _dead(
        self,
        book: GroupDocument,
        names: Collection[str],
        look: GroupListing | None,
        given_up: threading.Event,
        *,
        fence: bool,
        newer: str | None,
    ) -> set[str]:
        looks = {look.home: look} if look is not None else {}
        abroad = [each for each in names if not _is_here(book, each)]
        homes = {_home_of(book, each) for each in abroad} - {None}
        self._look_at([home for home in homes if home and home not in looks], looks, given_up)
        dead = set()
        for name in names:
            home = _home_of(book, name)
            if home is None or looks[home].runs(name):
                continue
            # A member that came after the listing is not in it, and lives.
            unseen = home == book.home and look is not None and look.etag != newer
            if fence:
                gone = self.container.delete(home.holder_blob(name), given_up)
            else:
                gone = looks[home].shows(name) or not unseen
            if gone:
                dead.add(name)
        return dead

    def _look_at(
        self,
        homes: Collection[LeaseLocation],
        looks: dict[LeaseLocation, GroupListing],
        given_up: threading.Event,
    ) -> None:
        """One listing for each group, and one for all that are alone if they are several."""
        alone = [home for home in homes if not home.group]
        if len(alone) > 1:
            blobs = self.container.list(ALONE, given_up)
            looks |= {home: GroupListing(home=home, etag=None, blobs=blobs) for home in alone}
        for home in homes:
            if home not in looks:
                looks[home] = self.look(home, given_up)

    # ------------------------------------------------------------ copies

    def _book(self, home: LeaseLocation, kept: _CachedDocument) -> GroupDocument:
        with suppress(IndexError):
            return kept.spare.pop()
        if not kept.body:
            return GroupDocument(home)
        return from_json(home, kept.body, modified_s=kept.modified_s)

    def _as_listed(
        self, home: LeaseLocation, etag: str | None, given_up: threading.Event
    ) -> _CachedDocument:
        kept = self._kept.get(home)
        if kept is not None and kept.etag == etag:
            return kept
        if etag is None:
            return self._keep(home, None, b"")
        return self._fetched(home, given_up)

    def _fetched(self, home: LeaseLocation, given_up: threading.Event) -> _CachedDocument:
        kept = self._kept.get(home)
        known = kept.etag if kept is not None else None
        found = self.container.get(home.book, given_up, etag=known or "")
        if found is None:
            return self._keep(home, None, b"")
        if kept is not None and found.etag == known:
            return kept
        return self._keep(home, found.etag, found.body, found.modified_s)

    def _keep(
        self, home: LeaseLocation, etag: str | None, body: bytes, modified_s: float = 0.0
    ) -> _CachedDocument:
        kept = _CachedDocument(etag, body, modified_s)
        self._kept[home] = self._last[home] = kept
        return kept

    # ------------------------------------------------------------ writing

    def _written_out(
        self, turn: DocumentStep, kept: _CachedDocument, given_up: threading.Event
    ) -> bytes:
        book, body = turn.book, to_json(turn.book)
        if body == kept.body or (not kept.body and body == to_json(GroupDocument(book.home))):
            return kept.body
        if self.spill.relieve(book, given_up):
            body = to_json(book)
        return at_wall(body, book, int(turn.wall.timestamp()))

    def _write(
        self, turn: DocumentStep, kept: _CachedDocument, body: bytes, given_up: threading.Event
    ) -> bool:
        """Write the book unless somebody has written since; whether it was written."""
        home, mark = turn.book.home, new_suffix()
        metadata = {
            "group": in_metadata(home.group),
            "keys": str(turn.book.shared_keys),
            "mark": mark,
        }
        self._kept.pop(home, None)
        put = partial(self.container.put, home.book, body, etag=kept.etag, metadata=metadata)
        try:
            etag = put(given_up=given_up)
        except StoreUnavailable:
            # Unknown: if the last word in it is ours, it was done.
            found = self.container.get(home.book, given_up)
            if found is None or found.metadata.get("mark") != mark:
                return False
            etag = found.etag
        if etag is None:
            return False
        if not turn.book.fresh:  # else when it was written must be read
            self._keep(home, etag, body).spare.append(turn.book)
        return True


def _taken(
    step: Callable[[DocumentStep], T], turn: DocumentStep
) -> T | LeaseLost | UnknownResource:
    turn.book.judge_alive(turn.now, turn.dead)
    try:
        return step(turn)
    except (LeaseLost, UnknownResource) as refusal:
        # To be said when what time has ended is written down, and if the book is current.
        return refusal


def _folded(book: GroupDocument, sealed: Mapping[str, CheckpointBlob]) -> dict[str, str]:
    """Take sealed slips into a book that names them; by holder, those it named."""
    if not sealed:
        return {}
    blobs = {each: book.home.slip_blob(each, name) for each, name in book.slips.items()}
    named = {each: name for each, name in book.slips.items() if blobs[each] in sealed}
    book.fold({each: sealed[blobs[each]] for each in named})
    return named


def _is_here(book: GroupDocument, holder: str) -> bool:
    row = book.lease_row(holder)
    return row is not None and row.ended is None and book.is_member(row)


def _home_of(book: GroupDocument, holder: str) -> LeaseLocation | None:
    """Where the lease of a holder that the book knows is kept; None if it is over, or unknown."""
    row = book.lease_row(holder)
    if row is None or row.ended is not None:
        return None
    return LeaseLocation.of(row.lease.group, holder)
