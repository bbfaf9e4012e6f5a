"""Failures that are not the fault of the events: the store, the bytes of the log, a disk.

A task raises such an error; it arrives as an error of Spark with the original in its text. A policy
for bad events must not see it: it would drop good ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from leasehold.errors import DataDamaged, StoreUnavailable, StoreUnusable, VolumeUnusable
from leasehold.spark.reading import leasehold_error_in

if TYPE_CHECKING:
    from leasehold.errors import LeaseholdError
    from leasehold.spark.sinks.port import Batch

StorageError: TypeAlias = StoreUnavailable | StoreUnusable | DataDamaged | VolumeUnusable

_KINDS: tuple[type[StorageError], ...] = (
    StoreUnavailable,
    StoreUnusable,
    DataDamaged,
    VolumeUnusable,
)
_BY_NAME = {each.__name__: each for each in _KINDS}


def storage_error_in(error: Exception) -> StorageError | None:
    """Return the storage error that it is or contains; None if it may be the events' fault."""
    if isinstance(error, _KINDS):
        return error
    name, message = leasehold_error_in(error) or ("", "")
    return _BY_NAME[name](message or name) if name in _BY_NAME else None


def name_batch(error: LeaseholdError, batch: Batch) -> None:
    """Add the partitions and ranges of the batch to the message, if they are missing."""
    if batch.label not in str(error):
        error.args = (f"batch {batch.number} ({batch.label}): {error}",)
