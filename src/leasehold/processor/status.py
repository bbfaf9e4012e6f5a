"""A partition as the host that works on it sees it, and as its watchdog does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PumpState(Enum):
    """What a pump is at."""

    OPENING = "opening"
    WAITING = "waiting"
    HANDLING = "handling"
    RETRYING = "retrying"
    STOPPED = "stopped"
    DRAINING = "draining"
    STUCK = "stuck"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """A partition as this host sees it. ``checkpoint``: the last position known to be stored."""

    partition: str
    epoch: int
    state: PumpState
    next: int | None
    checkpoint: int | None
    waiting_events: int
    still_s: float


@dataclass(slots=True)
class Vigil:
    """What the watchdog knows of a partition since it last made progress.

    ``given_up``: another host was looked for. ``kept``: there was none; ``kept_told``: and that was
    said. ``late``: a handler is over its limit. ``lag_events``: how many events are known to be
    there that were not received.
    """

    reported: bool = False
    given_up: bool = False
    kept: bool = False
    kept_told: bool = False
    late: bool = False
    lag_events: int = 0
    behind_since_s: float | None = None

    def behind_s(self, now_s: float) -> float:
        """How long it is known that there are events which are not received."""
        if not self.lag_events:
            self.behind_since_s = None
            return 0.0
        if self.behind_since_s is None:
            self.behind_since_s = now_s
        return now_s - self.behind_since_s
