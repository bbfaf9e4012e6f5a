"""Load per second: an average with a half-life."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.load_meter import LoadMeter, rounded


@pytest.mark.spec("B4")
def test_a_steady_flow_is_measured_as_it_is() -> None:
    meter = LoadMeter(0.0, half_life_s=10.0)
    for tenth in range(1, 2001):
        meter.add(50.0, tenth / 10)
    assert meter.rate(200.0) == pytest.approx(500.0, rel=0.02)


def test_after_a_half_life_of_silence_half_is_left() -> None:
    meter = LoadMeter(0.0, half_life_s=10.0)
    meter.add(100.0, 5.0)
    assert meter.rate(15.0) == pytest.approx(meter.rate(5.0) / 2)


def test_nothing_gives_nothing() -> None:
    assert LoadMeter(3.0).rate(1e6) == 0.0


def test_a_clock_that_seems_to_go_back_does_not_raise_the_rate() -> None:
    meter = LoadMeter(10.0)
    meter.add(5.0, 10.0)
    assert meter.rate(9.0) == meter.rate(10.0)


@pytest.mark.parametrize(
    ("rate", "shown"), [(0.0, 0.0), (-1.0, 0.0), (math.inf, 0.0), (math.nan, 0.0), (1234.0, 1200.0)]
)
def test_a_rate_is_told_to_two_digits(rate: float, shown: float) -> None:
    assert rounded(rate) == shown


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_rounding_changes_a_rate_by_at_most_a_twentieth_and_is_stable(rate: float) -> None:
    shown = rounded(rate)
    assert math.isclose(shown, rate, rel_tol=0.051)
    assert rounded(shown) == shown
