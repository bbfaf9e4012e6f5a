"""How often a member looks who is alive.

A listing costs twelve times as much as a reading of the book that has not changed, and whoever
finds somebody dead tells all the others by the book. So the members of a group share the looking:
the more there are, the less often each looks, and the group looks about once in a cycle even when
one of them is gone. Alone or in a pair each renewal looks. Nobody goes without a look for as long
as the shortest lease of the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from leasehold.clock import Clock
    from leasehold.model import Lease

# Of a lease. Members renew three times in a lease: this is each third renewal at the least.
_SELDOM = 0.9
_PAIR, _ENOUGH = 2, 4
_MOST = 10_000


def pause_s(leases_s: Collection[float]) -> float:
    """How long a member need not look, in a group with leases of these lengths."""
    share = (min(len(leases_s), _ENOUGH) - _PAIR) / (_ENOUGH - _PAIR)
    return max(0.0, share) * _SELDOM * min(leases_s, default=0.0)


class Watch:
    """When each holder of this process has looked last."""

    def __init__(self, clock: Clock) -> None:
        """Nobody has looked yet."""
        self._clock = clock
        self._next_s: dict[tuple[str, str], float] = {}

    def due(self, lease: Lease) -> bool:
        """Whether it is time to look again."""
        next_s = self._next_s.get((lease.group, lease.holder))
        return next_s is None or self._clock.boottime_s() >= next_s

    def looked(self, lease: Lease, leases_s: Collection[float]) -> None:
        """It has looked now, and these are the lengths of all leases of its group."""
        if len(self._next_s) >= _MOST:
            self._next_s.clear()
        next_s = self._clock.boottime_s() + pause_s(leases_s)
        self._next_s[lease.group, lease.holder] = next_s
