"""Dead letters in a real stream: the ones that hardly fit, and the ones that can not be stored."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.processors import QUICK_RETRIES, SECOND, HostGroup, host_group, options

from leasehold.core.backoff import Backoff
from leasehold.errors import UsageError
from leasehold.events import Event
from leasehold.events.dead_letters import MAX_REASON_BYTES, MAX_TRACEBACK_BYTES
from leasehold.log import Log, LogDeadLetters, LogOptions, Producer
from leasehold.log.producer import Sent
from leasehold.processor import PartitionState, ProcessorOptions
from leasehold.processor.events import HandlerFailed, Poisoned, PumpRestarted
from leasehold.spark import PoisonPolicy

pytestmark = pytest.mark.anyio

SEGMENT_BYTES = 16 << 10
BURY = PoisonPolicy.dead_letter(retries=0, pauses=QUICK_RETRIES)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyError("no such field")


class Picky:
    """Can not take one event."""

    def __init__(self, s: HostGroup, error: Exception) -> None:
        self.seen = s.seen
        self.error = error
        self.tried = 0

    async def __call__(self, context: Any, event: Event) -> None:
        if event.sequence_number == 1:
            self.tried += 1
            raise self.error
        self.seen.note(context, event)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(
        f"sqlite:///{tmp_path}/log.db",
        volumes=[tmp_path / "a"],
        options=LogOptions(run_monitor=False),
    ) as opened:
        opened.create("dead", partitions=1, segment_bytes=SEGMENT_BYTES)
        yield opened


def burying(log: Log, **more: Any) -> ProcessorOptions:
    return options(poison=BURY, dead_letters=LogDeadLetters(log, "dead"), **more)


def letters(log: Log) -> list[Event]:
    with log.reader("dead", 0) as reader:
        return [event for batch in reader.batches() for event in batch]


@pytest.mark.spec("B6")
async def test_an_error_with_a_huge_message_is_cut_and_the_event_is_put_aside(log: Log) -> None:
    async with host_group(events=3) as s:
        picky = Picky(s, ValueError("m" * (4 << 20)))
        await s.host(on_event=picky, setting=burying(log))
        await s.seen.count(2)
        assert s.seen.numbers() == [0, 2]
        assert picky.tried == 1
    (letter,) = letters(log)
    assert letter.body == b"0-1"
    assert letter.properties["leasehold-reason"].startswith("ValueError: mmm")
    assert len(letter.properties["leasehold-reason"].encode()) <= MAX_REASON_BYTES
    assert len(letter.properties["leasehold-traceback"].encode()) <= MAX_TRACEBACK_BYTES


@pytest.mark.spec("B6")
async def test_an_error_that_can_not_be_put_into_words_is_no_hindrance(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What pytest does to keep log records raises what the error raises; logging itself does not.
    monkeypatch.setattr(logging.getLogger("leasehold.processor"), "disabled", True)
    async with host_group(events=3) as s:
        picky = Picky(s, Unspeakable())
        await s.host(on_event=picky, setting=burying(log))
        await s.seen.count(2)
        assert s.seen.numbers() == [0, 2]
        assert picky.tried == 1
        assert s.watch.of(PumpRestarted) == []
    (letter,) = letters(log)
    assert letter.properties["leasehold-reason"].startswith("Unspeakable: ")
    assert "KeyError" in letter.properties["leasehold-reason"]
    assert "in __call__" in letter.properties["leasehold-traceback"]


@pytest.mark.spec("B6")
async def test_a_big_event_is_stored_whole_with_less_of_what_happened(log: Log) -> None:
    body = b"x" * (12 << 10)
    async with host_group() as s:
        s.source.append("0", b"a", body, b"b")
        await s.host(on_event=Picky(s, ValueError("m" * (9 << 10))), setting=burying(log))
        await s.seen.count(2)
        assert s.seen.numbers() == [0, 2]
    (letter,) = letters(log)
    assert letter.body == body
    assert letter.properties.keys() == {
        "leasehold-reason",
        "leasehold-partition",
        "leasehold-sequence-number",
    }
    assert letter.properties["leasehold-reason"].startswith("ValueError: mmm")
    assert letter.properties["leasehold-sequence-number"] == "1"


@pytest.mark.spec("B6")
async def test_an_event_that_can_never_be_put_aside_stops_its_partition_and_is_reported(
    log: Log,
) -> None:
    async with host_group() as s:
        s.source.append("0", b"a", b"x" * (SEGMENT_BYTES + 1), b"b")
        picky = Picky(s, ValueError("bad"))
        async with s.make(on_event=picky, setting=burying(log)) as host:
            reported = await s.watch.sees(Poisoned)
            assert (reported.action, reported.sequence_number) == ("stop", 1)
            await s.watch.until(lambda: host.status()[0].state is PartitionState.STOPPED)
            assert len(host.held()) == 1
        assert picky.tried == 1
        assert s.seen.numbers() == [0]
        ours, trouble = (error for _, error in s.errors.received)
        assert ours is picky.error
        assert isinstance(trouble, UsageError)
        assert "event 1 of partition 0 of 'orders'" in str(trouble)
        assert "bigger segments" in str(trouble)
        assert await s.checkpoints() == {"0": 0}
    assert letters(log) == []


@pytest.mark.spec("C5")
async def test_a_stop_does_not_wait_for_a_dead_letter_that_is_not_stored_in_time(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, held = asyncio.Event(), threading.Event()
    loop, send = asyncio.get_running_loop(), Producer.send

    def late(self: Producer, what: Any) -> Sent:
        loop.call_soon_threadsafe(begun.set)
        assert held.wait(120)
        return send(self, what)

    monkeypatch.setattr(Producer, "send", late)
    try:
        async with host_group(events=3) as s:
            host = s.make(
                on_event=Picky(s, ValueError("bad")),
                setting=burying(log, drain_timeout=SECOND / 10),
            )
            await host.start()
            await begun.wait()
            async with asyncio.timeout(120):
                await host.stop()
            assert host.held() == []
    finally:
        held.set()


@pytest.mark.spec("B6")
async def test_a_fault_on_the_way_does_not_bring_back_what_was_handled_before_it() -> None:
    class Broken(Backoff):
        faults = 0

        def pause_s(self, failures: int, rng: random.Random) -> float:
            Broken.faults += 1
            if Broken.faults == 1:
                raise RuntimeError("a fault in the processor")
            return super().pause_s(failures, rng)

    async with host_group(events=4) as s:
        failed = False

        async def on_event(context: Any, event: Event) -> None:
            nonlocal failed
            if event.sequence_number == 2 and not failed:
                failed = True
                raise ValueError("once")
            s.seen.note(context, event)

        poison = PoisonPolicy.retry(pauses=Broken(base_s=0.001, max_s=0.001))
        await s.host(on_event=on_event, setting=options(poison=poison))
        await s.watch.sees(PumpRestarted)
        await s.seen.count(4)
        assert s.seen.numbers() == [0, 1, 2, 3]
        assert len(s.watch.of(HandlerFailed)) == 1
