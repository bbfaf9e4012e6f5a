"""Processors beside azure-eventhub's client: cost, latency, restarts, kills, idleness, memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bench import processor_cost, processor_group, processor_host
from bench.report import Job, Part, main

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``batches`` of 1,000 events wait in each partition; ``many`` partitions have one host."""

    read_partitions: int
    batches: int
    events: int
    peer_events: int
    rounds: int
    timed_events: int
    every_s: float
    hosts: int
    partitions: int
    lease_s: float
    kills: int
    many: int
    settle_s: float
    window_s: float
    load_s: float


FULL = Sizes(
    read_partitions=8,
    batches=200,
    events=200_000,
    peer_events=40_000,
    rounds=3,
    timed_events=1_000,
    every_s=0.01,
    hosts=4,
    partitions=16,
    lease_s=3.0,
    kills=6,
    many=256,
    settle_s=5.0,
    window_s=10.0,
    load_s=15.0,
)
SMALL = Sizes(
    read_partitions=1,
    batches=1,
    events=100,
    peer_events=600,
    rounds=1,
    timed_events=10,
    every_s=0.005,
    hosts=2,
    partitions=2,
    lease_s=1.0,
    kills=1,
    many=4,
    settle_s=0.1,
    window_s=0.1,
    load_s=0.1,
)


def jobs(sizes: Sizes) -> Sequence[Job]:
    """Each piece opens a log of its own, and removes it."""
    rolling = partial(processor_group.rolling, hosts=sizes.hosts, partitions=sizes.partitions)
    killed = partial(processor_group.killed, hosts=sizes.hosts, partitions=sizes.partitions)
    return [
        Job(
            what="CPU per event",
            run=partial(
                processor_cost.per_event,
                partitions=sizes.read_partitions,
                batches=sizes.batches,
                events=sizes.events,
                peer_events=sizes.peer_events,
                rounds=sizes.rounds,
            ),
        ),
        Job(
            what="latency",
            run=partial(processor_cost.latency, events=sizes.timed_events, every_s=sizes.every_s),
        ),
        Job(what="rolling restart", run=partial(rolling, lease_s=sizes.lease_s)),
        Job(what="kill -9", run=partial(killed, lease_s=sizes.lease_s, kills=sizes.kills)),
        Job(
            what="idleness",
            run=partial(
                processor_host.idle,
                partitions=sizes.many,
                settle_s=sizes.settle_s,
                window_s=sizes.window_s,
            ),
        ),
        Job(
            what="memory",
            run=partial(processor_host.memory, partitions=sizes.many, seconds=sizes.load_s),
        ),
    ]


PART = Part(
    name="processor",
    about="Hosts in processes of their own, on SQLite, the embedded log and this machine's disk; "
    "azure-eventhub against a server of ours in another process.",
    jobs=lambda small: jobs(SMALL if small else FULL),
)

if __name__ == "__main__":
    sys.exit(main([PART]))
