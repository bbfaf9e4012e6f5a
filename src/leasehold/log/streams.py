"""Streams: settings, paths of segments, counters, and the catalog in the store's database.

A stream has partitions, numbered from 0. A partition is a list of segments, each one file at
``/<stream>/<partition>/<sequence number of its first event>.seg``; the name of the stream is quoted
as in a key. A segment is one block, so that it can be mapped as one piece.

``Catalog`` holds which streams exist, and which reader of a group may read a partition. Every call
is one transaction. It does not touch events.
"""

from __future__ import annotations

import operator
import re
import threading
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from leasehold.errors import InvalidOptions, ReaderDisplaced, UnknownStream, UsageError
from leasehold.files.model import FileState
from leasehold.names import check_name, group_of, last_part, partition_group, stream_directory
from leasehold.stores.blocking import named_queries, open_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from leasehold.clock import Clock
    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace
    from leasehold.stores.blocking import BlockingDatabase, Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCounts:
    """Sums since the log was opened.

    Attributes:
        events: events stored by this process as the owner of their partition.
        frames: the batches they were stored in.
        commits: how often the volumes were waited for; many batches may share one.
        duplicates: events that were sent again and not stored again.
        fenced: batches that were refused because the partition had been taken over.
        forwarded: batches that were handed to an owner in another process.
        taken: partitions that this process became the owner of.
        recovered: of these, those whose crashed or silent owner was fenced by this process.
    """

    events: int = 0
    frames: int = 0
    commits: int = 0
    duplicates: int = 0
    fenced: int = 0
    forwarded: int = 0
    taken: int = 0
    recovered: int = 0


class LogCounters:
    """Counters that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = LogCounts()

    def add(self, more: LogCounts) -> None:
        """Add each of the numbers to its sum."""
        with self._lock:
            old = self._numbers
            self._numbers = replace(
                old,
                **{
                    each.name: getattr(old, each.name) + getattr(more, each.name)
                    for each in fields(LogCounts)
                },
            )

    @property
    def now(self) -> LogCounts:
        """The sums at this moment."""
        return self._numbers


MAX_PARTITIONS = 10_000
_MIN_SEGMENT_BYTES = 4096
_MAX_SEGMENT_BYTES = 1 << 34
_ROOM_BYTES = 4 << 20  # for the frames without events: producers, index, end
_PAGE = 1000
_SEGMENT = re.compile(r"/(\d{20})\.seg")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """The settings of a stream, fixed when it is created.

    Attributes:
        partitions: how many; it decides where a key goes. It may grow (``Log.grow``), and never
            falls.
        segment_bytes: size of a segment after which the next one begins.
        segment_age_s: seconds after its first event after which the next one begins.
        replication: how many volumes a segment is on; 0: the default of the file layer.
        retain_age_s: segments whose last event is older may be removed; 0: never.
        retention_bytes: the oldest segments of a partition beyond this size may be removed; 0:
            never.

    Raises:
        InvalidOptions: a number is out of its range, which the message names.
    """

    partitions: int = 4
    segment_bytes: int = 64 << 20
    segment_age_s: float = 3600.0
    replication: int = 0
    retain_age_s: float = 0.0
    retention_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that could not work."""
        ranges = {
            "partitions": (1, MAX_PARTITIONS),
            "segment_bytes": (_MIN_SEGMENT_BYTES, _MAX_SEGMENT_BYTES),
            "segment_age_s": (0.1, 1e9),
            "replication": (0, 16),
            "retain_age_s": (0, 1e10),
            "retention_bytes": (0, 1 << 60),
        }
        for what, (lowest, max_value) in ranges.items():
            value = getattr(self, what)
            if not lowest <= value <= max_value:
                raise InvalidOptions(
                    f"{what} is {value} and must lie between {lowest:g} and {max_value:g}"
                )

    @property
    def block_bytes(self) -> int:
        """Big enough that no segment has a second block."""
        return 2 * self.segment_bytes + _ROOM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition as it is now. ``writer`` is the holder that appends to it, or empty.

    ``events`` and ``bytes`` count what is kept; ``next_sequence`` counts all events ever stored.
    """

    number: int
    first_sequence: int
    next_sequence: int
    bytes: int
    segments: int
    writer: str
    last_enqueued_at: datetime | None

    @property
    def events(self) -> int:
        """How many events are kept."""
        return self.next_sequence - self.first_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream. ``parts`` is empty unless it was asked for by ``Log.info``."""

    name: str
    settings: StreamSettings
    created_at: str
    parts: tuple[PartitionInfo, ...] = ()

    @property
    def identity(self) -> str:
        """What distinguishes it from a stream of the same name: when it was created."""
        return self.created_at

    @property
    def partitions(self) -> int:
        """How many partitions it has."""
        return self.settings.partitions

    def checked(self, partition: object) -> int:
        """Return the number of a partition as a plain int.

        Raises:
            UsageError: it is not an integer, or the stream has no such partition.
        """
        try:
            number = -1 if isinstance(partition, bool) else operator.index(partition)  # type: ignore[arg-type]
        except TypeError:
            number = -1
        if not 0 <= number < self.partitions:
            raise UsageError(
                f"there is no partition {partition!r}: {self.name!r} has {self.partitions}, whole "
                "numbers from 0 on"
            )
        return number


