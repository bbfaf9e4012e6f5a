"""A stream that was deleted and recreated is another one: what belongs to the old one stops."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from leasehold.errors import PositionLost, UnknownStream, UsageError
from leasehold.events import Event, Start
from leasehold.log import Log, LogSource
from leasehold.log.source import LogRanges
from leasehold.names import partition_key
from leasehold.processor import EventProcessor
from leasehold.stores import open_store

SOON_S = 120
SOON = timedelta(seconds=SOON_S)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Log]:
    with Log.open(f"sqlite:///{tmp_path}/log.db", volumes=[tmp_path / "a"]) as log:
        yield log


@pytest.fixture
def there(tmp_path: Path, here: Log) -> Iterator[Log]:
    """The same log, as another process sees it."""
    with Log.open(here.files.url) as log:
        yield log


def make_anew(log: Log, *, partitions: int = 1, events: int = 0) -> None:
    log.delete("orders")
    log.create("orders", partitions=partitions)
    with log.producer("orders") as producer:
        producer.send([Event(body=b"new")] * events, partition=0).result(SOON_S)


def test_a_producer_does_not_write_into_the_new_stream(here: Log, there: Log) -> None:
    here.create("orders", partitions=3)
    with there.producer("orders") as old:
        old.send(Event(body=b"old"), partition=2).result(SOON_S)
        old.send(Event(body=b"old"), partition=0).result(SOON_S)
        make_anew(here, partitions=1, events=2)
        for partition in (2, 0):
            with pytest.raises(UnknownStream, match="made anew"):
                old.send(Event(body=b"lost"), partition=partition).result(SOON_S)
        with there.producer("orders") as new:
            new.send(Event(body=b"new")).result(SOON_S)
        with pytest.raises(UnknownStream, match="made anew"):
            old.send(Event(body=b"lost"), partition=0).result(SOON_S)
    assert {each.path.split("/")[2] for each in here.files.list("/orders")} == {"0"}
    with here.reader("orders", 0) as reader:
        assert [event.body for batch in reader.batches() for event in batch] == [b"new"] * 3


def test_a_producer_whose_own_process_deletes_the_stream_is_told_so(here: Log) -> None:
    here.create("orders", partitions=2)
    with here.producer("orders") as producer:
        producer.send(Event(body=b"a"), partition=0).result(SOON_S)
        here.delete("orders")
        for partition in (0, 1):
            with pytest.raises(UnknownStream, match="there is no stream 'orders'"):
                producer.send(Event(body=b"b"), partition=partition).result(SOON_S)
        here.create("orders", partitions=2)
        with pytest.raises(UnknownStream, match="made anew"):
            producer.send(Event(body=b"c"), partition=0).result(SOON_S)


@pytest.mark.parametrize("closed", [False, True])
def test_a_reader_does_not_go_on_in_the_new_stream(here: Log, there: Log, *, closed: bool) -> None:
    here.create("orders", partitions=1)
    owner = Log.open(here.files.url) if closed else here
    with owner.producer("orders") as producer:
        producer.send([Event(body=b"old")] * 5).result(SOON_S)
    if closed:
        owner.close()
    with there.reader("orders", 0) as reader:
        assert len(list(reader.batches())) == 1
        make_anew(here, events=8)
        with pytest.raises(UnknownStream, match="made anew"):
            reader.wait(SOON)
        for _ in range(2):
            with pytest.raises(UnknownStream, match="made anew"):
                reader.read()
        with pytest.raises(UnknownStream, match="made anew"):
            reader.seek(Start.earliest())


def test_a_reader_that_found_nothing_does_not_begin_in_the_new_stream(
    here: Log, there: Log
) -> None:
    here.create("orders", partitions=1)
    with there.reader("orders", 0) as reader:
        assert reader.read() is None
        make_anew(here, events=1)
        with pytest.raises(UnknownStream, match="made anew"):
            reader.wait(SOON)


@pytest.mark.anyio
async def test_a_stream_that_was_recreated_has_another_identity(here: Log, there: Log) -> None:
    here.create("orders", partitions=1)
    here.create("orders", partitions=1)  # safe to repeat: it is still the same
    found = []
    for _ in range(2):
        async with LogSource(there, "orders") as source:
            assert await source.stream_identity() == LogRanges(here, "orders").identity
            found.append(await source.stream_identity())
        make_anew(here)
    assert found[0] != found[1]


@pytest.mark.anyio
@pytest.mark.spec("P12")
async def test_a_group_of_the_old_stream_skips_nothing_of_the_new_one(here: Log) -> None:
    here.create("orders", partitions=1)
    with here.producer("orders") as producer:
        producer.send([Event(body=b"old")] * 5, partition=0).result(SOON_S)

    async def worked(*, until: int, reset: bool = False) -> list[int]:
        numbers: list[int] = []
        done, errors = anyio.Event(), list[BaseException]()

        async def on_event(_: object, event: Event) -> None:
            numbers.append(event.sequence_number)
            if len(numbers) == until:
                done.set()

        async def on_error(_: object, error: BaseException) -> None:
            errors.append(error)
            done.set()

        async with open_store(here.files.url) as store, LogSource(here, "orders") as source:
            if reset:
                key = partition_key("orders", "billing", "0")
                assert not await store.reset({key: None})
            async with EventProcessor(
                source, store, "billing", on_event=on_event, on_error=on_error
            ):
                with anyio.fail_after(SOON_S):
                    await done.wait()
        for error in errors:
            raise error
        return numbers

    assert await worked(until=5) == list(range(5))
    make_anew(here, events=9)
    with pytest.raises(PositionLost, match="the stream was deleted and recreated"):
        await worked(until=4)
    assert await worked(until=9, reset=True) == list(range(9))


def test_the_files_of_a_stream_are_only_removed_by_the_log(here: Log) -> None:
    """Neither deleted, nor renamed, nor overwritten, and no other file takes such a name."""
    here.create("or/ders", partitions=1)  # quoted in its directory
    with here.producer("or/ders") as producer:
        producer.send(Event(body=b"x")).result(SOON_S)
    (segment,) = [each.path for each in here.files.list("/")]
    directory = segment.rpartition("/0/")[0]
    with here.files.create("/other"):
        pass
    before = here.files.list("/")
    for refused in (
        lambda: here.files.delete(segment),
        lambda: here.files.delete(directory, recursive=True),
        lambda: here.files.delete("/", recursive=True),
        lambda: here.files.rename(directory, "/moved"),
        lambda: here.files.rename(segment, "/moved"),
        lambda: here.files.rename("/other", f"{directory}/0/{5:020d}.seg"),
        lambda: here.files.create(segment, overwrite=True),
    ):
        with pytest.raises(UsageError, match="only the log removes"):
            refused()
    assert [each.path for each in here.files.list("/")] == [each.path for each in before]
    here.delete("or/ders")
    assert [each.path for each in here.files.list("/")] == ["/other"]
    assert here.files.delete("/", recursive=True) == 1
