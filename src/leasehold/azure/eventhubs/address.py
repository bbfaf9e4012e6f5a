"""Where an event hub is, and with what one is let in: ``eventhubs://NAMESPACE[:PORT]/HUB``.

Guarantees: a key, a signature or a connection string is in no ``repr`` and in no message of an
error, also when the address that holds it can not be read.
"""

from __future__ import annotations

import os
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
_AZURE = ".servicebus.windows.net"
_OPTIONS = ("connection", "consumer_group", "arrow", "ca", "prefetch")
_HOW = "write eventhubs://NAMESPACE/HUB, such as eventhubs://contoso.servicebus.windows.net/orders"
_SWITCH = {"on": True, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAddress:
    """One event hub.

    Attributes:
        host, port: where it listens.
        hub: its name.
        tls: whether the connection is encrypted; only an emulator goes without.
        key_name, key: a shared access key.
        signature: a shared access signature that somebody else has made.
        consumer_group: the one of the hub, for all groups; empty: that of the same name.
        arrow: whether Arrow is taken from a server that offers it.
        ca: the file with the certificates to trust; empty: those of the machine.
        prefetch: how many events of a partition may be on their way at once.
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
        """The host, with its port if that is not the usual one."""
        return self.host if self.port == TLS_PORT else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.namespace}/{self.hub}"

    def group_of(self, group: str) -> str:
        """The consumer group of the hub that the members of ``group`` read with."""
        return self.consumer_group or group


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConnectionString:
    """What a connection string says."""

    host: str
    port: int | None
    hub: str
    key_name: str
    key: str
    signature: str
    emulator: bool


def is_address(text: str) -> bool:
    """Whether this is meant to be the address of an event hub."""
    return text.startswith(SCHEME)


def name_of(text: str) -> str:
    """Return the name of the hub.

    Raises:
        UsageError: the address can not be read.
    """
    return parse(text).hub


def shown(text: str) -> str:
    """The address without anything that could be a secret, for messages and logs."""
    if not is_address(text):
        return text
    rest = text.removeprefix(SCHEME).partition("?")[0].partition("#")[0]
    return SCHEME + rest.rpartition("@")[2]


def parse(text: str, environ: Mapping[str, str] | None = None) -> HubAddress:
    """Read an address. Without a key in it, the connection string of the environment counts.

    Raises:
        UsageError: it is none; the message says what to write.
        InvalidOptions: address and connection string contradict each other.
    """
    environ = os.environ if environ is None else environ
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # its message may quote a part of a key
        raise UsageError(
            f"{shown(text)} is no address of an event hub: {_HOW}; quote what is special in a key "
            "(%2F for /, %40 for @, %2B for +)"
        ) from None
    said = _options(parts, text)
    given = said.get("connection") or ("" if parts.password else environ.get(CONNECTION_VARIABLE))
    known = _connection(given) if given else None
    if known is not None:
        host, port = _agreed(host, port, known, text)
    hub = unquote(parts.path.strip("/")) or (known.hub if known else "")
    if not host or not hub or "/" in hub:
        raise UsageError(
            f"{shown(text)} names no namespace or no hub: {_HOW}; or set {CONNECTION_VARIABLE} "
            "and write eventhubs:///HUB"
        )
    if known is not None and known.hub and known.hub != hub:
        raise InvalidOptions(
            f"the address says the hub {hub!r}, and the connection string {known.hub!r}"
        )
    emulator = known is not None and known.emulator
    if not emulator and "." not in host and host != "localhost":
        host += _AZURE
    return HubAddress(
        host=host,
        port=port or (PLAIN_PORT if emulator else TLS_PORT),
        hub=check_name(hub, what="event hub"),
        tls=not emulator,
        key_name=unquote(parts.username or "") or (known.key_name if known else ""),
        key=unquote(parts.password or "") or (known.key if known else ""),
        signature=known.signature if known and not parts.password else "",
        consumer_group=said.get("consumer_group", ""),
        arrow=_switch(said.get("arrow", "on")),
        ca=said.get("ca", ""),
        prefetch=_prefetch(said.get("prefetch", str(DEFAULT_PREFETCH))),
    )


def _options(parts: SplitResult, text: str) -> dict[str, str]:
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [name for name in said if name not in _OPTIONS]
    if parts.scheme != SCHEME.removesuffix("://") or unknown or parts.fragment:
        odd = f"no option {unknown[0]!r}" if unknown else "no such form"
        raise UsageError(
            f"{shown(text)}: an address of an event hub has {odd}: {_HOW}; the options are "
            f"{', '.join(_OPTIONS)}"
        )
    return said


def _connection(text: str) -> _ConnectionString:
    """Read a connection string, as Azure's clients do: names in any case, values as they are."""
    pairs = [part.partition("=") for part in text.strip().split(";") if part.strip()]
    said = {name.strip().lower(): value.strip() for name, _, value in pairs}
    try:
        endpoint = urlsplit(said.get("endpoint", ""))
        host, port = endpoint.hostname or "", endpoint.port
    except ValueError:
        host, port = "", None
    key_name, key = said.get("sharedaccesskeyname", ""), said.get("sharedaccesskey", "")
    signature = said.get("sharedaccesssignature", "")
    if not host or bool(key_name) != bool(key) or not (key or signature):
        raise UsageError(
            "the connection string of the event hub can not be used: it has the form "
            "Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY;EntityPath=HUB, as "
            "the portal shows it (it is not repeated here, since it holds a key)"
        )
    return _ConnectionString(
        host=host,
        port=port,
        hub=said.get("entitypath", ""),
        key_name=key_name,
        key=key,
        signature=signature,
        emulator=said.get("usedevelopmentemulator", "").lower() == "true",
    )


def _agreed(
    host: str, port: int | None, known: _ConnectionString, text: str
) -> tuple[str, int | None]:
    """The host and the port of both, which must not contradict each other."""
    same_host = not host or known.host in {host, host + _AZURE}
    same_port = port is None or known.port in {None, port}
    if not same_host or not same_port:
        raise InvalidOptions(
            f"{shown(text)} is not what the connection string is for ({known.host}): leave the "
            f"namespace out (eventhubs:///HUB), or unset {CONNECTION_VARIABLE}"
        )
    return known.host, port or known.port


def _switch(text: str) -> bool:
    if text not in _SWITCH:
        raise UsageError(f"arrow is on or off, not {text!r}")
    return _SWITCH[text]


def _prefetch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PREFETCH):
        raise UsageError(f"prefetch is a number of events from 1 to {MAX_PREFETCH}, not {text!r}")
    return int(text)
