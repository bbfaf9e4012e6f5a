"""An asyncio loop whose time jumps: nothing waits, and everything happens in the same order."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class _NoInput(selectors.SelectSelector):
    """Moves the clock instead of waiting for input: in a simulation there is none."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let ``timeout`` seconds pass, in no time."""
        if timeout is None:
            raise RuntimeError("the simulation stands still: every task waits for another")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on simulated seconds, from 0."""

    def __init__(self) -> None:
        self._input = _NoInput()
        super().__init__(self._input)

    def time(self) -> float:
        """Return the simulated seconds."""
        return self._input.now_s


async def simulated_sleep(seconds: float) -> None:
    """Wait in simulated time; in a loop of another kind this would really wait."""
    await asyncio.sleep(seconds)


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on its own loop, in no time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
