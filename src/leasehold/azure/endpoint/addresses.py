"""Link addresses: they name a request node, a hub, or a partition of a hub.

Clients write them as a path or as a URL. The fixed parts, such as ``ConsumerGroups``, may be in any
case.
"""

from __future__ import annotations

from dataclasses import dataclass

CBS, MANAGEMENT = "$cbs", "$management"
DEFAULT_GROUP = "$Default"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """A parsed address. ``node`` is a request node or empty; ``partition`` is not checked yet."""

    node: str = ""
    hub: str = ""
    group: str = ""
    partition: str = ""

    @property
    def path(self) -> str:
        """The path that tokens name: without a host, in lower case, as some clients sign it."""
        group = f"/consumergroups/{self.group}" if self.group else ""
        partition = f"/partitions/{self.partition}" if self.partition else ""
        node = self.node if not self.hub or not self.node else f"/{self.node}"
        return f"{self.hub}{group}{partition}{node}".lower()


def split_host(text: str) -> tuple[str, str]:
    """Return the host, or an empty text, and the path without slashes around it."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return "", scheme.strip("/")
    host, _, path = rest.partition("/")
    return host.lower(), path.strip("/")


def parse_address(text: object) -> NodeAddress | None:
    """Read an address; None if it names nothing that could exist."""
    parts = split_host(text)[1].split("/") if isinstance(text, str) else []
    found = None
    match [part.lower() for part in parts]:
        case [node] if node in {CBS, MANAGEMENT}:
            found = NodeAddress(node=node)
        case [hub, node] if hub and node == MANAGEMENT:
            found = NodeAddress(hub=parts[0], node=node)
        case [hub] if hub:
            found = NodeAddress(hub=parts[0])
        case [hub, "partitions", number] if hub and number:
            found = NodeAddress(hub=parts[0], partition=parts[2])
        case [hub, "consumergroups", group, "partitions", number] if hub and group and number:
            found = NodeAddress(hub=parts[0], group=parts[2], partition=parts[4])
    return found
