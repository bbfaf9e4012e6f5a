"""When a position is written down: the policies, as answers to one question."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from leasehold.errors import InvalidDuration, InvalidOptions
from leasehold.processor import CheckpointPolicy

SECOND = timedelta(seconds=1)


@pytest.mark.spec("C4")
def test_after_each_batch_means_at_once_after_any_event() -> None:
    policy = CheckpointPolicy.after_each_batch()
    assert policy.within_s(1) == 0.0
    assert policy.within_s(1000) == 0.0


@pytest.mark.spec("C4")
def test_every_n_events_waits_for_the_nth_and_not_longer() -> None:
    policy = CheckpointPolicy.every(events=10)
    assert policy.within_s(9) == math.inf
    assert policy.within_s(10) == 0.0
    assert policy.within_s(11) == 0.0


@pytest.mark.spec("C4")
def test_every_t_seconds_allows_that_long_after_any_number_of_events() -> None:
    policy = CheckpointPolicy.every(interval=5 * SECOND)
    assert policy.within_s(1) == 5.0
    assert policy.within_s(1_000_000) == 5.0


@pytest.mark.spec("C4")
def test_with_both_whatever_comes_first_decides() -> None:
    policy = CheckpointPolicy.every(events=10, interval=5 * SECOND)
    assert policy.within_s(9) == 5.0
    assert policy.within_s(10) == 0.0


@pytest.mark.spec("C4")
def test_manual_never_writes_by_itself() -> None:
    policy = CheckpointPolicy.manual()
    assert policy.within_s(1_000_000) == math.inf
    assert not policy.automatic


def test_all_others_write_at_an_orderly_end() -> None:
    assert CheckpointPolicy.every(events=1_000_000).automatic
    assert CheckpointPolicy.after_each_batch().automatic


def test_every_without_a_measure_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidOptions, match="every\\(events=1000\\)"):
        CheckpointPolicy.every()


@pytest.mark.parametrize("events", [0, -1])
def test_less_than_one_event_is_refused(events: int) -> None:
    with pytest.raises(InvalidOptions, match="events >= 1"):
        CheckpointPolicy.every(events=events)


@pytest.mark.parametrize("interval", [timedelta(seconds=-1), timedelta(days=2)])
def test_an_interval_outside_its_range_is_refused_by_name(interval: timedelta) -> None:
    with pytest.raises(InvalidDuration, match="checkpoint interval"):
        CheckpointPolicy.every(interval=interval)
