"""What a signal that asks a program to stop means: the first request, the same one, or another."""

from __future__ import annotations

from enum import Enum, auto

SAME_S = 1.0


class StopAsked(Enum):
    """What was heard."""

    FIRST = auto()
    SAME = auto()
    AGAIN = auto()


class StopRequests:
    """Tells a second request from one that is heard twice.

    One that comes within a second of the first is the same: `timeout`, and a terminal, signal a
    process and its group. Takes no lock, so that the handler of a signal may ask.
    """

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self._first_s: float | None = None

    def heard(self, now_s: float) -> StopAsked:
        """What a signal at this time means."""
        if self._first_s is None:
            self._first_s = now_s
            return StopAsked.FIRST
        return StopAsked.SAME if now_s - self._first_s < SAME_S else StopAsked.AGAIN
