"""How many keys each member should have: the rounding, which is where evenness is won."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaMember:
    """A member that may get keys: how many it has, its weight, and its largest number."""

    holder: str
    count: int
    weight: float = 1.0
    most: int | None = None


def quotas(total: int, claimants: list[QuotaMember]) -> dict[str, int]:
    """The number of keys for each claimant, ``total`` in all unless their limits forbid.

    * Each gets its share by weight, rounded down or up: with equal weights max - min <= 1.
    * Who is at its limit gets its limit, and the others share the rest.
    * Of all such roundings this is one with the fewest moves: the larger number goes first to
      those that already have as many, since for each of them it saves a move.
    * It does not change while a plan is being carried out: the choice looks only at *whether*
      a member has enough for the larger number, never at how much more it has. So every member
      computes the same plan from any snapshot taken on the way.
    """
    granted: dict[str, int] = {}
    sharing, rest = list(claimants), total
    while True:
        share = _shares(rest, sharing)
        capped = [c for c in sharing if c.most is not None and share[c.holder] > c.most - _ROUNDING]
        if not capped:
            break
        for claimant in capped:
            granted[claimant.holder] = claimant.most or 0
            rest -= claimant.most or 0
        sharing = [c for c in sharing if c.holder not in granted]
    granted.update(_rounded(rest, sharing, share))
    return granted


# So that 20 x 0.3 / 0.6 is not rounded down to 9 for its last binary digit.
_ROUNDING = 1e-9


def _shares(total: int, claimants: list[QuotaMember]) -> dict[str, float]:
    # Relative to the largest, so that even absurd weights can be added up.
    largest = max((c.weight for c in claimants), default=1.0)
    weight = math.fsum(c.weight / largest for c in claimants)
    return {c.holder: total * (c.weight / largest / weight) for c in claimants}


def _rounded(total: int, claimants: list[QuotaMember], share: dict[str, float]) -> dict[str, int]:
    floor = {c.holder: math.floor(share[c.holder] + _ROUNDING) for c in claimants}
    extra = max(0, total - sum(floor.values()))

    def preference(c: QuotaMember) -> tuple[bool, bool, float, str]:
        whole = share[c.holder] - floor[c.holder] < _ROUNDING
        has_one_more = c.count > floor[c.holder]
        return (whole, not has_one_more, floor[c.holder] - share[c.holder], c.holder)

    for claimant in sorted(claimants, key=preference)[:extra]:
        floor[claimant.holder] += 1
    return floor
