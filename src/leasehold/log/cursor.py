"""A position in a partition that moves forward over segments, and checksums compared ahead of it.

A ``Cursor`` shows acknowledged events only, each once and without a gap, regardless of the writer.
It leaves a segment only when the segment cannot grow, by its end mark or by the journal.

A ``ChecksumPrefetch`` splits a long read into spans. The reader compares the first half of a span
itself while a thread compares the second half. A span is as long as a usual segment, because
handing over single frames takes longer than comparing them. A reader never waits for the thread;
where it catches up, the rest is halved again. Guarantees of the prefetch:

* ``True`` means that this frame, in exactly these bytes, has the checksum it was written with.
  Everything else is left to the reader, so damage is found and repaired in one place.
* One thread at most. It starts when a reader has read ``RUN_BYTES`` in a row, its frames are
  large, and as much again follows. It ends with ``close``, or when the reader is collected.
* It stops at the end of a span, or at the next frame when the reader leaves the span.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final

from leasehold.errors import DataDamaged, Trimmed, UnknownFile
from leasehold.log.mapped_segment import MappedSegment
from leasehold.log.segment import Segment
from leasehold.log.segment_format import SEGMENT_HEADER_BYTES, FrameKind, read_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.events.event import EventBatch
    from leasehold.files.namespace import Namespace
    from leasehold.log.segment_format import FrameHeader
    from leasehold.log.segment_list import ListedSegment, SegmentList

LARGE_BYTES: Final = 256 << 10  # smaller frames take longer to find than to compare
RUN_BYTES: Final = 4 << 20
SPAN_BYTES: Final = 64 << 20
_MAX_FRAMES: Final = SPAN_BYTES // LARGE_BYTES


class ChecksumPrefetch:
    """For the thread of its reader. It starts its own thread only when there is a backlog."""

    def __init__(self) -> None:
        self._view: memoryview | None = None
        self._span: _FrameSpan | None = None
        self._run_bytes = 0
        self._executor: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def is_verified(self, view: memoryview, header: FrameHeader) -> bool:
        """Return whether this frame was compared and is right; start on later frames.

        False: the frame was not compared yet, or it is damaged.
        """
        if view is not self._view:  # another segment, more of the same, or another volume's bytes
            self._abandon_span()
            self._view = view
        self._run_bytes += header.length
        span = self._span
        if span is not None and header.position < span.middle:
            return False
        if span is not None and header in span.verified:
            return True
        self._start_span(view, header)
        return False

    def reset(self) -> None:
        """Forget the run: the reader continues elsewhere."""
        self._abandon_span()
        self._run_bytes = 0

    def close(self) -> None:
        """End the thread, and wait for it: it may be comparing one more frame."""
        self._abandon_span()
        executor, self._executor = self._executor, None
        if executor is not None and self._process == os.getpid():
            executor.shutdown()

    def _start_span(self, view: memoryview, header: FrameHeader) -> None:
        """Have the thread begin in the middle of what comes after this frame, if that is much."""
        start = header.end
        size = min(len(view) - start, SPAN_BYTES)
        if self._run_bytes < RUN_BYTES or size < RUN_BYTES or header.length < LARGE_BYTES:
            return
        if self._process != os.getpid():
            return  # a fork does not copy the thread
        self._abandon_span()
        self._view = view
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "leasehold-ahead")
        span = _FrameSpan(view, start, size)
        try:
            self._executor.submit(span.compare)
        except RuntimeError:  # no more threads, or Python is ending: the reader does it alone
            return
        self._span = span

    def _abandon_span(self) -> None:
        if self._span is not None:
            self._span.is_abandoned = True
        self._view, self._span = None, None


class _FrameSpan:
    """Frames of one view; the thread compares those from ``middle`` on."""

    def __init__(self, view: memoryview, start: int, size: int) -> None:
        self.middle = start + size // 2
        self.verified: set[FrameHeader] = set()
        self.is_abandoned = False
        self._view = view
        self._start = start
        self._end = start + size

    def compare(self) -> None:
        """Collect the frames that have their checksum."""
        try:
            for header in islice(Segment(self._view).frames(self._start), _MAX_FRAMES):
                if header.position >= self._end or self.is_abandoned:
                    return
                if header.position >= self.middle and header.kind is FrameKind.EVENTS:
                    read_body(self._view, header)
                    self.verified.add(header)
        except DataDamaged:
            return  # the reader finds the same damage, and repairs it


class Cursor:
    """A position before the event number ``sequence``. Not to be shared between threads."""

    def __init__(
        self,
        files: Namespace,
        segments: SegmentList,
        *,
        check: Callable[[], None] = lambda: None,
        prefetch_checksums: bool = True,
        bodies: bool = True,
    ) -> None:
        """Begin at the first event. ``prefetch_checksums``: a thread may compare checksums ahead.

        ``bodies=False``: they are not needed, and come empty.

        ``check`` is called when a segment was opened or has vanished, and raises if these are
        no longer the segments of this stream.
        """
        self._check = check
        self._files = files
        self._segments = segments
        self._current: MappedSegment | None = None
        self._prefetch = ChecksumPrefetch() if prefetch_checksums and bodies else None
        self._bodies = bodies
        self._position = 0
        self._ended = False
        self.sequence = 0

    def seek(self, sequence: int) -> None:
        """Move before this event; ``next_frame`` finds it."""
        self.sequence = sequence
        self._current = None
        if self._prefetch is not None:
            self._prefetch.reset()

    def watched(self) -> tuple[str, ...]:
        """Return the files that change when there is more in the segment at hand."""
        return self._current.watched() if self._current is not None and not self._ended else ()

    @property
    def written_elsewhere(self) -> bool:
        """Whether another machine writes the segment at hand."""
        return self._current is not None and self._current.written_elsewhere

    def next_frame(self, *, fresh: bool = False) -> FrameHeader | None:
        """Return the frame with the next event; None if it does not exist yet.

        ``fresh`` asks the journal before it returns None, which also finds that the segment is
        closed, or continues on other volumes.
        """
        while True:
            try:
                if self._current is None and not self._open_segment():
                    return None
                found = self._mapped_frame()
                if found is not None:
                    return found
                if not (
                    self._next_segment() if self._is_finished() else self._read_more(fresh=fresh)
                ):
                    return None
            except UnknownFile:  # trimmed, or empty and replaced by the next owner
                self._current = None
                self._check()
                self._segments.read()
            except DataDamaged:
                self.seek(self.sequence)  # the next call raises it again
                raise

    def read(self, header: FrameHeader, *, check: bool) -> EventBatch:
        """Return all events of a frame that ``next_frame`` has just returned.

        ``check`` compares its checksum, unless it was compared ahead.
        """
        opened = self._current_segment()
        while True:
            try:
                segment = opened.whole
                known = check and self._is_verified(segment.view, header)
                return segment.read(header, check=check and not known, bodies=self._bodies)
            except DataDamaged as damage:
                self._repair(opened, damage)

    def _repair(self, opened: MappedSegment, damage: DataDamaged) -> None:
        """Continue with another volume; if none has it, raise, and so does the next call."""
        try:
            opened.repair(damage)
        except DataDamaged:
            self.seek(self.sequence)
            raise

    def close(self) -> None:
        """End the prefetch; batches that were returned stay valid."""
        if self._prefetch is not None:
            self._prefetch.close()

    def _is_verified(self, view: memoryview, header: FrameHeader) -> bool:
        return self._prefetch is not None and self._prefetch.is_verified(view, header)

    def advance(self, header: FrameHeader, sequence: int) -> None:
        """Move before ``sequence``, in this frame or at its end."""
        self.sequence = sequence
        self._position = header.end if sequence >= header.next_sequence else header.position

    def _current_segment(self) -> MappedSegment:
        if self._current is None:
            raise AssertionError("a frame is asked for before it is read")
        return self._current

    def _open_segment(self) -> bool:
        """Open the segment with the next event, or the one it will be in."""
        entry = self._segments.containing(self.sequence)
        if entry is None:
            known = self._segments.read()
            entry = self._segments.containing(self.sequence)
            if entry is None and known:
                raise _trimmed(self.sequence, known[0].base)
        if entry is None:
            return False
        self._enter_segment(MappedSegment(entry, self._files))
        return True

    def _next_segment(self) -> bool:
        """Move to the next segment, if there is one; the current one was read to its end."""
        opened = self._current_segment()
        entry = self._entry_after(opened.entry)
        if entry is None:
            if self.sequence == opened.entry.base:
                # Closed without an event: the next owner replaces it.
                self._current = None
            return False
        if entry.base != self.sequence:
            if opened.segment is None and opened.refresh() and opened.segment is not None:
                return True  # it was seen before its first event; it has some since
            if opened.segment is None:  # of an owner that was too late
                raise _trimmed(self.sequence, entry.base)
            raise DataDamaged(
                f"{entry.path} begins with event {entry.base}, and the one before it ends before "
                f"event {self.sequence}: a segment is missing or damaged; verify the stream"
            )
        self._enter_segment(MappedSegment(entry, self._files))
        return True

    def _entry_after(self, entry: ListedSegment) -> ListedSegment | None:
        """Return the segment after this one; the journal is asked if none is known."""
        found = self._segments.after(entry.base)
        if found is None:
            self._segments.read_end()
            found = self._segments.after(entry.base)
        return found

    def _enter_segment(self, opened: MappedSegment) -> None:
        self._check()  # after opening: then the check covers this segment
        self._current, self._ended, self._position = opened, False, SEGMENT_HEADER_BYTES
        while opened.segment is not None and self.sequence > opened.entry.base:
            try:
                spot = opened.segment.seek_sequence(self.sequence)
                self._position = spot.position if spot else opened.segment.index.end
            except DataDamaged as damage:
                opened.repair(damage)
            else:
                return

    def _mapped_frame(self) -> FrameHeader | None:
        """Return the next frame of events in what is mapped now."""
        opened = self._current_segment()
        while opened.segment is not None:
            try:
                for header in opened.segment.frames(self._position):
                    if header.kind is FrameKind.EVENTS and header.next_sequence > self.sequence:
                        return self._without_gap(header)
                    self._position = header.end
                    self._ended = self._ended or header.kind is FrameKind.END
            except DataDamaged as damage:
                opened.repair(damage)
            else:
                return None
        return None

    def _without_gap(self, header: FrameHeader) -> FrameHeader:
        if header.base_sequence > self.sequence:
            raise DataDamaged(
                f"event {self.sequence} is missing: the frame at byte {header.position} begins "
                f"with {header.base_sequence}"
            )
        self._position = header.position
        return header

    def _is_finished(self) -> bool:
        """Return whether nothing will follow in the segment at hand."""
        opened = self._current_segment()
        if opened.segment is None and not opened.final:
            return self._entry_after(opened.entry) is not None
        return self._ended or opened.final

    def _read_more(self, *, fresh: bool) -> bool:
        opened = self._current_segment()
        return opened.refresh_from_volumes() or (fresh and opened.refresh())


def _trimmed(sequence: int, earliest: int) -> Trimmed:
    return Trimmed(
        f"event {sequence} was removed by retention: the first one that is kept is {earliest}; "
        "go on from there",
        earliest=earliest,
    )
