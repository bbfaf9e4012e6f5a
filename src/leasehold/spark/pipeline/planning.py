"""What the next batch of a pipeline reads. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.spark.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Mapping


def next_ranges(
    positions: Mapping[str, int], ends: Mapping[str, int], *, most_events: int
) -> tuple[Range, ...]:
    """The next events of each partition, ``most_events`` in all at most.

    Everybody gets the same; what a partition does not need goes to those that have more. So a
    long backlog in one partition never keeps the others waiting. None of the ranges is empty.
    """
    waiting = {
        partition: ends[partition] - position
        for partition, position in positions.items()
        if ends.get(partition, 0) > position
    }
    given = dict.fromkeys(waiting, 0)
    room, hungry = most_events, sorted(waiting, key=lambda partition: waiting[partition])
    for turn, partition in enumerate(hungry):  # the least hungry first: what it leaves is shared
        fair = -(-room // (len(hungry) - turn))
        given[partition] = min(waiting[partition], fair)
        room -= given[partition]
    return tuple(
        Range(partition=each, start=positions[each], end=positions[each] + given[each])
        for each in positions
        if given.get(each)
    )


def halves(ranges: tuple[Range, ...]) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """The ranges in two parts of about the same size; both are empty if there is only one event."""
    total = sum(map(len, ranges))
    if total <= 1:
        return (), ()
    if len(ranges) > 1:
        middle = len(ranges) // 2
        return ranges[:middle], ranges[middle:]
    first, second = ranges[0].cut(ranges[0].start + total // 2)
    return (first,), (second,)
