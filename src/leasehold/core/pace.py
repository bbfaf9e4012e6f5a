"""When the next cycle begins (P10)."""

from __future__ import annotations

_LOOKS_WHILE_EXPECTING = 3


def pause_s(
    *, interval_s: float, elapsed_s: float, stable: bool, hurries: bool, expecting: bool
) -> float:
    """How long to wait after a cycle that took ``elapsed_s``.

    At once when the strategy hurries and has not got its share yet, or when the cycle took longer
    than the interval. A host that expects something looks again sooner: keys that others are
    about to hand over lie idle until it comes, and one that just stole may be robbed in turn.
    Otherwise the rest of the interval, so that the period is the interval and not the interval
    plus the work.
    """
    if hurries and not stable:
        return 0.0
    interval_s = interval_s / _LOOKS_WHILE_EXPECTING if expecting else interval_s
    return max(0.0, interval_s - elapsed_s)
