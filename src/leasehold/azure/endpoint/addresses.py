"""What the address of a link names: a node for requests, a hub, or a partition of one.

Clients write it as a path or as a whole URL, with the words between the names in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

CBS, MANAGEMENT = "$cbs", "$management"
DEFAULT_GROUP = "$Default"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """``node`` is one for requests, or empty; ``partition`` is as it was written."""

    node: str = ""
    hub: str = ""
    group: str = ""
    partition: str = ""

    @property
    def path(self) -> str:
        """As tokens name it: in small letters, for some clients sign so; without a host."""
        group = f"/consumergroups/{self.group}" if self.group else ""
        partition = f"/partitions/{self.partition}" if self.partition else ""
        node = self.node if not self.hub or not self.node else f"/{self.node}"
        return f"{self.hub}{group}{partition}{node}".lower()


def path_of(text: str) -> tuple[str, str]:
    """The host, empty if there is none, and the path of an address, without slashes around it."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        return "", scheme.strip("/")
    host, _, path = rest.partition("/")
    return host.lower(), path.strip("/")


def address_of(text: object) -> NodeAddress | None:
    """The address that was written; None if there can not be such a thing."""
    parts = path_of(text)[1].split("/") if isinstance(text, str) else []
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
