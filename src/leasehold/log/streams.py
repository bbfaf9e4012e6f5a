"""Streams: their settings, what can be told of them, and where their segments lie.

A stream has partitions, numbered from 0. A partition is a row of segments, each one file at
``/<stream>/<partition>/<sequence number of its first event>.seg``; the name of the stream is quoted
as in a key. A segment is one block, so that it can be mapped as one piece.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import InvalidOptions, UsageError
from leasehold.files.model import FileState
from leasehold.names import partition_group

if TYPE_CHECKING:
    from datetime import datetime

    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace

MOST_PARTITIONS = 10_000
_LEAST_SEGMENT_BYTES = 4096
_MOST_SEGMENT_BYTES = 1 << 34
_ROOM_BYTES = 4 << 20  # for the frames that are no events: producers, index, end
_PAGE = 1000
_SEGMENT = re.compile(r"/(\d{20})\.seg")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What is agreed on when a stream is created.

    Attributes:
        partitions: how many; it decides where a key goes. It may grow (``Log.grow``), and never
            falls.
        segment_bytes: a segment that has so many bytes is closed and the next one begins.
        segment_age_s: the same, so many seconds after its first event.
        replication: on how many volumes a segment lies; 0: as the files room decides.
        retain_age_s: segments whose last event is older may be removed; 0: never.
        retain_bytes: the oldest segments of a partition beyond this size may be removed; 0: never.

    Raises:
        InvalidOptions: a number is out of its range, which the message names.
    """

    partitions: int = 4
    segment_bytes: int = 64 << 20
    segment_age_s: float = 3600.0
    replication: int = 0
    retain_age_s: float = 0.0
    retain_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that could not work."""
        ranges = {
            "partitions": (1, MOST_PARTITIONS),
            "segment_bytes": (_LEAST_SEGMENT_BYTES, _MOST_SEGMENT_BYTES),
            "segment_age_s": (0.1, 1e9),
            "replication": (0, 16),
            "retain_age_s": (0, 1e10),
            "retain_bytes": (0, 1 << 60),
        }
        for what, (least, most) in ranges.items():
            value = getattr(self, what)
            if not least <= value <= most:
                raise InvalidOptions(
                    f"{what} is {value} and must lie between {least:g} and {most:g}"
                )

    @property
    def block_size(self) -> int:
        """Big enough that no segment has a second block."""
        return 2 * self.segment_bytes + _ROOM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition as it is now. ``writer`` is who appends to it, empty if nobody does.

    ``events`` and ``bytes`` count what is kept; ``next_sequence`` goes on from all there ever was.
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
    def partitions(self) -> int:
        """How many partitions it has."""
        return self.settings.partitions

    def checked(self, partition: object) -> int:
        """The number of a partition as a plain int.

        Raises:
            UsageError: it is no whole number, or the stream has no such partition.
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


def stream_directory(stream: str) -> str:
    """The directory of all segments of a stream.

    Raises:
        InvalidName: it is no name.
    """
    quoted = partition_group(stream, "-").split("/")[1]  # quoted as it is in a key
    return f"/{quoted}"


def partition_directory(stream: str, partition: int) -> str:
    """The directory of the segments of one partition."""
    return f"{stream_directory(stream)}/{partition}"


def segment_path(stream: str, partition: int, base_sequence: int) -> str:
    """The path of the segment that begins with this sequence number."""
    return f"{partition_directory(stream, partition)}/{base_sequence:020d}.seg"


def base_of(path: str) -> int | None:
    """The sequence number in the name of a segment; ``None`` if it is no segment."""
    match = _SEGMENT.fullmatch(path[path.rfind("/") :])
    return int(match[1]) if match else None


def segments(
    files: Namespace, stream: str, partition: int, *, from_base: int = 0
) -> list[FileStatus]:
    """The segments of a partition in order, those whose base is ``from_base`` or higher."""
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
    """Who has the segment open for writing; empty if nobody."""
    return status.holder if status.state is FileState.OPEN else ""
