"""Removing the oldest segments of a stream, by age and by size.

Guarantees:

* Only whole, closed segments, from the oldest on: what is kept has no gaps.
* Never the newest segment, nor the last one that has events: the next owner counts on from there.
* Never an event that a group has not passed with its checkpoint, unless that is asked for; the
  plan then names the group that holds segments back.

A reader in a removed segment keeps what it has mapped; after it, it raises ``Trimmed``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasehold.errors import UnknownFile
from leasehold.files.model import FileState
from leasehold.log.mapped_segment import MappedSegment
from leasehold.log.segment_list import SegmentList
from leasehold.log.streams import partition_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.clock import Clock
    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace
    from leasehold.log.segment import Segment
    from leasehold.log.segment_list import ListedSegment
    from leasehold.log.streams import Catalog, StreamInfo

_EPOCH_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrim:
    """What is to be removed from one partition, the oldest first.

    ``held_back`` is the reason why less is removed than age and size require, or empty.
    """

    partition: int
    segments: tuple[str, ...]
    bytes: int
    events: int
    first_kept: int
    held_back: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPlan:
    """What a trim removes, or would remove unless ``done``."""

    stream: str
    partitions: tuple[PartitionTrim, ...]
    done: bool = False

    @property
    def segments(self) -> int:
        """How many segments."""
        return sum(len(part.segments) for part in self.partitions)

    @property
    def bytes(self) -> int:
        """How many bytes, each counted once however many volumes it is on."""
        return sum(part.bytes for part in self.partitions)

    @property
    def events(self) -> int:
        """How many events."""
        return sum(part.events for part in self.partitions)


def trim(
    stream: StreamInfo,
    *,
    files: Namespace,
    catalog: Catalog,
    clock: Clock,
    execute: bool,
    past_checkpoints: bool = False,
    partitions: Iterable[int] | None = None,
) -> TrimPlan:
    """Plan by the stream's settings what to remove, and with ``execute`` remove it.

    Covers all partitions, or those that are named.
    """
    now_us = (clock.utc_now() - _EPOCH_BEGAN) // _MICROSECOND
    checkpoints = {} if past_checkpoints else _slowest_groups(catalog.positions(stream.name))
    parts = []
    for number in range(stream.partitions) if partitions is None else partitions:
        segments = SegmentList(files, partition_directory(stream.name, number))
        candidates = _TrimCandidates(stream, segments.files(), files=files, now_us=now_us)
        parts.append(_plan(number, candidates, checkpoints.get(number)))
    if execute:
        for part in parts:
            for path in part.segments:
                with suppress(UnknownFile):  # another trim was faster
                    files.delete(path, by_log=True)
    return TrimPlan(stream=stream.name, partitions=tuple(parts), done=execute)


def _plan(
    number: int, candidates: _TrimCandidates, checkpoint: tuple[int, str] | None
) -> PartitionTrim:
    """Plan to remove the candidates, up to the checkpoint of the slowest group."""
    segments, count, held_back = candidates.segments, candidates.count, ""
    if checkpoint is not None:
        position, group = checkpoint
        # A checkpoint names the last event that was worked on: the one after it is needed.
        while count and segments[count][0].base > position + 1:
            count -= 1
            held_back = f"group {group} is at {position}"
    removed = segments[:count]
    first, kept = candidates.first_after(0), candidates.first_after(count)
    return PartitionTrim(
        partition=number,
        segments=tuple(entry.path for entry, _ in removed),
        bytes=sum(status.length for _, status in removed),
        events=kept - first,
        first_kept=kept,
        held_back=held_back,
    )


def _slowest_groups(positions: Iterable[tuple[int, str, int]]) -> dict[int, tuple[int, str]]:
    """Return for each partition the lowest checkpoint, and its group."""
    lowest: dict[int, tuple[int, str]] = {}
    for partition, group, sequence in positions:
        lowest[partition] = min((sequence, group), lowest.get(partition, (sequence, group)))
    return lowest


class _TrimCandidates:
    """The segments of one partition, and how many of them age and size require to remove."""

    def __init__(
        self,
        stream: StreamInfo,
        segments: Sequence[tuple[ListedSegment, FileStatus]],
        *,
        files: Namespace,
        now_us: int,
    ) -> None:
        self.segments = segments
        self._settings = stream.settings
        self._files = files
        self._now_us = now_us
        self.count = self._count()

    def first_after(self, count: int) -> int:
        """Return the first event that is kept if ``count`` segments are removed."""
        return self.segments[count][0].base if self.segments else 0

    def _count(self) -> int:
        size = sum(self._bytes(entry, status) for entry, status in self.segments)
        for count, (entry, status) in enumerate(self.segments[:-1]):
            too_big = 0 < self._settings.retention_bytes < size
            if status.state is not FileState.CLOSED or not (too_big or self._too_old(entry)):
                return count
            if count == len(self.segments) - 2 and self._is_empty(self.segments[-1][0]):
                return count  # the next owner counts on from the last one with events
            size -= status.length
        return max(len(self.segments) - 1, 0)

    def _bytes(self, entry: ListedSegment, status: FileStatus) -> int:
        """Return the journal knows the length of a closed file; of an open one the volumes do."""
        if status.state is FileState.CLOSED:
            return status.length
        segment = self._segment(entry)
        return len(segment) if segment is not None else 0

    def _is_empty(self, entry: ListedSegment) -> bool:
        segment = self._segment(entry)
        return segment is None or segment.next_sequence == entry.base

    def _too_old(self, entry: ListedSegment) -> bool:
        """Return whether the last event of a segment is older than events are kept."""
        if not self._settings.retain_age_s:
            return False
        segment = self._segment(entry)
        if segment is None:
            return True
        last_us = max(segment.index.last_us, default=segment.header.created_us)
        return self._now_us - last_us > self._settings.retain_age_s * 1_000_000

    def _segment(self, entry: ListedSegment) -> Segment | None:
        try:
            return MappedSegment(entry, self._files).segment
        except UnknownFile:  # another trim was faster
            return None
