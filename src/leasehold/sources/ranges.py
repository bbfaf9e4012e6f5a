"""Reading ranges of events that are there already, in any process: for Spark and for audits.

Unlike a receiver a range is read without an epoch and without waiting; nobody is displaced. What is
read twice is the same twice: between its two numbers a partition never changes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from leasehold.errors import BeyondEnd, UnknownStream
from leasehold.log.log import Log
from leasehold.log.options import LogOptions
from leasehold.log.start import Start
from leasehold.sources.eventhubs.address import is_address
from leasehold.sources.opening import stream_of
from leasehold.sources.port import PartitionEnds, partition_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from leasehold.log.events import EventBatch
    from leasehold.log.streams import PartitionInfo, StreamInfo

_MOST_EVENTS = 1 << 20
_MOST_BYTES = 1 << 30


class RangeSource(Protocol):
    """A stream whose events can be read by their numbers. Everything blocks; for any thread."""

    @property
    def name(self) -> str:
        """The name of the stream."""
        ...

    def partitions(self) -> Sequence[str]:
        """The ids of all partitions."""
        ...

    def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """Where each of these partitions begins and ends now.

        Raises:
            DataDamaged, VolumeUnusable: the end of one can not be told.
        """
        ...

    def find(self, partition: str, start: Start) -> int:
        """The sequence number that ``start`` means now.

        Raises:
            Trimmed: retention has removed the event.
            BeyondEnd: it lies beyond the end.
        """
        ...

    def read(
        self, partition: str, start: int, end: int, *, bodies: bool = True
    ) -> Iterator[EventBatch]:
        """The events from ``start`` up to, and without, ``end``: all of them, in order.

        ``bodies=False``: they are not needed, and may be empty.

        Raises:
            Trimmed: retention has removed some of them.
            BeyondEnd: the partition does not reach to ``end``.
            DataDamaged, VolumeUnusable: they can not be read.
            UnknownStream: the stream was deleted.
        """
        ...

    def close(self) -> None:
        """Give back what belongs to it."""
        ...


class LogRanges:
    """A stream of a log that is open. The log is closed with it if ``owns_log``.

    ``pinned``: it is the stream that was there when this was made; of one that was made anew under
    its name nothing is told.
    """

    def __init__(
        self, log: Log, stream: str, *, owns_log: bool = False, pinned: bool = False
    ) -> None:
        """Look the stream up.

        Raises:
            UnknownStream: there is none; the message names those there are.
        """
        self._log = log
        self._stream = log.stream(stream)
        self._owns_log = owns_log
        self._pinned = pinned

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._stream.name

    def partitions(self) -> Sequence[str]:
        """See ``RangeSource``."""
        found = self._same(self._log.stream(self.name))
        return tuple(str(number) for number in range(found.partitions))

    def ends(self, partitions: Sequence[str]) -> Mapping[str, PartitionEnds]:
        """See ``RangeSource``."""
        numbers = map(partition_number, partitions)
        found = self._same(self._log.info(self.name, partitions=numbers))
        return {
            str(part.number): PartitionEnds(
                first=part.first_sequence,
                next=self._end(part),
                last_enqueued_at=part.last_enqueued_at,
            )
            for part in found.parts
        }

    def _same(self, found: StreamInfo) -> StreamInfo:
        if self._pinned and found.created_at != self._stream.created_at:
            raise UnknownStream(
                f"the stream {self.name!r} of {self._stream.created_at} was deleted, and made anew "
                f"at {found.created_at}: its events have other numbers; start again, with another "
                "group or with its checkpoints reset"
            )
        return found

    def _end(self, part: PartitionInfo) -> int:
        """The end, or an error: of a last segment that it can not read, the log tells the begin."""
        if part.segments and part.last_enqueued_at is None:
            return self.find(str(part.number), Start.latest())
        return part.next_sequence

    def find(self, partition: str, start: Start) -> int:
        """See ``RangeSource``."""
        number = partition_number(partition)
        with self._log.reader(self.name, number, start=start, ahead=False) as reader:
            return reader.position

    def read(
        self, partition: str, start: int, end: int, *, bodies: bool = True
    ) -> Iterator[EventBatch]:
        """See ``RangeSource``."""
        if start >= end:
            return
        number = partition_number(partition)
        # A task for each core leaves none for a thread that compares checksums ahead.
        with self._log.reader(
            self.name, number, start=Start.sequence(start), ahead=False, bodies=bodies
        ) as reader:
            while (left := end - reader.position) > 0:
                batch = reader.read(
                    most_events=min(left, _MOST_EVENTS), most_bytes=_MOST_BYTES, fresh=True
                )
                if batch is None:
                    raise BeyondEnd(
                        f"partition {partition} of {self.name!r} ends before event "
                        f"{reader.position}, and events up to {end} were asked for: it has never "
                        "been that long, or the stream was made anew",
                        end=reader.position,
                    )
                yield batch

    def close(self) -> None:
        """See ``RangeSource``."""
        if self._owns_log:
            self._log.close()


def open_ranges(
    text: str, *, store_url: str, name: str = "reader", pinned: bool = False
) -> RangeSource:
    """Open ``log:STREAM``, or ``STREAM``, or ``eventhubs://…``, to read ranges of it. This blocks.

    ``pinned``: refuse to go on with a stream that was made anew under its name.

    Raises:
        UsageError: no stream is named, or the store has no log.
        UnknownStream: there is no such stream; the message names those there are.
        UnknownStore, StoreUnavailable, StoreUnusable: the store can not be opened.
    """
    if is_address(text):
        # Only here: whoever reads a log needs nothing of it.
        from leasehold.sources.eventhubs.source import EventHubsRanges  # noqa: PLC0415

        return EventHubsRanges(text, pinned=pinned)
    stream = stream_of(text)
    with ExitStack() as undo:
        log = Log.open(store_url, name=name, options=LogOptions(run_monitor=False))
        undo.callback(log.close)
        made = LogRanges(log, stream, owns_log=True, pinned=pinned)
        undo.pop_all()
    return made
