"""The settings of a member."""

from __future__ import annotations

import math
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
    key is kept for the one it was handed to; ``drain_limit`` how long the work on a key may take
    to stop in good order before it is stopped by force.

    Raises:
        InvalidName, InvalidDuration, InvalidOptions: with what is wrong and what to write.
    """

    group: str
    name: str = "member"
    strategy: Strategy = Strategy.EVEN
    timing: Timing = field(default_factory=Timing)
    weight: float = 1.0
    most: int | None = None
    hand_over_limit: timedelta = timedelta(seconds=30)
    drain_limit: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        """Refuse what can not work."""
        check_group(self.group)
        check_name(self.name, what="member name")
        self.timing.check()
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidOptions(f"weight > 0 does not hold ({self.weight:g}): use 1 if unsure")
        if self.most is not None and self.most < 0:
            raise InvalidOptions(f"most >= 0 does not hold ({self.most}): use None for no limit")
        kept_s = seconds_of(
            self.hand_over_limit, what="hand_over_limit", least_s=0.0, most_s=MOST_LEASE_S
        )
        if kept_s < 2 * self.timing.renew_s:
            raise InvalidOptions(
                f"hand_over_limit >= 2 x renew_every does not hold ({kept_s:g} s >= "
                f"{2 * self.timing.renew_s:g} s): the receiver looks only once per renewal"
            )
        seconds_of(self.drain_limit, what="drain_limit", least_s=0.0, most_s=MOST_LEASE_S)