def partition_directory(stream: str, partition: int) -> str:
    """Return the directory of the segments of one partition."""
    return f"{stream_directory(stream)}/{partition}"


def segment_path(stream: str, partition: int, base_sequence: int) -> str:
    """Return the path of the segment that begins with this sequence number."""
    return f"{partition_directory(stream, partition)}/{base_sequence:020d}.seg"


def base_of(path: str) -> int | None:
    """Return the sequence number in the name of a segment; None for another file."""
    match = _SEGMENT.fullmatch(path[path.rfind("/") :])
    return int(match[1]) if match else None


def segments(
    files: Namespace, stream: str, partition: int, *, from_base: int = 0
) -> list[FileStatus]:
    """Return the segments of a partition in order, those whose base is ``from_base`` or higher."""
    directory = partition_directory(stream, partition)
    after = segment_path(stream, partition, from_base - 1) if from_base > 0 else ""
    found: list[FileStatus] = []
    while True:
        page = files.list(directory, after=after, limit=_PAGE)
        found.extend(each for each in page if base_of(each.path) is not None)
        if len(page) < _PAGE:
            return found
        after = page[-1].path


def writer_of(status: FileStatus) -> str:
    """Return the holder that has the segment open for writing, or an empty text."""
    return status.holder if status.state is FileState.OPEN else ""


CLAIM_MARK = " #"  # in a claim, between the reader's name and what makes it its own


class Catalog:
    """Made by ``Catalog.open``. Safe to use from several threads."""

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str, *, clock: Clock, create: bool = True) -> Self:
        """Open the catalog in the database that ``url`` names; see ``open_blocking``."""
        return cls(
            open_blocking(url, queries=_queries(), clock=clock, guard="guard", create=create)
        )

    def create(self, stream: str, settings: StreamSettings) -> StreamInfo:
        """Create a stream. Safe to repeat with the same settings."""
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
        """Return the stream of this name."""
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
        """Return the stream of this name, if it is still the one that was created then."""
        found = self.get(stream)
        if found.created_at != created_at:
            raise UnknownStream(
                f"the stream {stream!r} of {created_at} was deleted, and made anew at "
                f"{found.created_at}: open it again for the new one"
            )
        return found

    def grow(self, stream: str, partitions: int) -> StreamInfo:
        """Give a stream this many partitions. Safe to repeat."""
        replace(self.get(stream).settings, partitions=partitions)  # refuses what could not work

        def step(tx: Tx) -> StreamInfo | None:
            tx.run("stream_grow", stream=stream, partitions=partitions)
            row = tx.one("stream_get", stream=stream)
            return None if row is None else _stream(row)

        found = self._database.write(step) or self.get(stream)  # deleted: get raises
        if found.partitions > partitions:
            raise UsageError(
                f"{stream!r} has {found.partitions} partitions and can not have fewer, since there "
                f"may be events in them: give {found.partitions} or more, not {partitions}"
            )
        return found

    def list(self) -> list[StreamInfo]:
        """Return all streams, by name."""
        return [_stream(row) for row in self._database.read(lambda tx: tx.all("stream_list"))]

    def delete(self, stream: str) -> bool:
        """Delete a stream and its readers; return whether it existed."""

        def step(tx: Tx) -> bool:
            tx.run("readers_delete", stream=stream)
            return tx.run("stream_delete", stream=stream) > 0

        return self._database.write(step)

    def claim_reader(self, stream: str, partition: int, group: str, epoch: int, name: str) -> None:
        """Claim the partition for this reader; of equal epochs the newer claim wins."""

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
        """Return if this reader may still read; one without an epoch, while no reader has one."""
        row: tuple[int, str] | None = self._database.read(
            lambda tx: tx.one("reader_get", stream=stream, part=partition, grp=group)
        )
        if row is not None and (epoch is None or tuple(row) != (epoch, name)):
            raise _stolen(stream, partition, group, epoch, by=row)

    def checkpoints(self, stream: str) -> dict[int, int]:
        """For each partition with checkpoints the least sequence number over all groups."""
        lowest: dict[int, int] = {}
        for partition, _, number in self.positions(stream):
            lowest[partition] = min(number, lowest.get(partition, number))
        return lowest

    def positions(self, stream: str) -> Sequence[tuple[int, str, int]]:
        """Return every group's checkpoints in the stream: partition, group, sequence number."""
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
        """Close the connections."""
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
) -> ReaderDisplaced:
    shown = "no epoch" if epoch is None else f"epoch {epoch}"
    name = by[1].rpartition(CLAIM_MARK)[0] or by[1]  # without the claim mark
    return ReaderDisplaced(
        f"partition {partition} of {stream!r} is read for the group {group!r} by {name!r} with "
        f"epoch {by[0]}; this reader has {shown}: stop, or claim it with a higher epoch",
        key=f"{stream}/{partition}",
        epoch=epoch or 0,
        reason="stolen",
        now_held_by=name,
    )
