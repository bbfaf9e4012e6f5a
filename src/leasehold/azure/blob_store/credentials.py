"""Rights: what makes a request ours. A shared key, a SAS, or a token of Entra ID."""

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
# A token is replaced while it is still good, so that no call waits for a new one in vain.
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
    """Proves to the service who asks."""

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """What is to be added to the headers of this request."""
        ...

    @property
    def query(self) -> str:
        """What is to be added to the query, as it is."""
        ...


class AccountKey:
    """The key of the account: every request is signed with it."""

    query = ""

    def __init__(self, account: str, key: str) -> None:
        """Sign for this account.

        Raises:
            InvalidUrl: the key is no key. It is not quoted.
        """
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
        """See ``BlobCredential``."""
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
    """A shared access signature, which goes with the query."""

    def __init__(self, sas: str) -> None:
        """Use it as it is."""
        self.query = sas

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """See ``BlobCredential``."""
        del method, path, query, headers
        return {}


def ended_on(sas: str, now: datetime) -> str:
    """When the time of a SAS was over, as its ``se`` says; empty if it is not, or tells none."""
    try:
        said = datetime.fromisoformat(parse_qs(sas)["se"][0])
    except (KeyError, ValueError):
        return ""
    at = said.replace(tzinfo=UTC) if said.tzinfo is None else said.astimezone(UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at <= now else ""


class Bearer:
    """A token of Entra ID, replaced before its end."""

    query = ""

    def __init__(self, credential: Any, clock: Clock) -> None:
        """Ask ``credential``, which has ``get_token``, when a token is needed."""
        self._credential = credential
        self._clock = clock
        self._lock = threading.Lock()
        # The token, its end, and from when on a new one is asked for.
        self._kept = ("", 0.0, 0.0)

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return the header. While the old token is good, only one caller waits for a new one.

        Raises:
            StoreUnusable: there is no credential that Entra ID accepts.
        """
        del method, path, query, headers
        now_s = self._clock.utc_now().timestamp()
        _, ends_at, ask_at = self._kept
        if now_s > ask_at and self._lock.acquire(blocking=now_s >= ends_at):
            try:
                if now_s > self._kept[2]:  # not asked for in the meantime
                    self._renew(now_s)
            finally:
                self._lock.release()
        return {"Authorization": f"Bearer {self._kept[0]}"}

    def _renew(self, now_s: float) -> None:
        token, ends_at, _ = self._kept
        try:
            found = token_of(self._credential, _SCOPE)
        except Exception as error:
            said = reason_of(error)
            if now_s < ends_at:
                self._kept = (token, ends_at, now_s + _PAUSE_S)
                log.warning("the token of Entra ID can not be renewed yet: %s", said)
                return
            raise StoreUnusable(
                "there is no right to the storage account: set AZURE_STORAGE_KEY, "
                "AZURE_STORAGE_SAS_TOKEN or the AZURE_STORAGE_CONNECTION_STRING of this account, "
                f"or log in to Entra ID (azure-identity says: {said})"
            ) from error
        ends_at = float(found.expires_on)
        self._kept = (found.token, ends_at, ends_at - _REFRESH_S)


def right_for(address: BlobAddress, clock: Clock) -> BlobCredential:
    """The right that the address has.

    Raises:
        InvalidUrl: there is no secret, and azure-identity is not installed, or the token would
            go unencrypted.
    """
    if address.sas:
        return Sas(address.sas)
    if address.key:
        return AccountKey(address.account, address.key)
    if not address.tls:
        # Who reads a token on its way can act with it until its end.
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
