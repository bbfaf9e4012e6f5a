"""``even``: balanced within two cycles from any state, with the fewest moves, and then still."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.unit.test_group_model import DEAD, Group, group, groups, key
from tests.core.unit.test_quota import shares

from leasehold import Strategy
from leasehold.core.balance import Snapshot, min_moves, plan, spread
from leasehold.core.balance.even import plan_even
from leasehold.core.balance.quota import QuotaMember
from leasehold.model import MemberInfo, State

WEIGHTS = (1.0, 1.0, 2.0, 0.5)
LIMITS = (None, None, 0, 1, 3)
seeds = st.integers(0, 2**32)
LEAVING = MemberInfo(draining=True)
many = settings(max_examples=60)


def two_cycles(world: Group, seed: int) -> Group:
    rng = Random(seed)
    for _ in range(2):
        world.cycle(Strategy.EVEN, rng)
    return world


def still(world: Group) -> bool:
    view = world.snapshot()
    plans = [plan_even(view, me) for me in world.members]
    return all(each.stable and not each.expecting for each in plans)


def fair(world: Group) -> dict[str, Fraction]:
    """The exact share of each member that takes keys."""
    takers = world.snapshot().takers()
    infos = {holder: world.members[holder] for holder in takers}
    return shares(
        len(world.resources),
        [
            QuotaMember(holder=holder, count=0, weight=info.weight, most=info.most)
            for holder, info in infos.items()
        ],
    )


# ---------------------------------------------------------------------------- two cycles


@pytest.mark.spec("B2", "P3")
@many
@given(world=groups(), seed=seeds)
def test_balanced_within_two_cycles_from_any_state(world: Group, seed: int) -> None:
    two_cycles(world, seed)
    counts = world.counts()
    assert sum(counts) == (len(world.resources) if counts else 0)
    assert max(counts, default=0) - min(counts, default=0) <= 1
    assert spread(world.snapshot()) <= 1
    assert still(world)


@pytest.mark.spec("B2")
@many
@given(world=groups(), seed=seeds)
def test_cycles_that_overlap_need_one_more_at_most(world: Group, seed: int) -> None:
    rng = Random(seed)
    for _ in range(3):
        world.cycle(Strategy.EVEN, rng, overlap=True)
    counts = world.counts()
    assert max(counts, default=0) - min(counts, default=0) <= 1
    assert still(world)


@pytest.mark.spec("B2")
@many
@given(world=groups(weights=WEIGHTS, limits=LIMITS), seed=seeds)
def test_each_is_within_one_of_its_share_by_weight_and_within_its_limit(
    world: Group, seed: int
) -> None:
    share = fair(world)
    held = two_cycles(world, seed).held()
    for holder, ideal in share.items():
        most = world.members[holder].most
        assert abs(len(held[holder]) - ideal) <= 1
        assert most is None or len(held[holder]) <= most
    assert sum(len(keys) for keys in held.values()) == sum(share.values())
    assert still(world)


@many
@given(world=groups(limits=LIMITS, over_limit=True), seed=seeds)
def test_who_is_over_its_limit_gets_nothing_more(world: Group, seed: int) -> None:
    first = {holder: len(keys) for holder, keys in world.snapshot().keys_by_owner().items()}
    held = two_cycles(world, seed).held()
    for holder, info in world.members.items():
        assert info.most is None or len(held[holder]) <= max(info.most, first[holder])


@pytest.mark.spec("B2")
@many
@given(world=groups(weights=WEIGHTS, limits=LIMITS, over_limit=True), seed=seeds)
def test_it_takes_the_fewest_moves_and_never_force(world: Group, seed: int) -> None:
    start = world.snapshot()
    fewest = min_moves(start)
    end = two_cycles(world, seed).snapshot()
    assert world.moves == fewest
    assert world.steals == 0
    changed = [
        each.key
        for each in start.resources.values()
        if (owner := start.owner_of(each)) is not None
        and end.owner_of(end.resources[each.key]) not in (owner, None)
    ]
    assert len(changed) == fewest


@pytest.mark.spec("B2")
@many
@given(world=groups(weights=WEIGHTS, limits=LIMITS), seed=seeds)
def test_once_balanced_nothing_moves(world: Group, seed: int) -> None:
    end = two_cycles(world, seed).snapshot()
    rng = Random(seed)
    assert not any(world.cycle(Strategy.EVEN, rng, stale=False) for _ in range(3))
    assert world.snapshot() == end


@pytest.mark.spec("B2")
@many
@given(world=groups(weights=WEIGHTS, limits=LIMITS), seed=seeds)
def test_members_that_act_in_the_same_instant_are_balanced_as_soon(world: Group, seed: int) -> None:
    share = fair(world)
    for _ in range(2):
        seen = world.snapshot()
        plans = {
            me: plan_even(seen, me)
            for me in Random(seed).sample([*world.members], len(world.members))
        }
        for me, step in plans.items():
            world.act(me, step)
    assert sum(len(keys) for keys in world.held().values()) == sum(share.values())
    assert still(world)


@many
@given(world=groups(weights=WEIGHTS, limits=LIMITS, over_limit=True), seed=seeds)
def test_who_leaves_ends_with_nothing(world: Group, seed: int) -> None:
    held = two_cycles(world, seed).held()
    assert not any(held[holder] for holder, info in world.members.items() if info.draining)


# ------------------------------------------------------------------------ one plan for all


@pytest.mark.spec("B2")
@many
@given(world=groups(weights=WEIGHTS, limits=LIMITS, over_limit=True), seed=seeds)
def test_all_members_compute_the_same_plan_from_one_snapshot(world: Group, seed: int) -> None:
    view = world.snapshot()
    plans = {me: plan_even(view, me) for me in world.members}
    claims = Counter(wanted.key for each in plans.values() for wanted in each.claim)
    given_away = Counter(key for each in plans.values() for key in each.hand_over)
    assert not [key for key, times in (claims + given_away).items() if times > 1]
    coming = Counter(to for each in plans.values() for to in each.hand_over.values())
    assert {me: each.expecting for me, each in plans.items()} == {me: coming[me] for me in plans}
    owner = {key: view.owner_of(each) for key, each in view.resources.items()}
    for me, each in plans.items():
        assert all(owner[wanted.key] in (None, me) for wanted in each.claim)
        assert all(owner[key] == me for key in [*each.hand_over, *each.release])
        assert not any(view.members[to].draining for to in each.hand_over.values())
        assert not each.steal


@many
@given(world=groups(weights=WEIGHTS, limits=LIMITS), seed=seeds)
def test_the_plan_does_not_depend_on_order_or_chance(world: Group, seed: int) -> None:
    rng, view = Random(seed), world.snapshot()
    shuffled = Snapshot(
        members=dict(rng.sample([*view.members.items()], len(view.members))),
        resources=dict(rng.sample([*view.resources.items()], len(view.resources))),
    )
    for me in world.members:
        assert plan_even(shuffled, me) == plan_even(view, me)
        assert plan(Strategy.EVEN, view, me, rng) == plan_even(view, me)


@many
@given(world=groups(weights=WEIGHTS, limits=LIMITS), seed=seeds)
def test_it_makes_no_difference_which_steps_of_the_others_i_have_seen(
    world: Group, seed: int
) -> None:
    rng = Random(seed)
    me, *others = rng.sample([*world.members], len(world.members))
    first = plan_even(world.snapshot(), me)
    for other in rng.sample(others, rng.randint(0, len(others))):
        world.act(other, plan_even(world.snapshot(), other))
    later = plan_even(world.snapshot(), me)
    assert later.hand_over == first.hand_over
    assert {each.key for each in first.claim} <= {each.key for each in later.claim}


# ------------------------------------------------------------------------------ by example


def test_a_newcomer_gets_its_share_from_those_who_have_most() -> None:
    world = group("a:4 b:4 c:0")
    first, second = (plan_even(world.snapshot(), me) for me in "ab")
    assert [*first.hand_over.values(), *second.hand_over.values()] == ["c", "c"]
    assert plan_even(world.snapshot(), "c").expecting == 2


def test_more_members_than_keys_leaves_standbys_that_ask_for_nothing() -> None:
    world = two_cycles(group("a:2 b:0 c:0 d:0"), seed=1)
    assert sorted(world.counts()) == [0, 0, 1, 1]
    assert still(world)


def test_when_everybody_leaves_the_keys_are_released() -> None:
    world = two_cycles(group("a:2 b:1", a=LEAVING, b=LEAVING), seed=1)
    assert {each.state for each in world.resources.values()} == {State.AVAILABLE}
    assert world.moves == 0


def test_a_key_kept_for_one_who_died_is_free() -> None:
    world = Group(members={"a": MemberInfo()}, resources={"g/00": key(0, kept_for=DEAD)})
    assert [each.key for each in plan_even(world.snapshot(), "a").claim] == ["g/00"]


def test_a_key_that_has_begun_is_kept_and_one_on_its_way_goes_on() -> None:
    resources = [key(0, kept_for="a"), key(1, holder="a")]
    world = Group(
        members={"a": MemberInfo(), "b": MemberInfo()},
        resources={each.key: each for each in resources},
    )
    assert plan_even(world.snapshot(), "a").hand_over == {"g/00": "b"}
    assert not plan_even(world.snapshot(), "a").claim


def test_a_key_that_is_being_broken_counts_as_its_owners() -> None:
    world = group("a:1 b:1")
    world.resources["g/00"] = replace(world.resources["g/00"], state=State.BREAKING)
    assert still(world)


@pytest.mark.spec("P3")
def test_only_who_is_alive_counts() -> None:
    world = Group(
        members={"a": MemberInfo(), "b": MemberInfo()},
        resources={each.key: each for each in (key(n, holder=DEAD) for n in range(6))},
    )
    two_cycles(world, seed=1)
    assert world.counts() == [3, 3]


def test_what_an_outsider_holds_is_left_out_of_the_count() -> None:
    world = group("a:2 b:2")
    outside = {"g/98": key(98, holder="outsider"), "g/99": key(99, holder="outsider")}
    view = replace(world.snapshot(), resources={**world.resources, **outside})
    assert plan_even(view, "a").stable
    assert plan_even(view, "b").stable
