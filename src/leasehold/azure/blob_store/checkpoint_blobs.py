"""Slips: positions are written beside the book, so that a checkpoint is one cheap call.

How it works, in words:

* The book names the slip of a holder. The blob is made before the book names it, and its name is
  never used twice. Positions go into its metadata, under the condition that nobody has written
  there since (``If-Match``): nearly always that is the holder alone.
* Whoever is about to take a key from a holder, or a part of its right to it, first **seals** its
  slip: by a blob lease without an end, whose id everybody knows and no writer shows. From then on
  the holder can write there no more, however long it was paused before it tried. A lease is had at
  the first try, also while the holder writes there without a pause. What is on the slip goes into
  the book in the same write that takes the key, and that write does not name the slip any longer.
* To seal is always safe: a holder that finds its slip sealed goes by the book, where it is told
  whether the key is still its own, and gets a new slip.
* A slip is removed when the book that took it in is written. One that is not there has nothing on
  it: either nobody wrote there yet, or the book has it, and then the copy that names it is old.

A slip: positions of one holder, written beside the book, in the metadata of a blob of its own.

A position on a slip counts as if it stood in the book: for the keys that the book gives to that
holder, under the epoch that the book has for them, as long as the book names the slip.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from leasehold.azure.blob_store.container import CREATED, NOT_FOUND
from leasehold.azure.blob_store.document_json import mark_from, mark_to
from leasehold.azure.blob_store.naming import lease_id
from leasehold.clock import new_suffix
from leasehold.errors import StoreUnavailable, StoreUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from leasehold.azure.blob_store.container import Container
    from leasehold.azure.blob_store.group_document import GroupDocument
    from leasehold.azure.blob_store.naming import LeaseLocation
    from leasehold.model import Checkpoint

# The service keeps 8 KiB of metadata for a blob, names and all.
_MAX_LETTERS = 7_500
_MARKS, _WRITE = "marks", "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBlob:
    """What is on a slip. ``written`` tells one writing of it from another."""

    marks: Mapping[str, Checkpoint] = field(default_factory=dict)
    written: str = ""

    def metadata(self, group: str) -> dict[str, str]:
        """As the service keeps it; all keys are of this group."""
        cut = len(group) + 1
        marks = [mark_to(each, cut) for each in self.marks.values()]
        told = json.dumps(marks, ensure_ascii=False, separators=(",", ":"))
        packed = base64.b64encode(zlib.compress(told.encode())).decode()
        return {_MARKS: packed, _WRITE: self.written}


def fits(metadata: Mapping[str, str]) -> bool:
    """Whether the service can keep what ``CheckpointBlob.metadata`` made."""
    return len(metadata[_MARKS]) <= _MAX_LETTERS


def slip_from(metadata: Mapping[str, str], group: str) -> CheckpointBlob:
    """What ``CheckpointBlob.metadata`` wrote.

    Raises:
        StoreUnusable: it is damaged.
    """
    try:
        told = json.loads(zlib.decompress(base64.b64decode(metadata[_MARKS], validate=True)))
        marks = [mark_from(f"{group}/{last}", *rest) for last, *rest in told]
    except (KeyError, ValueError, TypeError, zlib.error, binascii.Error) as error:
        raise StoreUnusable(
            f"a blob with positions of {group} is damaged: its metadata was changed by somebody "
            "else; remove the blob, and what is in the book counts"
        ) from error
    return CheckpointBlob(
        marks={each.key: each for each in marks}, written=metadata.get(_WRITE, "")
    )


T = TypeVar("T")

_SEAL, _FOR_EVER = lease_id("the seal of a slip"), -1
# Calls of one holder take turns; who would wait for long goes by the book, and is in the way of the
# others there. So long that as many calls as there are threads have had their turn.
_COURTESY_S = 2.0
# Who has sealed a slip writes the book before its holder does, if that takes no longer.
_YIELDING_S = 0.25
# A slip that no book names, and that was not written for so long, was left behind.
_OLD_S = 2 * 3600.0
_MAX_SWEPT = 20
_MAX_OWN = 1_000
_AT_ONCE = 8


@dataclass(slots=True)
class OwnCheckpointBlob:
    """A slip that this process has made, and what it has written there."""

    name: str
    etag: str
    slip: CheckpointBlob
    lock: threading.Lock = field(default_factory=threading.Lock)


class CheckpointBlobs:
    """The slips of one container. Safe to use from several threads."""

    def __init__(self, container: Container) -> None:
        """Have none yet."""
        self._container = container
        self._own: dict[tuple[LeaseLocation, str], OwnCheckpointBlob] = {}

    # ------------------------------------------------------------ of this process

    def make(self, home: LeaseLocation, holder: str, given_up: threading.Event) -> str | None:
        """An empty slip, for the book to name; None if it could not be made."""
        name, empty = new_suffix(), CheckpointBlob()
        blob, told = home.slip_blob(holder, name), empty.metadata(home.group)
        with suppress(StoreUnavailable):
            etag = self._container.put(blob, b"", etag=None, metadata=told, given_up=given_up)
            if etag is not None:
                if len(self._own) >= _MAX_OWN:
                    self._own.clear()  # holders that died; the others go by the book once
                self._own[home, holder] = OwnCheckpointBlob(name, etag, empty)
                return name
        return None

    def own(
        self, home: LeaseLocation, holder: str, book: GroupDocument
    ) -> OwnCheckpointBlob | None:
        """The slip that this process has for a holder; None if the book has another."""
        own = self._own.get((home, holder))
        return own if own is not None and book.slips.get(holder) == own.name else None

    def jot(
        self,
        home: LeaseLocation,
        holder: str,
        own: OwnCheckpointBlob,
        marks: Mapping[str, Checkpoint],
        given_up: threading.Event,
    ) -> bool:
        """Write positions on this very slip, beside those that are on it.

        Another one, which another call has made since, may be one that no book names.

        Returns:
            False if it is sealed, full, gone, busy or further on, or if there was no answer: then
            it is the book that knows, and is asked.

        Raises:
            StoreUnavailable: there is no answer at all; they may have been written.
        """
        if not own.lock.acquire(timeout=_COURTESY_S):
            return False
        try:
            if self._own.get((home, holder)) is not own:
                return False
            there = own.slip.marks
            if any(key in there and there[key].position > marks[key].position for key in marks):
                return False  # another call was faster
            slip = CheckpointBlob(marks={**there, **marks}, written=new_suffix())
            told = slip.metadata(home.group)
            etag = self._put(home, holder, own, told, given_up) if fits(told) else None
            if etag is None:
                self.drop(home, holder, own.name)
                return False
            own.etag, own.slip = etag, slip
        except StoreUnavailable:
            self.drop(home, holder, own.name)
            raise
        finally:
            own.lock.release()
        return True

    def drop(self, home: LeaseLocation, holder: str, name: str = "") -> None:
        """Write there no more; if there is a name, on that one."""
        own = self._own.get((home, holder))
        if own is not None and name in {"", own.name}:
            self._own.pop((home, holder), None)

    def _put(
        self,
        home: LeaseLocation,
        holder: str,
        own: OwnCheckpointBlob,
        told: Mapping[str, str],
        given_up: threading.Event,
    ) -> str | None:
        blob = home.slip_blob(holder, own.name)
        try:
            etag = self._container.set_metadata(blob, told, etag=own.etag, given_up=given_up)
        except StoreUnavailable:
            # Unknown: if the last word on it is ours, it was done.
            found = self._container.get(blob, given_up)
            # Else it may still come: who goes by the book seals the slip first.
            return found.etag if found is not None and found.metadata == told else None
        if etag is None and self._own.get((home, holder)) is own:
            # Another process has sealed it and is about to write the book, maybe from farther away.
            given_up.wait(_YIELDING_S)
        return etag

    # ------------------------------------------------------------ of anybody

    def sealed(
        self,
        home: LeaseLocation,
        book: GroupDocument,
        holders: Collection[str],
        given_up: threading.Event,
    ) -> dict[str, CheckpointBlob]:
        """By blob the slips that a book names for these holders; nothing is written there after.

        Raises:
            StoreUnavailable: there is no answer.
            StoreUnusable: somebody has put a lease of another kind on it, or has damaged it.
        """
        named = {each: book.slips[each] for each in holders if each in book.slips}
        for holder, name in named.items():
            self.drop(home, holder, name)
        blobs = [home.slip_blob(holder, name) for holder, name in named.items()]
        found = _each(lambda blob: self._seal(home, blob, given_up), blobs)
        return dict(zip(blobs, found, strict=True))

    def _seal(self, home: LeaseLocation, blob: str, given_up: threading.Event) -> CheckpointBlob:
        answer = self._container.lease(
            blob, "acquire", given_up, proposed_lease_id=_SEAL, lease_duration=_FOR_EVER
        )
        if answer.status not in {CREATED, NOT_FOUND}:
            raise StoreUnusable(
                f"the blob {blob} has a lease that is not ours ({answer.status} {answer.code}): "
                "break that lease, or remove the blob, and what is in the book counts"
            )
        found = self._container.get(blob, given_up) if answer.status == CREATED else None
        return slip_from(found.metadata, home.group) if found is not None else CheckpointBlob()

    def all(
        self, home: LeaseLocation, book: GroupDocument, given_up: threading.Event
    ) -> tuple[dict[str, CheckpointBlob], bool]:
        """By holder the slips that a book names, and whether all of them are there."""
        if not book.slips:
            return {}, True
        listed = self._container.list(home.slips, given_up)
        named = {holder: home.slip_blob(holder, name) for holder, name in book.slips.items()}
        found = {
            holder: slip_from(listed[blob].metadata, home.group)
            for holder, blob in named.items()
            if blob in listed
        }
        return found, len(found) == len(named)

    def remove(
        self, home: LeaseLocation, names: Mapping[str, str], given_up: threading.Event
    ) -> None:
        """Remove slips that the book has taken in, by holder. What stays is swept later."""

        def remove(blob: str) -> None:
            with suppress(StoreUnavailable):
                self._delete(blob, given_up)

        _each(remove, [home.slip_blob(holder, name) for holder, name in names.items()])

    def sweep(
        self, home: LeaseLocation, named: Callable[[], Mapping[str, str]], given_up: threading.Event
    ) -> None:
        """Remove slips that were left behind: they are old, and the book does not name them."""
        listed = self._container.list(home.slips, given_up) if home.group else {}
        latest = self._container.wire.latest
        before_s = latest.date_s - _OLD_S if latest is not None else 0.0
        old = {blob.name for blob in listed.values() if blob.modified_s < before_s}
        if old:
            old -= {home.slip_blob(holder, name) for holder, name in named().items()}
        for blob in sorted(old)[:_MAX_SWEPT]:
            self._delete(blob, given_up)

    def _delete(self, blob: str, given_up: threading.Event) -> None:
        """Sealed or, if it never came so far, not."""
        if not self._container.delete(blob, given_up, lease_id=_SEAL):
            self._container.delete(blob, given_up)


def _each(act: Callable[[str], T], blobs: Sequence[str]) -> list[T]:
    """Several at a time if there are many: when many hosts die at once nobody has much time."""
    if len(blobs) <= _AT_ONCE:
        return [act(blob) for blob in blobs]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(act, blobs))
