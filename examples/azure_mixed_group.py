"""A host of ours in a consumer group of stock Event Hubs clients, on the blobs of these clients.

    export EVENTHUB_CONNECTION_STRING='Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…'
    export AZURE_STORAGE_CONNECTION_STRING='…'   # of the account with the clients' container
    python examples/azure_mixed_group.py orders checkpoints sqlite:///leases.db

with the project's environment active (``. .venv/bin/activate``) and ``leasehold[azure]`` in it. The
container must be there. Start it twice, beside any number of stock clients with a
``BlobCheckpointStore`` on that container: all of them share the partitions, and go on from each
other's checkpoints. Without the last word the hosts have nothing in common but the container.
"""

import os
import sys

from azure.eventhub import parse_connection_string

from leasehold.azure import BlobRecords, EventHubsSource, MixedStore, RecordsStore, SharedSource
from leasehold.errors import LeaseholdError
from leasehold.events import EventBatch
from leasehold.processor import AsyncPartitionContext, CloseReason, EventProcessor

USAGE = "usage: azure_mixed_group.py HUB CONTAINER [STORE]"


async def handle(context: AsyncPartitionContext, batch: EventBatch) -> None:
    events = "1 event" if len(batch) == 1 else f"{len(batch)} events"
    print(f"{context.partition}: {events} up to {batch.last_sequence}", flush=True)


async def opened(context: AsyncPartitionContext) -> None:
    print(f"mine: partition {context.partition}", flush=True)


async def closed(context: AsyncPartitionContext, reason: CloseReason) -> None:
    print(f"gone: partition {context.partition} ({reason.value})", flush=True)


async def failed(context: AsyncPartitionContext | None, error: BaseException) -> None:
    where = "hub or store" if context is None else f"partition {context.partition}"
    print(f"trouble: {where}: {error}", file=sys.stderr, flush=True)


def main(hub: str, container: str, store: str = "") -> None:
    """Process until Ctrl-C or SIGTERM; then all is given to the others in good order."""
    # As the stock clients name it: another name would be another group, and all comes twice.
    connection = parse_connection_string(os.environ["EVENTHUB_CONNECTION_STRING"])
    namespace = connection.fully_qualified_namespace
    records = BlobRecords.from_connection_string(
        os.environ["AZURE_STORAGE_CONNECTION_STRING"], container
    )
    EventProcessor(
        SharedSource(EventHubsSource(f"eventhubs:///{hub}")),
        MixedStore(store, records, namespace=namespace, hub=hub)
        if store
        else RecordsStore(records, namespace=namespace, hub=hub),
        "$Default",
        on_batch=handle,
        on_error=failed,
        on_partition_open=opened,
        on_partition_close=closed,
    ).run()


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) not in (2, 3):
        sys.exit(USAGE)
    try:
        main(*words)
    except KeyError as missing:
        sys.exit(f"error: set {missing.args[0]}: see the top of this file")
    except LeaseholdError as error:
        sys.exit(f"error: {error}")
