"""``Backoff``: growing pauses between retries, with jitter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses of ``base_s``, doubled at each failure up to ``max_s``, with jitter.

    Each pause is between half the step and the whole, so that hosts that failed at the same time do
    not retry at the same time.
    """

    base_s: float
    max_s: float

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """Return how long to wait after this many failures in a row (1 or more)."""
        step = min(self.base_s * 2.0 ** min(failures - 1, 32), self.max_s)
        return step * rng.uniform(0.5, 1.0)
