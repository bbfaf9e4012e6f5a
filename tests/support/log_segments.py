"""Segments written by hand, for tests of the reading side; and the same as a process.

``python -m tests.support.log_segments URL STREAM PARTITION`` obeys lines on stdin and answers each
with a line: ``take`` (go on after the last segment, recovering it), ``add N SIZE`` (a frame of N
events, acknowledged), ``unacknowledged N SIZE`` (written and flushed by nobody), ``roll``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.cli.fast_start import leave_pandas_out
from leasehold.clock import SystemClock
from leasehold.errors import LeaseholdError
from leasehold.events import Event, Start
from leasehold.events.event import sent_batch
from leasehold.files import FileOptions, Namespace
from leasehold.log import PartitionReader, StreamInfo, StreamSettings
from leasehold.log.producer_states import encode_producers
from leasehold.log.segment import IndexBuilder, Segment
from leasehold.log.segment_format import SegmentHeader, encode_events, encode_segment_header, padded
from leasehold.log.streams import Catalog, segment_path, segments

if TYPE_CHECKING:
    from leasehold.files.writer import FileWriter
    from leasehold.log.segment_format import EncodedFrame

BLOCK_SIZE = 512 << 20
SOON = timedelta(seconds=120)


@dataclass(kw_only=True)
class Owner:
    """Writes one partition as its owner does, frame by frame, and remembers every event."""

    files: Namespace
    stream: str
    partition: int = 0
    next_sequence: int = 0
    next_offset: int = 0
    now_us: int = 1_000_000
    replication: int | None = None
    stored: list[Event] = field(default_factory=list)
    writer: FileWriter | None = None
    _index: IndexBuilder | None = None

    @property
    def path(self) -> str:
        return self._open().path

    def add(self, events: list[Event], *, sync: bool = True) -> EncodedFrame:
        """One frame; visible if ``sync``."""
        writer, batch = self._open(), sent_batch(events)
        encoded = encode_events(
            batch,
            base_sequence=self.next_sequence,
            offset=self.next_offset,
            enqueued_us=self.now_us,
            epoch=writer.epoch,
            base_offset=self._header.base_offset,
        )
        self._write(encoded)
        assert self._index is not None
        self._index.add(encoded.header, batch.column("key"))
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.now_us)
        self.stored += [
            Event(
                body=event.body,
                key=event.key,
                sequence_number=self.next_sequence + number,
                offset=encoded.header.offset + number,
                enqueued_at=at,
            )
            for number, event in enumerate(events)
        ]
        self.next_sequence += len(events)
        if sync:
            writer.sync()
        return encoded

    def many(self, count: int, *, size: int = 20, key: str | None = None) -> None:
        """One visible frame of events that say their own numbers."""
        self.add([numbered(self.next_sequence + n, size=size, key=key) for n in range(count)])

    def roll(self, *, index: bool = True) -> None:
        """Close the segment, in good order or as a recovery does."""
        writer = self._open()
        if index:
            assert self._index is not None
            self._write(self._index.encode(now_us=self.now_us, epoch=writer.epoch))
        writer.close()
        self.next_offset = self._header.base_offset + padded(writer.length)
        self.writer = None

    def take_over(self) -> None:
        """Go on after the last segment, recovering it; an empty one is deleted."""
        for status in segments(self.files, self.stream, self.partition)[-1:]:
            self.files.recover(status.path, timeout=SOON)
            data = self.files.read(status.path).read()
            segment = Segment(data) if len(data) >= 64 else None
            if segment is None or segment.next_sequence == segment.header.base_sequence:
                self.files.delete(status.path, by_log=True)
                self.take_over()
                return
            self.next_sequence = segment.next_sequence
            self.next_offset = segment.header.base_offset + padded(len(segment))

    def open(self) -> None:
        """Begin a segment, visible and without events."""
        self._open().sync()

    def _open(self) -> FileWriter:
        if self.writer is None:
            self.writer = self.files.create(
                segment_path(self.stream, self.partition, self.next_sequence),
                block_bytes=BLOCK_SIZE,
                replication=self.replication,
            )
            self.begin()
        return self.writer

    def begin(self) -> None:
        """Write what comes before the first event."""
        assert self.writer is not None
        epoch = self.writer.epoch
        self._header = SegmentHeader(
            partition=self.partition,
            base_sequence=self.next_sequence,
            base_offset=self.next_offset,
            created_us=self.now_us,
            epoch=epoch,
        )
        self._index = IndexBuilder(self._header)
        head = encode_segment_header(self._header)
        self.writer.write(head)
        self.next_offset += len(head)
        producers = encode_producers(
            {},
            base_sequence=self.next_sequence,
            offset=self.next_offset,
            enqueued_us=self.now_us,
            epoch=epoch,
            base_offset=self._header.base_offset,
        )
        self._write(producers)
        self._index.add(producers.header)

    def _write(self, encoded: EncodedFrame) -> None:
        assert self.writer is not None
        for part in encoded.parts:
            self.writer.write(part)
        self.next_offset += encoded.length


@dataclass(kw_only=True)
class StreamEnv:
    """A store with a few volumes, one stream in it, and what reads and writes it."""

    url: str
    files: Namespace
    catalog: Catalog
    stream: StreamInfo
    opened: list[PartitionReader] = field(default_factory=list)

    def owner(self, partition: int = 0) -> Owner:
        return Owner(files=self.files, stream=self.stream.name, partition=partition)

    def reader(
        self,
        start: Start | None = None,
        *,
        partition: int = 0,
        group: str = "",
        epoch: int | None = None,
        name: str = "",
        verify: bool = True,
        bodies: bool = True,
    ) -> PartitionReader:
        reader = PartitionReader(
            self.stream,
            partition,
            files=self.files,
            catalog=self.catalog,
            start=start or Start.earliest(),
            group=group,
            epoch=epoch,
            name=name,
            clock=SystemClock(),
            verify=verify,
            bodies=bodies,
        )
        self.opened.append(reader)
        return reader

    def close(self) -> None:
        for reader in self.opened:
            reader.close()
        self.catalog.close()
        self.files.close()


def open_stream_env(
    root: Path, *, volumes: int = 2, settings: StreamSettings | None = None
) -> StreamEnv:
    url = f"sqlite:///{root / 'store.db'}"
    roots = [root / f"volume{number}" for number in range(volumes)]
    files = Namespace.open(url, volumes=roots, options=FileOptions(), run_monitor=False)
    catalog = Catalog.open(url, clock=SystemClock())
    stream = catalog.create("orders", settings or StreamSettings(partitions=1))
    return StreamEnv(url=url, files=files, catalog=catalog, stream=stream)


def numbered(number: int, *, size: int = 20, key: str | None = None) -> Event:
    """An event whose body says its number."""
    return Event(body=b"%d " % number + bytes(max(size - 20, 0)), key=key)


def number_in(event: Event) -> int:
    return int(event.body.split(b" ")[0])


def serve(url: str, stream: str, partition: int) -> None:
    files = Namespace.open(url, name="owner", run_monitor=False)
    owner = Owner(files=files, stream=stream, partition=partition)
    print("ready", flush=True)
    for line in sys.stdin:
        word, *numbers = line.split()
        count, size = (int(each) for each in (*numbers, 1, 20)[:2])
        events = [numbered(owner.next_sequence + n, size=size) for n in range(count)]
        try:
            match word:
                case "take":
                    owner.take_over()
                case "add":
                    owner.add(events)
                case "unacknowledged":
                    owner.add(events, sync=False)
                case "sync":
                    assert owner.writer is not None
                    owner.writer.sync()
                case "roll":
                    owner.roll()
        except LeaseholdError as error:
            print(type(error).__name__, flush=True)
        else:
            print(owner.next_sequence, flush=True)


if __name__ == "__main__":
    leave_pandas_out()  # no handler here needs it, and it takes its time
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
