"""Handlers: all kinds of functions, the checkpoints they write, and what becomes of failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.support.processors import (
    QUICK_RETRIES,
    HostGroup,
    Seen,
    host_group,
    options,
)

from leasehold.clock import SystemClock
from leasehold.errors import CheckpointBehind, UsageError
from leasehold.events import DeadLetter, Event, EventBatch
from leasehold.model import CheckpointWrite, Position, Refusal
from leasehold.processor import (
    AsyncPartitionContext,
    CheckpointPolicy,
    CloseReason,
    HookEvent,
    PartitionContext,
    PartitionState,
)
from leasehold.processor.events import (
    CheckpointWritten,
    CycleDone,
    HandlerFailed,
    PartitionOpened,
    Poisoned,
)
from leasehold.spark import PoisonPolicy
from leasehold.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

MANUAL = CheckpointPolicy.manual()
SKIP = PoisonPolicy.skip(retries=1, pauses=QUICK_RETRIES)
SOON = timedelta(seconds=0.2)


class Methods:
    """Handlers in all the forms that a function can have."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def sync(self, context: Any, event: Event) -> None:
        assert isinstance(context, PartitionContext)
        self.seen.note(context, event)

    async def later(self, context: Any, event: Event) -> None:
        assert isinstance(context, AsyncPartitionContext)
        self.seen.note(context, event)

    def tagged(self, tag: str, context: Any, event: Event) -> None:
        self.sync(context, event)

    async def later_tagged(self, tag: str, context: Any, event: Event) -> None:
        await self.later(context, event)


class CallsSync(Methods):
    def __call__(self, context: Any, event: Event) -> None:
        self.sync(context, event)


class CallsLater(Methods):
    async def __call__(self, context: Any, event: Event) -> None:
        await self.later(context, event)


@pytest.mark.spec("P14")
@pytest.mark.parametrize(
    "form",
    [
        lambda seen: Methods(seen).sync,
        lambda seen: Methods(seen).later,
        lambda seen: partial(Methods(seen).tagged, "x"),
        lambda seen: partial(Methods(seen).later_tagged, "x"),
        CallsSync,
        CallsLater,
        lambda seen: partial(CallsLater(seen)),
    ],
    ids=["method", "async", "partial", "async partial", "object", "async object", "partial object"],
)
async def test_any_kind_of_function_may_be_a_handler(form: Any) -> None:
    async with host_group(events=3) as s:
        await s.host(on_event=form(s.seen))
        await s.seen.count(3)
        assert s.seen.numbers() == [0, 1, 2]
        await s.watch.sees(CheckpointWritten, sequence_number=2)
        assert s.errors.received == []


async def test_a_function_that_hides_a_coroutine_is_told_so_and_its_events_are_not_lost() -> None:
    async with host_group(events=3) as s:
        later = Methods(s.seen).later_tagged
        poison = PoisonPolicy.stop(retries=0)
        host = s.make(on_event=lambda c, e: later("x", c, e), setting=options(poison=poison))
        async with host:
            reported = await s.watch.sees(Poisoned)
            assert isinstance(reported.error, UsageError)
            assert "make it async def" in str(reported.error)
        assert await s.checkpoints() == {}


@pytest.mark.spec("C4")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CheckpointPolicy.after_each_batch(), 9),
        (CheckpointPolicy.every(events=4), 7),
        (CheckpointPolicy.every(interval=SOON), 9),
        (CheckpointPolicy.every(events=4, interval=SOON), 9),
    ],
    ids=["each batch", "events", "interval", "both"],
)
async def test_the_policy_decides_when_the_position_is_written(
    policy: CheckpointPolicy, expected: int
) -> None:
    async with host_group(events=10) as s:
        await s.host(setting=options(checkpoint=policy, batch_events=2))
        await s.seen.count(10)
        await s.watch.sees(CheckpointWritten, sequence_number=expected)
        assert await s.checkpoints() == {"0": expected}


