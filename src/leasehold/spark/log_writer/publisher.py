"""Publication of batches of rows in the log: all of a batch or nothing of it, once.

1. **Stage.** Tasks write their rows to files in a directory that executors and drivers share
   (``staged_rows``). Only files that a task has returned count.
2. **Commit.** The driver enters the batch in the store's database: its files, and the positions and
   epochs that it moves, in one transaction (``publication_ledger``). That is the commit point. A
   batch that was entered before is found, and one under an epoch that is over is refused.
3. **Publish.** ``BatchSender`` sends the files to the log. This may be repeated, also by another
   process and by two at the same time.
4. The batch is recorded as published and its files are removed.

A crash before 2 leaves only files that nothing reads. After 2 the batch will be in the log: the
process that commits next, opens the sink, or takes over its partitions first publishes it. That is
all or nothing for crashes and failures, **not isolation**: while a batch is being published,
readers of the log see a part of it.

The log recognises repeated events by the producer's own sequence numbers. Event ``i`` of a
partition in batch ``n`` of a producer has the number ``n * 2**32 + i``:

* Sent again, by any process, split differently, after a part was stored: the log skips what it has.
  An event is sent only when those before it are stored (``in_order``), so what it has is always
  the beginning.
* A process that resumes late and sends an old batch has lower numbers than what followed: the log
  skips all of it. So a batch is sent whole before the next one of its producer.
* A sink's producer is one of the 10,000 that a partition remembers, for any number of batches.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from leasehold.clock import SystemClock, new_token
from leasehold.errors import (
    DataDamaged,
    LeaseholdError,
    SinkUnfit,
    StoreUnavailable,
    UnknownStream,
    UsageError,
    VolumeUnusable,
)
from leasehold.events.event import split_by_key
from leasehold.log.log import Log
from leasehold.log.options import LogOptions
from leasehold.log.owner_link import OwnerClient
from leasehold.log.producer_batch import ProducerBatch
from leasehold.log.segment_format import ProducerStamp
from leasehold.names import stream_directory
from leasehold.runtime.private_files import make_directories, make_directory
from leasehold.spark.log_writer.publication_ledger import PublicationLedger
from leasehold.spark.log_writer.staged_rows import StagingPlan, size_and_checksum, staged_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from leasehold.clock import Clock
    from leasehold.log.streams import StreamInfo
    from leasehold.spark.log_writer.publication import CommitRequest, PublishedBatch
    from leasehold.spark.log_writer.staged_rows import StagedFile
    from leasehold.spark.sinks.port import SinkPosition

_NUMBER_BITS = 32
MAX_ROWS = 1 << _NUMBER_BITS
_MAX_SYNC_BYTES = 8 << 20  # stored with one sync
_MAX_SYNC_FRAMES = 32  # the same for the number of frames
_THREADS = 16
_DELIVERY_TIMEOUT_S = 60.0
_OWNER_TIMEOUT_S = 5.0
_HEARTBEAT_INTERVAL_S = 1.0

StagedBatches = list[tuple[int, int, "pa.RecordBatch"]]  # number of partitions, partition, rows


class PublicationEnded(Exception):
    """Another process has published the batch."""


def producer_id(record: PublishedBatch) -> bytes:
    """Return the 16 bytes by which the log knows the producer of a batch."""
    name = f"leasehold-spark\0{record.stream_created_at}\0{record.sink}\0{record.producer}"
    return hashlib.sha256(name.encode()).digest()[:16]


def read_staged(record: PublishedBatch) -> StagedBatches:
    """Return the batches of all files of a record, in order and verified; not copied."""
    found: StagedBatches = []
    for file in record.files:
        try:
            if size_and_checksum(Path(file.path)) != (file.bytes, file.checksum):
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


class BatchSender:
    """Sends one record. ``heartbeat`` reports progress, and whether there is work left."""

    def __init__(
        self,
        record: PublishedBatch,
        log: Log,
        stream: StreamInfo,
        *,
        clock: Clock,
        heartbeat: Callable[[], bool],
        step: Callable[[str], None],
    ) -> None:
        """Send nothing yet. ``step`` is called before each delivery, for tests."""
        self._record = record
        self._log = log
        self._stream = stream
        self._clock = clock
        self._heartbeat = heartbeat
        self._step = step
        self._lock = threading.Lock()
        self._heartbeat_at_s = clock.boottime_s()
        self._producer_id = producer_id(record)

    def send(self, staged: StagedBatches) -> None:
        """Return when all events are stored, durably."""
        if not staged:
            return
        numbers = set(range(self._record.partitions))
        if all(count == self._record.partitions for count, _, _ in staged):
            numbers = {number for _, number, _ in staged}
        with ThreadPoolExecutor(min(_THREADS, len(numbers)), "leasehold-publish") as threads:
            futures = [threads.submit(self._send, number, staged) for number in numbers]
        failed = [error for each in futures if (error := each.exception()) is not None]
        if failed:
            raise next(
                (each for each in failed if not isinstance(each, PublicationEnded)), failed[0]
            )

    def _send(self, number: int, staged: StagedBatches) -> None:
        router = self._log._router(self._stream, number)  # noqa: SLF001 - it has its own numbers
        owner_client = OwnerClient(clock=self._clock, owner_timeout_s=_OWNER_TIMEOUT_S)
        try:
            for batches in self._producer_batches(self._rows_of(number, staged)):
                self._heartbeat_if_due()
                self._step("sending")
                deadline_s = self._clock.boottime_s() + _DELIVERY_TIMEOUT_S
                # The next ones follow when these are stored: no event is stored before another.
                router.deliver(
                    batches, durable=True, owner_client=owner_client, deadline_s=deadline_s
                )
        finally:
            owner_client.close()

    def _rows_of(self, number: int, staged: StagedBatches) -> Iterator[pa.RecordBatch]:
        """Yield the rows for one partition, distributed again if the stream has grown since."""
        partitions = self._record.partitions
        for count, at, rows in staged:
            if count == partitions:
                if at == number:
                    yield rows
            else:
                part = split_by_key(rows, partitions, keyless=at % partitions).get(number)
                if part is not None:
                    yield part

    def _producer_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[ProducerBatch]]:
        at, size, group = self._record.number << _NUMBER_BITS, 0, list[ProducerBatch]()
        for batch in batches:
            if group and (size + batch.nbytes > _MAX_SYNC_BYTES or len(group) >= _MAX_SYNC_FRAMES):
                yield group
                size, group = 0, []
            group.append(
                ProducerBatch(
                    stamp=ProducerStamp(producer=self._producer_id, sequence=at),
                    batch=batch,
                    in_order=True,
                )
            )
            at += batch.num_rows
            size += batch.nbytes
        if group:
            yield group

    def _heartbeat_if_due(self) -> None:
        with self._lock:
            if self._clock.boottime_s() - self._heartbeat_at_s < _HEARTBEAT_INTERVAL_S:
                return
            if not self._heartbeat():
                raise PublicationEnded
            self._heartbeat_at_s = self._clock.boottime_s()


log = logging.getLogger("leasehold.spark")

SAVE_PREFIX = "save/"  # prefix of a sink that exists for one batch
_SHARED_DIRECTORY = "queries"
_ORPHAN_AGE = timedelta(days=1)


class Publisher:
    """One stream as a sink. Safe to use from several threads; each process opens its own."""

    def __init__(
        self,
        stream: str,
        *,
        log: Log,
        ledger: PublicationLedger,
        staging: str,
        clock: Clock,
        step: Callable[[str], None],
    ) -> None:
        self._log = log
        self._ledger = ledger
        self._clock = clock
        self._step = step
        self._stream = log.stream(stream)
        self._staging = Path(f"{staging}{stream_directory(stream)}")

    @classmethod
    def open(
        cls,
        stream: str,
        store: str,
        *,
        staging: str = "",
        name: str = "spark",
        clock: Clock | None = None,
        step: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Open a stream of the log in ``store``.

        ``staging``: a directory that executors and drivers share; by default one beside the first
        volume of the log, which is right if all of them see the volumes at the same path.
        ``step`` is called between the steps of a batch, for tests.
        """
        clock = clock or SystemClock()
        with ExitStack() as undo:
            opened_log = Log.open(
                store, name=name, options=LogOptions(run_monitor=False), clock=clock
            )
            undo.callback(opened_log.close)
            ledger = PublicationLedger.open(store, clock=clock)
            undo.callback(ledger.close)
            made = cls(
                stream,
                log=opened_log,
                ledger=ledger,
                staging=str(Path(staging).absolute()) if staging else _default_staging(opened_log),
                clock=clock,
                step=step,
            )
            undo.pop_all()
        return made

    @property
    def ledger(self) -> PublicationLedger:
        """The records of this store."""
        return self._ledger

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._stream.name

    def plan(self, *, shared: bool = False) -> StagingPlan:
        """Return where tasks are to stage one batch: a new directory for it alone.

        ``shared``: one permanent directory for all batches of all queries instead.
        """
        found = self._log.stream(self._stream.name)
        directory = self._staging / (_SHARED_DIRECTORY if shared else new_token())
        try:
            make_directories(directory if shared else directory.parent)
            if not shared:
                make_directory(directory)
        except OSError as error:
            raise VolumeUnusable(
                f"no directory can be made in {self._staging} ({error}): name another one with the "
                "option staging"
            ) from error
        return StagingPlan.of(found, str(directory))

    def fence(self, sink: str, group: str, epochs: Mapping[str, int]) -> Mapping[str, SinkPosition]:
        """Raise epochs; return what was known before."""
        return self._ledger.fence(sink, group, epochs, self._log.stream(self.stream))

    def commit(self, request: CommitRequest, staged: Iterable[StagedFile]) -> PublishedBatch | None:
        """Commit a batch and publish it; None if it was done before and is forgotten."""
        files = sorted(staged, key=lambda each: (each.task, each.path))
        unfit = _reason_unfit(files)  # of a batch that was published before the files are gone
        stream = self._log.stream(self._stream.name)
        self._step("staged")
        entered = self._ledger.commit(request, files, stream, unfit=unfit)
        while entered.publish_first:
            for each in entered.publish_first:
                self.finish(each)
            entered = self._ledger.commit(request, files, stream, unfit=unfit)
        self._step("committed")
        record = entered.record
        if record is not None and not record.published:
            self._finish_own(record)
        if not entered.is_new:
            log.info("%s was committed before", request.sink)
            self.remove(files)
        self._try_publish_unfinished()
        self._sweep()
        return record

    def finish(self, record: PublishedBatch) -> None:
        """Publish what is committed. Safe to call twice, and from several processes."""
        forget = record.sink.startswith(SAVE_PREFIX)
        try:
            sender = BatchSender(
                record,
                self._log,
                self._stream_of(record),
                clock=self._clock,
                heartbeat=lambda: self._ledger.heartbeat(record),
                step=self._step,
            )
            sender.send(read_staged(record))
            self._step("sent")
            self._ledger.publish(record, forget=forget)
            self._step("published")
        except PublicationEnded:
            return
        except FileNotFoundError as error:
            if not self._ledger.heartbeat(record):
                return  # another process has published it, and removed its files
            raise VolumeUnusable(
                f"{error.filename or error} of {record.label} is gone before it was published: it "
                "must be seen here, at this path; bring it back"
            ) from error
        except UnknownStream:
            self._ledger.publish(record, forget=forget)
            self.remove(record.files)
            raise
        self.remove(record.files)
        log.info("%s is published", record.label)

    def _stream_of(self, record: PublishedBatch) -> StreamInfo:
        found = self._log.stream(record.stream)
        if found.created_at != record.stream_created_at:
            raise UnknownStream(
                f"the stream {record.stream!r} was deleted and made anew before {record.label} "
                "was published: the batch is gone with it"
            )
        return found

    def remove(self, files: Iterable[StagedFile]) -> None:
        """Remove staged files, and the directories that are empty then. Never raises."""
        paths = [Path(each.path) for each in files]
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        for directory in {path.parent for path in paths}:
            _remove_if_empty(directory)

    def discard(self, files: Iterable[StagedFile], plan: StagingPlan | None = None) -> None:
        """Remove what was staged, if it is not committed; of a plan, all files. Never raises.

        If the store cannot be asked now, the files are left: they are swept when they are a day
        old.
        """
        try:
            kept = self._ledger.unpublished_files(self.stream)
        except LeaseholdError as error:
            log.info("staged files are left to be swept: %s", error)
            return
        self.remove(each for each in files if each.path not in kept)
        if plan is not None and not any(path.startswith(plan.directory) for path in kept):
            shutil.rmtree(plan.directory, ignore_errors=True)

    def clear(self, plan: StagingPlan) -> None:
        """Remove the directory of a plan whose batch is published. Never raises."""
        shutil.rmtree(plan.directory, ignore_errors=True)

    def publish_unfinished(
        self,
        *,
        sink: str = "",
        producer: str = "",
        group: str = "",
        partitions: frozenset[str] = frozenset(),
    ) -> int:
        """Publish the batches of ``PublicationLedger.unpublished``; return how many."""
        unpublished = self._ledger.unpublished(
            self.stream, sink=sink, producer=producer, group=group, partitions=partitions
        )
        for record in unpublished:
            log.info("%s was committed and not published: finishing it", record.label)
            with suppress(UnknownStream):
                self.finish(record)
        return len(unpublished)

    def close(self) -> None:
        """Close the log and the ledger. Safe to call twice."""
        self._ledger.close()
        self._log.close()

    def _finish_own(self, record: PublishedBatch) -> None:
        try:
            self.finish(record)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{record.label} is committed and could not be published yet ({error}): whoever "
                "writes to the stream next finishes it; do not write it a second time"
            ) from error

    def _try_publish_unfinished(self) -> None:
        """Publish what others left, if possible; the caller's own batch is done."""
        try:
            self.publish_unfinished()
        except LeaseholdError as error:
            log.warning("batches that others left could not be published yet: %s", error)

    def _sweep(self) -> None:
        """Remove what is a day old: files of no unpublished batch, and empty directories.

        A driver that crashes between its plan and its first file leaves such a directory.
        """
        before_s = (self._clock.utc_now() - _ORPHAN_AGE).timestamp()
        try:
            old = [
                path for path in self._staging.rglob("*.arrow") if path.lstat().st_mtime < before_s
            ]
            directories = [
                each
                for each in self._staging.glob("*")
                if each.is_dir() and each.lstat().st_mtime < before_s
            ]
            kept = self._ledger.unpublished_files(self.stream) if old else set[str]()
        except (OSError, LeaseholdError) as error:
            log.info("%s could not be swept: %s", self._staging, error)
            return
        for path in old:
            if str(path) not in kept:
                log.info("%s belongs to no batch and is removed", path)
                with suppress(OSError):
                    path.unlink()
                _remove_if_empty(path.parent)
        for each in directories:
            _remove_if_empty(each)


def _reason_unfit(files: Sequence[StagedFile]) -> LeaseholdError | None:
    """Return why these files could not be published once they are committed."""
    for file in files:
        if not Path(file.path).is_file():
            return VolumeUnusable(
                f"{file.path} was staged by an executor and is not to be seen by the driver: they "
                "must share the directory; name one with the option staging"
            )
    if (rows := sum(file.rows for file in files)) >= MAX_ROWS:
        return SinkUnfit(
            f"a batch has {rows} rows, and may have {MAX_ROWS - 1}: write it in several batches"
        )
    return None


def _remove_if_empty(directory: Path) -> None:
    """Remove a directory if it is empty and was for one batch."""
    if directory.name != _SHARED_DIRECTORY:
        with suppress(OSError):
            directory.rmdir()


def _default_staging(opened_log: Log) -> str:
    roots = sorted(volume.root for volume in opened_log.files.volumes)
    usable = [root for root in roots if Path(root).is_dir()]
    if not usable:
        raise UsageError(
            f"none of the volumes {', '.join(roots)} is to be seen here: name a directory that "
            "executors and drivers share with the option staging"
        )
    return f"{usable[0]}.staging"
