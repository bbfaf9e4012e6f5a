"""A receive that is cancelled at any moment has not moved; a source ends without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from leasehold.errors import ReaderDisplaced, UsageError
from leasehold.events import Event, EventBatch, Start
from leasehold.log import Log, LogOptions, LogSource, PartitionReader, Producer, ProducerOptions
from leasehold.log import stream_watcher as watch_module
from leasehold.log.receiver import LogReceiver

pytestmark = pytest.mark.anyio

SOON_S = 120
MAX = {"max_events": 100, "max_bytes": 1 << 20}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    options = LogOptions(run_monitor=False)
    with Log.open(
        f"sqlite:///{tmp_path}/log.db", volumes=[tmp_path / "a"], options=options
    ) as opened:
        opened.create("orders", partitions=256, segment_bytes=4096)
        yield opened


@pytest.fixture
async def source(log: Log) -> AsyncIterator[LogSource]:
    async with LogSource(log, "orders") as made:
        yield made


@pytest.fixture
def producer(log: Log) -> Iterator[Producer]:
    with log.producer("orders", ProducerOptions(linger=timedelta(0), durable=False)) as made:
        yield made


async def opened(source: LogSource, partition: int = 0, *, epoch: int = 1) -> LogReceiver:
    return await source.receiver(
        str(partition), group="billing", epoch=epoch, start=Start.earliest(), name="host1"
    )


async def until_waiting(receiver: LogReceiver) -> None:
    with anyio.fail_after(SOON_S):
        while not receiver.is_waiting:  # noqa: ASYNC110 - it has no event for this, and needs none
            await anyio.sleep(0.001)


def kernel_things() -> list[str]:
    """The inotify instances and eventfds of this process. Mapped segments are not counted."""
    kinds = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of the listing itself is gone by now
            kinds.append(str(each.readlink()))
    return sorted(kind for kind in kinds if kind.startswith("anon_inode:"))


def store(producer: Producer, *numbers: int) -> None:
    events = [Event(body=str(number).encode()) for number in numbers]
    producer.send(events, partition=0).result(SOON_S)


async def next_of(receiver: LogReceiver, *, max_events: int = 100) -> list[int]:
    """The numbers in the next batch; what was lost fails the test, instead of holding it up."""
    with anyio.fail_after(SOON_S):
        return numbers_in(await receiver.receive(max_events=max_events, max_bytes=1 << 20))


def numbers_in(batch: EventBatch) -> list[int]:
    return [int(event.body) for event in batch]


class Halt:
    """Stops the thread that reads, before or after it has read, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self._read = PartitionReader.read
        self._after = after
        monkeypatch.setattr(PartitionReader, "read", self._halted())

    def _halted(self) -> Callable[..., EventBatch | None]:
        def read(reader: PartitionReader, **limits: Any) -> EventBatch | None:
            batch = self._read(reader, **limits) if self._after else None
            self.reached.set()
            assert self.go.wait(SOON_S)
            return batch if self._after else self._read(reader, **limits)

        return read


