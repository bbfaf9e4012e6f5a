"""The ledger of a sink: positions, epochs and commits, as rows of a database.

Everything here is part of a transaction that the sink has open, so that its output and these rows
are written together or not at all. Rules, as in ``leasehold.spark.sinks.port``: an epoch never
decreases, a position moves only from where a batch starts to its end, and the same commit again is
found.

The rows of the partitions are locked in the order of their names: two batches with common
partitions run one after the other and never deadlock; two without do not wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from leasehold.errors import FencedWrite, SinkChanged
from leasehold.spark.reading import Range
from leasehold.spark.sinks.port import Commit, SinkPosition, Written
from leasehold.stores.blocking import named_queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leasehold.spark.sinks.port import Batch, BatchPart
    from leasehold.stores.blocking import Params, Tx


@cache
def ledger_queries(schema: str = "") -> Mapping[str, str]:
    """Return the statements of the ledger. ``schema``: that of its tables, with a trailing dot."""
    return sql_of("ledger.sql", schema)


def sql_of(name: str, schema: str = "") -> Mapping[str, str]:
    """Return the statements of one of the sinks' ``.sql`` files, by name."""
    text = files("leasehold.spark.sinks").joinpath("sql", name).read_text(encoding="utf-8")
    return named_queries(text.replace("{schema}", schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLedger:
    """The rows of one sink. ``sink`` is its id in the database, ``name`` its display name."""

    sink: str
    name: str

    def fence(self, tx: Tx, group: str, epochs: Mapping[str, int]) -> dict[str, SinkPosition]:
        """Raise the epochs; return what was known before."""
        before = self._lock(tx, group, epochs)
        tx.many(
            "position_fence",
            [
                {"epoch": epoch, "wall": tx.wall, **self._key(group, partition)}
                for partition, epoch in sorted(epochs.items())
                if before[partition].epoch < epoch
            ],
        )
        return before

    def move(self, tx: Tx, group: str, positions: Mapping[str, SinkPosition]) -> None:
        """Set the positions."""
        before = self._lock(tx, group, positions)
        for partition, known in sorted(positions.items()):
            if before[partition].epoch > known.epoch:
                raise self._fenced(group, partition, known.epoch, before[partition].epoch)
        self._put_positions(tx, group, positions)

    def find_commit(self, tx: Tx, commit: str, batch: Batch) -> Written | None:
        """Return what this commit has added, if it was done before; None if it may be done now.

        The positions stay locked to the end of the transaction.
        """
        known = self._lock(tx, batch.group, [each.range.partition for each in batch.shares])
        found: tuple[int, int, int] | None = tx.one("commit_get", id=commit)
        if found is not None:
            return _written(found)
        for part in batch.shares:
            epoch = known[part.range.partition].epoch
            if epoch > part.epoch:
                raise self._fenced(batch.group, part.range.partition, part.epoch, epoch)
        if all(
            known[each.range.partition] == SinkPosition(position=each.range.end, epoch=each.epoch)
            for each in batch.shares
        ):
            return self._commit_ending_at(tx, batch.group, batch.shares[0])
        for part in batch.shares:
            position = known[part.range.partition].position
            if position not in {None, part.range.start}:
                raise SinkChanged(
                    f"{self.name} holds the events of partition {part.range.partition} of "
                    f"{batch.group!r} up to {position}, and the batch is {part.range}: somebody "
                    "else has moved the position; nothing was committed. Start the pipeline "
                    "again, and it goes on where the sink is"
                )
        return None

    def record(self, tx: Tx, commit: str, batch: Batch, written: Written) -> None:
        """Move the positions to the end of the batch; store the commit. After ``find_commit``."""
        self._put_positions(
            tx,
            batch.group,
            {
                each.range.partition: SinkPosition(position=each.range.end, epoch=each.epoch)
                for each in batch.shares
            },
        )
        tx.run(
            "commit_put",
            id=commit,
            sink=self.sink,
            grp=batch.group,
            holder=batch.holder,
            began_at=batch.began_at.isoformat(timespec="microseconds"),
            wall=tx.wall,
            rows=written.rows,
            bytes=written.bytes,
            files=written.files,
        )
        tx.many(
            "part_put",
            [
                {
                    "id": commit,
                    "part": each.range.partition,
                    "first": each.range.start,
                    "next": each.range.end,
                    "epoch": each.epoch,
                }
                for each in batch.shares
            ],
        )

    def commits(self, tx: Tx, group: str) -> list[Commit]:
        """Return all stored commits of a group, oldest first."""
        return [_commit(row) for row in tx.all("history", sink=self.sink, grp=group)]

    # ------------------------------------------------------------- parts

    def _lock(self, tx: Tx, group: str, partitions: Iterable[str]) -> dict[str, SinkPosition]:
        names = sorted(partitions)
        tx.many("position_lock", [{"wall": tx.wall, **self._key(group, each)} for each in names])
        # A separate statement after the locks: it sees what was committed in the meantime.
        rows = tx.all("positions", sink=self.sink, grp=group)
        known = {
            part: SinkPosition(position=position, epoch=epoch) for part, epoch, position in rows
        }
        return {each: known[each] for each in names}

    def _put_positions(self, tx: Tx, group: str, positions: Mapping[str, SinkPosition]) -> None:
        tx.many(
            "position_put",
            [
                {
                    "epoch": known.epoch,
                    "position": known.position,
                    "wall": tx.wall,
                    **self._key(group, partition),
                }
                for partition, known in sorted(positions.items())
            ],
        )

    def _commit_ending_at(self, tx: Tx, group: str, part: BatchPart) -> Written:
        """Return what the commit that ended here has added; nothing if the position was moved."""
        row = tx.one(
            "commit_ending",
            sink=self.sink,
            grp=group,
            part=part.range.partition,
            next=part.range.end,
            epoch=part.epoch,
        )
        return Written(rows=0) if row is None else _written(row)

    def _key(self, group: str, partition: str) -> Params:
        return {"sink": self.sink, "grp": group, "part": partition}

    def _fenced(self, group: str, partition: str, epoch: int, higher: int) -> FencedWrite:
        return FencedWrite(
            f"{self.name} has heard of epoch {higher} of partition {partition} of {group!r}, and "
            f"this is epoch {epoch}: somebody else owns the partition; nothing was committed",
            key=partition,
            epoch=epoch,
            reason="fenced",
        )


def _written(row: tuple[int, int, int]) -> Written:
    rows, in_bytes, in_files = row
    return Written(rows=rows, bytes=in_bytes, files=in_files)


def _commit(row: Any) -> Commit:
    commit, part, first, following, epoch, holder, began_at, committed_at, rows = row
    return Commit(
        commit=commit,
        range=Range(partition=part, start=first, end=following),
        epoch=epoch,
        holder=holder,
        began_at=datetime.fromisoformat(began_at),
        committed_at=datetime.fromisoformat(committed_at),
        rows=rows,
    )
