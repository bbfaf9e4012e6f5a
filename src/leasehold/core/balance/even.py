"""``even``: the computed, sticky assignment (B2).

Every member computes the same target from the same snapshot, so nobody has to be robbed and
nobody fights. An owner with too many hands the surplus over by itself, to the member that the
target names; a member with too few claims the free keys that the target gives it.

Guarantees, when members are alive and run their cycles:

* max - min <= 1 (by weight: each within one of its share), reached within 2 cycles from *any*
  state: in the first the owners hand over and free keys are claimed, in the second the receivers
  claim what was kept for them;
* the fewest possible moves;
* once balanced, nothing moves.

Why members that act one after the other, each on its own snapshot, do not get in each other's
way: put all surplus keys in one row, owner after owner in order of their ids (free keys last), and
all missing keys in another row, receiver after receiver. The n-th surplus key goes to the n-th
receiver. When some owner has carried out its part, its stretch is gone from *both* rows, and the
rest still lie opposite each other as before. And the quotas do not change on the way
(see ``quota``). So it makes no difference which of the others' steps I have already seen.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING

from leasehold.core.balance.quota import QuotaMember, quotas
from leasehold.core.balance.snapshot import Plan, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def plan_even(snapshot: Snapshot, me: str) -> Plan:
    """Return my part of the even target."""
    keys = snapshot.keys_by_owner()
    target = _target_counts(snapshot, keys)
    return plan_towards(snapshot, me, keys, target)


def plan_towards(
    snapshot: Snapshot,
    me: str,
    keys: Mapping[str | None, list[str]],
    target: Mapping[str, int],
) -> Plan:
    """Return my part of reaching these key counts, with the fewest moves."""
    receivers = _missing_receivers(keys, target)
    hand_over: dict[str, str] = {}
    release: list[str] = []
    claim = [key for key in keys[me][: target.get(me, 0)] if not snapshot.held_by(key, me)]
    for owner in sorted(snapshot.members):
        for key in keys[owner][target.get(owner, 0) :]:
            receiver = next(receivers, None)
            if owner != me:
                continue
            if receiver is not None:
                hand_over[key] = receiver
            elif snapshot.members[me].draining and snapshot.held_by(key, me):
                release.append(key)
    free = [key for key, receiver in zip(keys[None], receivers, strict=False) if receiver == me]
    return Plan(
        claim=tuple(snapshot.wanted(key) for key in claim + free),
        hand_over=hand_over,
        release=tuple(release),
        expecting=max(0, target.get(me, 0) - len(keys[me]) - len(free)),
    )


def _target_counts(snapshot: Snapshot, keys: Mapping[str | None, list[str]]) -> Mapping[str, int]:
    claimants = [
        QuotaMember(
            holder=holder,
            count=len(keys[holder]),
            weight=snapshot.members[holder].weight,
            most=snapshot.members[holder].most,
        )
        for holder in snapshot.takers()
    ]
    total = sum(len(owned) for owned in keys.values())
    return quotas(total, claimants) if claimants else {}


def _missing_receivers(
    keys: Mapping[str | None, list[str]], target: Mapping[str, int]
) -> Iterator[str]:
    return chain.from_iterable(
        repeat(holder, max(0, target[holder] - len(keys[holder]))) for holder in sorted(target)
    )


def min_moves(snapshot: Snapshot) -> int:
    """Return the minimum number of keys that must change from one live owner to another."""
    keys = snapshot.keys_by_owner()
    target = _target_counts(snapshot, keys)
    surplus = sum(max(0, len(keys[m]) - target.get(m, 0)) for m in snapshot.members)
    room = sum(max(0, target[m] - len(keys[m])) for m in target)
    return min(surplus, room)


def spread(snapshot: Snapshot) -> int:
    """Return the largest minus the smallest key count of the members that take keys."""
    keys = snapshot.keys_by_owner()
    counts = [len(keys[holder]) for holder in snapshot.takers()]
    return max(counts) - min(counts) if counts else 0
