"""The contract of a sink: output and position in one atomic step, fenced by epoch.

A sink remembers for each partition of each group the **position** (the number of the first event
that it does not hold) and the **epoch** of the last owner that it has heard of.

Guarantees of every sink whose ``atomic`` is true:

1. ``fence`` raises the epoch. From then on nothing is committed under a lower one, whatever was
   begun before, and also by a process that slept meanwhile.
2. ``commit`` makes the rows visible and moves the positions in one step, or does neither. It is
   refused unless each position is where the batch starts, and no epoch is higher than the batch's.
3. The same commit again is harmless: if each position is where the batch ends, under its epoch, it
   was done before.
4. What was staged and not committed is never seen by those who read the sink as its page says.

A sink that is not atomic keeps no positions: it writes in ``stage``, may be given the same events
again after a crash, and everything else does nothing.

A sink whose ``open`` changes something may have a method ``open_to_read()`` too, which changes
nothing and gets it ready for ``commits`` alone: an audit prefers that.

The positions of a Structured Streaming query are its batch numbers, of one partition: the id that
its checkpoint has.
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
    """What a sink knew of a partition. ``position`` None, ``epoch`` 0: nothing."""

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
        group: whose positions these are: ``partition/<stream>/<group>`` or ``query/<name>``.
        number: counts the batches of one run, from 0; for names and words only.
        shares: at most one range for each partition, none of them empty.
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
        """How many events go into it."""
        return sum(len(each.range) for each in self.shares)

    @property
    def label(self) -> str:
        """In words, short: for Spark's pages and for errors."""
        return ", ".join(str(each.range) for each in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a commit has added."""

    rows: int
    bytes: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One share of a commit, as the sink remembers it. ``rows``: output rows of the whole commit.

    ``commit`` names the commit: shares that were committed together have the same.
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
    """Rows that are written and not visible. What is in it belongs to the sink."""

    inside: Any = field(repr=False)


class Sink(Protocol):
    """Where a pipeline writes.

    One thread at a time; but a batch is staged while the one before it is committed, and
    ``discard`` may be called at any time.
    """

    @property
    def name(self) -> str:
        """For people, without secrets: ``delta:/data/delays``."""
        ...

    @property
    def atomic(self) -> bool:
        """Whether the guarantees above hold; if not, rows may come twice."""
        ...

    def open(self, spark: SparkSession) -> None:
        """Get ready; called once, before anything else.

        Raises:
            SinkUnfit, SinkChanged: it can not be used; the message says why.
            StoreUnavailable: it can not be reached.
        """
        ...

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Raise the epoch of each partition; return what the sink knew of it before.

        Where the answer has a higher epoch than was asked for, that one stays: whoever asks has
        lost the partition.
        """
        ...

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Put positions anywhere, for an operator, under epochs that were fenced before.

        Raises:
            FencedWrite: an epoch is higher than the one given; nothing was moved.
        """
        ...

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """Write the rows where nobody reads them. The Spark job runs here.

        Raises:
            SinkUnfit: the columns do not fit; nothing was written.
        """
        ...

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """Make them visible and move the positions, in one step.

        Raises:
            FencedWrite: an epoch is higher: somebody else owns the partition it names in ``key``.
            SinkChanged: a position is not where the batch starts, though nobody else owns it.
            SinkUnfit: the sink does not take these rows; nothing was written.
            BatchFailed: what was staged is gone; nothing was written: stage it again.
            StoreUnavailable: unknown whether it was done: call it again.
        """
        ...

    def discard(self, staged: Staged) -> None:
        """Throw staged rows away that will not be committed. Never raises.

        What a commit may have taken, though no answer came, is kept.
        """
        ...

    def commits(self, group: str) -> Iterator[Commit]:
        """All commits of a group that are remembered, oldest first."""
        ...

    def close(self) -> None:
        """Give back what belongs to it. Again is harmless."""
        ...