@pytest.mark.spec("C4")
@pytest.mark.parametrize("blocking", [False, True])
async def test_the_handler_may_checkpoint_the_last_or_a_given_event(blocking: bool) -> None:
    wrote: list[int] = []

    def place(batch: EventBatch) -> list[Any]:
        events = list(batch)
        return [events[1], 2, Position(sequence_number=3), batch.slice(0, 5), None]

    async def later(context: Any, batch: EventBatch) -> None:
        for at in place(batch):
            await context.checkpoint(at)

    def sync(context: Any, batch: EventBatch) -> None:
        for at in place(batch):
            context.checkpoint(at)

    def hook(event: HookEvent) -> None:
        if isinstance(event, CheckpointWritten):
            wrote.append(event.sequence_number)

    async with host_group(events=8) as s:
        handler = sync if blocking else later
        setting = options(checkpoint=MANUAL)
        async with s.make(on_batch=handler, setting=setting, hooks=[s.watch, hook]):
            await s.watch.sees(CheckpointWritten, sequence_number=7)
        assert wrote == [1, 2, 3, 4, 7]
        assert await s.checkpoints() == {"0": 7}


@pytest.mark.spec("C4", "C5")
async def test_manual_writes_nothing_by_itself_and_the_end_says_what_comes_again() -> None:
    async with host_group(events=8) as s:
        host = s.make(setting=options(checkpoint=MANUAL))
        async with host:
            await s.seen.count(8)
        assert await s.checkpoints() == {}
        assert host.counts().possible_repeats == 8


@pytest.mark.spec("C4")
async def test_a_checkpoint_beyond_what_was_delivered_or_behind_the_stored_is_refused() -> None:
    refused: list[BaseException] = []

    async def on_event(context: Any, event: Event) -> None:
        if event.sequence_number != 2:
            return
        assert context.position.sequence_number == 2
        for at in (3, 1_000_000, 2, 0):
            try:
                await context.checkpoint(at)
            except (UsageError, CheckpointBehind) as error:
                refused.append(error)
        await context.checkpoint(event)

    async with host_group(events=8) as s:
        await s.host(on_event=on_event, setting=options(checkpoint=MANUAL))
        await s.watch.sees(CheckpointWritten, times=2)
        assert [type(each) for each in refused] == [UsageError, UsageError, CheckpointBehind]
        assert "event 3 of partition 0 was not delivered yet, the last one was 2" in str(refused[0])
        assert await s.checkpoints() == {"0": 2}


@pytest.mark.spec("C4")
async def test_a_position_before_any_event_can_not_be_written() -> None:
    errors: list[BaseException] = []

    async def on_open(context: Any) -> None:
        with pytest.raises(UsageError, match="no event was received yet") as caught:
            await context.checkpoint()
        errors.append(caught.value)

    async with host_group() as s:
        await s.owns(on_partition_open=on_open)
        await s.watch.sees(PartitionOpened)
        await s.watch.until(lambda: bool(errors))


# ------------------------------------------------------------------- failures


async def run_with_poison(
    s: HostGroup, poison: set[int], policy: PoisonPolicy, **more: Any
) -> None:
    """A host whose ``on_batch`` fails whenever one of these events is in the batch."""

    async def on_batch(context: Any, batch: EventBatch) -> None:
        if poison & {event.sequence_number for event in batch}:
            raise ValueError("can not take it")
        await s.seen.on_batch(context, batch)

    await s.host(on_batch=on_batch, setting=options(poison=policy, **more))


@pytest.mark.spec("B6")
async def test_a_failing_batch_is_tried_again_until_it_is_taken() -> None:
    failures = iter(range(4))

    async def on_batch(context: Any, batch: EventBatch) -> None:
        if next(failures, None) is not None:
            raise ValueError("not yet")
        await s.seen.on_batch(context, batch)

    async with host_group(events=5) as s:
        poison = PoisonPolicy.retry(pauses=QUICK_RETRIES)
        host = await s.host(on_batch=on_batch, setting=options(poison=poison))
        await s.seen.count(5)
        assert s.seen.numbers() == [0, 1, 2, 3, 4]
        assert [each.attempt for each in s.watch.of(HandlerFailed)] == [1, 2, 3, 4]
        assert [str(error) for _, error in s.errors.received] == ["not yet"] * 4
        assert {context.partition for context, _ in s.errors.received} == {"0"}
        assert host.counts().events_handled == 5


