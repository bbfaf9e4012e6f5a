"""The wall clock of a worker, corrected by that of the store.

The progress of a schedule never moves backwards. A node whose clock is far ahead could write
occurrences as done that are in the future for all others, and no node would run them. The start of
a reservation, as the store records it, shows how wrong the clock of this node is.
"""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.clock import Clock

log = logging.getLogger("leasehold.jobs")

_VALID_S = 120.0
_WARN_ABOVE_S = 1.0
_WARN_EVERY_S = 600.0


class SkewClock:
    """The time for schedules: the wall clock, but never much later than the store's clock."""

    def __init__(self, clock: Clock, *, max_early_s: float) -> None:
        self._clock = clock
        self._max_early_s = max_early_s
        self._ahead_s = self._behind_s = 0.0
        self._drift_s = 0.0
        self._compared_s = -math.inf
        self._warned_s = -math.inf

    def now(self) -> datetime:
        """Return the wall clock, or the store's plus ``max_early_s`` if that is less.

        A change of the wall clock is detected; a comparison counts for two minutes.
        """
        excess_s = self._ahead() - self._max_early_s
        return self._clock.utc_now() - timedelta(seconds=max(0.0, excess_s))

    def latest(self) -> datetime:
        """Return ``now``, or the store's clock if that is later: nothing is new before it."""
        behind_s = 0.0 if self.outdated else self._behind_s - self._drift() + self._drift_s
        return self.now() + timedelta(seconds=max(0.0, behind_s))

    @property
    def outdated(self) -> bool:
        """Whether the clocks should be compared again."""
        return self._clock.boottime_s() - self._compared_s >= _VALID_S

    def compare(self, at: datetime, *, sent: datetime, sent_s: float, answered_s: float) -> None:
        """Compare the clocks: the store acted at ``at``, between the request and the answer.

        ``sent`` and ``sent_s`` are the wall clock and the clock since boot at the request. The wall
        clock may be set before the answer comes, so the answer is given by the clock since boot.
        """
        ahead_s = (sent - at).total_seconds()
        behind_s = -ahead_s - (answered_s - sent_s)
        self._ahead_s, self._behind_s = max(0.0, ahead_s), max(0.0, behind_s)
        self._drift_s = sent.timestamp() - sent_s
        self._compared_s = self._clock.boottime_s()
        error_s = max(ahead_s, behind_s)
        if error_s > _WARN_ABOVE_S and self._compared_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = self._compared_s
            log.warning(
                "the clock of this machine is %.1f s %s that of the store: set one of them right; "
                "no occurrence is begun more than %.3g s before its time in the store",
                error_s,
                "ahead of" if ahead_s > 0 else "behind",
                self._max_early_s,
            )

    def _ahead(self) -> float:
        return 0.0 if self.outdated else self._ahead_s + self._drift() - self._drift_s

    def _drift(self) -> float:
        return self._clock.utc_now().timestamp() - self._clock.boottime_s()
