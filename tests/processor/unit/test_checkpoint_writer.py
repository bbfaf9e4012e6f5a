"""Checkpoints of a host, written together: a real member, a real store in memory."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.processors import Watch, timing

from leasehold import Member, MemberOptions
from leasehold.clock import SystemClock
from leasehold.errors import (
    CheckpointBehind,
    LeaseholdError,
    LeaseLost,
    StoreUnavailable,
    UsageError,
)
from leasehold.model import CheckpointWrite, Ownership, Position, Refusal
from leasehold.names import partition_group, partition_key
from leasehold.ports import Store
from leasehold.processor.checkpoint_writer import CheckpointWriter, WrittenListener
from leasehold.processor.events import CheckpointRefused, CheckpointWritten, EventBus
from leasehold.stores.memory import MemoryStore
from leasehold.testing.faults import FaultyStore, Lost

pytestmark = pytest.mark.anyio

GROUP = partition_group("orders", "billing")
LATER_S = 1000.0


class IdleKeyHandler:
    def opened(self, ownership: Ownership) -> None: ...

    def drain(self, ownership: Ownership) -> bool:
        return True

    def closed(self, ownership: Ownership, reason: str) -> None: ...


class Answers:
    """The outcomes that callers of ``put`` got."""

    def __init__(self) -> None:
        self.errors: list[LeaseholdError | None] = []
        self._loop = asyncio.get_running_loop()
        self._answered = asyncio.Event()

    def __call__(self, error: LeaseholdError | None) -> None:
        self.errors.append(error)
        self._loop.call_soon_threadsafe(self._answered.set)

    async def count(self, number: int) -> list[LeaseholdError | None]:
        async with asyncio.timeout(120):
            while len(self.errors) < number:
                self._answered.clear()
                await self._answered.wait()
        return self.errors


class RunningWriter:
    """A member that owns some keys, and its running checkpoint writer."""

    def __init__(self, store: Store, member: Member) -> None:
        self.store = store
        self.member = member
        self.watch = Watch()
        self.event_bus = EventBus([self.watch])
        self.answers = Answers()
        loop = asyncio.get_running_loop()
        self.writer = CheckpointWriter(
            member,
            clock=SystemClock(),
            rng=random.Random(7),
            event_bus=self.event_bus,
            wake=lambda call: void(loop.call_soon_threadsafe(call)),
        )
        self.running = asyncio.create_task(self.writer.run())

    def owned(self, partition: int = 0) -> Ownership:
        ownership = self.member.holds(key(partition))
        assert ownership is not None
        return ownership

    def put(self, number: int, *, partition: int = 0, within_s: float = 0.0) -> None:
        position = Position(sequence_number=number)
        self.writer.put(self.owned(partition), position, within_s=within_s, on_done=self.answers)

    async def stored(self) -> dict[int, int]:
        found = await self.store.checkpoints(GROUP)
        return {int(k.rpartition("/")[2]): c.position.sequence_number for k, c in found.items()}

    @property
    def calls(self) -> int:
        return self.event_bus.counts().checkpoint_calls


def void(_: object) -> None: ...


def key(partition: int) -> str:
    return partition_key("orders", "billing", str(partition))


@asynccontextmanager
async def running_writer(
    *, keys: int = 1, wrap: Callable[[Store], Store] = lambda store: store, lease_s: float = 10.0
) -> AsyncIterator[RunningWriter]:
    store = MemoryStore(SystemClock())
    await store.declare([key(number) for number in range(keys)])
    options = MemberOptions(group=GROUP, timing=timing(lease_s))
    member = Member(wrap(store), options, keeper=IdleKeyHandler(), rng=random.Random(1))
    while len(member.held()) < keys:
        await member.step()
    made = RunningWriter(store, member)
    try:
        yield made
    finally:
        made.writer.close()
        made.running.cancel()
        await asyncio.gather(made.running, return_exceptions=True)


@pytest.mark.spec("C4")
async def test_a_position_that_waits_is_replaced_by_a_later_one() -> None:
    async with running_writer() as d:
        d.put(1, within_s=LATER_S)
        d.put(2, within_s=LATER_S)
        d.put(3)
        assert await d.answers.count(3) == [None, None, None]
        assert await d.stored() == {0: 3}
        assert d.calls == 1
        assert d.event_bus.counts().checkpoints_written == 1


async def test_an_earlier_position_that_comes_later_counts_as_written_with_the_further() -> None:
    async with running_writer() as d:
        d.put(9, within_s=LATER_S)
        d.put(4)
        assert await d.answers.count(2) == [None, None]
        assert await d.stored() == {0: 9}


@pytest.mark.spec("P15")
async def test_what_may_wait_goes_with_the_first_that_may_not_in_one_call() -> None:
    async with running_writer(keys=6) as d:
        for partition in range(5):
            d.put(10 + partition, partition=partition, within_s=LATER_S)
        assert d.calls == 0
        d.put(15, partition=5)
        await d.answers.count(6)
        assert await d.stored() == {each: 10 + each for each in range(6)}
        assert d.calls == 1


async def test_a_position_is_written_when_its_time_has_come() -> None:
    async with running_writer() as d:
        d.put(5, within_s=0.05)
        assert await d.answers.count(1) == [None]
        assert await d.stored() == {0: 5}


@pytest.mark.parametrize("lost", list(Lost))
async def test_a_call_without_an_answer_is_repeated_until_there_is_one(lost: Lost) -> None:
    losses = iter([lost, lost])

    def lose(name: str) -> Lost | None:
        return next(losses, None) if name == "checkpoint" else None

    async with running_writer(wrap=lambda store: FaultyStore(store, lose).as_store) as d:
        d.put(5)
        assert await d.answers.count(1) == [None]
        assert await d.stored() == {0: 5}
        assert d.calls == 3


@pytest.mark.spec("B5")
async def test_a_position_under_an_ownership_that_is_not_held_is_refused_and_counted() -> None:
    async with running_writer() as d:
        mine = d.owned()
        old = replace(mine, epoch=mine.epoch - 1)
        d.writer.put(old, Position(sequence_number=5), on_done=d.answers)
        (error,) = await d.answers.count(1)
        assert isinstance(error, LeaseLost)
        assert error.reason == "not_held"
        assert await d.stored() == {}
        assert d.calls == 0
        assert d.event_bus.counts().by_event["CheckpointRefused"] == 1


@pytest.mark.spec("B5")
async def test_what_the_store_refuses_for_its_epoch_is_told_as_a_loss_and_closed() -> None:
    async with running_writer(keys=2) as d:
        await d.store.break_(key(0), epoch=d.owned().epoch, after=timedelta(0))
        d.put(5, partition=0)
        d.put(6, partition=1)
        answers = await d.answers.count(2)
        (lost,) = [each for each in answers if each is not None]
        assert isinstance(lost, LeaseLost)
        assert lost.reason == "fenced"
        assert d.member.holds(key(0)) is None
        assert await d.stored() == {1: 6}
        assert d.watch.of(CheckpointRefused, partition="0", why="fenced")
        assert d.watch.of(CheckpointWritten, partition="1", sequence_number=6)


async def test_a_position_behind_the_stored_one_is_told_and_is_no_loss() -> None:
    async with running_writer() as d:
        d.put(9)
        await d.answers.count(1)
        d.put(4)
        answers = await d.answers.count(2)
        assert isinstance(answers[1], CheckpointBehind)
        assert await d.stored() == {0: 9}
        assert not d.watch.of(CheckpointRefused)


@pytest.mark.spec("B5")
@pytest.mark.parametrize("newer_first", [True, False])
async def test_of_two_epochs_that_wait_the_older_one_is_refused(newer_first: bool) -> None:
    async with running_writer() as d:
        mine = d.owned()
        old = CheckpointWrite(
            ownership=replace(mine, epoch=0), position=Position(sequence_number=99)
        )
        new = CheckpointWrite(ownership=mine, position=Position(sequence_number=3))
        for write in [new, old] if newer_first else [old, new]:
            d.writer.put(write.ownership, write.position, within_s=0.02, on_done=d.answers)
        answers = await d.answers.count(2)
        assert [type(each) for each in answers] == [LeaseLost, type(None)]
        assert await d.stored() == {0: 3}


async def test_when_an_ownership_ends_who_waits_for_its_checkpoint_is_told() -> None:
    async with running_writer() as d:
        d.put(5, within_s=LATER_S)
        d.writer.drop(replace(d.owned(), epoch=0))
        assert d.answers.errors == []
        d.writer.drop(d.owned())
        (error,) = await d.answers.count(1)
        assert isinstance(error, LeaseLost)
        assert await d.stored() == {}


async def test_after_close_all_that_waits_and_all_that_comes_is_refused() -> None:
    async with running_writer() as d:
        d.put(5, within_s=LATER_S)
        d.writer.close()
        d.put(6)
        answers = await d.answers.count(2)
        assert all(isinstance(each, LeaseLost) for each in answers)
        assert await d.stored() == {}


async def test_a_call_that_is_cut_off_is_told_too() -> None:
    """Else a handler in a thread would wait for its checkpoint forever."""
    reached = asyncio.Event()

    class Hanging(FaultyStore):
        async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> dict[str, Refusal]:
            reached.set()
            await asyncio.Event().wait()
            raise AssertionError

    async with running_writer(wrap=lambda store: Hanging(store, lambda _: None).as_store) as d:
        d.put(5)
        await reached.wait()
        d.running.cancel()
        (error,) = await d.answers.count(1)
        assert isinstance(error, LeaseLost)


@pytest.mark.spec("P5")
async def test_without_an_answer_it_ends_with_the_trust_and_is_told_as_a_loss() -> None:
    def lose(name: str) -> Lost | None:
        return Lost.REQUEST if name == "checkpoint" else None

    async with running_writer(
        wrap=lambda store: FaultyStore(store, lose).as_store, lease_s=0.3
    ) as d:
        d.put(5)
        (error,) = await d.answers.count(1)
        assert isinstance(error, LeaseLost)
        assert not isinstance(error, StoreUnavailable)
        assert d.calls > 1


async def test_many_threads_may_write_at_once() -> None:
    async with running_writer(keys=4) as d:
        owned = [d.owned(each) for each in range(4)]

        def write(partition: int) -> None:
            for number in range(100):
                position = Position(sequence_number=number)
                d.writer.put(owned[partition], position, on_done=d.answers)

        threads = [threading.Thread(target=write, args=(each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        assert set(await d.answers.count(400)) == {None}
        for thread in threads:
            thread.join()
        assert await d.stored() == dict.fromkeys(range(4), 99)
        assert d.calls < 400


class Picky(FaultyStore):
    """Refuses the call if one of the positions is 13; never answers once it has seen 99."""

    async def checkpoint(self, marks: Sequence[CheckpointWrite]) -> Mapping[str, Refusal]:
        numbers = [write.position.sequence_number for write in marks]
        if 13 in numbers:
            raise UsageError("13 can not be kept")
        if numbers == [99]:
            await asyncio.Event().wait()
        return await self._store.checkpoint(marks)


def picky(store: Store) -> Store:
    return Picky(store, lambda _: None).as_store


async def test_a_position_that_can_not_be_written_is_refused_alone() -> None:
    async with running_writer(keys=3, wrap=picky) as d:
        bad = Answers()
        d.put(1, partition=0, within_s=LATER_S)
        d.writer.put(d.owned(1), Position(sequence_number=13), within_s=LATER_S, on_done=bad)
        d.put(2, partition=2)
        assert await d.answers.count(2) == [None, None]
        (error,) = await bad.count(1)
        assert isinstance(error, UsageError)
        assert await d.stored() == {0: 1, 2: 2}
        assert d.watch.of(CheckpointRefused, partition="1", why="13 can not be kept")
        assert d.member.holds(key(1)) is not None
        d.put(14, partition=1)
        assert (await d.answers.count(3))[-1] is None
        assert (await d.stored())[1] == 14


async def test_when_it_is_cut_off_while_it_writes_one_by_one_all_are_told() -> None:
    async with running_writer(keys=3, wrap=picky) as d:
        d.put(13, partition=0, within_s=LATER_S)
        d.put(99, partition=1, within_s=LATER_S)
        d.put(2, partition=2)
        await d.answers.count(1)
        d.running.cancel()
        refused, *lost = await d.answers.count(3)
        assert isinstance(refused, UsageError)
        assert [type(each) for each in lost] == [LeaseLost, LeaseLost]


@pytest.mark.parametrize("offset", ["\ud800", "a\0b", "x" * 1025, 7, None])
async def test_an_offset_that_no_store_could_keep_is_refused_at_once(offset: Any) -> None:
    async with running_writer() as d:
        position = Position(sequence_number=1, offset=offset)
        with pytest.raises(UsageError, match="offset must be text of at most 1,024 characters"):
            d.writer.put(d.owned(), position, on_done=d.answers)
        d.put(2)
        assert await d.answers.count(1) == [None]


@pytest.mark.parametrize("offset", ["", "4104", "@latest", "é 🚀 \n", "x" * 1024])
async def test_an_offset_that_every_store_can_keep_is_kept_to_the_letter(offset: str) -> None:
    async with running_writer() as d:
        position = Position(sequence_number=1, offset=offset)
        d.writer.put(d.owned(), position, on_done=d.answers)
        assert await d.answers.count(1) == [None]
        assert (await d.store.checkpoints(GROUP))[key(0)].position.offset == offset


@pytest.mark.spec("C4")
async def test_of_those_who_want_to_know_how_far_it_is_one_is_kept_for_all() -> None:
    async with running_writer() as d:
        heard: list[int] = []
        for number in range(100):
            on_done = WrittenListener(lambda position: heard.append(position.sequence_number))
            position = Position(sequence_number=number)
            d.writer.put(d.owned(), position, within_s=LATER_S, on_done=on_done)
        d.put(50)
        d.put(60)
        assert await d.answers.count(2) == [None, None]
        assert heard == [99]


async def test_what_is_refused_was_not_written_and_nobody_hears_that_it_was() -> None:
    async with running_writer() as d:
        heard: list[Position] = []
        d.writer.put(
            d.owned(),
            Position(sequence_number=5),
            within_s=LATER_S,
            on_done=WrittenListener(heard.append),
        )
        d.writer.drop(d.owned())
        assert d.watch.of(CheckpointRefused, partition="0")
        assert heard == []
