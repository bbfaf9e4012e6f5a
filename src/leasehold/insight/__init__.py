"""Read models: what commands show, put together in one place.

They read and never change anything. What is not known is ``None``, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.insight.groups import GroupView, group_view, group_views
    from leasehold.insight.inspector import Inspector, LogPositions, Peek, open_inspector
    from leasehold.insight.members import MemberView
    from leasehold.insight.partitions import PartitionView, ResetPlan, plan_reset

__all__ = [
    "GroupView",
    "Inspector",
    "LogPositions",
    "MemberView",
    "PartitionView",
    "Peek",
    "ResetPlan",
    "group_view",
    "group_views",
    "open_inspector",
    "plan_reset",
]

_HOMES = {
    "Inspector": "leasehold.insight.inspector",
    "GroupView": "leasehold.insight.groups",
    "LogPositions": "leasehold.insight.inspector",
    "MemberView": "leasehold.insight.members",
    "PartitionView": "leasehold.insight.partitions",
    "Peek": "leasehold.insight.inspector",
    "ResetPlan": "leasehold.insight.partitions",
    "group_view": "leasehold.insight.groups",
    "group_views": "leasehold.insight.groups",
    "open_inspector": "leasehold.insight.inspector",
    "plan_reset": "leasehold.insight.partitions",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
