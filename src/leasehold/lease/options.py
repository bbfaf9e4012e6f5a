"""``MemberOptions``: the settings of a member."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from datetime import timedelta

from leasehold.core.balance import Strategy
from leasehold.core.lease_timing import MAX_LEASE_S, LeaseTiming
from leasehold.errors import InvalidName, InvalidOptions
from leasehold.lease.group_state import MAX_KEY_LIMIT, MAX_WEIGHT, is_integer, is_number
from leasehold.names import check_group, check_name, seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """How a member behaves; checked when it is made.

    ``weight`` scales its share of the keys, ``most`` limits it. ``hand_over_timeout`` is how long a
    key is reserved for the member it was handed to (three leases by default). ``drain_timeout`` is
    how long the work on a key may take to stop gracefully before it is stopped forcibly.

    Raises:
        InvalidName, InvalidDuration, InvalidOptions: with what is wrong and what to write.
    """

    group: str
    name: str = "member"
    strategy: Strategy = Strategy.EVEN
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    weight: float = 1.0
    most: int | None = None
    hand_over_timeout: timedelta | None = None
    drain_timeout: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        """Check the values."""
        if not isinstance(self.strategy, Strategy):
            object.__setattr__(self, "strategy", _strategy(self.strategy))
        group: object = self.group
        if not isinstance(group, str):
            raise InvalidName(f"group must be text, not {group!r}: write {str(group)!r}")
        check_group(group)
        check_name(self.name, what="member name")
        check_timing(self.timing)
        check_share(weight=self.weight, most=self.most)
        if self.kept_s < 2 * self.timing.renew_s:
            raise InvalidOptions(
                "hand_over_timeout >= 2 x renew_interval does not hold "
                f"({self.kept_s:g} s is less than "
                f"{2 * self.timing.renew_s:g} s): the receiver looks only once per renewal"
            )
        seconds_of(self.drain_timeout, what="drain_timeout", min_s=0.0, max_s=MAX_LEASE_S)

    @property
    def kept_s(self) -> float:
        """How long a key is reserved for the member it was handed to."""
        if self.hand_over_timeout is None:
            return _LEASES_TO_KEEP * self.timing.lease_s
        return seconds_of(
            self.hand_over_timeout, what="hand_over_timeout", min_s=0.0, max_s=MAX_LEASE_S
        )


_LEASES_TO_KEEP = 3


def _strategy(name: object) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        names = ", ".join(each.value for each in Strategy)
        raise InvalidOptions(f"there is no strategy {name!r}: choose one of {names}") from None


def check_timing(timing: object) -> None:
    """Raise ``InvalidOptions`` for anything but a valid ``LeaseTiming``."""
    if not isinstance(timing, LeaseTiming):
        raise InvalidOptions(
            f"timing must be a Timing, not {timing!r}: write "
            "timing=Timing.of(lease=timedelta(seconds=10))"
        )
    for each in fields(timing):
        value = getattr(timing, each.name)
        if not is_number(value) or not math.isfinite(value):
            raise InvalidOptions(f"{each.name} must be a number of seconds, not {value!r}")
    timing.check()


def check_share(*, weight: object, most: object, max_name: str = "most") -> None:
    """Raise ``InvalidOptions`` for a weight or a limit that is not valid."""
    if not is_number(weight):
        raise InvalidOptions(f"weight must be a number, not {weight!r}: use 1 if unsure")
    if not 0 < weight <= MAX_WEIGHT:
        raise InvalidOptions(
            f"0 < weight <= {MAX_WEIGHT:,} does not hold ({weight:g}): use 1 if unsure"
        )
    if most is None:
        return
    if not is_integer(most):
        raise InvalidOptions(
            f"{max_name} must be a whole number, not {most!r}: use None for no limit"
        )
    if most < 0:
        raise InvalidOptions(f"{max_name} >= 0 does not hold ({most}): use None for no limit")
    if most > MAX_KEY_LIMIT:
        raise InvalidOptions(
            f"{max_name} <= {MAX_KEY_LIMIT:,} does not hold: use None for no limit"
        )
