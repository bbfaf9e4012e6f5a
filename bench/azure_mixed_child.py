"""A member of a mixed group in a process of its own: ``ours`` or ``theirs``, until SIGTERM.

It is told by its input where everything is, and writes down line by line what it opens, is given
and closes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from leasehold.azure import BlobRecords, EventHubsSource, MixedStore, SharedSource
from leasehold.core.lease_timing import LeaseTiming
from leasehold.processor import EventProcessor, ProcessorOptions
from leasehold.processor.events import Overtaken

if TYPE_CHECKING:
    from leasehold.events import EventBatch
    from leasehold.processor import AsyncPartitionContext, CloseReason
    from leasehold.processor.events import HookEvent

CONSUMERS = "$Default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """All that a member is told. Times are in seconds; ``interval_s`` is that of theirs."""

    notes: str
    connection: str
    address: str
    namespace: str
    hub: str
    storage: str
    container: str
    store_url: str
    interval_s: float
    expiry_s: float
    lease_s: float
    renew_s: float


class _Watched(BlobCheckpointStore):
    """Their store, which writes down when a cycle of theirs begins: with a listing."""

    notes: _Notes

    async def list_ownership(self, *place: Any, **options: Any) -> Any:
        self.notes.add("cycle", time.monotonic())
        return await super().list_ownership(*place, **options)

    async def claim_ownership(self, ownership_list: Any, **options: Any) -> Any:
        claimed = await super().claim_ownership(ownership_list, **options)
        for each in claimed:
            self.notes.add("claim", each["partition_id"], time.monotonic())
        return claimed


class _Notes:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def add(self, *words: object) -> None:
        os.write(self._file, " ".join(map(str, words)).encode() + b"\n")


def ours(told: Told) -> None:
    """One of our processors, which reads from the endpoint."""
    notes = _Notes(told.notes)

    async def on_open(context: AsyncPartitionContext) -> None:
        notes.add("open", context.partition, context.epoch, time.monotonic())

    async def on_close(context: AsyncPartitionContext, reason: CloseReason) -> None:
        notes.add("close", context.partition, context.epoch, reason.name.lower(), time.monotonic())

    def hook(event: HookEvent) -> None:
        if isinstance(event, Overtaken):
            notes.add("overtaken", event.partition, event.epoch, time.monotonic())

    async def on_batch(context: AsyncPartitionContext, batch: EventBatch) -> None:
        numbers = (batch.first_sequence, batch.last_sequence)
        notes.add("batch", context.partition, *numbers, time.monotonic())

    store = MixedStore(
        told.store_url,
        BlobRecords.from_connection_string(told.storage, told.container),
        namespace=told.namespace,
        hub=told.hub,
        expiry=timedelta(seconds=told.expiry_s),
    )
    # The usual grace is half of their usual cycle.
    grace = timedelta(seconds=told.interval_s / 2)
    processor = EventProcessor(
        SharedSource(EventHubsSource(told.address), grace=grace),
        store,
        CONSUMERS,
        on_batch=on_batch,
        on_partition_open=on_open,
        on_partition_close=on_close,
        hooks=[hook],
        options=ProcessorOptions(
            timing=LeaseTiming.of(
                lease=timedelta(seconds=told.lease_s),
                renew_interval=timedelta(seconds=told.renew_s),
            )
        ),
    )
    notes.add("ready", time.monotonic())
    processor.run()


async def theirs(told: Told) -> None:
    """A stock client with its own store, which writes a checkpoint after each batch."""
    notes = _Notes(told.notes)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)

    async def on_batch(context: Any, events: list[Any]) -> None:
        if events:
            numbers = (events[0].sequence_number, events[-1].sequence_number)
            notes.add("batch", context.partition_id, *numbers, time.monotonic())
            await context.update_checkpoint(events[-1])

    async def on_open(context: Any) -> None:
        notes.add("open", context.partition_id, 0, time.monotonic())

    async def on_close(context: Any, reason: Any) -> None:
        notes.add("close", context.partition_id, 0, reason.name.lower(), time.monotonic())

    store = cast("_Watched", _Watched.from_connection_string(told.storage, told.container))
    store.notes = notes
    client = EventHubConsumerClient.from_connection_string(
        told.connection,
        CONSUMERS,
        checkpoint_store=store,
        load_balancing_interval=told.interval_s,
        partition_ownership_expiration_interval=told.expiry_s,
    )
    notes.add("ready", time.monotonic())
    receiving = asyncio.create_task(
        client.receive_batch(
            on_batch,
            on_partition_initialize=on_open,
            on_partition_close=on_close,
            starting_position="-1",
        )
    )
    await over.wait()
    await client.close()
    receiving.cancel()  # it would sleep its interval out
    await asyncio.gather(receiving, return_exceptions=True)


if __name__ == "__main__":
    given = Told(**json.loads(sys.stdin.readline()))
    if sys.argv[1] == "ours":
        ours(given)
    else:
        asyncio.run(theirs(given))
