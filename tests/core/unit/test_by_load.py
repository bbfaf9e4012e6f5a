"""``by_load``: even out measured load, and leave alone what is near enough."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.unit.test_group_model import NAMES, Group, key

from leasehold import Strategy
from leasehold.core.balance import plan
from leasehold.core.balance.by_load import DAMPING, DEAD_BAND, plan_by_load
from leasehold.core.balance.even import plan_even
from leasehold.model import MemberInfo, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable

Loads = dict[str, list[float | None]]
LEAVING = MemberInfo(draining=True)
some = settings(max_examples=60)
seeds = st.integers(0, 2**32)


def world(owned: Loads, *, free: int = 0, **infos: MemberInfo) -> Group:
    """Members with the loads of their keys, None where nothing was measured; and free keys."""
    members: dict[str, MemberInfo] = {}
    resources: list[Resource] = []
    for name, loads in owned.items():
        mine = [key(len(resources) + n, holder=name) for n in range(len(loads))]
        known = {each.key: load for each, load in zip(mine, loads, strict=True) if load is not None}
        members[name] = replace(infos.get(name, MemberInfo()), loads=known)
        resources += mine
    resources += [key(len(resources) + n) for n in range(free)]
    return Group(members=members, resources={each.key: each for each in resources})


def weigh(group: Group, names: Iterable[str]) -> float:
    """The load of some keys; one nobody measured weighs as much as the mean of the others."""
    known = {k: v for info in group.members.values() for k, v in info.loads.items()}
    mean = math.fsum(known.values()) / len(known)
    return math.fsum(known.get(name, mean) for name in names)


def load_of(group: Group, holder: str) -> float:
    """What a member carries."""
    return weigh(group, group.held()[holder])


@st.composite
def loaded(draw: st.DrawFn, *, free: int = 0, weights: tuple[float, ...] = (1.0,)) -> Group:
    """A group where everybody has a key and something was measured."""
    names = NAMES[: draw(st.integers(2, 5))]
    load = st.none() | st.floats(0, 100)
    owned = {name: draw(st.lists(load, min_size=1, max_size=6)) for name in names}
    owned[names[0]][0] = draw(st.floats(1, 100))
    infos = {name: MemberInfo(weight=draw(st.sampled_from(weights))) for name in names}
    return world(owned, free=draw(st.integers(0, free)), **infos)


def busy(group: Group) -> bool:
    return not all(plan_by_load(group.snapshot(), me).stable for me in group.members)


# --------------------------------------------------------------------- dead band and damping


def test_nothing_moves_within_the_dead_band() -> None:
    assert not busy(world({"a": [1.0] * 11, "b": [1.0] * 9}))
    assert not busy(world({"a": [55.0, 55.0], "b": [30.0] * 3}))
    assert not busy(world({"a": [10.0], "b": [10.0], "c": [10.0]}))


def test_beyond_the_dead_band_the_owner_hands_over() -> None:
    step = plan_by_load(world({"a": [1.0] * 12, "b": [1.0] * 8}).snapshot(), "a")
    assert set(step.hand_over.values()) == {"b"}


def test_one_measurement_moves_only_a_damped_part_of_the_surplus() -> None:
    group = world({"a": [1.0] * 30, "b": [1.0] * 10})
    step = plan_by_load(group.snapshot(), "a")
    assert len(step.hand_over) == int(10 * DAMPING)


def test_the_heaviest_keys_that_fit_go_first_and_idle_ones_stay() -> None:
    group = world({"a": [50.0, 6.0, 4.0, 0.0, 0.0], "b": [20.0]})
    assert list(plan_by_load(group.snapshot(), "a").hand_over) == ["g/01", "g/02"]


def test_a_key_that_is_heavier_than_the_surplus_stays_where_it_is() -> None:
    assert not busy(world({"a": [90.0], "b": [10.0]}))


@some
@given(group=loaded(weights=(1.0, 2.0)))
def test_an_owner_gives_no_more_than_a_damped_surplus_and_a_receiver_stays_within_the_band(
    group: Group,
) -> None:
    view = group.snapshot()
    load = {me: load_of(group, me) for me in group.members}
    weight = math.fsum(info.weight for info in view.members.values())
    share = {m: sum(load.values()) * info.weight / weight for m, info in view.members.items()}
    gained = dict.fromkeys(load, 0.0)
    for me in group.members:
        step = plan_by_load(view, me)
        given_away = weigh(group, step.hand_over)
        surplus = max(0.0, load[me] - share[me])
        damped = DAMPING if len(step.hand_over) > 1 else 1.0
        assert given_away <= damped * surplus + 1e-6
        for name, to in step.hand_over.items():
            gained[to] += weigh(group, [name])
    for me, more in gained.items():
        assert more == 0 or load[me] + more <= share[me] * (1 + DEAD_BAND) + 1e-6


# ------------------------------------------------------------------- free keys, unknown loads


def test_free_keys_go_where_there_is_most_room() -> None:
    group = world({"a": [30.0], "b": [10.0], "c": [29.0]}, free=1)
    claims = {me: len(plan_by_load(group.snapshot(), me).claim) for me in group.members}
    assert claims == {"a": 0, "b": 1, "c": 0}


def test_while_keys_are_free_nobody_hands_over() -> None:
    group = world({"a": [1.0] * 30, "b": [1.0]}, free=1)
    assert not plan_by_load(group.snapshot(), "a").hand_over


def test_a_key_that_is_kept_for_me_is_claimed() -> None:
    group = world({"a": [5.0], "b": [5.0]})
    group.resources["g/02"] = key(2, kept_for="a")
    assert [each.key for each in plan_by_load(group.snapshot(), "a").claim] == ["g/02"]
    assert plan_by_load(group.snapshot(), "b").stable


def test_an_unknown_load_counts_as_the_mean_of_the_known() -> None:
    known = world({"a": [10.0] * 6, "b": [10.0] * 2})
    unknown = world({"a": [None] * 6, "b": [10.0] * 2})
    for me in "ab":
        assert plan_by_load(unknown.snapshot(), me) == plan_by_load(known.snapshot(), me)


def test_limits_are_kept_when_free_keys_are_placed() -> None:
    group = world({"a": [1.0], "b": [50.0]}, free=4, a=MemberInfo(most=2))
    claims = {me: len(plan_by_load(group.snapshot(), me).claim) for me in group.members}
    assert claims == {"a": 1, "b": 3}


def test_a_member_at_its_limit_gets_nothing() -> None:
    group = world({"a": [10.0] * 6, "b": [1.0]}, b=MemberInfo(most=1))
    assert plan_by_load(group.snapshot(), "a").stable


def test_a_heavier_member_carries_more() -> None:
    assert not busy(world({"a": [1.0] * 20, "b": [1.0] * 10}, a=MemberInfo(weight=2.0)))
    assert busy(world({"a": [1.0] * 20, "b": [1.0] * 10}))


# ---------------------------------------------------------------------- back to plain numbers


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(world({"a": [None] * 5, "b": [None]}), id="no load is known"),
        pytest.param(world({"a": [0.0] * 5, "b": [0.0]}), id="all are idle"),
        pytest.param(world({"a": [9.0] * 5, "b": [1.0], "c": [2.0]}, c=LEAVING), id="one leaves"),
        pytest.param(world({"a": [9.0] * 5, "b": []}), id="one has nothing yet"),
        pytest.param(world({"a": [5.0], "b": [5.0]}, a=LEAVING, b=LEAVING), id="all leave"),
    ],
)
def test_it_is_even_by_numbers_until_there_is_something_to_weigh(group: Group) -> None:
    for me in group.members:
        assert plan_by_load(group.snapshot(), me) == plan_even(group.snapshot(), me)


def test_who_leaves_and_has_nothing_left_does_not_keep_the_others_from_weighing() -> None:
    group = world({"a": [9.0] * 6, "b": [9.0] * 2, "c": []}, c=LEAVING)
    assert plan_by_load(group.snapshot(), "a").hand_over == {"g/00": "b"}
    assert plan_by_load(group.snapshot(), "c").stable


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_a_load_that_can_not_be_is_not_counted(bad: float) -> None:
    group = world({"a": [bad, 4.0], "b": [4.0, 4.0]})
    assert not busy(group)


def test_loads_of_keys_that_are_gone_are_not_counted() -> None:
    group = world({"a": [4.0] * 2, "b": [4.0] * 2})
    info = group.members["a"]
    group.members["a"] = replace(info, loads={**info.loads, "g/99": 1e9})
    assert not busy(group)


# ---------------------------------------------------------------------------------- together


@some
@given(group=loaded(free=5, weights=(1.0, 2.0)), seed=seeds)
def test_all_members_agree(group: Group, seed: int) -> None:
    view = group.snapshot()
    plans = {me: plan_by_load(view, me) for me in group.members}
    touched = Counter(wanted.key for each in plans.values() for wanted in each.claim)
    touched.update(name for each in plans.values() for name in each.hand_over)
    assert all(times == 1 for times in touched.values())
    claimed = {wanted.key for each in plans.values() for wanted in each.claim}
    assert claimed == {name for name, each in view.resources.items() if each.holder is None}
    for me, each in plans.items():
        assert all(view.held_by(name, me) for name in each.hand_over)
        assert all(to in view.takers() and to != me for to in each.hand_over.values())
        assert plan(Strategy.BY_LOAD, view, me, Random(seed)) == each


@some
@given(group=loaded(free=5, weights=(1.0, 2.0)), seed=seeds)
def test_with_loads_that_stand_still_it_comes_to_rest(group: Group, seed: int) -> None:
    rng = Random(seed)
    for _ in range(30):
        if not group.cycle(Strategy.BY_LOAD, rng, stale=False):
            break
    assert not busy(group)
    assert sum(group.counts()) == len(group.resources)


@some
@given(group=loaded(weights=(1.0, 2.0)), seed=seeds)
def test_no_member_ends_further_above_its_share_than_the_worst_began(
    group: Group, seed: int
) -> None:
    def worst() -> float:
        return max(load_of(group, me) / info.weight for me, info in group.members.items())

    before, rng = worst(), Random(seed)
    total = math.fsum(load_of(group, me) for me in group.members)
    mean = total / math.fsum(info.weight for info in group.members.values())
    for _ in range(30):
        group.cycle(Strategy.BY_LOAD, rng, stale=False)
    assert worst() <= max(before, mean * (1 + DEAD_BAND)) + 1e-6


# ------------------------------------------------------------------------- known to be wrong


def test_a_small_member_far_above_its_share_is_relieved() -> None:
    group = world(
        {"a": [109.0], "b": [1.0] * 18, "c": [83.0]},
        a=MemberInfo(weight=10.0),
        c=MemberInfo(weight=10.0),
    )
    assert plan_by_load(group.snapshot(), "b").hand_over


def test_a_limit_of_nothing_is_a_limit() -> None:
    group = world({"a": [1.0] * 6, "b": [1.0]}, b=MemberInfo(most=0))
    assert not plan_by_load(group.snapshot(), "a").hand_over


def test_three_keys_against_one_are_evened_out() -> None:
    assert busy(world({"a": [1.0] * 3, "b": [1.0]}))
