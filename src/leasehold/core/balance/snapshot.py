"""The input (``Snapshot``) and the output (``Plan``) of a strategy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.model import KeyClaim, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.model import MemberInfo, Resource


_IN_FORCE = frozenset((State.LEASED, State.BREAKING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A group at one moment: the members that are alive, and its keys."""

    members: Mapping[str, MemberInfo]
    resources: Mapping[str, Resource]

    def owner_of(self, resource: Resource) -> str | None:
        """Return the owner of the key; a key that is handed over counts for the receiver."""
        owner = resource.holder if resource.holder is not None else resource.handed_to
        return owner if owner in self.members else None

    def takers(self) -> list[str]:
        """Return the members that may get keys, in the order that all members use."""
        return sorted(holder for holder, info in self.members.items() if not info.draining)

    def keys_by_owner(self) -> dict[str | None, list[str]]:
        """Return all keys in order, by owner; free ones under None. Every member has an entry.

        Keys that are being handed to a member come after those that it has: if it has too many,
        the keys that were not started yet move on. Keys that a holder outside the group owns are
        omitted: they can neither be claimed nor given away.
        """
        keys: dict[str | None, list[str]] = {None: [], **{m: [] for m in sorted(self.members)}}
        coming: list[str] = []
        # One loop for speed: it runs over every key of the group at each change.
        for key in sorted(self.resources):
            resource = self.resources[key]
            holder = resource.holder
            if holder is None and resource.handed_to in self.members:
                coming.append(key)
            elif holder is None or holder in keys:
                keys[holder].append(key)
            elif resource.state not in _IN_FORCE:
                keys[None].append(key)
        for key in coming:
            keys[self.resources[key].handed_to].append(key)
        return keys

    def wanted(self, key: str) -> KeyClaim:
        """Return a claim for the key, with its epoch in this snapshot."""
        return KeyClaim(key=key, seen_epoch=self.resources[key].epoch)

    def held_by(self, key: str, holder: str) -> bool:
        """Return whether ``holder`` owns the key now, and it is not only being handed over."""
        resource = self.resources[key]
        return resource.holder == holder and resource.state in _IN_FORCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one member should do now.

    ``claim``: free keys, or keys reserved for me. ``steal``: keys of a live owner, forcibly.
    ``hand_over``: my keys and their receivers. ``release``: my keys that no member can take.
    ``expecting``: how many keys the others are about to hand over to me. ``stable``: my share is
    owned and nothing was left to do.
    """

    claim: tuple[KeyClaim, ...] = ()
    steal: tuple[KeyClaim, ...] = ()
    hand_over: Mapping[str, str] = field(default_factory=dict)
    release: tuple[str, ...] = ()
    expecting: int = 0

    @property
    def stable(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.claim or self.steal or self.hand_over or self.release)
