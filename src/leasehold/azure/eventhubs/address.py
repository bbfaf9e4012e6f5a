"""Addresses of event hubs, with their credentials: ``eventhubs://NAMESPACE[:PORT]/HUB``.

Guarantees: no ``repr`` and no error message contains a key, a signature or a connection string,
also if the address that holds it cannot be read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from leasehold.errors import InvalidOptions, UsageError
from leasehold.names import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEME = "eventhubs://"
CONNECTION_VARIABLE = "EVENTHUB_CONNECTION_STRING"
TLS_PORT = 5671
PLAIN_PORT = 5672
MAX_PREFETCH = 100_000
DEFAULT_PREFETCH = 1_000
_AZURE_SUFFIX = ".servicebus.windows.net"
# User and key; namespace and hub, which are shown; options.
_PLAIN = re.compile(
    re.escape(SCHEME)
    + r"(?:[^@/?#]*@)?((?:[A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::\d+)?(?:/[\w.%~-]*)?)/?(?:\?[^@]*)?"
)
_OPTIONS = ("connection", "consumer_group", "arrow", "ca", "prefetch")
_USAGE = (
    "write eventhubs://NAMESPACE/HUB, such as eventhubs://contoso.servicebus.windows.net/orders"
)
_SWITCHES = {"on": True, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAddress:
    """One event hub.

    Attributes:
        host, port: where the service listens.
        hub: the name of the event hub.
        tls: whether the connection is encrypted; only an emulator may do without.
        key_name, key: a shared access key.
        signature: a ready-made shared access signature.
        consumer_group: consumer group of the hub for all groups; empty: the one of the same name.
        arrow: whether to use Arrow with a server that offers it.
        ca: file with the certificates to trust; empty: those of the machine.
        prefetch: maximum number of events of a partition that are in flight or waiting.
    """

    host: str
    port: int
    hub: str
    tls: bool = True
    key_name: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    consumer_group: str = ""
    arrow: bool = True
    ca: str = ""
    prefetch: int = DEFAULT_PREFETCH

    @property
    def namespace(self) -> str:
        """The host, with its port unless that is the default."""
        return self.host if self.port == TLS_PORT else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.namespace}/{self.hub}"

    def group_of(self, group: str) -> str:
        """Return the consumer group of the hub that the members of ``group`` use."""
        return self.consumer_group or group


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConnectionString:
    """The fields of a connection string."""

    host: str
    port: int | None
    hub: str
    key_name: str
    key: str
    signature: str
    emulator: bool


def is_address(text: str) -> bool:
    """Return whether the text has the scheme of an event hub."""
    return text.startswith(SCHEME)


def name_of(text: str) -> str:
    """Return the name of the hub.

    Raises:
        UsageError: the address cannot be read.
    """
    return parse(text).hub


def shown(text: str) -> str:
    """Return namespace and hub, for messages and logs.

    Only what can be told apart from a key is shown: a key that was not quoted may hold any
    character.
    """
    if not is_address(text):
        return text if re.fullmatch(r"[\w.-]*", text) else "…"
    found = _PLAIN.fullmatch(text)
    return f"{SCHEME}{found[1]}" if found else f"{SCHEME}…"


def parse(text: str, environ: Mapping[str, str] | None = None) -> HubAddress:
    """Read an address; without a key in it, use the connection string of the environment."""
    environ = os.environ if environ is None else environ
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # its message may quote a part of a key
        raise UsageError(
            f"{shown(text)} is no address of an event hub: {_USAGE}; quote what is special in a "
            "key (%2F for /, %40 for @, %2B for +)"
        ) from None
    options = _options(parts, text)
    secret = options.get("connection") or (
        "" if parts.password else environ.get(CONNECTION_VARIABLE)
    )
    connection = _parse_connection_string(secret) if secret else None
    if connection is not None:
        host, port = _combined_host(host, port, connection, text)
    hub = unquote(parts.path.strip("/")) or (connection.hub if connection else "")
    if not host or not hub or "/" in hub:
        raise UsageError(
            f"{shown(text)} names no namespace or no hub: {_USAGE}; or set {CONNECTION_VARIABLE} "
            "and write eventhubs:///HUB"
        )
    if connection is not None and connection.hub and connection.hub != hub:
        raise InvalidOptions(
            f"the address says the hub {hub!r}, and the connection string {connection.hub!r}"
        )
    emulator = connection is not None and connection.emulator
    if not emulator and "." not in host and host != "localhost":
        host += _AZURE_SUFFIX
    return HubAddress(
        host=host,
        port=port or (PLAIN_PORT if emulator else TLS_PORT),
        hub=check_name(hub, what="event hub"),
        tls=not emulator,
        key_name=unquote(parts.username or "") or (connection.key_name if connection else ""),
        key=unquote(parts.password or "") or (connection.key if connection else ""),
        signature=connection.signature if connection and not parts.password else "",
        consumer_group=options.get("consumer_group", ""),
        arrow=_switch(options.get("arrow", "on")),
        ca=options.get("ca", ""),
        prefetch=_prefetch(options.get("prefetch", str(DEFAULT_PREFETCH))),
    )


def _options(parts: SplitResult, text: str) -> dict[str, str]:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [name for name in given if name not in _OPTIONS]
    if parts.scheme != SCHEME.removesuffix("://") or unknown or parts.fragment:
        problem = f"no option {unknown[0]!r}" if unknown else "no such form"
        raise UsageError(
            f"{shown(text)}: an address of an event hub has {problem}: {_USAGE}; the options are "
            f"{', '.join(_OPTIONS)}"
        )
    return given


def _parse_connection_string(text: str) -> _ConnectionString:
    """Read a connection string, as Azure's clients do: names in any case, values as they are."""
    pairs = [part.partition("=") for part in text.strip().split(";") if part.strip()]
    given = {name.strip().lower(): value.strip() for name, _, value in pairs}
    try:
        endpoint = urlsplit(given.get("endpoint", ""))
        host, port = endpoint.hostname or "", endpoint.port
    except ValueError:
        host, port = "", None
    key_name, key = given.get("sharedaccesskeyname", ""), given.get("sharedaccesskey", "")
    signature = given.get("sharedaccesssignature", "")
    if not host or bool(key_name) != bool(key) or not (key or signature):
        raise UsageError(
            "the connection string of the event hub can not be used: it has the form "
            "Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY;EntityPath=HUB, as "
            "the portal shows it (it is not repeated here, since it holds a key)"
        )
    return _ConnectionString(
        host=host,
        port=port,
        hub=given.get("entitypath", ""),
        key_name=key_name,
        key=key,
        signature=signature,
        emulator=given.get("usedevelopmentemulator", "").lower() == "true",
    )


def _combined_host(
    host: str, port: int | None, connection: _ConnectionString, text: str
) -> tuple[str, int | None]:
    """Return host and port from the address and the connection string, which must agree."""
    same_host = not host or connection.host in {host, host + _AZURE_SUFFIX}
    same_port = port is None or connection.port in {None, port}
    if not same_host or not same_port:
        raise InvalidOptions(
            f"{shown(text)} is not what the connection string is for ({connection.host}): leave "
            f"the namespace out (eventhubs:///HUB), or unset {CONNECTION_VARIABLE}"
        )
    return connection.host, port or connection.port


def _switch(text: str) -> bool:
    if text not in _SWITCHES:
        raise UsageError(f"arrow is on or off, not {text!r}")
    return _SWITCHES[text]


def _prefetch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PREFETCH):
        raise UsageError(f"prefetch is a number of events from 1 to {MAX_PREFETCH}, not {text!r}")
    return int(text)
