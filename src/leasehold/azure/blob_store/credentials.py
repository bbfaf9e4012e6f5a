"""Credentials for the blob service: an account key, a SAS, or a token of Entra ID."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

from leasehold.errors import InvalidUrl, StoreUnusable
from leasehold.stores.identity import reason_of, token_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.azure.blob_store.address import BlobAddress
    from leasehold.clock import Clock

log = logging.getLogger("leasehold.azure_blob")

_SCOPE = "https://storage.azure.com/.default"
# A token is replaced while it is still valid, so that no call waits for a new one in vain.
_REFRESH_S = 300.0
_PAUSE_S = 20.0
_SIGNED = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


class BlobCredential(Protocol):
    """Authenticates requests to the service."""

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return what must be added to the headers of this request."""
        ...

    @property
    def query(self) -> str:
        """What must be added to the query, as it is."""
        ...


class AccountKey:
    """The key of the account, which signs every request."""

    query = ""

    def __init__(self, account: str, key: str) -> None:
        """Sign for this account."""
        self._account = account
        try:
            self._key = base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidUrl(
                f"the key of the storage account {account} is not in base 64: copy it again"
            ) from None

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return the signature of this request."""
        plain = {name: headers.get(name, "") for name in _SIGNED}
        if plain["Content-Length"] == "0":
            plain["Content-Length"] = ""
        own = sorted((name.lower(), value) for name, value in headers.items() if name[:2] == "x-")
        lines = [method, *plain.values(), *(f"{name}:{value}" for name, value in own)]
        lines.append(f"/{self._account}{path}")
        lines += [f"{name}:{query[name]}" for name in sorted(query)]
        digest = hmac.digest(self._key, "\n".join(lines).encode(), hashlib.sha256)
        signature = base64.b64encode(digest).decode()
        return {"Authorization": f"SharedKey {self._account}:{signature}"}


class Sas:
    """A shared access signature, which is part of the query."""

    def __init__(self, sas: str) -> None:
        self.query = sas

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return nothing: the signature is in the query."""
        del method, path, query, headers
        return {}


def expired_on(sas: str, now: datetime) -> str:
    """Return when a SAS expired, from its ``se``; empty if it has not, or has no ``se``."""
    try:
        said = datetime.fromisoformat(parse_qs(sas)["se"][0])
    except (KeyError, ValueError):
        return ""
    at = said.replace(tzinfo=UTC) if said.tzinfo is None else said.astimezone(UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at <= now else ""


class Bearer:
    """A token of Entra ID, replaced before it expires."""

    query = ""

    def __init__(self, credential: Any, clock: Clock) -> None:
        """Ask ``credential``, which has ``get_token``, when a token is needed."""
        self._credential = credential
        self._clock = clock
        self._lock = threading.Lock()
        # The token, its end, and from when on a new one is asked for.
        self._token = ("", 0.0, 0.0)

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return the header. While the old token is valid, only one caller waits for a new one."""
        del method, path, query, headers
        now_s = self._clock.utc_now().timestamp()
        _, ends_at, ask_at = self._token
        if now_s > ask_at and self._lock.acquire(blocking=now_s >= ends_at):
            try:
                if now_s > self._token[2]:  # not asked for in the meantime
                    self._renew(now_s)
            finally:
                self._lock.release()
        return {"Authorization": f"Bearer {self._token[0]}"}

    def _renew(self, now_s: float) -> None:
        token, ends_at, _ = self._token
        try:
            found = token_of(self._credential, _SCOPE)
        except Exception as error:
            said = reason_of(error)
            if now_s < ends_at:
                self._token = (token, ends_at, now_s + _PAUSE_S)
                log.warning("the token of Entra ID can not be renewed yet: %s", said)
                return
            raise StoreUnusable(
                "there is no right to the storage account: set AZURE_STORAGE_KEY, "
                "AZURE_STORAGE_SAS_TOKEN or the AZURE_STORAGE_CONNECTION_STRING of this account, "
                f"or log in to Entra ID (azure-identity says: {said})"
            ) from error
        ends_at = float(found.expires_on)
        self._token = (found.token, ends_at, ends_at - _REFRESH_S)


def credential_for(address: BlobAddress, clock: Clock) -> BlobCredential:
    """Return the credential of an address."""
    if address.sas:
        return Sas(address.sas)
    if address.key:
        return AccountKey(address.account, address.key)
    if not address.tls:
        # A process that reads a token in transit can act with it until it expires.
        raise InvalidUrl(
            "without a key or a SAS the right comes from Entra ID, whose tokens go by https only: "
            "set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or the AZURE_STORAGE_CONNECTION_STRING "
            "of this account, or leave ?tls=0 out of the URL"
        )
    try:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - only if it is needed
    except ImportError as error:
        raise InvalidUrl(
            "without a key or a SAS the right comes from Entra ID, which needs the package "
            "'azure-identity': pip install 'leasehold[azure]'"
        ) from error
    return Bearer(DefaultAzureCredential(), clock)
