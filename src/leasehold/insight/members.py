"""One member of a group as people see it."""

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

    ``keys`` is how many partitions it owns, ``most`` how many it would take, ``load`` the sum of
    what it measured on them (``None``: nothing). ``draining``: it gives everything away.
    ``leave_requested``: an operator asked it to.
    """

    holder: str
    host: str | None
    pid: int | None
    keys: int
    weight: float
    most: int | None
    draining: bool
    leave_requested: bool
    renewed_ago_s: float | None
    time_left_s: float
    load: float | None

    @property
    def leaving(self) -> bool:
        """Whether it takes nothing more, and gives away what it has."""
        return self.draining or self.leave_requested


def member_view(peer: MemberRecord, *, keys: int) -> MemberView:
    """A member, and how many keys it owns."""
    info = sanitized(peer.info)
    return MemberView(
        holder=peer.holder,
        host=info.host or None,
        pid=info.pid or None,
        keys=keys,
        weight=info.weight,
        most=info.most,
        draining=info.draining,
        leave_requested=peer.leave_requested,
        renewed_ago_s=renewed_ago_s(peer),
        time_left_s=peer.remaining_s,
        load=math.fsum(info.loads.values()) if info.loads else None,
    )
