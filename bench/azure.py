"""Azure: storage, groups of both worlds, the endpoint and our receiver, beside their own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bench import (
    azure_day,
    azure_latency,
    azure_mixed,
    azure_receive,
    azure_request,
    azure_send,
)
from bench.report import Job, Part, main

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``interval_s`` is that of their clients in the mixed group."""

    hosts: int
    partitions: int
    cycles: int
    requests: int
    mixed_partitions: int
    interval_s: float
    received: int
    peer_received: int
    rounds: int
    sent: int
    batches: tuple[int, ...]
    timed_events: int
    every_s: float


FULL = Sizes(
    hosts=8,
    partitions=256,
    cycles=10,
    requests=300,
    mixed_partitions=32,
    interval_s=10.0,
    received=400_000,
    peer_received=60_000,
    rounds=5,
    sent=100_000,
    batches=(100, 1_000),
    timed_events=500,
    every_s=0.01,
)
SMALL = Sizes(
    hosts=2,
    partitions=8,
    cycles=2,
    requests=20,
    mixed_partitions=4,
    interval_s=1.0,
    received=4_000,
    peer_received=2_000,
    rounds=1,
    sent=1_000,
    batches=(10, 100),
    timed_events=50,
    every_s=0.01,
)


def jobs(sizes: Sizes) -> Sequence[Job]:
    """Each piece starts what it needs, and ends it."""
    return [
        Job(
            what="storage calls",
            run=partial(
                azure_day.storage,
                hosts=sizes.hosts,
                partitions=sizes.partitions,
                cycles=sizes.cycles,
            ),
        ),
        Job(
            what="requests",
            run=partial(azure_request.requests, each=sizes.requests, rounds=sizes.rounds),
        ),
        Job(
            what="both in one group",
            run=partial(
                azure_mixed.mixed,
                partitions=sizes.mixed_partitions,
                interval_s=sizes.interval_s,
            ),
        ),
        Job(
            what="receiving",
            run=partial(
                azure_receive.receiving,
                events=sizes.received,
                theirs=sizes.peer_received,
                rounds=sizes.rounds,
            ),
        ),
        Job(
            what="sending",
            run=partial(azure_send.sending, events=sizes.sent, sizes=sizes.batches),
        ),
        Job(
            what="latency",
            run=partial(azure_latency.latency, events=sizes.timed_events, every_s=sizes.every_s),
        ),
    ]


PART = Part(
    name="azure",
    about=(
        "Azurite 3.35.0 and our endpoint, each in a process of its own. peer: "
        "azure-eventhub, its BlobCheckpointStore and azure-storage-blob, unmodified. Dollars: by "
        "Microsoft's sample prices of block blobs, hot tier; ratio: peer / ours, for rates ours / "
        "peer."
    ),
    jobs=lambda small: jobs(SMALL if small else FULL),
)

if __name__ == "__main__":
    sys.exit(main([PART]))
