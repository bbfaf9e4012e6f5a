"""The embedded log as an event source: who waits is woken, whatever becomes of the partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from inotify_simple import flags
from tests.support.producer_client import ProducerProcess

from leasehold.errors import ReaderDisplaced, Trimmed, UnknownStream, UsageError
from leasehold.events import Event, EventSource, Receiver, Start
from leasehold.files.disk import SystemDisk
from leasehold.log import Log, LogOptions, LogSource, Producer, ProducerOptions
from leasehold.log import receiver as receiver_module
from leasehold.log import stream_watcher as watch_module
from leasehold.log.mapped_segment import MappedSegment
from leasehold.log.receiver import LogReceiver
from leasehold.log.stream_watcher import StreamWatcher, Wakeup, WakeupOrigin
from leasehold.testing.disk import FailingDisk

pytestmark = pytest.mark.anyio

SOON_S = 120
NEVER_S = 36_000.0
PARTITIONS = 3


@pytest.fixture(autouse=True)
def no_look_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not told would come after the time limit of the test."""
    monkeypatch.setattr(receiver_module, "POLL_ANYWAY_S", NEVER_S)
    monkeypatch.setattr(watch_module, "FILE_CHECK_S", NEVER_S)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def log(url: str, tmp_path: Path) -> Iterator[Log]:
    volumes = [tmp_path / "a", tmp_path / "b"]
    with Log.open(url, volumes=volumes, options=LogOptions(run_monitor=False)) as opened:
        opened.create("orders", partitions=PARTITIONS, segment_bytes=4096)
        yield opened


@pytest.fixture
async def source(log: Log) -> AsyncIterator[LogSource]:
    async with LogSource(log, "orders") as made:
        yield made


@pytest.fixture
def producer(log: Log) -> Iterator[Producer]:
    with log.producer("orders", ProducerOptions(linger=timedelta(0), durable=False)) as made:
        yield made


async def opened(
    source: LogSource, partition: int = 0, *, epoch: int = 1, start: Start | None = None
) -> LogReceiver:
    return await source.receiver(
        str(partition), group="billing", epoch=epoch, start=start or Start.earliest(), name="host1"
    )


async def next_of(receiver: Receiver, count: int) -> list[bytes]:
    found: list[bytes] = []
    with anyio.fail_after(SOON_S):
        while len(found) < count:
            batch = await receiver.receive(max_events=count - len(found), max_bytes=1 << 20)
            found += (event.body for event in batch)
    return found


@contextlib.asynccontextmanager
async def waiting(*receivers: Receiver) -> AsyncIterator[list[asyncio.Task[list[bytes]]]]:
    """Each of them waits for one event, in a task that has gone to sleep."""
    tasks = [asyncio.create_task(next_of(each, 1)) for each in receivers]
    for receiver in receivers:
        await until_waiting(receiver)
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until_waiting(receiver: Receiver) -> None:
    assert isinstance(receiver, LogReceiver)
    with anyio.fail_after(SOON_S):
        while not receiver.is_waiting:  # noqa: ASYNC110 - it has no event for this, and needs none
            await anyio.sleep(0.001)


def store(producer: Producer, body: bytes, partition: int = 0) -> None:
    producer.send(Event(body=body), partition=partition).result(SOON_S)


def bodies(name: str, numbers: range) -> list[bytes]:
    return [f"{name}:{number}".encode() for number in numbers]


async def test_it_is_an_event_source(source: LogSource) -> None:
    port: EventSource = source

    assert port.name == "orders"


@pytest.mark.process
async def test_each_partition_comes_in_its_order_while_another_process_writes(
    source: LogSource, url: str
) -> None:
    assert await source.partitions() == ("0", "1", "2")
    receivers = [await opened(source, number) for number in range(PARTITIONS)]
    with ProducerProcess(url, "orders", "anna") as anna:
        for number in range(PARTITIONS):
            anna.begin(40, partition=number)
        found = await asyncio.gather(*(next_of(each, 40) for each in receivers))

    for number in range(PARTITIONS):
        assert found[number] == bodies("anna", range(40 * number, 40 * (number + 1)))
        assert receivers[number].position == 40


