"""Whether a partition that does not move is stuck."""

from __future__ import annotations

import random

import pytest

from leasehold.core.stall_rule import StallRule, StallState

RULE = StallRule(stall_after_s=60.0, give_up_after_s=300.0)
REPORT_ONLY = StallRule(stall_after_s=60.0, give_up_after_s=None)


@pytest.mark.spec("B6")
@pytest.mark.parametrize(
    ("still_s", "verdict"),
    [
        (0.0, StallState.FINE),
        (59.9, StallState.FINE),
        (60.0, StallState.STALLED),
        (299.9, StallState.STALLED),
        (300.0, StallState.GIVE_UP),
    ],
)
def test_a_partition_that_stands_still_with_work_is_stalled_then_given_up(
    still_s: float, verdict: StallState
) -> None:
    assert RULE.evaluate(work_waits=True, still_s=still_s) is verdict


@pytest.mark.spec("B6", "P11")
def test_a_receiver_is_reopened_with_growing_pauses_that_have_a_limit() -> None:
    rng = random.Random(0)
    pauses_s = [RULE.reopen_backoff.pause_s(number, rng) for number in range(1, 12)]
    assert all(30.0 <= pauses_s[0] <= each <= 8 * 60.0 for each in pauses_s[1:])
    assert all(each >= 4 * 60.0 for each in pauses_s[3:])


def test_a_partition_without_work_may_stand_still_for_ever() -> None:
    assert RULE.evaluate(work_waits=False, still_s=1e9) is StallState.FINE


def test_without_a_limit_it_is_only_reported() -> None:
    assert REPORT_ONLY.evaluate(work_waits=True, still_s=1e9) is StallState.STALLED


def test_it_is_looked_at_several_times_before_the_limit() -> None:
    assert RULE.check_interval_s <= RULE.stall_after_s / 2
