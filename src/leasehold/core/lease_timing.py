"""The local deadline of a lease, the settings that keep it safe, and the pause between cycles.

A holder counts from the time at which it *sent* the request, never from the answer, and stops a
margin before the store lets another holder in::

    sent            answer                    trusted until       store: ended
     |---------------|--------------------------------|--- margin ---|
     |<------------------------- duration ------------------------->|

The margin covers a clock that runs slow and the time it takes to stop. The store counts from the
time at which it handles the request, which is later than ``sent``: the error is on the safe side.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from leasehold.errors import InvalidOptions
from leasehold.names import seconds_of

CLOCK_RATE_ERROR = 0.05
MIN_LEASE_S = 0.05
MAX_LEASE_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """The times of a member, in seconds. Make it with ``LeaseTiming.of``, which checks them."""

    lease_s: float = 10.0
    renew_s: float = 3.0
    margin_s: float = 1.0
    call_s: float = 3.0

    @classmethod
    def of(
        cls,
        *,
        lease: timedelta = timedelta(seconds=10),
        renew_interval: timedelta | None = None,
        margin: timedelta | None = None,
        call_timeout: timedelta | None = None,
    ) -> LeaseTiming:
        """Make it from durations; what is not given is derived from the lease.

        Raises:
            InvalidDuration: the lease or a part of it is outside its range.
            InvalidOptions: two of them contradict each other; the message names the relation.
        """
        lease_s = seconds_of(lease, what="lease", min_s=MIN_LEASE_S, max_s=MAX_LEASE_S)

        def part(given: timedelta | None, what: str, share: float) -> float:
            if given is None:
                return lease_s * share
            return seconds_of(given, what=what, min_s=0.001, max_s=MAX_LEASE_S)

        timing = cls(
            lease_s=lease_s,
            renew_s=part(renew_interval, "renew_interval", 0.3),
            margin_s=part(margin, "margin", 0.1),
            call_s=part(call_timeout, "call_timeout", 0.3),
        )
        timing.check()
        return timing

    def check(self) -> None:
        """Check that the times fit together.

        Raises:
            InvalidOptions: names the relation that does not hold, with the numbers.
        """
        shortest_s = min(self.lease_s, self.renew_s, self.call_s)
        _relation(
            shortest_s > 0,
            "lease, renew_interval, call_timeout > 0",
            f"{shortest_s:g} s is not > 0 s",
            "time only goes forward",
        )
        _relation(
            self.renew_s < self.lease_s / 2,
            "renew_interval < lease / 2",
            f"{self.renew_s:g} s is not < {self.lease_s / 2:g} s",
            "one failed renewal would already cost the lease: renew more often",
        )
        _relation(
            self.margin_s >= CLOCK_RATE_ERROR * self.lease_s,
            f"margin >= {CLOCK_RATE_ERROR:.0%} of lease",
            f"{self.margin_s:g} s is less than {CLOCK_RATE_ERROR * self.lease_s:g} s",
            "a clock that runs slow would believe too long: widen the margin",
        )
        # Tolerance for floating-point rounding: 3 + 2 * 3 <= 10 - 1 must pass.
        room_s = self.lease_s - self.margin_s
        _relation(
            self.renew_s + 2 * self.call_s <= room_s * (1 + 1e-9),
            "renew_interval + 2 x call_timeout <= lease - margin",
            f"{self.renew_s + 2 * self.call_s:g} s is more than {room_s:g} s",
            "an answer that is lost must leave time for one more try: shorten renew_interval or "
            "call_timeout (0.3 x lease each, if they are not given)",
        )

    def trusted_until(self, sent_at_s: float) -> float:
        """Return the local deadline after an answer to a request sent at ``sent_at_s``."""
        return sent_at_s + self.lease_s - self.margin_s


def _relation(holds: bool, relation: str, numbers: str, advice: str) -> None:  # noqa: FBT001
    if not holds:
        raise InvalidOptions(f"{relation} does not hold ({numbers}): {advice}")


_CYCLES_WHILE_EXPECTING = 3
_EARLY_CYCLES = 3
_GRACE = 0.02
_MIN_GRACE_S = 0.02


def cycle_pause_s(
    *, interval_s: float, elapsed_s: float, stable: bool, hurries: bool, expecting: bool
) -> float:
    """Return how long to wait after a cycle that took ``elapsed_s`` (P10).

    Not at all if the strategy hurries and has not its share yet, or if the cycle took longer than
    the interval. Less if the host expects keys: those that are handed over are idle until it claims
    them, and stolen ones may be stolen back. Otherwise the rest of the interval, so that the period
    is the interval and not the interval plus the work.
    """
    if hurries and not stable:
        return 0.0
    interval_s = interval_s / _CYCLES_WHILE_EXPECTING if expecting else interval_s
    return max(0.0, interval_s - elapsed_s)


def early_cycle_s(
    *, next_end_s: float, lease_s: float, interval_s: float, chance: float, again: bool
) -> float:
    """Return how long to wait for an early cycle, if something may end in ``next_end_s``.

    A key of a crashed member has no owner until a member renews after the end of its lease. A delay
    of 2 % of the lease, at least 20 ms, makes sure that it has ended by then. ``chance``, from 0 to
    1, adds up to as much again, so that the members do not all renew at the same time.

    Frequent ends, such as those of a member with a much shorter lease, must not make a member spin:
    after one early cycle the next (``again``) is at least a third of the interval away.
    """
    grace_s = max(_MIN_GRACE_S, _GRACE * lease_s) * (1 + chance)
    min_s = interval_s / _EARLY_CYCLES if again else 0.0
    return max(next_end_s + grace_s, grace_s, min_s)
