"""The peer: the real ``OwnershipManager`` of azure-eventhub, in virtual time.

Only what surrounds it is ours: a checkpoint store in memory that compares and sets by etag, a
client that knows the partition ids, and the clock and the lots that its module takes from the air.
A *cycle* is one interval, in which every owner runs once, in an order drawn anew.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from azure.eventhub import CheckpointStore, LoadBalancingStrategy
from azure.eventhub._eventprocessor import ownership_manager
from azure.eventhub._eventprocessor.ownership_manager import OwnershipManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from azure.eventhub import EventHubConsumerClient

# Its defaults: how often an owner runs, and after how long without a renewal it counts as gone.
INTERVAL_S = 30.0
EXPIRY_S = 6 * INTERVAL_S
# After each run it sleeps the interval and up to a fifth more, by lot.
MEAN_PERIOD_S = 1.1 * INTERVAL_S
NAME = f"azure-eventhub {version('azure-eventhub')}"

START_S = 1e9
GREEDY = LoadBalancingStrategy.GREEDY

Record = dict[str, Any]


class VirtualTime:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now_s = START_S

    def time(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    hostname: str = "namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    """As much of the consumer client as the manager asks for."""

    partition_ids: list[str]
    eventhub_name: str = "hub"
    _address: _Address = field(default_factory=_Address)

    def get_partition_ids(self) -> list[str]:
        return list(self.partition_ids)


class PeerStore(CheckpointStore):
    """Ownership records in memory, and the calls that the blob store would need for them.

    The blob store lists with one call and writes each record, claimed or renewed, with one more.
    """

    def __init__(self, clock: VirtualTime) -> None:
        self.calls = 0
        self.moves = 0
        self.records: dict[str, Record] = {}
        self._clock = clock
        self._etags = count(1)

    def list_ownership(self, *_where: str, **_options: object) -> Iterable[Record]:
        self.calls += 1
        return [dict(record) for record in self.records.values()]

    def claim_ownership(
        self, ownership_list: Iterable[Record], **_options: object
    ) -> Iterable[Record]:
        won = []
        for wanted in ownership_list:
            self.calls += 1
            known = self.records.get(wanted["partition_id"])
            if known is not None and known["etag"] != wanted.get("etag"):
                continue
            if known is not None and self.alive(known):
                self.moves += known["owner_id"] != wanted["owner_id"]
            stored = {
                **wanted,
                "etag": str(next(self._etags)),
                "last_modified_time": self._clock.time(),
            }
            self.records[wanted["partition_id"]] = stored
            won.append(dict(stored))
        return won

    def list_checkpoints(self, *_where: str, **_options: object) -> Iterable[Record]:
        return []

    def update_checkpoint(self, checkpoint: Record, **_options: object) -> None:
        """Nothing is processed here."""

    def alive(self, record: Record) -> bool:
        expires_s = float(record["last_modified_time"]) + EXPIRY_S
        return bool(record["owner_id"]) and expires_s >= self._clock.time()


class PeerGroup:
    """Owners that share the partitions of one hub. Make it with ``peer_group``."""

    def __init__(
        self, partitions: int, *, clock: VirtualTime, strategy: LoadBalancingStrategy, seed: int
    ) -> None:
        self.store = PeerStore(clock)
        self._clock = clock
        self._strategy = strategy
        self._client = _Client(partition_ids=[str(number) for number in range(partitions)])
        self._rng = random.Random(seed)
        self._owners: dict[str, OwnershipManager] = {}
        self._to_run: list[str] = []
        self._names = count(1)

    def join(self, owners: int = 1) -> None:
        for _ in range(owners):
            name = f"owner{next(self._names):03}"
            self._owners[name] = self.manager(name)
        self._to_run = []

    def crash_one(self) -> float:
        """Somebody is gone; returns how many seconds from now its ownerships expire."""
        name = self._rng.choice(sorted(self._owners))
        del self._owners[name]
        self._to_run = []
        last_s = max(
            float(record["last_modified_time"])
            for record in self.store.records.values()
            if record["owner_id"] == name
        )
        return last_s + EXPIRY_S - self._clock.now_s

    def manager(self, name: str) -> OwnershipManager:
        return OwnershipManager(
            eventhub_client=cast("EventHubConsumerClient", self._client),
            consumer_group="group",
            owner_id=name,
            checkpoint_store=self.store,
            ownership_timeout=EXPIRY_S,
            load_balancing_strategy=self._strategy,
            partition_id=None,
        )

    def counts(self) -> list[int]:
        """How many partitions each owner has, the most first."""
        owned = Counter(record["owner_id"] for record in self.store.records.values())
        return sorted((owned[name] for name in self._owners), reverse=True)

    def spread(self) -> int:
        counts = self.counts()
        return counts[0] - counts[-1]

    def all_owned(self) -> bool:
        return sum(self.counts()) == len(self._client.partition_ids)

    def even(self) -> bool:
        return self.all_owned() and self.spread() <= 1

    def step(self) -> None:
        """The next owner runs once."""
        if not self._to_run:
            self._to_run = self._rng.sample(sorted(self._owners), len(self._owners))
        self._clock.now_s += INTERVAL_S / len(self._owners)
        self._owners[self._to_run.pop()].claim_ownership()

    def cycles(self, number: int = 1) -> None:
        for _ in range(number * len(self._owners)):
            self.step()

    def seconds_until(self, condition: Callable[[], bool], *, max_cycles: int) -> float | None:
        """The seconds it took, or None: not in so many cycles."""
        begun_s = self._clock.now_s
        for _ in range(max_cycles * len(self._owners)):
            self.step()
            if condition():
                return self._clock.now_s - begun_s
        return None

    def cycles_until(self, condition: Callable[[], bool], *, max_cycles: int) -> int | None:
        seconds = self.seconds_until(condition, max_cycles=max_cycles)
        return None if seconds is None else as_cycles(seconds)

    def settle(self, *, max_cycles: int) -> None:
        """Run until three cycles in a row have moved nothing."""
        quiet = 0
        for _ in range(max_cycles):
            before = self.store.moves
            self.cycles()
            quiet = quiet + 1 if self.store.moves == before and self.all_owned() else 0
            if quiet == 3:
                return


def as_cycles(seconds: float) -> int:
    """Begun cycles; a last binary digit begins none."""
    return max(1, math.ceil(seconds / INTERVAL_S - 1e-6))


@contextmanager
def peer_group(
    partitions: int, *, strategy: LoadBalancingStrategy = GREEDY, seed: int = 0
) -> Iterator[PeerGroup]:
    """A group without owners; inside the block the peer's module has virtual time and our lots."""
    clock = VirtualTime()
    with (
        patch.object(ownership_manager, "time", clock),
        patch.object(ownership_manager, "random", random.Random(f"lots/{seed}")),
    ):
        yield PeerGroup(partitions, clock=clock, strategy=strategy, seed=seed)
