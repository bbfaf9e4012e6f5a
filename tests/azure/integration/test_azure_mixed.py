"""Our processors and stock clients of azure-eventhub in one consumer group, on real blobs.

Theirs use their own ``BlobCheckpointStore``; the blobs are Azurite's, the events come to all of
them from a hub over a log.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from tests.support.azure_group import CONSUMERS, HUB, LEFT_OPEN, Client, Hub, hub, until
from tests.support.azurite import Azurite, shared_azurite

from leasehold import LeaseTiming
from leasehold.azure import BlobRecords, EventHubsSource, MixedStore, RecordsStore, SharedSource
from leasehold.errors import StoreUnusable
from leasehold.events import EventBatch
from leasehold.model import EndReason
from leasehold.names import partition_key
from leasehold.processor import (
    AsyncPartitionContext,
    CheckpointPolicy,
    CloseReason,
    EventProcessor,
    HookEvent,
    ProcessorOptions,
)
from leasehold.processor.events import Overtaken
from leasehold.stores import open_store
from leasehold.testing.source import MemorySource

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.server,
    pytest.mark.timeout(300),
    pytest.mark.spec("B8"),
    *LEFT_OPEN,
]

EXAMPLE = Path(__file__).parents[3] / "examples" / "azure_mixed_group.py"
BATCH = 10  # events for each partition
INTERVAL_S = 0.2
EXPIRY_S = 180.0  # their default; nobody is ever taken for dead here


class Eager:
    """Looks at the records in each cycle, instead of 36 times within the expiry: that is long."""

    def _is_due(self, _: object) -> bool:
        return True


class EagerMixed(Eager, MixedStore):
    pass


class EagerAlone(Eager, RecordsStore):
    pass


@dataclass(kw_only=True)
class Scene:
    """One group on one container, with the ways to join it."""

    hub: Hub
    azurite: Azurite
    container: str
    url: str
    stack: AsyncExitStack
    hosts: dict[str, EventProcessor] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    records: dict[str, BlobRecords] = field(default_factory=dict)
    looks: Counter[str] = field(default_factory=Counter)

    async def host(self, name: str, **more: Any) -> EventProcessor:
        """Start a host of Leasehold; ``more`` is for the processor."""
        records = self.records[name] = BlobRecords.from_connection_string(
            self.azurite.connection_string, self.container
        )
        self.stack.push_async_callback(records.close)
        self._count(name, records)
        store = EagerMixed(self.url, records, **self._group())
        return await self._started(name, store, **more)

    async def lone_host(self, name: str) -> EventProcessor:
        """Start a host of Leasehold with nothing but Azure's own store."""
        azure_store: Any = BlobCheckpointStore.from_connection_string(
            self.azurite.connection_string, self.container
        )
        self.stack.push_async_callback(azure_store._container_client.close)
        self._count(name, azure_store)
        return await self._started(name, EagerAlone(azure_store, **self._group()))

    def _group(self) -> dict[str, Any]:
        expiry = timedelta(seconds=EXPIRY_S)
        return {"namespace": self.hub.namespace, "hub": HUB, "expiry": expiry}

    def _count(self, name: str, store: Any) -> None:
        """Count how often it looks at the records: with that each cycle of anybody begins."""
        look = store.list_ownership

        async def counted(*names: Any, **more: Any) -> Any:
            self.looks[name] += 1
            return await look(*names, **more)

        store.list_ownership = counted

    async def _started(self, name: str, store: MixedStore, **more: Any) -> EventProcessor:

        async def on_batch(context: Any, batch: EventBatch) -> None:
            for event in batch:
                self.hub.deliveries.add(name, context.partition, event.sequence_number)

        made = EventProcessor(
            SharedSource(EventHubsSource(self.hub.address)),
            store,
            CONSUMERS,
            on_batch=on_batch,
            name=name,
            **more,
            options=ProcessorOptions(
                timing=LeaseTiming(lease_s=55.0, renew_s=INTERVAL_S, margin_s=3.0, call_s=20.0),
                checkpoint=CheckpointPolicy.every(interval=timedelta(seconds=0.2)),
            ),
        )
        self.hosts[name] = made
        await made.start()
        self.stack.push_async_callback(store.close)
        self.stack.push_async_callback(made.source.close)
        self.stack.push_async_callback(made.stop)
        return made

    async def client(
        self, name: str, strategy: LoadBalancingStrategy = LoadBalancingStrategy.GREEDY
    ) -> Client:
        """Start a client of Azure."""
        store = BlobCheckpointStore.from_connection_string(
            self.azurite.connection_string, self.container
        )
        self.stack.push_async_callback(store._container_client.close)
        self._count(name, store)
        made = self.hub.client(
            name,
            store,
            load_balancing_interval=INTERVAL_S,
            partition_ownership_expiration_interval=EXPIRY_S,
            load_balancing_strategy=strategy,
        )
        self.clients[name] = made.start()
        self.stack.push_async_callback(made.stop)
        return made

    def shares(self) -> list[int]:
        """How many partitions each works on, in order."""
        held = [len(each.held()) for each in self.hosts.values()]
        return sorted(held + [len(each.owned) for each in self.clients.values()])

    async def settled(self, *shares: int) -> None:
        """Wait until the partitions are shared out so, and stay so for three cycles of everybody.

        One that looked before the last move may still rob somebody after it, and who was robbed
        hears of it in the next cycle.
        """
        since: Counter[str] | None = None

        def steady() -> bool:
            nonlocal since
            if self.shares() != list(shares):
                since = None
                return False
            since = since or self.looks.copy()
            return all(self.looks[n] >= since[n] + 3 for n in (*self.hosts, *self.clients))

        await until(steady)

    def came_again(self, since: int) -> list[tuple[str, str, int]]:
        """What was given to anybody since then, and had been given to somebody before."""
        known: set[tuple[str, int]] = set()
        found = []
        for number, (who, partition, sequence) in enumerate(self.hub.deliveries.items):
            if number >= since and (partition, sequence) in known:
                found.append((who, partition, sequence))
            known.add((partition, sequence))
        return found

    async def leave(self, name: str) -> None:
        await (self.hosts.pop(name, None) or self.clients.pop(name)).stop()


