"""A group of consumers: its members, its partitions and their lag.

The store is read several times in a row: a change in between may show in one part and not yet in
another. Nothing is changed, and readers of the stream are not disturbed. ``would_be_undone`` tells
whether the group would move a partition back after an operator has moved it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from leasehold.core.balance.quota import QuotaMember, quotas
from leasehold.errors import UnknownResource
from leasehold.insight.members import MemberView, member_view
from leasehold.insight.partitions import PartitionView, partition_view, waiting
from leasehold.model import State
from leasehold.names import in_order, last_part, partition_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.events.source import PartitionEnds
    from leasehold.insight.inspector import EndsReader, Peek
    from leasehold.model import Checkpoint
    from leasehold.ports import Store

_PARTS_OF_A_GROUP = 3  # partition/<stream>/<group>


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group; members by holder, partitions in the order of their numbers.

    ``fenced_writes``: how many writes under an old epoch were refused, ever.
    """

    stream: str
    group: str
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...]
    fenced_writes: int

    @property
    def owned(self) -> int:
        """How many partitions are owned now."""
        return sum(each.state in (State.LEASED, State.BREAKING) for each in self.partitions)

    @property
    def spread(self) -> int | None:
        """The largest number of partitions of a member less the smallest, of members that stay."""
        counts = [each.keys for each in self.members if not each.leaving]
        return max(counts) - min(counts) if counts else None

    @property
    def lag_events(self) -> int | None:
        """How many events wait in all; ``None`` if it is not known of every partition."""
        known = [each.lag_events for each in self.partitions if each.lag_events is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def lag_s(self) -> float | None:
        """How long the oldest event waits; ``None`` if it is not known of every partition."""
        known = [each.lag_s for each in self.partitions if each.lag_s is not None]
        return max(known, default=None) if len(known) == len(self.partitions) else None

    def partition(self, partition: str) -> PartitionView:
        """Return one of its partitions.

        Raises:
            UnknownResource: it has no such partition; the message names some that it has.
        """
        for each in self.partitions:
            if each.partition == partition:
                return each
        raise UnknownResource(
            f"group {self.group!r} of {self.stream!r} has no partition {partition!r}: it has "
            f"{sample_of([each.partition for each in self.partitions])}"
        )

    def member(self, holder: str) -> MemberView:
        """Return one of its members.

        Raises:
            UnknownResource: there is no such member now; the message names some that there are.
        """
        for each in self.members:
            if each.holder == holder:
                return each
        raise UnknownResource(
            f"{holder!r} is no living member of group {self.group!r} of {self.stream!r}: "
            f"{list_of_members([each.holder for each in self.members])}"
        )


async def group_view(
    store: Store,
    stream: str,
    group: str,
    *,
    now: datetime,
    source: EndsReader | None = None,
    peek: Peek | None = None,
) -> GroupView:
    """Return a group as it is now.

    Without ``source`` head and lag are not known; without ``peek`` how long events wait is not.
    ``now`` is the wall clock, and only says how old an event is.

    Raises:
        UnknownResource: the store knows no such group; the message names those it knows.
        InvalidName: stream or group is not a valid name.
    """
    name = partition_group(stream, group)
    resources = await store.resources(name)
    if not resources:
        raise UnknownResource(
            f"there is no group {group!r} of stream {stream!r} in this store: it has "
            f"{sample_of([f'{s!r} {g!r}' for s, g in await known_groups(store)])}. A group appears "
            "when its first processor starts"
        )
    members = await store.members(name)
    checkpoints = await store.checkpoints(name)
    ids = [last_part(key) for key in resources]
    ends = await source.ends(ids) if source is not None else {}
    since = await peek.enqueued_at(_oldest(checkpoints, ends)) if peek is not None else {}
    owned = Counter(
        each.holder for each in resources.values() if each.state in (State.LEASED, State.BREAKING)
    )
    partitions = [
        partition_view(
            resource,
            owner=members.get(resource.holder or ""),
            checkpoint=checkpoints.get(resource.key),
            ends=ends.get(last_part(resource.key)),
            waits_since=since.get(last_part(resource.key)),
            now=now,
        )
        for resource in resources.values()
    ]
    return GroupView(
        stream=stream,
        group=group,
        members=tuple(
            member_view(members[holder], keys=owned[holder]) for holder in sorted(members)
        ),
        partitions=tuple(sorted(partitions, key=lambda each: in_order(each.partition))),
        fenced_writes=await store.fenced_writes(name),
    )


async def known_groups(store: Store) -> Sequence[tuple[str, str]]:
    """Return stream and name of every group that shares partitions, sorted."""
    found = []
    for name in await store.groups():
        parts = name.split("/")
        if len(parts) == _PARTS_OF_A_GROUP and parts[0] == "partition":
            found.append((unquote(parts[1]), unquote(parts[2])))
    return sorted(found)


async def group_views(
    store: Store, *, now: datetime, sources: Mapping[str, EndsReader] | None = None
) -> Sequence[GroupView]:
    """Return all groups that share partitions; ``sources`` by the name of the stream."""
    views = []
    for stream, group in await known_groups(store):
        source = (sources or {}).get(stream)
        try:
            views.append(await group_view(store, stream, group, now=now, source=source))
        except UnknownResource:
            continue  # forgotten, or the stream deleted, since it was listed
    return views


def _oldest(
    checkpoints: Mapping[str, Checkpoint], ends: Mapping[str, PartitionEnds]
) -> Mapping[str, int]:
    """Return the number of the oldest waiting event of each partition that has one."""
    found = {}
    for key, checkpoint in checkpoints.items():
        number = waiting(checkpoint, ends.get(last_part(key))).next_number
        if number is not None:
            found[last_part(key)] = number
    return found


_MAX_NAMED = 8


def list_of_members(holders: Sequence[str]) -> str:
    """List the members, for the message that one does not exist."""
    return f"its members are {sample_of(holders)}" if holders else "there are no members"


def sample_of(names: Sequence[str]) -> str:
    """Return a few of the names, for a message."""
    if not names:
        return "none"
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def would_be_undone(view: GroupView, *, owner: str | None, to: str) -> bool:
    """Return whether ``to`` would have more than its even share after a move from ``owner``.

    Members that share evenly give what is too much away within a cycle, most likely this very
    partition. Other strategies may let it stay: members do not publish their strategy.
    """
    change = {owner: -1, to: 1}
    after = [
        QuotaMember(
            holder=each.holder,
            count=each.keys + change.get(each.holder, 0),
            weight=each.weight,
            most=each.max_partitions,
        )
        for each in view.members
        if not each.leaving
    ]
    count = {each.holder: each.count for each in after}
    return count.get(to, 0) > quotas(len(view.partitions), after).get(to, 0)
