"""The rows of the memory store."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from leasehold.model import MemberRecord

if TYPE_CHECKING:
    from collections.abc import Reversible

    from leasehold.model import EndReason, Lease, MemberInfo, Term


@dataclass(slots=True)
class LeaseRow:
    """A lease, living or ended."""

    lease: Lease
    info: MemberInfo
    ends_at: float
    version: int
    ended: EndReason | None = None
    leave_requested: bool = False
    # Own terms that ended, with their version; removed once the holder has received them.
    ended_terms: list[tuple[int, Term]] = field(default_factory=list)
    owned: dict[str, ResourceRow] = field(default_factory=dict)
    # Owned keys of other groups; a renewal checks them one by one.
    abroad: dict[str, ResourceRow] = field(default_factory=dict)


@dataclass(slots=True)
class ResourceRow:
    """A key, its owner, and its history."""

    key: str
    group: str
    epoch: int
    version: int
    holder: str | None = None
    break_at: float | None = None
    handed_to: str | None = None
    handed_until: float = 0.0
    handed_by: str | None = None
    asked_by: str | None = None
    forgotten: bool = False
    terms: list[Term] = field(default_factory=list)


@dataclass(slots=True)
class GroupRow:
    """The keys of a group in order of their last change, and its members likewise."""

    resources: OrderedDict[str, ResourceRow] = field(default_factory=OrderedDict)
    members: OrderedDict[str, LeaseRow] = field(default_factory=OrderedDict)
    # Leases from outside the group that hold, or held, a key of it.
    guests: dict[str, LeaseRow] = field(default_factory=dict)
    # Only keys that may end by time: checked in every renewal, so it must stay small.
    timed: dict[str, ResourceRow] = field(default_factory=dict)
    fenced: int = 0


_Row = TypeVar("_Row", ResourceRow, LeaseRow)


def member_of(row: LeaseRow, now: float) -> MemberRecord:
    """Convert a lease to the member that others see."""
    return MemberRecord(
        holder=row.lease.holder,
        group=row.lease.group,
        info=row.info,
        alive=row.ended is None and row.ends_at > now,
        version=row.version,
        remaining_s=max(0.0, row.ends_at - now),
        duration_s=row.lease.duration_s,
        leave_requested=row.leave_requested,
    )


def newer(rows: Reversible[_Row], since: int) -> list[_Row]:
    """Return the rows newer than ``since``, oldest first, of rows ordered by their last change."""
    newer = []
    for row in reversed(rows):
        if row.version <= since:
            break
        newer.append(row)
    newer.reverse()
    return newer
