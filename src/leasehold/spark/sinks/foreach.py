"""Sinks that keep no positions: a function of the user's, and one that discards everything.

At least once: after a crash between the write and the checkpoint the batch is written again. The
batch has its ranges and epochs, so that a function can make its own writes idempotent or fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from leasehold.spark.sinks.port import Batch, Staged, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.spark.sinks.port import Commit, SinkPosition

OnBatch: TypeAlias = "Callable[[DataFrame, Batch], None]"


class ForeachSink:
    """Calls ``function(frame, batch)`` for each batch; when it returns, all must be durable."""

    atomic = False

    def __init__(self, function: OnBatch, *, name: str = "") -> None:
        """``name``: the display name; by default that of the function."""
        self._function = function
        self.name = f"foreach:{name or getattr(function, '__name__', 'function')}"

    def open(self, spark: SparkSession) -> None:
        """Do nothing."""

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Return nothing: no positions are known."""
        del group, epochs
        return {}

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Do nothing: no positions are kept."""

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """Call the function."""
        self._function(frame, batch)
        return Staged(None)

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """Return the input rows: the output is written already, and was not counted."""
        del staged
        return Written(rows=batch.rows)

    def discard(self, staged: Staged) -> None:
        """Do nothing: what is written stays."""

    def commits(self, group: str) -> Iterator[Commit]:
        """Return nothing: no commits are stored."""
        del group
        return iter(())

    def close(self) -> None:
        """Do nothing."""


def noop_sink() -> ForeachSink:
    """Return a sink that runs the transformation and discards its rows, for measurements."""
    return ForeachSink(_run, name="noop")


def _run(frame: DataFrame, _batch: Batch) -> None:
    frame.write.format("noop").mode("overwrite").save()
