"""Sends the staged events of a batch to the log, each once, whoever else does so or has done so.

The log recognises what a producer has sent before by the producer's own numbers of its events. All
batches of a lane are one producer, and event ``i`` of a partition in batch ``n`` has the number
``n * 2**32 + i``. So:

* Sent again, by this process or another, in other cuts, after a part of it was stored: the log
  leaves out what it has. An event is sent only when those before it are stored, so what it has is
  always the beginning.
* A process that wakes up late and sends an old batch has lower numbers than what came after it:
  the log leaves out all of it. This needs that a batch is sent whole before the next of its lane.
* A lane is one of the 10,000 producers that a partition remembers, however many batches it has.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.errors import DataDamaged, VolumeUnusable
from leasehold.log.events import split_by_key
from leasehold.log.owner_link import Courier
from leasehold.log.producer_batch import Parcel
from leasehold.log.segment_format import Stamp
from leasehold.spark.publishing.rows import measured, staged_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from leasehold.clock import Clock
    from leasehold.log.log import Log
    from leasehold.log.streams import StreamInfo
    from leasehold.spark.publishing.entry import Record

_NUMBER_BITS = 32
MOST_ROWS = 1 << _NUMBER_BITS
_AT_ONCE_BYTES = 8 << 20  # stored with one sync
_MOST_PARCELS = 32  # the same for the number of frames
_THREADS = 16
_DELIVER_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 5.0
_TEND_EVERY_S = 1.0

Staged = list[tuple[int, int, "pa.RecordBatch"]]  # shared out over how many, which one, the rows


class Over(Exception):
    """Somebody else has finished the batch."""


def producer_of(record: Record) -> bytes:
    """The 16 bytes by which the log knows the lane of a batch."""
    name = f"leasehold-spark\0{record.stream_made}\0{record.sink}\0{record.lane}"
    return hashlib.sha256(name.encode()).digest()[:16]


def opened(record: Record) -> Staged:
    """The batches of all files of a record where they lie, in their order, looked through.

    Raises:
        FileNotFoundError: a file is gone: the batch is published, or somebody removed it.
        DataDamaged: a file is not as it was staged.
        VolumeUnusable: a file can not be read.
    """
    found: Staged = []
    for file in record.files:
        try:
            if measured(Path(file.path)) != (file.bytes, file.checksum):
                raise DataDamaged(
                    f"{file.path} is not as it was staged for {record.label}: bring it back from a "
                    "copy; until then nothing more can be committed here"
                )
            found += [(file.partitions, at, rows) for at, rows in staged_batches(file.path)]
        except FileNotFoundError:
            raise
        except OSError as error:
            raise VolumeUnusable(f"{file.path} can not be read: {error}") from error
    return found


class Sender:
    """Sends one record. ``tend`` says that somebody is at work, and whether there is work left."""

    def __init__(
        self,
        record: Record,
        log: Log,
        stream: StreamInfo,
        *,
        clock: Clock,
        tend: Callable[[], bool],
        step: Callable[[str], None],
    ) -> None:
        """Send nothing yet. ``step`` is called before each delivery, for tests."""
        self._record = record
        self._log = log
        self._stream = stream
        self._clock = clock
        self._tend = tend
        self._step = step
        self._lock = threading.Lock()
        self._tended_at = clock.boottime_s()
        self._producer = producer_of(record)

    def send(self, staged: Staged) -> None:
        """Return when all events are stored, durably.

        Raises:
            Over: somebody else has finished it.
            StoreUnavailable: not all could be stored in time; try again.
            UnknownStream: the stream was deleted.
            FileHeld: a partition is written on another machine.
        """
        if not staged:
            return
        numbers = set(range(self._record.partitions))
        if all(count == self._record.partitions for count, _, _ in staged):
            numbers = {number for _, number, _ in staged}
        with ThreadPoolExecutor(min(_THREADS, len(numbers)), "leasehold-publish") as threads:
            futures = [threads.submit(self._send, number, staged) for number in numbers]
        failed = [error for each in futures if (error := each.exception()) is not None]
        if failed:
            raise next((each for each in failed if not isinstance(each, Over)), failed[0])

    def _send(self, number: int, staged: Staged) -> None:
        seat = self._log._seat(self._stream, number)  # noqa: SLF001 - numbers of its own, no lane
        courier = Courier(clock=self._clock, answer_limit_s=_ANSWER_LIMIT_S)
        try:
            for parcels in self._parcels(self._rows_of(number, staged)):
                self._go_on()
                self._step("sending")
                until_s = self._clock.boottime_s() + _DELIVER_LIMIT_S
                # The next ones follow when these are stored: no event is stored before another.
                seat.deliver(parcels, durable=True, courier=courier, until_s=until_s)
        finally:
            courier.close()

    def _rows_of(self, number: int, staged: Staged) -> Iterator[pa.RecordBatch]:
        """The rows for one partition. If the stream has grown since, they are shared out anew."""
        partitions = self._record.partitions
        for count, at, rows in staged:
            if count == partitions:
                if at == number:
                    yield rows
            else:
                part = split_by_key(rows, partitions, keyless=at % partitions).get(number)
                if part is not None:
                    yield part

    def _parcels(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[Parcel]]:
        at, size, parcels = self._record.number << _NUMBER_BITS, 0, list[Parcel]()
        for batch in batches:
            if parcels and (size + batch.nbytes > _AT_ONCE_BYTES or len(parcels) >= _MOST_PARCELS):
                yield parcels
                size, parcels = 0, []
            parcels.append(Parcel(stamp=Stamp(producer=self._producer, sequence=at), batch=batch))
            at += batch.num_rows
            size += batch.nbytes
        if parcels:
            yield parcels

    def _go_on(self) -> None:
        with self._lock:
            if self._clock.boottime_s() - self._tended_at < _TEND_EVERY_S:
                return
            if not self._tend():
                raise Over
            self._tended_at = self._clock.boottime_s()
