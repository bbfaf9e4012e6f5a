"""Members of Leasehold beside the real balancer of azure-eventhub, in simulated time.

That is the client's own ``OwnershipManager``, called each 30 to 36 s as the client calls it.
Nothing waits, and no event is read.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any, Self

from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager
from tests.support.job_scene import LoopClock

from leasehold import LeaseTiming, Member, MemberOptions
from leasehold.azure import MixedStore, RecordsStore
from leasehold.azure.interop.records import host_owner_id
from leasehold.clock import SystemClock
from leasehold.model import Ownership
from leasehold.names import partition_group, partition_key
from leasehold.stores.memory import MemoryStore
from leasehold.testing.sim.loop import run_simulated

NAMESPACE, HUB, CONSUMERS = "ns.servicebus.windows.net", "orders", "$Default"
GROUP = partition_group(HUB, CONSUMERS)
CLIENT_CYCLE_S = 36.0
EXPIRY_S = 180.0


class FakeAzureStore:
    """A ``CheckpointStore`` of Azure as it should be: fresh rows, compare-and-set, counted."""

    def __init__(self) -> None:
        self.owners: dict[str, dict[str, Any]] = {}
        self.positions: dict[str, dict[str, Any]] = {}
        self.written_s: dict[str, float] = {}
        self.calls: Counter[str] = Counter()
        self.away = False
        self._etags = count(1)

    async def list_ownership(self, *names: str, **kwargs: object) -> Iterable[dict[str, Any]]:
        self._called("list_ownership")
        return deepcopy(list(self.owners.values()))

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: object
    ) -> Iterable[dict[str, Any]]:
        won = []
        for each in ownership_list:
            self._called("claim_ownership")
            known = self.owners.get(each["partition_id"])
            if (known or {}).get("etag") == each.get("etag"):
                stamp = {"etag": str(next(self._etags)), "last_modified_time": _wall_s()}
                self.owners[each["partition_id"]] = {**each, **stamp}
                self.written_s[each["partition_id"]] = asyncio.get_running_loop().time()
                won.append(dict(self.owners[each["partition_id"]]))
        return won

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: object) -> None:
        self._called("update_checkpoint")
        self.positions[checkpoint["partition_id"]] = dict(checkpoint)

    async def list_checkpoints(self, *names: str, **kwargs: object) -> Iterable[dict[str, Any]]:
        self._called("list_checkpoints")
        return deepcopy(list(self.positions.values()))

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.away:
            raise ConnectionError("away")


def _wall_s() -> float:
    # Their balancer compares it with the machine's clock, which does not move in a simulation.
    return SystemClock().utc_now().timestamp()


@dataclass(kw_only=True)
class Work:
    """A handler whose work stops immediately or, if it is ``slow``, when the test says so."""

    ended: list[tuple[str, str]] = field(default_factory=list)
    slow: bool = False
    stopping: list[Ownership] = field(default_factory=list)

    def opened(self, ownership: Ownership) -> None:
        pass

    def drain(self, ownership: Ownership) -> bool:
        self.stopping.append(ownership)
        return not self.slow

    def closed(self, ownership: Ownership, reason: str) -> None:
        self.ended.append((ownership.key, reason))


class Group:
    """Members of Leasehold and clients of Azure over one pair of stores."""

    def __init__(self, *, partitions: int, seed: int = 1, alone: bool = False) -> None:
        self.partitions = [str(number) for number in range(partitions)]
        self.keys = [partition_key(HUB, CONSUMERS, each) for each in self.partitions]
        self.alone = alone
        self.store = MemoryStore(LoopClock())
        self.azure_store = FakeAzureStore()
        self.members: list[Member] = []
        self.clients: list[OwnershipManager] = []
        self.work: dict[Member, Work] = {}
        self.tasks: dict[object, asyncio.Task[None]] = {}
        self.overtaken: list[Ownership] = []
        self.rng = random.Random(seed)

    async def __aenter__(self) -> Self:
        await self.store.declare(self.keys)
        return self

    async def __aexit__(self, *_: object) -> None:
        while left := [each for each in self.tasks.values() if not each.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1)  # ``wait_for`` of Python 3.11 may swallow one
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    def mixed(self) -> MixedStore:
        """The store of one host: shared with the other hosts, or private."""
        given: dict[str, Any] = {
            "namespace": NAMESPACE,
            "hub": HUB,
            "expiry": timedelta(seconds=EXPIRY_S),
            "clock": LoopClock(),
            "rng": self.rng,
        }
        if self.alone:
            return RecordsStore(self.azure_store, **given)
        return MixedStore(self.store, self.azure_store, **given)

    def host(self, most: int | None = None, *, slow: bool = False) -> Member:
        """Start a member of Leasehold."""
        number, work, store = len(self.members), Work(slow=slow), self.mixed()

        async def run() -> None:
            await store.declare(self.keys)
            await member.run()

        member = Member(
            store,
            MemberOptions(group=GROUP, name=f"host{number}", timing=LeaseTiming(), most=most),
            keeper=work,
            clock=LoopClock(),
            rng=random.Random(number),
            identity=lambda: (f"{number}-{self.rng.random()}", f"token{number}"),
            told=lambda report: self.overtaken.extend(report.overtaken),
        )
        self.members.append(member)
        self.work[member] = work
        self.tasks[member] = asyncio.create_task(run())
        return member

    def client(
        self, name: str, strategy: LoadBalancingStrategy = LoadBalancingStrategy.GREEDY
    ) -> OwnershipManager:
        """Start a client of Azure; cancelling its task is a crash."""

        async def ids() -> list[str]:
            return self.partitions

        client: Any = SimpleNamespace(
            _address=SimpleNamespace(hostname=NAMESPACE), eventhub_name=HUB, get_partition_ids=ids
        )
        theirs: Any = self.azure_store
        manager = OwnershipManager(client, CONSUMERS, name, theirs, EXPIRY_S, strategy, None)

        async def cycle() -> None:
            while True:
                await manager.claim_ownership()
                await asyncio.sleep(30.0 + 6.0 * self.rng.random())

        self.clients.append(manager)
        self.tasks[manager] = asyncio.create_task(cycle())
        return manager

    async def leave(self, client: OwnershipManager) -> None:
        """As their client does at its end: each partition is released."""
        self.tasks.pop(client).cancel()
        self.clients.remove(client)
        for each in list(client.owned_partitions):
            await client.release_ownership(each["partition_id"])

    def counts(self) -> Counter[str]:
        """How many partitions each works on, as it says."""
        counts = Counter(
            {each.holder or each.options.name: len(each.held()) for each in self.members}
        )
        for each in self.clients:
            counts[each.owner_id] = len(list(each.owned_partitions))
        return counts

    def even(self, owners: int) -> bool:
        counts = self.counts()
        shares = sorted(counts.values())
        return (
            sum(shares) == len(self.partitions)
            and len(shares) == owners
            and shares[-1] - shares[0] <= 1
        )

    async def epochs(self) -> dict[str, int]:
        return {key: each.epoch for key, each in (await self.store.resources(GROUP)).items()}

    def agrees(self) -> bool:
        """Whether each member holds exactly what Azure's records say of it."""
        for member in self.members:
            held = {each.key.rpartition("/")[2] for each in member.held()}
            owner_id = host_owner_id(member.holder or "")
            named = {
                row["partition_id"]
                for row in self.azure_store.owners.values()
                if row["owner_id"] == owner_id
            }
            if held != named:
                return False
        return True

    async def cycles_until(self, true: Callable[[], bool], *, most: float = 20.0) -> float:
        """How many cycles of the clients it takes."""
        now = asyncio.get_running_loop().time
        began_s = now()
        while not true():
            assert now() - began_s < most * CLIENT_CYCLE_S, self.counts()
            await asyncio.sleep(0.5)
        return (now() - began_s) / CLIENT_CYCLE_S


def play(
    story: Callable[[Group], Coroutine[Any, Any, None]],
    *,
    partitions: int = 8,
    seed: int = 1,
    alone: bool = False,
) -> None:
    async def main() -> None:
        async with Group(partitions=partitions, seed=seed, alone=alone) as group:
            await story(group)

    run_simulated(main())
