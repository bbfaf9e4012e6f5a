"""Type-level tests of the public surface: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import assert_type

from leasehold import (
    Checkpoint,
    LeaseTiming,
    Member,
    MemberOptions,
    Ownership,
    Position,
    Resource,
    Strategy,
    open_store,
    partition_group,
    partition_key,
)
from leasehold.events import Event, EventBatch, EventSource, Start
from leasehold.files import AsyncNamespace, FileOptions, FileStatus, Namespace
from leasehold.log import Log, LogSource, Receipt
from leasehold.ports import KeyHandler, Store
from leasehold.processor import (
    AsyncPartitionContext,
    EventProcessor,
    PartitionContext,
    PartitionStatus,
    ProcessorCounts,
    ProcessorOptions,
)
from leasehold.stores.memory import MemoryStore
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing.sim.store import SimStore
from leasehold.testing.source import MemorySource


class SilentKeeper:
    def opened(self, ownership: Ownership) -> None: ...

    def drain(self, ownership: Ownership) -> bool:
        return bool(ownership)

    def closed(self, ownership: Ownership, reason: str) -> None: ...


async def use(keeper: SilentKeeper) -> None:
    options = MemberOptions(
        group=partition_group("stream", "group"),
        strategy=Strategy.EVEN,
        timing=LeaseTiming.of(lease=timedelta(seconds=30)),
    )
    async with open_store("memory://") as store:
        assert_type(store, Store)
        assert_type(await store.declare([partition_key("stream", "group", "0")]), int)
        assert_type(await store.resources(options.group), Mapping[str, Resource])
        assert_type(await store.checkpoints(options.group), Mapping[str, Checkpoint])
        member = Member(store, options, keeper=keeper)
        assert_type(member.holds("key"), Ownership | None)
        assert_type(member.held(), list[Ownership])
        await member.checkpoint({"key": Position(sequence_number=1)})


def every_store_keeps_the_contract(
    memory: MemoryStore, sqlite: SqliteStore, postgres: PostgresStore, simulated: SimStore
) -> list[Store]:
    return [memory, sqlite, postgres, simulated]


def a_keeper_is_any_class_of_that_shape(keeper: SilentKeeper) -> KeyHandler:
    return keeper


def use_files() -> None:
    with Namespace.open("sqlite:///a.db", volumes=["v1"], options=FileOptions()) as files:
        with files.create("/a") as writer:
            assert_type(writer.write(b"x"), int)
            assert_type(writer.sync(), int)
            assert_type(writer.epoch, int)
        assert_type(files.status("/a"), FileStatus)
        assert_type(files.is_closed("/a"), bool)
        assert_type(files.recover("/a", timeout=timedelta(seconds=1)), FileStatus)
        assert_type(files.read("/a").read(), bytes)


async def use_files_async() -> None:
    async with await AsyncNamespace.open("sqlite:///a.db") as files:
        async with await files.append("/a") as writer:
            assert_type(await writer.flush(), int)
        assert_type(await files.delete("/a"), int)


def use_log() -> None:
    with Log.open("sqlite:///a.db", volumes=["v1"]) as log:
        with log.producer("orders") as producer:
            assert_type(producer.send(Event(body=b"x")), Future[tuple[Receipt, ...]])
        with log.reader("orders", 0, start=Start.latest(), group="g", epoch=3) as reader:
            assert_type(reader.read(), EventBatch | None)
            assert_type(reader.wait(timedelta(seconds=1)), bool)


async def process(source: EventSource, store: Store) -> None:
    async def on_batch(context: AsyncPartitionContext, batch: EventBatch) -> None:
        await context.checkpoint(batch)

    def on_event(context: PartitionContext, event: Event) -> None:
        context.checkpoint(event)

    processor = EventProcessor(
        source, store, "group", on_batch=on_batch, options=ProcessorOptions()
    )
    assert_type(processor.counts(), ProcessorCounts)
    assert_type(processor.status(), list[PartitionStatus])
    EventProcessor(source, "memory://", "group", on_event=on_event)
    async with EventProcessor(source, store, "group") as pulling:
        async for client in pulling.partitions():
            async for batch in client:
                assert_type(batch, EventBatch)


def every_source_keeps_the_contract(log: LogSource, memory: MemorySource) -> list[EventSource]:
    return [log, memory]
