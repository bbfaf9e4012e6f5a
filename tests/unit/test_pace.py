"""When the next cycle begins (P10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.balance import Plan, Strategy
from leasehold.core.pace import pause_s
from leasehold.model import Wanted

pytestmark = pytest.mark.spec("P10")
times = st.floats(0, 1e6)


def pause(
    *,
    elapsed_s: float = 1.0,
    stable: bool = True,
    hurries: bool = False,
    expecting: bool = False,
) -> float:
    return pause_s(
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
    waits = pause_s(
        interval_s=interval,
        elapsed_s=elapsed,
        stable=stable,
        hurries=hurries,
        expecting=expecting,
    )
    assert 0 <= waits <= interval


def test_a_plan_is_stable_when_nothing_is_left_to_do() -> None:
    wanted = (Wanted(key="job/a", seen_epoch=0),)
    assert Plan().stable
    assert Plan(expecting=3).stable
    busy = [Plan(claim=wanted), Plan(steal=wanted), Plan(release=("job/a",))]
    assert not any(plan.stable for plan in [*busy, Plan(hand_over={"job/a": "b"})])


def test_greedy_alone_hurries() -> None:
    assert [each for each in Strategy if each.hurries] == [Strategy.GREEDY]
