"""Handlers that take too long: found, reported, given up, and never called concurrently."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.support.processors import (
    QUICK_RETRIES,
    TIMEOUT_S,
    host_group,
    options,
)

from leasehold.errors import HandlerTimeout, LeaseLost, UsageError
from leasehold.events import Event, EventBatch
from leasehold.processor import CloseReason, PartitionContext, PartitionState
from leasehold.processor.events import (
    CheckpointRefused,
    CheckpointWritten,
    CycleDone,
    HandlerAbandoned,
    PartitionClosed,
    PartitionOpened,
    Poisoned,
    Stalled,
)
from leasehold.spark import PoisonPolicy
from leasehold.testing.source import MemoryReceiver, MemorySource

pytestmark = pytest.mark.anyio

SKIP = PoisonPolicy.skip(retries=1, pauses=QUICK_RETRIES)
SOON = timedelta(seconds=0.2)


@pytest.mark.spec("B6")
async def test_an_async_handler_over_its_limit_is_cancelled_and_treated_by_policy() -> None:
    async def on_event(context: Any, event: Event) -> None:
        if event.sequence_number == 1:
            await asyncio.sleep(60)
        s.seen.note(context, event)

    async with host_group(events=3) as s:
        await s.host(on_event=on_event, setting=options(poison=SKIP, handler_timeout=SOON / 4))
        await s.seen.count(2)
        assert s.seen.numbers() == [0, 2]
        (poisoned,) = s.watch.of(Poisoned)
        assert isinstance(poisoned.error, HandlerTimeout)
        assert "handler_timeout" in str(poisoned.error)


async def test_a_timeout_of_the_handlers_own_is_not_taken_for_the_limit() -> None:
    async def on_event(context: Any, event: Event) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)

    async with host_group(events=1) as s:
        limit = timedelta(seconds=30)
        await s.host(on_event=on_event, setting=options(poison=SKIP, handler_timeout=limit))
        poisoned = await s.watch.sees(Poisoned)
        assert type(poisoned.error) is TimeoutError


@pytest.mark.spec("B6", "B5")
async def test_a_handler_in_a_thread_over_its_limit_loses_its_partition_to_another_host() -> None:
    go_on = threading.Event()
    late: list[BaseException] = []

    def stuck(context: PartitionContext, event: Event) -> None:
        go_on.wait(TIMEOUT_S)
        try:
            context.checkpoint(event)
        except Exception as error:  # noqa: BLE001
            late.append(error)
        s.seen.notify()

    async with host_group() as s:
        setting = options(handler_timeout=SOON)
        await s.owns("a", on_event=stuck, setting=setting)
        b = await s.host("b", setting=setting)
        await s.watch.until(lambda: b.holder is not None)
        s.fill(3)
        stalled = await s.watch.sees(Stalled)
        assert stalled.given_up
        await s.watch.sees(HandlerAbandoned)
        await s.watch.sees(PartitionClosed, reason=CloseReason.STALLED)
        await s.seen.count(3)
        go_on.set()
        await s.seen.until(lambda: bool(late))
        assert s.seen.numbers(host="b", epoch=2) == [0, 1, 2]
        assert isinstance(late[0], LeaseLost)
        assert s.watch.of(CheckpointRefused, epoch=1)
        await s.watch.sees(CheckpointWritten, epoch=2, sequence_number=2)


@pytest.mark.spec("B6")
async def test_a_host_alone_waits_for_its_stuck_thread_until_somebody_can_take_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on = threading.Event()
    running = 0
    peak = 0

    def stuck(context: PartitionContext, event: Event) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        go_on.wait(TIMEOUT_S)
        running -= 1

    async with host_group(events=3) as s:
        setting = options(handler_timeout=SOON, stall_after=SOON, give_up_after=SOON * 2)
        a = await s.host("a", on_event=stuck, setting=setting)
        await s.watch.until(
            lambda: any("kept, since no other host" in each for each in caplog.messages)
        )
        assert not s.watch.of(Stalled, given_up=True)
        assert len(a.held()) == 1
        assert a.status()[0].state is PartitionState.STUCK
        await s.host("b", setting=setting)
        await s.watch.sees(Stalled, given_up=True)
        await s.seen.count(3)
        said = [each for each in caplog.messages if "over handler_timeout" in each]
        assert [each.rpartition(": ")[2].split()[0] for each in said] == ["kept,", "passed"]
        go_on.set()
        assert s.seen.numbers(host="b") == [0, 1, 2]
        assert peak == 1


@pytest.mark.spec("B6", "P13")
async def test_when_the_stuck_thread_has_ended_the_host_takes_its_share_again() -> None:
    go_on = threading.Event()

    def stuck(context: PartitionContext, event: Event) -> None:
        go_on.wait(TIMEOUT_S)

    async with host_group(partitions=2, events=1) as s:
        setting = options(handler_timeout=SOON, stall_after=SOON, give_up_after=SOON * 2)
        a = await s.host("a", on_event=stuck, setting=setting)
        b = await s.host("b", setting=setting)
        await s.watch.until(lambda: (len(a.held()), len(b.held())) == (0, 2))
        go_on.set()
        await s.watch.until(lambda: (len(a.held()), len(b.held())) == (1, 1))


@pytest.mark.spec("B6")
async def test_after_a_loss_a_thread_begins_with_no_other_event() -> None:
    go_on = threading.Event()
    begun: list[int] = []

    def slow(context: PartitionContext, event: Event) -> None:
        begun.append(event.sequence_number)
        go_on.wait(TIMEOUT_S)

    async with host_group(events=5) as s:
        async with s.make("a", on_event=slow, setting=options(drain_timeout=SOON)) as a:
            await s.watch.sees(PartitionOpened)
            await s.watch.until(lambda: a.status()[0].state is PartitionState.HANDLING)
        await s.watch.sees(HandlerAbandoned)
        threads = threading.active_count()
        go_on.set()
        async with s.make("b"):
            await s.seen.count(5)
        assert begun == [0]
        assert threads >= 1


@pytest.mark.spec("P2", "P5", "B6", "E3")
@pytest.mark.parametrize("kind", ["thread", "loop"])
async def test_a_handler_that_takes_all_there_is_holds_up_no_renewal(kind: str) -> None:
    """One burns the processor in a thread, the other blocks the whole event loop."""

    def burn(context: Any, event: Event) -> None:
        if event.sequence_number == 0:
            renewed = len(s.watch.of(CycleDone, error=None))
            while len(s.watch.of(CycleDone, error=None)) < renewed + 5:
                pass
        s.seen.note(context, event)

    async def block(context: Any, event: Event) -> None:
        burn(context, event)

    async with host_group(events=4) as s:
        host = await s.host(on_event=burn if kind == "thread" else block)
        await s.seen.count(4)
        await s.watch.sees(CheckpointWritten, sequence_number=3)
        assert s.seen.numbers() == [0, 1, 2, 3]
        assert {each.epoch for each in s.seen.all} == {1}
        assert host.counts().closed == {}
        assert s.errors.received == []


@pytest.mark.spec("B6")
async def test_a_slow_handler_is_reported_and_neither_cancelled_nor_called_twice() -> None:
    go_on = asyncio.Event()
    calls: list[int] = []

    async def slow(context: Any, event: Event) -> None:
        calls.append(event.sequence_number)
        await go_on.wait()
        s.seen.note(context, event)

    async with host_group(events=1) as s:
        setting = options(stall_after=SOON / 2, give_up_after=None)
        await s.host(on_event=slow, setting=setting)
        stalled = await s.watch.sees(Stalled)
        assert not stalled.given_up
        go_on.set()
        await s.seen.count(1)
        assert calls == [0]


@pytest.mark.parametrize("handler_hangs", [False, True])
async def test_a_goodbye_that_hangs_does_not_hold_up_the_stop_for_ever(handler_hangs: bool) -> None:
    async def on_close(context: Any, reason: CloseReason) -> None:
        await asyncio.Event().wait()

    async def on_event(context: Any, event: Event) -> None:
        s.seen.note(context, event)
        if handler_hangs:
            await asyncio.Event().wait()

    async with host_group(events=1) as s:
        setting = options(drain_timeout=SOON)
        host = s.make(on_event=on_event, on_partition_close=on_close, setting=setting)
        await host.start()
        await s.seen.count(1)
        async with asyncio.timeout(TIMEOUT_S):
            await host.stop()
        assert [each.reason for each in s.watch.of(PartitionClosed)] == [CloseReason.LOST]


class SlowToOpen(MemorySource):
    """Its first receivers never come."""

    def __init__(self, never: int) -> None:
        super().__init__("orders")
        self.never = never
        self.asked = asyncio.Event()

    async def receiver(self, partition: str, **more: Any) -> MemoryReceiver:
        self.asked.set()
        if self.never:
            self.never -= 1
            await asyncio.Event().wait()
        return await super().receiver(partition, **more)


@pytest.mark.spec("B6")
async def test_a_receiver_that_never_comes_is_asked_for_again() -> None:
    async with host_group(source=SlowToOpen(never=1), events=2) as s:
        await s.host(setting=options(stall_after=SOON, give_up_after=None))
        assert not (await s.watch.sees(Stalled)).given_up
        await s.seen.count(2)


@pytest.mark.spec("B3")
async def test_a_receiver_that_never_comes_does_not_hold_up_a_drain() -> None:
    source = SlowToOpen(never=1)
    async with host_group(source=source, events=2) as s:
        a = s.make("a", setting=options(drain_timeout=timedelta(minutes=10)))
        await a.start()
        await source.asked.wait()
        await a.stop()
        assert s.watch.of(PartitionClosed) == []  # it was never opened
        await s.host("b")
        await s.seen.count(2)


@pytest.mark.spec("P14", "C4")
async def test_a_pull_client_checkpoints_a_batch_whose_time_is_over() -> None:
    """The batch would come again; what its caller stores of it does not."""
    async with host_group(events=3) as s:
        taken: list[EventBatch] = []
        failed, stored = asyncio.Event(), asyncio.Event()

        async def on_error(context: Any, error: BaseException) -> None:
            if taken:  # else the caller was too late, and gets the next offer
                failed.set()
                await stored.wait()

        poison = PoisonPolicy.retry(pauses=QUICK_RETRIES)
        setting = options(handler_timeout=SOON / 4, batch_events=2, poison=poison)
        host = s.make(on_batch=None, on_error=on_error, setting=setting)
        async with host:
            client = await anext(host.partitions())
            taken.append(await anext(client))
            await failed.wait()
            await client.checkpoint()
            assert await s.checkpoints() == {"0": taken[0].last_sequence}
            stored.set()
            assert (await anext(client)).first_sequence == taken[0].last_sequence + 1


@pytest.mark.spec("P14", "C4")
async def test_a_pull_client_checkpoints_nothing_that_it_has_not_given_out() -> None:
    async with host_group(events=3) as s, s.make(on_batch=None, setting=options()) as host:
        client = await anext(host.partitions())
        offered = PartitionState.HANDLING
        await s.watch.until(lambda: [each.state for each in host.status()] == [offered])
        with pytest.raises(UsageError, match="no event was received"):
            await client.checkpoint()
        assert await s.checkpoints() == {}
