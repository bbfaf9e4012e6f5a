"""Reading one partition: batches of events in their order, from any position.

Guarantees:

* Only acknowledged events, each once, in the order of their numbers, without gaps, across segments
  and owners.
* Batches point into the mapped segment: they are not copied, and stay valid for as long as they
  are held, also when retention removes the segment.
* Every frame is compared with its checksum, unless ``verify`` is off; a damaged one is read from
  another volume. Without ``bodies`` all bodies are empty, and large frames are compared with the
  checksum of the rest.
* With an epoch: nothing is returned once another reader of the group has claimed the partition
  with the same epoch or a higher one. Without an epoch, but in a group: nothing while a reader of
  the group has an epoch. Without both, no other reader ends this one.

``StartFinder`` finds events by number, offset, time or key without reading what is between. It
bisects the segments by their headers; inside a segment the index gives the region. A search by
number opens one segment; by offset or time, as many as the logarithm of their number.

A ``Cursor`` is a position that moves forward over segments. It leaves a segment only when the
segment cannot grow, by its end mark or by the journal.

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

import bisect
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, TypeVar

from leasehold.clock import new_suffix
from leasehold.errors import BeyondEnd, DataDamaged, Trimmed, UnknownFile, UnknownStream, UsageError
from leasehold.events.start import StartKind
from leasehold.log import segment_format
from leasehold.log.mapped_segment import MappedSegment
from leasehold.log.segment import Segment
from leasehold.log.segment_format import SEGMENT_HEADER_BYTES, FrameKind, read_body
from leasehold.log.segment_list import SegmentList
from leasehold.log.segment_watcher import SHORTEST_S, SegmentWatcher
from leasehold.log.streams import CLAIM_MARK, partition_directory
from leasehold.names import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.events.event import EventBatch
    from leasehold.events.start import Start
    from leasehold.files.namespace import Namespace
    from leasehold.log.segment import EventSpot
    from leasehold.log.segment_format import FrameHeader
    from leasehold.log.segment_list import ListedSegment
    from leasehold.log.streams import Catalog, StreamInfo

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


T = TypeVar("T")
_NEVER = 2**63


class StartFinder:
    """Searches the segments of one partition. Not to be shared between threads."""

    def __init__(self, files: Namespace, segments: SegmentList) -> None:
        self._files = files
        self._segments = segments
        self._last_segment: MappedSegment | None = None

    def sequence_of(self, start: Start) -> int:
        """Return the sequence number of the first event to be read; it may not exist yet."""
        while True:
            known = self._segments.read()
            try:
                match start.kind:
                    case StartKind.EARLIEST:
                        return known[0].base if known else 0
                    case StartKind.LATEST:
                        return self.end()
                    case StartKind.SEQUENCE:
                        return self._checked(start.value)
                    case StartKind.OFFSET:
                        return self._by_offset(start.value)
                    case StartKind.TIME:
                        return self._by_time(start.value)
            except UnknownFile:
                continue  # a segment was removed in the meantime

    def end(self) -> int:
        """Return the sequence number of the event that comes next into the partition."""
        while True:
            known = self._segments.read_end()
            if not known:
                return 0
            try:
                return self._end_of(known[-1])
            except UnknownFile:
                self._last_segment = None
                self._segments.read()

    def with_key(self, key: str, since: int, *, check: bool, bodies: bool) -> Iterator[EventBatch]:
        """Yield all events with this key that are there now, from ``since`` on."""
        self._segments.read()
        entry = self._segment_with(since)
        while entry is not None:
            try:
                opened = MappedSegment(entry, self._files)
            except UnknownFile:
                self._segments.read()
                entry = self._segment_with(max(since, entry.base))
                continue
            while opened.segment is not None:
                try:
                    found = opened.segment.find(key, since, check=check, bodies=bodies)
                    for batch in found:
                        yield batch
                        since = batch.last_sequence + 1
                    break
                except DataDamaged as damage:
                    opened.repair(damage)
            entry = self._segments.after(entry.base)

    def _end_of(self, entry: ListedSegment) -> int:
        if self._last_segment is None or self._last_segment.entry != entry:
            self._last_segment = MappedSegment(entry, self._files)
        else:
            self._last_segment.refresh()
        end = entry.base
        if self._last_segment.segment is not None:
            end = _from_sound_volume(self._last_segment, lambda segment: segment.next_sequence)
        if end == entry.base:  # a segment without events may be replaced
            self._last_segment = None
        return end

    def _segment_with(self, sequence: int) -> ListedSegment | None:
        entry = self._segments.containing(sequence)
        if entry is None and self._segments.known:
            first = self._segments.known[0].base
            raise Trimmed(
                f"event {sequence} was removed by retention: the first one that is kept is {first}",
                earliest=first,
            )
        return entry

    def _checked(self, sequence: int) -> int:
        entry = self._segment_with(sequence)
        if entry is None or entry == self._segments.known[-1]:
            end = self.end()
            if sequence > end:
                raise BeyondEnd(
                    f"there is no event {sequence}: the next one will be {end}; start there, or "
                    "at latest",
                    end=end,
                )
        return sequence

    def _by_offset(self, offset: int) -> int:
        known = self._segments.known
        at = bisect.bisect_right(known, offset, key=self._base_offset)
        if known and not at and offset < self._base_offset(known[0]) < _NEVER:
            raise Trimmed(
                f"offset {offset} was removed by retention: the first event that is kept is "
                f"{known[0].base}",
                earliest=known[0].base,
            )
        return self._sequence_in(at - 1, lambda segment: segment.seek_offset(offset))

    def _by_time(self, enqueued_us: int) -> int:
        at = bisect.bisect_left(self._segments.known, enqueued_us, key=self._first_us)
        return self._sequence_in(at - 1, lambda segment: segment.seek_time(enqueued_us))

    def _sequence_in(self, at: int, seek: Callable[[Segment], EventSpot | None]) -> int:
        """Return the event that ``seek`` finds in segment ``at``, or the first one after it."""
        known = self._segments.known
        if at >= 0:
            opened = MappedSegment(known[at], self._files)
            spot = _from_sound_volume(opened, seek) if opened.segment is not None else None
            if spot is not None:
                return spot.sequence
        return known[at + 1].base if at + 1 < len(known) else self.end()

    def _base_offset(self, entry: ListedSegment) -> int:
        segment = MappedSegment(entry, self._files).segment
        return segment.header.base_offset if segment is not None else _NEVER

    def _first_us(self, entry: ListedSegment) -> int:
        opened = MappedSegment(entry, self._files)
        return _from_sound_volume(opened, _first_us) if opened.segment is not None else _NEVER


def _first_us(segment: Segment) -> int:
    events = (each for each in segment.frames() if each.kind is segment_format.FrameKind.EVENTS)
    return next((each.first_us for each in events), _NEVER)


def _from_sound_volume(opened: MappedSegment, ask: Callable[[Segment], T]) -> T:
    """Return the answer of the segment, from a volume on which it is not damaged."""
    while True:
        try:
            return ask(opened.whole)
        except DataDamaged as damage:
            opened.repair(damage)


_MAX_EVENTS = 10_000
_MAX_BYTES = 16 << 20
_LONGEST_WAIT_S = 366 * 24 * 3600.0


class PartitionReader:
    """Made by ``Log.reader``. For one thread; another one may ``close`` it."""

    def __init__(
        self,
        stream: StreamInfo,
        partition: int,
        *,
        files: Namespace,
        catalog: Catalog,
        start: Start,
        group: str = "",
        epoch: int | None = None,
        name: str = "",
        clock: Clock,
        verify: bool = True,
        ahead: bool = True,
        bodies: bool = True,
    ) -> None:
        """Claim the partition if ``epoch`` is given, and move to ``start``.

        Raises:
            UsageError: the stream has no such partition.
            BeyondEnd: ``start`` is beyond the end of the partition.
            ReaderDisplaced: a reader of the group has a higher epoch.
            Trimmed: retention has removed the event at ``start``.
        """
        partition = stream.checked(partition)
        if epoch is not None and epoch < 0:
            raise UsageError(f"an epoch is 0 or more, not {epoch}")
        self.stream = stream.name
        self.partition = partition
        self.group = group
        self.epoch = epoch
        self.name = name or files.holder
        # Two readers may have one name and one epoch: only one of them has the claim.
        self._claim = f"{self.name}{CLAIM_MARK}{new_suffix()}"
        self._created_at = stream.created_at
        self._is_gone = False
        self.polls = 0
        self._catalog = catalog
        self._clock = clock
        self._verify = verify
        self._bodies = bodies
        self._lock = threading.RLock()
        self._closed = False
        self._fresh_at = clock.boottime_s()
        self._shown: tuple[FrameHeader, EventBatch] | None = None
        segments = SegmentList(files, partition_directory(stream.name, partition))
        self._finder = StartFinder(files, segments)
        self._cursor = Cursor(
            files, segments, check=self._check_stream, prefetch_checksums=ahead, bodies=bodies
        )
        if epoch is not None:
            catalog.claim_reader(stream.name, partition, group, epoch, self._claim)
        self._check_claim()
        self._cursor.seek(self._finder.sequence_of(start))
        self._watcher = SegmentWatcher()

    @property
    def position(self) -> int:
        """The sequence number of the next event; it may not exist yet."""
        return self._cursor.sequence

    def seek(self, start: Start) -> None:
        """Continue reading from there.

        Raises:
            BeyondEnd: it is beyond the end.
            Trimmed: retention has removed the event.
            UnknownStream: the stream was deleted.
        """
        with self._lock:
            self._check_open()
            self._check_stream()
            self._cursor.seek(self._finder.sequence_of(start))

    def watched(self) -> tuple[str, ...]:
        """Return the files that change when the current segment grows; none if none is open.

        A caller that watches them itself must read once more after it began to watch.
        """
        with self._lock:
            return self._cursor.watched()

    @property
    def written_elsewhere(self) -> bool:
        """Whether the writer is on another machine: then this kernel sees no change of a file."""
        return self._cursor.written_elsewhere

    def read(
        self,
        *,
        max_events: int = _MAX_EVENTS,
        max_bytes: int = _MAX_BYTES,
        fresh: bool = False,
    ) -> EventBatch | None:
        """Return the next available events, at most one frame; None if there is nothing new.

        ``max_bytes`` is kept on average; at least one event is returned. ``fresh`` asks the
        journal before it returns None, which is otherwise done now and then.

        Raises:
            ReaderDisplaced: another reader of the group has claimed the partition.
            Trimmed: retention has removed the next event.
            DataDamaged: it is damaged on all volumes, or missing.
            VolumeUnusable: no volume that has it answers.
            UnknownStream: the stream was deleted.
        """
        with self._lock:
            self._check_open()
            header = self._next(fresh=fresh)
            if header is None:
                return None
            if self._shown is None or self._shown[0] != header:
                self._shown = (header, self._cursor.read(header, check=self._verify))
            batch = self._shown[1]
            first = self._cursor.sequence - header.base_sequence
            count = header.count - first
            if count > max_events or header.length > max_bytes:
                by_bytes = max(max_bytes * header.count // header.length, 1)
                count = min(count, max(max_events, 1), by_bytes)
            self._check_claim()
            self._cursor.advance(header, self._cursor.sequence + count)
            if first + count == header.count:
                self._shown = None
            return batch if count == header.count else batch.slice(first, count)

    def wait(self, timeout: timedelta) -> bool:
        """Return True as soon as there is something to read, False if the time is over first.

        False also when the reader is closed in the meantime.

        Raises:
            ReaderDisplaced: another reader of the group has claimed the partition.
            Trimmed: retention has removed the next event.
            UnknownStream: the stream was deleted.
        """
        timeout_s = seconds_of(timeout, what="timeout", min_s=0.0, max_s=_LONGEST_WAIT_S)
        deadline = self._clock.boottime_s() + timeout_s
        with self._lock:
            self._check_open()
            was_woken = True
            while not self._closed:
                self._watcher.watch(self._cursor.watched())  # before the read: nothing is missed
                if self._next(fresh=not was_woken) is not None:
                    self._watcher.reset_pause()
                    return True
                if not was_woken:
                    self._check_claim()
                if self._cursor.watched() != self._watcher.paths:
                    continue  # another segment since: watch it before sleeping
                remaining_s = deadline - self._clock.boottime_s()
                if remaining_s <= 0:
                    return False
                was_woken = self._watcher.sleep(remaining_s)
            return False

    def batches(
        self, *, follow: bool = False, timeout: timedelta | None = None
    ) -> Iterator[EventBatch]:
        """Yield all that is there, batch by batch; with ``follow`` also all that comes.

        A follower ends when nothing came for ``timeout``, or when the reader is closed.

        Raises:
            ReaderDisplaced: another reader of the group has claimed the partition.
            Trimmed: retention has removed the next event.
            DataDamaged: an event is damaged on all volumes, or missing.
        """
        longest = timedelta(seconds=_LONGEST_WAIT_S)
        while not self._closed:
            batch = self.read()
            if batch is not None:
                yield batch
            elif not follow or not self.wait(longest if timeout is None else timeout):
                return

    def find(self, key: str) -> Iterator[EventBatch]:
        """Yield the events with this key from the position on that are there now. Nothing is moved.

        Raises:
            ReaderDisplaced: another reader of the group has claimed the partition.
            Trimmed: retention has removed the events at the position.
            DataDamaged: an event is damaged on all volumes.
            UnknownStream: the stream was deleted.
        """
        self._check_open()
        self._check_stream()
        found = self._finder.with_key(key, self.position, check=self._verify, bodies=self._bodies)
        for batch in found:
            self._check_claim()
            yield batch

    def lag(self) -> int:
        """Return how many events are there that were not read yet."""
        with self._lock:
            self._check_open()
            return max(self._finder.end() - self.position, 0)

    def close(self) -> None:
        """End reading; one that waits in another thread is woken. Batches stay valid."""
        if not self._closed:
            self._closed = True
            self._watcher.wake()
            with self._lock:
                self._watcher.close()
                self._cursor.close()
                self._shown = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _next(self, *, fresh: bool = False) -> FrameHeader | None:
        """Read once. The journal is asked now and then, also for callers that never wait."""
        self.polls += 1
        now = self._clock.boottime_s()
        fresh = fresh or now - self._fresh_at >= SHORTEST_S
        try:
            found = self._cursor.next_frame(fresh=fresh)
        except (Trimmed, DataDamaged):
            self._check_stream()  # what is missing may be that of another stream
            raise
        if found is None and fresh:
            self._fresh_at = now
            if not self._cursor.watched():  # then only the catalog shows a deletion
                self._check_stream()
        return found

    def _check_stream(self) -> None:
        """Check that this is still the stream that was opened. If not, it never is again."""
        try:
            self._catalog.same(self.stream, self._created_at)
        except UnknownStream:
            self._is_gone = True
            raise

    def _check_claim(self) -> None:
        """Check that this reader may still read."""
        if self.group or self.epoch is not None:
            self._catalog.check_reader(
                self.stream, self.partition, self.group, self.epoch, self._claim
            )

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(
                f"the reader of partition {self.partition} of {self.stream!r} is closed: open "
                "another one"
            )
        if self._is_gone:
            self._check_stream()
