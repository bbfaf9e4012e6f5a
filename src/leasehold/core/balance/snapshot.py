"""What a strategy sees, and what it says."""

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
        """Who has the key, or will: a key kept for a hand-over counts as the receiver's."""
        owner = resource.holder if resource.holder is not None else resource.handed_to
        return owner if owner in self.members else None

    def takers(self) -> list[str]:
        """The members that may get keys, in the one order that all of them agree on."""
        return sorted(holder for holder, info in self.members.items() if not info.draining)

    def keys_by_owner(self) -> dict[str | None, list[str]]:
        """All keys in order, by owner; the free ones under None. Every member has an entry.

        What is on its way to a member comes after what it has: if that is too much, the keys
        that were not begun yet are the ones to go elsewhere. Keys that somebody outside the group
        holds are left out: they can neither be had nor be given away.
        """
        keys: dict[str | None, list[str]] = {None: [], **{m: [] for m in sorted(self.members)}}
        coming: list[str] = []
        # Written out, for it runs over every key of the group at each change.
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
        """The key with the epoch it has in this snapshot."""
        return KeyClaim(key=key, seen_epoch=self.resources[key].epoch)

    def held_by(self, key: str, holder: str) -> bool:
        """Whether the key is really in the hands of ``holder``, not only on its way."""
        resource = self.resources[key]
        return resource.holder == holder and resource.state in _IN_FORCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one member should do now.

    ``claim``: free keys, or keys kept for me. ``steal``: keys of a living owner, by force.
    ``hand_over``: my keys and who is to have them. ``release``: my keys that nobody can take.
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
