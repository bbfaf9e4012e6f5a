"""All errors of Leasehold, as one tree.

::

    LeaseholdError
    ├── UsageError                you asked for something that can never work (ValueError)
    │   ├── InvalidName           an empty, too long or unprintable name
    │   ├── InvalidDuration       a duration outside the allowed range
    │   ├── InvalidOptions        two settings that contradict each other
    │   ├── InvalidUrl          a store URL that names no store we have
    │   ├── InvalidSchedule           a text that is no schedule, or one that never happens
    │   ├── SinkUnfit             rows that do not fit the sink
    │   └── BeyondEnd             the position lies beyond the next event of the partition
    ├── UnknownResource           a key that was never declared
    │   ├── UnknownFile           there is no file at this path (FileNotFoundError)
    │   └── UnknownStream         there is no stream of this name
    ├── FileExists                the path is taken (FileExistsError)
    ├── FileHeld                  somebody else is writing this file: who, since when, until when
    ├── JobHeld                   somebody else has the job: who, since when, until when
    ├── JobDone                   the run of this occurrence is over
    ├── OccurrenceNotDue          the occurrence is in the future by the store's clock
    ├── RecoveryInProgress        the file is being recovered by somebody else
    ├── TailUncertain             recovery cannot tell the file's end without losing something
    ├── VolumeUnusable            a volume, or all of them: gone, foreign, read-only, full, broken
    │   └── VolumeNewer           a volume has blocks that this database does not know: it is older
    ├── DataDamaged               bytes that do not have the checksum they were written with
    ├── BufferFull                more was sent than may wait, and nothing could be stored in time
    ├── ResendUncertain           whether a repeated event was stored before is not remembered
    ├── Trimmed                   the position lies before the first event that is kept
    ├── LeaseLost                 you had it and have it no more: ordinary life, said once
    │   ├── FencedWrite           a write that came under an ended lease or an older epoch
    │   └── ReaderDisplaced                a reader with a higher epoch has taken the partition
    ├── CheckpointBehind          a checkpoint that would go back
    ├── HandlerTimeout            a handler took too long (TimeoutError)
    ├── PositionLost              the place to go on reading does not exist
    ├── BatchFailed               a batch of a pipeline could not be transformed or written
    ├── SinkChanged               a sink that is not as the pipeline left it
    └── StoreError                the store, not you
        ├── StoreUnavailable      no answer in time: what was asked may or may not have happened
        │   └── ProcessExhausted  this process has no descriptor or memory left (``ulimit -n``)
        └── StoreUnusable         it answers, and cannot serve: read-only, full, damaged, too new

Failing to *get* something is never an error: it is an answer (an empty list, ``None``).
Each class has its page in ``docs/errors.md``: what happened, why, and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class LeaseholdError(Exception):
    """Base of all errors raised on purpose by Leasehold."""


class UsageError(LeaseholdError, ValueError):
    """The call can never work as written; nothing was sent and nothing has changed."""


class InvalidName(UsageError):
    """A name is empty, too long, or has characters that cannot be shown."""


class InvalidDuration(UsageError):
    """A duration is outside the allowed range; the message names the range."""


class InvalidOptions(UsageError):
    """Two options contradict each other; the message names the relation that is broken."""


class InvalidUrl(UsageError):
    """The URL names no store; the message says what to write instead."""


class InvalidSchedule(UsageError):
    """The text is not a valid schedule, or never happens; the message names the field."""


class BeyondEnd(UsageError):
    """The position is beyond the next event of the partition.

    Attributes:
        end: the sequence number of the event that comes next into it.
    """

    def __init__(self, message: str, *, end: int) -> None:
        super().__init__(message)
        self.end = end


class UnknownResource(LeaseholdError, LookupError):
    """The key was never declared in this store, or has been forgotten."""


class UnknownFile(UnknownResource, FileNotFoundError):
    """There is no file at this path: it was never there, or was deleted or renamed."""


class UnknownStream(UnknownResource):
    """There is no stream of this name in this store."""


class FileExists(LeaseholdError, FileExistsError):
    """The path is taken: by a file, or by a directory that has files below it."""


class FileHeld(LeaseholdError):
    """Another process is writing this file; nothing was changed.

    Attributes:
        path: the file.
        holder: who writes it.
        host: the machine it runs on.
        since: when it opened the file (ISO 8601, UTC; for people).
        epoch: the epoch it writes under.
        retry_after_s: when the soft limit is over and the file may be taken over; 0 if now.
        address: where the holder can be reached, if it said so.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        holder: str,
        host: str,
        since: str,
        epoch: int,
        retry_after_s: float,
        address: str = "",
    ) -> None:
        super().__init__(message)
        self.path = path
        self.holder = holder
        self.host = host
        self.since = since
        self.epoch = epoch
        self.retry_after_s = retry_after_s
        self.address = address


class JobHeld(LeaseholdError, TimeoutError):
    """Another process has the job, and the time to wait for it is over.

    Attributes:
        holder: who has it.
        epoch: the epoch it is held under.
        ends_in_s: when its lease ends if it is not renewed any more.
    """

    def __init__(self, message: str, *, holder: str, epoch: int, ends_in_s: float) -> None:
        super().__init__(message)
        self.holder = holder
        self.epoch = epoch
        self.ends_in_s = ends_in_s


