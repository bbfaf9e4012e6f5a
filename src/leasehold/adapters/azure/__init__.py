"""Azure's own Event Hubs clients and Leasehold together.

======================  ============================================================================
name                    use
======================  ============================================================================
``CheckpointStore``     a stock ``EventHubConsumerClient`` on any of our stores (blocking)
``aio.CheckpointStore`` the same for the asynchronous client
``MixedStore``          our hosts and stock clients in one consumer group
``RecordsStore``        our hosts on any ``CheckpointStore`` of theirs, and on nothing else
``SharedSource``        the hub that our hosts read in such a group
``aio.BlobRecords``     the blobs of Azure's clients, read such that no odd record stops anybody
======================  ============================================================================

Azure's packages are imported when they are needed: ``pip install 'leasehold[azure]'``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasehold.adapters.azure.mixed_store import MixedStore, RecordsStore
from leasehold.adapters.azure.shared_source import SharedSource
from leasehold.errors import UsageError

if TYPE_CHECKING:
    from leasehold.adapters.azure.blocking import CheckpointStore

__all__ = ["CheckpointStore", "MixedStore", "RecordsStore", "SharedSource"]


def __getattr__(name: str) -> Any:
    if name != "CheckpointStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module("leasehold.adapters.azure.blocking").CheckpointStore
    except ImportError as error:
        raise UsageError(
            f"Azure's clients need the package {error.name!r}: pip install 'leasehold[azure]'"
        ) from error
