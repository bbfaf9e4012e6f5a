"""Who should own what: pure functions of a snapshot, one for each strategy.

``plan(strategy, snapshot, me, rng)`` gives one member its part. ``even`` is the default and the
only one that promises a bound; see the modules for what each of them does.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from leasehold.core.balance.by_load import plan_by_load
from leasehold.core.balance.classic import (
    plan_balanced,
    plan_biggest_owner,
    plan_greedy,
    plan_one_steal,
)
from leasehold.core.balance.even import min_moves, plan_even, spread
from leasehold.core.balance.snapshot import Plan, Snapshot

if TYPE_CHECKING:
    import random

__all__ = ["Plan", "Snapshot", "Strategy", "min_moves", "plan", "spread"]


class Strategy(Enum):
    """The name of a strategy, as it is written on the command line."""

    EVEN = "even"
    BALANCED = "balanced"
    GREEDY = "greedy"
    ONE_STEAL = "one_steal"
    BIGGEST_OWNER = "biggest_owner"
    BY_LOAD = "by_load"

    @property
    def steals(self) -> bool:
        """Whether it takes keys from living owners by force."""
        return self not in (Strategy.EVEN, Strategy.BY_LOAD)

    @property
    def hurries(self) -> bool:
        """Whether it cycles again at once until it has its share (P10)."""
        return self is Strategy.GREEDY


_RANDOMIZED = {
    Strategy.BALANCED: plan_balanced,
    Strategy.GREEDY: plan_greedy,
    Strategy.ONE_STEAL: plan_one_steal,
    Strategy.BIGGEST_OWNER: plan_biggest_owner,
}


def plan(strategy: Strategy, snapshot: Snapshot, me: str, rng: random.Random) -> Plan:
    """What ``me`` should do now. ``me`` must be among the members of the snapshot."""
    if strategy is Strategy.EVEN:
        return plan_even(snapshot, me)
    if strategy is Strategy.BY_LOAD:
        return plan_by_load(snapshot, me)
    return _RANDOMIZED[strategy](snapshot, me, rng)
