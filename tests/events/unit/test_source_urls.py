"""Sources by name, and dead letters in a stream."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold.errors import BeyondEnd, InvalidUrl, PositionLost, UnknownStream, UsageError
from leasehold.events import DeadLetter, DeadLetters, Event, Start, open_source
from leasehold.events.dead_letters import MAX_TRACEBACK_BYTES
from leasehold.log import Log, LogDeadLetters, LogOptions, LogSource
from leasehold.processor import OnTrimmed
from leasehold.processor.pump import open_receiver

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def our_threads() -> list[str]:
    names = (each.name for each in threading.enumerate())
    return sorted(name for name in names if name.startswith("leasehold-"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log.db"


@pytest.fixture
def log(url: str, tmp_path: Path) -> Iterator[Log]:
    with Log.open(url, volumes=[tmp_path / "a"], options=LogOptions(run_monitor=False)) as opened:
        for stream in ("orders", "log:orders", "dead"):
            opened.create(stream, partitions=2)
        yield opened


@pytest.mark.parametrize(
    ("text", "stream"),
    [("orders", "orders"), ("log:orders", "orders"), ("log:log:orders", "log:orders")],
)
def test_a_source_is_opened_by_its_name_and_takes_its_log_along(
    log: Log, url: str, text: str, stream: str
) -> None:
    async def run() -> None:
        source = open_source(text, store_url=url, name="cli")
        assert source.name == stream
        assert await source.partitions() == ("0", "1")
        await source.close()

    before = our_threads()
    asyncio.run(run())
    assert our_threads() == before


def test_a_source_that_is_not_there_is_told(log: Log, url: str) -> None:
    before = our_threads()
    with pytest.raises(UnknownStream, match=r"'nothing'.*'orders'"):
        open_source("nothing", store_url=url, name="cli")
    for text in ("", "log:"):
        with pytest.raises(UsageError, match="names no stream"):
            open_source(text, store_url=url, name="cli")
    with pytest.raises(UsageError, match="eventhub:// is no kind of source"):
        open_source("eventhub:///orders", store_url=url, name="cli")
    with pytest.raises(InvalidUrl):
        open_source("orders", store_url="memory://", name="cli")
    assert our_threads() == before


def test_dead_letters_are_stored_with_their_event(log: Log) -> None:
    letters = [
        DeadLetter(
            event=Event(
                key=None if number == 1 else "ann",
                body=f"body {number}".encode(),
                properties={"a": str(number)},
                sequence_number=number,
            ),
            stream="orders",
            group="billing",
            partition="1",
            epoch=3,
            attempts=number,
            reason="ValueError: no price \udcff",
            traceback="x" * 2 * MAX_TRACEBACK_BYTES,
            failed_at=AT,
        )
        for number in range(3)
    ]

    async def run() -> None:
        dead: DeadLetters = LogDeadLetters(log, "dead")
        await dead.send(letters)
        await dead.send([])
        await dead.close()
        with pytest.raises(UsageError, match="closed"):
            await dead.send(letters)

    asyncio.run(run())

    found: dict[str, Event] = {}
    for number in range(2):
        with log.reader("dead", number) as reader:
            events = (event for batch in reader.batches() for event in batch)
            found |= {event.properties["a"]: event for event in events}
    assert {name: (event.key, event.body) for name, event in found.items()} == {
        "0": ("ann", b"body 0"),
        "1": (None, b"body 1"),
        "2": ("ann", b"body 2"),
    }
    assert found["2"].properties["leasehold-sequence-number"] == "2"
    assert found["2"].properties["leasehold-attempts"] == "2"
    assert found["2"].properties["leasehold-failed-at"] == AT.isoformat()


def test_dead_letters_without_a_stream_are_refused_at_once(log: Log) -> None:
    with pytest.raises(UnknownStream, match="'nothing'"):
        LogDeadLetters(log, "nothing")


async def opened(source: LogSource, *, start: Start) -> None:
    handle: Any = SimpleNamespace(partition="0", ownership=SimpleNamespace(epoch=1, holder="a"))
    await open_receiver(source, handle, group="g", start=start, on_trimmed=OnTrimmed.FAIL)


def test_a_position_beyond_the_end_is_lost_and_says_where_the_end_is(log: Log) -> None:
    async def run() -> None:
        async with LogSource(log, "orders") as source:
            with pytest.raises(PositionLost, match=r"made anew.*checkpoints reset") as caught:
                await opened(source, start=Start.sequence(3))
            cause = caught.value.__cause__
            assert isinstance(cause, BeyondEnd)
            assert cause.end == 2

    log.producer("orders").send([Event(body=b"a"), Event(body=b"b")], partition=0).result()
    asyncio.run(run())


def test_a_source_that_was_closed_gives_no_advice_to_move_checkpoints(log: Log) -> None:
    async def run() -> None:
        source = LogSource(log, "orders")
        await source.close()
        with pytest.raises(UsageError, match="closed") as caught:
            await opened(source, start=Start.sequence(0))
        assert not isinstance(caught.value, BeyondEnd)
        assert "checkpoints reset" not in str(caught.value)

    asyncio.run(run())


def test_of_many_letters_only_the_one_that_is_too_big_is_shortened(log: Log) -> None:
    log.create("small", partitions=1, segment_bytes=16 << 10)
    bodies = [b"a", b"x" * (12 << 10), b"b"]
    letters = [
        DeadLetter(
            event=Event(body=body, sequence_number=number),
            stream="orders",
            group="billing",
            partition="1",
            epoch=3,
            attempts=1,
            reason="ValueError: no price",
            traceback="x" * MAX_TRACEBACK_BYTES,
            failed_at=AT,
        )
        for number, body in enumerate(bodies)
    ]
    asyncio.run(LogDeadLetters(log, "small").send(letters))
    with log.reader("small", 0) as reader:
        found = [event for batch in reader.batches() for event in batch]
    assert [event.body for event in found] == bodies
    assert ["leasehold-traceback" in event.properties for event in found] == [True, False, True]
