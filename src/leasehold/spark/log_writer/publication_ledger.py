"""The publication ledger: which batches for the log are committed, and which are published.

Every call is one transaction of the store's database. A commit is the one atomic step of a batch:
its record, its files, and the positions and epochs of all its parts, or nothing. It is refused
under an epoch that is over, and the same commit again finds the record of the first.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from leasehold.errors import FencedWrite, LeaseholdError
from leasehold.spark.log_writer.publication import (
    CommitRequest,
    CommitResult,
    PublicationStep,
    PublishedBatch,
    batch_from_row,
    ensure_sink,
    fenced_write,
    position_of,
)
from leasehold.stores.blocking import named_queries, open_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.log.streams import StreamInfo
    from leasehold.spark.log_writer.staged_rows import StagedFile
    from leasehold.spark.sinks.port import SinkPosition
    from leasehold.stores.blocking import BlockingDatabase, Tx

# A publishing process sends a heartbeat every second. Without one for this long others publish.
_HEARTBEAT_TIMEOUT_S = 10.0
_MAX_KEPT_COMMITS = 100_000


class PublicationLedger:
    """Made by ``PublicationLedger.open``. Safe to use from several threads."""

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str, *, clock: Clock) -> Self:
        """Open the ledger in the database that ``url`` names."""
        return cls(open_blocking(url, queries=_queries(), clock=clock, guard="guard"))

    @property
    def url(self) -> str:
        """The store, without its secrets."""
        return self._database.url

    def commit(
        self,
        request: CommitRequest,
        staged: Sequence[StagedFile],
        stream: StreamInfo,
        *,
        unfit: LeaseholdError | None = None,
    ) -> CommitResult:
        """Insert a batch, in one step. ``unfit``: why it cannot be inserted if it is new."""

        def step(tx: Tx) -> CommitResult | LeaseholdError:
            return PublicationStep(tx, request, stream).run(staged, unfit=unfit)

        answer = self._database.write(step)
        if isinstance(answer, LeaseholdError):
            raise answer
        return answer

    def fence(
        self, sink: str, group: str, epochs: Mapping[str, int], stream: StreamInfo
    ) -> Mapping[str, SinkPosition]:
        """Raise epochs; return what was known before."""

        def step(tx: Tx) -> dict[str, SinkPosition] | LeaseholdError:
            changed = ensure_sink(tx, sink, stream)
            if isinstance(changed, LeaseholdError):
                return changed
            known = {partition: position_of(tx, sink, group, partition)[0] for partition in epochs}
            for partition, epoch in epochs.items():
                tx.run("position_fence", sink=sink, grp=group, partition=partition, epoch=epoch)
            return known

        answer = self._database.write(step)
        if isinstance(answer, LeaseholdError):
            raise answer
        return answer

    def move(self, sink: str, group: str, positions: Mapping[str, SinkPosition]) -> None:
        """Set positions to any value."""

        def step(tx: Tx) -> FencedWrite | None:
            for partition, position in positions.items():
                known, _ = position_of(tx, sink, group, partition)
                if known.epoch > position.epoch:
                    tx.run("sink_refused", sink=sink)
                    return fenced_write(group, partition, position.epoch, known.epoch)
            for partition, position in positions.items():
                at = {"position": position.position, "epoch": position.epoch}
                tx.run("position_move", sink=sink, grp=group, partition=partition, **at)
            return None

        if (refused := self._database.write(step)) is not None:
            raise refused

    def unpublished(
        self,
        stream: str,
        *,
        sink: str = "",
        producer: str = "",
        group: str = "",
        partitions: frozenset[str] = frozenset(),
    ) -> list[PublishedBatch]:
        """Return the committed batches that the caller is to publish.

        These are batches without a recent heartbeat; and without waiting for that, those of the
        sink's producer and those that a group has committed of ``partitions``, which have a new
        owner.
        """

        def step(tx: Tx) -> list[PublishedBatch]:
            found = []
            for row in tx.all("commits_unpublished", stream=stream):
                record, tended_at, grp = batch_from_row(row[:10]), row[10], row[11]
                own = record.sink == sink and record.producer == producer
                if record.sink == sink and grp == group and not own:
                    rows = tx.all("parts_of", sink=sink, number=record.number)
                    own = any(partition in partitions for (partition,) in rows)
                if own or not 0.0 <= tx.now - tended_at < _HEARTBEAT_TIMEOUT_S:
                    found.append(record)
            return found

        return self._database.read(step)

    def unpublished_files(self, stream: str) -> set[str]:
        """Return the files of all batches that are not published.

        Asked under the write lock: a commit whose answer was lost is over by then, done or not.
        """
        rows = self._database.write(lambda tx: tx.all("commits_unpublished", stream=stream))
        return {file.path for row in rows for file in batch_from_row(row[:10]).files}

    def heartbeat(self, record: PublishedBatch) -> bool:
        """Record that the batch is being published; return False if it is published already."""
        return self._database.write(
            lambda tx: (
                tx.run("commit_heartbeat", sink=record.sink, number=record.number, now=tx.now) > 0
            )
        )

    def publish(self, record: PublishedBatch, *, forget: bool) -> None:
        """Record that all its events are in the log. ``forget``: the sink was for it alone."""

        def step(tx: Tx) -> None:
            sink, number = record.sink, record.number
            tx.run("commit_published", sink=sink, number=number)
            if forget:
                tx.run("positions_forget", sink=sink)
                tx.run("sink_forget", sink=sink)
            oldest = number if forget else number - _MAX_KEPT_COMMITS
            if oldest > 0:
                tx.run("commit_forget", sink=sink, number=oldest)
                tx.run("parts_forget", sink=sink, number=oldest)

        self._database.write(step)

    def history(self, sink: str, group: str) -> list[tuple[Any, ...]]:
        """Return the parts of all recorded commits, oldest first."""
        return self._database.read(lambda tx: tx.all("history", sink=sink, grp=group))

    def refused(self, sink: str) -> int:
        """Return how many writes under an older epoch were refused."""
        row = self._database.read(lambda tx: tx.one("sink_get", sink=sink))
        return 0 if row is None else int(row[3])

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()


@cache
def _queries() -> Mapping[str, str]:
    text = files(__package__).joinpath("queries.sql").read_text(encoding="utf-8")
    return named_queries(text)
