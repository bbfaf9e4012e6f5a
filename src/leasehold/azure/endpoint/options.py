"""The settings of a hub server, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from leasehold.azure.endpoint.sas_keys import SasKeys
from leasehold.errors import InvalidOptions
from leasehold.names import seconds_of

if TYPE_CHECKING:
    import ssl

_MIN_BYTES = 4096
_MAX_BYTES = 512 << 20
_SIZES = ("max_frame_bytes", "max_message_bytes", "max_unsettled_bytes", "max_held_bytes")
_COUNTS = (
    "max_connections",
    "max_unauthenticated",
    "max_unauthenticated_per_address",
    "max_sessions",
    "max_links",
)
_MAX_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """Where a server listens, who may use it, and its limits.

    Attributes:
        host: address to listen at.
        port: port to listen at; 0 is any free port.
        keys: keys of the clients; by default one new key.
        tls: TLS context; None is plain TCP, for one machine or a trusted network.
        max_connections: maximum number of connections. A further one takes the place of the oldest
            without a valid token; if all have one, it is closed immediately.
        max_unauthenticated: maximum number of connections without a valid token; beyond it the
            oldest of them is dropped.
        max_unauthenticated_per_address: the same for the connections from one address (of IPv6: one
            /64 network), whose oldest is dropped.
        max_sessions: maximum number of sessions of a connection.
        max_links: maximum number of links of a session.
        max_frame_bytes: maximum size of a frame, in both directions.
        max_message_bytes: maximum size of a delivery: an event, or a batch of events.
        max_unsettled_bytes: maximum size of what one connection has sent and is not stored yet.
        max_held_bytes: maximum size of what all connections have sent and is not stored yet;
            beyond that the server reads from no connection.
        handshake_timeout: how long a connection may stay without a valid token. It begins with
            the connection, so it includes TLS.
        idle_timeout: a connection that is silent for twice this time is closed.

    Raises:
        InvalidDuration: a duration is out of its range.
        InvalidOptions: a number is out of its range.
    """

    host: str = "127.0.0.1"
    port: int = 5672
    keys: SasKeys = field(default_factory=lambda: SasKeys.parse(()))
    tls: ssl.SSLContext | None = None
    max_connections: int = 2000
    max_unauthenticated: int = 200
    max_unauthenticated_per_address: int = 100
    max_sessions: int = 1000
    max_links: int = 256
    max_frame_bytes: int = 1 << 20
    max_message_bytes: int = 1 << 20
    max_unsettled_bytes: int = 16 << 20
    max_held_bytes: int = 256 << 20
    handshake_timeout: timedelta = timedelta(seconds=30)
    idle_timeout: timedelta = timedelta(seconds=120)

    def __post_init__(self) -> None:
        """Check all values."""
        for what in ("handshake_timeout", "idle_timeout"):
            seconds_of(getattr(self, what), what=what, min_s=0.05, max_s=_MAX_TIMEOUT_S)
        for what in _COUNTS:
            if not 1 <= getattr(self, what) <= 0xFFFF:  # noqa: PLR2004
                raise InvalidOptions(f"{what} is {getattr(self, what)}: give 1 to 65535")
        for what in _SIZES:
            if not _MIN_BYTES <= getattr(self, what) <= _MAX_BYTES:
                raise InvalidOptions(
                    f"{what} is {getattr(self, what)}: give {_MIN_BYTES} to {_MAX_BYTES}"
                )
        if not self.max_message_bytes <= self.max_unsettled_bytes <= self.max_held_bytes:
            raise InvalidOptions(
                "max_message_bytes <= max_unsettled_bytes <= max_held_bytes does not hold "
                f"({self.max_message_bytes}, {self.max_unsettled_bytes}, "
                f"{self.max_held_bytes}): a big event could never be sent"
            )
