"""A partition as the host that works on it sees it."""

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
