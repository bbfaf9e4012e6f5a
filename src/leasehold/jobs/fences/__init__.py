"""Fences for what a job writes to: a place that knows the highest epoch refuses all lower ones.

A lease alone can not stop a process that was paused for longer than it: it wakes up and goes on
with what it was about. The place that it writes to can, if it compares the epoch of the job's
reservation, its fencing token, with the highest one it has seen. These two do:

===============  =========================================================================
``FencedTable``  transactions in PostgreSQL (needs ``pip install 'leasehold[postgres]'``)
``FencedPath``   a file that is replaced as a whole
===============  =========================================================================

``docs/fencing.md`` says how to do the same with anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.jobs.fences.path import FencedPath
from leasehold.jobs.fences.token import HasEpoch

if TYPE_CHECKING:
    from leasehold.jobs.fences.table import FencedTable

__all__ = ["FencedPath", "FencedTable", "HasEpoch"]


def __getattr__(name: str) -> object:
    if name != "FencedTable":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from leasehold.jobs.fences import table  # noqa: PLC0415 - the driver need not be installed

    return table.FencedTable
