"""More partitions while everything runs: writers and readers find out by themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.postgres import database

from leasehold.errors import InvalidOptions, StoreUnavailable, UnknownStream, UsageError
from leasehold.events import Event, Start, partition_of
from leasehold.log import Log, LogOptions, LogSource, ProducerOptions, StreamInfo, StreamSettings
from leasehold.log import send_queue as growth_module
from leasehold.log.send_queue import PartitionGrowth
from leasehold.log.streams import Catalog
from leasehold.testing.clock import ManualClock

SOON_S = 120
QUICK = ProducerOptions(linger=timedelta(0), durable=False)
LIMITED = LogOptions(run_monitor=False)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/log.db"
    else:
        with database() as made:
            yield made


@pytest.fixture
def log(url: str, tmp_path: Path) -> Iterator[Log]:
    with Log.open(url, volumes=[tmp_path / "a"], options=LIMITED) as opened:
        opened.create("orders", partitions=2)
        yield opened


def test_a_stream_grows_and_its_events_stay(log: Log) -> None:
    with log.producer("orders", QUICK) as producer:
        for number in (0, 1):
            producer.send(Event(body=b"old"), partition=number).result(SOON_S)
        before = log.stream("orders")

        grown = log.grow("orders", partitions=5)

        assert grown.partitions == log.info("orders").partitions == 5
        assert grown.created_at == before.created_at
        for number in (0, 1, 4):  # one that this producer has not heard of yet
            producer.send(Event(body=b"new"), partition=number).result(SOON_S)
    assert [part.events for part in log.info("orders").parts] == [2, 2, 0, 0, 1]
    with log.reader("orders", 4) as reader:
        assert [event.body for batch in reader.batches() for event in batch] == [b"new"]
    assert log.verify("orders") == []


def test_the_same_number_again_is_harmless_and_fewer_is_refused(log: Log) -> None:
    log.grow("orders", partitions=3)

    assert log.grow("orders", partitions=3).partitions == 3
    with pytest.raises(UsageError, match="has 3 partitions and can not have fewer"):
        log.grow("orders", partitions=2)
    with pytest.raises(InvalidOptions, match="partitions is 0"):
        log.grow("orders", partitions=0)
    with pytest.raises(InvalidOptions, match="partitions is 1000000"):
        log.grow("orders", partitions=1_000_000)
    with pytest.raises(UnknownStream, match="'orders'"):
        log.grow("nothing", partitions=3)
    assert log.stream("orders").partitions == 3


def test_of_many_who_grow_it_at_once_the_highest_number_stays(url: str, log: Log) -> None:
    together = threading.Barrier(4)
    refused: list[UsageError] = []

    def grow(partitions: int) -> None:
        with Log.open(url, options=LIMITED) as mine:
            together.wait(SOON_S)
            try:
                assert mine.grow("orders", partitions=partitions).partitions == partitions
            except UsageError as error:
                refused.append(error)

    threads = [threading.Thread(target=grow, args=(number,)) for number in (3, 5, 7, 9)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert log.stream("orders").partitions == 9
    assert len(refused) < 4


def test_running_producers_use_the_new_partitions(
    url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth_module, "REFRESH_INTERVAL_S", 0.0)
    moved = next(key for key in map(str, range(1000)) if partition_of(key, 6) == 5)
    with log.producer("orders", QUICK) as producer:
        assert producer.send(Event(body=b"x", key=moved)).result(SOON_S)[0].partition < 2
        with Log.open(url, options=LIMITED) as other:  # in another process, as it were
            other.grow("orders", partitions=6)

        until = threading.Event()
        while producer.stream.partitions == 2:
            producer.send(Event(body=b"x", key="a")).result(SOON_S)
            until.wait(0.01)

        assert producer.send(Event(body=b"x", key=moved)).result(SOON_S)[0].partition == 5
        used = {producer.send(Event(body=b"x")).result(SOON_S)[0].partition for _ in range(6)}
        assert used == set(range(6))
        table = [Event(body=b"x", key=str(number)) for number in range(200)]
        receipts = producer.send(table).result(SOON_S)
        assert {each.partition for each in receipts} == set(range(6))
    assert not [each for each in threading.enumerate() if "leasehold-growth" in each.name]


def test_a_source_sees_the_new_partitions_and_reads_them(log: Log) -> None:
    async def run() -> None:
        async with LogSource(log, "orders") as source:
            assert await source.partitions() == ("0", "1")
            with pytest.raises(UsageError, match="there is no partition 2"):
                await source.receiver("2", group="g", epoch=1, start=Start.earliest(), name="host1")

            log.grow("orders", partitions=12)

            assert await source.partitions() == tuple(map(str, range(12)))
            receiver = await source.receiver(
                "11", group="g", epoch=1, start=Start.earliest(), name="host1"
            )
            task = asyncio.create_task(receiver.receive(max_events=1, max_bytes=1000))
            with log.producer("orders", QUICK) as producer:
                producer.send(Event(body=b"x"), partition=11).result(SOON_S)
                assert [event.body for event in await task] == [b"x"]

    asyncio.run(run())


def test_a_look_that_fails_or_is_overtaken_changes_nothing() -> None:
    clock = ManualClock()
    found: list[StreamInfo | Exception] = []

    def look() -> StreamInfo:
        answer = found.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    growth = PartitionGrowth(_stream(4), look, clock=clock)
    growth.refresh_if_due()  # a second has not passed
    found.append(StoreUnavailable("away"))
    assert growth.stream_with(7).partitions == 4
    found.append(_stream(3))  # asked before the stream grew to four, and answered late
    assert growth.stream_with(7).partitions == 4
    found.append(_stream(8))
    assert growth.stream_with(7).partitions == 8
    assert growth.stream_with(7).partitions == 8  # known: nobody is asked
    assert growth.stream_with(None).partitions == 8
    growth.close()


def test_one_look_is_under_way_at_most() -> None:
    clock = ManualClock()
    begun, go = threading.Event(), threading.Event()
    looks: list[int] = []

    def look() -> StreamInfo:
        looks.append(1)
        begun.set()
        assert go.wait(SOON_S)
        return _stream(5)

    growth = PartitionGrowth(_stream(4), look, clock=clock)
    clock.advance(2.0)
    growth.refresh_if_due()
    assert begun.wait(SOON_S)
    clock.advance(2.0)
    growth.refresh_if_due()
    go.set()
    growth.close()

    assert len(looks) == 1
    assert growth.stream.partitions == 5
    clock.advance(2.0)
    growth.refresh_if_due()
    assert len(looks) == 1  # closed


def test_a_stream_that_vanishes_while_it_grows_is_told(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Catalog.get

    def get(catalog: Catalog, stream: str) -> StreamInfo:
        found = known(catalog, stream)
        catalog.delete(stream)
        return found

    monkeypatch.setattr(Catalog, "get", get)
    with pytest.raises(UnknownStream):
        log.grow("orders", partitions=3)


def _stream(partitions: int) -> StreamInfo:
    return StreamInfo(
        name="orders", settings=StreamSettings(partitions=partitions), created_at="today"
    )
