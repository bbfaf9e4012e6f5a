"""Keys on blobs: every other call of the contract, as steps on the books of the keys' groups.

Keys of one group are one step and one write. Keys of several groups are one step for each group.

Checkpoints: on the slip of their holder where it may write there, and else in the book.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from leasehold.azure.blob_store.blob_leases import bare, cautious
from leasehold.azure.blob_store.checkpoint_blobs import CheckpointBlob, fits
from leasehold.azure.blob_store.container import from_metadata
from leasehold.azure.blob_store.naming import GROUPS, LeaseLocation, bare_ownership, part
from leasehold.model import Checkpoint
from leasehold.names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from leasehold.azure.blob_store.document_cache import Concerns, DocumentCache, DocumentStep
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

# Who writes positions of one term a third time within so long is given a slip. Who writes once or
# twice in each term, as jobs do, would only have to give it back.
_SOON_S = 60.0
_OFTEN = 2
_MAX = 10_000
# Calls of one holder that go by the book take turns, but nobody waits for long.
_COURTESY_S = 2.0
_Term: TypeAlias = "tuple[str, int]"  # a key and an epoch


class CheckpointCalls:
    """Writes positions, by threads. All marks of a call are of one group."""

    def __init__(self, shelf: DocumentCache, proofs: LeaseProofs, clock: Clock) -> None:
        """Over the books and the slips of one container."""
        self._shelf = shelf
        self._proofs = proofs
        self._clock = clock
        self._written_s: dict[tuple[LeaseLocation, str], dict[_Term, list[float]]] = {}
        self._turns: dict[tuple[LeaseLocation, str], threading.Lock] = {}

    def checkpoint(
        self, home: LeaseLocation, marks: Sequence[CheckpointWrite], given_up: threading.Event
    ) -> Mapping[str, Refusal]:
        """See ``Store.checkpoint``."""
        bare = [replace(each, ownership=bare_ownership(each.ownership)) for each in marks]
        holders = {each.ownership.holder for each in marks}
        proven = self._proofs.of((each.ownership.holder, each.ownership.token) for each in marks)
        only = next(iter(holders)) if len(holders) == 1 and holders == proven else None
        if only is None:
            return self._by_the_book(home, bare, None, proven, given_up)
        if self._jot(home, only, bare, given_up):
            return {}
        if len(self._turns) >= _MAX:
            self._turns.clear()
        turn = self._turns.setdefault((home, only), threading.Lock())
        at_once = turn.acquire(blocking=False)
        in_turn = at_once or turn.acquire(timeout=_COURTESY_S)
        try:
            # Each that goes by the book takes the slip of the one before in: see if there is one.
            if not at_once and self._jot(home, only, bare, given_up):
                return {}
            return self._by_the_book(home, bare, only, proven, given_up)
        finally:
            if in_turn:
                turn.release()

    def _by_the_book(
        self,
        home: LeaseLocation,
        marks: Sequence[CheckpointWrite],
        only: str | None,
        proven: set[str],
        given_up: threading.Event,
    ) -> Mapping[str, Refusal]:
        """Write them into the book, which names a new slip for ``only`` if it writes often."""
        slip = None if only is None else self._new_slip(home, only, marks, given_up)
        claims = [(each.ownership.key, each.ownership.holder) for each in marks]
        refused, named = self._shelf.change(
            home,
            partial(_marked, marks, slip),
            given_up,
            concerns=lambda book: book.proving(claims),
            proven=proven,
            folds={each.ownership.holder for each in marks},
        )
        if slip is not None and not named:
            # No book has ever named it, and none will: its name is known here alone.
            self._shelf.slips.drop(home, *slip)
            self._shelf.slips.remove(home, dict([slip]), given_up)
        return refused

    def _jot(
        self,
        home: LeaseLocation,
        holder: str,
        marks: Sequence[CheckpointWrite],
        given_up: threading.Event,
    ) -> bool:
        """Write them on the slip; whether it could be done. What is refused is for the book."""
        with self._shelf.copy(home) as known:
            if known is None:
                return False
            book, wall = known
            own = self._shelf.slips.own(home, holder, book)
            if own is None or not all(book.may_jot(each.ownership) for each in marks):
                return False
            there, wanted = own.slip.marks, dict[str, Checkpoint]()
            for mark in marks:
                key = mark.ownership.key
                stored = wanted.get(key) or there.get(key)
                for last in (stored, book.marks.get(key)):
                    if last is not None and last.position > mark.position:
                        return False
                wanted[key] = _jotted(mark, wall)
        return self._shelf.slips.jot(home, holder, own, wanted, given_up)

    def _new_slip(
        self,
        home: LeaseLocation,
        holder: str,
        marks: Sequence[CheckpointWrite],
        given_up: threading.Event,
    ) -> tuple[str, str] | None:
        """A slip for a holder that writes often, if there is room on one for as much as this."""
        if not self._writes_often(home, holder, marks):
            return None
        with self._shelf.copy(home) as known:
            if known is None or not all(known[0].may_jot(each.ownership) for each in marks):
                return None
            wanted = {each.ownership.key: _jotted(each, known[1]) for each in marks}
        if not fits(CheckpointBlob(marks=wanted).metadata(home.group)):
            return None
        name = self._shelf.slips.make(home, holder, given_up)
        return None if name is None else (holder, name)

    def _writes_often(
        self, home: LeaseLocation, holder: str, marks: Sequence[CheckpointWrite]
    ) -> bool:
        """Whether one of these terms has been written often of late; and note that it is now."""
        if len(self._written_s) >= _MAX:
            self._written_s.clear()
        now_s, often = self._clock.boottime_s(), False
        known = self._written_s.setdefault((home, holder), {})
        if len(known) >= _MAX:
            known.clear()
        for mark in marks:
            times = known.setdefault((mark.ownership.key, mark.ownership.epoch), [])
            times[:] = [each for each in times if now_s - each <= _SOON_S][-_OFTEN:]
            often = often or len(times) >= _OFTEN
            times.append(now_s)
        return often


def _jotted(mark: CheckpointWrite, wall: datetime) -> Checkpoint:
    owned = mark.ownership
    return Checkpoint(key=owned.key, epoch=owned.epoch, position=mark.position, updated_at=wall)


def _marked(
    marks: Sequence[CheckpointWrite], slip: tuple[str, str] | None, turn: DocumentStep
) -> tuple[Mapping[str, Refusal], bool]:
    """What is refused, and whether the book names the slip from now on."""
    refused = turn.book.checkpoint(marks, turn.now, turn.wall)
    if slip is None or not all(turn.book.may_jot(each.ownership) for each in marks):
        return refused, False
    holder, name = slip
    turn.book.slips[holder] = name
    return refused, True


T = TypeVar("T")
U = TypeVar("U")


class OwnershipCalls:
    """Claims, hand-overs, checkpoints and what operators do, by threads."""

    def __init__(self, shelf: DocumentCache, proofs: LeaseProofs, clock: Clock) -> None:
        """Over the books of one container."""
        self._shelf = shelf
        self._proofs = proofs
        self._jotting = CheckpointCalls(shelf, proofs, clock)

    # ------------------------------------------------------------ keys

    def declare(self, keys: Sequence[str], given_up: threading.Event) -> int:
        """See ``Store.declare``."""
        return sum(
            self._shelf.change(LeaseLocation(group), partial(_declare, mine), given_up)
            for group, mine in _by_group(keys, str).items()
        )

    def forget(self, keys: Sequence[str], given_up: threading.Event) -> int:
        """See ``Store.forget``."""
        return sum(
            self._shelf.change(
                LeaseLocation(group),
                partial(_forget, mine),
                given_up,
                concerns=_owners(mine),
            )
            for group, mine in _by_group(keys, str).items()
        )

    # ------------------------------------------------------------ ownerships

    def claim(
        self, lease: Lease, wanted: Sequence[KeyClaim], given_up: threading.Event, *, force: bool
    ) -> Sequence[Ownership]:
        """See ``Store.claim``."""
        home = LeaseLocation.of(lease.group, lease.holder)
        by_group = _by_group(wanted, lambda each: each.key)
        away = [group for group in by_group if group != lease.group]
        outsider = self._going_abroad(home, lease, away, given_up) if away or not wanted else None
        taken: list[Ownership] = []
        for group, mine in by_group.items():
            stranger = outsider if group != lease.group else None
            taken += self._shelf.change(
                LeaseLocation(group),
                partial(_claim, bare(lease), stranger, mine, force),
                given_up,
                concerns=_owners([each.key for each in mine], lease.holder),
                proven=self._proofs.of([(lease.holder, lease.token)]),
            )
        return [replace(each, token=lease.token) for each in taken]

    def ask(self, lease: Lease, wanted: KeyClaim, given_up: threading.Event) -> bool:
        """See ``Store.ask``."""
        home, group = LeaseLocation.of(lease.group, lease.holder), group_of(wanted.key)
        outsider = None
        if group != lease.group:
            outsider = self._going_abroad(home, lease, [], given_up)

        return self._shelf.change(
            LeaseLocation(group),
            partial(_ask, bare(lease), outsider, wanted),
            given_up,
            concerns=_owners([wanted.key], lease.holder),
            proven=self._proofs.of([(lease.holder, lease.token)]),
        )

    def hand_over(
        self, hand_overs: Sequence[HandOver], limit_s: float, given_up: threading.Event
    ) -> Sequence[str]:
        """See ``Store.hand_over``."""
        passed: list[str] = []
        for group, mine in _by_group(hand_overs, lambda each: each.ownership.key).items():
            receivers = {each.to for each in mine}
            strangers = self._strangers(LeaseLocation(group), receivers, given_up)
            known = [replace(each, ownership=bare_ownership(each.ownership)) for each in mine]
            keys = [each.ownership.key for each in mine]
            passed += self._shelf.change(
                LeaseLocation(group),
                partial(_hand_over, known, limit_s, strangers),
                given_up,
                concerns=_owners(keys, *receivers, *(each.ownership.holder for each in mine)),
                proven=self._proven(each.ownership for each in mine),
            )
        return passed

    def release(
        self, ownerships: Sequence[Ownership], notes: Mapping[str, str], given_up: threading.Event
    ) -> Sequence[str]:
        """See ``Store.release``."""
        return self._owned(
            ownerships,
            lambda each: each,
            lambda mine, turn: turn.book.release(
                [bare_ownership(each) for each in mine], notes, turn.now, turn.wall
            ),
            given_up,
        )

    def break_(
        self, key: str, epoch: int, after_s: float, given_up: threading.Event
    ) -> Resource | None:
        """See ``Store.break_``."""

        def step(turn: DocumentStep) -> Resource | None:
            slack_s = turn.moment.slack_s
            broken = turn.book.break_after(
                key, epoch, after_s, slack_s=slack_s, now=turn.now, wall=turn.wall
            )
            return None if broken is None else cautious(broken, turn)

        return self._shelf.change(
            LeaseLocation(group_of(key)), step, given_up, concerns=_owners([key])
        )

    # ------------------------------------------------------------ writes under an ownership

    def checkpoint(
        self, marks: Sequence[CheckpointWrite], given_up: threading.Event
    ) -> Mapping[str, Refusal]:
        """See ``Store.checkpoint``."""
        refused: dict[str, Refusal] = {}
        for group, mine in _by_group(marks, lambda each: each.ownership.key).items():
            refused |= self._jotting.checkpoint(LeaseLocation(group), mine, given_up)
        return refused

    def annotate(self, notes: Sequence[Note], given_up: threading.Event) -> Sequence[str]:
        """See ``Store.annotate``."""
        return self._owned(
            notes,
            lambda each: each.ownership,
            lambda mine, turn: turn.book.annotate(
                [replace(each, ownership=bare_ownership(each.ownership)) for each in mine], turn.now
            ),
            given_up,
        )

    # ------------------------------------------------------------ operators

    def request_hand_over(self, key: str, epoch: int, to: str, given_up: threading.Event) -> bool:
        """See ``Store.request_hand_over``."""
        return self._shelf.change(
            LeaseLocation(group_of(key)),
            lambda turn: turn.book.request_hand_over(key, epoch, to, turn.now, turn.wall),
            given_up,
            concerns=_owners([key], to),
        )

    def request_leave(self, holder: str, given_up: threading.Event) -> bool:
        """See ``Store.request_leave``."""
        home = self._found(holder, given_up)
        if home is None or not home.group:
            return False
        return self._shelf.change(
            home,
            lambda turn: turn.book.request_leave(holder, turn.now, turn.wall),
            given_up,
            concerns=lambda _: {holder},
        )

    def reset(
        self, positions: Mapping[str, Position | None], given_up: threading.Event
    ) -> Mapping[str, str]:
        """See ``Store.reset``: all keys are looked at before the first group is changed."""
        by_group = _by_group(positions, str)
        if len(by_group) > 1:
            refused: dict[str, str] = {}
            for group, keys in by_group.items():
                refused |= self._shelf.read(
                    LeaseLocation(group),
                    partial(_owned_of, keys),
                    given_up,
                    concerns=_owners(keys),
                )
            if refused:
                return refused
        refused = {}
        for group, keys in by_group.items():
            wanted = {key: positions[key] for key in keys}
            refused |= self._shelf.change(
                LeaseLocation(group),
                partial(_reset, wanted),
                given_up,
                concerns=_owners(keys),
            )
        return refused

    def groups(self, given_up: threading.Event) -> Sequence[str]:
        """See ``Store.groups``."""
        listed = self._shelf.container.list(GROUPS, given_up)
        return sorted(
            from_metadata(blob.metadata["group"])
            for blob in listed.values()
            if blob.name.endswith("/book") and blob.metadata.get("keys", "0") != "0"
        )

    # ------------------------------------------------------------ parts

    def _owned(
        self,
        things: Sequence[T],
        ownership_of: Callable[[T], Ownership],
        step: Callable[[list[T], DocumentStep], Iterable[U]],
        given_up: threading.Event,
    ) -> list[U]:
        """A step for each group, which depends on the lives of the owners alone."""
        done: list[U] = []
        for group, mine in _by_group(things, lambda each: ownership_of(each).key).items():
            shown = [ownership_of(each) for each in mine]
            claims = [(each.key, each.holder) for each in shown]
            done += self._shelf.change(
                LeaseLocation(group),
                partial(step, mine),
                given_up,
                concerns=partial(_proving, claims),
                proven=self._proven(shown),
            )
        return done

    def _proven(self, ownerships: Iterable[Ownership]) -> set[str]:
        return self._proofs.of((each.holder, each.token) for each in ownerships)

    def _going_abroad(
        self, home: LeaseLocation, lease: Lease, groups: Sequence[str], given_up: threading.Event
    ) -> _Outsider:
        """The lease as its own book has it, alive; and note there to which groups it goes.

        Raises:
            LeaseLost: it has ended.
        """

        def step(turn: DocumentStep) -> _Outsider:
            row = turn.book.live(bare(lease), turn.now, turn.wall)
            for group in groups:
                turn.book.goes_abroad(lease.holder, group)
            heard = turn.book.abroad.get(lease.holder, {})
            return _Outsider(row, {group: each.ended for group, each in heard.items()})

        return self._shelf.change(
            home,
            step,
            given_up,
            concerns=lambda _: {lease.holder},
            proven=self._proofs.of([(lease.holder, lease.token)]),
        )

    def _strangers(
        self, home: LeaseLocation, holders: set[str], given_up: threading.Event
    ) -> list[LeaseRow]:
        """The leases of those that the book does not know, from their own books."""
        unknown = self._shelf.read(
            home,
            lambda turn: [each for each in holders if turn.book.lease_row(each) is None],
            given_up,
        )
        found: list[LeaseRow] = []
        for holder in unknown:
            where = self._found(holder, given_up)
            if where is not None:
                row = self._shelf.read(
                    where,
                    partial(_lease_row, holder),
                    given_up,
                    concerns=_owners((), holder),
                )
                found += [row] if row is not None and row.ended is None else []
        return found

    def _found(self, holder: str, given_up: threading.Event) -> LeaseLocation | None:
        """Where the lease of a holder is kept, by its name alone; a search."""
        alone = LeaseLocation("", holder)
        if self._shelf.container.list(alone.path, given_up):
            return alone
        listed = self._shelf.container.list(GROUPS, given_up)
        for name in listed:
            if name.endswith(f"/holders/{part(holder)}"):
                book = listed.get(name.removesuffix(f"holders/{part(holder)}") + "book")
                if book is not None and "group" in book.metadata:
                    return LeaseLocation(from_metadata(book.metadata["group"]))
        return None


@dataclass(frozen=True, slots=True)
class _Outsider:
    """A lease of another home, and by group up to which version it has heard of its terms."""

    row: LeaseRow
    heard: Mapping[str, int]

    def enter(self, book: GroupDocument) -> None:
        """Be known in a book."""
        book.adopt(self.row, heard=self.heard.get(book.home.group, 0))


def _by_group(things: Iterable[T], key_of: Callable[[T], str]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for each in things:
        found.setdefault(group_of(key_of(each)), []).append(each)
    return found


def _owners(keys: Sequence[str], *more: str) -> Concerns:
    def concerns(book: GroupDocument) -> set[str]:
        return book.owners(keys) | set(more)

    return concerns


def _proving(claims: Sequence[tuple[str, str]], book: GroupDocument) -> set[str]:
    return book.proving(claims)


# ------------------------------------------------------------------ steps


def _declare(keys: Sequence[str], turn: DocumentStep) -> int:
    return turn.book.declare(keys)


def _forget(keys: Sequence[str], turn: DocumentStep) -> int:
    return turn.book.forget(keys, turn.now, turn.wall)


def _claim(
    lease: Lease,
    outsider: _Outsider | None,
    wanted: Sequence[KeyClaim],
    force: bool,  # noqa: FBT001
    turn: DocumentStep,
) -> Sequence[Ownership]:
    if outsider is not None:
        outsider.enter(turn.book)
    return turn.book.claim(lease, wanted, force=force, now=turn.now, wall=turn.wall)


def _ask(lease: Lease, outsider: _Outsider | None, wanted: KeyClaim, turn: DocumentStep) -> bool:
    if outsider is not None:
        outsider.enter(turn.book)
    return turn.book.ask(lease, wanted, turn.now, turn.wall)


def _hand_over(
    hand_overs: Sequence[HandOver],
    limit_s: float,
    strangers: Sequence[LeaseRow],
    turn: DocumentStep,
) -> Sequence[str]:
    for row in strangers:
        turn.book.adopt(row)
    until_s = limit_s + turn.moment.slack_s if limit_s else 0.0
    return turn.book.hand_over(hand_overs, until_s, turn.now, turn.wall)


def _owned_of(keys: Sequence[str], turn: DocumentStep) -> dict[str, str]:
    return turn.book.owned_of(keys, turn.now)


def _reset(positions: Mapping[str, Position | None], turn: DocumentStep) -> Mapping[str, str]:
    return turn.book.reset(positions, turn.now, turn.wall)


def _lease_row(holder: str, turn: DocumentStep) -> LeaseRow | None:
    return turn.book.lease_row(holder)
