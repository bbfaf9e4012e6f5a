"""The calls that the store makes of a container: each is one request, and says what came of it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from leasehold.azure.blob_store.http import date_s
from leasehold.errors import StoreUnusable

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from leasehold.azure.blob_store.address import BlobAddress
    from leasehold.azure.blob_store.http import HttpClient, HttpResponse

OK, CREATED, ACCEPTED = 200, 201, 202
UNCHANGED, NOT_FOUND, CONFLICT, FAILED = 304, 404, 409, 412
_MAX_PAGES = 100
_LOCKED = frozenset(("leased", "breaking"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBlob:
    """A blob as a listing shows it."""

    name: str
    etag: str
    lease_state: str
    modified_s: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def locked(self) -> bool:
        """Whether its lease runs, by the service's clock."""
        return self.lease_state in _LOCKED


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBlob:
    """A blob that was read."""

    body: bytes = field(repr=False)
    etag: str
    metadata: Mapping[str, str]
    modified_s: float = 0.0
    lease_state: str = ""


class Container:
    """One container, below one prefix. Names are given and returned without the prefix."""

    def __init__(self, address: BlobAddress, wire: HttpClient) -> None:
        """Ask nothing yet."""
        self.wire = wire
        self._address = address
        self._prefix = f"{address.prefix}/" if address.prefix else ""

    def make(self, given_up: threading.Event) -> None:
        """Make the container unless it is there.

        Raises:
            StoreUnavailable: there is no answer.
            StoreUnusable: it is not there, and we may not make it.
        """
        query = {"restype": "container", "comp": "list", "maxresults": "1"}
        path = self._address.path()
        if self.wire.ask("GET", path, query=query, again=True, given_up=given_up).status == OK:
            return
        answer = self.wire.ask(
            "PUT", path, query={"restype": "container"}, again=True, given_up=given_up
        )
        if answer.status not in {CREATED, CONFLICT} or answer.code == "ContainerBeingDeleted":
            raise StoreUnusable(
                f"the container {self._address.container} can not be made ({answer.status} "
                f"{answer.code}): make it, or wait until the deleted one is gone"
            )

    def put(
        self,
        name: str,
        body: bytes,
        *,
        etag: str | None,
        metadata: Mapping[str, str],
        given_up: threading.Event,
    ) -> str | None:
        """Write a blob if it still has this ETag, or if there is none (None); the new ETag.

        None if it has changed. An answer that is lost is not asked for again: whether it was
        written is unknown.
        """
        headers = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/json"}
        headers |= {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}
        headers |= {f"x-ms-meta-{key}": value for key, value in metadata.items()}
        answer = self._ask("PUT", name, headers=headers, body=body, again=False, given_up=given_up)
        if answer.status == CREATED:
            return answer.etag
        if answer.status in {NOT_FOUND, CONFLICT, FAILED}:
            _check_container(answer)
            return None
        raise _odd(answer, name)

    def get(self, name: str, given_up: threading.Event, *, etag: str = "") -> ReadBlob | None:
        """Read a blob; None if there is none. ``body`` is empty if it still has ``etag``."""
        headers = {"If-None-Match": f'"{etag}"'} if etag else {}
        answer = self._ask("GET", name, headers=headers, again=True, given_up=given_up)
        if answer.status == NOT_FOUND:
            _check_container(answer)
            return None
        if answer.status == UNCHANGED:
            return ReadBlob(body=b"", etag=etag, metadata={})
        if answer.status != OK:
            raise _odd(answer, name)
        metadata = {
            key.removeprefix("x-ms-meta-"): value
            for key, value in answer.headers.items()
            if key.startswith("x-ms-meta-")
        }
        return ReadBlob(
            body=answer.body,
            etag=answer.etag,
            metadata=metadata,
            modified_s=date_s(answer.headers.get("last-modified", "")),
            lease_state=answer.headers.get("x-ms-lease-state", ""),
        )

    def put_leased(
        self,
        name: str,
        body: bytes,
        *,
        lease_id: str,
        metadata: Mapping[str, str],
        given_up: threading.Event,
    ) -> HttpResponse:
        """Write a blob that is there, under its lease: the same bytes twice are one write."""
        headers = {"x-ms-blob-type": "BlockBlob", "If-Match": "*", "x-ms-lease-id": lease_id}
        headers |= {f"x-ms-meta-{key}": value for key, value in metadata.items()}
        answer = self._ask("PUT", name, headers=headers, body=body, again=True, given_up=given_up)
        _check_container(answer)
        return answer

    def set_metadata(
        self, name: str, metadata: Mapping[str, str], *, etag: str, given_up: threading.Event
    ) -> str | None:
        """Write the metadata of a blob that still has this ETag; the new ETag.

        None if it has changed, or is gone. An answer that is lost is not asked for again: whether
        it was written is unknown.
        """
        headers = {"If-Match": f'"{etag}"'}
        headers |= {f"x-ms-meta-{key}": value for key, value in metadata.items()}
        answer = self._ask(
            "PUT", name, query={"comp": "metadata"}, headers=headers, again=False, given_up=given_up
        )
        if answer.status == OK:
            return answer.etag
        if answer.status in {NOT_FOUND, CONFLICT, FAILED}:
            _check_container(answer)
            return None
        raise _odd(answer, name)

    def list(self, path: str, given_up: threading.Event) -> dict[str, ListedBlob]:
        """All blobs whose name begins with ``path``: one call for each 5,000."""
        query = {"restype": "container", "comp": "list", "include": "metadata"}
        query["prefix"] = self._prefix + path
        found: dict[str, ListedBlob] = {}
        for _ in range(_MAX_PAGES):
            answer = self.wire.ask(
                "GET", self._address.path(), query=query, again=True, given_up=given_up
            )
            if answer.status != OK:
                _check_container(answer)
                raise _odd(answer, path)
            root = _parsed(answer, path)
            for each in root.iter("Blob"):
                listed = _listed(each, len(self._prefix))
                found[listed.name] = listed
            query["marker"] = root.findtext("NextMarker") or ""
            if not query["marker"]:
                return found
        raise StoreUnusable(f"there are too many blobs below {path}: use another prefix")

    def lease(
        self, name: str, action: str, given_up: threading.Event, **more: str | int
    ) -> HttpResponse:
        """One operation on the lease of a blob; ``more`` are its headers without ``x-ms-``."""
        headers = {"x-ms-lease-action": action}
        headers |= {f"x-ms-{key.replace('_', '-')}": str(value) for key, value in more.items()}
        answer = self._ask(
            "PUT", name, query={"comp": "lease"}, headers=headers, again=True, given_up=given_up
        )
        _check_container(answer)
        return answer

    def delete(self, name: str, given_up: threading.Event, *, lease_id: str = "") -> bool:
        """Remove a blob; whether it is gone. Not if its lease runs and is not shown."""
        headers = {"x-ms-lease-id": lease_id} if lease_id else {}
        answer = self._ask("DELETE", name, headers=headers, again=True, given_up=given_up)
        _check_container(answer)
        return answer.status in {ACCEPTED, NOT_FOUND}

    def _ask(
        self,
        method: str,
        name: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str],
        body: bytes = b"",
        again: bool,
        given_up: threading.Event,
    ) -> HttpResponse:
        return self.wire.ask(
            method,
            self._address.path(self._prefix + name),
            query=query,
            headers=headers,
            body=body,
            again=again,
            given_up=given_up,
        )