@pytest.mark.spec("B6")
@pytest.mark.parametrize("poison", [{7}, {0}, {15}, {3, 4, 11}])
async def test_of_a_failing_batch_only_the_poison_is_skipped(poison: set[int]) -> None:
    async with host_group(events=16) as s:
        await run_with_poison(s, poison, SKIP)
        await s.seen.count(16 - len(poison))
        await s.watch.sees(CheckpointWritten, sequence_number=15)
        assert s.seen.numbers() == [each for each in range(16) if each not in poison]
        skipped = s.watch.of(Poisoned)
        assert [each.sequence_number for each in skipped] == sorted(poison)
        assert {each.action for each in skipped} == {"skip"}


@pytest.mark.spec("B6")
@pytest.mark.parametrize("blocking", [False, True])
async def test_on_event_goes_on_at_the_event_that_failed(blocking: bool) -> None:
    def take(context: Any, event: Event) -> None:
        if event.sequence_number == 3:
            raise ValueError("three")
        s.seen.note(context, event)

    async def later(context: Any, event: Event) -> None:
        take(context, event)

    async with host_group(events=6) as s:
        host = await s.host(on_event=take if blocking else later, setting=options(poison=SKIP))
        await s.seen.count(5)
        await s.watch.sees(CheckpointWritten, sequence_number=5)
        assert s.seen.numbers() == [0, 1, 2, 4, 5]
        assert [e.sequence_number for e in s.watch.of(HandlerFailed)] == [3, 3]
        assert (host.counts().events_handled, host.counts().events_skipped) == (5, 1)


