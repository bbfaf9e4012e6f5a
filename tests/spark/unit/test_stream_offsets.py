"""Offsets of a stream: fair, bounded, never back, and refused where the events are not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import BeyondEnd, Trimmed
from leasehold.events import PartitionEnds
from leasehold.spark.reading import Range
from leasehold.spark.source.stream import (
    allot_by_lag,
    check_available,
    next_offsets,
    ranges_between,
)


def ends(**known: tuple[int, int]) -> dict[str, PartitionEnds]:
    return {name[1:]: PartitionEnds(first=first, next=end) for name, (first, end) in known.items()}


LAGS = st.dictionaries(st.sampled_from("01234567"), st.integers(0, 10_000))


@given(LAGS, st.integers(1, 20_000))
def test_a_limit_is_used_up_and_shared_by_lag(lags: dict[str, int], most: int) -> None:
    granted = allot_by_lag(lags, most)

    behind = {name: lag for name, lag in lags.items() if lag}
    assert sum(granted.values()) == min(most, sum(behind.values()))
    assert all(0 < count <= behind[name] for name, count in granted.items())
    if most >= len(behind):
        assert set(granted) == set(behind)
    for one in granted:
        for other in granted:
            assert behind[one] < behind[other] or granted[one] + 1 >= granted[other]


def test_shares_are_in_proportion_to_the_lag() -> None:
    assert allot_by_lag({"0": 9_000, "1": 1_000, "2": 0}, 100) == {"0": 90, "1": 10}
    assert allot_by_lag({"0": 5, "1": 5}, None) == {"0": 5, "1": 5}
    assert allot_by_lag({"0": 5, "1": 9, "2": 7}, 2) == {"1": 1, "2": 1}


def test_nothing_new_means_the_same_offsets() -> None:
    assert next_offsets({"0": 5}, ends(p0=(0, 5)), None) == {"0": 5}


def test_offsets_never_go_back_whatever_the_log_says() -> None:
    assert next_offsets({"0": 9}, ends(p0=(0, 5)), None) == {"0": 9}


def test_a_new_partition_is_read_from_its_first_event_once_it_has_one() -> None:
    start = {"0": 5}

    assert next_offsets(start, ends(p0=(0, 5), p1=(0, 0)), None) == {"0": 5}
    end = next_offsets(start, ends(p0=(0, 5), p1=(0, 3)), None)
    assert end == {"0": 5, "1": 3}
    assert ranges_between(start, end, {}) == (
        Range(partition="0", start=5, end=5),
        Range(partition="1", start=0, end=3),
    )


def test_a_partition_that_is_not_asked_for_keeps_its_offset() -> None:
    assert next_offsets({"0": 5, "1": 7}, ends(p1=(0, 9)), None) == {"0": 5, "1": 9}


def test_an_offset_beyond_the_end_is_refused_with_partition_and_range() -> None:
    with pytest.raises(BeyondEnd, match=r"event 9 of partition 1 of 'orders'.*\[0, 5\)") as caught:
        check_available({"1": 9}, ends(p1=(0, 5)), stream="orders", skip_trimmed=True)

    assert caught.value.end == 5


def test_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(BeyondEnd, match="knows partition 7, and 'orders' has only 1"):
        check_available({"7": 9}, ends(p1=(0, 5)), stream="orders", skip_trimmed=True)


def test_events_that_retention_has_removed_are_refused_unless_they_may_be_left_out() -> None:
    start, there = {"0": 2}, ends(p0=(4, 10))

    with pytest.raises(Trimmed, match=r"events \[2, 4\) of partition 0 of 'orders'") as caught:
        check_available(start, there, stream="orders", skip_trimmed=False)
    assert caught.value.earliest == 4
    check_available(start, there, stream="orders", skip_trimmed=True)
    end = next_offsets(start, there, 3)
    assert end == {"0": 7}
    assert ranges_between(start, end, {"0": 4}) == (Range(partition="0", start=4, end=7),)


def test_a_new_partition_that_has_lost_events_already_is_refused() -> None:
    with pytest.raises(Trimmed, match=r"events \[0, 4\) of partition 1"):
        check_available({}, ends(p1=(4, 10)), stream="orders", skip_trimmed=False)


def test_a_repeated_batch_of_which_all_was_removed_is_empty_if_it_may_be() -> None:
    assert ranges_between({"0": 2}, {"0": 5}, {"0": 9}) == (Range(partition="0", start=9, end=9),)
