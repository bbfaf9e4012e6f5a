"""One member of a group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.insight.partitions import renewed_ago_s
from leasehold.lease.group_state import sanitized

if TYPE_CHECKING:
    from leasehold.model import MemberRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member whose lease has not ended.

    ``keys`` is how many partitions it owns, ``max_partitions`` how many it takes at most, ``load``
    the sum of what it measured on them (``None``: nothing). ``draining``: it gives everything away.
    ``leave_requested``: an operator asked it to.
    """

    holder: str
    host: str | None
    pid: int | None
    keys: int
    weight: float
    max_partitions: int | None
    draining: bool
    leave_requested: bool
    renewed_ago_s: float | None
    time_left_s: float
    load: float | None

    @property
    def leaving(self) -> bool:
        """Whether it takes nothing more, and gives away what it has."""
        return self.draining or self.leave_requested


def member_view(member: MemberRecord, *, keys: int) -> MemberView:
    """Return a member, with the number of keys it owns."""
    info = sanitized(member.info)
    return MemberView(
        holder=member.holder,
        host=info.host or None,
        pid=info.pid or None,
        keys=keys,
        weight=info.weight,
        max_partitions=info.most,
        draining=info.draining,
        leave_requested=member.leave_requested,
        renewed_ago_s=renewed_ago_s(member),
        time_left_s=member.remaining_s,
        load=math.fsum(info.loads.values()) if info.loads else None,
    )
