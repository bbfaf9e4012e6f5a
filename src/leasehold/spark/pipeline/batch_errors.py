"""Trouble that is no fault of the events: the store, the log's bytes, a disk.

A task that meets it raises an error of ours, which arrives as an error of Spark's with ours in its
text. A policy for bad events must not see it: it would drop good ones.
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
    """The trouble that it is, or that a task told with it; None if it may be the events' fault."""
    if isinstance(error, _KINDS):
        return error
    name, words = leasehold_error_in(error) or ("", "")
    return _BY_NAME[name](words or name) if name in _BY_NAME else None


def name_batch(error: LeaseholdError, batch: Batch) -> None:
    """Let the message name the partitions and ranges of the batch, if it does not yet."""
    if batch.label not in str(error):
        error.args = (f"batch {batch.number} ({batch.label}): {error}",)
