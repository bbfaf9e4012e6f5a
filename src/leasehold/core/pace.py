"""When the next cycle begins (P10)."""

from __future__ import annotations


def pause_s(
    *, interval_s: float, elapsed_s: float, stable: bool, hurries: bool, stole: bool
) -> float:
    """How long to wait after a cycle that took ``elapsed_s``.

    At once when the strategy hurries and has not got its share yet, or when the cycle took longer
    than the interval. A host that just stole looks again in half the time, to find out soon
    whether it was robbed in turn. Otherwise the rest of the interval, so that the period is the
    interval and not the interval plus the work.
    """
    if hurries and not stable:
        return 0.0
    interval_s = interval_s / 2 if stole else interval_s
    return max(0.0, interval_s - elapsed_s)
