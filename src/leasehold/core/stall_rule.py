"""Whether a partition that does not move is stuck (B6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StallState(Enum):
    """What to do about a partition."""

    FINE = "fine"
    STALLED = "stalled"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallRule:
    """No progress for ``stall_after_s`` while there is work: stalled; after a while: given up.

    ``give_up_after_s`` None: only reported.
    """

    stall_after_s: float
    give_up_after_s: float | None

    def evaluate(self, *, work_waits: bool, still_s: float) -> StallState:
        """What to do about a partition that has stood still for so long."""
        if not work_waits or still_s < self.stall_after_s:
            return StallState.FINE
        if self.give_up_after_s is not None and still_s >= self.give_up_after_s:
            return StallState.GIVE_UP
        return StallState.STALLED

    @property
    def check_interval_s(self) -> float:
        """How often to look, so that a stall is found not much later than it should be."""
        return self.stall_after_s / 4
