"""The service's time, and what this process knows of its own leases.

The service sends its time in whole seconds with each response. So the true time is between two
bounds. What must not happen *before* some time is set by the later bound and found due by the
earlier one: it may come up to two seconds late, and never early.

A blob lease that was granted or renewed runs for its duration from when the request was sent or
later. Until then, less a margin for a slow clock, the service need not be asked whether it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leasehold.core.lease_timing import CLOCK_RATE_ERROR
from leasehold.core.token_digest import token_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.azure.blob_store.http import HttpClient
    from leasehold.clock import Clock

# Dates of HTTP have no fractions.
RESOLUTION_S = 1.0
_OLD_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTime:
    """The time now: not before ``low_s`` and not after ``high_s``."""

    low_s: float
    high_s: float

    @property
    def slack_s(self) -> float:
        """The uncertainty, in seconds."""
        return self.high_s - self.low_s


def service_time_now(http_client: HttpClient, clock: Clock) -> ServiceTime | None:
    """Return the time, counted on from the last response; None if that is too old."""
    latest, now_s = http_client.latest, clock.boottime_s()
    if latest is None or now_s - latest.received_s > _OLD_S:
        return None
    # This host's clock may run fast or slow in the meantime.
    min_s = (now_s - latest.received_s) * (1 - CLOCK_RATE_ERROR)
    max_s = (now_s - latest.sent_s) * (1 + CLOCK_RATE_ERROR)
    low_s, high_s = latest.date_s + min_s, latest.date_s + RESOLUTION_S + max_s
    return ServiceTime(low_s=low_s, high_s=high_s)


def wall(low_s: float) -> datetime:
    """Return the whole second as wall-clock time."""
    return datetime.fromtimestamp(int(low_s), UTC)


_MAX = 10_000


class LeaseProofs:
    """By holder: the token of a lease that runs, and until when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, tuple[str, float]] = {}

    def note(self, holder: str, token: str, *, sent_s: float, duration_s: float) -> None:
        """Record that the service granted or renewed a lease by a request sent at ``sent_s``."""
        if len(self._until) >= _MAX:
            self._until.clear()
        until_s = sent_s + duration_s * (1 - CLOCK_RATE_ERROR)
        self._until[holder] = (token_digest(token), until_s)

    def drop(self, holder: str) -> None:
        """Forget the lease of a holder."""
        self._until.pop(holder, None)

    def of(self, shown: Iterable[tuple[str, str]]) -> set[str]:
        """Of (holder, token) pairs, return the holders whose lease is known to run."""
        now_s, known = self._clock.boottime_s(), set()
        for holder, token in set(shown):
            found = self._until.get(holder)
            if found and found[1] > now_s and found[0] == token_digest(token):
                known.add(holder)
        return known
