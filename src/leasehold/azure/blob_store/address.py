"""The address of a container and its credential, from a URL and the environment.

================================================================  ==============================
URL                                                               meaning
================================================================  ==============================
``azure-blob://ACCOUNT/CONTAINER[/PREFIX]``                       the public cloud, by https
``azure-blob://ACCOUNT.blob.DOMAIN/CONTAINER[/PREFIX]``           another cloud, by https
``azure-blob://HOST:PORT/ACCOUNT/CONTAINER[/PREFIX][?tls=0]``     an emulator, or a private one
================================================================  ==============================

The credential is the first of these that exists: ``?sas=`` in the URL, AZURE_STORAGE_SAS_TOKEN,
AZURE_STORAGE_KEY, AZURE_STORAGE_CONNECTION_STRING if it is of this account (its BlobEndpoint is
then used too). Without any of them it is Entra ID, by ``DefaultAzureCredential``. No secret is ever
shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from leasehold.errors import InvalidUrl

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHORT = "azure-blob://ACCOUNT/CONTAINER"
EXAMPLES = (
    f"{_SHORT}, {_SHORT}/PREFIX or, for an emulator, "
    "azure-blob://127.0.0.1:10000/devstoreaccount1/CONTAINER?tls=0"
)
_PUBLIC = "blob.core.windows.net"
# The account of every emulator; its key is printed in the service's documentation.
_EMULATOR = "devstoreaccount1"
_EMULATOR_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"[a-z0-9$](?:-?[a-z0-9]){2,62}")
_PREFIX = re.compile(r"[A-Za-z0-9_~-]+(?:/[A-Za-z0-9_~-]+)*")
_LONGEST_PREFIX = 200
# What may be quoted: neither a key nor a SAS looks like this.
_HARMLESS = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_SWITCH = {"0", "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobAddress:
    """One container. ``root`` is the path of the account at the host: empty, or ``/account``."""

    account: str
    container: str
    prefix: str
    host: str
    port: int | None
    tls: bool
    root: str
    key: str = field(default="", repr=False)
    sas: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str, environment: Mapping[str, str]) -> BlobAddress:
        """Parse the URL, and complete it from the environment.

        Raises:
            InvalidUrl: the URL is not valid. The message does not quote it: it may hold a secret.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise _unreadable("it is no URL") from None
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if "@" in parts.netloc or set(query) - {"tls", "sas"}:
            raise _unreadable("it may have the options tls and sas, and no user")
        if query.get("tls", "1") not in _SWITCH:
            raise _unreadable("tls is 1 (https) or 0 (http)")
        names = [unquote(each) for each in parts.path.strip("/").split("/")]
        return _checked(host, port, names, query, environment)

    @property
    def url(self) -> str:
        """The URL without secrets, for display."""
        container_path = "/".join(filter(None, (self.container, self.prefix)))
        if self.root:
            port = f":{self.port}" if self.port else ""
            return f"azure-blob://{self.host}{port}{self.root}/{container_path}" + (
                "" if self.tls else "?tls=0"
            )
        public = self.host == f"{self.account}.{_PUBLIC}"
        return f"azure-blob://{self.account if public else self.host}/{container_path}"

    def path(self, name: str = "") -> str:
        """Return the path of a blob, quoted as it is sent and signed."""
        return f"{self.root}/{self.container}" + (f"/{quote(name, safe='/$~=')}" if name else "")


def _checked(
    host: str,
    port: int | None,
    names: list[str],
    query: Mapping[str, str],
    environment: Mapping[str, str],
) -> BlobAddress:
    by_path = port is not None or host == "localhost" or bool(re.fullmatch(r"[\d.]+|.*:.*", host))
    account = names.pop(0) if by_path and names else host.split(".", maxsplit=1)[0]
    container = names.pop(0) if names else ""
    address = BlobAddress(
        account=account,
        container=container,
        prefix="/".join(names),
        host=host if by_path or "." in host else f"{host}.{_PUBLIC}",
        port=port,
        tls=query.get("tls", "1") != "0",
        root=f"/{account}" if by_path else "",
    )
    _check_part("account", account, _ACCOUNT, "3 to 24 small letters and digits")
    _check_part(
        "container",
        container,
        _CONTAINER,
        "3 to 63 small letters, digits and single hyphens, a letter or digit at both ends",
    )
    if address.prefix and (
        not _PREFIX.fullmatch(address.prefix) or len(address.prefix) > _LONGEST_PREFIX
    ):
        raise _unreadable("a prefix has letters, digits, _, ~ and -, with slashes between")
    return _with_credential(address, query.get("sas", ""), environment)


def _check_part(what: str, name: str, allowed: re.Pattern[str], may_be: str) -> None:
    """Check one part of the URL; the error names only that part."""
    if allowed.fullmatch(name):
        return
    if _HARMLESS.fullmatch(name):
        wrong = f"{name!r} is no name for the {what}"
    else:
        wrong = f"what it has for the {what} is no name" if name else f"it names no {what}"
    raise _unreadable(f"{wrong} ({may_be})", _SHORT)


def _with_credential(address: BlobAddress, sas: str, environment: Mapping[str, str]) -> BlobAddress:
    sas = sas or environment.get("AZURE_STORAGE_SAS_TOKEN", "")
    if sas:
        return replace(address, sas=sas.removeprefix("?"))
    if key := environment.get("AZURE_STORAGE_KEY", ""):
        return replace(address, key=key)
    given = _connection(environment.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    try:
        of_endpoint = _account_at(given.get("blobendpoint", ""))
        at_endpoint = _at_endpoint(address, given.get("blobendpoint", ""))
    except ValueError:
        raise InvalidUrl(
            "the BlobEndpoint in AZURE_STORAGE_CONNECTION_STRING is no URL: write "
            "https://ACCOUNT.blob.core.windows.net, or copy the connection string again"
        ) from None
    if address.account in {given.get("accountname"), of_endpoint}:
        address = at_endpoint
        sas = given.get("sharedaccesssignature", "").removeprefix("?")
        return replace(address, key=given.get("accountkey", ""), sas=sas)
    if address.account == _EMULATOR and address.root:
        return replace(address, key=_EMULATOR_KEY)
    return address


def _connection(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip().lower(): value for name, _, value in pairs if name.strip()}


def _account_at(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return parts.path.strip("/") or (parts.hostname or "").split(".", maxsplit=1)[0]


def _at_endpoint(address: BlobAddress, endpoint: str) -> BlobAddress:
    parts = urlsplit(endpoint)
    if not parts.hostname:
        return address
    return replace(
        address,
        host=parts.hostname,
        port=parts.port,
        tls=parts.scheme != "http",
        root=parts.path.rstrip("/"),
    )


def _unreadable(why: str, examples: str = EXAMPLES) -> InvalidUrl:
    return InvalidUrl(f"the Azure Blob URL can not be used: {why}; write {examples}")
