"""The contract of a sink: output and position in one atomic step, fenced by epoch.

A sink stores for each partition of each group the **position** (the number of the first event that
it does not hold) and the **epoch** of the last owner that it knows.

Guarantees of every sink whose ``atomic`` is true:

1. ``fence`` raises the epoch. From then on nothing is committed under a lower one, whatever was
   begun before, also by a process that was paused in the meantime.
2. ``commit`` makes the rows visible and moves the positions in one step, or does neither. It is
   refused unless each position is where the batch starts, and no epoch is higher than the batch's.
3. The same commit may be repeated: if each position is where the batch ends, under its epoch, it
   was done before.
4. What was staged and not committed is never visible to those who read the sink as documented.

A sink that is not atomic keeps no positions: it writes in ``stage``, may be given the same events
again after a crash, and all other methods do nothing.

A sink whose ``open`` changes something may also have a method ``open_to_read()``, which changes
nothing and opens it for ``commits`` alone: an audit prefers that.

The positions of a Structured Streaming query are its batch numbers, of one partition: the id of its
checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.reading import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPosition:
    """What a sink knows of a partition. ``position`` None, ``epoch`` 0: nothing."""

    position: int | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """A part of a batch: a range, and the epoch under which it is owned."""

    range: Range
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What is committed together.

    Attributes:
        group: the group of the positions: ``partition/<stream>/<group>`` or ``query/<name>``.
        number: counts the batches of one run, from 0; for names and messages only.
        shares: the parts, at most one range for each partition, none of them empty.
        holder: the driver, for the history.
        began_at: when it was planned, for the history.
    """

    group: str
    number: int
    shares: tuple[BatchPart, ...]
    holder: str
    began_at: datetime

    @property
    def rows(self) -> int:
        """The number of input events."""
        return sum(len(each.range) for each in self.shares)

    @property
    def label(self) -> str:
        """The ranges as short text, for Spark's UI and for errors."""
        return ", ".join(str(each.range) for each in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a commit has added."""

    rows: int
    bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One part of a commit, as stored by the sink. ``rows``: output rows of the whole commit.

    ``commit`` names the commit: parts that were committed together have the same.
    """

    commit: str
    range: Range
    epoch: int
    holder: str
    began_at: datetime
    committed_at: datetime
    rows: int


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows that are written and not visible. The contents are the sink's own."""

    inside: Any = field(repr=False)


class Sink(Protocol):
    """Where a pipeline writes.

    One thread at a time; but a batch is staged while the one before it is committed, and
    ``discard`` may be called at any time.
    """

    @property
    def name(self) -> str:
        """The display name, without secrets: ``delta:/data/delays``."""
        ...

    @property
    def atomic(self) -> bool:
        """Whether the guarantees above hold; if not, rows may be written twice."""
        ...

    def open(self, spark: SparkSession) -> None:
        """Open the sink; called once, before anything else.

        Raises:
            SinkUnfit, SinkChanged: it cannot be used; the message says why.
            StoreUnavailable: it cannot be reached.
        """
        ...

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Raise the epoch of each partition; return what the sink knew of it before.

        Where the result has a higher epoch than the given one, that one stays: the caller has lost
        the partition.
        """
        ...

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Set positions to any value, for an operator, under epochs that were fenced before.

        Raises:
            FencedWrite: an epoch is higher than the one given; nothing was moved.
        """
        ...

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """Write the rows where no reader sees them. The Spark job runs here.

        Raises:
            SinkUnfit: the columns do not fit; nothing was written.
        """
        ...

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """Make the rows visible and move the positions, in one step.

        Raises:
            FencedWrite: an epoch is higher: another process owns the partition it names in ``key``.
            SinkChanged: a position is not where the batch starts, though no other process owns it.
            SinkUnfit: the sink does not take these rows; nothing was written.
            BatchFailed: what was staged is gone; nothing was written: stage it again.
            StoreUnavailable: unknown whether it was done: call it again.
        """
        ...

    def discard(self, staged: Staged) -> None:
        """Remove staged rows that will not be committed. Never raises.

        What a commit may have taken, though no answer arrived, is kept.
        """
        ...

    def commits(self, group: str) -> Iterator[Commit]:
        """Return all stored commits of a group, oldest first."""
        ...

    def close(self) -> None:
        """Release its resources. Safe to call twice."""
        ...
