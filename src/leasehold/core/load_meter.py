"""How much there is per second, as it was lately: what a partition weighs (B4)."""

from __future__ import annotations

import math

_HALF_LIFE_S = 10.0
_DIGITS = 2


class LoadMeter:
    """An average that forgets: what lies one half-life back counts half. Time is handed in."""

    def __init__(self, now_s: float, *, half_life_s: float = _HALF_LIFE_S) -> None:
        """Nothing yet."""
        self._decay = math.log(2) / half_life_s
        self._at_s = now_s
        self._rate = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """So much came just now."""
        self._rate = self.rate(now_s) + amount * self._decay
        self._at_s = now_s

    def rate(self, now_s: float) -> float:
        """Per second, by now."""
        return self._rate * math.exp(-self._decay * max(0.0, now_s - self._at_s))


def rounded(rate: float) -> float:
    """The rate to two digits: a change that nobody acts on need not be told to the group."""
    if rate <= 0 or not math.isfinite(rate):
        return 0.0
    return round(rate, _DIGITS - 1 - math.floor(math.log10(rate)))
