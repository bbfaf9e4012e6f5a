"""When the next cycle begins (P10)."""

from __future__ import annotations

_LOOKS_WHILE_EXPECTING = 3
_EARLY_LOOKS = 3
_GRACE = 0.02
_LEAST_GRACE_S = 0.02


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


def early_s(
    *, next_end_s: float, lease_s: float, interval_s: float, chance: float, again: bool
) -> float:
    """How long to wait until something of the group has ended that may end in ``next_end_s``.

    It is to be looked at right then: a key of a dead member has no owner until somebody looks. A
    grace of 2 % of the lease, at least 20 ms, makes sure that it has ended by then. ``chance``,
    from 0 to 1, adds up to as much again, so that not all members look at the same instant.

    What always ends soon must not make anybody spin, be it a member with a much shorter lease or
    an end that does not come: after one early look the next (``again``) is at least a third of the
    interval away.
    """
    grace_s = max(_LEAST_GRACE_S, _GRACE * lease_s) * (1 + chance)
    least_s = interval_s / _EARLY_LOOKS if again else 0.0
    return max(next_end_s + grace_s, grace_s, least_s)
