"""The requests that the store makes to a container: each method is one request."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from leasehold.azure.blob_store.http import date_s
from leasehold.errors import StoreUnusable
from leasehold.stores.validation import no_store_yet

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

    def __init__(self, address: BlobAddress, http_client: HttpClient) -> None:
        self.http_client = http_client
        self._address = address
        self._prefix = f"{address.prefix}/" if address.prefix else ""

    def prepare(self, cancelled: threading.Event, *, create: bool = True) -> None:
        """Create the container unless it exists; without ``create``, require that it exists."""
        query = {"restype": "container", "comp": "list", "maxresults": "1"}
        path = self._address.path()
        if (
            self.http_client.request(
                "GET", path, query=query, retry=True, cancelled=cancelled
            ).status
            == OK
        ):
            return
        if not create:
            raise no_store_yet(self._address.url)
        response = self.http_client.request(
            "PUT", path, query={"restype": "container"}, retry=True, cancelled=cancelled
        )
        if response.status not in {CREATED, CONFLICT} or response.code == "ContainerBeingDeleted":
            raise StoreUnusable(
                f"the container {self._address.container} can not be made ({response.status} "
                f"{response.code}): make it, or wait until the deleted one is gone"
            )

    def put(
        self,
        name: str,
        body: bytes,
        *,
        etag: str | None,
        metadata: Mapping[str, str],
        cancelled: threading.Event,
    ) -> str | None:
        """Write a blob if it still has this ETag, or does not exist (None); return the new ETag.

        None if it has changed. A lost response is not requested again: whether the blob was written
        is unknown.
        """
        headers = {"x-ms-blob-type": "BlockBlob", "Content-Type": "application/json"}
        headers |= {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}
        headers |= {f"x-ms-meta-{key}": value for key, value in metadata.items()}
        response = self._request(
            "PUT", name, headers=headers, body=body, retry=False, cancelled=cancelled
        )
        if response.status == CREATED:
            return response.etag
        if response.status in {NOT_FOUND, CONFLICT, FAILED}:
            _check_container(response)
            return None
        raise _unexpected(response, name)

    def get(self, name: str, cancelled: threading.Event, *, etag: str = "") -> ReadBlob | None:
        """Read a blob; None if it does not exist. ``body`` is empty if it still has ``etag``."""
        headers = {"If-None-Match": f'"{etag}"'} if etag else {}
        response = self._request("GET", name, headers=headers, retry=True, cancelled=cancelled)
        if response.status == NOT_FOUND:
            _check_container(response)
            return None
        if response.status == UNCHANGED:
            return ReadBlob(body=b"", etag=etag, metadata={})
        if response.status != OK:
            raise _unexpected(response, name)
        metadata = {
            key.removeprefix("x-ms-meta-"): value
            for key, value in response.headers.items()
            if key.startswith("x-ms-meta-")
        }
        return ReadBlob(
            body=response.body,
            etag=response.etag,
            metadata=metadata,
            modified_s=date_s(response.headers.get("last-modified", "")),
            lease_state=response.headers.get("x-ms-lease-state", ""),
        )

    def put_leased(
        self,
        name: str,
        body: bytes,
        *,
        lease_id: str,
        metadata: Mapping[str, str],
        cancelled: threading.Event,
    ) -> HttpResponse:
        """Replace an existing blob under its lease. Repeating the write changes nothing."""
        headers = {"x-ms-blob-type": "BlockBlob", "If-Match": "*", "x-ms-lease-id": lease_id}
        headers |= {f"x-ms-meta-{key}": value for key, value in metadata.items()}
        response = self._request(
            "PUT", name, headers=headers, body=body, retry=True, cancelled=cancelled
        )
        _check_container(response)
        return response

    def set_metadata(
        self, name: str, metadata: Mapping[str, str], *, etag: str, cancelled: threading.Event
    ) -> str | None:
        """Write the metadata of a blob that still has this ETag; return the new ETag.

        None if it has changed or is gone. A lost response is not requested again: whether the
        metadata was written is unknown.
        """
        headers = {"If-Match": f'"{etag}"'}
        headers |= {f"x-ms-meta-{key}": value for key, value in metadata.items()}
        response = self._request(
            "PUT",
            name,
            query={"comp": "metadata"},
            headers=headers,
            retry=False,
            cancelled=cancelled,
        )
        if response.status == OK:
            return response.etag
        if response.status in {NOT_FOUND, CONFLICT, FAILED}:
            _check_container(response)
            return None
        raise _unexpected(response, name)

    def list(self, path: str, cancelled: threading.Event) -> dict[str, ListedBlob]:
        """List all blobs whose name begins with ``path``: one request for each 5,000."""
        query = {"restype": "container", "comp": "list", "include": "metadata"}
        query["prefix"] = self._prefix + path
        found: dict[str, ListedBlob] = {}
        for _ in range(_MAX_PAGES):
            response = self.http_client.request(
                "GET", self._address.path(), query=query, retry=True, cancelled=cancelled
            )
            if response.status != OK:
                _check_container(response)
                raise _unexpected(response, path)
            root = _parsed(response, path)
            for each in root.iter("Blob"):
                listed = _listed(each, len(self._prefix))
                found[listed.name] = listed
            query["marker"] = root.findtext("NextMarker") or ""
            if not query["marker"]:
                return found
        raise StoreUnusable(f"there are too many blobs below {path}: use another prefix")

    def lease(
        self, name: str, action: str, cancelled: threading.Event, **more: str | int
    ) -> HttpResponse:
        """Send one lease operation for a blob; ``more`` are its headers without ``x-ms-``."""
        headers = {"x-ms-lease-action": action}
        headers |= {f"x-ms-{key.replace('_', '-')}": str(value) for key, value in more.items()}
        response = self._request(
            "PUT", name, query={"comp": "lease"}, headers=headers, retry=True, cancelled=cancelled
        )
        _check_container(response)
        return response

    def delete(self, name: str, cancelled: threading.Event, *, lease_id: str = "") -> bool:
        """Delete a blob; return whether it is gone. A running lease needs its ``lease_id``."""
        headers = {"x-ms-lease-id": lease_id} if lease_id else {}
        response = self._request("DELETE", name, headers=headers, retry=True, cancelled=cancelled)
        _check_container(response)
        return response.status in {ACCEPTED, NOT_FOUND}

    def _request(
        self,
        method: str,
        name: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str],
        body: bytes = b"",
        retry: bool,
        cancelled: threading.Event,
    ) -> HttpResponse:
        return self.http_client.request(
            method,
            self._address.path(self._prefix + name),
            query=query,
            headers=headers,
            body=body,
            retry=retry,
            cancelled=cancelled,
        )


def encode_metadata(text: str) -> str:
    """Encode any text as metadata."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_metadata(text: str) -> str:
    """Decode what ``encode_metadata`` wrote."""
    return base64.urlsafe_b64decode(text.encode()).decode()


def _parsed(response: HttpResponse, path: str) -> ET.Element:
    try:
        # The service is the one that we trust with everything else.
        return ET.fromstring(response.body)  # noqa: S314
    except ET.ParseError as error:
        raise _unexpected(response, path) from error


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


def _check_container(response: HttpResponse) -> None:
    if response.code in {"ContainerNotFound", "ContainerBeingDeleted"}:
        raise StoreUnusable(
            "the container of this store is gone: open the store anew, which makes it again; "
            "what was in it is lost"
        )


def _unexpected(response: HttpResponse, name: str) -> StoreUnusable:
    return StoreUnusable(
        f"the blob service gave an answer that makes no sense for {name}: "
        f"{response.status} {response.code}"
    )
