"""Shared access keys, and the tokens that clients sign with them.

Guarantees: a token is valid only if it was signed with one of the keys, has not expired, and was
signed for the resource it is used for. An answer never reveals which keys exist. No message, log or
``repr`` contains a key or a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

from leasehold.azure.endpoint.addresses import split_host
from leasehold.azure.endpoint.error_conditions import AUTH_FAILED, RequestRefused
from leasehold.clock import new_token
from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_NAME = "leasehold"
_SAS = "SharedAccessSignature "
_SAS_TYPE = "servicebus.windows.net:sastoken"
_MAX_TOKEN_CHARS = 8192
_LAST_SECOND = 253_402_300_799  # of the year 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one token allows: everything at and below ``path``, until it expires."""

    path: str
    expires_at: datetime | None = None

    def covers(self, path: str) -> bool:
        """Return whether it allows this path, given in lower case."""
        return not self.path or path == self.path or path.startswith(f"{self.path}/")

    def covers_hub(self, hub: str) -> bool:
        """Return whether it is for this hub or a part of it."""
        return self.path.split("/", 1)[0] in {"", hub.lower()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SasKeys:
    """Shared access keys by name."""

    keys: Mapping[str, str] = field(repr=False)

    @classmethod
    def parse(cls, pairs: Iterable[str]) -> SasKeys:
        """Read keys written as ``NAME=KEY``; make a new one if there is none.

        Raises:
            UsageError: a key is not written like that.
        """
        keys = {}
        for pair in pairs:
            name, equals, key = pair.partition("=")
            if (
                not equals
                or not name
                or not key
                or not name.isprintable()
                or set(name + key) & set(";\0")
            ):
                raise UsageError(
                    "a key is written as NAME=KEY, neither of them empty or with a ; in it, such "
                    "as app=a-long-random-text"
                )
            keys[name] = key
        return cls(keys=keys or {DEFAULT_NAME: new_token()})

    def grant(self, token: object, *, kind: object, audience: object, now: datetime) -> Grant:
        """Return what a token allows.

        Raises:
            RequestRefused: the token is not valid, has expired, or is for another resource.
        """
        if kind != _SAS_TYPE:
            raise _auth_failed(
                "InvalidTokenType",
                "only SAS tokens are taken here, not Entra ID ones: connect with a connection "
                "string that has a SharedAccessKey",
            )
        if (
            not isinstance(token, str)
            or not isinstance(audience, str)
            or len(token) > _MAX_TOKEN_CHARS
        ):
            raise _auth_failed("MalformedToken", "the token can not be read")
        parts = dict(
            part.partition("=")[::2] for part in token.removeprefix(_SAS).split("&") if "=" in part
        )
        try:
            resource, expiry, name = parts["sr"], parts["se"], unquote(parts["skn"])
            expires_s = int(expiry) if len(expiry) <= len(str(_LAST_SECOND)) else -1
            signed = base64.b64decode(unquote(parts["sig"]), validate=True)
        except (KeyError, ValueError) as error:
            raise _auth_failed("MalformedToken", "the token can not be read") from error
        # An unknown name takes as long as a known one, and gets the same answer.
        key = self.keys.get(name, "")
        expected = hmac.digest(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)
        if not hmac.compare_digest(expected, signed) or not key:
            raise _auth_failed("InvalidSignature", "The token has an invalid signature.")
        if not 0 <= expires_s <= _LAST_SECOND:
            raise _auth_failed("MalformedToken", "the time of its expiry can not be read")
        expires_at = datetime.fromtimestamp(expires_s, UTC)
        if expires_at <= now:
            raise _auth_failed(
                "ExpiredToken", f"The token is expired. Expiration time: '{expires_at}'."
            )
        host, path = split_host(unquote(resource))
        audience_host, audience_path = split_host(audience)
        found = Grant(path=path.lower(), expires_at=expires_at)
        if host != audience_host or not found.covers(audience_path.lower()):
            raise _auth_failed("InvalidAudience", "The token was signed for another resource.")
        return found

    def grant_plain(self, response: bytes | None) -> Grant | None:
        """Return what a name and a key from SASL PLAIN allow; None if they are wrong."""
        parts = (response or b"").split(b"\0")
        if len(parts) != 3:  # noqa: PLR2004 - authorization id, name and key
            return None
        key = self.keys.get(parts[1].decode(errors="replace"), "")
        if hmac.compare_digest(key.encode(), parts[2]) and key:
            return Grant(path="")
        return None

    def connection_string(
        self, host: str, port: int, *, hub: str = "", is_plain: bool = True
    ) -> str:
        """Return a connection string with the first key. It is a secret: it holds the key."""
        name, key = next(iter(self.keys.items()))
        entity = f"EntityPath={hub};" if hub else ""
        plain = "UseDevelopmentEmulator=true;" if is_plain else ""
        shown = f"[{host}]" if ":" in host else host
        return (
            f"Endpoint=sb://{shown}:{port};SharedAccessKeyName={name};SharedAccessKey={key};"
            f"{entity}{plain}"
        )


def _auth_failed(code: str, reason: str) -> RequestRefused:
    return RequestRefused(AUTH_FAILED, f"{code}: {reason}", status=401)
