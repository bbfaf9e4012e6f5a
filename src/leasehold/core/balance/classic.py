"""The strategies of the systems we come from, as they are described; all of them steal.

A steal takes a key from an owner that is alive: until its next renewal it may still work on it,
and only fenced writes are safe from it. ``even`` never does that; these are here for groups that
must behave as they used to, and to be compared with.

=================  =========  ==================================================================
strategy           from       rule
=================  =========  ==================================================================
``balanced``       seed 002   one claim a cycle: a random free key, else a random steal
``greedy``         seed 002   all that is missing at once: random free keys, then random steals
``one_steal``      seed 000   all free keys up to the share, else one from the biggest owner
``biggest_owner``  seed 003   as many as are missing, from a random one of the biggest owners
=================  =========  ==================================================================

Members are counted by their leases, owning or not: counting only owners, as these systems do,
leaves a newcomer unseen. A steal needs an owner with at least two more than me, so that each one
narrows the gap and the stealing ends, remainders included.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from leasehold.core.balance.snapshot import Plan, Snapshot

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

Keys = dict[str | None, list[str]]


def plan_balanced(snapshot: Snapshot, me: str, rng: random.Random) -> Plan:
    """Claim one random free key; if there is none, steal one at random from a bigger owner."""
    return _claim_or_steal(snapshot, me, rng, max_keys=1)


def plan_greedy(snapshot: Snapshot, me: str, rng: random.Random) -> Plan:
    """Take all missing keys at the same time: free keys first, then steals."""
    return _claim_or_steal(snapshot, me, rng, max_keys=len(snapshot.resources))


def plan_one_steal(snapshot: Snapshot, me: str, rng: random.Random) -> Plan:
    """Claim free keys up to the share; otherwise steal one from the biggest owner."""
    keys = snapshot.keys_by_owner()
    missing = _missing(snapshot, keys, me)
    claim = rng.sample(keys[None], min(missing, len(keys[None])))
    victims = _biggest(_stealable(snapshot, keys, me), mine=len(keys[me]))
    if claim or missing == 0 or not victims:
        return _plan(snapshot, me, keys, claim=claim)
    return _plan(snapshot, me, keys, steal=[rng.choice(keys[rng.choice(victims)])])


def plan_biggest_owner(snapshot: Snapshot, me: str, rng: random.Random) -> Plan:
    """Claim free keys up to the share, and steal the rest from a random one of the biggest."""
    keys = snapshot.keys_by_owner()
    missing = _missing(snapshot, keys, me)
    claim = rng.sample(keys[None], min(missing, len(keys[None])))
    missing -= len(claim)
    counts = _stealable(snapshot, keys, me)
    victims = _biggest(counts, mine=len(keys[me]) + len(claim))
    if missing == 0 or not victims:
        return _plan(snapshot, me, keys, claim=claim)
    victim = rng.choice(victims)
    surplus = max(1, len(keys[victim]) - _share(snapshot, keys))
    steal = rng.sample(keys[victim], min(missing, surplus))
    return _plan(snapshot, me, keys, claim=claim, steal=steal)


def _claim_or_steal(snapshot: Snapshot, me: str, rng: random.Random, *, max_keys: int) -> Plan:
    keys = snapshot.keys_by_owner()
    missing = min(_missing(snapshot, keys, me), max_keys)
    claim = rng.sample(keys[None], min(missing, len(keys[None])))
    if claim and max_keys == 1:
        return _plan(snapshot, me, keys, claim=claim)
    steal: list[str] = []
    counts = _stealable(snapshot, keys, me)
    while len(claim) + len(steal) < missing:
        victims = _biggest(counts, mine=len(keys[me]) + len(claim) + len(steal))
        if not victims:
            break
        victim = rng.choice(victims)
        counts[victim] -= 1
        steal.append(rng.choice([key for key in keys[victim] if key not in steal]))
    return _plan(snapshot, me, keys, claim=claim, steal=steal)


_GAP_TO_STEAL = 2


def _share(snapshot: Snapshot, keys: Mapping[str | None, list[str]]) -> int:
    """Return the keys per member, rounded up; the rest share what some may not take."""
    infos = [snapshot.members[taker] for taker in snapshot.takers()]
    rest, members = sum(len(owned) for owned in keys.values()), len(infos)
    for most in sorted(info.most for info in infos if info.most is not None):
        if members > 1 and most * members < rest:
            rest, members = rest - most, members - 1
    return math.ceil(rest / max(1, members))


def _missing(snapshot: Snapshot, keys: Mapping[str | None, list[str]], me: str) -> int:
    """Return how many more keys I may take (P3): none at or over my share, or when leaving."""
    info = snapshot.members[me]
    if info.draining:
        return 0
    share = _share(snapshot, keys)
    return max(0, min(share, share if info.most is None else info.most) - len(keys[me]))


def _stealable(snapshot: Snapshot, keys: Mapping[str | None, list[str]], me: str) -> dict[str, int]:
    """Return the owners to steal from, with their counts: those that leave, before any other."""
    others = {m: len(keys[m]) for m in sorted(snapshot.members) if m != me and keys[m]}
    leaving = {m: count for m, count in others.items() if snapshot.members[m].draining}
    return leaving or others


def _biggest(counts: Mapping[str, int], *, mine: int) -> list[str]:
    """Return the biggest owners, if they have at least two more than me."""
    most = max(counts.values(), default=0)
    if most - mine < _GAP_TO_STEAL:
        return []
    return [each for each, count in counts.items() if count == most]


def _plan(
    snapshot: Snapshot,
    me: str,
    keys: Mapping[str | None, list[str]],
    *,
    claim: list[str] | None = None,
    steal: list[str] | None = None,
) -> Plan:
    leaving = keys[me] if snapshot.members[me].draining else []
    pending = [] if leaving else [key for key in keys[me] if not snapshot.held_by(key, me)]
    return Plan(
        claim=tuple(snapshot.wanted(key) for key in pending + (claim or [])),
        steal=tuple(snapshot.wanted(key) for key in steal or []),
        release=tuple(key for key in leaving if snapshot.held_by(key, me)),
    )
