"""Growing pauses, by lot, with a bound."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.backoff import Backoff

LADDER = Backoff(base_s=1.0, max_s=20.0)
failures = st.integers(1, 10_000)


@pytest.mark.parametrize(
    ("failed", "step"), [(1, 1.0), (2, 2.0), (3, 4.0), (5, 16.0), (6, 20.0), (7, 20.0), (999, 20.0)]
)
def test_the_step_doubles_up_to_the_bound_and_the_draw_lies_in_its_upper_half(
    failed: int, step: float
) -> None:
    draws = [LADDER.pause_s(failed, Random(seed)) for seed in range(200)]
    assert all(step / 2 <= pause <= step for pause in draws)
    assert max(draws) - min(draws) > step / 4, "hosts that failed together come back apart"


@given(failed=failures, seed=st.integers(), base=st.floats(1e-3, 1e3), most=st.floats(1e-3, 1e6))
def test_no_pause_is_longer_than_the_bound_or_nothing_at_all(
    failed: int, seed: int, base: float, most: float
) -> None:
    pause = Backoff(base_s=base, max_s=most).pause_s(failed, Random(seed))
    assert 0 < pause <= most


@given(failed=failures, seed=st.integers())
def test_after_more_failures_the_same_draw_is_never_shorter(failed: int, seed: int) -> None:
    assert LADDER.pause_s(failed + 1, Random(seed)) >= LADDER.pause_s(failed, Random(seed))


def test_the_same_seed_gives_the_same_pauses() -> None:
    one, other = Random(7), Random(7)
    assert [LADDER.pause_s(n, one) for n in range(1, 9)] == [
        LADDER.pause_s(n, other) for n in range(1, 9)
    ]
