"""Rows for the log: checked, distributed to partitions, and staged in a file.

Tasks do this, on any machine that sees the staging directory; they need no store. A staged file is
an Arrow file whose batches each contain rows of one partition of the stream and are small enough
for a frame of the log. When ``stage`` returns, the file is complete, has a checksum, and is safe
from a power cut; a task that fails leaves none. Rows that the log could refuse later are refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from crc32c import crc32c
from pyarrow import ipc

from leasehold.errors import SinkUnfit, UsageError, VolumeUnusable
from leasehold.events.event import SENT_SCHEMA, sent_batch, split_by_key
from leasehold.log.segment_format import MAX_BODY_BYTES
from leasehold.log.send_queue import cut
from leasehold.runtime.private_files import create_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leasehold.log.streams import StreamInfo

_FRAME_BYTES = 1 << 20  # of this size frames read fastest
_FRAME_OVERHEAD_BYTES = 1 << 20  # of a frame, for what is stored beside its events
_MAX_BUFFERED_BYTES = 64 << 20
_PARTITION = "partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingPlan:
    """What a task must know: where to stage, and what the stream was like when it was planned."""

    stream: str
    directory: str
    partitions: int
    frame_bytes: int
    max_event_bytes: int

    @classmethod
    def of(cls, stream: StreamInfo, directory: str) -> StagingPlan:
        """Return the plan for a stream as it is now."""
        segment_bytes = stream.settings.segment_bytes
        return cls(
            stream=stream.name,
            directory=directory,
            partitions=stream.partitions,
            frame_bytes=min(_FRAME_BYTES, segment_bytes // 4),
            max_event_bytes=min(segment_bytes, MAX_BODY_BYTES - _FRAME_OVERHEAD_BYTES),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One file of one task. ``partitions``: how many there were when its rows were distributed."""

    path: str
    task: int
    rows: int
    bytes: int
    checksum: int
    partitions: int


def check_columns(schema: pa.Schema) -> None:
    """Return if rows with these columns can be events."""
    try:
        sent_batch(pa.Table.from_batches([], schema))
    except UsageError as error:
        raise SinkUnfit(f"the rows can not be sent to the log: {error}") from error


def stage(
    batches: Iterable[pa.RecordBatch], plan: StagingPlan, *, task: int, token: str
) -> StagedFile | None:
    """Write the rows of a task to a separate file; return None if there are no rows.

    ``token`` makes the name unlike that of any other attempt.
    """
    path = Path(plan.directory) / f"{task:05d}-{token}.arrow"
    try:
        with os.fdopen(create_file(path), "wb") as file:
            rows = _write_rows(file, batches, plan, task)
            file.flush()
            os.fsync(file.fileno())
        size, checksum = size_and_checksum(path)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, UsageError):
            raise VolumeUnusable(
                f"{plan.directory} can not be written here ({error}): all executors and the driver "
                "must see the same directory; name one with the option staging"
            ) from error
        raise
    if not rows:
        path.unlink()
        return None
    return StagedFile(
        path=str(path),
        task=task,
        rows=rows,
        bytes=size,
        checksum=checksum,
        partitions=plan.partitions,
    )


def size_and_checksum(path: Path) -> tuple[int, int]:
    """Return the size and the checksum of a file."""
    with pa.memory_map(str(path)) as source:
        buffer = source.read_buffer()
        return buffer.size, crc32c(memoryview(buffer))


def staged_batches(path: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of a staged file, each with its partition; not copied."""
    reader = ipc.open_file(pa.memory_map(path))
    for number in range(reader.num_record_batches):
        batch, metadata = reader.get_batch_with_custom_metadata(number)
        yield int(metadata[_PARTITION]), batch


def _write_rows(
    file: object, batches: Iterable[pa.RecordBatch], plan: StagingPlan, task: int
) -> int:
    rows = 0
    with ipc.new_file(file, SENT_SCHEMA) as writer:
        buffer = _RowBuffer(plan)
        for turn, batch in enumerate(batches):
            rows += batch.num_rows
            for number, part in buffer.add(_to_sendable(batch), turn=task + turn):
                _write_frames(writer, number, part, plan)
        for number, part in buffer.flush():
            _write_frames(writer, number, part, plan)
    return rows


def _to_sendable(batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        return sent_batch(batch)
    except UsageError as error:
        raise SinkUnfit(f"a row can not be sent to the log: {error}") from error


def _write_frames(
    writer: ipc.RecordBatchFileWriter, number: int, batch: pa.RecordBatch, plan: StagingPlan
) -> None:
    for part, size in cut(batch, plan.frame_bytes):
        if size > plan.max_event_bytes:
            raise SinkUnfit(
                f"an event has {size} bytes, and one of {plan.stream!r} may have "
                f"{plan.max_event_bytes}: send smaller events, or use a stream with bigger "
                "segments"
            )
        writer.write_batch(part, custom_metadata={_PARTITION: str(number)})


@dataclass(slots=True)
class _RowBuffer:
    """Rows by partition, until there are enough of one for a frame."""

    plan: StagingPlan
    waiting: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch, *, turn: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Add rows; yield what fills a frame. Rows without a key go together to one partition."""
        if not batch.num_rows:
            return
        count = self.plan.partitions
        for number, part in split_by_key(batch, count, keyless=turn % count).items():
            self.waiting.setdefault(number, []).append(part)
            self.sizes[number] = self.sizes.get(number, 0) + part.nbytes
            if self.sizes[number] >= self.plan.frame_bytes:
                yield number, self._take(number)
        if sum(self.sizes.values()) > _MAX_BUFFERED_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield all buffered rows."""
        for number in sorted(self.waiting):
            yield number, self._take(number)

    def _take(self, number: int) -> pa.RecordBatch:
        del self.sizes[number]
        return sent_batch(pa.Table.from_batches(self.waiting.pop(number)))
