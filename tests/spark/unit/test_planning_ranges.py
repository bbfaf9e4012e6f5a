"""Ranges: shared out fairly to batches and tasks, cut in halves, written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import UsageError
from leasehold.spark.pipeline.planning import halves, next_ranges
from leasehold.spark.reading import Range, ranges_from_json, ranges_to_json, split_into_tasks

RANGES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 300)), min_size=0, max_size=12
).map(
    lambda pairs: [
        Range(partition=str(number), start=start, end=start + count)
        for number, (start, count) in enumerate(pairs)
    ]
)


def events(ranges: list[Range] | tuple[Range, ...]) -> list[tuple[str, int]]:
    return [(each.partition, number) for each in ranges for number in range(each.start, each.end)]


@given(RANGES, st.integers(1, 9))
def test_tasks_hold_each_event_once_and_are_about_even(ranges: list[Range], count: int) -> None:
    found = split_into_tasks(ranges, count)
    assert [event for task in found for event in events(task)] == events(ranges)
    sizes = [sum(map(len, task)) for task in found]
    assert len(found) <= count
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(RANGES)
def test_halves_hold_each_event_once(ranges: list[Range]) -> None:
    some = tuple(each for each in ranges if len(each))
    first, second = halves(some)
    if len(events(some)) > 1:
        assert events(first) + events(second) == events(some)
        assert events(first)
        assert events(second)
    else:
        assert (first, second) == ((), ())


@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 50), st.integers(0, 500))
    ),
    st.integers(1, 600),
)
def test_a_batch_is_bounded_fair_and_leaves_no_room_unused(
    found: dict[str, tuple[int, int]], most: int
) -> None:
    positions = {name: start for name, (start, _) in found.items()}
    ends = {name: start + lag for name, (start, lag) in found.items()}
    ranges = next_ranges(positions, ends, max_events=most)
    given_to = {each.partition: len(each) for each in ranges}
    assert all(each.start == positions[each.partition] for each in ranges)
    assert all(given_to.values())
    assert sum(given_to.values()) == min(most, sum(lag for _, lag in found.values()))
    hungry = [name for name, (_, lag) in found.items() if given_to.get(name, 0) < lag]
    if hungry:
        least = min(given_to.get(name, 0) for name in hungry)
        assert max(given_to.values(), default=0) <= least + 1


def test_a_partition_that_has_gone_back_is_left_alone() -> None:
    assert next_ranges({"0": 10}, {"0": 5}, max_events=100) == ()


@given(RANGES)
def test_ranges_are_read_as_they_were_written(ranges: list[Range]) -> None:
    assert list(ranges_from_json(ranges_to_json(ranges))) == ranges


@pytest.mark.parametrize("text", ["", "{}x", '[["0", 1]]', '[["0", 5, 3]]', "[1]"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        ranges_from_json(text)