@pytest.mark.spec("B6")
@pytest.mark.parametrize("kind", ["on_event", "on_batch"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_who_fails_after_its_own_checkpoint_costs_the_next_event_nothing(
    kind: str, retries: int
) -> None:
    """Event 0 is done, whatever its handler raises then; event 1 has its attempts before it."""
    failures = iter(range(retries + 1))

    async def handler(context: Any, events: Any) -> None:
        first = events.first_sequence if kind == "on_batch" else events.sequence_number
        if first == 0:
            await context.checkpoint(0)
            raise ValueError("after the checkpoint")
        if first == 1 and retries and next(failures) < retries:
            raise ValueError("not yet")
        seen.append(first)

    seen: list[int] = []
    async with host_group(events=2) as s:
        skip = PoisonPolicy.skip(retries=retries, pauses=QUICK_RETRIES)
        handlers: dict[str, Any] = {kind: handler}
        host = await s.host(setting=options(poison=skip), **handlers)
        await s.watch.sees(CheckpointWritten, sequence_number=1)
        assert seen == [1]
        assert s.watch.of(Poisoned) == []
        assert host.counts().events_skipped == 0


@pytest.mark.spec("B6")
async def test_a_dead_letter_is_kept_before_the_partition_goes_on() -> None:
    letters: list[DeadLetter] = []
    errors = iter([OSError("full")])

    class Box:
        async def send(self, sent: Sequence[DeadLetter]) -> None:
            error = next(errors, None)
            if error is not None:
                raise error
            assert max(s.seen.numbers(), default=-1) < 2
            letters.extend(sent)

        async def close(self) -> None: ...

    async with host_group(events=4) as s:
        poison = PoisonPolicy.dead_letter(retries=2, pauses=QUICK_RETRIES)
        await run_with_poison(s, {2}, poison, dead_letters=Box())
        await s.seen.count(3)
        assert s.seen.numbers() == [0, 1, 3]
        (letter,) = letters
        assert letter.event.sequence_number == 2
        assert letter.event.body == b"0-2"
        assert (letter.stream, letter.group, letter.partition, letter.epoch) == (
            "orders",
            "billing",
            "0",
            1,
        )
        assert letter.reason == "ValueError: can not take it"
        assert "in on_batch" in letter.traceback
        assert letter.attempts == 3
        assert any(isinstance(error, OSError) for _, error in s.errors.received)


@pytest.mark.spec("B6")
async def test_stop_keeps_the_partition_and_what_came_before_is_not_handled_again() -> None:
    async with host_group(events=8) as s:
        poison = PoisonPolicy.stop(retries=1, pauses=QUICK_RETRIES)
        host = s.make(
            on_batch=None,
            on_event=(poisoned := Poison(s.seen, 5)),
            setting=options(poison=poison),
        )
        async with host:
            reported = await s.watch.sees(Poisoned, action="stop")
            assert reported.sequence_number == 5
            assert len(host.held()) == 1
            await s.watch.until(lambda: host.status()[0].state is PartitionState.STOPPED)
        assert await s.checkpoints() == {"0": 4}
        poisoned.number = -1
        async with s.make("b"):
            await s.seen.count(8)
        assert s.seen.twice() == []
        assert s.seen.numbers(host="b") == [5, 6, 7]


class Poison:
    """An ``on_event`` that cannot take one event."""

    def __init__(self, seen: Seen, number: int) -> None:
        self.seen = seen
        self.number = number

    async def __call__(self, context: Any, event: Event) -> None:
        if event.sequence_number == self.number:
            raise ValueError("poison")
        self.seen.note(context, event)


async def test_errors_of_on_error_and_of_hooks_change_nothing() -> None:
    async def bad_on_error(context: Any, error: BaseException) -> None:
        raise RuntimeError("on_error is broken")

    def bad_hook(event: HookEvent) -> None:
        raise RuntimeError("the hook is broken")

    async with host_group(events=4) as s:
        host = await s.host(
            on_event=Poison(s.seen, 1),
            on_error=bad_on_error,
            hooks=[bad_hook, s.watch],
            setting=options(poison=SKIP),
        )
        await s.seen.count(3)
        assert s.seen.numbers() == [0, 2, 3]
        assert host.counts().events_skipped == 1


async def test_errors_of_the_callbacks_are_told_and_change_nothing() -> None:
    async def on_open(context: Any) -> None:
        raise RuntimeError("open")

    def on_close(context: Any, reason: CloseReason) -> None:
        raise RuntimeError("close")

    async with host_group(events=2) as s:
        async with s.make(on_partition_open=on_open, on_partition_close=on_close):
            await s.seen.count(2)
        assert [str(error) for _, error in s.errors.received] == ["open", "close"]
        assert await s.checkpoints() == {"0": 1}


async def test_a_handler_that_lets_a_cancellation_of_its_own_get_out_has_failed_like_any() -> None:
    """It must not end the pump and leave the partition held without being worked on."""
    first = iter([True])

    async def on_event(context: Any, event: Event) -> None:
        if next(first, False):
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task
        s.seen.note(context, event)

    async with host_group(events=3) as s:
        await s.host(
            on_event=on_event, setting=options(poison=PoisonPolicy.retry(pauses=QUICK_RETRIES))
        )
        await s.seen.count(3)
        assert s.seen.numbers() == [0, 1, 2]
        ((_, error),) = s.errors.received
        assert isinstance(error.__cause__, asyncio.CancelledError)


async def test_a_checkpoint_that_is_cancelled_while_it_is_written_harms_nobody() -> None:
    """The answer comes when it is no longer awaited: the leases must survive."""

    class Slow(MemoryStore):
        async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
            reached.set()
            await anyio.to_thread.run_sync(go_on.wait, 30)
            return await super().checkpoint(marks)

    reached, go_on = threading.Event(), threading.Event()

    async def on_event(context: Any, event: Event) -> None:
        s.seen.note(context, event)
        if event.sequence_number == 0:
            writing = asyncio.create_task(context.checkpoint(event))
            await anyio.to_thread.run_sync(reached.wait, 30)
            writing.cancel()
            await asyncio.wait([writing])
            go_on.set()

    async with host_group(events=3, store=Slow(SystemClock())) as s:
        host = await s.host(on_event=on_event, setting=options(checkpoint=MANUAL))
        await s.seen.count(3)
        await s.watch.sees(CheckpointWritten, sequence_number=0)
        await s.watch.sees(CycleDone, times=len(s.watch.of(CycleDone)) + 2)
        s.fill(1)
        await s.seen.count(4)
        assert len(host.held()) == 1
        assert s.errors.received == []
