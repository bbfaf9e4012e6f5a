"""The entry point of the event log: streams, producers and readers. Everything blocks.

A process opens one log and shares it. It owns the partitions that it was the first to write to, and
stores the events of other processes of this machine for them.

``Log.verify`` checks that a stream is as it was written: every byte, on every volume, in every
partition. Each segment is checked three times: its replicas against their checksums and the
journal, its frames against their checksums, and its continuity with the segment before it.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self

from leasehold.clock import SystemClock, new_suffix
from leasehold.errors import DataDamaged, StoreUnusable, UnknownFile, UsageError, VolumeUnusable
from leasehold.events.start import Start
from leasehold.files.disk import SystemDisk
from leasehold.files.model import FileState
from leasehold.files.namespace import Namespace
from leasehold.log.mapped_segment import MappedSegment
from leasehold.log.options import LogOptions
from leasehold.log.owner_address import address_in, socket_directories
from leasehold.log.owner_link import OwnerServer
from leasehold.log.partition_router import PartitionRouter, RouterContext
from leasehold.log.producer import Producer
from leasehold.log.producer_batch import OwnerMoved, StreamPartition
from leasehold.log.reader import PartitionReader
from leasehold.log.retention import trim
from leasehold.log.segment import verify as verify_segment
from leasehold.log.segment_format import padded
from leasehold.log.segment_list import SegmentList
from leasehold.log.streams import (
    Catalog,
    LogCounters,
    PartitionInfo,
    StreamInfo,
    StreamSettings,
    partition_directory,
    writer_of,
)
from leasehold.names import seconds_of, stream_directory
from leasehold.runtime.process_check import ProcessCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from leasehold.clock import Clock
    from leasehold.files.disk import Disk
    from leasehold.files.model import FileStatus
    from leasehold.log.options import ProducerOptions
    from leasehold.log.owner_link import OwnerRequest
    from leasehold.log.partition_owner import Answer
    from leasehold.log.retention import TrimPlan
    from leasehold.log.segment import Segment
    from leasehold.log.segment_list import ListedSegment
    from leasehold.log.streams import LogCounts

_SYNC_THREADS = 16
_LONGEST_AGE_S = 1e9
_EPOCH_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)


class Log:
    """Made by ``Log.open``. Safe to use from several threads; each process opens its own."""

    def __init__(
        self,
        address: str,
        *,
        files: Namespace,
        catalog: Catalog,
        options: LogOptions,
        clock: Clock,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """Use an open namespace and catalog; both are closed with the log.

        ``ending`` is called when everything is closed.
        """
        self._process_check = ProcessCheck("the log")
        self._ending = ending
        self.files = files
        self._catalog = catalog
        self._clock = clock
        self._counts = LogCounters()
        self._owner_server = OwnerServer(address, self._submit_forwarded)
        self._context = RouterContext(
            files=files,
            catalog=catalog,
            clock=clock,
            counts=self._counts,
            soft_limit_s=options.files.soft_limit.total_seconds(),
            socket_directories=socket_directories(options.socket_directory),
            start_server=self._owner_server.open,
        )
        self._lock = threading.Lock()
        self._routers: dict[StreamPartition, PartitionRouter] = {}
        self._producers: list[Producer] = []
        self._closed = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        volumes: Sequence[Path | str] = (),
        name: str = "log",
        options: LogOptions | None = None,
        create: bool = True,
        clock: Clock | None = None,
        disk: Disk | None = None,
    ) -> Log:
        """Open the log in the database that ``url`` names, its segments on ``volumes``.

        The volumes are remembered: later calls need not name them. Without ``create`` the database
        must be a store of this version: nothing is created or upgraded in it.

        Raises:
            InvalidUrl: the URL names no database that can keep a log.
            StoreUnavailable: there is no answer.
            StoreUnusable: the store cannot be used, or the socket cannot be created.
            VolumeUnusable: a directory is no volume of this namespace and not empty.
            UsageError: there is no volume, or without ``create`` no store yet.
        """
        options, clock = options or LogOptions(), clock or SystemClock()
        address = address_in(options.socket_directory, name=new_suffix())
        syncs = ThreadPoolExecutor(_SYNC_THREADS, "leasehold-sync")  # starts none until it must
        with ExitStack() as undo:
            catalog = Catalog.open(url, clock=clock, create=create)
            undo.callback(catalog.close)
            files = Namespace.open(
                url,
                volumes=volumes,
                name=name,
                address=address,
                options=options.files,
                run_monitor=options.run_monitor,
                create=create,
                clock=clock,
                disk=disk or SystemDisk(syncs),
            )
            undo.pop_all()
        return cls(
            address,
            files=files,
            catalog=catalog,
            options=options,
            clock=clock,
            ending=syncs.shutdown,
        )

    # ------------------------------------------------------------ streams

    def create(
        self,
        stream: str,
        *,
        partitions: int = 4,
        segment_bytes: int = 64 << 20,
        segment_age: timedelta = timedelta(hours=1),
        replication: int = 0,
        retention: timedelta | None = None,
        retention_bytes: int = 0,
    ) -> StreamInfo:
        """Create a stream. Safe to repeat with the same settings.

        Raises:
            InvalidName: it is not a valid name.
            InvalidOptions: a number is out of its range, or the stream has other settings.
        """
        settings = StreamSettings(
            partitions=partitions,
            segment_bytes=segment_bytes,
            segment_age_s=_age_s(segment_age, "segment_age"),
            replication=replication,
            retain_age_s=_age_s(retention, "retention"),
            retention_bytes=retention_bytes,
        )
        return self._catalog.create(stream, settings)

    def grow(self, stream: str, *, partitions: int) -> StreamInfo:
        """Give a stream more partitions, while it is in use. Safe to repeat.

        Producers and readers notice within about a second. From then on most keys go
        to other partitions than before: their order holds before and after, not across.

        Raises:
            UnknownStream: there is none; the message names those there are.
            UsageError: it has more than that already.
            InvalidOptions: no stream can have this many.
        """
        return self._catalog.grow(stream, partitions)

    def streams(self) -> list[StreamInfo]:
        """Return all streams, by name."""
        return self._catalog.list()

    def stream(self, name: str) -> StreamInfo:
        """Return a stream and its settings, without its partitions: no segment is read.

        Raises:
            UnknownStream: there is none; the message names those there are.
        """
        return self._catalog.get(name)

    def info(self, stream: str, *, partitions: Iterable[int] | None = None) -> StreamInfo:
        """Return a stream and its partitions as they are now: all, or those that are named.

        Of a partition whose last segment is damaged, its first event stands for the end.

        Raises:
            UnknownStream: there is none; the message names those there are.
            UsageError: it has no such partition.
        """
        found = self._catalog.get(stream)
        wanted = range(found.partitions) if partitions is None else partitions
        numbers = [found.checked(number) for number in wanted]
        parts = tuple(self._partition_info(stream, number) for number in numbers)
        return replace(found, parts=parts)

    def delete(self, stream: str) -> int:
        """Delete a stream and all its events; return how many segments there were.

        Raises:
            UnknownStream: there is none.
        """
        self._catalog.get(stream)
        self._catalog.delete(stream)
        with self._lock:
            routers = [
                self._routers.pop(each) for each in tuple(self._routers) if each.stream == stream
            ]
        for router in routers:
            router.close()
        with suppress(UnknownFile):
            return self.files.delete(stream_directory(stream), recursive=True, by_log=True)
        return 0

    # -------------------------------------------------- writing and reading

    def producer(self, stream: str, options: ProducerOptions | None = None) -> Producer:
        """Send events to a stream.

        Raises:
            UnknownStream: there is none; the message names those there are.
            UsageError: the log is closed, or this process was forked from the one that opened it.
        """
        self._process_check.check()
        found = self._catalog.get(stream)
        made = Producer(
            found,
            options,
            seat_of=lambda number: self._router(found, number),
            look=lambda: self._catalog.same(found.name, found.created_at),
            clock=self._clock,
        )
        with self._lock:
            if self._closed:
                raise UsageError("the log is closed: open it again")
            self._producers = [*(each for each in self._producers if not each.closed), made]
        return made

    def reader(
        self,
        stream: str,
        partition: int,
        *,
        start: Start | None = None,
        group: str = "",
        epoch: int | None = None,
        name: str = "",
        verify: bool = True,
        ahead: bool = True,
        bodies: bool = True,
    ) -> PartitionReader:
        """Read a partition, by default from the first event that is kept.

        ``verify`` compares checksums; ``ahead`` lets a thread do part of it in a long read. With
        ``bodies=False`` all bodies are empty, and much less is read.

        Raises:
            UnknownStream: there is none; the message names those there are.
            UsageError: it has no such partition.
            ReaderDisplaced: a reader with a higher epoch has the partition for this group.
        """
        return PartitionReader(
            self._catalog.get(stream),
            partition,
            files=self.files,
            catalog=self._catalog,
            start=start or Start.earliest(),
            group=group,
            epoch=epoch,
            name=name,
            clock=self._clock,
            verify=verify,
            ahead=ahead,
            bodies=bodies,
        )

    def trim(
        self,
        stream: str,
        *,
        execute: bool = False,
        past_checkpoints: bool = False,
        older_than: timedelta | None = None,
        keep_bytes: int | None = None,
    ) -> TrimPlan:
        """Return which segments the stream's settings no longer keep; with ``execute`` remove them.

        ``older_than`` and ``keep_bytes`` replace the stream's own limits; 0: no limit.

        Raises:
            UnknownStream: there is none.
            UsageError: there is no limit at all.
            InvalidOptions: a limit is out of its range.
        """
        found = self._catalog.get(stream)
        settings = found.settings
        if older_than is not None:
            settings = replace(settings, retain_age_s=_age_s(older_than, "older_than"))
        if keep_bytes is not None:
            settings = replace(settings, retention_bytes=keep_bytes)
        if not settings.retain_age_s and not settings.retention_bytes:
            raise UsageError(
                f"{stream} keeps everything: say what may go with an age (--older-than 7d) or a "
                "size (--retention-size 10GB); 0 is no limit"
            )
        return trim(
            replace(found, settings=settings),
            files=self.files,
            catalog=self._catalog,
            clock=self._clock,
            execute=execute,
            past_checkpoints=past_checkpoints,
        )

    def verify(self, stream: str, *, progress: Callable[[int], None] = lambda _: None) -> list[str]:
        """Check every byte of a stream; return the findings as text.

        Raises:
            UnknownStream: there is none.
        """
        return verify(self._catalog.get(stream), files=self.files, progress=progress)

    def counts(self) -> LogCounts:
        """Return the counters of this process as a writer."""
        return self._counts.now

    # -------------------------------------------------------------- ending

    def close(self) -> None:
        """Send what waits, release all partitions, and end all threads. Safe to call twice.

        Raises:
            UsageError: this process was forked from the one that opened it.
        """
        self._process_check.check()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            producers = tuple(self._producers)
        with ExitStack() as steps:  # in reverse: each is done even if the one before it fails
            steps.callback(self._ending)
            steps.callback(self._catalog.close)
            steps.callback(self.files.close)
            steps.callback(self._owner_server.close)
            steps.callback(self._close_routers)
            for producer in producers:
                steps.callback(producer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --------------------------------------------------------------- parts

    def _close_routers(self) -> None:
        with self._lock:
            routers = tuple(self._routers.values())
        for router in routers:
            router.close()

    def _router(self, stream: StreamInfo, number: int) -> PartitionRouter:
        partition = StreamPartition(stream=stream.name, number=number)
        made = PartitionRouter(partition, self._context, created_at=stream.created_at)
        with self._lock:
            router = self._routers.setdefault(partition, made)
        if router.created_at == stream.created_at:
            return router
        self._catalog.same(stream.name, stream.created_at)  # raises if this stream is the old one
        with self._lock:
            self._routers[partition] = made
        router.close()
        return made

    def _submit_forwarded(self, request: OwnerRequest) -> Answer:
        """Submit batches of another process to the partition that this process owns."""
        router = self._routers.get(request.partition)
        owner = router.owner if router is not None else None
        if owner is None:
            raise OwnerMoved(f"{request.partition} is not written here")
        return owner.submit(request.batches, durable=request.durable)

    def _partition_info(self, stream: str, number: int) -> PartitionInfo:
        listed = SegmentList(self.files, partition_directory(stream, number)).files()
        size = sum(status.length for _, status in listed if status.state is FileState.CLOSED)
        last_us, end = 0, listed[-1][0].base if listed else 0
        for entry, status in reversed(listed):
            try:
                segment = MappedSegment(entry, self.files).segment
                if segment is None:
                    continue
                end, last_us = segment.next_sequence, max(segment.index.last_us, default=0)
            except UnknownFile:
                continue  # trimmed in the meantime
            except (DataDamaged, StoreUnusable, VolumeUnusable):
                break  # the name of the last segment is a lower bound of the end
            if status.state is not FileState.CLOSED:
                size += len(segment)
            break
        return PartitionInfo(
            number=number,
            first_sequence=listed[0][0].base if listed else 0,
            next_sequence=end,
            bytes=size,
            segments=len(listed),
            writer=writer_of(listed[-1][1]) if listed else "",
            last_enqueued_at=_EPOCH_BEGAN + timedelta(microseconds=last_us) if last_us else None,
        )


def _age_s(age: timedelta | None, what: str) -> float:
    if age is None:
        return 0.0
    return seconds_of(age, what=what, min_s=0.0, max_s=_LONGEST_AGE_S)


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
