"""A sink in memory that keeps the contract, and can be made to fail at each of its points."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from leasehold.errors import FencedWrite, SinkChanged
from leasehold.spark import Batch, Commit, SinkPosition, Staged, Written


class MemorySink:
    """Several pipelines of one process may share it."""

    atomic = True
    name = "memory"

    def __init__(self) -> None:
        self.positions: dict[str, SinkPosition] = {}
        self.rows: list[dict[str, Any]] = []
        self.history: list[Commit] = []
        self.staged = self.discarded = 0
        self.before_commit: Callable[[Batch], None] = lambda _: None
        self.after_commit: Callable[[Batch], None] = lambda _: None
        self._lock = threading.Lock()

    def open(self, spark: SparkSession) -> None:
        pass

    def close(self) -> None:
        pass

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        with self._lock:
            before = {each: self.positions.get(each, SinkPosition()) for each in epochs}
            for partition, epoch in epochs.items():
                known = before[partition]
                if known.epoch < epoch:
                    self.positions[partition] = SinkPosition(position=known.position, epoch=epoch)
            return before

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        with self._lock:
            for partition, given in places.items():
                if self.positions.get(partition, SinkPosition()).epoch > given.epoch:
                    raise _fenced(group, partition, given.epoch)
            self.positions.update(places)

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        rows = frame.toArrow().to_pylist()
        self.staged += 1
        return Staged(rows)

    def commit(self, staged: Staged, batch: Batch) -> Written:
        self.before_commit(batch)
        with self._lock:
            if not self._was_done(batch):
                self._judge(batch)
                self.rows += staged.inside
                now = datetime(2026, 1, 1, tzinfo=UTC)
                for part in batch.shares:
                    where = part.range
                    self.positions[where.partition] = SinkPosition(
                        position=where.end, epoch=part.epoch
                    )
                    self.history.append(
                        Commit(
                            commit=str(len(self.history)),
                            range=where,
                            epoch=part.epoch,
                            holder=batch.holder,
                            began_at=batch.began_at,
                            committed_at=now,
                            rows=len(staged.inside),
                        )
                    )
        self.after_commit(batch)
        return Written(rows=len(staged.inside))

    def _was_done(self, batch: Batch) -> bool:
        return all(
            self.positions.get(each.range.partition)
            == SinkPosition(position=each.range.end, epoch=each.epoch)
            for each in batch.shares
        )

    def _judge(self, batch: Batch) -> None:
        for part in batch.shares:
            known = self.positions.get(part.range.partition, SinkPosition())
            if known.epoch > part.epoch:
                raise _fenced(batch.group, part.range.partition, part.epoch)
            if known.position not in {None, part.range.start}:
                raise SinkChanged(f"{part.range} and {known}")

    def discard(self, staged: Staged) -> None:
        self.discarded += 1

    def commits(self, group: str) -> Iterator[Commit]:
        return iter(self.history)


def _fenced(group: str, partition: str, epoch: int) -> FencedWrite:
    return FencedWrite("a newer epoch", key=f"{group}/{partition}", epoch=epoch, reason="fenced")
