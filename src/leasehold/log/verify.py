"""Verify that a stream is as it was written: every byte, on every volume, in every partition.

Each segment is checked three times: its replicas against their checksums and the journal, its
frames against their checksums, and its continuity with the segment before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.errors import DataDamaged, StoreUnusable, UnknownFile, VolumeUnusable
from leasehold.files.model import FileState
from leasehold.log.mapped_segment import MappedSegment
from leasehold.log.segment import verify as verify_segment
from leasehold.log.segment_format import padded
from leasehold.log.segment_list import SegmentList
from leasehold.log.streams import partition_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace
    from leasehold.log.segment import Segment
    from leasehold.log.segment_list import ListedSegment
    from leasehold.log.streams import StreamInfo


def verify(
    stream: StreamInfo, *, files: Namespace, progress: Callable[[int], None] = lambda _: None
) -> list[str]:
    """Return all findings about a stream as text; an empty list if it is sound.

    Each finding begins with the partition and the segment. ``progress`` gets the number of
    bytes compared since its last call: every replica counts, and the frames once more. A segment
    that is being written is checked up to what was acknowledged; one that is deleted in the
    meantime is left out.
    """
    found: list[str] = []
    for number in range(stream.partitions):
        check = _PartitionCheck(stream, number, files=files, progress=progress)
        segments = SegmentList(files, partition_directory(stream.name, number))
        for entry, status in segments.files():
            try:
                check.check_segment(entry, status)
            except UnknownFile:
                check.skip()
        found += check.found
    return found


class _PartitionCheck:
    """One partition, from its oldest segment to its newest."""

    def __init__(
        self,
        stream: StreamInfo,
        partition: int,
        *,
        files: Namespace,
        progress: Callable[[int], None],
    ) -> None:
        self._stream = stream
        self._partition = partition
        self._files = files
        self._progress = progress
        self._next_sequence: int | None = None
        self._next_offset: int | None = None
        self.found: list[str] = []

    def skip(self) -> None:
        """Forget the expected start: the segment is gone or damaged."""
        self._next_sequence = self._next_offset = None

    def check_segment(self, entry: ListedSegment, status: FileStatus) -> None:
        """Compare one segment. Raises ``UnknownFile`` if it was deleted."""
        for fault in self._files.verify(entry.path, progress=self._progress):
            self._report(entry, f"volume {fault.volume}: {fault.what}")
        try:
            opened = MappedSegment(entry, self._files)
        except (DataDamaged, VolumeUnusable, StoreUnusable) as error:
            self._report(entry, str(error))
            self.skip()
            return
        segment = opened.segment
        if segment is None:
            self._check_without_header(entry, status)
            return
        open_end = not segment.ended  # a crash, or a writer at work, leaves part of a frame
        # While a segment is written its replicas have no end to be compared with: their frames do.
        for volume, view in list(opened.replicas()) or [("", opened.view)]:
            where = f"volume {volume}: " if volume else ""
            for finding in verify_segment(view, open_end=open_end):
                self._report(entry, where + finding)
        self._progress(len(segment))
        self._check_continuity(entry, segment)

    def _check_without_header(self, entry: ListedSegment, status: FileStatus) -> None:
        """Check a segment without a header, as a new segment or a crash leaves it."""
        if status.state is FileState.CLOSED and status.length:
            self._report(entry, f"it has {status.length} bytes, which is less than a header")

    def _check_continuity(self, entry: ListedSegment, segment: Segment) -> None:
        """Check that numbers and offsets continue from the segment before."""
        header = segment.header
        if header.partition != self._partition:
            self._report(entry, f"it belongs to partition {header.partition} by its header")
        if self._next_sequence not in {None, header.base_sequence}:
            self._report(
                entry,
                f"it begins with event {header.base_sequence}, and the segment before it ends "
                f"before {self._next_sequence}",
            )
        if self._next_offset not in {None, header.base_offset}:
            self._report(
                entry,
                f"it begins at offset {header.base_offset}, and the segment before it ends at "
                f"{self._next_offset}",
            )
        self._next_offset = header.base_offset + padded(len(segment))
        try:
            self._next_sequence = segment.next_sequence
        except DataDamaged:  # reported already
            self._next_sequence = None

    def _report(self, entry: ListedSegment, what: str) -> None:
        name = entry.path.rpartition("/")[2]
        self.found.append(f"{self._stream.name}, partition {self._partition}, {name}: {what}")
