"""Checkpoint blobs: positions beside the group document, so that a checkpoint is one cheap request.

* The document names the blob of a holder. The blob is created before the document names it, and its
  name is never used twice. Positions are its metadata, written under ``If-Match``: nearly always
  the holder alone writes there. A position counts as if it were in the document: for keys that the
  document gives to that holder, under their epoch, while the document names the blob.
* Before a process takes a key or a part of it from a holder, it **seals** the holder's blob: by a
  blob lease without end, whose id every process knows and no writer sends. After that the holder
  cannot write there, however long it was paused. The first attempt gets the lease, even while the
  holder writes without a pause. The positions go into the document in the same write that takes the
  key, and that write no longer names the blob.
* Sealing is always safe: a holder that finds its blob sealed writes to the document, which decides
  whether it still owns the key, and gets a new blob.
* A blob is deleted after the document that merged it is written. A missing blob counts as empty:
  it was never written, or a newer document has its content.
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
from leasehold.azure.blob_store.document_json import checkpoint_from_json, checkpoint_to_json
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
_MAX_METADATA_CHARS = 7_500
_CHECKPOINTS_FIELD, _WRITE_ID_FIELD = "marks", "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointBlob:
    """The content of a checkpoint blob. ``write_id`` tells one write from another."""

    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    write_id: str = ""

    def metadata(self, group: str) -> dict[str, str]:
        """Return the metadata to store; all keys are of this group."""
        cut = len(group) + 1
        checkpoints = [checkpoint_to_json(each, cut) for each in self.checkpoints.values()]
        text = json.dumps(checkpoints, ensure_ascii=False, separators=(",", ":"))
        packed = base64.b64encode(zlib.compress(text.encode())).decode()
        return {_CHECKPOINTS_FIELD: packed, _WRITE_ID_FIELD: self.write_id}


def fits(metadata: Mapping[str, str]) -> bool:
    """Return whether the service can store what ``CheckpointBlob.metadata`` returned."""
    return len(metadata[_CHECKPOINTS_FIELD]) <= _MAX_METADATA_CHARS


def parse_checkpoint_blob(metadata: Mapping[str, str], group: str) -> CheckpointBlob:
    """Parse what ``CheckpointBlob.metadata`` wrote."""
    try:
        rows = json.loads(
            zlib.decompress(base64.b64decode(metadata[_CHECKPOINTS_FIELD], validate=True))
        )
        checkpoints = [checkpoint_from_json(f"{group}/{last}", *rest) for last, *rest in rows]
    except (KeyError, ValueError, TypeError, zlib.error, binascii.Error) as error:
        raise StoreUnusable(
            f"a blob with positions of {group} is damaged: its metadata was changed by somebody "
            "else; remove the blob, and what is in the book counts"
        ) from error
    return CheckpointBlob(
        checkpoints={each.key: each for each in checkpoints},
        write_id=metadata.get(_WRITE_ID_FIELD, ""),
    )


T = TypeVar("T")

_SEAL, _INFINITE = lease_id("the seal of a slip"), -1
# Calls of one holder take turns; a call that would wait for longer writes to the document, and
# conflicts with the others there. Long enough for as many calls as there are threads.
_LOCK_TIMEOUT_S = 2.0
# A process that has sealed a blob writes the document before the holder, if it is this fast.
_YIELD_S = 0.25
# A blob that no document names, and that was not written for this long, is abandoned.
_OLD_S = 2 * 3600.0
_MAX_SWEPT = 20
_MAX_OWN = 1_000
_PARALLEL = 8


@dataclass(slots=True)
class OwnCheckpointBlob:
    """A blob that this process has created, and what it has written there."""

    name: str
    etag: str
    content: CheckpointBlob
    lock: threading.Lock = field(default_factory=threading.Lock)


class CheckpointBlobs:
    """The checkpoint blobs of one container. Safe to use from several threads."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._own: dict[tuple[LeaseLocation, str], OwnCheckpointBlob] = {}

    # ------------------------------------------------------------ of this process

    def create(
        self, location: LeaseLocation, holder: str, cancelled: threading.Event
    ) -> str | None:
        """Create an empty blob, for the document to name; None if that failed."""
        name, empty = new_suffix(), CheckpointBlob()
        blob, metadata = location.checkpoint_blob(holder, name), empty.metadata(location.group)
        with suppress(StoreUnavailable):
            etag = self._container.put(blob, b"", etag=None, metadata=metadata, cancelled=cancelled)
            if etag is not None:
                if len(self._own) >= _MAX_OWN:
                    self._own.clear()  # expired holders; the others write to the document once
                self._own[location, holder] = OwnCheckpointBlob(name, etag, empty)
                return name
        return None

    def own(
        self, location: LeaseLocation, holder: str, document: GroupDocument
    ) -> OwnCheckpointBlob | None:
        """Return this process's blob for a holder; None if the document names another."""
        own = self._own.get((location, holder))
        return own if own is not None and document.blob_names.get(holder) == own.name else None

    def write(
        self,
        location: LeaseLocation,
        holder: str,
        own: OwnCheckpointBlob,
        checkpoints: Mapping[str, Checkpoint],
        cancelled: threading.Event,
    ) -> bool:
        """Add positions to this very blob.

        A blob that another call has created since may be one that no document names.

        Returns:
            False if the blob is sealed, full, gone, busy or further on, or if there was no
            response: then the document decides.
        """
        if not own.lock.acquire(timeout=_LOCK_TIMEOUT_S):
            return False
        try:
            if self._own.get((location, holder)) is not own:
                return False
            there = own.content.checkpoints
            if any(
                key in there and there[key].position > checkpoints[key].position
                for key in checkpoints
            ):
                return False  # another call was faster
            content = CheckpointBlob(checkpoints={**there, **checkpoints}, write_id=new_suffix())
            metadata = content.metadata(location.group)
            etag = self._put(location, holder, own, metadata, cancelled) if fits(metadata) else None
            if etag is None:
                self.drop(location, holder, own.name)
                return False
            own.etag, own.content = etag, content
        except StoreUnavailable:
            self.drop(location, holder, own.name)
            raise
        finally:
            own.lock.release()
        return True

    def drop(self, location: LeaseLocation, holder: str, name: str = "") -> None:
        """Stop writing to the blob of a holder; with a name, only to that one."""
        own = self._own.get((location, holder))
        if own is not None and name in {"", own.name}:
            self._own.pop((location, holder), None)

    def _put(
        self,
        location: LeaseLocation,
        holder: str,
        own: OwnCheckpointBlob,
        metadata: Mapping[str, str],
        cancelled: threading.Event,
    ) -> str | None:
        blob = location.checkpoint_blob(holder, own.name)
        try:
            etag = self._container.set_metadata(blob, metadata, etag=own.etag, cancelled=cancelled)
        except StoreUnavailable:
            # Unknown: if the last write there is this one, it was done.
            found = self._container.get(blob, cancelled)
            # Otherwise it may still arrive: a write to the document seals the blob first.
            return found.etag if found is not None and found.metadata == metadata else None
        if etag is None and self._own.get((location, holder)) is own:
            # Another process has sealed it and is about to write the document, maybe from farther
            # away.
            cancelled.wait(_YIELD_S)
        return etag

    # ------------------------------------------------------------ of any process

    def sealed(
        self,
        location: LeaseLocation,
        document: GroupDocument,
        holders: Collection[str],
        cancelled: threading.Event,
    ) -> dict[str, CheckpointBlob]:
        """Seal the blobs that a document names for these holders; return them by name."""
        named = {each: document.blob_names[each] for each in holders if each in document.blob_names}
        for holder, name in named.items():
            self.drop(location, holder, name)
        blobs = [location.checkpoint_blob(holder, name) for holder, name in named.items()]
        found = _for_each(lambda blob: self._seal(location, blob, cancelled), blobs)
        return dict(zip(blobs, found, strict=True))

    def _seal(
        self, location: LeaseLocation, blob: str, cancelled: threading.Event
    ) -> CheckpointBlob:
        response = self._container.lease(
            blob, "acquire", cancelled, proposed_lease_id=_SEAL, lease_duration=_INFINITE
        )
        if response.status not in {CREATED, NOT_FOUND}:
            raise StoreUnusable(
                f"the blob {blob} has a lease that is not ours ({response.status} "
                f"{response.code}): break that lease, or remove the blob, and what is in the book "
                "counts"
            )
        found = self._container.get(blob, cancelled) if response.status == CREATED else None
        return (
            parse_checkpoint_blob(found.metadata, location.group)
            if found is not None
            else CheckpointBlob()
        )

    def all(
        self, location: LeaseLocation, document: GroupDocument, cancelled: threading.Event
    ) -> tuple[dict[str, CheckpointBlob], bool]:
        """Return the blobs that a document names, by holder, and whether all exist."""
        if not document.blob_names:
            return {}, True
        listed = self._container.list(location.checkpoint_prefix, cancelled)
        named = {
            holder: location.checkpoint_blob(holder, name)
            for holder, name in document.blob_names.items()
        }
        found = {
            holder: parse_checkpoint_blob(listed[blob].metadata, location.group)
            for holder, blob in named.items()
            if blob in listed
        }
        return found, len(found) == len(named)

    def remove(
        self, location: LeaseLocation, names: Mapping[str, str], cancelled: threading.Event
    ) -> None:
        """Delete merged blobs, by holder. What remains is swept later."""

        def remove(blob: str) -> None:
            with suppress(StoreUnavailable):
                self._delete(blob, cancelled)

        _for_each(
            remove, [location.checkpoint_blob(holder, name) for holder, name in names.items()]
        )

    def sweep(
        self,
        location: LeaseLocation,
        named: Callable[[], Mapping[str, str]],
        cancelled: threading.Event,
    ) -> None:
        """Delete abandoned blobs: they are old, and the document does not name them."""
        listed = (
            self._container.list(location.checkpoint_prefix, cancelled) if location.group else {}
        )
        latest = self._container.http_client.latest
        before_s = latest.date_s - _OLD_S if latest is not None else 0.0
        old = {blob.name for blob in listed.values() if blob.modified_s < before_s}
        if old:
            old -= {location.checkpoint_blob(holder, name) for holder, name in named().items()}
        for blob in sorted(old)[:_MAX_SWEPT]:
            self._delete(blob, cancelled)

    def _delete(self, blob: str, cancelled: threading.Event) -> None:
        """Delete a blob, sealed or not."""
        if not self._container.delete(blob, cancelled, lease_id=_SEAL):
            self._container.delete(blob, cancelled)


def _for_each(act: Callable[[str], T], blobs: Sequence[str]) -> list[T]:
    """Apply to each blob; in parallel if there are many, for when many hosts crash together."""
    if len(blobs) <= _PARALLEL:
        return [act(blob) for blob in blobs]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(act, blobs))
