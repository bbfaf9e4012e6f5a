"""How many keys each member should have: even, within the limits, with the fewest moves."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasehold.core.balance.quota import QuotaMember, quotas

# Sums and quotients of these are exact, or as good as that.
WEIGHTS = (1.0, 2.0, 3.0, 0.5)


def claimants(
    weights: tuple[float, ...] = (1.0,), limits: tuple[int | None, ...] = (None,), most: int = 6
) -> st.SearchStrategy[list[QuotaMember]]:
    one = st.tuples(st.integers(0, 9), st.sampled_from(weights), st.sampled_from(limits))
    return st.lists(one, min_size=1, max_size=most).map(
        lambda drawn: [
            QuotaMember(holder=f"m{n}", count=count, weight=weight, most=limit)
            for n, (count, weight, limit) in enumerate(drawn)
        ]
    )


totals = st.integers(0, 40)
LIMITS = (None, None, 0, 1, 2, 5)


def shares(total: int, members: list[QuotaMember]) -> dict[str, Fraction]:
    """The exact shares: who would get more than its limit gets that, the others share the rest."""
    share: dict[str, Fraction] = {}
    sharing, rest = list(members), Fraction(total)
    while sharing:
        weight = sum(Fraction(str(c.weight)) for c in sharing)
        wish = {c.holder: rest * Fraction(str(c.weight)) / weight for c in sharing}
        full = [c for c in sharing if c.most is not None and wish[c.holder] >= c.most]
        if not full:
            return share | wish
        for each in full:
            share[each.holder] = Fraction(each.most or 0)
            rest -= share[each.holder]
        sharing = [c for c in sharing if c not in full]
    return share


@pytest.mark.spec("P3", "B2")
@given(total=totals, members=claimants())
def test_with_equal_weights_largest_and_smallest_differ_by_one_at_most(
    total: int, members: list[QuotaMember]
) -> None:
    given_out = quotas(total, members).values()
    assert sum(given_out) == total
    assert max(given_out) - min(given_out) <= 1


@pytest.mark.spec("B2")
@given(total=totals, members=claimants(WEIGHTS, LIMITS))
def test_each_is_within_one_of_its_share_by_weight(total: int, members: list[QuotaMember]) -> None:
    given_out, share = quotas(total, members), shares(total, members)
    assert all(abs(given_out[holder] - share[holder]) <= 1 for holder in share)


@given(total=totals, members=claimants(WEIGHTS, LIMITS))
def test_all_is_given_out_unless_the_limits_forbid(total: int, members: list[QuotaMember]) -> None:
    room = sum(math.inf if c.most is None else c.most for c in members)
    assert sum(quotas(total, members).values()) == min(total, room)


@given(total=totals, members=claimants(WEIGHTS, LIMITS))
def test_nobody_gets_more_than_its_limit(total: int, members: list[QuotaMember]) -> None:
    given_out = quotas(total, members)
    assert all(c.most is None or given_out[c.holder] <= c.most for c in members)


def moves(members: list[QuotaMember], numbers: dict[str, int]) -> int:
    return sum(max(0, c.count - numbers[c.holder]) for c in members)


@pytest.mark.spec("B2")
@settings(max_examples=150)
@given(members=claimants(WEIGHTS, LIMITS, most=5), free=st.integers(0, 4))
@example(
    members=[
        QuotaMember(holder=f"m{n}", count=count, weight=weight)
        for n, (count, weight) in enumerate([(0, 1.0), (0, 0.5), (0, 0.5), (5, 1.0)])
    ],
    free=4,
)
def test_no_other_rounding_needs_fewer_moves(members: list[QuotaMember], free: int) -> None:
    total = sum(c.count for c in members) + free
    share, given_out = shares(total, members), quotas(total, members)
    floors = [math.floor(share[c.holder]) for c in members]
    choices = [
        (floor,) if floor in (c.most, share[c.holder]) else (floor, floor + 1)  # whole: no rounding
        for c, floor in zip(members, floors, strict=True)
    ]
    given_in_order = [c.holder for c in members]
    fewest = min(
        moves(members, dict(zip(given_in_order, each, strict=True)))
        for each in product(*choices)
        if sum(each) == sum(given_out.values())
    )
    assert moves(members, given_out) == fewest


@pytest.mark.spec("B2")
@given(total=totals, members=claimants(WEIGHTS, LIMITS), data=st.data())
def test_the_numbers_stand_while_the_plan_is_being_carried_out(
    total: int, members: list[QuotaMember], data: st.DataObject
) -> None:
    target = quotas(total, members)
    on_the_way = [
        QuotaMember(
            holder=c.holder,
            count=data.draw(st.integers(*sorted((c.count, target[c.holder])))),
            weight=c.weight,
            most=c.most,
        )
        for c in members
    ]
    assert quotas(total, on_the_way) == target


@given(total=totals, members=claimants(WEIGHTS, LIMITS), seed=st.integers())
def test_everybody_gets_the_same_numbers_in_whatever_order_they_know_each_other(
    total: int, members: list[QuotaMember], seed: int
) -> None:
    shuffled = Random(seed).sample(members, len(members))
    assert quotas(total, shuffled) == quotas(total, members)


@pytest.mark.parametrize(
    ("total", "counts", "expected"),
    [
        (5, [5, 0, 0], [2, 2, 1]),
        (32, [8, 6, 6, 6, 6], [7, 7, 6, 6, 6]),
        (59, [30, *[1] * 29], [2] * 29 + [1]),
        (2, [0, 0, 1, 1], [0, 0, 1, 1]),
        (0, [0, 0], [0, 0]),
    ],
)
def test_the_remainder_is_shared_too(total: int, counts: list[int], expected: list[int]) -> None:
    members = [QuotaMember(holder=f"m{n:02}", count=count) for n, count in enumerate(counts)]
    assert list(quotas(total, members).values()) == expected


def test_a_share_that_is_whole_is_not_rounded_down_for_its_last_binary_digit() -> None:
    members = [QuotaMember(holder=each, count=0, weight=0.3) for each in "ab"]
    assert quotas(20, members) == {"a": 10, "b": 10}


def test_nobody_to_share_with_is_no_trouble() -> None:
    assert quotas(5, []) == {}


# ------------------------------------------------------------------------- known to be wrong


def test_a_whole_share_is_not_rounded_up() -> None:
    members = [
        QuotaMember(holder="a", count=5, weight=4.0),
        QuotaMember(holder="b", count=0, weight=3.0),
        QuotaMember(holder="c", count=0, weight=3.0),
    ]
    assert quotas(5, members)["a"] == 2


def test_the_limit_holds_when_a_weight_is_no_binary_fraction() -> None:
    members = [
        QuotaMember(holder="a", count=2, weight=0.3, most=1),
        QuotaMember(holder="b", count=0, weight=0.1),
        QuotaMember(holder="c", count=0, weight=0.5),
    ]
    assert quotas(3, members)["a"] <= 1


def test_the_largest_weight_that_the_options_accept_can_be_shared_out() -> None:
    assert quotas(2, [QuotaMember(holder="a", count=0, weight=1e308)]) == {"a": 2}
