"""Read models: what commands show, put together in one place.

They read and never change anything. What is not known is ``None``, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.lazy import lazy_names

if TYPE_CHECKING:
    from leasehold.insight.checkpoints import ResetPlan, plan_reset
    from leasehold.insight.groups import GroupView, group_view, group_views
    from leasehold.insight.inspector import Inspector, open_inspector
    from leasehold.insight.members import MemberView
    from leasehold.insight.partition_ends import LogPositions, Peek
    from leasehold.insight.partitions import PartitionView

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
    "LogPositions": "leasehold.insight.partition_ends",
    "MemberView": "leasehold.insight.members",
    "PartitionView": "leasehold.insight.partitions",
    "Peek": "leasehold.insight.partition_ends",
    "ResetPlan": "leasehold.insight.checkpoints",
    "group_view": "leasehold.insight.groups",
    "group_views": "leasehold.insight.groups",
    "open_inspector": "leasehold.insight.inspector",
    "plan_reset": "leasehold.insight.checkpoints",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)
