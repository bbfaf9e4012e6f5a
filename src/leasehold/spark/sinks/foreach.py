"""Sinks that keep no positions: a function of the user's, and one that throws everything away.

At least once: after a crash between the write and the checkpoint the batch comes again. The batch
tells its ranges and epochs, so that a function can make its own writes idempotent or fenced.
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
    """Calls ``function(frame, batch)`` for each batch; when it returns, all must be safe."""

    atomic = False

    def __init__(self, function: OnBatch, *, name: str = "") -> None:
        """``name``: for people; by default that of the function."""
        self._function = function
        self.name = f"foreach:{name or getattr(function, '__name__', 'function')}"

    def open(self, spark: SparkSession) -> None:
        """Nothing to do."""

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """It knows nothing."""
        del group, epochs
        return {}

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """It keeps no positions."""

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """Call the function."""
        self._function(frame, batch)
        return Staged(None)

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """It is written already; how many rows is not known."""
        del staged
        return Written(rows=batch.rows)

    def discard(self, staged: Staged) -> None:
        """What is written is written."""

    def commits(self, group: str) -> Iterator[Commit]:
        """None are remembered."""
        del group
        return iter(())

    def close(self) -> None:
        """Nothing to do."""


def noop_sink() -> ForeachSink:
    """Run the transformation and throw its rows away: to measure what the rest costs."""
    return ForeachSink(_run, name="noop")


def _run(frame: DataFrame, _batch: Batch) -> None:
    frame.write.format("noop").mode("overwrite").save()
