"""What is to be done about runs that crashed, were missed, take too long, or fail."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from leasehold.core import next_run
from leasehold.errors import InvalidDuration, InvalidOptions
from leasehold.jobs import CatchUp, OnCrash, Overlap, Policy, policy

LONGEST = timedelta(days=366)
A_MOMENT = timedelta(microseconds=1)


def test_what_nobody_said_is_the_careful_way() -> None:
    usual = Policy()
    assert usual.on_crash is OnCrash.RERUN
    assert usual.catch_up is CatchUp.LATEST
    assert usual.overlap is Overlap.SKIP
    assert (usual.max_age, usual.timeout) == (None, None)
    assert (usual.jitter, usual.retries) == (timedelta(0), 0)
    assert usual.retry_pause == timedelta(seconds=2)


def test_the_words_are_those_of_the_timetable() -> None:
    for name in ("CatchUp", "OnCrash", "Overlap"):
        assert getattr(policy, name) is getattr(next_run, name)


@pytest.mark.parametrize("name", ["max_age", "jitter", "timeout", "retry_pause"])
def test_a_duration_is_from_nothing_to_a_year(name: str) -> None:
    for fine in (timedelta(0), timedelta(seconds=1.5), LONGEST):
        assert getattr(_with(name, fine), name) == fine
    for wrong in (-A_MOMENT, LONGEST + A_MOMENT, timedelta.max):
        with pytest.raises(InvalidDuration, match=name):
            _with(name, wrong)


@pytest.mark.parametrize("name", ["max_age", "timeout"])
def test_no_limit_is_a_choice(name: str) -> None:
    assert getattr(_with(name, None), name) is None


@pytest.mark.parametrize("name", ["max_age", "jitter", "timeout", "retry_pause"])
@pytest.mark.parametrize("given", [5, 5.0, "5s"])
def test_what_is_no_duration_is_refused(name: str, given: object) -> None:
    with pytest.raises(InvalidDuration, match=name):
        _with(name, given)


@pytest.mark.parametrize("retries", [0, 1, 100])
def test_a_run_may_be_tried_again_up_to_a_hundred_times(retries: int) -> None:
    assert Policy(retries=retries).retries == retries


@pytest.mark.parametrize("retries", [-1, 101, 1.0, "3", None])
def test_another_number_of_tries_is_refused(retries: object) -> None:
    with pytest.raises(InvalidOptions, match=r"retries must be a number from 0 to 100, not"):
        _with("retries", retries)


def test_pauses_grow_from_the_first_one_to_a_minute() -> None:
    pauses, rng = Policy(retry_pause=timedelta(seconds=4)).pauses, random.Random(1)
    for failures, longest_s in [(1, 4), (2, 8), (3, 16), (4, 32), (5, 60), (50, 60)]:
        assert longest_s / 2 <= pauses.pause_s(failures, rng) <= longest_s


def test_a_first_pause_of_more_than_a_minute_stays_as_it_is() -> None:
    pauses, rng = Policy(retry_pause=timedelta(minutes=5)).pauses, random.Random(1)
    assert [150 <= pauses.pause_s(failures, rng) <= 300 for failures in (1, 2, 9)] == [True] * 3


def test_no_pause_is_no_pause() -> None:
    pauses = Policy(retry_pause=timedelta(0)).pauses
    assert [pauses.pause_s(failures, random.Random(1)) for failures in (1, 9)] == [0.0, 0.0]


def _with(name: str, given: Any) -> Policy:
    return Policy(**{name: given})
