"""Until when a holder may believe, and which times are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from leasehold import LeaseTiming
from leasehold.core.lease_timing import CLOCK_RATE_ERROR, MAX_LEASE_S, MIN_LEASE_S
from leasehold.errors import InvalidDuration, InvalidOptions

GOOD = LeaseTiming()


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


# ------------------------------------------------------------------------------ the window


def test_the_window_counts_from_sending_and_ends_a_margin_early() -> None:
    timing = LeaseTiming.of(lease=seconds(10), margin=seconds(2), call_timeout=seconds(1))
    assert timing.trusted_until(100.0) == pytest.approx(108.0)


@given(sent=st.floats(0, 1e9), later=st.floats(0, 1e6))
def test_who_sends_later_may_believe_longer_by_just_that(sent: float, later: float) -> None:
    gained = GOOD.trusted_until(sent + later) - GOOD.trusted_until(sent)
    assert gained == pytest.approx(later, abs=1e-6)


@st.composite
def valid_timings(draw: st.DrawFn) -> LeaseTiming:
    """All times that ``check`` lets pass, the narrowest margins included."""
    lease = draw(st.floats(MIN_LEASE_S, MAX_LEASE_S))
    part = st.floats(0.0, 1.0)
    timing = LeaseTiming(
        lease_s=lease,
        renew_s=lease * draw(part) / 2,
        margin_s=lease * draw(st.just(CLOCK_RATE_ERROR) | st.floats(CLOCK_RATE_ERROR, 1.0)),
        call_s=lease * draw(part) / 2,
    )
    try:
        timing.check()
    except InvalidOptions:
        assume(False)
    return timing


@given(
    timing=valid_timings(),
    rate=st.sampled_from([1 - CLOCK_RATE_ERROR, 1.0, 1 + CLOCK_RATE_ERROR])
    | st.floats(1 - CLOCK_RATE_ERROR, 1 + CLOCK_RATE_ERROR),
    sent=st.floats(0, 1e6),
    on_the_way=st.floats(0, 10),
)
def test_belief_is_over_before_the_store_lets_anybody_else_in(
    timing: LeaseTiming, rate: float, sent: float, on_the_way: float
) -> None:
    window_by_true_time_s = (timing.trusted_until(sent) - sent) / rate
    ended_in_store_s = on_the_way + timing.lease_s
    assert window_by_true_time_s <= ended_in_store_s + 1e-6


@given(timing=valid_timings())
def test_after_a_lost_answer_there_is_time_for_one_more_try(timing: LeaseTiming) -> None:
    second_try_is_over = timing.renew_s + 2 * timing.call_s
    assert second_try_is_over <= timing.trusted_until(0.0) * (1 + 1e-6)


# --------------------------------------------------------------------------- the relations


def test_the_defaults_keep_every_relation() -> None:
    GOOD.check()
    assert LeaseTiming.of() == GOOD


@pytest.mark.parametrize(
    ("broken", "relation"),
    [
        (replace(GOOD, renew_s=5.0, call_s=1.0), "renew_interval < lease / 2"),
        (replace(GOOD, renew_s=9.0, call_s=0.1), "renew_interval < lease / 2"),
        (replace(GOOD, margin_s=0.49), "margin >= 5% of lease"),
        (replace(GOOD, margin_s=0.0), "margin >= 5% of lease"),
        (replace(GOOD, call_s=3.01), "renew_interval + 2 x call_timeout <= lease - margin"),
        (replace(GOOD, margin_s=1.01), "renew_interval + 2 x call_timeout <= lease - margin"),
        (replace(GOOD, lease_s=float("inf")), "margin >= 5% of lease"),
        (replace(GOOD, lease_s=-1.0), "lease, renew_interval, call_timeout > 0"),
        (replace(GOOD, renew_s=float("nan")), "renew_interval < lease / 2"),
        (replace(GOOD, call_s=float("nan")), "renew_interval + 2 x call_timeout <= lease - margin"),
    ],
)
def test_a_broken_relation_is_refused_by_its_name(broken: LeaseTiming, relation: str) -> None:
    with pytest.raises(InvalidOptions) as refused:
        broken.check()
    said = str(refused.value)
    assert said.startswith(f"{relation} does not hold (")
    assert said.partition("): ")[2], "it says what to do"


def test_the_edges_of_the_relations_are_allowed() -> None:
    LeaseTiming(lease_s=10.0, renew_s=4.999, margin_s=0.5, call_s=2.25).check()
    LeaseTiming(lease_s=10.0, renew_s=3.0, margin_s=1.0, call_s=3.0).check()


@pytest.mark.parametrize("part", ["renew_s", "call_s"])
def test_times_below_zero_are_refused(part: str) -> None:
    with pytest.raises(InvalidOptions):
        replace(GOOD, **{part: -1.0}).check()


@given(lease=st.floats(MIN_LEASE_S, MAX_LEASE_S))
def test_what_is_not_given_is_derived_so_that_it_fits(lease: float) -> None:
    timing = LeaseTiming.of(lease=seconds(lease))
    assert timing.lease_s == pytest.approx(lease, abs=1e-6)
    assert timing.margin_s == pytest.approx(timing.lease_s / 10)


# ------------------------------------------------------------------------------- the ranges


@pytest.mark.spec("L6")
@pytest.mark.parametrize("lease", [-1.0, 0.0, 0.049, MAX_LEASE_S + 1])
def test_a_lease_out_of_range_is_refused_with_the_range(lease: float) -> None:
    with pytest.raises(InvalidDuration, match=r"^lease is .* between 0\.05 s and 604800 s$"):
        LeaseTiming.of(lease=seconds(lease))


@pytest.mark.spec("L6")
@pytest.mark.parametrize("name", ["renew_interval", "margin", "call_timeout"])
@pytest.mark.parametrize("value", [-1.0, 0.0, MAX_LEASE_S + 1])
def test_a_part_out_of_range_is_refused_with_its_name_and_the_range(
    name: str, value: float
) -> None:
    with pytest.raises(InvalidDuration, match=rf"^{name} is .* between 0\.001 s and 604800 s$"):
        LeaseTiming.of(**{name: seconds(value)})


@pytest.mark.spec("L6")
@pytest.mark.parametrize("lease", [MIN_LEASE_S, 15.0, 60.0, MAX_LEASE_S])
def test_the_ends_of_the_range_are_in_it(lease: float) -> None:
    assert LeaseTiming.of(lease=seconds(lease)).lease_s == lease


def test_of_refuses_what_check_refuses() -> None:
    with pytest.raises(InvalidOptions, match="renew_interval < lease / 2"):
        LeaseTiming.of(lease=seconds(10), renew_interval=seconds(6))
