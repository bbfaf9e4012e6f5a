"""``LoadMeter``: the recent load of a partition, per second (B4)."""

from __future__ import annotations

import math

_HALF_LIFE_S = 10.0
_DIGITS = 2


class LoadMeter:
    """A decaying average: what is one half-life old counts half. The caller passes the time."""

    def __init__(self, now_s: float, *, half_life_s: float = _HALF_LIFE_S) -> None:
        self._decay = math.log(2) / half_life_s
        self._at_s = now_s
        self._rate = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Count ``amount`` now."""
        self._rate = self.rate(now_s) + amount * self._decay
        self._at_s = now_s

    def rate(self, now_s: float) -> float:
        """Return the rate per second."""
        return self._rate * math.exp(-self._decay * max(0.0, now_s - self._at_s))


def rounded(rate: float) -> float:
    """Round to two digits: the group need not know changes that no strategy acts on."""
    if rate <= 0 or not math.isfinite(rate):
        return 0.0
    return round(rate, _DIGITS - 1 - math.floor(math.log10(rate)))
