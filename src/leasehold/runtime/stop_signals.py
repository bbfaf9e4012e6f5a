"""What a signal that asks a program to stop means: the first request, the same one, or another."""

from __future__ import annotations

from enum import Enum, auto

SAME_S = 1.0


class StopAsked(Enum):
    """What a stop signal means."""

    FIRST = auto()
    SAME = auto()
    AGAIN = auto()


class StopRequests:
    """Distinguishes a second request from a signal that arrives twice.

    A signal within a second of the first is the same request: `timeout`, and a terminal, signal a
    process and its group. Takes no lock, so that a signal handler may call it.
    """

    def __init__(self) -> None:
        self._first_s: float | None = None

    def heard(self, now_s: float) -> StopAsked:
        """Return what a signal at this time means."""
        if self._first_s is None:
            self._first_s = now_s
            return StopAsked.FIRST
        return StopAsked.SAME if now_s - self._first_s < SAME_S else StopAsked.AGAIN
