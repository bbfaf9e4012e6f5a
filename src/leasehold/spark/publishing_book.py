"""The book of batches for the log: who may commit what, what is committed, what is published.

Every call is one transaction of the store's database. A commit is the one atomic step of a batch:
its record, its files, and the positions and epochs of all its shares, or nothing. It is refused
under an epoch that is over, and the same commit again finds the record of the first.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from leasehold.errors import FencedWrite, LeaseholdError, SinkChanged
from leasehold.spark.publishing_rows import StagedFile
from leasehold.spark.sinks.port import Sunk
from leasehold.stores.blocking import named_queries, open_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.log.streams import StreamInfo
    from leasehold.spark.sinks.port import Share
    from leasehold.stores.blocking import BlockingDatabase, Tx

# Somebody who publishes says so every second. After this time without a word others may.
_UNTENDED_S = 10.0
_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a commit asks for.

    Attributes:
        sink: who writes, by a name that stays the same when it is started again.
        group: whose positions are moved.
        lane: batches of one lane are published one after the other.
        shares: what is read, under which epochs.
        holder, began_at: for the history.
        by_number: the shares are batch numbers of a query: one that begins anew after a crash may
            find its last batch committed under an older epoch.
        lineage: the checkpoint of the query; empty if it is not known.
        fence_key: a key of the store that must be held, under ``fence_epoch``; empty: none.
        passing: the sink is made for this one commit, and forgotten after it.
    """

    sink: str
    group: str
    lane: str
    shares: tuple[Share, ...]
    holder: str
    began_at: str
    by_number: bool = False
    lineage: str = ""
    fence_key: str = ""
    fence_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
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
class Entered:
    """The answer to a commit.

    ``before``: batches of its lane that must be published first; then nothing was done.
    ``record`` None with none of those: it was done before, and is not remembered any more.
    """

    record: Record | None
    is_new: bool = False
    before: tuple[Record, ...] = ()


