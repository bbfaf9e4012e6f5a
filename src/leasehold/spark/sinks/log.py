"""A stream of the log as a sink: the output of a pipeline becomes events again.

The rows are staged by the tasks and entered, with the positions, in one transaction of the store's
database: that is the commit. Then they are published (``leasehold.spark.log_writer``). Every row is
stored once, and rows with one key stay in order within a batch and from batch to batch of one
partition's owner. While a batch is being published, readers of the stream see a part of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.taskcontext import TaskContext

from leasehold.clock import new_token
from leasehold.errors import UsageError
from leasehold.events.source_urls import stream_of
from leasehold.spark.log_writer.publication import CommitRequest
from leasehold.spark.log_writer.publisher import Publisher
from leasehold.spark.log_writer.staged_rows import StagedFile, StagingPlan, check_columns, stage
from leasehold.spark.reading import Range, freeze_garbage_collection
from leasehold.spark.schema import arrow_schema
from leasehold.spark.sinks.port import Commit, Staged, Written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from leasehold.clock import Clock
    from leasehold.spark.sinks.port import Batch, SinkPosition

Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_RESULT = "file string"


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagedStream:
    plan: StagingPlan
    files: tuple[StagedFile, ...]


class LogSink:
    """A sink of rows with the columns ``key``, ``body`` and ``properties``."""

    atomic = True

    def __init__(
        self,
        stream: str,
        *,
        store: str,
        name: str = "",
        staging: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Name the stream; nothing is opened yet.

        ``stream``: ``orders`` or ``log:orders``; it must exist. ``store``: the URL of the store
        that has the log. ``name``: of the sink, where several write to one stream for different
        pipelines; groups have separate positions in any case. ``staging``: a directory that the
        driver and all executors see; by default one beside the log's volumes.

        Raises:
            UsageError: it does not name a stream.
        """
        self._stream = stream_of(stream)
        self._store = store
        self._staging = staging
        self._clock = clock
        self._sink = f"sink/{name or self._stream}"
        # Two drivers may publish at the same time: each keeps its own order.
        self._producer = new_token()
        self._publisher: Publisher | None = None
        self.name = f"log:{self._stream}"

    @property
    def stream(self) -> str:
        """The name of the stream that it writes to."""
        return self._stream

    @property
    def store(self) -> str:
        """The URL of the store that has the log, as it was given; it may hold a password."""
        return self._store

    def open(self, spark: SparkSession | None = None) -> None:
        """Open the sink, and publish what others left unpublished.

        Raises:
            UnknownStream: it does not exist; the message lists those that do.
            InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be opened.
        """
        del spark
        self.open_to_read()
        self._opened().publish_unfinished()

    def open_to_read(self) -> None:
        """Open the sink only for ``commits``: what others left unpublished stays so.

        Raises:
            UnknownStream: it does not exist; the message lists those that do.
            InvalidUrl, StoreUnavailable, StoreUnusable: the store cannot be opened.
        """
        self._publisher = Publisher.open(
            self._stream, self._store, staging=self._staging, clock=self._clock
        )

    def fence(self, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Raise the epochs and return what was known before.

        What former owners committed of these partitions is published first.
        """
        known = self._opened().fence(self._sink, group, epochs)
        self._opened().publish_unfinished(
            sink=self._sink, producer=self._producer, group=group, partitions=frozenset(epochs)
        )
        return known

    def move(self, group: str, places: Mapping[str, SinkPosition]) -> None:
        """Set the positions."""
        self._opened().ledger.move(self._sink, group, places)

    def stage(self, frame: DataFrame, batch: Batch) -> Staged:
        """Stage the rows of the batch."""
        del batch
        check_columns(arrow_schema(frame.schema))
        publisher = self._opened()
        plan = publisher.plan()
        try:
            rows = frame.mapInArrow(_task(plan), _RESULT).collect()
        except BaseException:
            publisher.discard((), plan)
            raise
        files = tuple(StagedFile(**json.loads(text)) for (text,) in rows)
        return Staged(_StagedStream(plan=plan, files=files))

    def commit(self, staged: Staged, batch: Batch) -> Written:
        """Commit the staged rows together with the positions.

        Raises:
            VolumeUnusable: the driver does not see a staged file.
        """
        inside: _StagedStream = staged.inside
        request = CommitRequest(
            sink=self._sink,
            group=batch.group,
            producer=self._producer,
            parts=batch.shares,
            holder=batch.holder,
            began_at=batch.began_at.isoformat(),
        )
        record = self._opened().commit(request, inside.files)
        self._opened().clear(inside.plan)
        if record is None:
            return Written(rows=sum(each.rows for each in inside.files))
        return Written(rows=record.rows, bytes=record.bytes, files=len(record.files))

    def discard(self, staged: Staged) -> None:
        """Remove the staged rows, unless they turn out to be committed."""
        inside: _StagedStream = staged.inside
        if self._publisher is not None:
            self._publisher.discard(inside.files, inside.plan)

    def commits(self, group: str) -> Iterator[Commit]:
        """Yield the commits of the group, oldest first. The last 100,000 are stored."""
        for row in self._opened().ledger.history(self._sink, group):
            number, part, start, end, epoch, holder, began_at, committed_at, rows = row
            yield Commit(
                commit=f"{self._sink}#{number}",
                range=Range(partition=part, start=start, end=end),
                epoch=epoch,
                holder=holder,
                began_at=datetime.fromisoformat(began_at),
                committed_at=datetime.fromisoformat(committed_at),
                rows=rows,
            )

    def close(self) -> None:
        """Close the sink."""
        if self._publisher is not None:
            self._publisher.close()

    def _opened(self) -> Publisher:
        if self._publisher is None:
            raise UsageError(f"{self.name} is not open: call open() first")
        return self._publisher


def _task(plan: StagingPlan) -> Task:
    """Return what a task runs: it takes rows, and gives its file, if it had rows."""

    def staged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_garbage_collection()
        task = TaskContext.get()
        number = task.partitionId() if task else 0
        file = stage(batches, plan, task=number, token=new_token())
        texts = [] if file is None else [json.dumps(asdict(file))]
        yield pa.RecordBatch.from_pydict({"file": pa.array(texts, pa.string())})

    return staged
