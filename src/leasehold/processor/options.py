"""The settings of a member."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from leasehold.core.balance import Strategy
from leasehold.core.timing import MOST_LEASE_S, Timing
from leasehold.errors import InvalidOptions
from leasehold.names import check_group, check_name, seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """How a member behaves; checked when it is made.

    ``weight`` scales its share of the keys, ``most`` caps it. ``hand_over_limit`` is how long a
    key is kept for the one it was handed to (three leases by default); ``drain_limit`` how long
    the work on a key may take to stop in good order before it is stopped by force.

    Raises:
        InvalidName, InvalidDuration, InvalidOptions: with what is wrong and what to write.
    """

    group: str
    name: str = "member"
    strategy: Strategy = Strategy.EVEN
    timing: Timing = field(default_factory=Timing)
    weight: float = 1.0
    most: int | None = None
    hand_over_limit: timedelta | None = None
    drain_limit: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        """Refuse what can not work."""
        if not isinstance(self.strategy, Strategy):
            object.__setattr__(self, "strategy", _strategy(self.strategy))
        check_group(self.group)
        check_name(self.name, what="member name")
        self.timing.check()
        if not 0 < self.weight <= _LARGEST_WEIGHT:
            raise InvalidOptions(
                f"0 < weight <= {_LARGEST_WEIGHT:,} does not hold ({self.weight:g}): "
                "use 1 if unsure"
            )
        if self.most is not None and self.most < 0:
            raise InvalidOptions(f"most >= 0 does not hold ({self.most}): use None for no limit")
        if self.kept_s < 2 * self.timing.renew_s:
            raise InvalidOptions(
                f"hand_over_limit >= 2 x renew_every does not hold ({self.kept_s:g} s is less than "
                f"{2 * self.timing.renew_s:g} s): the receiver looks only once per renewal"
            )
        seconds_of(self.drain_limit, what="drain_limit", least_s=0.0, most_s=MOST_LEASE_S)

    @property
    def kept_s(self) -> float:
        """How long a key is kept for the one it was handed to."""
        if self.hand_over_limit is None:
            return _LEASES_TO_KEEP * self.timing.lease_s
        return seconds_of(
            self.hand_over_limit, what="hand_over_limit", least_s=0.0, most_s=MOST_LEASE_S
        )


_LEASES_TO_KEEP = 3
_LARGEST_WEIGHT = 1_000_000


def _strategy(name: object) -> Strategy:
    try:
        return Strategy(name)
    except ValueError:
        names = ", ".join(each.value for each in Strategy)
        raise InvalidOptions(f"there is no strategy {name!r}: choose one of {names}") from None
