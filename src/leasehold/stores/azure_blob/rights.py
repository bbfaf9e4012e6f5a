"""Rights: what makes a request ours. A shared key, a SAS, or a token of Entra ID."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import threading
from typing import TYPE_CHECKING, Any, Protocol

from leasehold.errors import StoreUnusable, UnknownStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.clock import Clock
    from leasehold.stores.azure_blob.address import Address

_SCOPE = "https://storage.azure.com/.default"
# A token is replaced while it is still good, so that no call waits for a new one in vain.
_REFRESH_S = 300.0
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


class Right(Protocol):
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


class SharedKey:
    """The key of the account: every request is signed with it."""

    query = ""

    def __init__(self, account: str, key: str) -> None:
        """Sign for this account.

        Raises:
            UnknownStore: the key is no key. It is not quoted.
        """
        self._account = account
        try:
            self._key = base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            raise UnknownStore(
                f"the key of the storage account {account} is not in base 64: copy it again"
            ) from None

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """See ``Right``."""
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
        """See ``Right``."""
        del method, path, query, headers
        return {}


class Bearer:
    """A token of Entra ID, replaced before its end."""

    query = ""

    def __init__(self, credential: Any, clock: Clock) -> None:
        """Ask ``credential``, which has ``get_token``, when a token is needed."""
        self._credential = credential
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._ends_at = 0.0

    def headers(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """See ``Right``.

        Raises:
            StoreUnusable: there is no credential that Entra ID accepts.
        """
        del method, path, query, headers
        with self._lock:
            if self._clock.utc_now().timestamp() > self._ends_at - _REFRESH_S:
                self._renew()
            return {"Authorization": f"Bearer {self._token}"}

    def _renew(self) -> None:
        try:
            found = self._credential.get_token(_SCOPE)
        except Exception as error:
            # Its own words may be long; they name the ways that were tried, and no secret.
            raise StoreUnusable(
                "there is no right to the storage account: set AZURE_STORAGE_KEY, "
                "AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or log in to "
                f"Entra ID (azure-identity says: {str(error)[:300]})"
            ) from error
        self._token, self._ends_at = found.token, float(found.expires_on)


def right_for(address: Address, clock: Clock) -> Right:
    """The right that the address has.

    Raises:
        UnknownStore: there is no secret, and azure-identity is not installed.
    """
    if address.sas:
        return Sas(address.sas)
    if address.key:
        return SharedKey(address.account, address.key)
    try:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - only if it is needed
    except ImportError as error:
        raise UnknownStore(
            "without a key or a SAS the right comes from Entra ID, which needs the package "
            "'azure-identity': pip install 'leasehold[azure]'"
        ) from error
    return Bearer(DefaultAzureCredential(), clock)
