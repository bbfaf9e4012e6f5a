"""What this process knows by itself of the leases that it has asked for.

A blob lease that was granted or renewed runs for its duration from a moment after the request was
sent. Until then, less a part for a clock that runs slow, nobody need be asked whether it runs.

What time it is, by the service's clock, as far as anybody can tell.

The service says it in whole seconds with each answer. So the true time lies between two bounds, and
what is to happen *not before* a moment is set by the later one and found due by the earlier one:
it may come up to two seconds late, and never early.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leasehold.azure.blob_store.naming import token_digest
from leasehold.core.lease_timing import CLOCK_RATE_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.azure.blob_store.http import HttpClient
    from leasehold.clock import Clock

# Dates of HTTP have no fractions.
RESOLUTION_S = 1.0
_OLD_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTime:
    """Now: not before ``low_s`` and not after ``high_s``."""

    low_s: float
    high_s: float

    @property
    def slack_s(self) -> float:
        """How much is not known."""
        return self.high_s - self.low_s


def moment(wire: HttpClient, clock: Clock) -> ServiceTime | None:
    """Now, counted on from the last answer; None if that is too long ago."""
    latest, now_s = wire.latest, clock.boottime_s()
    if latest is None or now_s - latest.received_s > _OLD_S:
        return None
    # Our clock may run fast or slow while we count on.
    min_s = (now_s - latest.received_s) * (1 - CLOCK_RATE_ERROR)
    max_s = (now_s - latest.sent_s) * (1 + CLOCK_RATE_ERROR)
    low_s, high_s = latest.date_s + min_s, latest.date_s + RESOLUTION_S + max_s
    return ServiceTime(low_s=low_s, high_s=high_s)


def wall(low_s: float) -> datetime:
    """The whole second, for people."""
    return datetime.fromtimestamp(int(low_s), UTC)


_MAX = 10_000


class LeaseProofs:
    """By holder: under which token, and until when."""

    def __init__(self, clock: Clock) -> None:
        """Know nothing."""
        self._clock = clock
        self._until: dict[str, tuple[str, float]] = {}

    def note(self, holder: str, token: str, *, sent_s: float, duration_s: float) -> None:
        """The service has said yes to a request that was sent at that moment."""
        if len(self._until) >= _MAX:
            self._until.clear()
        until_s = sent_s + duration_s * (1 - CLOCK_RATE_ERROR)
        self._until[holder] = (token_digest(token), until_s)

    def drop(self, holder: str) -> None:
        """Know nothing of it any more."""
        self._until.pop(holder, None)

    def of(self, shown: Iterable[tuple[str, str]]) -> set[str]:
        """Of (holder, token) the holders whose lease is known to run."""
        now_s, known = self._clock.boottime_s(), set()
        for holder, token in set(shown):
            found = self._until.get(holder)
            if found and found[1] > now_s and found[0] == token_digest(token):
                known.add(holder)
        return known
