"""Checkpoints: on the slip of their holder where it may write there, and else in the book."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from leasehold.model import Checkpoint
from leasehold.stores.azure_blob.naming import bare_ownership
from leasehold.stores.azure_blob.slip import Slip, fits

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.model import Mark, MarkRefusal
    from leasehold.stores.azure_blob.naming import Home
    from leasehold.stores.azure_blob.proofs import Proofs
    from leasehold.stores.azure_blob.shelf import Shelf, Turn

# Who writes a position of the same term again within so long is given a slip. Who writes one in
# each term, as jobs do, would only have to give it back.
_SOON_S = 60.0
_MOST = 10_000


class Jotting:
    """Writes positions, by threads. All marks of a call are of one group."""

    def __init__(self, shelf: Shelf, proofs: Proofs, clock: Clock) -> None:
        """Over the books and the slips of one container."""
        self._shelf = shelf
        self._proofs = proofs
        self._clock = clock
        self._last: dict[tuple[Home, str], tuple[float, set[tuple[str, int]]]] = {}

    def checkpoint(
        self, home: Home, marks: Sequence[Mark], given_up: threading.Event
    ) -> Mapping[str, MarkRefusal]:
        """See ``Store.checkpoint``."""
        bare = [replace(each, ownership=bare_ownership(each.ownership)) for each in marks]
        holders = {each.ownership.holder for each in marks}
        proven = self._proofs.of((each.ownership.holder, each.ownership.token) for each in marks)
        only = next(iter(holders)) if len(holders) == 1 and holders == proven else None
        if only is not None and self._jotted(home, only, bare, given_up):
            return {}
        slip = None if only is None else self._new_slip(home, only, bare, given_up)
        claims = [(each.ownership.key, each.ownership.holder) for each in marks]
        return self._shelf.change(
            home,
            partial(_marked, bare, slip),
            given_up,
            concerns=lambda book: book.proving(claims),
            proven=proven,
            folds=holders,
        )

    def _jotted(
        self, home: Home, holder: str, marks: Sequence[Mark], given_up: threading.Event
    ) -> bool:
        """Write them on the slip; whether it could be done. What is refused is for the book."""
        with self._shelf.copy(home) as known:
            if known is None:
                return False
            book, wall = known
            there = self._shelf.slips.own(home, holder, book)
            if there is None or not all(book.may_jot(each.ownership) for each in marks):
                return False
            wanted: dict[str, Checkpoint] = {}
            for mark in marks:
                key = mark.ownership.key
                stored = wanted.get(key) or there.get(key)
                for last in (stored, book.marks.get(key)):
                    if last is not None and last.position > mark.position:
                        return False
                wanted[key] = Checkpoint(
                    key=key, epoch=mark.ownership.epoch, position=mark.position, updated_at=wall
                )
        return self._shelf.slips.jot(home, holder, wanted, given_up)

    def _new_slip(
        self, home: Home, holder: str, marks: Sequence[Mark], given_up: threading.Event
    ) -> tuple[str, str] | None:
        """A slip for a holder that writes often, if there is room on one for as much as this."""
        self._shelf.slips.drop(home, holder)
        if not home.group or not self._writes_often(home, holder, marks):
            return None
        wanted = {
            each.ownership.key: Checkpoint(
                key=each.ownership.key,
                epoch=each.ownership.epoch,
                position=each.position,
                updated_at=self._clock.utc_now(),
            )
            for each in marks
        }
        if not fits(Slip(marks=wanted).metadata(home.group)):
            return None
        name = self._shelf.slips.make(home, holder, given_up)
        return None if name is None else (holder, name)

    def _writes_often(self, home: Home, holder: str, marks: Sequence[Mark]) -> bool:
        now_s = self._clock.boottime_s()
        terms = {(each.ownership.key, each.ownership.epoch) for each in marks}
        last_s, before = self._last.get((home, holder), (0.0, set()))
        if len(self._last) >= _MOST:
            self._last.clear()
        self._last[home, holder] = (now_s, terms)
        return now_s - last_s <= _SOON_S and not terms.isdisjoint(before)


def _marked(
    marks: Sequence[Mark], slip: tuple[str, str] | None, turn: Turn
) -> Mapping[str, MarkRefusal]:
    refused = turn.book.checkpoint(marks, turn.now, turn.wall)
    if slip is not None and all(turn.book.may_jot(each.ownership) for each in marks):
        holder, name = slip
        turn.book.slips[holder] = name
    return refused
