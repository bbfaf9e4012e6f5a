"""One commit of a batch for the log, inside its transaction: inserted, found, or refused.

The rules of a sink (``leasehold.spark.sinks.port``) are applied here, to the rows that the
transaction sees. A refusal is returned, not raised: it is counted in the same transaction.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from leasehold.errors import FencedWrite, LeaseholdError, SinkChanged
from leasehold.spark.log_writer.staged_rows import StagedFile
from leasehold.spark.sinks.port import SinkPosition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.log.streams import StreamInfo
    from leasehold.spark.sinks.port import BatchPart
    from leasehold.stores.blocking import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """What a commit asks for.

    Attributes:
        sink: the writer, by a name that stays the same across restarts.
        group: the group whose positions are moved.
        producer: batches of one producer are published one after the other.
        parts: the ranges that were read, with their epochs.
        holder, began_at: for the history.
        by_number: the ranges are batch numbers of a query: one that restarts after a crash may
            find its last batch committed under an older epoch.
        fence_key: a key of the store that must be held, under ``fence_epoch``; empty: none.
    """

    sink: str
    group: str
    producer: str
    parts: tuple[BatchPart, ...]
    holder: str
    began_at: str
    by_number: bool = False
    fence_key: str = ""
    fence_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """A committed batch. ``partitions``: how many the stream had then."""

    sink: str
    number: int
    stream: str
    stream_created_at: str
    producer: str
    partitions: int
    rows: int
    bytes: int
    files: tuple[StagedFile, ...]
    published: bool

    @property
    def label(self) -> str:
        """The batch as text."""
        return f"batch {self.number} of {self.sink} ({self.rows} events for {self.stream!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The result of a commit.

    ``publish_first``: batches of the same producer that must be published first; nothing was done.
    ``record`` is None without these if it was committed before, and its record was deleted since.
    """

    record: PublishedBatch | None
    is_new: bool = False
    publish_first: tuple[PublishedBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class PublicationStep:
    """One commit, inside its transaction. Refusals are returned, so that they can be counted."""

    tx: Tx
    request: CommitRequest
    stream: StreamInfo

    def run(
        self, staged: Sequence[StagedFile], *, unfit: LeaseholdError | None
    ) -> CommitResult | LeaseholdError:
        """Insert the batch, find it, or return the refusal."""
        request, tx = self.request, self.tx
        last = ensure_sink(tx, request.sink, self.stream)
        if isinstance(last, LeaseholdError):
            return last
        if (refused := self._refusal()) is not None:
            tx.run("sink_refused", sink=request.sink)
            return refused
        found = [self._is_committed(part) for part in request.parts]
        if all(found):
            return self._earlier_commit()
        changes = filter(None, map(self._position_conflict, request.parts))
        if (reason := next(changes, unfit)) is not None:
            return reason
        publish_first = self._unpublished_before()
        if publish_first:
            return CommitResult(record=None, publish_first=publish_first)
        return CommitResult(record=self._insert(last + 1, staged), is_new=True)

    def _position(self, part: BatchPart) -> tuple[SinkPosition, int]:
        return position_of(self.tx, self.request.sink, self.request.group, part.range.partition)

    def _refusal(self) -> FencedWrite | None:
        request = self.request
        for part in request.parts:
            known = self._position(part)[0].epoch
            if request.by_number:
                row = self.tx.one("position_highest_epoch", sink=request.sink, grp=request.group)
                known = known if row is None else int(row[0])
            if known > part.epoch:
                return fenced_write(request.group, part.range.partition, part.epoch, known)
        if not request.fence_key:
            return None
        row = self.tx.one("owner_get", key=request.fence_key)
        if row is not None and row[0] == request.fence_epoch and row[2] > self.tx.now:
            return None
        now = "nobody" if row is None else f"{row[1]} under epoch {row[0]}"
        return FencedWrite(
            f"{request.fence_key} is held by {now}, and this batch was made under epoch "
            f"{request.fence_epoch}, which is over: nothing was written, stop this query",
            key=request.fence_key,
            epoch=request.fence_epoch,
            reason="fenced",
            now_held_by=None if row is None else str(row[1]),
        )

    def _is_committed(self, part: BatchPart) -> bool:
        """Return whether this part was committed before."""
        known, moved_epoch = self._position(part)
        same_owner = self.request.by_number or moved_epoch == part.epoch
        return known.position == part.range.end and same_owner

    def _position_conflict(self, part: BatchPart) -> SinkChanged | None:
        known, _ = self._position(part)
        if known.position is None or known.position == part.range.start:
            return None
        if not self.request.by_number:
            return SinkChanged(
                f"{self.request.sink} holds {self.request.group} up to {known.position} in "
                f"partition {part.range.partition}, and the batch is {part.range}: somebody else "
                "moved the position; start the pipeline again, it goes on from there"
            )
        if known.position < part.range.start:
            return None  # the query wrote to another sink in between
        return SinkChanged(
            f"{self.request.sink} holds the batches before {known.position}, and this is batch "
            f"{part.range.start}: the query seems to have a new or an older checkpoint; give it a "
            "new name (the option name), or its own checkpoint back"
        )

    def _earlier_commit(self) -> CommitResult:
        request, part = self.request, self.request.parts[0]
        row = self.tx.one(
            "part_last",
            sink=request.sink,
            grp=request.group,
            partition=part.range.partition,
            end_at=part.range.end,
        )
        if row is None:
            return CommitResult(record=None)
        return CommitResult(
            record=batch_from_row(self.tx.one("commit_get", sink=request.sink, number=row[0]))
        )

    def _unpublished_before(self) -> tuple[PublishedBatch, ...]:
        rows = self.tx.all("commits_unpublished", stream=self.stream.name)
        records = (batch_from_row(row[:10]) for row in rows)
        own = (self.request.sink, self.request.producer)
        return tuple(each for each in records if (each.sink, each.producer) == own)

    def _insert(self, number: int, staged: Sequence[StagedFile]) -> PublishedBatch:
        request, tx = self.request, self.tx
        tx.run("sink_number", sink=request.sink, number=number)
        tx.run(
            "commit_put",
            sink=request.sink,
            number=number,
            stream=self.stream.name,
            created_at=self.stream.created_at,
            producer=request.producer,
            partitions=self.stream.partitions,
            grp=request.group,
            holder=request.holder,
            began_at=request.began_at,
            committed_at=tx.wall,
            row_count=sum(each.rows for each in staged),
            byte_count=sum(each.bytes for each in staged),
            files=json.dumps([asdict(each) for each in staged]),
            tended_at=tx.now,
        )
        for part in request.parts:
            partition, end = part.range.partition, part.range.end
            tx.run(
                "part_put",
                sink=request.sink,
                number=number,
                partition=partition,
                start_at=part.range.start,
                end_at=end,
                epoch=part.epoch,
            )
            at = {"position": end, "epoch": part.epoch}
            tx.run("position_move", sink=request.sink, grp=request.group, partition=partition, **at)
        return batch_from_row(tx.one("commit_get", sink=request.sink, number=number))


def ensure_sink(tx: Tx, sink: str, stream: StreamInfo) -> int | SinkChanged:
    """Insert the sink if it is new; return the number of its last commit."""
    created_at = stream.created_at
    tx.run("sink_put", sink=sink, stream=stream.name, created_at=created_at)
    row = tx.one("sink_get", sink=sink)
    if row is None:  # just inserted
        return 0
    if (row[0], row[1]) != (stream.name, created_at):
        there = f"{row[0]!r} of {row[1]}"
        return SinkChanged(
            f"{sink} has written to the stream {there}, and this is {stream.name!r} of "
            f"{created_at}: the stream was made anew, or the name is used twice; give the sink "
            "another name"
        )
    return int(row[2])


def position_of(tx: Tx, sink: str, group: str, partition: str) -> tuple[SinkPosition, int]:
    """Return what is known of a partition, and the epoch of its last commit."""
    row = tx.one("position_get", sink=sink, grp=group, partition=partition)
    if row is None:
        return SinkPosition(), 0
    return SinkPosition(position=row[0], epoch=row[1]), int(row[2])


def batch_from_row(row: Any) -> PublishedBatch:
    """Return the batch of a row of ``commit_get``."""
    sink, number, stream, created_at, producer, partitions, rows, size, listed, published = row
    return PublishedBatch(
        sink=sink,
        number=number,
        stream=stream,
        stream_created_at=created_at,
        producer=producer,
        partitions=partitions,
        rows=rows,
        bytes=size,
        files=tuple(StagedFile(**each) for each in json.loads(listed)),
        published=bool(published),
    )


def fenced_write(group: str, partition: str, epoch: int, known: int) -> FencedWrite:
    """Return the refusal of a write under ``epoch``, where ``known`` is higher."""
    return FencedWrite(
        f"{group}/{partition} was taken over under epoch {known}, and this write is under epoch "
        f"{epoch}: it was refused and changed nothing; stop, somebody else goes on",
        key=partition,
        epoch=epoch,
        reason="fenced",
    )
