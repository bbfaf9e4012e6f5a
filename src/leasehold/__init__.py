"""Leasehold: one owner at a time for partitions, jobs and files, with fencing epochs.

Public are the names below, the modules ``errors``, ``model``, ``names``, ``ports`` and ``clock``,
and the names in ``__all__`` of the packages ``events``, ``log``, ``files``, ``processor`` (with its
modules ``events`` and ``metrics``), ``jobs``, ``spark``, ``azure``, ``insight`` and ``testing``.
Everything else may change without notice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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
from leasehold.printable import install_log_filter

if TYPE_CHECKING:
    from leasehold.core.balance import Strategy
    from leasehold.core.lease_timing import LeaseTiming
    from leasehold.lease.member import Member
    from leasehold.lease.options import MemberOptions
    from leasehold.stores import open_store

__all__ = [
    "Checkpoint",
    "EndReason",
    "FencedWrite",
    "Lease",
    "LeaseLost",
    "LeaseTiming",
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
    "UsageError",
    "open_store",
    "partition_group",
    "partition_key",
]

_HOMES = {
    "Member": "leasehold.lease.member",
    "MemberOptions": "leasehold.lease.options",
    "Strategy": "leasehold.core.balance",
    "LeaseTiming": "leasehold.core.lease_timing",
    "open_store": "leasehold.stores",
}
install_log_filter()  # before the first record
_MODULES = frozenset(("clock", "core", "ports", "processor", "stores"))

if not TYPE_CHECKING:  # a checker knows the names, and finds those that are wrong

    def __getattr__(name: str) -> object:
        """Load a name or a module when it is asked for: a store needs no member."""
        if name in _MODULES:
            return import_module(f"leasehold.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
