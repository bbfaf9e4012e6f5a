"""The settings of a member: what is refused, and in which words."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from leasehold import LeaseTiming, MemberOptions, Strategy
from leasehold.errors import InvalidDuration, InvalidName, InvalidOptions

GOOD = MemberOptions(group="partition/orders/billing")


def test_a_group_is_all_that_must_be_said() -> None:
    assert GOOD.strategy is Strategy.EVEN
    assert (GOOD.weight, GOOD.most) == (1.0, None)


@pytest.mark.parametrize("group", ["", "/", "a//b", "a/", "/a", "a\nb", "g" * 1023])
def test_a_group_that_could_not_begin_a_key_is_refused(group: str) -> None:
    with pytest.raises(InvalidName):
        replace(GOOD, group=group)


@pytest.mark.parametrize("name", ["", " a", "a ", "a\tb", "n" * 257])
def test_a_name_that_can_not_be_shown_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="member name"):
        replace(GOOD, name=name)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_weight_that_scales_nothing_is_refused(weight: float) -> None:
    with pytest.raises(InvalidOptions, match=r"^0 < weight <= 1,000,000 does not hold"):
        replace(GOOD, weight=weight)


def test_a_limit_below_zero_is_refused_and_zero_is_a_standby() -> None:
    with pytest.raises(InvalidOptions, match=r"^most >= 0 does not hold"):
        replace(GOOD, most=-1)
    assert replace(GOOD, most=0).most == 0


@pytest.mark.parametrize("most", [1.5, True, "2", math.nan])
def test_a_limit_that_is_no_whole_number_is_refused(most: Any) -> None:
    with pytest.raises(InvalidOptions, match=r"^most must be a whole number"):
        replace(GOOD, most=most)


@pytest.mark.parametrize("weight", [None, "1", True])
def test_a_weight_that_is_no_number_is_refused(weight: Any) -> None:
    with pytest.raises(InvalidOptions, match=r"^weight must be a number"):
        replace(GOOD, weight=weight)


def test_what_is_no_timing_and_no_text_is_refused_in_words() -> None:
    with pytest.raises(InvalidOptions, match=r"^timing must be a Timing"):
        replace(GOOD, timing=10)  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match=r"^group must be text"):
        replace(GOOD, group=7)  # type: ignore[arg-type]


def test_times_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidOptions, match="renew_interval < lease / 2"):
        replace(GOOD, timing=LeaseTiming(renew_s=6.0))


def test_a_key_must_be_kept_until_its_receiver_has_looked_twice() -> None:
    kept = timedelta(seconds=2 * GOOD.timing.renew_s)
    assert replace(GOOD, hand_over_timeout=kept).hand_over_timeout == kept
    with pytest.raises(
        InvalidOptions, match=r"^hand_over_timeout >= 2 x renew_interval does not hold"
    ):
        replace(GOOD, hand_over_timeout=kept - timedelta(milliseconds=1))


@pytest.mark.spec("L6")
@pytest.mark.parametrize("limit", [timedelta(seconds=-1), timedelta(days=8)])
def test_a_limit_out_of_range_is_refused_with_its_name_and_the_range(limit: timedelta) -> None:
    with pytest.raises(InvalidDuration, match=r"^drain_timeout is .* between 0 s and 604800 s$"):
        replace(GOOD, drain_timeout=limit)
    with pytest.raises(
        InvalidDuration, match=r"^hand_over_timeout is .* between 0 s and 604800 s$"
    ):
        replace(GOOD, hand_over_timeout=limit)


def test_work_may_be_stopped_without_any_delay() -> None:
    assert not replace(GOOD, drain_timeout=timedelta(0)).drain_timeout
