"""Everything that knows Azure: the blob store, Event Hubs as a source, an Event Hubs endpoint.

==============  ====================================================================================
package         holds
==============  ====================================================================================
``blob_store``  the store on Azure Blob Storage (``azure-blob://``)
``eventhubs``   Event Hubs as an event source (``eventhubs://``)
``endpoint``    ``leasehold hub``: an Event Hubs endpoint over the log
``amqp``        AMQP 1.0 as bytes: values, frames, messages; for source and endpoint
``interop``     Azure's own clients on our stores, and beside our hosts
==============  ====================================================================================

Of the other packages only ``cli`` imports this one: stores and sources are found by the scheme of
their URL. Azure's packages are imported when they are needed: ``pip install 'leasehold[azure]'``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from leasehold.azure.amqp.event_properties import original_message
    from leasehold.azure.blob_store.blob_lease import BlobLease
    from leasehold.azure.endpoint.options import HubOptions
    from leasehold.azure.endpoint.sas_keys import SasKeys
    from leasehold.azure.endpoint.server import HubServer
    from leasehold.azure.eventhubs.source import EventHubsSource
    from leasehold.azure.interop.blob_records import BlobRecords
    from leasehold.azure.interop.checkpoint_store import AsyncCheckpointStore, CheckpointStore
    from leasehold.azure.interop.mixed_store import MixedStore, RecordsStore, SharedSource

__all__ = [
    "AsyncCheckpointStore",
    "BlobLease",
    "BlobRecords",
    "CheckpointStore",
    "EventHubsSource",
    "HubOptions",
    "HubServer",
    "MixedStore",
    "RecordsStore",
    "SasKeys",
    "SharedSource",
    "original_message",
]

_HOMES = {
    "AsyncCheckpointStore": "interop.checkpoint_store",
    "BlobLease": "blob_store.blob_lease",
    "BlobRecords": "interop.blob_records",
    "CheckpointStore": "interop.checkpoint_store",
    "EventHubsSource": "eventhubs.source",
    "HubOptions": "endpoint.options",
    "HubServer": "endpoint.server",
    "MixedStore": "interop.mixed_store",
    "RecordsStore": "interop.mixed_store",
    "SasKeys": "endpoint.sas_keys",
    "SharedSource": "interop.mixed_store",
    "original_message": "amqp.event_properties",
}


def __getattr__(name: str) -> object:
    """Load a name when it is first used.

    Raises:
        UsageError: a package of Azure is not installed; the message names it.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("leasehold"):
            raise
        raise UsageError(
            f"leasehold.azure.{name} needs the package {error.name!r}: "
            "pip install 'leasehold[azure]'"
        ) from error
