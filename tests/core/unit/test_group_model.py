"""The small store that the tests of the strategies play on, and the proof that it is one.

No time and no I/O: members that are alive, keys with epochs, claims by compare-and-set, keys that
are kept for a receiver. Members take turns; each plans from what it sees, which is fresh or one
turn old, and its plan is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from leasehold import Strategy
from leasehold.core.balance import Plan, Snapshot, plan
from leasehold.model import KeyClaim, MemberInfo, Resource, State

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = ("a", "b", "c", "d", "e", "f", "g")
DEAD = "z-dead"


@dataclass
class Group:
    """The truth, and what it was before the last turn."""

    members: dict[str, MemberInfo]
    resources: dict[str, Resource]
    before: Snapshot | None = None
    moves: int = 0
    steals: int = 0
    log: list[tuple[str, Plan]] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        return Snapshot(members=dict(self.members), resources=dict(self.resources))

    def held(self) -> dict[str, list[str]]:
        """What each living member really has."""
        view = self.snapshot()
        return {m: [k for k in self.resources if view.held_by(k, m)] for m in self.members}

    def counts(self) -> list[int]:
        """How many keys each member has that takes keys."""
        held = self.held()
        return [len(held[m]) for m in self.snapshot().takers()]

    def act(self, me: str, step: Plan) -> None:
        """Carry a plan out: what does not fit the truth any more is refused."""
        self.log.append((me, step))
        for wanted in step.claim:
            self._take(me, wanted, force=False)
        for wanted in step.steal:
            self.steals += self._take(me, wanted, force=True)
        for key, to in step.hand_over.items():
            assert to in self.members, f"{key} is handed over to {to}, who is not there"
            assert to != me, f"{key} is handed over to its owner"
            if me in (self.resources[key].holder, self._kept_for(key)):
                self.moves += 1
                self._free(key, to)
        for key in step.release:
            if self.resources[key].holder == me:
                self._free(key, None)

    def _take(self, me: str, wanted: KeyClaim, *, force: bool) -> bool:
        known = self.resources[wanted.key]
        free = known.holder not in self.members and self._kept_for(wanted.key) in (None, me)
        if known.epoch != wanted.seen_epoch or not (free or force) or known.holder == me:
            return False
        self.resources[wanted.key] = replace(
            known, epoch=known.epoch + 1, holder=me, handed_to=None, state=State.LEASED
        )
        return True

    def _free(self, key: str, to: str | None) -> None:
        known = self.resources[key]
        self.resources[key] = replace(known, holder=None, handed_to=to, state=State.AVAILABLE)

    def _kept_for(self, key: str) -> str | None:
        """Whom a free key is kept for; for the dead nothing is kept."""
        to = self.resources[key].handed_to
        return to if to in self.members else None

    def turn(self, strategy: Strategy, me: str, rng: Random, *, stale: bool = False) -> Plan:
        now = self.snapshot()
        seen = self.before if stale and self.before is not None else now
        self.before = now
        step = plan(strategy, seen, me, rng)
        self.act(me, step)
        return step

    def cycle(
        self, strategy: Strategy, rng: Random, *, stale: bool = True, overlap: bool = False
    ) -> bool:
        """Everybody's turn once, in any order; say whether somebody had something to do.

        A cycle begins when the one before has ended: nobody plans from what was before it, unless
        they ``overlap``.
        """
        if not overlap:
            self.before = None
        order = rng.sample(sorted(self.members), len(self.members))
        steps = [self.turn(strategy, me, rng, stale=stale and rng.random() < 0.5) for me in order]
        return not all(step.stable for step in steps)

    def depart(self) -> None:
        """Whoever leaves and has nothing any more ends its lease; what was kept for it is free."""
        for holder, keys in self.held().items():
            if self.members[holder].draining and not keys:
                del self.members[holder]


def group(text: str, *, free: int = 0, **infos: MemberInfo) -> Group:
    """``group("a:3 b:0", free=2)``: a has three keys, b none, two are free; in order of keys."""
    counts = {name: int(count) for name, count in (each.split(":") for each in text.split())}
    owners = [name for name, count in counts.items() for _ in range(count)] + [None] * free
    resources = [key(n, holder=owner) for n, owner in enumerate(owners)]
    return Group(
        members={name: infos.get(name, MemberInfo()) for name in counts},
        resources={each.key: each for each in resources},
    )


def key(n: int, *, holder: str | None = None, kept_for: str | None = None) -> Resource:
    leased = State.EXPIRED if holder == DEAD else State.LEASED
    return Resource(
        key=f"g/{n:02}",
        epoch=n,
        version=n + 1,
        state=leased if holder else State.AVAILABLE,
        holder=holder,
        handed_to=kept_for,
    )


@st.composite
def groups(
    draw: st.DrawFn,
    *,
    weights: Sequence[float] = (1.0,),
    limits: Sequence[int | None] = (None,),
    draining: bool = True,
    over_limit: bool = False,
    max_keys: int = 16,
) -> Group:
    """A group in any state: keys free, held, kept for somebody, held by or kept for the dead."""
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    members = {
        name: MemberInfo(
            weight=draw(st.sampled_from(weights)),
            most=draw(st.sampled_from(limits)),
            draining=draining and draw(st.integers(0, 3)) == 3,
        )
        for name in names
    }
    whose = st.sampled_from([None, DEAD, *names])
    room = {name: info.most for name, info in members.items()}
    resources = {}
    for n in range(draw(st.integers(0, max_keys))):
        owner, kept = draw(whose), draw(st.booleans())
        left = room.get(owner or "")
        if left is not None and not over_limit:
            owner = owner if left else None
            room[owner or ""] = max(0, left - 1)
        each = key(n, kept_for=owner) if kept else key(n, holder=owner)
        resources[each.key] = each
    return Group(members=members, resources=resources)


# -------------------------------------------------------------------------- it is a store


def test_a_free_key_is_claimed_once_and_its_epoch_rises() -> None:
    world = group("a:0 b:0", free=1)
    wanted = Plan(claim=(KeyClaim(key="g/00", seen_epoch=0),))
    world.act("a", wanted)
    world.act("b", wanted)
    assert world.held() == {"a": ["g/00"], "b": []}
    assert world.resources["g/00"].epoch == 1


def test_what_somebody_holds_is_taken_by_force_alone() -> None:
    world = group("a:1 b:0")
    wanted = (KeyClaim(key="g/00", seen_epoch=0),)
    world.act("b", Plan(claim=wanted))
    assert world.held()["a"] == ["g/00"]
    world.act("b", Plan(steal=wanted))
    assert world.held()["b"] == ["g/00"]
    assert world.steals == 1


def test_what_the_dead_hold_is_free() -> None:
    world = Group(members={"a": MemberInfo()}, resources={"g/01": key(1, holder=DEAD)})
    world.act("a", Plan(claim=(KeyClaim(key="g/01", seen_epoch=1),)))
    assert world.held() == {"a": ["g/01"]}


def test_a_key_that_is_kept_for_one_is_refused_to_the_others() -> None:
    world = group("a:1 b:0 c:0")
    world.act("a", Plan(hand_over={"g/00": "b"}))
    wanted = Plan(claim=(KeyClaim(key="g/00", seen_epoch=0),))
    world.act("c", wanted)
    assert world.held() == {"a": [], "b": [], "c": []}
    world.act("b", wanted)
    assert world.held()["b"] == ["g/00"]
    assert world.moves == 1


def test_only_the_owner_gives_away() -> None:
    world = group("a:1 b:0 c:0")
    world.act("c", Plan(hand_over={"g/00": "b"}, release=("g/00",)))
    assert world.held()["a"] == ["g/00"]
    world.act("a", Plan(release=("g/00",)))
    assert world.resources["g/00"].state is State.AVAILABLE


def test_who_has_given_all_away_departs() -> None:
    leaving = MemberInfo(draining=True)
    world = group("a:0 b:1 c:0", a=leaving, b=leaving)
    world.depart()
    assert set(world.members) == {"b", "c"}


def test_a_stale_turn_sees_what_was_before_the_last() -> None:
    world = group("a:0 b:0", free=1)
    assert world.before is None
    world.turn(Strategy.EVEN, "a", Random(1))
    assert world.before is not None
    assert world.before.resources["g/00"].holder is None
    assert world.resources["g/00"].holder == "a"
