"""Leasehold: one owner at a time for partitions, jobs and files, with fencing epochs.

Public are the names below and the modules ``leasehold.errors``, ``leasehold.model``,
``leasehold.names``, ``leasehold.ports``, ``leasehold.files``, ``leasehold.log``,
``leasehold.sources``, ``leasehold.processor`` (with its ``hooks`` and ``metrics``) and
``leasehold.testing``. Everything else may change without notice.
"""

from __future__ import annotations

import logging

from leasehold.core.balance import Strategy
from leasehold.core.timing import Timing
from leasehold.errors import (
    FencedWrite,
    LeaseholdError,
    LeaseLost,
    StoreUnavailable,
    StoreUnusable,
    UsageError,
)
from leasehold.model import (
    Checkpoint,
    EndReason,
    Lease,
    Ownership,
    Position,
    Resource,
    Term,
)
from leasehold.names import (
    partition_group,
    partition_key,
)
from leasehold.processor.member import Member
from leasehold.processor.options import MemberOptions
from leasehold.stores import open_store

__all__ = [
    "Checkpoint",
    "EndReason",
    "FencedWrite",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Member",
    "MemberOptions",
    "Ownership",
    "Position",
    "Resource",
    "StoreUnavailable",
    "StoreUnusable",
    "Strategy",
    "Term",
    "Timing",
    "UsageError",
    "open_store",
    "partition_group",
    "partition_key",
]

# A library says nothing unless it is asked to.
logging.getLogger("leasehold").addHandler(logging.NullHandler())