@pytest.mark.process
async def test_the_kernel_wakes_one_that_waits_for_another_process(
    source: LogSource, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = await opened(source)
    with ProducerProcess(url, "orders", "anna") as anna:
        anna.send(1)
        await next_of(receiver, 1)
        monkeypatch.setattr(
            watch_module, "IDLE_POLL_S", NEVER_S
        )  # the journal says nothing from now
        for number in range(1, 11):
            async with waiting(receiver) as (task,):
                assert receiver.origin is WakeupOrigin.KERNEL
                anna.begin(1)
                assert await task == bodies("anna", range(number, number + 1))


async def test_nothing_is_missed_over_the_borders_of_segments(
    log: Log, source: LogSource, producer: Producer
) -> None:
    receiver = await opened(source)
    for number in range(25):
        async with waiting(receiver) as (task,):
            body = str(number).encode() * 900
            await asyncio.to_thread(store, producer, body)
            assert await task == [body]

    assert log.info("orders").parts[0].segments > 5


@pytest.mark.process
async def test_the_first_event_of_a_partition_is_found_without_a_look_at_each_of_them(
    source: LogSource, url: str
) -> None:
    receivers = [await opened(source, number) for number in range(PARTITIONS)]
    async with waiting(*receivers) as tasks:
        assert {each.origin for each in receivers} == {WakeupOrigin.JOURNAL}
        polls = receivers[0].reader.polls
        with ProducerProcess(url, "orders", "anna") as anna:
            anna.send(1, partition=2)
            assert await tasks[2] == [b"anna:0"]
            assert receivers[0].reader.polls == polls
            anna.send(1, partition=0)
            assert await tasks[0] == [b"anna:1"]


async def test_a_segment_that_came_and_was_closed_between_two_questions_is_found(
    log: Log, source: LogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "SHORTEST_S", 0.2)
    receiver = await opened(source)
    async with waiting(receiver) as (task,):
        for body in (b"one", b"two"):
            with Log.open(log.files.url, options=LogOptions(run_monitor=False)) as other:
                await asyncio.to_thread(store, other.producer("orders"), body)
        assert await task == [b"one"]
    assert await next_of(receiver, 1) == [b"two"]


@pytest.mark.process
async def test_another_owner_goes_on_after_one_that_was_killed(source: LogSource, url: str) -> None:
    receiver = await opened(source)
    with (
        ProducerProcess(url, "orders", "anna") as anna,
        ProducerProcess(url, "orders", "bert") as bert,
    ):
        anna.send(3)
        assert await next_of(receiver, 3) == bodies("anna", range(3))
        async with waiting(receiver) as (task,):
            anna.kill()
            await asyncio.to_thread(bert.send, 2)
            assert await task == [b"bert:0"]
    assert await next_of(receiver, 1) == [b"bert:1"]


@pytest.mark.spec("E2")
async def test_a_receiver_whose_partition_was_claimed_gets_nothing_more(
    source: LogSource, producer: Producer
) -> None:
    old = await opened(source, epoch=3)
    async with waiting(old) as (task,):
        new = await opened(source, epoch=4)
        store(producer, b"hello")
        with pytest.raises(ReaderDisplaced, match="epoch 4"):
            await task
        assert await next_of(new, 1) == [b"hello"]
        assert old.position == 0

    with pytest.raises(ReaderDisplaced):
        await opened(source, epoch=3)


async def test_what_retention_removed_is_told(
    log: Log, source: LogSource, producer: Producer
) -> None:
    receiver = await opened(source)
    for _ in range(10):
        store(producer, b"x" * 2000)
    assert log.trim("orders", keep_bytes=1, execute=True).segments

    with pytest.raises(Trimmed) as reported:
        await next_of(receiver, 1)
    first = (await source.ends(["0"]))["0"].first
    assert reported.value.earliest == first > 0
    with pytest.raises(Trimmed):
        await opened(source, start=Start.sequence(0))


async def test_a_deleted_stream_is_told_to_all_who_wait(
    log: Log, source: LogSource, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "IDLE_POLL_S", 0.05)
    store(producer, b"hello")
    receivers = [await opened(source, number, start=Start.latest()) for number in (0, 1)]
    async with waiting(*receivers) as tasks:  # one has a segment, the other one never had
        log.delete("orders")
        for task in tasks:
            with pytest.raises(UnknownStream):
                await task

    log.create("orders", partitions=PARTITIONS)
    for asked in (source.partitions(), source.ends(["0"]), opened(source)):
        with pytest.raises(UnknownStream, match="made anew"):
            await asked


async def test_a_partition_without_segments_hears_that_its_stream_is_gone(
    log: Log, source: LogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "IDLE_POLL_S", 0.05)
    receiver = await opened(source)
    async with waiting(receiver) as (task,):
        log.delete("orders")
        with pytest.raises(UnknownStream):
            await task


async def test_receivers_of_two_groups_are_both_woken(
    source: LogSource, producer: Producer
) -> None:
    store(producer, b"one")
    billing = await opened(source, start=Start.latest())
    audit = await source.receiver("0", group="audit", epoch=7, start=Start.latest(), name="host2")
    async with waiting(billing, audit) as tasks:
        assert {billing.origin, audit.origin} == {WakeupOrigin.KERNEL}
        store(producer, b"two")
        assert await asyncio.gather(*tasks) == [[b"two"], [b"two"]]
    await billing.close()
    async with waiting(audit) as (task,):  # the other one took nothing along
        store(producer, b"three")
        assert await task == [b"three"]


async def test_a_kernel_without_watches_is_no_hindrance(
    source: LogSource, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("too many")

    monkeypatch.setattr(watch_module, "INotify", refused)
    store(producer, b"one")
    receiver = await opened(source, start=Start.latest())
    async with waiting(receiver) as (task,):
        assert receiver.origin is WakeupOrigin.NOBODY
        store(producer, b"two")
        assert await task == [b"two"]


async def test_a_segment_that_another_machine_writes_is_not_left_to_the_kernel(
    source: LogSource, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MappedSegment, "written_elsewhere", True)
    store(producer, b"one")
    receiver = await opened(source, start=Start.latest())
    async with waiting(receiver) as (task,):
        assert receiver.origin is WakeupOrigin.NOBODY
        store(producer, b"two")
        assert await task == [b"two"]


async def test_a_kernel_that_keeps_silent_is_found_out(
    source: LogSource, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_EVENTS", flags.DELETE_SELF | flags.ONESHOT)
    monkeypatch.setattr(watch_module, "FILE_CHECK_S", 0.05)
    monkeypatch.setattr(watch_module, "IDLE_POLL_S", 0.05)
    store(producer, b"one")
    receiver = await opened(source, start=Start.latest())
    async with waiting(receiver) as (task,):
        assert receiver.origin is WakeupOrigin.KERNEL
        store(producer, b"two")
        assert await task == [b"two"]


@pytest.mark.parametrize("blind", [True, False], ids=["no segment", "an open segment"])
@pytest.mark.parametrize("moment", ["before aim", "after aim", "before the sleep"])
async def test_nothing_is_lost_between_the_look_and_the_sleep(
    log: Log,
    source: LogSource,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    *,
    blind: bool,
) -> None:
    if not blind:
        store(producer, b"before")
    receiver = await opened(source, start=Start.latest())
    left = [moment]

    def now(at: str) -> None:
        if left == [at]:
            left.clear()
            store(producer, b"now")

    watch, waiting_ = StreamWatcher.watch, StreamWatcher.waiting

    def watched(
        watcher: StreamWatcher, wakeup: Wakeup, paths: tuple[str, ...], *, remote: bool
    ) -> bool:
        now("before aim")
        again = watch(watcher, wakeup, paths, remote=remote)
        now("after aim")
        return again

    def sleeping(watcher: StreamWatcher, wakeup: Wakeup) -> contextlib.AbstractContextManager[None]:
        now("before the sleep")
        return waiting_(watcher, wakeup)

    monkeypatch.setattr(StreamWatcher, "watch", watched)
    monkeypatch.setattr(StreamWatcher, "waiting", sleeping)
    assert await next_of(receiver, 1) == [b"now"]
    assert left == []


async def test_a_volume_that_is_given_up_does_not_take_the_wake_up_along(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "IDLE_POLL_S", 0.05)
    disk = FailingDisk(SystemDisk())
    roots = [tmp_path / "a", tmp_path / "b"]
    options = LogOptions(run_monitor=False)
    with (
        Log.open(url, volumes=roots, options=options, disk=disk) as writing,
        Log.open(url, volumes=roots, options=options) as reading,
    ):
        writing.create("orders", partitions=1)
        producer = writing.producer("orders")
        store(producer, b"one")
        async with LogSource(reading, "orders") as source:
            receiver = await opened(source, start=Start.latest())
            async with waiting(receiver) as (task,):
                (path,) = receiver.reader.watched()
                disk.fail(next(root for root in roots if path.startswith(str(root))))
                # The writer goes on without this volume: only the journal tells.
                await asyncio.to_thread(store, producer, b"two")
                assert await task == [b"two"]


async def test_ends_tell_what_is_kept_and_what_comes(source: LogSource, producer: Producer) -> None:
    for _ in range(3):
        store(producer, b"x", partition=1)

    ends = await source.ends(["1", "2"])

    assert {name: (each.first, each.next) for name, each in ends.items()} == {
        "1": (0, 3),
        "2": (0, 0),
    }
    assert ends["1"].last_enqueued_at is not None
    assert ends["2"].last_enqueued_at is None


@pytest.mark.parametrize("partition", ["3", "-1", "00", "x", "", "٣"])
async def test_a_partition_that_is_not_there_is_refused(source: LogSource, partition: str) -> None:
    with pytest.raises(UsageError, match="there is no partition"):
        await source.receiver(
            partition, group="billing", epoch=1, start=Start.earliest(), name="host1"
        )


async def test_a_start_beyond_the_end_is_refused(source: LogSource) -> None:
    with pytest.raises(UsageError, match="there is no event 5"):
        await opened(source, start=Start.sequence(5))


async def test_a_stream_that_is_not_there_is_refused(log: Log) -> None:
    with pytest.raises(UnknownStream, match="'orders'"):
        LogSource(log, "nothing")
