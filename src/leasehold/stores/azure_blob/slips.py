"""Slips: positions are written beside the book, so that a checkpoint is one cheap call.

How it works, in words:

* The book names the slip of a holder. The blob is made before the book names it, and its name is
  never used twice. Positions go into its metadata, under the condition that nobody has written
  there since (``If-Match``): nearly always that is the holder alone.
* Whoever is about to take a key from a holder, or a part of its right to it, first **seals** its
  slip: one write under the same condition. From then on the holder can write there no more, however
  long it was paused before it tried. What is on the slip goes into the book in the same write that
  takes the key, and that write does not name the slip any longer.
* To seal is always safe: a holder that finds its slip sealed goes by the book, where it is told
  whether the key is still its own, and gets a new slip.
* A slip is removed when the book that took it in is written. One that is not there has nothing on
  it: either nobody wrote there yet, or the book has it, and then the copy that names it is old.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from leasehold.clock import new_suffix
from leasehold.errors import StoreUnavailable
from leasehold.stores.azure_blob.slip import Slip, fits, slip_from

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from leasehold.model import Checkpoint
    from leasehold.stores.azure_blob.book import Book
    from leasehold.stores.azure_blob.container import Container
    from leasehold.stores.azure_blob.naming import Home

_TRIES = 20
# Calls of one holder take turns; who would wait for long goes by the book.
_COURTESY_S = 0.5
# A slip that no book names, and that was not written for so long, was left behind.
_OLD_S = 2 * 3600.0


@dataclass(slots=True)
class _Own:
    """A slip that this process has made, and what it has written there."""

    name: str
    etag: str
    slip: Slip
    lock: threading.Lock = field(default_factory=threading.Lock)


class Slips:
    """The slips of one container. Safe to use from several threads."""

    def __init__(self, container: Container) -> None:
        """Have none yet."""
        self._container = container
        self._own: dict[tuple[Home, str], _Own] = {}

    # ------------------------------------------------------------ of this process

    def make(self, home: Home, holder: str, given_up: threading.Event) -> str | None:
        """An empty slip, for the book to name; None if it could not be made."""
        name, empty = new_suffix(), Slip()
        blob, told = home.slip_blob(holder, name), empty.metadata(home.group)
        with suppress(StoreUnavailable):
            etag = self._container.put(blob, b"", etag=None, metadata=told, given_up=given_up)
            if etag is not None:
                self._own[home, holder] = _Own(name, etag, empty)
                return name
        return None

    def own(self, home: Home, holder: str, book: Book) -> Mapping[str, Checkpoint] | None:
        """What is on the slip that this process has for a holder; None if the book has another."""
        own = self._own.get((home, holder))
        if own is None or book.slips.get(holder) != own.name:
            return None
        return own.slip.marks

    def jot(
        self, home: Home, holder: str, marks: Mapping[str, Checkpoint], given_up: threading.Event
    ) -> bool:
        """Write positions on the slip of this process, beside those that are on it.

        Returns:
            False if it is sealed, full, gone or busy: nothing was written.

        Raises:
            StoreUnavailable: there is no answer; they may have been written.
        """
        own = self._own.get((home, holder))
        if own is None or not own.lock.acquire(timeout=_COURTESY_S):
            return False
        try:
            slip = Slip(marks={**own.slip.marks, **marks}, written=new_suffix())
            told = slip.metadata(home.group)
            etag = self._put(home, holder, own, told, given_up) if fits(told) else None
            if etag is None:
                self.drop(home, holder)
                return False
            own.etag, own.slip = etag, slip
        except StoreUnavailable:
            self.drop(home, holder)
            raise
        finally:
            own.lock.release()
        return True

    def drop(self, home: Home, holder: str) -> None:
        """Write there no more."""
        self._own.pop((home, holder), None)

    def _put(
        self,
        home: Home,
        holder: str,
        own: _Own,
        told: Mapping[str, str],
        given_up: threading.Event,
    ) -> str | None:
        blob = home.slip_blob(holder, own.name)
        try:
            return self._container.set_metadata(blob, told, etag=own.etag, given_up=given_up)
        except StoreUnavailable:
            # Unknown: if the last word on it is ours, it was done.
            found = self._container.get(blob, given_up)
            if found is None:
                return None
            if found.metadata == told:
                return found.etag
            if found.etag == own.etag:
                raise  # it may still come
            return None

    # ------------------------------------------------------------ of anybody

    def sealed(
        self, home: Home, book: Book, holders: Collection[str], given_up: threading.Event
    ) -> dict[str, Slip]:
        """By name the slips that a book names for these holders; nothing is written there after.

        Raises:
            StoreUnavailable: there is no answer, or it is written again and again.
        """
        named = {each: book.slips[each] for each in holders if each in book.slips}
        return {
            name: self._seal(home, home.slip_blob(holder, name), given_up)
            for holder, name in named.items()
        }

    def _seal(self, home: Home, blob: str, given_up: threading.Event) -> Slip:
        for _ in range(_TRIES):
            found = self._container.get(blob, given_up)
            slip = slip_from(found.metadata, home.group) if found else Slip(sealed=True)
            if found is None or slip.sealed:
                return slip
            told = replace(slip, sealed=True).metadata(home.group)
            with suppress(StoreUnavailable):  # unknown: read it again, and find out
                if self._container.set_metadata(blob, told, etag=found.etag, given_up=given_up):
                    return slip
        raise StoreUnavailable(f"the positions of {home.group} are written again and again")

    def all(self, home: Home, book: Book, given_up: threading.Event) -> dict[str, Slip] | None:
        """By holder the slips that a book names; None if one is gone, so that the book is old."""
        if not book.slips:
            return {}
        listed = self._container.list(home.slips, given_up)
        named = {holder: home.slip_blob(holder, name) for holder, name in book.slips.items()}
        if not listed.keys() >= set(named.values()):
            return None
        return {
            holder: slip_from(listed[blob].metadata, home.group) for holder, blob in named.items()
        }

    def remove(self, home: Home, names: Mapping[str, str], given_up: threading.Event) -> None:
        """Remove slips that the book has taken in, by holder. What stays is swept later."""
        for holder, name in names.items():
            with suppress(StoreUnavailable):
                self._container.delete(home.slip_blob(holder, name), given_up)

    def sweep(
        self, home: Home, named: Callable[[], Mapping[str, str]], given_up: threading.Event
    ) -> None:
        """Remove slips that were left behind: they are old, and the book does not name them."""
        listed = self._container.list(home.slips, given_up) if home.group else {}
        latest = self._container.wire.latest
        before_s = latest.date_s - _OLD_S if latest is not None else 0.0
        old = {blob.name for blob in listed.values() if blob.modified_s < before_s}
        if old:
            old -= {home.slip_blob(holder, name) for holder, name in named().items()}
        for blob in sorted(old):
            self._container.delete(blob, given_up)
