"""Decides when a position is written (C4).

After each batch: immediately, within an interval, or only when the handler asks for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from leasehold.errors import InvalidOptions
from leasehold.names import seconds_of

if TYPE_CHECKING:
    from datetime import timedelta

_LONGEST_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """Made by one of its class methods. A graceful end writes the position, except with ``manual``.

    With ``manual`` only the handler knows what is done, so nothing is written for it, not even at
    the end.
    """

    events: int | None = None
    interval_s: float | None = None
    automatic: bool = True

    @classmethod
    def every(cls, *, events: int | None = None, interval: timedelta | None = None) -> Self:
        """Write after this many events, or this long after the first one that is not written.

        With both, by what comes first. Positions of all partitions that are due within the same
        interval share one call to the store.

        Raises:
            InvalidOptions: neither is given, or not at least 1 event.
            InvalidDuration: the interval is negative or longer than a day.
        """
        if events is None and interval is None:
            raise InvalidOptions("every() needs events or interval: every(events=1000)")
        if events is not None and events < 1:
            raise InvalidOptions(f"events >= 1 does not hold ({events})")
        interval_s = None
        if interval is not None:
            interval_s = seconds_of(
                interval, what="checkpoint interval", min_s=0.0, max_s=_LONGEST_S
            )
        return cls(events=events, interval_s=interval_s)

    @classmethod
    def after_each_batch(cls) -> Self:
        """Write after each batch. During a call to the store the latest position waits."""
        return cls(events=1)

    @classmethod
    def manual(cls) -> Self:
        """Write only when the handler asks for it."""
        return cls(automatic=False)

    def within_s(self, events: int) -> float:
        """Return how long the position may wait after ``events`` that are not written, or inf."""
        if not self.automatic:
            return math.inf
        if self.events is not None and events >= self.events:
            return 0.0
        return math.inf if self.interval_s is None else self.interval_s
