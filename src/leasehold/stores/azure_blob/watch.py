"""How often a member looks who is alive.

A listing costs twelve times as much as a reading of the book that has not changed, and whoever
finds somebody dead tells all the others by the book. So the members of a group of partitions take
turns: of four each looks in every second third of a lease, of six and more in every third one, in
an order that follows from their names and the service's clock. Up to three, and in all other
groups, each renewal looks. So does one that has not looked for nearly a lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.names import PARTITION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.clock import Clock
    from leasehold.model import Lease
    from leasehold.stores.azure_blob.moment import Moment

_IN_A_TURN, _MOST_TURNS = 2, 3  # two look in each turn: one of them may be the dead one
_SLOTS = 3  # of a lease: members renew about so often
_LONGEST = 0.95
_MOST = 10_000


def turns(members: int) -> int:
    """In one of how many turns a member looks, in a group of so many."""
    return max(1, min(members // _IN_A_TURN, _MOST_TURNS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """When a holder looked last, and the company that it found itself in."""

    looked_s: float
    slot: int
    rank: int
    turns: int
    shortest_s: float


class Watch:
    """The turns of each holder of this process."""

    def __init__(self, clock: Clock) -> None:
        """Nobody has looked yet."""
        self._clock = clock
        self._seen: dict[tuple[str, str], _Seen] = {}

    def due(self, lease: Lease, now: Moment | None) -> bool:
        """Whether this renewal has to look; ``now`` by the service's clock."""
        seen = self._seen.get((lease.group, lease.holder))
        if seen is None or now is None or seen.turns == 1:
            return True
        if self._clock.boottime_s() - seen.looked_s >= _LONGEST * seen.shortest_s:
            return True
        slot = _slot(now, seen.shortest_s)
        return slot != seen.slot and slot % seen.turns == seen.rank % seen.turns

    def looked(
        self, lease: Lease, leases_s: Mapping[str, float], now: Moment | None, *, began_s: float
    ) -> None:
        """It has looked in a renewal that began then.

        ``leases_s`` are the members of its group, with the lengths of their leases.
        """
        if now is None or lease.holder not in leases_s:
            return
        shares = lease.group.startswith(f"{PARTITION}/")
        if len(self._seen) >= _MOST:
            self._seen.clear()
        shortest_s = min(leases_s.values())
        self._seen[lease.group, lease.holder] = _Seen(
            looked_s=began_s,
            slot=_slot(now, shortest_s),
            rank=sorted(leases_s).index(lease.holder),
            turns=turns(len(leases_s)) if shares else 1,
            shortest_s=shortest_s,
        )

    def forget(self, lease: Lease) -> None:
        """It is over."""
        self._seen.pop((lease.group, lease.holder), None)


def _slot(now: Moment, shortest_s: float) -> int:
    return int(now.low_s * _SLOTS / shortest_s)
