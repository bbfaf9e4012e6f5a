"""When the next cycle begins (P10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import Strategy
from leasehold.core.balance import Plan
from leasehold.core.lease_timing import cycle_pause_s, early_cycle_s
from leasehold.model import KeyClaim

pytestmark = pytest.mark.spec("P10")
times = st.floats(0, 1e6)


def pause(
    *,
    elapsed_s: float = 1.0,
    stable: bool = True,
    hurries: bool = False,
    expecting: bool = False,
) -> float:
    return cycle_pause_s(
        interval_s=30.0, elapsed_s=elapsed_s, stable=stable, hurries=hurries, expecting=expecting
    )


@pytest.mark.parametrize("stable", [True, False])
def test_the_period_is_the_interval_and_not_the_interval_plus_the_work(stable: bool) -> None:
    assert pause(elapsed_s=12.0, stable=stable) == 18.0


def test_a_greedy_host_goes_on_at_once_until_it_is_stable() -> None:
    assert pause(hurries=True, stable=False) == 0.0
    assert pause(hurries=True, stable=True) == 29.0


@pytest.mark.parametrize("elapsed_s", [30.0, 30.001, 1e9])
def test_a_cycle_that_outlasted_the_interval_is_followed_at_once(elapsed_s: float) -> None:
    assert pause(elapsed_s=elapsed_s) == 0.0


def test_who_expects_keys_or_has_just_stolen_looks_again_sooner() -> None:
    assert pause(expecting=True) == 9.0
    assert pause(expecting=True, elapsed_s=11.0) == 0.0


@given(
    interval=times,
    elapsed=times,
    stable=st.booleans(),
    hurries=st.booleans(),
    expecting=st.booleans(),
)
def test_no_pause_is_negative_or_longer_than_the_interval(
    interval: float, elapsed: float, stable: bool, hurries: bool, expecting: bool
) -> None:
    waits = cycle_pause_s(
        interval_s=interval,
        elapsed_s=elapsed,
        stable=stable,
        hurries=hurries,
        expecting=expecting,
    )
    assert 0 <= waits <= interval


def early(
    next_end_s: float, *, lease_s: float = 10.0, chance: float = 0.0, again: bool = False
) -> float:
    return early_cycle_s(
        next_end_s=next_end_s, lease_s=lease_s, interval_s=3.0, chance=chance, again=again
    )


def test_an_early_look_comes_a_grace_after_the_end() -> None:
    assert early(1.0) == pytest.approx(1.2)
    assert early(1.0, chance=1.0) == pytest.approx(1.4)
    assert early(1.0, lease_s=0.1) == pytest.approx(1.02), "the grace is 20 ms at least"


def test_an_end_in_the_past_is_no_reason_to_spin() -> None:
    assert early(0.0) == early(-100.0) == pytest.approx(0.2)


def test_one_early_look_after_another_waits_for_a_third_of_the_interval() -> None:
    assert early(0.0, again=True) == 1.0
    assert early(-100.0, again=True) == 1.0
    assert early(2.0, again=True) == pytest.approx(2.2)


@given(ends=st.floats(-1e6, 1e6), lease=st.floats(0.05, 1e6), chance=st.floats(0, 1))
def test_an_early_look_is_never_before_the_end_and_never_at_once(
    ends: float, lease: float, chance: float
) -> None:
    for again in (False, True):
        waits = early(ends, lease_s=lease, chance=chance, again=again)
        assert waits >= max(ends, 0.02)


def test_a_plan_is_stable_when_nothing_is_left_to_do() -> None:
    wanted = (KeyClaim(key="job/a", seen_epoch=0),)
    assert Plan().stable
    assert Plan(expecting=3).stable
    busy = [Plan(claim=wanted), Plan(steal=wanted), Plan(release=("job/a",))]
    assert not any(plan.stable for plan in [*busy, Plan(hand_over={"job/a": "b"})])


def test_greedy_alone_hurries() -> None:
    assert [each for each in Strategy if each.hurries] == [Strategy.GREEDY]
