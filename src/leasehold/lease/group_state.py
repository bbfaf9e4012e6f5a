"""``GroupState``: the group as a member knows it, by the changes that its renewals return.

What members publish about themselves is sanitized where it is read: an older or newer release,
another program or a mistake may have written anything, and one member must not stop the others.
Valid values are unchanged, and all members sanitize in the same way, so their plans still agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from leasehold.model import Changes, MemberInfo, MemberRecord, Resource

MAX_WEIGHT = 1_000_000
MAX_KEY_LIMIT = 1_000_000_000
# A larger value is an error, and could not be added to others.
_MAX_LOAD = 1e300
MAX_FAILING = 16
_MAX_FAILING_CHARS = 100


def sanitized(info: MemberInfo) -> MemberInfo:
    """Return the info with invalid values replaced.

    A weight that is not positive counts as 1, and one beyond the maximum as the maximum. A limit
    that is not a number from 0 up counts as none, and is rounded down. A load that is not a number
    from 0 up counts as not measured. What fails is text, of ``MAX_FAILING`` keys at most.
    """
    valid = {
        "weight": _weight(info.weight),
        "most": _max_keys(info.most),
        "loads": _loads(info.loads),
        "draining": bool(info.draining),
        "failing": _failing(info.failing),
    }
    if all(getattr(info, name) is value for name, value in valid.items()):
        return info
    return replace(info, **valid)  # type: ignore[arg-type]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether it is an ``int`` or a ``float``, and not a ``bool``."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether it is an ``int``, and not a ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool)


def _weight(weight: object) -> float:
    if not is_number(weight) or not weight > 0:
        return 1.0
    return weight if weight <= MAX_WEIGHT else float(MAX_WEIGHT)


def _max_keys(most: object) -> int | None:
    if not is_number(most) or not 0 <= most <= MAX_KEY_LIMIT:
        return None
    return most if isinstance(most, int) else int(most)


def _loads(loads: object) -> Mapping[str, float]:
    if not isinstance(loads, Mapping):
        return {}
    if all(_is_load(load) for load in loads.values()):
        return loads
    return {key: load for key, load in loads.items() if _is_load(load)}


def _failing(failing: object) -> Mapping[str, str]:
    if not isinstance(failing, Mapping):
        return {}
    if not failing:
        return failing
    found = ((key, text) for key, text in failing.items() if isinstance(text, str))
    return {key: text[:_MAX_FAILING_CHARS] for key, text in islice(found, MAX_FAILING)}


def _is_load(load: object) -> bool:
    return is_number(load) and 0 <= load <= _MAX_LOAD


def _only_failing_differs(known: MemberRecord, found: MemberRecord) -> bool:
    """Return whether the members differ in what fails and in nothing that a plan looks at."""
    same_otherwise = replace(known.info, failing=found.info.failing) == found.info
    return (
        same_otherwise
        and known.info.failing != found.info.failing
        and known.leave_requested == found.leave_requested
    )


class GroupState:
    """The group at ``version``. Changes may come twice or late: the newest version of each wins.

    A lost answer is harmless: ``version`` does not move, so the next answer repeats it.
    The infos of members are ``sanitized``.
    """

    def __init__(self) -> None:
        self.version = 0
        self._resources: dict[str, Resource] = {}
        self._members: dict[str, MemberRecord] = {}

    @property
    def resources(self) -> Mapping[str, Resource]:
        """All keys of the group, by key."""
        return MappingProxyType(self._resources)

    @property
    def members(self) -> Mapping[str, MemberRecord]:
        """The members that are alive, by holder."""
        return MappingProxyType(self._members)

    def apply(self, changes: Changes) -> bool:
        """Apply ``changes``; return whether anything is different now."""
        if changes.version < self.version:
            # An older answer that arrived late: all of it is known, and some of it is outdated.
            return False
        different = False
        for resource in changes.resources:
            different |= self.apply_resource(resource)
        for member in changes.members:
            known = self._members.get(member.holder)
            if not member.alive:
                different |= self._members.pop(member.holder, None) is not None
            elif known is None or known.version < member.version:
                clean = replace(member, info=sanitized(member.info))
                self._members[member.holder] = clean
                different |= known is None or not _only_failing_differs(known, clean)
        self.version = max(self.version, changes.version)
        return different

    def apply_resource(self, resource: Resource) -> bool:
        """Apply one resource, unless a newer version is known."""
        known = self._resources.get(resource.key)
        if known is not None and known.version >= resource.version:
            return False
        if resource.forgotten:
            return self._resources.pop(resource.key, None) is not None
        self._resources[resource.key] = resource
        return True
