"""Leasehold: one owner at a time for partitions, jobs and files, with fencing epochs.

The names below are the public ones; ``leasehold.testing`` is public too. Everything else may
change without notice.
"""

from __future__ import annotations

import logging

from leasehold.core.balance import Strategy as Strategy
from leasehold.core.timing import Timing as Timing
from leasehold.errors import (
    FencedWrite as FencedWrite,
)
from leasehold.errors import (
    LeaseholdError as LeaseholdError,
)
from leasehold.errors import (
    LeaseLost as LeaseLost,
)
from leasehold.errors import (
    StoreUnavailable as StoreUnavailable,
)
from leasehold.errors import (
    StoreUnusable as StoreUnusable,
)
from leasehold.errors import (
    UsageError as UsageError,
)
from leasehold.model import (
    Checkpoint as Checkpoint,
)
from leasehold.model import (
    EndReason as EndReason,
)
from leasehold.model import (
    Lease as Lease,
)
from leasehold.model import (
    Ownership as Ownership,
)
from leasehold.model import (
    Position as Position,
)
from leasehold.model import (
    Resource as Resource,
)
from leasehold.model import (
    Term as Term,
)
from leasehold.names import (
    partition_group as partition_group,
)
from leasehold.names import (
    partition_key as partition_key,
)
from leasehold.processor.member import Member as Member
from leasehold.processor.options import MemberOptions as MemberOptions
from leasehold.stores import open_store as open_store

# A library says nothing unless it is asked to.
logging.getLogger("leasehold").addHandler(logging.NullHandler())
