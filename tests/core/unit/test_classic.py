"""The strategies of the systems we come from: each by its own rule; all of them come to rest."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.unit.test_group_model import DEAD, Group, group, groups, key

from leasehold import Strategy
from leasehold.core.balance import Plan, Snapshot, plan
from leasehold.model import MemberInfo, State

CLASSIC = [each for each in Strategy if each.steals]
LEAVING = MemberInfo(draining=True)
strategies = st.sampled_from(CLASSIC)
seeds = st.integers(0, 2**32)
some = settings(max_examples=80)


def step(strategy: Strategy, world: Group, me: str, seed: int = 1) -> Plan:
    return plan(strategy, world.snapshot(), me, Random(seed))


def owners(world: Group, step: Plan) -> Counter[str | None]:
    """How many keys are stolen from whom."""
    return Counter(world.resources[wanted.key].holder for wanted in step.steal)


def draws(strategy: Strategy, world: Group, me: str) -> tuple[set[str], set[str]]:
    """All keys that are ever claimed, and all that are ever stolen, over many seeds."""
    plans = [step(strategy, world, me, seed) for seed in range(200)]
    claimed = {wanted.key for each in plans for wanted in each.claim}
    return claimed, {wanted.key for each in plans for wanted in each.steal}


def keys_of(world: Group, *names: str | None) -> set[str]:
    return {each.key for each in world.resources.values() if each.holder in names}


def test_these_are_the_four_that_steal() -> None:
    assert {each.value for each in CLASSIC} == {"balanced", "greedy", "one_steal", "biggest_owner"}


# ----------------------------------------------------------------------- what all of them do


@pytest.mark.spec("P3")
@pytest.mark.parametrize("strategy", CLASSIC)
@pytest.mark.parametrize("mine", [3, 4, 9])
def test_who_has_its_share_takes_nothing(strategy: Strategy, mine: int) -> None:
    world = group(f"a:{mine} b:1", free=5 - min(mine, 4))
    share = -(-len(world.resources) // 2)
    assert step(strategy, world, "a").stable == (mine >= share)


@pytest.mark.spec("P3")
@pytest.mark.parametrize("strategy", CLASSIC)
def test_the_share_is_keys_over_living_members_whether_they_own_or_not(strategy: Strategy) -> None:
    dead = {each.key: each for each in (key(n, holder=DEAD) for n in range(6))}
    world = Group(members=dict.fromkeys("abc", MemberInfo()), resources=dead)
    rng = Random(1)
    for _ in range(8):
        world.cycle(strategy, rng)
    assert world.counts() == [2, 2, 2]


def _fair_share(view: Snapshot) -> int:
    """The smallest number per member with which all keys are taken, if they can be."""
    limits = [view.members[taker].most for taker in view.takers()]
    total = len(view.resources)

    def taken(share: int) -> int:
        return sum(share if most is None else min(share, most) for most in limits)

    return next((share for share in range(total + 1) if taken(share) >= total), total)


@pytest.mark.spec("P3")
@some
@given(world=groups(limits=(None, 0, 2)), strategy=strategies, seed=seeds)
def test_nobody_plans_for_more_than_its_share_or_its_limit(
    world: Group, strategy: Strategy, seed: int
) -> None:
    view = world.snapshot()
    share = _fair_share(view)
    owned = view.keys_by_owner()
    for me, info in view.members.items():
        wish = step(strategy, world, me, seed)
        most = share if info.most is None else min(share, info.most)
        taken = {wanted.key for wanted in (*wish.claim, *wish.steal)}
        assert len(taken) == len(wish.claim) + len(wish.steal)
        new = taken - set(owned[me])
        assert not new or len(owned[me]) + len(new) <= most
        assert not wish.hand_over


@pytest.mark.spec("P9")
@pytest.mark.parametrize("strategy", CLASSIC)
def test_keys_are_mine_or_free_and_expired_or_held_by_somebody_with_too_many(
    strategy: Strategy,
) -> None:
    resources = [
        key(0, holder="a"),
        key(1),
        key(2, holder=DEAD),
        key(3, kept_for=DEAD),
        *(key(n, holder="b") for n in range(4, 9)),
        key(9, holder="c"),
    ]
    members = dict.fromkeys("abc", MemberInfo())
    world = Group(members=members, resources={each.key: each for each in resources})
    claimed, stolen = draws(strategy, world, "a")
    assert claimed == {"g/01", "g/02", "g/03"}
    assert stolen <= keys_of(world, "b")


@pytest.mark.spec("P9")
@pytest.mark.parametrize("strategy", CLASSIC)
def test_what_is_kept_for_me_is_claimed_and_what_is_kept_for_others_is_left(
    strategy: Strategy,
) -> None:
    resources = [key(0, kept_for="a"), key(1, kept_for="b")]
    members = dict.fromkeys("ab", MemberInfo())
    world = Group(members=members, resources={each.key: each for each in resources})
    assert draws(strategy, world, "a") == ({"g/00"}, set())


@some
@given(world=groups(), strategy=strategies, seed=seeds)
def test_a_claim_is_of_what_nobody_living_has_and_a_steal_of_what_somebody_has(
    world: Group, strategy: Strategy, seed: int
) -> None:
    view = world.snapshot()
    owner = {name: view.owner_of(each) for name, each in view.resources.items()}
    for me in world.members:
        wish = step(strategy, world, me, seed)
        assert all(owner[wanted.key] in (None, me) for wanted in wish.claim)
        assert all(owner[wanted.key] not in (None, me) for wanted in wish.steal)
        seen = {wanted.key: wanted.seen_epoch for wanted in (*wish.claim, *wish.steal)}
        assert seen == {name: view.resources[name].epoch for name in seen}


@some
@given(world=groups(), strategy=strategies, seed=seeds)
def test_all_come_to_rest_balanced_and_who_leaves_ends_with_nothing(
    world: Group, strategy: Strategy, seed: int
) -> None:
    rng = Random(seed)
    for _ in range(4 * len(world.resources) + 4):
        busy = world.cycle(strategy, rng)
        world.depart()
        if not busy and not world.cycle(strategy, rng, stale=False):
            break
    assert not world.cycle(strategy, rng, stale=False)
    counts = world.counts()
    assert max(counts, default=0) - min(counts, default=0) <= 1
    assert sum(counts) == (len(world.resources) if counts else 0)
    assert not any(info.draining for info in world.members.values())


@pytest.mark.parametrize("strategy", CLASSIC)
@pytest.mark.parametrize("counts", ["a:2 b:2 c:2", "a:3 b:2 c:2", "a:1 b:0 c:1", "a:0 b:0"])
def test_when_balanced_nobody_does_anything(strategy: Strategy, counts: str) -> None:
    world = group(counts)
    assert all(step(strategy, world, me).stable for me in world.members)


@pytest.mark.parametrize("strategy", CLASSIC)
def test_who_leaves_releases_all_and_takes_nothing(strategy: Strategy) -> None:
    world = group("a:2 b:6", free=1, a=LEAVING)
    assert step(strategy, world, "a") == Plan(release=("g/00", "g/01"))


@pytest.mark.parametrize("strategy", CLASSIC)
def test_who_leaves_does_not_claim_what_is_kept_for_it(strategy: Strategy) -> None:
    world = Group(members={"a": LEAVING}, resources={"g/00": key(0, kept_for="a")})
    assert step(strategy, world, "a").stable


@pytest.mark.parametrize("strategy", CLASSIC)
def test_when_everybody_leaves_all_is_released(strategy: Strategy) -> None:
    world = group("a:2 b:1", a=LEAVING, b=LEAVING)
    world.cycle(strategy, Random(1))
    assert {each.state for each in world.resources.values()} == {State.AVAILABLE}


@pytest.mark.parametrize("strategy", CLASSIC)
def test_the_same_seed_gives_the_same_plan(strategy: Strategy) -> None:
    world = group("a:9 b:9 c:1", free=2)
    assert step(strategy, world, "c", 5) == step(strategy, world, "c", 5)


@pytest.mark.parametrize("strategy", CLASSIC)
def test_nobody_is_robbed_when_the_free_keys_are_enough(strategy: Strategy) -> None:
    world = group("a:2 b:2 c:0", free=1)
    wish = step(strategy, world, "c")
    assert len(wish.claim) == 1
    assert not wish.steal


@pytest.mark.parametrize("strategy", CLASSIC)
def test_nobody_at_its_share_is_robbed_while_another_gives_all_away(strategy: Strategy) -> None:
    world = group("a:2 b:0 c:2", a=LEAVING)
    assert draws(strategy, world, "b")[1] <= keys_of(world, "a")


# ------------------------------------------------------------------------- balanced and greedy


@pytest.mark.spec("P8")
def test_balanced_takes_one_key_a_cycle_free_ones_first_and_by_lot() -> None:
    world = group("a:4 b:0", free=3)
    for seed in range(20):
        wish = step(Strategy.BALANCED, world, "b", seed)
        assert (len(wish.claim), len(wish.steal)) == (1, 0)
    assert draws(Strategy.BALANCED, world, "b") == (keys_of(world, None), set())


@pytest.mark.spec("P8")
def test_balanced_steals_one_key_by_lot_when_none_is_free() -> None:
    world = group("a:6 b:0")
    for seed in range(20):
        wish = step(Strategy.BALANCED, world, "b", seed)
        assert (len(wish.claim), len(wish.steal)) == (0, 1)
    assert draws(Strategy.BALANCED, world, "b") == (set(), keys_of(world, "a"))


@pytest.mark.spec("P8")
def test_greedy_takes_all_that_is_missing_at_once_free_ones_first_and_by_lot() -> None:
    world = group("a:6 b:0", free=2)
    for seed in range(20):
        wish = step(Strategy.GREEDY, world, "b", seed)
        assert (len(wish.claim), len(wish.steal)) == (2, 2)
    enough = group("a:2 b:0", free=4)
    assert len(step(Strategy.GREEDY, enough, "b").claim) == 3
    assert draws(Strategy.GREEDY, enough, "b") == (keys_of(enough, None), set())


@pytest.mark.spec("P8")
def test_greedy_stops_stealing_where_it_would_turn_the_gap_round() -> None:
    world = group("a:5 b:0")
    assert len(step(Strategy.GREEDY, world, "b").steal) == 2


@pytest.mark.parametrize("strategy", [Strategy.BALANCED, Strategy.GREEDY])
def test_a_gap_of_one_is_no_reason_to_steal(strategy: Strategy) -> None:
    world = group("a:2 b:1 c:2")
    assert step(strategy, world, "b").stable


def test_greedy_goes_on_while_somebody_has_two_more() -> None:
    world = group("a:10 b:9 c:0")
    wish = step(Strategy.GREEDY, world, "c")
    assert len(wish.steal) >= 6
    assert owners(world, wish)["a"] <= 4


def test_balanced_steals_by_lot_from_all_that_have_too_many() -> None:
    world = group("a:4 b:4 c:0")
    assert draws(Strategy.BALANCED, world, "c")[1] == keys_of(world, "a", "b")


# --------------------------------------------------------------------------------- one_steal


@pytest.mark.spec("P6")
@pytest.mark.parametrize(
    ("counts", "victim"),
    [("a:5 b:3 c:0", "a"), ("a:3 b:5 c:0", "b"), ("a:6 b:6 c:1", None)],
)
def test_one_steal_takes_one_from_the_biggest(counts: str, victim: str | None) -> None:
    world = group(counts)
    for seed in range(20):
        robbed = owners(world, step(Strategy.ONE_STEAL, world, "c", seed))
        assert sum(robbed.values()) == 1
        assert victim is None or robbed == {victim: 1}


@pytest.mark.spec("P6")
@pytest.mark.parametrize(("counts", "steals"), [("a:3 b:1", 1), ("a:2 b:1", 0), ("a:2 b:0", 1)])
def test_one_steal_needs_an_owner_with_two_more(counts: str, steals: int) -> None:
    assert len(step(Strategy.ONE_STEAL, group(counts), "b").steal) == steals


@pytest.mark.spec("P6")
def test_one_steal_takes_all_free_keys_up_to_its_share_and_then_robs_nobody() -> None:
    world = group("a:6 b:0", free=2)
    wish = step(Strategy.ONE_STEAL, world, "b")
    assert (len(wish.claim), len(wish.steal)) == (2, 0)
    assert len(step(Strategy.ONE_STEAL, group("a:0 b:0", free=6), "b").claim) == 3


# ------------------------------------------------------------------------------ biggest_owner


@pytest.mark.spec("P7")
@some
@given(world=groups(draining=False), seed=seeds)
def test_biggest_owner_robs_one_of_the_biggest_and_only_above_the_mean(
    world: Group, seed: int
) -> None:
    view = world.snapshot()
    owned = view.keys_by_owner()
    mean = len(view.resources) / max(1, len(view.takers()))
    for me in view.members:
        wish = step(Strategy.BIGGEST_OWNER, world, me, seed)
        robbed = {view.owner_of(view.resources[wanted.key]) for wanted in wish.steal}
        assert len(robbed) <= 1
        for victim in robbed:
            assert len(owned[victim]) == max(len(owned[other]) for other in view.members)
            assert len(owned[victim]) > mean


@pytest.mark.spec("P7")
def test_biggest_owner_takes_as_many_at_once_as_are_missing() -> None:
    assert len(step(Strategy.BIGGEST_OWNER, group("a:10 b:0"), "b").steal) == 5
    wish = step(Strategy.BIGGEST_OWNER, group("a:8 b:0", free=2), "b")
    assert (len(wish.claim), len(wish.steal)) == (2, 3)


@pytest.mark.spec("P7")
def test_biggest_owner_leaves_its_victim_the_share() -> None:
    world = group("a:5 b:4 c:0")
    assert owners(world, step(Strategy.BIGGEST_OWNER, world, "c")) == {"a": 2}


@pytest.mark.spec("P7")
def test_biggest_owner_draws_among_the_biggest() -> None:
    world = group("a:4 b:4 c:3 d:0")
    assert draws(Strategy.BIGGEST_OWNER, world, "d")[1] == keys_of(world, "a", "b")


@pytest.mark.spec("P7")
def test_biggest_owner_needs_somebody_with_two_more() -> None:
    assert step(Strategy.BIGGEST_OWNER, group("a:2 b:1 c:2"), "b").stable