class JobDone(LeaseholdError):
    """The run of this occurrence is over, here or elsewhere: there is nothing to do.

    Attributes:
        occurrence: the moment whose run was wanted (ISO 8601, UTC).
        holder: who had it, if the log still knows.
    """

    def __init__(self, message: str, *, occurrence: str, holder: str = "") -> None:
        super().__init__(message)
        self.occurrence = occurrence
        self.holder = holder


class OccurrenceNotDue(LeaseholdError):
    """The occurrence is in the future by the store's clock. Nothing was run or recorded for it.

    Attributes:
        occurrence: the time whose run was wanted.
        store_time: the store's clock when it was asked.
    """

    def __init__(self, message: str, *, occurrence: datetime, store_time: datetime) -> None:
        super().__init__(message)
        self.occurrence = occurrence
        self.store_time = store_time


class RecoveryInProgress(LeaseholdError):
    """Another process is recovering the file, or did, and the next attempt is not due.

    Attributes:
        path: the file.
        attempt: the number of attempts so far.
        retry_after_s: when to ask again.
    """

    def __init__(self, message: str, *, path: str, attempt: int, retry_after_s: float) -> None:
        super().__init__(message)
        self.path = path
        self.attempt = attempt
        self.retry_after_s = retry_after_s


class TailUncertain(LeaseholdError):
    """Recovery cannot tell where the file ends: volumes are missing, or their copies damaged.

    Nothing was dropped. It succeeds when the volumes are back.
    """


class VolumeUnusable(LeaseholdError):
    """A volume cannot serve: gone, of another namespace, read-only, full, or broken."""


class VolumeNewer(VolumeUnusable):
    """A volume was written under a newer state of the database, as after a restored backup.

    Nothing was written to the volume or removed from it.
    """


class DataDamaged(LeaseholdError):
    """Bytes were read that do not have the checksum they were written with."""


class BufferFull(LeaseholdError):
    """As much as may wait is waiting, and nothing of it could be stored in time."""


class ResendUncertain(LeaseholdError):
    """A producer sent events again, and the log no longer remembers whether it has stored them.

    They were not stored now. The other events that were sent are not concerned.

    Attributes:
        partition: the number of the partition.
        count: how many events of it are concerned.
    """

    def __init__(self, message: str, *, partition: int, count: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.count = count


class Trimmed(LeaseholdError, LookupError):
    """The position is before the first event that is kept: retention has removed it.

    Attributes:
        earliest: the sequence number of the first event that is kept.
    """

    def __init__(self, message: str, *, earliest: int) -> None:
        super().__init__(message)
        self.earliest = earliest


class LeaseLost(LeaseholdError):
    """The lease or the ownership has ended and its holder must stop.

    Attributes:
        key: the resource, or the holder's id when the whole lease has ended.
        epoch: the epoch that was held (0 for a whole lease).
        reason: how it ended: the value of an ``EndReason``, ``"fenced"``, ``"local_deadline"``,
            ``"not_held"``, ``"holder_id_in_use"`` or ``"unknown"``.
        now_held_by: the holder in charge now, where the store said so.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        epoch: int = 0,
        reason: str = "unknown",
        now_held_by: str | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.epoch = epoch
        self.reason = reason
        self.now_held_by = now_held_by


class FencedWrite(LeaseLost):
    """A write under an ended lease or an older epoch was refused and changed nothing."""


class ReaderDisplaced(LeaseLost):
    """A reader with a higher epoch has taken the partition; ``epoch`` is the one that was shown.

    ``now_held_by`` names the reader that has it now.
    """


class CheckpointBehind(LeaseholdError):
    """The checkpoint lies before the one already stored; checkpoints never go back.

    In a transaction also: it is stored already, and so is what came with it.
    """


class StoreError(LeaseholdError):
    """The store is in trouble. The driver's own error is in ``__cause__``."""


class StoreUnavailable(StoreError):
    """No answer came in time. What was asked for may or may not have been done: read again."""


class ProcessExhausted(StoreUnavailable):
    """This process has no descriptor or memory left; the volumes and the store are not concerned.

    The call can be repeated. What was being written may be stored or not, as after any failure.
    """


class StoreUnusable(StoreError):
    """The store answers and cannot serve: read-only, full, damaged, or of a newer version."""


class HandlerTimeout(LeaseholdError, TimeoutError):
    """A handler took longer than ``handler_timeout`` and was cancelled."""


class PositionLost(LeaseholdError):
    """The place where a partition is to go on does not exist in it, and nobody said what to do."""


class SinkUnfit(UsageError):
    """The rows do not fit the sink, or its place cannot be one. Nothing was written."""


class SinkChanged(LeaseholdError):
    """The sink is not as its pipeline left it: made anew, restored, or written by a stranger."""


class BatchFailed(LeaseholdError):
    """A batch could not be transformed or staged; nothing of it was committed.

    Attributes:
        ranges: what it would have held, as text: ``partition[start, end)`` for each partition.
    """

    def __init__(self, message: str, *, ranges: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.ranges = ranges
