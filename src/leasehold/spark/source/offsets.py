"""The offsets of a stream: for each partition the number of the first event not read. Pure.

Offsets never go back, whatever the log says: Spark would read what it has read before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import BeyondEnd, Trimmed
from leasehold.spark.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.sources.port import PartitionEnds

Offsets = dict[str, int]


def shared(lags: Mapping[str, int], most: int | None) -> Offsets:
    """How much each partition may read, by its lag; together ``most``, and everyone one at least.

    By the lag all are done at about the same time, so none runs ahead of the others. Where there
    are fewer than partitions with a lag, those that lag most come first.
    """
    behind = {name: lag for name, lag in lags.items() if lag > 0}
    total = sum(behind.values())
    if most is None or total <= most:
        return behind
    one_each = sorted(behind, key=lambda name: -behind[name])[:most]
    left, more = most - len(one_each), total - len(one_each)
    granted = {name: 1 + left * (behind[name] - 1) // max(more, 1) for name in one_each}
    # What rounding has left over is less than one for each.
    spare = most - sum(granted.values())
    for name in [name for name in one_each if granted[name] < behind[name]][:spare]:
        granted[name] += 1
    return granted


def check(
    start: Mapping[str, int], ends: Mapping[str, PartitionEnds], *, stream: str, skip_trimmed: bool
) -> None:
    """Return if the events from ``start`` on are there. A partition it does not know is at 0.

    Raises:
        BeyondEnd: the checkpoint is of a longer stream, or of one with more partitions.
        Trimmed: retention was faster, and they are not to be left out.
    """
    if missing := sorted(set(start) - set(ends)):
        raise BeyondEnd(
            f"the checkpoint knows partition {missing[0]}, and {stream!r} has only "
            f"{len(ends)} partitions: it was made anew, or this is the checkpoint of another query",
            end=0,
        )
    for name, known in ends.items():
        position = start.get(name, 0)
        if position > known.next:
            raise BeyondEnd(
                f"the checkpoint is at event {position} of partition {name} of {stream!r}, which "
                f"has the events [{known.first}, {known.next}): the stream was made anew, or this "
                "is the checkpoint of another one; start with a new checkpoint location",
                end=known.next,
            )
        if position < known.first and not skip_trimmed:
            raise Trimmed(
                f"events [{position}, {known.first}) of partition {name} of {stream!r} were "
                "removed by retention before they were read; to go on without them, set the "
                "option onTrimmed to earliest",
                earliest=known.first,
            )


def advanced(
    start: Mapping[str, int], ends: Mapping[str, PartitionEnds], most: int | None
) -> Offsets:
    """How far the next batch goes. Equal to ``start`` if there is nothing new."""
    begin = {name: max(start.get(name, 0), known.first) for name, known in ends.items()}
    lags = {name: known.next - begin[name] for name, known in ends.items()}
    granted = shared(lags, most)
    return dict(start) | {name: begin[name] + count for name, count in granted.items()}


def between(
    start: Mapping[str, int], end: Mapping[str, int], firsts: Mapping[str, int]
) -> tuple[Range, ...]:
    """The ranges of a batch, without what lies before ``firsts``."""
    ranges = []
    for name, last in end.items():
        first = max(start.get(name, 0), firsts.get(name, 0))
        ranges.append(Range(partition=name, start=first, end=max(first, last)))
    return tuple(ranges)