@asynccontextmanager
async def scene(path: Path, *, partitions: int = 8, on_blobs: bool = False) -> AsyncIterator[Scene]:
    azurite = await asyncio.to_thread(shared_azurite)
    container = await asyncio.to_thread(azurite.new_container, "mixed")
    async with hub(path, partitions=partitions) as h, AsyncExitStack() as stack:
        yield Scene(
            hub=h,
            azurite=azurite,
            container=container,
            url=azurite.new_store_url() if on_blobs else f"sqlite:///{path}/leases.db",
            stack=stack,
        )


async def test_they_share_and_each_goes_on_from_the_checkpoints_of_the_other(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        await s.hub.send(BATCH)
        await s.host("ours1")
        await s.host("ours2")
        await until(lambda: s.shares() == [4, 4])
        await s.hub.all_seen()
        await s.client("theirs1")
        await s.client("theirs2")
        await s.settled(2, 2, 2, 2)
        await s.hub.send(BATCH)
        await s.hub.all_seen()
        assert all(s.hub.deliveries.by(name) >= 20 for name in (*s.hosts, *s.clients))
        # The clients leave: the hosts resume from the checkpoints that the clients have written.
        before = len(s.hub.deliveries.items)
        await asyncio.gather(s.leave("theirs1"), s.leave("theirs2"))
        await s.settled(4, 4)
        await s.hub.send(BATCH)
        await s.hub.all_seen()
        assert s.came_again(before) == []
        # And back.
        client = await s.client("theirs3")
        await s.settled(2, 3, 3)
        await asyncio.gather(s.leave("ours1"), s.leave("ours2"))
        await s.settled(8)
        before = len(s.hub.deliveries.items)
        await s.hub.send(BATCH)
        await s.hub.all_seen()
        assert s.came_again(before) == []
        assert client.errors == []
        assert s.hub.deliveries.twice(lambda who: who.startswith("ours")) == []


async def test_ours_need_nothing_but_the_store_of_theirs(tmp_path: Path) -> None:
    """Their own ``BlobCheckpointStore`` is all that our hosts have in common."""
    async with scene(tmp_path) as s:
        await s.hub.send(BATCH)
        await s.lone_host("ours1")
        await s.lone_host("ours2")
        await s.settled(4, 4)
        await s.hub.all_seen()
        await s.client("theirs1")
        await s.settled(2, 3, 3)
        await s.hub.send(BATCH)
        await s.hub.all_seen()
        # Whoever leaves, the others go on where it ended.
        for name, shares in (("theirs1", (4, 4)), ("ours1", (8,))):
            before = len(s.hub.deliveries.items)
            await s.leave(name)
            await s.settled(*shares)
            await s.hub.send(BATCH)
            await s.hub.all_seen()
            assert s.came_again(before) == []


async def test_a_partition_that_a_client_takes_while_it_is_given_up_is_told_of(
    tmp_path: Path,
) -> None:
    hook_events: list[HookEvent] = []

    async with scene(tmp_path, partitions=2) as s:

        async def on_close(context: AsyncPartitionContext, reason: CloseReason) -> None:
            assert reason is CloseReason.SHUTDOWN
            if context.partition == "1":
                rows = await s.records["ours"].list_ownership(s.hub.namespace, HUB, CONSUMERS)
                [row] = [dict(each) for each in rows if each["partition_id"] == "1"]
                assert await s.records["theirs"].claim_ownership([{**row, "owner_id": "client"}])

        s.records["theirs"] = BlobRecords.from_connection_string(
            s.azurite.connection_string, s.container
        )
        s.stack.push_async_callback(s.records["theirs"].close)
        host = await s.host("ours", on_partition_close=on_close, hooks=[hook_events.append])
        await until(lambda: s.shares() == [2])
        await s.hub.send(BATCH)
        await s.hub.all_seen()
        await s.leave("ours")
        overtaken = [each.partition for each in hook_events if isinstance(each, Overtaken)]
        assert overtaken == ["1"]
        assert host.counts().by_event["Overtaken"] == 1
        rows = await s.records["theirs"].list_ownership(s.hub.namespace, HUB, CONSUMERS)
        assert {each["partition_id"]: each["owner_id"] for each in rows} == {"0": "", "1": "client"}
        async with open_store(s.url) as store:
            ends = {
                each: [
                    term.reason for term in await store.history(partition_key(HUB, CONSUMERS, each))
                ]
                for each in "01"
            }
    assert ends["0"] == [EndReason.RELEASED]
    assert EndReason.STOLEN in ends["1"]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("what", ["no container", "a wrong key"])
async def test_storage_that_can_not_be_used_is_told_at_the_start(
    tmp_path: Path, what: str, alone: bool
) -> None:
    azurite = await asyncio.to_thread(shared_azurite)
    connection, container = azurite.connection_string, azurite.new_container("mixed")
    message = "key or the token"
    if what == "no container":
        container, message = "nowhere", "create the container"
    else:
        connection = re.sub("AccountKey=....", "AccountKey=AAAA", connection)
    names: dict[str, Any] = {"namespace": "ns", "hub": "orders"}
    async with BlobRecords.from_connection_string(connection, container) as records:
        url = f"sqlite:///{tmp_path}/leases.db"
        store = RecordsStore(records, **names) if alone else MixedStore(url, records, **names)
        source = MemorySource("orders", partitions=1)
        processor = EventProcessor(source, store, CONSUMERS, on_batch=_nothing)
        with pytest.raises(StoreUnusable, match=message) as caught:
            await processor.start()
        assert "AccountKey" not in str(caught.value)
        await store.close()


async def _nothing(context: AsyncPartitionContext, batch: EventBatch) -> None:
    raise AssertionError


@pytest.mark.process
@pytest.mark.parametrize("store", ["", "sqlite"])
async def test_the_example_is_a_host_of_the_group(tmp_path: Path, store: str) -> None:
    async with scene(tmp_path, partitions=1) as s:
        await s.hub.send(5)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(EXAMPLE),
            HUB,
            s.container,
            *([s.url] if store else []),
            env={
                **os.environ,
                "EVENTHUB_CONNECTION_STRING": s.hub.server.connection_string(HUB),
                "AZURE_STORAGE_CONNECTION_STRING": s.azurite.connection_string,
            },
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"mine: partition 0\n"
            assert await process.stdout.readline() == b"0: 5 events up to 4\n"
            process.send_signal(signal.SIGINT)
            assert await process.stdout.read() == b"gone: partition 0 (shutdown)\n"
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        stock = BlobCheckpointStore.from_connection_string(s.azurite.connection_string, s.container)
        s.stack.push_async_callback(stock._container_client.close)
        (found,) = await stock.list_checkpoints(s.hub.namespace, HUB, CONSUMERS)
        (owned,) = await stock.list_ownership(s.hub.namespace, HUB, CONSUMERS)
        assert (found["sequence_number"], owned["owner_id"] or "") == (4, "")


async def test_hosts_that_come_late_get_their_share_while_events_flow_and_none_is_lost(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        await s.client("theirs1", LoadBalancingStrategy.BALANCED)
        await s.client("theirs2", LoadBalancingStrategy.BALANCED)
        await until(lambda: sum(s.shares()) >= 4)
        flowing = asyncio.create_task(_send_on(s.hub))
        await s.host("ours1")
        await s.host("ours2")
        await until(lambda: s.shares() == [2, 2, 2, 2])
        flowing.cancel()
        await asyncio.gather(flowing, return_exceptions=True)
        await s.hub.send(1)
        await s.hub.all_seen()


async def test_they_share_at_the_default_expiry_with_our_leases_in_blobs_too(
    tmp_path: Path,
) -> None:
    """Blob leases last 60 s at most, and the records of clients expire after 180 s."""
    async with scene(tmp_path, partitions=4, on_blobs=True) as s:
        await s.client("theirs")
        await until(lambda: s.shares() == [4])
        await s.host("ours")
        await s.settled(2, 2)
        await s.hub.send(BATCH)
        await s.hub.all_seen()
        assert all(s.hub.deliveries.by(name) >= BATCH for name in ("ours", "theirs"))
        await s.leave("theirs")
        await s.settled(4)
        before = len(s.hub.deliveries.items)
        await s.hub.send(BATCH)
        await s.hub.all_seen()
        assert s.came_again(before) == []


async def _send_on(h: Hub) -> None:
    while True:
        await asyncio.shield(h.send(1))
        await asyncio.sleep(0.05)
