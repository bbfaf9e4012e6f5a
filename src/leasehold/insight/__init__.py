"""Read models: what commands show, put together in one place.

They read and never change anything. What is not known is ``None``, never 0.
"""

from __future__ import annotations

from leasehold.insight.groups import GroupView, group_view, group_views
from leasehold.insight.members import MemberView
from leasehold.insight.opening import Desk, open_desk
from leasehold.insight.partitions import PartitionView
from leasehold.insight.places import LogPlaces, Peek
from leasehold.insight.resets import ResetPlan, plan_reset

__all__ = [
    "Desk",
    "GroupView",
    "LogPlaces",
    "MemberView",
    "PartitionView",
    "Peek",
    "ResetPlan",
    "group_view",
    "group_views",
    "open_desk",
    "plan_reset",
]
