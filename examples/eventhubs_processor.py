"""Process the events of an event hub, in as many processes as you like. In a terminal of its own:

    leasehold hub --log data --create orders=4   # an endpoint here; or take a hub on Azure
    export EVENTHUB_CONNECTION_STRING='Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…'
    python examples/eventhubs_processor.py eventhubs:///orders sqlite:///hub.db

Start it twice: the two share the partitions. End one with Ctrl-C: its partitions move to the other
one, without an event coming twice.
"""

import sys

from leasehold.azure import EventHubsSource
from leasehold.errors import LeaseholdError
from leasehold.events import EventBatch
from leasehold.processor import AsyncPartitionContext, CloseReason, EventProcessor

USUAL = ["eventhubs:///orders", "sqlite:///hub.db"]


async def handle(context: AsyncPartitionContext, batch: EventBatch) -> None:
    """Arrow, as it came: ``batch.arrow`` has a column for the bodies."""
    size = batch.arrow.column("body").nbytes
    events = "1 event" if len(batch) == 1 else f"{len(batch)} events"
    last = batch.last_sequence
    print(f"{context.partition}: {events} up to {last}, {size} bytes", flush=True)


async def opened(context: AsyncPartitionContext) -> None:
    print(f"mine: partition {context.partition}, epoch {context.epoch}", flush=True)


async def closed(context: AsyncPartitionContext, reason: CloseReason) -> None:
    print(f"gone: partition {context.partition} ({reason.value})", flush=True)


async def failed(context: AsyncPartitionContext | None, error: BaseException) -> None:
    where = "hub or store" if context is None else f"partition {context.partition}"
    print(f"trouble: {where}: {error}", file=sys.stderr, flush=True)


def main(address: str, store: str) -> None:
    EventProcessor(
        EventHubsSource(address),
        store,
        "billing",
        on_batch=handle,
        on_error=failed,
        on_partition_open=opened,
        on_partition_close=closed,
    ).run()  # until Ctrl-C or SIGTERM


if __name__ == "__main__":
    words = sys.argv[1:] or USUAL
    if len(words) != len(USUAL):
        sys.exit(f"usage: eventhubs_processor.py {' '.join(USUAL)}")
    try:
        main(*words)
    except LeaseholdError as error:
        sys.exit(f"error: {error}")
