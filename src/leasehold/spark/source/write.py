"""Writing to the log through Spark's own API: ``df.write`` and ``df.writeStream``.

Both stage in their tasks and publish in the driver's commit: see ``leasehold.spark.publishing``. A
batch write is all or nothing. A batch of a stream is stored once, however often its number comes,
and not at all when the driver's fence is over.

Spark makes a writer anew in each process that needs one, so a writer carries only what it was told;
what a commit needs to know of a task comes with the task's message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from leasehold.clock import SystemClock, host_name, new_suffix, new_token
from leasehold.errors import StoreUnavailable, UsageError
from leasehold.names import holder_id
from leasehold.spark.publishing.entry import Claim
from leasehold.spark.publishing.publisher import SAVES, Publisher
from leasehold.spark.publishing.rows import check_columns, stage
from leasehold.spark.ranges import Range
from leasehold.spark.reading import settle
from leasehold.spark.schema import arrow_of
from leasehold.spark.sinks.port import Share
from leasehold.spark.source.write_options import (
    WriteOptions,
    check_identity,
    parse,
    running_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leasehold.spark.publishing.rows import Plan, StagedFile

_BATCH = "batch"
_QUERY = "query"

# Of this process: Spark uses it for commit after commit, and the log's segments stay open.
_KEPT: dict[tuple[int, str, str, str], Publisher] = {}


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """For ``df.write``.

    Raises:
        UsageError: an option makes no sense, or it is to overwrite.
        SinkUnfit: the columns are not those of events.
        UnknownStream: there is no such stream; the message names those there are.
        UnknownStore, StoreUnavailable, StoreUnusable: the store can not be opened.
    """
    if overwrite:
        raise UsageError(
            'a log is never overwritten: write with .mode("append"), into a new stream if the '
            "old events must not be in it"
        )
    said = parse(options, streaming=False)
    check_columns(arrow_of(schema))
    publisher = _opened(said)
    try:
        return BatchWriter(said, publisher.plan(), token=new_token())
    finally:
        publisher.close()


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """For ``df.writeStream``.

    Raises:
        UsageError: an option makes no sense, the query has no name that stays, or its output mode
            is complete.
        SinkUnfit: the columns are not those of events.
        UnknownStream: there is no such stream; the message names those there are.
        UnknownStore, StoreUnavailable, StoreUnusable: the store can not be opened.
    """
    if overwrite:
        raise UsageError(
            "outputMode complete would overwrite the log with each batch: use append or update"
        )
    said = parse(options, streaming=True)
    check_identity(said)
    check_columns(arrow_of(schema))
    return StreamWriter(said, _kept(said).plan(shared=True))


@dataclass(frozen=True)
class Told(WriterCommitMessage):
    """What a task tells the driver: its file, if it had any rows."""

    file: StagedFile | None


class BatchWriter(DataSourceArrowWriter):
    """One ``save``: all its rows are in the log when it returns, or none."""

    def __init__(self, options: WriteOptions, plan: Plan, *, token: str) -> None:
        """``token`` names this save."""
        self._options = options
        self._plan = plan
        self._sink = f"{SAVES}{token}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return _staged(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make all of them events. Runs in the driver."""
        publisher = _opened(self._options)
        share = Share(range=Range(partition=_BATCH, start=0, end=1), epoch=0)
        claim = Claim(
            sink=self._sink,
            group=self._sink,
            lane="",
            shares=(share,),
            holder=_holder(),
            began_at=SystemClock().utc_now().isoformat(),
        )
        try:
            _commit(lambda: publisher, claim, _files(messages))
            publisher.clear(self._plan)
        finally:
            publisher.close()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave nothing behind. Runs in the driver."""
        publisher = _opened(self._options)
        try:
            publisher.discard(_files(messages), self._plan)
        finally:
            publisher.close()


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of one query: each batch once."""

    def __init__(self, options: WriteOptions, plan: Plan) -> None:
        """Touch nothing."""
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return _staged(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make them events, unless the batch is there already. Runs in the driver.

        Raises:
            FencedWrite: another driver goes on with the query; nothing was written.
            SinkChanged: the numbers of the batches do not go on from the last one.
            StoreUnavailable: the store, or the query's checkpoint, can not be read.
        """
        checkpoint = running_id(self._options)
        name = f"{_QUERY}/{self._options.name or checkpoint}"
        if name.endswith("/"):
            raise UsageError(
                f"{self._options.checkpoint} can not be read here, and the query has no name: add "
                '.option("name", …), another one for each query and each checkpoint'
            )
        number = Range(partition=checkpoint or _QUERY, start=batchId, end=batchId + 1)
        claim = Claim(
            sink=name,
            group=name,
            lane="",
            shares=(Share(range=number, epoch=self._options.fence_epoch),),
            holder=_holder(),
            began_at=SystemClock().utc_now().isoformat(),
            by_number=True,
            fence_key=self._options.fence_key,
            fence_epoch=self._options.fence_epoch,
        )
        _commit(lambda: _kept(self._options), claim, _files(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what was staged for a batch that failed. Runs in the driver."""
        _kept(self._options).discard(_files(messages))


def _staged(iterator: Iterator[pa.RecordBatch], plan: Plan) -> Told:
    settle()
    task = TaskContext.get()
    return Told(stage(iterator, plan, task=task.partitionId() if task else 0, token=new_token()))


def _commit(publisher: Callable[[], Publisher], claim: Claim, files: Sequence[StagedFile]) -> None:
    """Commit; without an answer once more: it may have been done, and only has to be found."""
    try:
        publisher().commit(claim, files)
    except StoreUnavailable:
        publisher().commit(claim, files)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    told = (each.file for each in messages if isinstance(each, Told))
    return [each for each in told if each is not None]


def _opened(options: WriteOptions) -> Publisher:
    return Publisher.open(options.stream, options.store, staging=options.staging)


def _kept(options: WriteOptions) -> Publisher:
    key = (os.getpid(), options.store, options.stream, options.staging)
    if key not in _KEPT:
        _KEPT[key] = _opened(options)
    return _KEPT[key]


def _holder() -> str:
    return holder_id(f"spark-{os.getpid()}", host=host_name(), suffix=new_suffix())
