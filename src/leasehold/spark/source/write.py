"""Writes to the log through Spark's own API: ``df.write`` and ``df.writeStream``.

Both stage in their tasks and publish in the driver's commit: see ``leasehold.spark.log_writer``. A
batch write is all or nothing. A batch of a stream is stored once, however often its number is
committed, and not at all when the driver's fence is over.

Spark creates a writer in each process that needs one, so a writer carries only its options; what a
commit needs to know of a task is in the task's message.

Options are checked before anything is opened. An unknown option is refused with the nearest name;
case is ignored, as in Spark.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from leasehold.clock import SystemClock, host_name, new_suffix, new_token
from leasehold.errors import InvalidOptions, StoreUnavailable, UsageError
from leasehold.events.source_urls import stream_of
from leasehold.names import check_name, holder_id
from leasehold.spark.log_writer.publication import CommitRequest
from leasehold.spark.log_writer.publisher import SAVE_PREFIX, Publisher
from leasehold.spark.log_writer.staged_rows import check_columns, stage
from leasehold.spark.reading import Range, freeze_garbage_collection
from leasehold.spark.schema import arrow_schema
from leasehold.spark.sinks.port import BatchPart
from leasehold.spark.source.options import check_option_names
from leasehold.spark.standby_query.location import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leasehold.spark.log_writer.staged_rows import StagedFile, StagingPlan

_COMMON = ("store", "stream", "path", "staging")
_STREAM_ONLY = ("name", "fence.key", "fence.epoch", "checkpointLocation", "queryName")
_LOCAL = "file:"
_METADATA = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write, and the identity of a streaming query.

    Attributes:
        stream: the name of the stream.
        store: the URL of the store; it may hold a password and is never shown.
        staging: the directory that executors and drivers share; empty: beside the log's volumes.
        name: of the query, the same across restarts; empty: the id of its checkpoint.
        checkpoint: the checkpoint location of the query, as it was given.
        fence_key, fence_epoch: the key of the store that the driver holds, and its epoch.
    """

    stream: str
    store: str = field(repr=False)
    staging: str = ""
    name: str = ""
    checkpoint: str = ""
    fence_key: str = ""
    fence_epoch: int = 0


