"""The strategies of the systems we come from, as they are described; all of them steal.

A steal takes a key from an owner that is alive: until its next renewal it may still work on it,
and only fenced writes are safe from it. ``even`` never does that; these are here for groups that
must behave as they used to, and to be compared with.

=================  =========  ==================================================================
strategy           from       rule
=================  =========  ==================================================================
``balanced``       seed 002   one claim a cycle: a free key by lot, else a steal by lot
``greedy``         seed 002   all that is missing at once: free keys by lot, then steals by lot
``one_steal``      seed 000   all free keys up to the share, else one from the biggest owner
``biggest_owner``  seed 003   as many as are missing, from one of the biggest owners, by lot
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
    """One free key by lot; if there is none, one steal by lot from those above their share."""
    return _claim_or_steal(snapshot, me, rng, most_at_once=1)


def plan_greedy(snapshot: Snapshot, me: str, rng: random.Random) -> Plan:
    """All that is missing at once: free keys first, then steals."""
    return _claim_or_steal(snapshot, me, rng, most_at_once=len(snapshot.resources))


def plan_one_steal(snapshot: Snapshot, me: str, rng: random.Random) -> Plan:
    """All free keys up to the share at once; otherwise one from the biggest owner."""
    keys = snapshot.keys_by_owner()
    missing = _missing(snapshot, keys, me)
    claim = rng.sample(keys[None], min(missing, len(keys[None])))
    victim = _biggest(keys, me)
    if claim or missing == 0 or victim is None:
        return _plan(snapshot, me, keys, claim=claim)
    return _plan(snapshot, me, keys, steal=[rng.choice(keys[victim])])


def plan_biggest_owner(snapshot: Snapshot, me: str, rng: random.Random) -> Plan:
    """Free keys up to the share, and the rest from one of the owners above it, by lot."""
    keys = snapshot.keys_by_owner()
    missing = _missing(snapshot, keys, me)
    claim = rng.sample(keys[None], min(missing, len(keys[None])))
    missing -= len(claim)
    victims = _above_share(snapshot, keys, me)
    if missing == 0 or not victims:
        return _plan(snapshot, me, keys, claim=claim)
    victim = rng.choice(victims)
    surplus = max(1, len(keys[victim]) - _share(snapshot))
    steal = rng.sample(keys[victim], min(missing, surplus))
    return _plan(snapshot, me, keys, claim=claim, steal=steal)


def _claim_or_steal(snapshot: Snapshot, me: str, rng: random.Random, *, most_at_once: int) -> Plan:
    keys = snapshot.keys_by_owner()
    missing = min(_missing(snapshot, keys, me), most_at_once)
    claim = rng.sample(keys[None], min(missing, len(keys[None])))
    if claim and most_at_once == 1:
        return _plan(snapshot, me, keys, claim=claim)
    steal: list[str] = []
    counts = {victim: len(keys[victim]) for victim in _above_share(snapshot, keys, me)}
    mine = len(keys[me]) + len(claim)
    while len(claim) + len(steal) < missing and counts:
        victim = max(counts, key=lambda each: (counts[each], each))
        if counts[victim] - (mine + len(steal)) < _GAP_TO_STEAL:
            break
        counts[victim] -= 1
        steal.append(rng.choice([key for key in keys[victim] if key not in steal]))
    return _plan(snapshot, me, keys, claim=claim, steal=steal)


_GAP_TO_STEAL = 2


def _share(snapshot: Snapshot) -> int:
    return math.ceil(len(snapshot.resources) / max(1, len(snapshot.takers())))


def _missing(snapshot: Snapshot, keys: Mapping[str | None, list[str]], me: str) -> int:
    """How many more I may take (P3): none at or over my share, none when I am leaving."""
    info = snapshot.members[me]
    if info.draining:
        return 0
    share = _share(snapshot) if info.most is None else min(_share(snapshot), info.most)
    return max(0, share - len(keys[me]))


def _biggest(keys: Mapping[str | None, list[str]], me: str) -> str | None:
    owners = {owner: len(owned) for owner, owned in keys.items() if owner not in (None, me)}
    biggest = max(owners, key=lambda each: (owners[each], each or ""), default=None)
    if biggest is None or owners[biggest] - len(keys[me]) < _GAP_TO_STEAL:
        return None
    return biggest


def _above_share(snapshot: Snapshot, keys: Mapping[str | None, list[str]], me: str) -> list[str]:
    """Owners one may steal from, biggest first: all that have at least two more than me."""
    enough = len(keys[me]) + _GAP_TO_STEAL
    owners = [m for m in sorted(snapshot.members) if m != me and len(keys[m]) >= enough]
    most = max((len(keys[m]) for m in owners), default=0)
    return [m for m in owners if len(keys[m]) == most]


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
