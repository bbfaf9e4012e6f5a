"""What time it is, by the service's clock, as far as anybody can tell.

The service says it in whole seconds with each answer. So the true time lies between two bounds, and
what is to happen *not before* a moment is set by the later one and found due by the earlier one:
it may come up to two seconds late, and never early.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leasehold.core.lease_timing import CLOCK_RATE_ERROR

if TYPE_CHECKING:
    from leasehold.clock import Clock
    from leasehold.stores.azure_blob.wire import Wire

# Dates of HTTP have no fractions.
RESOLUTION_S = 1.0
_OLD_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Now: not before ``low_s`` and not after ``high_s``."""

    low_s: float
    high_s: float

    @property
    def slack_s(self) -> float:
        """How much is not known."""
        return self.high_s - self.low_s


def moment(wire: Wire, clock: Clock) -> Moment | None:
    """Now, counted on from the last answer; None if that is too long ago."""
    latest, now_s = wire.latest, clock.boottime_s()
    if latest is None or now_s - latest.received_s > _OLD_S:
        return None
    # Our clock may run fast or slow while we count on.
    least_s = (now_s - latest.received_s) * (1 - CLOCK_RATE_ERROR)
    most_s = (now_s - latest.sent_s) * (1 + CLOCK_RATE_ERROR)
    low_s, high_s = latest.date_s + least_s, latest.date_s + RESOLUTION_S + most_s
    return Moment(low_s=low_s, high_s=high_s)


def wall(low_s: float) -> datetime:
    """The whole second, for people."""
    return datetime.fromtimestamp(int(low_s), UTC)
