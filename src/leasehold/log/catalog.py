"""Which streams there are, and which reader of a group may read a partition.

Every call is one transaction of the store's database. Events are not touched here.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from leasehold.errors import InvalidOptions, Stolen, UnknownStream, UsageError
from leasehold.log.streams import StreamInfo, StreamSettings
from leasehold.names import check_name, group_of, last_part, partition_group
from leasehold.stores.blocking import named_queries, open_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.clock import Clock
    from leasehold.stores.blocking import BlockingDatabase, Tx

CLAIM_MARK = " #"  # in a claim, between the reader's name and what makes it its own


class Catalog:
    """Made by ``Catalog.open``. Safe to use from several threads."""

    def __init__(self, database: BlockingDatabase) -> None:
        """Over a database that is open."""
        self._database = database

    @classmethod
    def open(cls, url: str, *, clock: Clock) -> Self:
        """Open the catalog in the database that ``url`` names.

        Raises:
            UnknownStore: the URL names no database that can keep a log.
            StoreUnavailable: there is no answer.
            StoreUnusable: it can not serve.
        """
        return cls(open_blocking(url, queries=_queries(), clock=clock, guard="guard"))

    def create(self, stream: str, settings: StreamSettings) -> StreamInfo:
        """Make a stream. Again with the same settings is harmless.

        Raises:
            InvalidName: it is no name.
            InvalidOptions: there is one of this name with other settings.
        """
        check_name(stream, what="stream")

        def step(tx: Tx) -> StreamInfo:
            tx.run("stream_create", stream=stream, wall=tx.wall, **_columns(settings))
            return _stream(tx.one("stream_get", stream=stream))

        found = self._database.write(step)
        if found.settings != settings:
            differences = ", ".join(
                f"{name} is {there} there and {wanted} here"
                for (name, there), wanted in zip(
                    _columns(found.settings).items(), astuple(settings), strict=True
                )
                if there != wanted
            )
            raise InvalidOptions(
                f"the stream {stream!r} exists with other settings ({differences}): "
                "create it with those, or choose another name"
            )
        return found

    def get(self, stream: str) -> StreamInfo:
        """The stream of this name.

        Raises:
            UnknownStream: there is none; the message names those there are.
        """
        row, others = self._database.read(
            lambda tx: (tx.one("stream_get", stream=stream), tx.all("stream_list"))
        )
        if row is None:
            names = ", ".join(repr(each[0]) for each in others) or "none yet"
            raise UnknownStream(
                f"there is no stream {stream!r}; there are: {names}. Create it, or use one of these"
            )
        return _stream(row)

    def same(self, stream: str, created_at: str) -> StreamInfo:
        """The stream of this name, if it is still the one that was created then.

        Raises:
            UnknownStream: it was deleted; there may be another one of this name.
        """
        found = self.get(stream)
        if found.created_at != created_at:
            raise UnknownStream(
                f"the stream {stream!r} of {created_at} was deleted, and made anew at "
                f"{found.created_at}: open it again for the new one"
            )
        return found

    def grow(self, stream: str, partitions: int) -> StreamInfo:
        """Give a stream this many partitions. Again with the same number is harmless.

        Raises:
            UnknownStream: there is none; the message names those there are.
            UsageError: it has more.
            InvalidOptions: no stream can have so many.
        """
        replace(self.get(stream).settings, partitions=partitions)  # refuses what could not work

        def step(tx: Tx) -> StreamInfo | None:
            tx.run("stream_grow", stream=stream, partitions=partitions)
            row = tx.one("stream_get", stream=stream)
            return None if row is None else _stream(row)

        found = self._database.write(step) or self.get(stream)  # deleted meanwhile: that says so
        if found.partitions > partitions:
            raise UsageError(
                f"{stream!r} has {found.partitions} partitions and can not have fewer, since there "
                f"may be events in them: give {found.partitions} or more, not {partitions}"
            )
        return found

    def list(self) -> list[StreamInfo]:
        """All streams, by name."""
        return [_stream(row) for row in self._database.read(lambda tx: tx.all("stream_list"))]

    def delete(self, stream: str) -> bool:
        """Forget a stream and its readers; say whether it was there."""

        def step(tx: Tx) -> bool:
            tx.run("readers_delete", stream=stream)
            return tx.run("stream_delete", stream=stream) > 0

        return self._database.write(step)

    def claim_reader(self, stream: str, partition: int, group: str, epoch: int, name: str) -> None:
        """Let this reader read, and nobody with a lower epoch. With an equal one the newer wins.

        Raises:
            Stolen: a reader with a higher epoch has the partition.
        """

        def step(tx: Tx) -> tuple[int, str] | None:
            row: tuple[int, str] | None = tx.one(
                "reader_get", stream=stream, part=partition, grp=group
            )
            if row is None or row[0] <= epoch:
                tx.run(
                    "reader_put",
                    stream=stream,
                    part=partition,
                    grp=group,
                    epoch=epoch,
                    reader=name,
                    wall=tx.wall,
                )
                return None
            return row

        if (row := self._database.write(step)) is not None:
            raise _stolen(stream, partition, group, epoch, by=row)

    def check_reader(
        self, stream: str, partition: int, group: str, epoch: int | None, name: str
    ) -> None:
        """Return if this reader may still read. One without an epoch may while nobody has one.

        Raises:
            Stolen: another reader has claimed the partition.
        """
        row: tuple[int, str] | None = self._database.read(
            lambda tx: tx.one("reader_get", stream=stream, part=partition, grp=group)
        )
        if row is not None and (epoch is None or tuple(row) != (epoch, name)):
            raise _stolen(stream, partition, group, epoch, by=row)

    def checkpoints(self, stream: str) -> dict[int, int]:
        """For each partition with checkpoints the least sequence number over all groups."""
        least: dict[int, int] = {}
        for partition, _, number in self.positions(stream):
            least[partition] = min(number, least.get(partition, number))
        return least

    def positions(self, stream: str) -> Sequence[tuple[int, str, int]]:
        """Every group's checkpoints in the stream: partition, group, sequence number."""
        prefix = partition_group(stream, "-").removesuffix("/-")
        rows: Sequence[tuple[str, int]] = self._database.read(
            lambda tx: tx.all("positions", first=f"{prefix}/", last=f"{prefix}0")
        )
        return [
            (int(last_part(key)), last_part(group_of(key)), number)
            for key, number in rows
            if last_part(key).isdecimal()
        ]

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()


@cache
def _queries() -> Mapping[str, str]:
    text = files(__package__).joinpath("sql", "queries.sql").read_text(encoding="utf-8")
    return named_queries(text)


def _columns(settings: StreamSettings) -> dict[str, int | float]:
    return {name: getattr(settings, name) for name in StreamSettings.__dataclass_fields__}


def _stream(row: Any) -> StreamInfo:
    name, *numbers, created_at = row
    fields = StreamSettings.__dataclass_fields__
    return StreamInfo(
        name=name,
        settings=StreamSettings(**dict(zip(fields, numbers, strict=True))),
        created_at=created_at,
    )


def _stolen(
    stream: str, partition: int, group: str, epoch: int | None, *, by: tuple[int, str]
) -> Stolen:
    shown = "no epoch" if epoch is None else f"epoch {epoch}"
    name = by[1].rpartition(CLAIM_MARK)[0] or by[1]  # as people know it
    return Stolen(
        f"partition {partition} of {stream!r} is read for the group {group!r} by {name!r} with "
        f"epoch {by[0]}; this reader has {shown}: stop, or claim it with a higher epoch",
        key=f"{stream}/{partition}",
        epoch=epoch or 0,
        reason="stolen",
        now_held_by=name,
    )
