"""Checkpoints: on the slip of their holder where it may write there, and else in the book."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from leasehold.model import Checkpoint
from leasehold.stores.azure_blob.checkpoint_blobs import Slip, fits
from leasehold.stores.azure_blob.naming import bare_ownership

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.clock import Clock
    from leasehold.model import Mark, MarkRefusal
    from leasehold.stores.azure_blob.document_cache import Shelf, Turn
    from leasehold.stores.azure_blob.naming import Home
    from leasehold.stores.azure_blob.service_time import Proofs

# Who writes positions of one term a third time within so long is given a slip. Who writes once or
# twice in each term, as jobs do, would only have to give it back.
_SOON_S = 60.0
_OFTEN = 2
_MOST = 10_000
# Calls of one holder that go by the book take turns, but nobody waits for long.
_COURTESY_S = 2.0
_Term: TypeAlias = "tuple[str, int]"  # a key and an epoch


class Jotting:
    """Writes positions, by threads. All marks of a call are of one group."""

    def __init__(self, shelf: Shelf, proofs: Proofs, clock: Clock) -> None:
        """Over the books and the slips of one container."""
        self._shelf = shelf
        self._proofs = proofs
        self._clock = clock
        self._written_s: dict[tuple[Home, str], dict[_Term, list[float]]] = {}
        self._turns: dict[tuple[Home, str], threading.Lock] = {}

    def checkpoint(
        self, home: Home, marks: Sequence[Mark], given_up: threading.Event
    ) -> Mapping[str, MarkRefusal]:
        """See ``Store.checkpoint``."""
        bare = [replace(each, ownership=bare_ownership(each.ownership)) for each in marks]
        holders = {each.ownership.holder for each in marks}
        proven = self._proofs.of((each.ownership.holder, each.ownership.token) for each in marks)
        only = next(iter(holders)) if len(holders) == 1 and holders == proven else None
        if only is None:
            return self._by_the_book(home, bare, None, proven, given_up)
        if self._jot(home, only, bare, given_up):
            return {}
        if len(self._turns) >= _MOST:
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
        home: Home,
        marks: Sequence[Mark],
        only: str | None,
        proven: set[str],
        given_up: threading.Event,
    ) -> Mapping[str, MarkRefusal]:
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
        self, home: Home, holder: str, marks: Sequence[Mark], given_up: threading.Event
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
        self, home: Home, holder: str, marks: Sequence[Mark], given_up: threading.Event
    ) -> tuple[str, str] | None:
        """A slip for a holder that writes often, if there is room on one for as much as this."""
        if not self._writes_often(home, holder, marks):
            return None
        with self._shelf.copy(home) as known:
            if known is None or not all(known[0].may_jot(each.ownership) for each in marks):
                return None
            wanted = {each.ownership.key: _jotted(each, known[1]) for each in marks}
        if not fits(Slip(marks=wanted).metadata(home.group)):
            return None
        name = self._shelf.slips.make(home, holder, given_up)
        return None if name is None else (holder, name)

    def _writes_often(self, home: Home, holder: str, marks: Sequence[Mark]) -> bool:
        """Whether one of these terms has been written often of late; and note that it is now."""
        if len(self._written_s) >= _MOST:
            self._written_s.clear()
        now_s, often = self._clock.boottime_s(), False
        known = self._written_s.setdefault((home, holder), {})
        if len(known) >= _MOST:
            known.clear()
        for mark in marks:
            times = known.setdefault((mark.ownership.key, mark.ownership.epoch), [])
            times[:] = [each for each in times if now_s - each <= _SOON_S][-_OFTEN:]
            often = often or len(times) >= _OFTEN
            times.append(now_s)
        return often


def _jotted(mark: Mark, wall: datetime) -> Checkpoint:
    owned = mark.ownership
    return Checkpoint(key=owned.key, epoch=owned.epoch, position=mark.position, updated_at=wall)


def _marked(
    marks: Sequence[Mark], slip: tuple[str, str] | None, turn: Turn
) -> tuple[Mapping[str, MarkRefusal], bool]:
    """What is refused, and whether the book names the slip from now on."""
    refused = turn.book.checkpoint(marks, turn.now, turn.wall)
    if slip is None or not all(turn.book.may_jot(each.ownership) for each in marks):
        return refused, False
    holder, name = slip
    turn.book.slips[holder] = name
    return refused, True
