"""The life of a processor: start, share, hand over, stop. One process, real stores."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.processors import (
    TIMEOUT_S,
    CuttableStore,
    Seen,
    host_group,
    lease_threads,
    options,
)

from leasehold import Strategy
from leasehold.errors import UsageError
from leasehold.events import Event, Start
from leasehold.model import EndReason
from leasehold.processor import CheckpointPolicy, CloseReason, EventProcessor, HookEvent
from leasehold.processor.events import (
    CheckpointWritten,
    CycleDone,
    PartitionClosed,
    PartitionDraining,
    PartitionOpened,
    PossibleRepeats,
)
from leasehold.stores import open_store

pytestmark = pytest.mark.anyio


@pytest.mark.spec("P1", "P2")
async def test_ten_hosts_started_at_once_share_all_partitions_and_handle_each_event_once(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    async with host_group(partitions=10, store=url) as s:
        total = s.fill(20)
        names = [f"host{number}" for number in range(10)]
        hosts = await asyncio.gather(*(s.host(name) for name in names))
        await s.seen.count(total)
        await s.watch.until(lambda: all(len(host.held()) == 1 for host in hosts))
        await asyncio.gather(*(host.stop() for host in hosts))
        assert s.seen.twice() == []
        assert len(s.seen.all) == total
        async with open_store(url) as store:
            resources = await store.resources(s.name)
        assert sorted(resources) == sorted(s.key(each) for each in s.source.events)
        assert {each.holder for each in resources.values()} == {None}


@pytest.mark.spec("P1")
async def test_started_again_on_the_same_store_it_goes_on_where_it_was(tmp_path: Path) -> None:
    async with host_group(partitions=2, events=5, store=f"sqlite:///{tmp_path}/leases.db") as s:
        async with s.make():
            await s.seen.count(10)
        s.fill(5)
        async with s.make():
            await s.seen.count(20)
        assert s.seen.twice() == []
        assert s.seen.numbers("1") == list(range(10))


async def test_one_processor_can_be_started_once() -> None:
    async with host_group() as s:
        host = await s.host()
        with pytest.raises(UsageError, match="started once"):
            await host.start()


@pytest.mark.spec("P14")
async def test_stop_is_harmless_before_the_start_twice_and_by_many() -> None:
    async with host_group(events=3) as s:
        host = s.make()
        await host.stop()
        await host.start()
        await s.seen.count(3)
        await asyncio.gather(host.stop(), host.stop())
        await host.stop()
        assert host.held() == []
        assert host.status() == []
        assert lease_threads() == []


@pytest.mark.spec("P2", "P14")
async def test_stop_lets_the_call_end_then_closes_then_stores_then_releases() -> None:
    order: list[str] = []
    entered = asyncio.Event()
    go_on = asyncio.Event()

    async def on_batch(context: Any, batch: Any) -> None:
        entered.set()
        await go_on.wait()
        order.append("handled")

    async def on_close(context: Any, reason: CloseReason) -> None:
        order.append(f"closed: {reason.value}")

    def hook(event: HookEvent) -> None:
        if isinstance(event, CheckpointWritten | PartitionClosed):
            order.append(type(event).__name__)

    async with host_group(events=4) as s:
        host = await s.host(on_batch=on_batch, on_partition_close=on_close, hooks=[s.watch, hook])
        await entered.wait()
        stopping = asyncio.create_task(host.stop())
        await s.watch.sees(PartitionDraining)
        go_on.set()
        await stopping
        assert order[0] == "handled"
        assert sorted(order[1:3]) == ["CheckpointWritten", "closed: shutdown"]
        assert order[3:] == ["PartitionClosed"]
        assert await s.checkpoints() == {"0": 3}
        (resource,) = (await s.store.resources(s.name)).values()  # type: ignore[union-attr]
        assert resource.holder is None


@pytest.mark.spec("P13")
async def test_more_hosts_than_partitions_leave_standbys_that_take_over_at_once() -> None:
    async with host_group(partitions=2, events=3) as s:
        hosts = [await s.host(f"host{number}") for number in range(3)]
        await s.watch.until(lambda: sorted(len(h.held()) for h in hosts) == [0, 1, 1])
        holders = {host.holder for host in hosts}
        assert len(holders) == 3
        assert all(host.holder.startswith(host.name + "-") for host in hosts if host.holder)
        leaver = next(host for host in hosts if host.held())
        await leaver.stop()
        await s.watch.until(lambda: sorted(len(h.held()) for h in hosts) == [0, 1, 1])
        s.fill(3)
        await s.seen.count(12)
        assert s.seen.twice() == []


@pytest.mark.spec("P12", "P13")
async def test_a_host_takes_no_more_than_it_is_allowed_to() -> None:
    async with host_group(partitions=4) as s:
        small = await s.host("small", setting=options(max_partitions=1))
        big = await s.host("big")
        await s.watch.until(lambda: (len(small.held()), len(big.held())) == (1, 3))


@pytest.mark.spec("P12", "C3")
async def test_without_a_checkpoint_each_partition_begins_where_the_options_say() -> None:
    starts = {
        "1": Start.latest(),
        "2": Start.sequence(7),
        "3": Start.time(datetime(2030, 1, 1, 0, 0, 4, tzinfo=UTC)),
    }
    async with host_group(partitions=4, events=10) as s:
        await s.owns(setting=options(starts=starts))
        s.fill(1)
        await s.seen.count(11 + 1 + 4 + 7)
        firsts = {each: s.seen.numbers(each)[0] for each in "0123"}
        assert firsts == {"0": 0, "1": 10, "2": 7, "3": 4}


@pytest.mark.spec("C3", "E1")
async def test_a_new_owner_has_the_next_epoch_and_opens_at_the_event_after_the_checkpoint() -> None:
    async with host_group(events=6) as s:
        async with s.make("a"):
            await s.seen.count(6)
        s.fill(2)
        async with s.make("b", setting=options(start=Start.latest())):
            await s.seen.count(8)
            epoch, receiver = s.source.claims["0", s.group]
            assert epoch == 2
            assert receiver is s.source.receivers[0]
        first, second = s.watch.of(PartitionOpened)
        assert (first.epoch, first.position) == (1, 0)
        assert (second.epoch, second.position) == (2, 6)
        assert s.seen.numbers(host="b", epoch=2) == [6, 7]


@pytest.mark.spec("B3", "C5")
async def test_a_host_that_joins_under_load_is_handed_its_share_and_nothing_comes_twice() -> None:
    async with host_group(partitions=4) as s:
        a = await s.owns("a")
        for _ in range(20):
            s.fill(5)
            await asyncio.sleep(0)
        b = await s.host("b")
        await s.watch.until(lambda: (len(a.held()), len(b.held())) == (2, 2))
        total = s.fill(5)
        await s.seen.count(total)
        assert s.seen.twice() == []
        closed = s.watch.of(PartitionClosed)
        assert [each.reason for each in closed] == [CloseReason.HANDED_OVER] * 2
        assert a.counts().closed == {"handed_over": 2}
        assert s.watch.of(PossibleRepeats) == []
        assert b.counts().possible_repeats == 0
        for each in closed:
            (reopened,) = s.watch.of(PartitionOpened, partition=each.partition, epoch=2)
            assert reopened.position == each.position


@pytest.mark.spec("C5")
async def test_after_a_crash_the_events_that_may_come_again_are_counted() -> None:
    manual = options(checkpoint=CheckpointPolicy.manual())
    async with host_group(events=10) as s:
        link = CuttableStore(s.store)  # type: ignore[arg-type]

        async def on_event(context: Any, event: Event) -> None:
            s.seen.note(context, event)
            if event.sequence_number == 3:
                await context.checkpoint()

        await s.host("a", store=link.store, on_event=on_event, setting=manual)
        await s.seen.count(10)
        link.cut = True
        s.clock.expire_leases()
        b = await s.host("b")
        reported = await s.watch.sees(PossibleRepeats)
        assert (reported.events, reported.epoch) == (6, 2)
        assert b.counts().possible_repeats == 6
        await s.seen.count(16)
        assert s.seen.numbers(host="b") == [4, 5, 6, 7, 8, 9]
        assert s.seen.numbers(host="a") == list(range(10))


@pytest.mark.spec("C5")
async def test_after_an_orderly_end_none_comes_again_and_none_is_counted() -> None:
    async with host_group(events=10) as s:
        async with s.make("a", setting=options(checkpoint=CheckpointPolicy.every(events=1000))):
            await s.seen.count(10)
            assert await s.checkpoints() == {}
        assert await s.checkpoints() == {"0": 9}
        async with s.make("b") as b:
            s.fill(1)
            await s.seen.count(11)
            await s.watch.sees(CycleDone, times=3, holder=b.holder)
            assert b.counts().possible_repeats == 0
        assert s.seen.twice() == []


@pytest.mark.spec("B3", "B6", "C5")
async def test_a_drain_that_takes_too_long_ends_by_force() -> None:
    never = asyncio.Event()
    cancelled: list[str] = []

    async def hangs(context: Any, batch: Any) -> None:
        try:
            await never.wait()
        finally:
            cancelled.append(context.partition)

    async with host_group(events=2) as s:
        a = s.make("a", on_batch=hangs, setting=options(drain_timeout=timedelta(seconds=0.3)))
        await a.start()
        await s.watch.sees(PartitionOpened)
        await a.stop()
        (closed,) = s.watch.of(PartitionClosed)
        assert closed.reason is CloseReason.LOST
        assert closed.position == 0
        assert cancelled == ["0"]
        assert await s.checkpoints() == {}
        assert a.counts().possible_repeats == 2  # both were in the hands of the handler
        async with s.make("b"):
            await s.seen.count(2)


@pytest.mark.spec("P14")
async def test_the_close_reason_says_so_when_an_operator_breaks_the_lease() -> None:
    reasons: list[CloseReason] = []

    async def on_close(context: Any, reason: CloseReason) -> None:
        reasons.append(reason)

    async with host_group(events=1) as s:
        await s.owns(on_partition_close=on_close)
        await s.watch.sees(CheckpointWritten)
        await s.store.break_(s.key(), epoch=1, after=timedelta(0))  # type: ignore[union-attr]
        await s.watch.sees(PartitionOpened, epoch=2)
        assert reasons == [CloseReason.BROKEN]


@pytest.mark.spec("P14")
async def test_the_callbacks_of_a_partition_come_in_order_with_the_same_context() -> None:
    calls: list[tuple[str, int]] = []

    async def on_open(context: Any) -> None:
        calls.append(("open", context.epoch))

    async def on_batch(context: Any, batch: Any) -> None:
        calls.append(("batch", context.epoch))

    async def on_close(context: Any, reason: CloseReason) -> None:
        calls.append((reason.value, context.epoch))

    async with (
        host_group(events=1) as s,
        s.make(on_partition_open=on_open, on_batch=on_batch, on_partition_close=on_close),
    ):
        await s.watch.sees(CheckpointWritten)
    assert calls == [("open", 1), ("batch", 1), ("shutdown", 1)]


@pytest.mark.spec("P14")
async def test_the_pull_style_hands_out_partitions_and_batches_in_order() -> None:
    async with host_group(partitions=2, events=5) as s:
        host = s.make(on_batch=None, setting=options(batch_events=2))
        got: list[tuple[str, int]] = []

        async def read(client: Any) -> None:
            async for batch in client:
                got.extend((client.partition, event.sequence_number) for event in batch)
                s.seen.notify()

        async with host, asyncio.TaskGroup() as tasks:
            clients: list[Any] = []
            async for client in host.partitions():
                clients.append(client)
                tasks.create_task(read(client))
                if len(clients) == 2:
                    break
            await s.seen.until(lambda: len(got) == 10)
            await host.stop()
        assert sorted(got) == [(each, number) for each in "01" for number in range(5)]
        assert {client.close_reason for client in clients} == {CloseReason.SHUTDOWN}
        names = sorted(repr(client) for client in clients)
        assert names[0] == "<PartitionClient orders/0 epoch 1 (shutdown)>"
        assert await s.checkpoints() == {"0": 4, "1": 4}


@pytest.mark.spec("P14", "B3")
async def test_a_batch_that_nobody_took_does_not_hold_up_the_stop_and_comes_again() -> None:
    async with host_group(partitions=2, events=3) as s:
        host = s.make(on_batch=None, setting=options(drain_timeout=timedelta(seconds=30)))
        await host.start()
        async for client in host.partitions():
            async for batch in client:
                assert len(batch) == 3
                break
            break
        taken = client.partition
        async with asyncio.timeout(TIMEOUT_S):
            ending = asyncio.create_task(host.stop())
            with pytest.raises(StopAsyncIteration):
                await anext(client)
            await ending
        assert await s.checkpoints() == {taken: 2}
        async with s.make("b"):
            await s.seen.count(3)
        assert s.seen.numbers(taken) == []


@pytest.mark.spec("P14")
async def test_partitions_is_refused_where_there_are_handlers() -> None:
    async with host_group() as s:
        host = await s.host()
        with pytest.raises(UsageError, match="handlers already"):
            await anext(host.partitions())


@pytest.mark.spec("P15")
async def test_the_calls_to_the_store_are_counted_per_cycle_and_in_sum() -> None:
    async with host_group(partitions=3, events=2) as s:
        link = CuttableStore(s.store)  # type: ignore[arg-type]
        host = s.make(store=link.store)
        async with host:
            await s.seen.count(6)
            await s.watch.sees(CycleDone, times=4)
            quiet = s.watch.of(CycleDone)[3]
        counted = host.counts().store_calls
        real = Counter(link.calls)
        for name in ("declare", "grant", "claim", "checkpoints", "revoke"):
            assert counted[name] == real[name], name
        assert 0 < counted["renew"] <= real["renew"]
        assert host.counts().checkpoint_calls == real["checkpoint"]
        assert set(quiet.calls) <= {"renew", "checkpoint"}


@pytest.mark.spec("B4")
async def test_two_heavy_partitions_end_up_on_two_hosts() -> None:
    loads = options(strategy=Strategy.BY_LOAD)
    async with host_group(partitions=4) as s:
        a = await s.owns("a", setting=loads)
        b = await s.host("b", setting=loads)
        hosts = (a, b)

        def owner(partition: str) -> list[EventProcessor]:
            return [h for h in hosts if s.key(partition) in {each.key for each in h.held()}]

        await s.watch.until(lambda: all(len(host.held()) == 2 for host in hosts))
        heavy = [each for each in "0123" if owner(each) == [a]]

        async def produce() -> None:
            while True:
                s.fill(200, heavy)
                await asyncio.sleep(0.05)

        producing = asyncio.create_task(produce())
        try:
            await s.watch.until(lambda: len({host for each in heavy for host in owner(each)}) == 2)
        finally:
            producing.cancel()
        total = sum(map(len, s.source.events.values()))
        await s.seen.count(total)
        assert s.seen.twice() == []


@pytest.mark.spec("P13", "B3")
async def test_a_host_that_an_operator_dismisses_drains_and_ends_by_itself() -> None:
    async with host_group(partitions=2, events=4) as s:
        a = await s.owns("a")
        b = await s.host("b")
        await s.watch.until(lambda: len(b.held()) == 1)
        await s.seen.count(8)
        assert a.holder
        assert await s.store.request_leave(a.holder)  # type: ignore[union-attr]
        async with asyncio.timeout(TIMEOUT_S):
            await a.wait()
        await s.watch.until(lambda: len(b.held()) == 2)
        s.fill(1)
        await s.seen.count(10)
        assert s.seen.twice() == []
        reasons = [(await s.store.history(s.key(p)))[1].reason for p in "01"]  # type: ignore[union-attr]
        assert reasons == [EndReason.HANDED_OVER] * 2


@pytest.mark.spec("P14")
async def test_the_pull_style_ends_when_an_operator_dismisses_the_host() -> None:
    async with host_group(events=1) as s:
        host = s.make(on_batch=None)
        async with host, asyncio.timeout(TIMEOUT_S):
            async for client in host.partitions():
                async for _ in client:
                    assert await s.store.request_leave(client.context.holder)  # type: ignore[union-attr]
            assert await s.checkpoints() == {"0": 0}


@pytest.mark.spec("P1")
async def test_partitions_that_are_added_while_it_runs_are_found_and_shared() -> None:
    every = options(discovery_interval=timedelta(seconds=0.1))
    async with host_group(partitions=1, events=1) as s:
        a = await s.owns("a", setting=every)
        b = await s.host("b", setting=every)
        s.source.grow(4)
        s.fill(1)
        await s.seen.count(5)
        await s.watch.until(lambda: (len(a.held()), len(b.held())) == (2, 2))


async def test_status_tells_each_partition_with_its_position() -> None:
    async with host_group(partitions=2, events=3) as s:
        host = await s.owns()
        await s.watch.sees(CheckpointWritten, times=2)
        first, second = host.status()
        assert (first.partition, second.partition) == ("0", "1")
        assert (first.next, first.checkpoint, first.epoch) == (3, 2, 1)
        assert first.state.value == "waiting"
        assert repr(host).endswith("holding 2>")


async def test_hosts_of_two_groups_each_get_all_events() -> None:
    async with (
        host_group(events=3) as s,
        host_group(source=s.source, store=s.store, group="audit") as other,
    ):
        await s.host()
        await other.host()
        await s.seen.count(3)
        await other.seen.count(3)
        assert isinstance(other.seen, Seen)