def parse(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Read the options of a write."""
    allowed = (*_COMMON, *_STREAM_ONLY) if streaming else _COMMON
    parsed = check_option_names(given, allowed, what="this write")
    if not parsed.get("store"):
        raise UsageError('no store is named: add .option("store", "sqlite:///leases.db")')
    key, epoch = parsed.get("fence.key", ""), parsed.get("fence.epoch", "0")
    if bool(key) != ("fence.epoch" in parsed):
        raise InvalidOptions(
            "fence.key and fence.epoch belong together: give both, as fence.options() does"
        )
    if not (epoch.isascii() and epoch.isdigit()):
        raise UsageError(f"fence.epoch is a whole number, not {epoch!r}")
    name = parsed.get("name", "")
    return WriteOptions(
        stream=_stream(parsed),
        store=parsed["store"],
        staging=parsed.get("staging", ""),
        name=check_name(name, what="the option name") if name else "",
        checkpoint=parsed.get("checkpointLocation", ""),
        fence_key=key,
        fence_epoch=int(epoch),
    )


def checkpoint_id(options: WriteOptions) -> str:
    """Return the id of the query's checkpoint; empty if it is not on this machine.

    It is also empty if the query was never started.
    """
    if not canonical_is_local(options.checkpoint):
        return ""
    try:
        text = (_directory(options) / _METADATA).read_text(encoding="utf-8")
        return str(json.loads(text)["id"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(options, repr(error)) from error


def running_id(options: WriteOptions) -> str:
    """Return the same of a running query. A checkpoint on this machine has an id by then.

    A query that had another id for one batch would store that batch again.
    """
    found = checkpoint_id(options)
    if not found and canonical_is_local(options.checkpoint) and _is_here(options):
        raise _unreadable(options, "there is no such file")
    return found


def check_identity(options: WriteOptions) -> None:
    """Return if the query can be identified after a restart."""
    if options.name or canonical_is_local(options.checkpoint):
        return
    raise UsageError(
        "a query that writes to the log must be known again after a restart, and "
        f"{options.checkpoint or 'a checkpointLocation'} can not be read by the driver's Python: "
        'add .option("name", …), another one for each query and each checkpoint'
    )


def canonical_is_local(location: str) -> bool:
    """Return whether a checkpoint location is a directory of this machine."""
    return bool(location) and canonical(location).startswith(_LOCAL)


def _stream(parsed: Mapping[str, str]) -> str:
    stream, path = parsed.get("stream", ""), parsed.get("path", "")
    if stream and path and stream_of(stream) != stream_of(path):
        raise InvalidOptions(f"the stream is {stream!r} by its option and {path!r} by its path")
    if not (stream or path):
        raise UsageError('no stream is named: write .save("orders") or .option("stream", "orders")')
    return stream_of(stream or path)


def _directory(options: WriteOptions) -> Path:
    return Path(canonical(options.checkpoint).removeprefix(_LOCAL))


def _is_here(options: WriteOptions) -> bool:
    """Return whether the checkpoint is surely on this machine: Spark may have another default."""
    return options.checkpoint.startswith(_LOCAL) or _directory(options).is_dir()


def _unreadable(options: WriteOptions, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{_directory(options) / _METADATA}, which has the id of the query, can not be read "
        f"({why}): nothing was written. Look at the disk, and start the query again"
    )


_BATCH = "batch"
_QUERY = "query"

# Of this process: Spark uses it for commit after commit, and the log's segments stay open.
_PUBLISHERS: dict[tuple[int, str, str, str], Publisher] = {}


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer for ``df.write``."""
    if overwrite:
        raise UsageError(
            'a log is never overwritten: write with .mode("append"), into a new stream if the '
            "old events must not be in it"
        )
    parsed = parse(options, streaming=False)
    check_columns(arrow_schema(schema))
    publisher = _open_publisher(parsed)
    try:
        return BatchWriter(parsed, publisher.plan(), token=new_token())
    finally:
        publisher.close()


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer for ``df.writeStream``."""
    if overwrite:
        raise UsageError(
            "outputMode complete would overwrite the log with each batch: use append or update"
        )
    parsed = parse(options, streaming=True)
    check_identity(parsed)
    check_columns(arrow_schema(schema))
    return StreamWriter(parsed, _cached_publisher(parsed).plan(shared=True))


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """The message of a task to the driver: its file, if it had any rows."""

    file: StagedFile | None


class BatchWriter(DataSourceArrowWriter):
    """One ``save``: all its rows are in the log when it returns, or none."""

    def __init__(self, options: WriteOptions, plan: StagingPlan, *, token: str) -> None:
        """``token`` names this save."""
        self._options = options
        self._plan = plan
        self._sink = f"{SAVE_PREFIX}{token}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return _stage(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the files of all tasks. Runs in the driver."""
        publisher = _open_publisher(self._options)
        part = BatchPart(range=Range(partition=_BATCH, start=0, end=1), epoch=0)
        request = CommitRequest(
            sink=self._sink,
            group=self._sink,
            producer="",
            parts=(part,),
            holder=_holder(),
            began_at=SystemClock().utc_now().isoformat(),
        )
        try:
            _commit_with_retry(lambda: publisher, request, _files(messages))
            publisher.clear(self._plan)
        finally:
            publisher.close()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged. Runs in the driver."""
        publisher = _open_publisher(self._options)
        try:
            publisher.discard(_files(messages), self._plan)
        finally:
            publisher.close()


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of one query: each batch once."""

    def __init__(self, options: WriteOptions, plan: StagingPlan) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return _stage(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the files of all tasks, unless the batch is committed. Runs in the driver."""
        checkpoint = running_id(self._options)
        name = f"{_QUERY}/{self._options.name or checkpoint}"
        if name.endswith("/"):
            raise UsageError(
                f"{self._options.checkpoint} can not be read here, and the query has no name: add "
                '.option("name", …), another one for each query and each checkpoint'
            )
        number = Range(partition=checkpoint or _QUERY, start=batchId, end=batchId + 1)
        request = CommitRequest(
            sink=name,
            group=name,
            producer="",
            parts=(BatchPart(range=number, epoch=self._options.fence_epoch),),
            holder=_holder(),
            began_at=SystemClock().utc_now().isoformat(),
            by_number=True,
            fence_key=self._options.fence_key,
            fence_epoch=self._options.fence_epoch,
        )
        _commit_with_retry(lambda: _cached_publisher(self._options), request, _files(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what was staged for a batch that failed. Runs in the driver."""
        _cached_publisher(self._options).discard(_files(messages))


def _stage(iterator: Iterator[pa.RecordBatch], plan: StagingPlan) -> TaskResult:
    freeze_garbage_collection()
    task = TaskContext.get()
    return TaskResult(
        stage(iterator, plan, task=task.partitionId() if task else 0, token=new_token())
    )


def _commit_with_retry(
    publisher: Callable[[], Publisher], request: CommitRequest, files: Sequence[StagedFile]
) -> None:
    """Commit; without an answer once more: it may have been done, and is found then."""
    try:
        publisher().commit(request, files)
    except StoreUnavailable:
        publisher().commit(request, files)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    files = (each.file for each in messages if isinstance(each, TaskResult))
    return [each for each in files if each is not None]


def _open_publisher(options: WriteOptions) -> Publisher:
    return Publisher.open(options.stream, options.store, staging=options.staging)


def _cached_publisher(options: WriteOptions) -> Publisher:
    key = (os.getpid(), options.store, options.stream, options.staging)
    if key not in _PUBLISHERS:
        _PUBLISHERS[key] = _open_publisher(options)
    return _PUBLISHERS[key]


def _holder() -> str:
    return holder_id(f"spark-{os.getpid()}", host=host_name(), suffix=new_suffix())
