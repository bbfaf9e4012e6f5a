"""When each job is to be looked at next, by the wall clock. One moment for each."""

from __future__ import annotations

import heapq
import math


class Agenda:
    """Jobs by number, each with the moment (in seconds since 1970) of its next look."""

    def __init__(self) -> None:
        """Nothing is planned."""
        self._at: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def put(self, number: int, at_s: float) -> None:
        """Look at this one then, and not when it was planned before."""
        self._at[number] = at_s
        heapq.heappush(self._heap, (at_s, number))

    def hasten(self, number: int, at_s: float) -> None:
        """Look at this one then at the latest."""
        if at_s < self._at.get(number, math.inf):
            self.put(number, at_s)

    def due(self, now_s: float) -> list[int]:
        """Those whose moment has come, earliest first; nothing is planned for them any more."""
        found = []
        while self._heap and self._heap[0][0] <= now_s:
            at_s, number = heapq.heappop(self._heap)
            if self._at.get(number) == at_s:
                del self._at[number]
                found.append(number)
        return found

    def next_s(self) -> float:
        """The first moment that is planned; infinite if there is none."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf
