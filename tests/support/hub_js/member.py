"""``member.js`` with the client of Python: a member of a group that obeys lines of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


@dataclass(kw_only=True)
class Member:
    """A stock client that writes a checkpoint after each batch, until it is told to hold."""

    client: EventHubConsumerClient
    store: BlobCheckpointStore
    receiving: asyncio.Task[None] | None = None
    marks: bool = True

    def join(self) -> None:
        self.receiving = asyncio.create_task(
            self.client.receive_batch(
                self._on_batch,
                on_partition_initialize=self._on_open,
                on_partition_close=self._on_close,
                on_error=self._on_error,
                starting_position="-1",
            )
        )

    async def leave(self) -> None:
        await self.client.close()
        if self.receiving is not None:
            self.receiving.cancel()  # it would sleep its interval out
            await asyncio.gather(self.receiving, return_exceptions=True)
        await self.store._container_client.close()
        tell(left=True)

    async def _on_batch(self, context: Any, events: list[Any]) -> None:
        if not events:
            return
        partition, last = context.partition_id, events[-1]
        tell(partition=partition, seen=[each.sequence_number for each in events])
        if self.marks:
            await context.update_checkpoint(last)
            tell(partition=partition, marked=last.sequence_number)

    async def _on_open(self, context: Any) -> None:
        tell(opened=context.partition_id)

    async def _on_close(self, context: Any, reason: Any) -> None:
        tell(closed=context.partition_id, reason=reason.name)

    async def _on_error(self, _: Any, error: Exception) -> None:
        tell(error=type(error).__name__, message=str(error))


def _member(*, url: str, storage: str, container: str, **how: Any) -> Member:
    store = BlobCheckpointStore.from_connection_string(storage, container)
    client = EventHubConsumerClient.from_connection_string(
        url,
        "$Default",
        checkpoint_store=store,
        load_balancing_interval=how["interval_s"],
        partition_ownership_expiration_interval=how["expiry_s"],
        load_balancing_strategy=how["strategy"],
    )
    return Member(client=client, store=store)


async def main() -> None:
    tell(ready=True)
    member: Member | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        how = json.loads(line)
        work = how.pop("work")
        if work == "join":
            member = _member(**how)
            member.join()
        elif member is not None and work == "hold":
            member.marks = False
            tell(holds=True)
        elif member is not None and work == "leave":
            await member.leave()


if __name__ == "__main__":
    asyncio.run(main())