class Book:
    """Made by ``Book.open``. Safe to use from several threads."""

    def __init__(self, database: BlockingDatabase) -> None:
        """Over a database that is open."""
        self._database = database

    @classmethod
    def open(cls, url: str, *, clock: Clock) -> Self:
        """Open the book in the database that ``url`` names.

        Raises:
            UnknownStore: the URL names no database that can keep a log.
            StoreUnavailable: there is no answer.
            StoreUnusable: it can not serve.
        """
        return cls(open_blocking(url, queries=_queries(), clock=clock, guard="guard"))

    @property
    def url(self) -> str:
        """The store, without its secrets."""
        return self._database.url

    def commit(self, claim: Claim, staged: Sequence[StagedFile], stream: StreamInfo) -> Entered:
        """Enter a batch, in one step.

        Raises:
            FencedWrite: an epoch is over: somebody else goes on. Nothing was entered.
            SinkChanged: it does not follow what was committed before.
            StoreUnavailable: unknown whether it was done: call it again.
        """

        def step(tx: Tx) -> Entered | LeaseholdError:
            return _Entry(tx, claim, stream).made(staged)

        answer = self._database.write(step)
        if isinstance(answer, LeaseholdError):
            raise answer
        return answer

    def fence(
        self, sink: str, group: str, epochs: Mapping[str, int], stream: StreamInfo
    ) -> Mapping[str, Sunk]:
        """Raise epochs; return what was known before.

        Raises:
            SinkChanged: the stream was made anew.
        """

        def step(tx: Tx) -> dict[str, Sunk] | LeaseholdError:
            changed = _prepared(tx, sink, stream, lineage="")
            if isinstance(changed, LeaseholdError):
                return changed
            known = {part: _place(tx, sink, group, part)[0] for part in epochs}
            for part, epoch in epochs.items():
                tx.run("place_fence", sink=sink, grp=group, part=part, epoch=epoch)
            return known

        answer = self._database.write(step)
        if isinstance(answer, LeaseholdError):
            raise answer
        return answer

    def move(self, sink: str, group: str, places: Mapping[str, Sunk]) -> None:
        """Put positions anywhere.

        Raises:
            FencedWrite: an epoch is higher; nothing was moved.
        """

        def step(tx: Tx) -> FencedWrite | None:
            for part, place in places.items():
                known, _ = _place(tx, sink, group, part)
                if known.epoch > place.epoch:
                    tx.run("sink_refused", sink=sink)
                    return _fenced(group, part, place.epoch, known.epoch)
            for part, place in places.items():
                at = {"position": place.position, "epoch": place.epoch}
                tx.run("place_move", sink=sink, grp=group, part=part, **at)
            return None

        if (refused := self._database.write(step)) is not None:
            raise refused

    def left(
        self,
        stream: str,
        *,
        sink: str = "",
        lane: str = "",
        group: str = "",
        parts: frozenset[str] = frozenset(),
    ) -> list[Record]:
        """What is committed and not published, and is to be published by whoever asks.

        That is what nobody is at work on; and at once: the lane of a sink, and what a group has
        committed of ``parts``, which have a new owner.
        """

        def step(tx: Tx) -> list[Record]:
            found = []
            for row in tx.all("commits_left", stream=stream):
                record, tended_at, grp = _record(row[:10]), row[10], row[11]
                mine = record.sink == sink and record.lane == lane
                if record.sink == sink and grp == group and not mine:
                    shares = tx.all("shares_of", sink=sink, number=record.number)
                    mine = any(part in parts for (part,) in shares)
                if mine or not 0.0 <= tx.now - tended_at < _UNTENDED_S:
                    found.append(record)
            return found

        return self._database.read(step)

    def files_left(self, stream: str) -> set[str]:
        """The files of all batches that are not published."""
        rows = self._database.read(lambda tx: tx.all("commits_left", stream=stream))
        return {file.path for row in rows for file in _record(row[:10]).files}

    def tend(self, record: Record) -> bool:
        """Say that somebody is at work on it; False if there is nothing to do any more."""
        return self._database.write(
            lambda tx: tx.run("commit_tend", sink=record.sink, number=record.number, now=tx.now) > 0
        )

    def publish(self, record: Record, *, forget: bool) -> None:
        """Note that all its events are in the log. ``forget``: the whole sink was for it alone."""

        def step(tx: Tx) -> None:
            sink, number = record.sink, record.number
            tx.run("commit_published", sink=sink, number=number)
            if forget:
                tx.run("places_forget", sink=sink)
                tx.run("sink_forget", sink=sink)
            oldest = number if forget else number - _REMEMBERED
            if oldest > 0:
                tx.run("commit_forget", sink=sink, number=oldest)
                tx.run("shares_forget", sink=sink, number=oldest)

        self._database.write(step)

    def history(self, sink: str, group: str) -> list[tuple[Any, ...]]:
        """The shares of all commits that are remembered, oldest first."""
        return self._database.read(lambda tx: tx.all("history", sink=sink, grp=group))

    def refused(self, sink: str) -> int:
        """How many writes under an older epoch were refused."""
        row = self._database.read(lambda tx: tx.one("sink_get", sink=sink))
        return 0 if row is None else int(row[4])

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One commit, inside its transaction. Refusals are returned, so that they can be counted."""

    tx: Tx
    claim: Claim
    stream: StreamInfo

    def made(self, staged: Sequence[StagedFile]) -> Entered | LeaseholdError:
        claim, tx = self.claim, self.tx
        last = _prepared(tx, claim.sink, self.stream, lineage=claim.lineage)
        if isinstance(last, LeaseholdError):
            return last
        if (refused := self._refused()) is not None:
            tx.run("sink_refused", sink=claim.sink)
            return refused
        found = [self._found(share) for share in claim.shares]
        if all(found):
            return self._done_before()
        for share in claim.shares:
            if (changed := self._changed(share)) is not None:
                return changed
        before = self._before()
        if before:
            return Entered(record=None, before=before)
        return Entered(record=self._entered(last + 1, staged), is_new=True)

    def _place(self, share: Share) -> tuple[Sunk, int]:
        return _place(self.tx, self.claim.sink, self.claim.group, share.range.partition)

    def _refused(self) -> FencedWrite | None:
        claim = self.claim
        for share in claim.shares:
            known, _ = self._place(share)
            if known.epoch > share.epoch:
                return _fenced(claim.group, share.range.partition, share.epoch, known.epoch)
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

    def _found(self, share: Share) -> bool:
        """Whether this share was committed before."""
        known, moved_epoch = self._place(share)
        same_owner = self.claim.by_number or moved_epoch == share.epoch
        return known.position == share.range.end and same_owner

    def _changed(self, share: Share) -> SinkChanged | None:
        known, _ = self._place(share)
        if known.position in {None, share.range.start}:
            return None
        if not self.claim.by_number:
            return SinkChanged(
                f"{self.claim.sink} holds {self.claim.group} up to {known.position} in partition "
                f"{share.range.partition}, and the batch is {share.range}: somebody else moved "
                "the position; start the pipeline again, it goes on from there"
            )
        if known.position is not None and known.position < share.range.start:
            return None  # the query wrote elsewhere meanwhile
        return SinkChanged(
            f"{self.claim.sink} holds the batches before {known.position}, and this is batch "
            f"{share.range.start}: the query seems to have a new or an older checkpoint; give it a "
            "new name (the option name), or its own checkpoint back"
        )

    def _done_before(self) -> Entered:
        claim, share = self.claim, self.claim.shares[0]
        where = {"grp": claim.group, "part": share.range.partition, "end_at": share.range.end}
        row = self.tx.one("share_last", sink=claim.sink, **where)
        if row is None:
            return Entered(record=None)
        return Entered(record=_record(self.tx.one("commit_get", sink=claim.sink, number=row[0])))

    def _before(self) -> tuple[Record, ...]:
        rows = self.tx.all("commits_left", stream=self.stream.name)
        records = (_record(row[:10]) for row in rows)
        mine = (self.claim.sink, self.claim.lane)
        return tuple(each for each in records if (each.sink, each.lane) == mine)

    def _entered(self, number: int, staged: Sequence[StagedFile]) -> Record:
        claim, tx = self.claim, self.tx
        tx.run("sink_number", sink=claim.sink, number=number, lineage=claim.lineage)
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
        return _record(tx.one("commit_get", sink=claim.sink, number=number))


def _prepared(tx: Tx, sink: str, stream: StreamInfo, *, lineage: str) -> int | SinkChanged:
    """The number of the last commit of the sink, which is made if it is new."""
    made = stream.created_at
    tx.run("sink_put", sink=sink, stream=stream.name, made=made, lineage=lineage)
    row = tx.one("sink_get", sink=sink)
    if row is None:  # just made
        return 0
    if (row[0], row[1]) != (stream.name, made):
        there = f"{row[0]!r} of {row[1]}"
        return SinkChanged(
            f"{sink} has written to the stream {there}, and this is {stream.name!r} of {made}: the "
            "stream was made anew, or the name is used twice; give the sink another name"
        )
    if lineage and row[2] and row[2] != lineage:
        return SinkChanged(
            f"{sink} was written by the query with the checkpoint {row[2]}, and this one has "
            f"{lineage}: its batch numbers mean something else; give this query another name "
            "(the option name), or its old checkpoint back"
        )
    return int(row[3])


def _place(tx: Tx, sink: str, group: str, part: str) -> tuple[Sunk, int]:
    row = tx.one("place_get", sink=sink, grp=group, part=part)
    if row is None:
        return Sunk(), 0
    return Sunk(position=row[0], epoch=row[1]), int(row[2])


def _record(row: Any) -> Record:
    sink, number, stream, made, lane, partitions, rows, size, listed, published = row
    return Record(
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


def _fenced(group: str, part: str, epoch: int, known: int) -> FencedWrite:
    return FencedWrite(
        f"{group}/{part} was taken over under epoch {known}, and this write is under epoch {epoch}: "
        "it was refused and changed nothing; stop, somebody else goes on",
        key=f"{group}/{part}",
        epoch=epoch,
        reason="fenced",
    )


@cache
def _queries() -> Mapping[str, str]:
    text = files("leasehold.spark").joinpath("sql", "publishing.sql").read_text(encoding="utf-8")
    return named_queries(text)
