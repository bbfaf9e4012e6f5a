"""Fences for what a job writes to: a target that knows the highest epoch rejects all lower ones.

A lease alone cannot stop a process that was paused for longer than the lease: it resumes in the
middle of its work. The target of its writes can, if it compares the epoch of the job's
reservation with the highest one it has seen. These two do:

===============  =========================================================================
``FencedTable``  transactions in PostgreSQL (needs ``pip install 'leasehold[postgres]'``)
``FencedPath``   a file that is replaced as a whole
===============  =========================================================================

``docs/fencing.md`` shows how to do this with other targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.jobs.fences.epoch import HasEpoch
from leasehold.jobs.fences.path import FencedPath

if TYPE_CHECKING:
    from leasehold.jobs.fences.table import FencedTable

__all__ = ["FencedPath", "FencedTable", "HasEpoch"]


def __getattr__(name: str) -> object:
    if name != "FencedTable":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from leasehold.jobs.fences import table  # noqa: PLC0415 - the driver need not be installed

    return table.FencedTable
