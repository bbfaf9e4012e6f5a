"""The connections without a valid token: few of them, and the oldest goes first.

They cannot keep clients with a key out. There are never more than ``max_unauthenticated``, so the
others of ``max_connections`` are for clients with a token; and one address, which may begin many,
drops its own before those of others.
"""

from __future__ import annotations

import logging
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.azure.endpoint.connection import ClientConnection
    from leasehold.azure.endpoint.options import HubOptions
    from leasehold.clock import Clock

log = logging.getLogger("leasehold.azure.endpoint")

_REPORT_INTERVAL_S = 10.0
_IPV6_NETWORK_BITS = 64  # one client usually has that many addresses


class UnauthenticatedConnections:
    """The connections without a valid token, the oldest first, and who has to go."""

    def __init__(self, options: HubOptions) -> None:
        self._options = options
        self._origins: dict[ClientConnection, str] = {}  # the oldest first
        self._by_origin: Counter[str] = Counter()

    def add(self, connection: ClientConnection) -> ClientConnection | None:
        """Add a connection as the newest; return the one to drop, if there are too many."""
        origin = _origin(connection.client_host)
        self._origins[connection] = origin
        self._by_origin[origin] += 1
        if self._by_origin[origin] > self._options.max_unauthenticated_per_address:
            return next(each for each, known in self._origins.items() if known == origin)
        return self.oldest() if len(self._origins) > self._options.max_unauthenticated else None

    def discard(self, connection: ClientConnection) -> None:
        """Remove a connection: it has a token now, or it has ended."""
        origin = self._origins.pop(connection, None)
        if origin is not None:
            self._by_origin[origin] -= 1
            if not self._by_origin[origin]:
                del self._by_origin[origin]

    def oldest(self) -> ClientConnection | None:
        """Return the oldest one."""
        return next(iter(self._origins), None)


class DroppedConnections:
    """How many connections were dropped for others or refused. Logs that from time to time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.unauthenticated = 0  # dropped to make room
        self.refused = 0  # all others had a token
        self._reported = (0, 0)
        self._report_at_s = clock.boottime_s()
        self._last_host = ""

    def count(self, host: str, *, refused: bool = False) -> None:
        """Count one from this address; log it if nothing was logged for a while."""
        self._last_host = host
        if refused:
            self.refused += 1
        else:
            self.unauthenticated += 1
        self.report(self._clock.boottime_s())

    def report(self, now: float) -> None:
        """Log what was counted since the last line, one line in each interval."""
        dropped, refused = (
            self.unauthenticated - self._reported[0],
            self.refused - self._reported[1],
        )
        if now < self._report_at_s or not dropped + refused:
            return
        self._reported = self.unauthenticated, self.refused
        self._report_at_s = now + _REPORT_INTERVAL_S
        log.warning(
            "too many connections: %d connections without a valid token were dropped, and %d were "
            "refused because all others have one; the last was from %s. Raise max_unauthenticated "
            "or max_connections, or let a firewall limit who connects",
            dropped,
            refused,
            self._last_host,
        )


def _origin(host: str) -> str:
    """Return what counts as one address: of IPv6 the network."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> _IPV6_NETWORK_BITS)
    return str(getattr(address, "ipv4_mapped", None) or address)
