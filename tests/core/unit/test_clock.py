"""The machine's clock: who waits for an answer waits for a limited time, and only that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest

from leasehold.clock import SystemClock

pytestmark = pytest.mark.anyio

Late = Callable[[], Awaitable[None]]


async def hang() -> None:
    await asyncio.Event().wait()


async def end_in_spite_of_it() -> None:
    with suppress(asyncio.CancelledError):
        await hang()


async def both() -> None:
    """The last task ends by itself: ``gather`` raises a cancellation that nobody knows."""
    await asyncio.gather(hang(), end_in_spite_of_it(), return_exceptions=True)


async def test_an_answer_in_time_is_given() -> None:
    async def answer() -> int:
        return 7

    assert await SystemClock().bounded(answer(), seconds=5) == 7


@pytest.mark.parametrize("late", [hang, both])
async def test_an_answer_that_does_not_come_is_no_end_of_the_one_who_waits(late: Late) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await SystemClock().bounded(late(), seconds=0.01)


@pytest.mark.parametrize("late", [hang, both])
async def test_a_limit_within_a_limit_is_told_apart(late: Late) -> None:
    clock = SystemClock()

    async def inner() -> str:
        try:
            await clock.bounded(late(), seconds=0.01)
        except TimeoutError:
            return "the inner one"
        raise AssertionError

    assert await clock.bounded(inner(), seconds=5) == "the inner one"

    async def longer() -> None:
        await clock.bounded(late(), seconds=5)

    with pytest.raises(TimeoutError):
        await clock.bounded(longer(), seconds=0.01)


@pytest.mark.parametrize("late", [hang, both])
async def test_who_is_cancelled_while_he_waits_is_cancelled(late: Late) -> None:
    begun = asyncio.Event()

    async def waiting() -> None:
        begun.set()
        await SystemClock().bounded(late(), seconds=5)

    task = asyncio.create_task(waiting())
    await begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    with anyio.move_on_after(0.01) as scope:
        await SystemClock().bounded(late(), seconds=5)
    assert scope.cancel_called
