"""The retry ladder: growing pauses with jitter, bounded in length and in number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses of ``base_s``, doubled at each failure up to ``max_s``, each drawn by lot.

    The draw lies between half the step and the whole, so that hosts that failed together do not
    come back together.
    """

    base_s: float
    max_s: float

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """How long to wait after this many failures in a row (1 or more)."""
        step = min(self.base_s * 2.0 ** min(failures - 1, 32), self.max_s)
        return step * rng.uniform(0.5, 1.0)
