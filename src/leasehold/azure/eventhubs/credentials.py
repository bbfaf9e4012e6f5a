"""Tokens for a hub: signed with a key, given as a signature, or from Entra ID.

Guarantees: no ``repr`` contains the text of a token. A token signed here is for one audience and
one hour. Every token has its expiry.
"""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote_plus

from anyio import to_thread

from leasehold.errors import StoreUnavailable, UsageError
from leasehold.stores.identity import reason_of, token_of

if TYPE_CHECKING:
    from leasehold.azure.eventhubs.address import HubAddress
    from leasehold.clock import Clock

SAS = "servicebus.windows.net:sastoken"
JWT = "jwt"
_SCOPE = "https://eventhubs.azure.net//.default"
_TOKEN_LIFE = timedelta(hours=1)
_EXPIRY = re.compile(r"(?:^|[&\s])se=(\d{1,15})(?:&|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token. ``kind`` is its type, as the hub names it."""

    kind: str
    text: str = field(repr=False)
    expires_at: datetime


class TokenProvider(Protocol):
    """Makes tokens."""

    async def token(self, audience: str) -> Token:
        """Return a token that is valid now for this audience.

        Raises:
            StoreUnavailable: the issuer cannot be reached, or refuses.
        """
        ...


class Credential(Protocol):
    """A credential of azure-identity, or anything with the same method. Called in a thread."""

    def get_token(self, *scopes: str) -> object:
        """Return an object with ``token`` and ``expires_on``, in seconds since 1970."""
        ...


class SharedAccessKey:
    """Signs its own tokens with a shared access key."""

    def __init__(self, name: str, key: str, *, clock: Clock) -> None:
        self._name = name
        self._key = key.encode()
        self._clock = clock

    async def token(self, audience: str) -> Token:
        """Sign a token for one hour."""
        expires_at = self._clock.utc_now() + _TOKEN_LIFE
        resource, second = quote_plus(audience), int(expires_at.timestamp())
        signed = hmac.new(self._key, f"{resource}\n{second}".encode(), sha256).digest()
        signature = quote_plus(base64.b64encode(signed))
        name = quote_plus(self._name)
        text = f"SharedAccessSignature sr={resource}&sig={signature}&se={second}&skn={name}"
        return Token(kind=SAS, text=text, expires_at=expires_at)


class SharedAccessSignature:
    """A ready-made shared access signature: the same one each time."""

    def __init__(self, text: str, *, clock: Clock) -> None:
        self._text = text
        self._clock = clock

    async def token(self, audience: str) -> Token:
        """Return the signature; one without an expiry is sent again each hour."""
        del audience
        found = _EXPIRY.search(self._text)
        at = _utc(int(found[1])) if found else self._clock.utc_now() + _TOKEN_LIFE
        return Token(kind=SAS, text=self._text, expires_at=at)


class EntraCredential:
    """Tokens of Microsoft Entra ID."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def token(self, audience: str) -> Token:
        """Request a token from Entra ID, in a thread."""
        del audience
        try:
            found = await to_thread.run_sync(
                token_of, self._credential, _SCOPE, abandon_on_cancel=True
            )
        except Exception as error:
            raise StoreUnavailable(
                "Entra ID gave no token for the event hub: sign in (`az login`), give the host an "
                "identity with the role Azure Event Hubs Data Receiver, or use a connection string "
                f"(azure-identity says: {reason_of(error)})"
            ) from error
        text, second = getattr(found, "token", ""), getattr(found, "expires_on", 0)
        return Token(kind=JWT, text=str(text), expires_at=_utc(int(second)))


def provider_for(
    address: HubAddress, *, clock: Clock, credential: Credential | None = None
) -> TokenProvider:
    """Return a provider: the credential, the address's key or signature, or Entra ID's default."""
    if credential is not None:
        return EntraCredential(credential)
    if address.key:
        return SharedAccessKey(address.key_name, address.key, clock=clock)
    if address.signature:
        return SharedAccessSignature(address.signature, clock=clock)
    try:
        identity = import_module("azure.identity")
    except ImportError as error:
        raise UsageError(
            f"no key was given for {address}, and Entra ID needs a package: pip install "
            "'leasehold[azure]', or set EVENTHUB_CONNECTION_STRING"
        ) from error
    return EntraCredential(identity.DefaultAzureCredential())


def _utc(second: int) -> datetime:
    return datetime.fromtimestamp(min(max(second, 0), 253_402_300_799), UTC)
