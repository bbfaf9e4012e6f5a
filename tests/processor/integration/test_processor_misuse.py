"""Unplanned use: odd handlers, odd times, odd exceptions."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from tests.support.processors import QUICK_RETRIES, TIMEOUT_S, host_group, lease_threads, options

from leasehold.errors import LeaseLost, StoreUnavailable, StoreUnusable, UsageError
from leasehold.events import Event, Start
from leasehold.model import Position
from leasehold.processor import (
    AsyncPartitionContext,
    CheckpointPolicy,
    EventProcessor,
    HookEvent,
    PartitionContext,
    blocking,
)
from leasehold.processor.events import (
    CheckpointWritten,
    HandlerFailed,
    PartitionClosed,
    PartitionOpened,
)
from leasehold.spark import PoisonPolicy
from leasehold.testing.source import MemoryReceiver, MemorySource

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=0.2)


# ------------------------------------------------------------- what is stored


@pytest.mark.spec("C3", "B3")
async def test_a_start_at_the_end_is_noted_before_anything_is_handled() -> None:
    latest = options(start=Start.latest())
    async with host_group(events=5) as s:
        async with s.make("a", setting=latest):
            await s.watch.sees(PartitionOpened)
        assert await s.checkpoints() == {"0": 4}
        s.fill(3)
        await s.host("b", setting=latest)
        await s.seen.count(3)
        assert s.seen.numbers() == [5, 6, 7]


@pytest.mark.spec("C4")
async def test_a_checkpoint_beside_a_handler_does_not_pass_what_the_handler_is_at() -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()
    contexts: list[AsyncPartitionContext] = []

    async def on_event(context: AsyncPartitionContext, event: Event) -> None:
        contexts.append(context)
        if event.sequence_number == 1 and not go_on.is_set():
            inside.set()
            await go_on.wait()
            raise ValueError("once")
        s.seen.note(context, event)

    async with host_group(events=3) as s:
        await s.host(on_event=on_event, setting=options(checkpoint=CheckpointPolicy.manual()))
        await inside.wait()
        await contexts[0].checkpoint()
        assert await s.checkpoints() == {"0": 0}
        go_on.set()
        await s.seen.count(3)
        assert s.seen.numbers() == [0, 1, 2]


@pytest.mark.spec("C4")
async def test_on_event_is_noted_in_the_middle_of_a_long_batch() -> None:
    async def on_event(context: AsyncPartitionContext, event: Event) -> None:
        await asyncio.sleep(0.01)

    async with host_group(events=200) as s:
        policy = CheckpointPolicy.every(events=10)
        await s.host(on_event=on_event, setting=options(checkpoint=policy))
        written = await s.watch.sees(CheckpointWritten)
        assert written.sequence_number < 199


class Held:
    """A handle that can be lost."""

    ownership = SimpleNamespace(holder="h", epoch=1)
    partition = "0"
    valid = True

    def check(self) -> None:
        if not self.valid:
            raise LeaseLost("lost")


class Behind:
    """What a context asks of its pump; its transactions only note the question."""

    def __init__(self) -> None:
        self.handle = Held()
        self.delivered = self.caller_position = Position(sequence_number=7)
        self.commits_known: list[Position] = []
        self.refusals: list[Position] = []
        self.asked: list[Callable[[], Position]] = []
        self.transactions = self

    def commit_unknown(self) -> None:
        pass

    def of_stream(self, position: Position) -> Position:
        return replace(position, stream="the first")

    def commit_known(self, position: Position) -> None:
        self.commits_known.append(position)

    def refused(self, position: Position) -> None:
        self.refusals.append(position)

    @contextmanager
    def begin_blocking(self, _: object, position: Callable[[], Position]) -> Iterator[None]:
        self.asked.append(position)
        yield


@pytest.mark.spec("B5")
def test_a_transaction_is_for_the_events_it_was_begun_with_and_refused_after_the_loss() -> None:
    pump_calls: Any = Behind()
    with PartitionContext(pump_calls, stream="s", group="g").transaction():
        pump_calls.caller_position = Position(sequence_number=3)  # as it is after a forced end
        assert pump_calls.asked[0]() == Position(sequence_number=7)
        assert pump_calls.asked[0]().stream == "the first"  # a later stream is not taken for it
        pump_calls.handle.valid = False
        with pytest.raises(LeaseLost):
            pump_calls.asked[0]()
        assert pump_calls.refusals == [Position(sequence_number=7)]
    assert pump_calls.commits_known == [Position(sequence_number=7)]


# ------------------------------------------------------------ kinds of handlers


def test_generators_are_refused_at_once() -> None:
    def plain(context: Any, event: Any) -> Any:
        yield event

    async def waiting(context: Any, event: Any) -> Any:
        yield event

    for handler in (plain, waiting):
        with pytest.raises(UsageError, match="generator"):
            EventProcessor(MemorySource(), "memory://", "g", on_event=handler)


async def test_an_answer_that_nobody_runs_is_a_failure() -> None:
    class Promise:
        def __await__(self) -> Any:
            yield

    async with host_group(events=1) as s:
        await s.host(on_event=lambda *_: Promise())
        failed = await s.watch.sees(HandlerFailed)
        assert "Promise" in str(failed.error)
        assert await s.checkpoints() == {}


async def test_the_outermost_function_decides_whether_it_is_async() -> None:
    got: list[int] = []

    def plain(context: Any, event: Event) -> None:
        got.append(event.sequence_number)

    @functools.wraps(plain)
    async def wrapper(context: Any, event: Event) -> None:
        plain(context, event)
        s.seen.note(context, event)

    async with host_group(events=2) as s:
        await s.host(on_event=wrapper)
        await s.seen.count(2)
        assert got == [0, 1]


async def test_a_mock_is_a_handler_as_any_other() -> None:
    handler = Mock(return_value=None)
    async with host_group(events=2) as s:
        await s.host(on_event=handler)
        await s.watch.sees(CheckpointWritten, sequence_number=1)
        assert handler.call_count == 2


# ------------------------------------------------------ exceptions of all kinds


@pytest.mark.spec("B6", "P11")
@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, GeneratorExit])
async def test_what_a_plain_handler_lets_out_is_a_failure_and_nothing_more(
    kind: type[BaseException],
) -> None:
    def on_event(context: Any, event: Event) -> None:
        if not s.watch.of(HandlerFailed):
            raise kind
        s.seen.note(context, event)

    async with host_group(events=1) as s:
        await s.host(on_event=on_event, setting=options(handler_timeout=timedelta(seconds=30)))
        failed = await s.watch.sees(HandlerFailed)
        assert kind.__name__ in str(failed.error)
        await s.seen.count(1)


class NotAnException(BaseException):
    """As some libraries have it."""


@pytest.mark.spec("B6", "P11")
@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, NotAnException])
async def test_what_an_async_handler_lets_out_is_a_failure_and_nothing_more(
    kind: type[BaseException],
) -> None:
    async def on_event(context: AsyncPartitionContext, event: Event) -> None:
        if not s.watch.of(HandlerFailed):
            raise kind
        s.seen.note(context, event)

    async with host_group(events=1) as s:
        await s.host(on_event=on_event)
        failed = await s.watch.sees(HandlerFailed)
        assert kind.__name__ in str(failed.error)
        await s.seen.count(1)


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, NotAnException])
async def test_what_the_callbacks_let_out_ends_nothing(kind: type[BaseException]) -> None:
    async def raises(*_: Any) -> None:
        raise kind

    async with host_group(events=2) as s:
        host = s.make(on_partition_open=raises, on_partition_close=raises, on_error=raises)
        async with host:
            await s.seen.count(2)
        assert await s.checkpoints() == {"0": 1}
        assert host.counts().closed == {"shutdown": 1}


async def test_a_hook_that_lets_anything_out_ends_nothing() -> None:
    def hook(event: HookEvent) -> None:
        raise asyncio.CancelledError

    async with host_group(events=2) as s, s.make(hooks=[hook, s.watch]):
        await s.watch.sees(CheckpointWritten, sequence_number=1)
    assert lease_threads() == []


# --------------------------------------------------------------- start and stop


async def test_stop_during_the_start_waits_for_it_and_then_stops() -> None:
    class Slow(MemorySource):
        async def partitions(self) -> Any:
            asked.set()
            await go_on.wait()
            return await super().partitions()

    asked, go_on = asyncio.Event(), asyncio.Event()
    async with host_group(source=Slow("orders")) as s:
        host = s.make()
        starting = asyncio.create_task(host.start())
        await asked.wait()
        stopping = asyncio.create_task(host.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        go_on.set()
        await starting
        await stopping
    assert lease_threads() == []


async def test_after_a_start_that_failed_there_is_nothing_to_wait_for() -> None:
    host = EventProcessor(MemorySource(), "sqlite:////dev/null/x.db", "g", on_event=lambda *_: None)
    with pytest.raises(StoreUnusable):
        await host.start()
    await host.wait()
    await host.stop()


async def test_stop_in_a_handler_is_refused_and_stop_soon_is_the_way() -> None:
    refused: list[UsageError] = []

    async def on_event(context: Any, event: Event) -> None:
        try:
            await host.stop()
        except UsageError as error:
            refused.append(error)
        host.stop_soon()

    async with host_group(events=1) as s:
        host = s.make(on_event=on_event)
        await host.start()
        await host.wait()
        assert "stop_soon" in str(refused[0])
        assert await s.checkpoints() == {"0": 0}


@pytest.mark.spec("B3")
async def test_a_block_that_was_cancelled_still_leaves_in_good_order() -> None:
    async with host_group(events=3) as s:
        with anyio.CancelScope() as scope:
            async with s.make():
                await s.seen.count(3)
                scope.cancel()
        assert await s.checkpoints() == {"0": 2}


async def test_a_start_that_was_cancelled_leaves_no_thread() -> None:
    class Never(MemorySource):
        async def partitions(self) -> Any:
            scope.cancel()
            await asyncio.Event().wait()

    async with host_group(source=Never("orders")) as s:
        with anyio.CancelScope() as scope:
            await s.make().start()
    assert lease_threads() == []


@pytest.mark.spec("B6")
async def test_a_receiver_that_does_not_close_does_not_hold_up_the_stop() -> None:
    class Clinging(MemorySource):
        async def receiver(self, partition: str, **more: Any) -> MemoryReceiver:
            made = await super().receiver(partition, **more)
            made.close = asyncio.Event().wait  # type: ignore[method-assign,assignment]
            return made

    async with host_group(source=Clinging("orders"), events=1) as s:
        async with s.make(setting=options(drain_timeout=SOON)):
            await s.seen.count(1)
        assert s.watch.of(PartitionClosed)


# -------------------------------------------------------------------- standing still


@pytest.mark.spec("B6")
async def test_a_host_whose_loop_does_not_turn_gives_its_partitions_up() -> None:
    inside, go_on = threading.Event(), threading.Event()

    async def blocks(context: Any, batch: Any) -> None:
        inside.set()
        go_on.wait(TIMEOUT_S)  # that is the fault

    async with host_group() as s:
        setting = options(stall_after=SOON, give_up_after=SOON, drain_timeout=SOON)
        stuck = s.make("stuck", on_batch=blocks, setting=setting)

        def live() -> None:
            with blocking(stuck):
                go_on.wait(TIMEOUT_S)

        life = asyncio.create_task(asyncio.to_thread(live))
        await s.watch.sees(PartitionOpened)
        s.fill(2)
        await asyncio.to_thread(inside.wait, TIMEOUT_S)
        await s.host("good")
        await s.seen.count(2)
        go_on.set()
        await life


@pytest.mark.spec("P14")
async def test_an_error_handler_that_hangs_is_called_once_at_a_time() -> None:
    running = 0
    peak = 0
    inside, go_on = threading.Event(), threading.Event()

    def on_error(context: Any, error: BaseException) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        inside.set()
        go_on.wait(TIMEOUT_S)
        running -= 1

    async with host_group() as s:
        host = await s.owns(on_error=on_error)
        assert host._pump_manager is not None
        for number in range(5):
            host._pump_manager.member_failed(OSError(str(number)))
        await asyncio.to_thread(inside.wait, TIMEOUT_S)
        go_on.set()
        await s.watch.until(
            lambda: host._pump_manager is not None and host._pump_manager._member_error is None
        )
        assert peak == 1


@pytest.mark.spec("B6")
async def test_a_store_that_is_away_makes_no_event_a_poison() -> None:
    tries = 0

    async def on_event(context: AsyncPartitionContext, event: Event) -> None:
        nonlocal tries
        tries += 1
        if tries <= 5:
            raise StoreUnavailable("away")
        s.seen.note(context, event)

    async with host_group(events=1) as s:
        skip = PoisonPolicy.skip(retries=1, pauses=QUICK_RETRIES)
        host = await s.host(on_event=on_event, setting=options(poison=skip))
        await s.seen.count(1)
        assert host.counts().events_skipped == 0


@pytest.mark.spec("P14")
async def test_in_the_pull_style_the_context_is_at_the_batch_in_hand() -> None:
    async with host_group(events=3) as s:
        setting = options(batch_events=2, checkpoint=CheckpointPolicy.manual(), drain_timeout=SOON)
        puller = await s.host(on_batch=None, setting=setting)
        async for client in puller.partitions():
            batch = await anext(client)
            assert client.context.position.sequence_number == batch.last_sequence == 1
            await client.context.checkpoint()
            break
        assert await s.checkpoints() == {"0": 1}
