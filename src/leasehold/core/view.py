"""What a member knows of its group: the changes it was told, laid over one another."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from leasehold.core.soundness import sound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.model import Changes, Peer, Resource


class View:
    """The group at ``version``. Changes may come twice or late: the newest version of each wins.

    Losing an answer is harmless: ``version`` does not move, so the next answer repeats it all.
    What members tell of themselves is known here only as far as it is ``sound``.
    """

    def __init__(self) -> None:
        """Know nothing: version 0 asks the store for everything."""
        self.version = 0
        self._resources: dict[str, Resource] = {}
        self._peers: dict[str, Peer] = {}

    @property
    def resources(self) -> Mapping[str, Resource]:
        """All keys of the group, by key."""
        return MappingProxyType(self._resources)

    @property
    def peers(self) -> Mapping[str, Peer]:
        """The members that are alive, by holder."""
        return MappingProxyType(self._peers)

    def apply(self, changes: Changes) -> bool:
        """Take ``changes`` in; say whether anything is different now."""
        if changes.version < self.version:
            # An older answer that was overtaken: all of it is known, and some of it is over.
            return False
        different = False
        for resource in changes.resources:
            different |= self.learn(resource)
        for peer in changes.peers:
            known = self._peers.get(peer.holder)
            if not peer.alive:
                different |= self._peers.pop(peer.holder, None) is not None
            elif known is None or known.version < peer.version:
                self._peers[peer.holder] = replace(peer, info=sound(peer.info))
                different = True
        self.version = max(self.version, changes.version)
        return different

    def learn(self, resource: Resource) -> bool:
        """Take one resource in, unless something newer is known."""
        known = self._resources.get(resource.key)
        if known is not None and known.version >= resource.version:
            return False
        if resource.forgotten:
            return self._resources.pop(resource.key, None) is not None
        self._resources[resource.key] = resource
        return True
