"""One commit of a batch for the log, inside its transaction: entered, found, or refused.

The rules of the contract of a sink (``leasehold.spark.sinks.port``) are here, over the rows that a
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
        sink: who writes, by a name that stays the same when it is started again.
        group: whose positions are moved.
        lane: batches of one lane are published one after the other.
        shares: what is read, under which epochs.
        holder, began_at: for the history.
        by_number: the shares are batch numbers of a query: one that begins anew after a crash may
            find its last batch committed under an older epoch.
        fence_key: a key of the store that must be held, under ``fence_epoch``; empty: none.
    """

    sink: str
    group: str
    lane: str
    shares: tuple[BatchPart, ...]
    holder: str
    began_at: str
    by_number: bool = False
    fence_key: str = ""
    fence_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """A batch that is committed. ``partitions``: how many the stream had then."""

    sink: str
    number: int
    stream: str
    stream_made: str
    lane: str
    partitions: int
    rows: int
    bytes: int
    files: tuple[StagedFile, ...]
    published: bool

    @property
    def label(self) -> str:
        """In words."""
        return f"batch {self.number} of {self.sink} ({self.rows} events for {self.stream!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The answer to a commit.

    ``before``: batches of its lane that must be published first; then nothing was done.
    ``record`` None with none of those: it was done before, and is not remembered any more.
    """

    record: PublishedBatch | None
    is_new: bool = False
    before: tuple[PublishedBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class PublicationStep:
    """One commit, inside its transaction. Refusals are returned, so that they can be counted."""

    tx: Tx
    claim: CommitRequest
    stream: StreamInfo

    def made(
        self, staged: Sequence[StagedFile], *, unfit: LeaseholdError | None
    ) -> CommitResult | LeaseholdError:
        """Enter it, find it, or say why not."""
        claim, tx = self.claim, self.tx
        last = ensure_sink(tx, claim.sink, self.stream)
        if isinstance(last, LeaseholdError):
            return last
        if (refused := self._refused()) is not None:
            tx.run("sink_refused", sink=claim.sink)
            return refused
        found = [self._found(share) for share in claim.shares]
        if all(found):
            return self._done_before()
        changes = filter(None, map(self._changed, claim.shares))
        if (reason := next(changes, unfit)) is not None:
            return reason
        before = self._before()
        if before:
            return CommitResult(record=None, before=before)
        return CommitResult(record=self._entered(last + 1, staged), is_new=True)

    def _place(self, share: BatchPart) -> tuple[SinkPosition, int]:
        return position_of(self.tx, self.claim.sink, self.claim.group, share.range.partition)

    def _refused(self) -> FencedWrite | None:
        claim = self.claim
        for share in claim.shares:
            known = self._place(share)[0].epoch
            if claim.by_number:
                row = self.tx.one("place_highest", sink=claim.sink, grp=claim.group)
                known = known if row is None else int(row[0])
            if known > share.epoch:
                return fenced_write(claim.group, share.range.partition, share.epoch, known)
        if not claim.fence_key:
            return None
        row = self.tx.one("owner_get", key=claim.fence_key)
        if row is not None and row[0] == claim.fence_epoch and row[2] > self.tx.now:
            return None
        now = "nobody" if row is None else f"{row[1]} under epoch {row[0]}"
        return FencedWrite(
            f"{claim.fence_key} is held by {now}, and this batch was made under epoch "
            f"{claim.fence_epoch}, which is over: nothing was written, stop this query",
            key=claim.fence_key,
            epoch=claim.fence_epoch,
            reason="fenced",
            now_held_by=None if row is None else str(row[1]),
        )

    def _found(self, share: BatchPart) -> bool:
        """Whether this share was committed before."""
        known, moved_epoch = self._place(share)
        same_owner = self.claim.by_number or moved_epoch == share.epoch
        return known.position == share.range.end and same_owner

    def _changed(self, share: BatchPart) -> SinkChanged | None:
        known, _ = self._place(share)
        if known.position is None or known.position == share.range.start:
            return None
        if not self.claim.by_number:
            return SinkChanged(
                f"{self.claim.sink} holds {self.claim.group} up to {known.position} in partition "
                f"{share.range.partition}, and the batch is {share.range}: somebody else moved "
                "the position; start the pipeline again, it goes on from there"
            )
        if known.position < share.range.start:
            return None  # the query wrote elsewhere meanwhile
        return SinkChanged(
            f"{self.claim.sink} holds the batches before {known.position}, and this is batch "
            f"{share.range.start}: the query seems to have a new or an older checkpoint; give it a "
            "new name (the option name), or its own checkpoint back"
        )

    def _done_before(self) -> CommitResult:
        claim, share = self.claim, self.claim.shares[0]
        row = self.tx.one(
            "share_last",
            sink=claim.sink,
            grp=claim.group,
            part=share.range.partition,
            end_at=share.range.end,
        )
        if row is None:
            return CommitResult(record=None)
        return CommitResult(
            record=batch_from_row(self.tx.one("commit_get", sink=claim.sink, number=row[0]))
        )

    def _before(self) -> tuple[PublishedBatch, ...]:
        rows = self.tx.all("commits_left", stream=self.stream.name)
        records = (batch_from_row(row[:10]) for row in rows)
        mine = (self.claim.sink, self.claim.lane)
        return tuple(each for each in records if (each.sink, each.lane) == mine)

    def _entered(self, number: int, staged: Sequence[StagedFile]) -> PublishedBatch:
        claim, tx = self.claim, self.tx
        tx.run("sink_number", sink=claim.sink, number=number)
        tx.run(
            "commit_put",
            sink=claim.sink,
            number=number,
            stream=self.stream.name,
            made=self.stream.created_at,
            lane=claim.lane,
            partitions=self.stream.partitions,
            grp=claim.group,
            holder=claim.holder,
            began_at=claim.began_at,
            committed_at=tx.wall,
            row_count=sum(each.rows for each in staged),
            byte_count=sum(each.bytes for each in staged),
            files=json.dumps([asdict(each) for each in staged]),
            tended_at=tx.now,
        )
        for share in claim.shares:
            part, end = share.range.partition, share.range.end
            tx.run(
                "share_put",
                sink=claim.sink,
                number=number,
                part=part,
                start_at=share.range.start,
                end_at=end,
                epoch=share.epoch,
            )
            at = {"position": end, "epoch": share.epoch}
            tx.run("place_move", sink=claim.sink, grp=claim.group, part=part, **at)
        return batch_from_row(tx.one("commit_get", sink=claim.sink, number=number))


def ensure_sink(tx: Tx, sink: str, stream: StreamInfo) -> int | SinkChanged:
    """The number of the last commit of the sink, which is made if it is new."""
    made = stream.created_at
    tx.run("sink_put", sink=sink, stream=stream.name, made=made)
    row = tx.one("sink_get", sink=sink)
    if row is None:  # just made
        return 0
    if (row[0], row[1]) != (stream.name, made):
        there = f"{row[0]!r} of {row[1]}"
        return SinkChanged(
            f"{sink} has written to the stream {there}, and this is {stream.name!r} of {made}: the "
            "stream was made anew, or the name is used twice; give the sink another name"
        )
    return int(row[2])


def position_of(tx: Tx, sink: str, group: str, part: str) -> tuple[SinkPosition, int]:
    """What is known of a partition, and the epoch of its last commit."""
    row = tx.one("place_get", sink=sink, grp=group, part=part)
    if row is None:
        return SinkPosition(), 0
    return SinkPosition(position=row[0], epoch=row[1]), int(row[2])


def batch_from_row(row: Any) -> PublishedBatch:
    """A row of ``commit_get``."""
    sink, number, stream, made, lane, partitions, rows, size, listed, published = row
    return PublishedBatch(
        sink=sink,
        number=number,
        stream=stream,
        stream_made=made,
        lane=lane,
        partitions=partitions,
        rows=rows,
        bytes=size,
        files=tuple(StagedFile(**each) for each in json.loads(listed)),
        published=bool(published),
    )


def fenced_write(group: str, part: str, epoch: int, known: int) -> FencedWrite:
    """The refusal of a write under ``epoch``, where ``known`` is higher."""
    return FencedWrite(
        f"{group}/{part} was taken over under epoch {known}, and this write is under epoch "
        f"{epoch}: it was refused and changed nothing; stop, somebody else goes on",
        key=part,
        epoch=epoch,
        reason="fenced",
    )
