"""``member.py`` with the blocking client: a member of a group that obeys lines of JSON."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from azure.eventhub import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore


def tell(**what: object) -> None:
    print(json.dumps(what) + "\n", end="", flush=True)  # in one piece: there are threads


class Member:
    """A stock client that writes a checkpoint after each batch, until it is told to hold."""

    def __init__(self, *, url: str, storage: str, container: str, **how: Any) -> None:
        self.client = EventHubConsumerClient.from_connection_string(
            url,
            "$Default",
            checkpoint_store=BlobCheckpointStore.from_connection_string(storage, container),
            load_balancing_interval=how["interval_s"],
            partition_ownership_expiration_interval=how["expiry_s"],
            load_balancing_strategy=how["strategy"],
        )
        self.marks = True
        self.receiving = threading.Thread(target=self._receive, daemon=True)

    def leave(self) -> None:
        self.client.close()
        self.receiving.join()
        tell(left=True)

    def _receive(self) -> None:
        self.client.receive_batch(
            self._on_batch,
            on_partition_initialize=lambda context: tell(opened=context.partition_id),
            on_partition_close=lambda context, reason: tell(
                closed=context.partition_id, reason=reason.name
            ),
            on_error=lambda _, error: tell(error=type(error).__name__, message=str(error)),
            starting_position="-1",
            prefetch=1,  # it holds events back until it has so many
        )

    def _on_batch(self, context: Any, events: list[Any]) -> None:
        if not events:
            return
        partition, last = context.partition_id, events[-1]
        tell(partition=partition, seen=[each.sequence_number for each in events])
        if self.marks:
            context.update_checkpoint(last)
            tell(partition=partition, marked=last.sequence_number)


def main() -> None:
    tell(ready=True)
    member: Member | None = None
    for line in sys.stdin:
        how = json.loads(line)
        work = how.pop("work")
        if work == "join":
            member = Member(**how)
            member.receiving.start()
        elif member is not None and work == "hold":
            member.marks = False
            tell(holds=True)
        elif member is not None and work == "leave":
            member.leave()


if __name__ == "__main__":
    main()
