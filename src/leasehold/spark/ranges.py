"""Ranges of partitions: what a batch reads, and how it is shared out to tasks. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The events of ``partition`` from ``start`` up to, and without, ``end``.

    Raises:
        UsageError: it ends before it starts, or starts below 0.
    """

    partition: str
    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        if not 0 <= self.start <= self.end:
            raise UsageError(
                f"there are no events {self.start} to {self.end} in a partition: a range needs "
                "0 <= start <= end"
            )

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition}[{self.start}, {self.end})"

    def cut(self, at: int) -> tuple[Range, Range]:
        """The part before the event ``at``, and the rest."""
        return (
            Range(partition=self.partition, start=self.start, end=at),
            Range(partition=self.partition, start=at, end=self.end),
        )


def written(ranges: Iterable[Range]) -> str:
    """The ranges as one line of JSON, for an option of Spark."""
    return json.dumps([[each.partition, each.start, each.end] for each in ranges])


def read(text: str) -> tuple[Range, ...]:
    """The ranges that ``written`` wrote.

    Raises:
        UsageError: it is something else.
    """
    try:
        rows = json.loads(text)
        return tuple(Range(partition=str(p), start=int(s), end=int(e)) for p, s, e in rows)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{text!r} holds no ranges ({error}): write [[partition, start, end], …], such as "
            '[["0", 0, 100]]'
        ) from error


def tasks(ranges: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """Share the ranges out to ``count`` tasks at most, each with about the same number of events.

    Every event is in exactly one of them, and those of a partition are in order. A partition is
    cut where its task is full: few tasks, all busy to the end, are the cheapest for Spark.
    """
    left = [each for each in ranges if len(each)]
    total = sum(map(len, left))
    if not total:
        return []
    count = max(1, min(count, total))
    shares: list[tuple[Range, ...]] = []
    done, share, room = 0, list[Range](), -(-total // count)
    for whole in left:
        rest = whole
        while len(rest):
            taken, rest = rest.cut(min(rest.start + room, rest.end))
            share.append(taken)
            room -= len(taken)
            done += len(taken)
            if not room:
                shares.append(tuple(share))
                share = []
                tasks_left = count - len(shares)
                room = -(-(total - done) // tasks_left) if tasks_left else 0
    if share:
        shares.append(tuple(share))
    return shares
