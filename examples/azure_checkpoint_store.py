"""A stock consumer client of Event Hubs whose ownerships and checkpoints are in a store of ours.

    python examples/azure_checkpoint_store.py "Endpoint=sb://…;EntityPath=orders"
    sqlite:///leases.db

with the project's environment active (``. .venv/bin/activate``) and ``leasehold[azure]`` in it.
Start it twice: the two share the partitions. End one with Ctrl-C: the other has all of them at
once. Kill one: the other has them when its lease is over. The store may be any of Leasehold's.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from typing import Any

from azure.eventhub.aio import EventHubConsumerClient

from leasehold import LeaseholdError
from leasehold.azure import AsyncCheckpointStore


async def on_event_batch(context: Any, events: list[Any]) -> None:
    """Handle some events, then write down how far it went."""
    if events:
        # FencedWrite, if another consumer owns the partition by now: then this one must stop.
        await context.update_checkpoint(events[-1])
        count = "1 event" if len(events) == 1 else f"{len(events)} events"
        print(f"partition {context.partition_id}: {count}", flush=True)


async def on_error(context: Any, error: Exception) -> None:
    where = f"partition {context.partition_id}" if context else "sharing out"
    print(f"{where}: {error}", file=sys.stderr)


async def main(connection_string: str, store_url: str) -> None:
    """Consume until Ctrl-C; then leave in good order, which their client does not do by itself."""
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with AsyncCheckpointStore(store_url, lease=timedelta(seconds=30)) as store:
        client = EventHubConsumerClient.from_connection_string(
            connection_string, "$Default", checkpoint_store=store, load_balancing_interval=10
        )
        receiving = asyncio.create_task(
            client.receive_batch(on_event_batch, on_error=on_error, starting_position="-1")
        )
        print("consuming: Ctrl-C to end", flush=True)
        await stop.wait()
        await client.close()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
    print("left", flush=True)


if __name__ == "__main__":
    _, *given = sys.argv
    try:
        connection_string, store_url = given
    except ValueError:
        sys.exit("give a connection string and a store: see the top of this file")
    try:
        asyncio.run(main(connection_string, store_url))
    except (LeaseholdError, ValueError) as error:
        sys.exit(f"error: {error}")