@pytest.mark.parametrize("after", [False, True], ids=["before it reads", "after it has read"])
async def test_a_receive_that_is_cancelled_while_a_thread_reads_loses_nothing(
    source: LogSource, producer: Producer, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    store(producer, *range(10))
    receiver = await opened(source)
    halt = Halt(monkeypatch, after=after)
    task = asyncio.create_task(receiver.receive(**MAX))
    assert await asyncio.to_thread(halt.reached.wait, SOON_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert receiver.position == 0

    again = asyncio.create_task(next_of(receiver, max_events=4))
    await asyncio.sleep(0)
    halt.go.set()

    assert await again == [0, 1, 2, 3]
    assert receiver.position == 4
    assert await next_of(receiver) == [4, 5, 6, 7, 8, 9]


async def test_what_was_read_for_a_cancelled_receive_is_not_given_to_one_who_lost_its_claim(
    source: LogSource, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(producer, 0)
    old = await opened(source, epoch=1)
    halt = Halt(monkeypatch, after=True)
    with anyio.move_on_after(0) as scope:
        await old.receive(**MAX)
    assert scope.cancelled_caught
    assert await asyncio.to_thread(halt.reached.wait, SOON_S)

    halt.go.set()
    new = await opened(source, epoch=2)

    with pytest.raises(ReaderDisplaced):
        await next_of(old)
    assert await next_of(new) == [0]


async def test_an_error_after_a_cancelled_opening_is_nobodys_business(
    source: LogSource, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def reader(*_: Any, **__: Any) -> PartitionReader:
        begun.set()
        go_on.wait(SOON_S)
        raise ReaderDisplaced("somebody else reads it")

    monkeypatch.setattr(log, "reader", reader)
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    opening = asyncio.create_task(opened(source))
    assert await asyncio.to_thread(begun.wait, SOON_S)
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await opening
    go_on.set()
    await source.close()  # waits for its threads
    await asyncio.sleep(0)
    gc.collect()
    assert said == []


async def test_cancelling_at_every_turn_of_the_event_loop_loses_nothing(
    source: LogSource, producer: Producer
) -> None:
    receiver = await opened(source)
    found: list[int] = []
    sent = 0
    for turns in range(60):
        store(producer, sent)
        sent += 1
        task = asyncio.create_task(receiver.receive(**MAX))
        for turn in range(turns):  # some of them leave time to the threads
            await asyncio.sleep(0.0005 if turn % 8 == 7 else 0)
        task.cancel()
        try:
            found += numbers_in(await task)
        except asyncio.CancelledError:
            assert receiver.position == len(found)
    while len(found) < sent:
        found += await next_of(receiver)

    assert found == list(range(sent))


async def test_a_time_limit_again_and_again_loses_nothing(
    source: LogSource, producer: Producer
) -> None:
    receiver = await opened(source)

    def send() -> None:
        for number in range(100):
            store(producer, number)

    sending = asyncio.create_task(asyncio.to_thread(send))
    found: list[int] = []
    with anyio.fail_after(SOON_S):
        while len(found) < 100:
            with anyio.move_on_after(0.002):
                found += numbers_in(await receiver.receive(**MAX))
    await sending

    assert found == list(range(100))


@pytest.mark.parametrize("whole", [False, True], ids=["receiver", "source"])
async def test_closing_wakes_one_that_waits(
    source: LogSource, producer: Producer, *, whole: bool
) -> None:
    store(producer, 0)
    receivers = [await opened(source, number) for number in (0, 1)]
    await receivers[0].receive(**MAX)
    tasks = [asyncio.create_task(each.receive(**MAX)) for each in receivers]
    for receiver in receivers:
        await until_waiting(receiver)

    if whole:
        await source.close()
        await source.close()
    else:
        for receiver in receivers:
            await receiver.close()
            await receiver.close()

    for task in tasks:
        with pytest.raises(UsageError, match="closed"):
            await task
    with pytest.raises(UsageError, match="closed"):
        await receivers[0].receive(**MAX)
    if whole:
        with pytest.raises(UsageError, match="closed"):
            await opened(source)
        with pytest.raises(UsageError, match="closed"):
            await source.partitions()


async def test_closing_while_a_thread_reads_is_told_as_closing(
    source: LogSource, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = await opened(source)
    halt = Halt(monkeypatch, after=False)
    task = asyncio.create_task(receiver.receive(**MAX))
    assert await asyncio.to_thread(halt.reached.wait, SOON_S)
    closing = asyncio.create_task(receiver.close())
    await asyncio.sleep(0)
    halt.go.set()

    await closing
    with pytest.raises(UsageError, match="the receiver of partition 0"):
        await task


async def test_a_log_that_is_closed_first_wakes_who_waits(tmp_path: Path) -> None:
    options = LogOptions(run_monitor=False)
    log = Log.open(f"sqlite:///{tmp_path}/log.db", volumes=[tmp_path / "a"], options=options)
    log.create("orders", partitions=1)
    async with LogSource(log, "orders") as source:
        receiver = await opened(source)
        task = asyncio.create_task(receiver.receive(**MAX))
        await until_waiting(receiver)
        log.close()
        with anyio.fail_after(SOON_S), pytest.raises(UsageError, match="closed"):
            await task


async def test_nothing_is_left_of_a_source_that_was_closed(log: Log, producer: Producer) -> None:
    store(producer, 0)
    async with LogSource(log, "orders") as first:  # what is made once for the process is made now
        await (await opened(first)).receive(**MAX)
    threads = {each.name for each in threading.enumerate()}
    things = kernel_things()

    source = LogSource(log, "orders")
    receivers = [await opened(source, number) for number in range(20)]
    await receivers[0].receive(**MAX)
    tasks = [asyncio.create_task(each.receive(**MAX)) for each in receivers]
    for receiver in receivers:
        await until_waiting(receiver)
    opening = asyncio.create_task(opened(source, 30))
    await asyncio.sleep(0)
    opening.cancel()  # its reader is closed by the source
    await asyncio.gather(opening, return_exceptions=True)
    assert kernel_things().count("anon_inode:inotify") == things.count("anon_inode:inotify") + 1
    await source.close()
    await asyncio.gather(*tasks, return_exceptions=True)

    left = {each.name for each in threading.enumerate()} - threads
    assert not {name for name in left if name.startswith("leasehold-")}
    assert kernel_things() == things


async def test_256_partitions_with_nothing_to_read_cost_a_few_questions(
    source: LogSource, producer: Producer
) -> None:
    sent = [producer.send(Event(body=b"x"), partition=number) for number in range(0, 256, 16)]
    for each in sent:
        each.result(SOON_S)
    receivers = await asyncio.gather(*(opened(source, number) for number in range(256)))
    for receiver in receivers[::16]:
        await receiver.receive(**MAX)
    tasks = [asyncio.create_task(each.receive(**MAX)) for each in receivers]
    for receiver in receivers:
        await until_waiting(receiver)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.5)  # the pauses have grown

    looks, queries, begun = _looks(receivers), source.watcher.queries, loop.time()
    await asyncio.sleep(1.0)
    passed = loop.time() - begun

    assert _looks(receivers) == looks
    assert source.watcher.queries - queries <= passed / watch_module.LONGEST_S + 1
    watching = [each for each in threading.enumerate() if each.name == "leasehold-watch-orders"]
    assert len(watching) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _looks(receivers: list[LogReceiver]) -> int:
    return sum(each.reader.polls for each in receivers)
