"""Processors for tests: short cycles, one process, and everything that happens can be awaited."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from leasehold import LeaseTiming
from leasehold.clock import SystemClock
from leasehold.core.backoff import Backoff
from leasehold.events import Event, EventBatch
from leasehold.names import partition_group, partition_key
from leasehold.ports import Store
from leasehold.processor import CheckpointPolicy, EventProcessor, HookEvent, ProcessorOptions
from leasehold.processor.events import PartitionOpened
from leasehold.stores.memory import MemoryStore
from leasehold.testing.faults import FaultyStore, Lost
from leasehold.testing.source import MemorySource

Kind = TypeVar("Kind", bound=HookEvent)
TIMEOUT_S = 120.0
QUICK_RETRIES = Backoff(base_s=0.001, max_s=0.001)
SECOND = timedelta(seconds=1)
LONG_LEASE_S = 60.0


class Notifier:
    """A change, in any thread, that can be awaited in the test's loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def notify(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds; fail after the timeout."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Watch(Notifier):
    """A hook that keeps its events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[HookEvent] = []

    def __call__(self, event: HookEvent) -> None:
        self.events.append(event)
        self.notify()

    def of(self, kind: type[Kind], **like: object) -> list[Kind]:
        """All of one kind whose fields are as given."""
        return [
            event
            for event in list(self.events)
            if isinstance(event, kind)
            and all(getattr(event, name) == value for name, value in like.items())
        ]

    async def sees(self, kind: type[Kind], *, times: int = 1, **like: object) -> Kind:
        """Wait until this was reported that many times; return the last of them."""
        await self.until(lambda: len(self.of(kind, **like)) >= times)
        return self.of(kind, **like)[times - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One event as a handler got it."""

    host: str
    partition: str
    epoch: int
    number: int
    body: bytes


class Seen(Notifier):
    """What handlers were given, by all hosts, in the order in which it came."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Delivered] = []

    def note(self, context: Any, event: Event) -> None:
        self.all.append(
            Delivered(
                host=context.holder.split("-")[0],
                partition=context.partition,
                epoch=context.epoch,
                number=event.sequence_number,
                body=event.body,
            )
        )
        self.notify()

    async def on_batch(self, context: Any, batch: EventBatch) -> None:
        for event in batch:
            self.note(context, event)

    async def on_event(self, context: Any, event: Event) -> None:
        self.note(context, event)

    def numbers(self, partition: str = "0", **like: object) -> list[int]:
        """The numbers of the events of one partition, as they came."""
        return [
            each.number
            for each in list(self.all)
            if each.partition == partition
            and all(getattr(each, name) == value for name, value in like.items())
        ]

    async def count(self, number: int) -> None:
        """Wait for this many events."""
        await self.until(lambda: len(self.all) >= number)

    def twice(self) -> list[tuple[str, int]]:
        """The events that came more than once."""
        times = Counter((each.partition, each.number) for each in self.all)
        return [event for event, count in times.items() if count > 1]


@dataclass(kw_only=True)
class Errors:
    """An ``on_error`` that keeps its errors."""

    received: list[tuple[Any, BaseException]] = field(default_factory=list)
    changed: Notifier = field(default_factory=Notifier)

    async def __call__(self, context: Any, error: BaseException) -> None:
        self.received.append((context, error))
        self.changed.notify()

    async def count(self, number: int) -> None:
        await self.changed.until(lambda: len(self.received) >= number)


def timing(lease_s: float = LONG_LEASE_S) -> LeaseTiming:
    """Renewed much more often than needed: a busy machine costs no lease, and all goes quickly."""
    return LeaseTiming.of(
        lease=timedelta(seconds=lease_s),
        renew_interval=timedelta(seconds=min(0.2, lease_s * 0.3)),
    )


def options(*, lease_s: float = LONG_LEASE_S, **more: Any) -> ProcessorOptions:
    """Short cycles, long leases, a checkpoint after each batch, unless given."""
    common: dict[str, Any] = {
        "timing": timing(lease_s),
        "checkpoint": CheckpointPolicy.after_each_batch(),
        "drain_timeout": timedelta(seconds=5),
        "discovery_interval": timedelta(seconds=5),
    }
    return ProcessorOptions(**{**common, **more})


class SkippingClock(SystemClock):
    """The machine's clock, which a test can move past the end of all leases."""

    ahead_s = 0.0

    def boottime_s(self) -> float:
        return super().boottime_s() + self.ahead_s

    def expire_leases(self) -> None:
        """End all leases that were granted before."""
        self.ahead_s += 2 * LONG_LEASE_S


