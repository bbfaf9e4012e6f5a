"""Decides whether a partition without progress is stalled, and when to reopen it (B6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from leasehold.core.backoff import Backoff

_MAX_REOPEN_STEPS = 8


class StallState(Enum):
    """The state of a partition."""

    FINE = "fine"
    STALLED = "stalled"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallRule:
    """Stalled: no progress for ``stall_after_s`` while there is work.

    Given up after ``give_up_after_s``; None: only reported.
    """

    stall_after_s: float
    give_up_after_s: float | None

    def evaluate(self, *, work_waits: bool, still_s: float) -> StallState:
        """Return the state of a partition that made no progress for ``still_s``."""
        if not work_waits or still_s < self.stall_after_s:
            return StallState.FINE
        if self.give_up_after_s is not None and still_s >= self.give_up_after_s:
            return StallState.GIVE_UP
        return StallState.STALLED

    @property
    def reopen_backoff(self) -> Backoff:
        """The pauses between two attempts to reopen the receiver of a stalled partition."""
        max_s = _MAX_REOPEN_STEPS * self.stall_after_s
        return Backoff(base_s=self.stall_after_s, max_s=max_s)

    @property
    def check_interval_s(self) -> float:
        """How often to check, so that a stall is found soon enough."""
        return self.stall_after_s / 4