def in_metadata(text: str) -> str:
    """Any text, as metadata can hold it."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def from_metadata(text: str) -> str:
    """What ``in_metadata`` wrote."""
    return base64.urlsafe_b64decode(text.encode()).decode()


def _parsed(answer: HttpResponse, path: str) -> ET.Element:
    try:
        # The service is the one that we trust with everything else.
        return ET.fromstring(answer.body)  # noqa: S314
    except ET.ParseError as error:
        raise _odd(answer, path) from error


def _listed(blob: ET.Element, cut: int) -> ListedBlob:
    metadata = blob.find("Metadata")
    return ListedBlob(
        name=(blob.findtext("Name") or "")[cut:],
        etag=(blob.findtext("Properties/Etag") or "").strip('"'),
        lease_state=blob.findtext("Properties/LeaseState") or "",
        modified_s=date_s(blob.findtext("Properties/Last-Modified") or ""),
        metadata={
            each.tag.lower(): each.text or "" for each in (() if metadata is None else metadata)
        },
    )


def _check_container(answer: HttpResponse) -> None:
    if answer.code in {"ContainerNotFound", "ContainerBeingDeleted"}:
        raise StoreUnusable(
            "the container of this store is gone: open the store anew, which makes it again; "
            "what was in it is lost"
        )


def _odd(answer: HttpResponse, name: str) -> StoreUnusable:
    return StoreUnusable(
        f"the blob service gave an answer that makes no sense for {name}: "
        f"{answer.status} {answer.code}"
    )
