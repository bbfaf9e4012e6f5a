"""``by_load``: even out measured load instead of the number of keys (B4).

Free keys go where there is most room. Beyond that nothing moves while every member is within the
dead band around its share of the load; outside it, owners above their share hand over just
enough keys, damped, so that one noisy measurement can not turn the whole group over. A key of
unknown load counts as the mean of the known ones. All members compute the same target; as in
``even`` an owner only ever hands over its own keys.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from leasehold.core.balance.even import plan_even
from leasehold.core.balance.snapshot import Plan, Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

DEAD_BAND = 0.10
DAMPING = 0.60
# A larger value is an error, and could not be added to others.
_MAX_LOAD = 1e15


def plan_by_load(snapshot: Snapshot, me: str) -> Plan:
    """Return my part of balancing the load; by key count if no load is known or a member leaves."""
    loads = _loads(snapshot)
    keys = snapshot.keys_by_owner()
    leaving = any(keys[m] for m in snapshot.members if snapshot.members[m].draining)
    # A newcomer has measured nothing yet; a standby (largest number 0) never will.
    newcomer = any(
        not keys[taker] and snapshot.members[taker].most != 0 for taker in snapshot.takers()
    )
    if not loads or leaving or newcomer:
        return plan_even(snapshot, me)
    room = _Room(snapshot, keys, loads)
    claim = [key for key in keys[me] if not snapshot.held_by(key, me)]
    for key in sorted(keys[None], key=lambda each: (-loads[each], each)):
        receiver = room.assign(loads[key])
        if receiver == me:
            claim.append(key)
    hand_over = {} if keys[None] else _surplus(snapshot, me, keys, loads, room)
    return Plan(claim=tuple(snapshot.wanted(key) for key in claim), hand_over=hand_over)


class _Room:
    """How full each member is, relative to its weight; emptiest first."""

    def __init__(
        self,
        snapshot: Snapshot,
        keys: Mapping[str | None, list[str]],
        loads: Mapping[str, float],
    ) -> None:
        takers = snapshot.takers()
        self.weight = {m: snapshot.members[m].weight for m in takers}
        limits = {m: snapshot.members[m].most for m in takers}
        everything = len(snapshot.resources)
        self.most = {m: everything if most is None else most for m, most in limits.items()}
        self.load = {m: math.fsum(loads[key] for key in keys[m]) for m in takers}
        self.count = {m: len(keys[m]) for m in takers}
        total = math.fsum(self.load.values())
        weight = math.fsum(self.weight.values())
        self.share = {m: total * self.weight[m] / weight for m in takers}
        self._heap = [(self.load[m] / self.weight[m], m) for m in takers]
        heapq.heapify(self._heap)

    def emptiest(self) -> str | None:
        """Return the member with most room that is below its limit."""
        while self._heap and self.count[self._heap[0][1]] >= self.most[self._heap[0][1]]:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def assign(self, load: float) -> str | None:
        """Assign a key of this load to the emptiest member."""
        receiver = self.emptiest()
        if receiver is not None:
            self.load[receiver] += load
            self.count[receiver] += 1
            full = self.load[receiver] / self.weight[receiver]
            heapq.heapreplace(self._heap, (full, receiver))
        return receiver


def _surplus(
    snapshot: Snapshot,
    me: str,
    keys: Mapping[str | None, list[str]],
    loads: Mapping[str, float],
    room: _Room,
) -> dict[str, str]:
    """Return my keys to hand over; those of others are assigned too, in the common order."""
    moves: dict[str, str] = {}
    for owner in sorted(room.share, key=lambda each: (room.share[each] - room.load[each], each)):
        surplus = room.load[owner] - room.share[owner]
        if surplus <= DEAD_BAND * room.share[owner]:
            continue
        held = [key for key in keys[owner] if snapshot.held_by(key, owner) and loads[key] > 0]
        heaviest_first = sorted(held, key=lambda each: (-loads[each], each))
        assigned = _assigned(heaviest_first, owner, loads, room, budget=surplus * DAMPING)
        if not assigned:
            # Damped, nothing fits: then the lightest key that is not more than the surplus.
            assigned = _assigned(heaviest_first[-1:], owner, loads, room, budget=surplus)
        if owner == me:
            moves = assigned
    return moves


def _assigned(
    keys: list[str], owner: str, loads: Mapping[str, float], room: _Room, *, budget: float
) -> dict[str, str]:
    """Assign the keys that fit into the budget and into another member."""
    moves: dict[str, str] = {}
    for key in keys:
        receiver = room.emptiest()
        if receiver is None or receiver == owner:
            break
        fits = room.load[receiver] + loads[key] <= room.share[receiver] * (1 + DEAD_BAND)
        if loads[key] <= budget and fits:
            budget -= loads[key]
            room.assign(loads[key])
            moves[key] = receiver
    return moves


def _loads(snapshot: Snapshot) -> dict[str, float]:
    known: dict[str, float] = {}
    for holder in sorted(snapshot.members):
        measured = snapshot.members[holder].loads.items()
        known |= {
            key: min(load, _MAX_LOAD)
            for key, load in measured
            if key in snapshot.resources and load >= 0
        }
    if not any(known.values()):
        return {}
    mean = math.fsum(known.values()) / len(known)
    return {key: known.get(key, mean) for key in snapshot.resources}
