"""A clock that moves only when a test advances it."""

from __future__ import annotations

import math
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
_START_BOOTTIME_S = 1000.0


class ManualClock:
    """A ``Clock`` whose time passes only in ``advance``: no test waits, and edges are exact.

    Both of its times move together: ``utc_now`` is ``start`` plus all that has passed.
    """

    def __init__(self, *, start: datetime = START) -> None:
        self._start = start
        self._passed_s = 0.0
        self._alarms: list[tuple[float, Callable[[], None]]] = []

    @property
    def slice_s(self) -> float:
        """Infinite: timers here never run ahead of the clock."""
        return math.inf

    def boottime_s(self) -> float:
        """Return the seconds that have passed, plus a constant."""
        return _START_BOOTTIME_S + self._passed_s

    def utc_now(self) -> datetime:
        """Return ``start`` plus the time that has passed."""
        return self._start + timedelta(seconds=self._passed_s)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass, and wake every waiter that is due."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds:g} s")
        self._passed_s += seconds
        for due_s, wake in list(self._alarms):
            if due_s <= self._passed_s:
                wake()

    async def sleep(self, seconds: float) -> None:
        """Return when ``advance`` has let ``seconds`` pass."""
        over = anyio.Event()
        with self._alarm(seconds, over.set):
            await over.wait()

    async def bounded(self, answer: Awaitable[T], *, seconds: float) -> T:
        """Cancel ``answer`` when ``advance`` has let ``seconds`` pass.

        Raises:
            TimeoutError: it did not come by then.
        """
        with anyio.CancelScope() as scope, self._alarm(seconds, scope.cancel):
            return await answer
        raise TimeoutError(f"no answer within {seconds:g} s by the manual clock")

    @contextmanager
    def _alarm(self, seconds: float, wake: Callable[[], None]) -> Iterator[None]:
        alarm = (self._passed_s + seconds, wake)
        if seconds <= 0:
            wake()
        self._alarms.append(alarm)
        try:
            yield
        finally:
            self._alarms.remove(alarm)
