"""How a call waits for a lock that somebody else holds.

SQLite's own busy handler pauses longer and longer, up to 100 ms. Under load that turns fairness
upside down: who has waited longest asks most seldom, newcomers get in before it, and some writers
starve for seconds. Here the longest pause *shrinks* the longer a call has waited, so that the one
that has waited longest asks most often. Each pause is drawn by lot, so that callers do not march
in step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Callable

# Measured with 2 to 24 processes that renew without a pause, on two cores: with a smaller least
# pause the asking itself takes the processor away from the one that holds the lock.
_FIRST_S = 0.020
_LEAST_S = 0.002
# After this time the longest pause is half of the first one, after twice that a third, ...
_SHRINK_S = 0.050


def longest_pause_s(waited_s: float) -> float:
    """The upper limit of the next pause of a call that has waited for so long."""
    return max(_LEAST_S, _FIRST_S / (1 + waited_s / _SHRINK_S))


class Patience:
    """The waiting of one call, ``limit_s`` in total at most."""

    def __init__(
        self, limit_s: float, *, rng: random.Random, stopwatch: Callable[[], float]
    ) -> None:
        """Begin to wait now."""
        self._limit_s = limit_s
        self._rng = rng
        self._stopwatch = stopwatch
        self._since = stopwatch()

    @property
    def left_s(self) -> float:
        """What remains of the limit."""
        return max(0.0, self._limit_s - (self._stopwatch() - self._since))

    def pause(self, given_up: threading.Event) -> bool:
        """Wait a little; False, at once, if the time is over or nobody wants the answer now."""
        left_s = self.left_s
        if not left_s:
            return False
        longest_s = longest_pause_s(self._limit_s - left_s)
        return not given_up.wait(min(left_s, self._rng.uniform(0.0, longest_s)))