class HostGroup:
    """One stream, one store, and any number of hosts of one group."""

    def __init__(
        self,
        source: MemorySource,
        store: str | Store,
        hosts: AsyncExitStack,
        group: str,
        clock: SkippingClock,
    ) -> None:
        self.source = source
        self.store = store
        self.group = group
        self.clock = clock
        self.watch = Watch()
        self.seen = Seen()
        self.errors = Errors()
        self._hosts = hosts

    @property
    def name(self) -> str:
        return partition_group(self.source.name, self.group)

    def key(self, partition: str = "0") -> str:
        return partition_key(self.source.name, self.group, partition)

    def make(
        self, name: str = "a", *, setting: ProcessorOptions | None = None, **more: Any
    ) -> EventProcessor:
        """Create a host that is not started. Without a handler it records events in ``seen``."""
        if not {"on_batch", "on_event"} & set(more):
            more["on_batch"] = self.seen.on_batch
        given: dict[str, Any] = {
            "options": setting or options(),
            "hooks": [self.watch],
            "on_error": self.errors,
            "name": name,
            "clock": self.clock,
            **more,
        }
        store = given.pop("store", self.store)
        source = given.pop("source", self.source)
        return EventProcessor(source, store, self.group, **given)

    async def host(self, name: str = "a", **more: Any) -> EventProcessor:
        """Start a host, which is stopped at the end of the test."""
        return await self._hosts.enter_async_context(self.make(name, **more))

    async def owns(self, name: str = "a", **more: Any) -> EventProcessor:
        """Start a host, and wait until it has opened all partitions."""
        before = len(self.watch.of(PartitionOpened))
        processor = await self.host(name, **more)
        count = len(self.source.events)
        await self.watch.until(lambda: len(self.watch.of(PartitionOpened)) >= before + count)
        return processor

    def fill(self, count: int, partitions: Sequence[str] | None = None) -> int:
        """Add this many events to each partition; return the total."""
        for partition in partitions or list(self.source.events):
            begin = len(self.source.events[partition])
            bodies = [f"{partition}-{number}".encode() for number in range(begin, begin + count)]
            self.source.append(partition, *bodies)
        return sum(map(len, self.source.events.values()))

    async def checkpoints(self) -> dict[str, int]:
        """The number of the last event that is done, by partition."""
        assert not isinstance(self.store, str)
        found = await self.store.checkpoints(self.name)
        return {
            key.rpartition("/")[2]: each.position.sequence_number for key, each in found.items()
        }


@asynccontextmanager
async def host_group(
    *,
    partitions: int = 1,
    events: int = 0,
    store: str | Store | None = None,
    group: str = "billing",
    source: MemorySource | None = None,
) -> AsyncIterator[HostGroup]:
    """A stream and a store in memory; all hosts are stopped at the end, the last first."""
    source = source or MemorySource("orders", partitions=partitions)
    async with AsyncExitStack() as hosts:
        clock = SkippingClock()
        made = HostGroup(
            source, MemoryStore(clock) if store is None else store, hosts, group, clock
        )
        if events:
            made.fill(events)
        yield made


def lease_threads() -> list[str]:
    """The threads of processors that have not ended."""
    return [each.name for each in threading.enumerate() if each.name.startswith("leases of")]


class CuttableStore:
    """A store that can be disconnected from one host, as a network fails."""

    def __init__(self, store: Store) -> None:
        self.cut = False
        self.only: frozenset[str] = frozenset()
        self.calls: Counter[str] = Counter()
        self.store = FaultyStore(store, self._lose).as_store

    def _lose(self, name: str) -> Lost | None:
        self.calls[name] += 1
        gone = self.cut and (not self.only or name in self.only)
        return Lost.REQUEST if gone else None
