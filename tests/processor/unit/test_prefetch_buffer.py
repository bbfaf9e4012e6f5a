"""What waits for its handler: bounded, in order, and gone when it is closed."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.events import EventBatch
from leasehold.processor.pump import PrefetchBuffer
from leasehold.testing.source import MemorySource

pytestmark = pytest.mark.anyio


def batch(start: int, stop: int) -> EventBatch:
    source = MemorySource()
    source.append("0", *[b"x" * 10] * stop)
    return source.batch("0", start, stop)


async def blocked(prefetch_buffer: PrefetchBuffer) -> asyncio.Task[None]:
    """A task that waits for room, and had the chance to find it."""
    waiting = asyncio.create_task(prefetch_buffer.room())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def test_batches_come_out_in_order_and_are_counted() -> None:
    prefetch_buffer = PrefetchBuffer(max_events=100, max_bytes=1 << 20)
    prefetch_buffer.put(batch(0, 3))
    prefetch_buffer.put(batch(3, 5))
    assert len(prefetch_buffer) == 5
    assert prefetch_buffer._bytes > 0
    first, second = await prefetch_buffer.get(), await prefetch_buffer.get()
    assert first is not None
    assert second is not None
    assert (first.first_sequence, second.first_sequence) == (0, 3)
    assert (len(prefetch_buffer), prefetch_buffer._bytes) == (0, 0)


@pytest.mark.spec("P12")
async def test_there_is_no_room_from_the_limit_of_events_on_until_one_is_taken() -> None:
    prefetch_buffer = PrefetchBuffer(max_events=3, max_bytes=1 << 20)
    await prefetch_buffer.room()
    prefetch_buffer.put(batch(0, 3))
    waiting = await blocked(prefetch_buffer)
    await prefetch_buffer.get()
    await waiting


async def test_there_is_no_room_from_the_limit_of_bytes_on_until_one_is_taken() -> None:
    prefetch_buffer = PrefetchBuffer(max_events=1000, max_bytes=1)
    prefetch_buffer.put(batch(0, 1))
    waiting = await blocked(prefetch_buffer)
    await prefetch_buffer.get()
    await waiting


async def test_whoever_waits_for_events_gets_those_that_come() -> None:
    prefetch_buffer = PrefetchBuffer(max_events=10, max_bytes=1 << 20)
    waiting = asyncio.create_task(prefetch_buffer.get())
    await asyncio.sleep(0)
    prefetch_buffer.put(batch(0, 1))
    got = await waiting
    assert got is not None
    assert len(got) == 1


async def test_after_close_nothing_is_handed_out_and_what_waited_is_forgotten() -> None:
    prefetch_buffer = PrefetchBuffer(max_events=10, max_bytes=1 << 20)
    prefetch_buffer.put(batch(0, 2))
    prefetch_buffer.close()
    assert await prefetch_buffer.get() is None
    assert len(prefetch_buffer) == 0


async def test_close_ends_the_wait_for_events_and_for_room() -> None:
    prefetch_buffer = PrefetchBuffer(max_events=1, max_bytes=1 << 20)
    getting = asyncio.create_task(prefetch_buffer.get())
    await asyncio.sleep(0)
    prefetch_buffer.close()
    assert await getting is None
    await prefetch_buffer.room()


async def test_small_batches_that_wait_are_handed_out_together_and_large_ones_as_they_are() -> None:
    prefetch_buffer = PrefetchBuffer(max_events=1_000_000, max_bytes=1 << 30, batch_events=10)
    for number in range(12):
        prefetch_buffer.put(batch(number, number + 1))
    first, second = await prefetch_buffer.get(), await prefetch_buffer.get()
    assert first is not None
    assert second is not None
    assert [event.sequence_number for event in first] == list(range(10))
    assert [event.sequence_number for event in second] == [10, 11]
    assert (len(prefetch_buffer), prefetch_buffer._bytes) == (0, 0)
    large = batch(12, 9_012)
    prefetch_buffer = PrefetchBuffer(max_events=1_000_000, max_bytes=1 << 30, batch_events=100_000)
    prefetch_buffer.put(large)
    prefetch_buffer.put(batch(9_012, 9_013))
    assert await prefetch_buffer.get() is large
