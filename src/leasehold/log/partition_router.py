"""Who owns a partition, as this process sees it: itself, another process, or nobody yet.

``deliver`` hands parcels to the owner, whoever that is. If nobody is, this process becomes it. If
the owner is dead (nobody listens at its address) or gives no sign in time (it was stopped), its
segment is recovered, which shuts it out, and the next owner goes on after it. That is always safe:
an owner that wakes up later can not add anything that anybody would see.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

from leasehold.clock import host_name, system_random
from leasehold.core.backoff import Backoff
from leasehold.errors import (
    FileHeld,
    LeaseholdError,
    LeaseLost,
    RecoveryInProgress,
    StoreUnavailable,
    TailUncertain,
    UnknownFile,
    VolumeUnusable,
)
from leasehold.files.model import FileState
from leasehold.log.owner_link import BEATS, SCHEME, OwnerRequest
from leasehold.log.partition_owner import PartitionOwner, newest, take
from leasehold.log.producer_batch import OwnerGone, OwnerMoved, OwnerSilent
from leasehold.log.retention import trim
from leasehold.log.streams import LogCounts, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.clock import Clock
    from leasehold.files.model import FileStatus
    from leasehold.files.namespace import Namespace
    from leasehold.log.owner_link import OwnerClient
    from leasehold.log.producer_batch import ProducerBatch, StoredBatch, StreamPartition
    from leasehold.log.streams import Catalog, LogCounters, StreamInfo, StreamSettings

log = logging.getLogger("leasehold.log")

_PAUSES = Backoff(base_s=0.01, max_s=0.5)
_PASSES_BY = (
    OwnerMoved,
    OwnerGone,
    OwnerSilent,
    RecoveryInProgress,
    StoreUnavailable,
    TailUncertain,
    VolumeUnusable,
    LeaseLost,
    UnknownFile,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterContext:
    """What all partitions of one log share."""

    files: Namespace
    catalog: Catalog
    clock: Clock
    counts: LogCounters
    soft_limit_s: float
    open_door: Callable[[], None]


class PartitionRouter:
    """One partition. Safe to use from several threads."""

    def __init__(
        self, partition: StreamPartition, around: RouterContext, *, created_at: str
    ) -> None:
        """Look at nothing yet. ``created_at`` tells the stream from another of its name."""
        self.partition = partition
        self.created_at = created_at
        self._around = around
        self._lock = threading.Lock()
        self._owner: PartitionOwner | None = None
        self._known: FileStatus | None = None  # the segment that another process writes
        self._from_base = 0
        self._has_recovered = False
        self._rng = system_random()
        self._closed = threading.Event()

    @property
    def owner(self) -> PartitionOwner | None:
        """This process as the owner, if it is."""
        owner = self._owner
        return owner if owner is not None and owner.alive else None

    def deliver(
        self,
        parcels: Sequence[ProducerBatch],
        *,
        durable: bool,
        courier: OwnerClient,
        until_s: float,
    ) -> tuple[StoredBatch, ...]:
        """Have parcels stored, once, by whoever is the owner; try until ``until_s``.

        Raises:
            StoreUnavailable: nobody could store them in time; the last trouble is its cause.
            FileHeld: the owner runs on another machine.
            UnknownStream: the stream was deleted; there may be another one of its name.
            UsageError: they can never be stored.
            StoreUnusable: it can not be done here.
        """
        for failures in count(1):
            try:
                return self._handed_over(parcels, durable=durable, courier=courier, until_s=until_s)
            except _PASSES_BY as error:
                if self._closed.is_set():
                    self._stream()  # closed because it was deleted?
                left_s = until_s - self._around.clock.boottime_s()
                if left_s <= 0 or self._closed.is_set():
                    raise StoreUnavailable(
                        f"{self.partition} could not be written in time; the events may be stored "
                        f"or not: {error}"
                    ) from error
                log.info("%s: %s: trying again", self.partition, error)
                self._closed.wait(min(_PAUSES.pause_s(failures, self._rng), left_s))
        raise AssertionError("unreachable")  # pragma: no cover

    def close(self) -> None:
        """Give the partition back, if it is ours, with everything stored that waits."""
        with self._lock:
            self._closed.set()
            owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()

    def _handed_over(
        self,
        parcels: Sequence[ProducerBatch],
        *,
        durable: bool,
        courier: OwnerClient,
        until_s: float,
    ) -> tuple[StoredBatch, ...]:
        owner, known = self._found(until_s)
        if owner is not None:
            answer = owner.submit(parcels, durable=durable)
            left_s = until_s - self._around.clock.boottime_s()
            if not wait((answer,), timeout=max(left_s, 0.0)).done:
                raise StoreUnavailable("the volumes did not answer in time")
            return answer.result()
        assert known is not None  # noqa: S101 - one of the two is there
        beat_s = courier.owner_timeout_s / BEATS
        request = OwnerRequest(
            partition=self.partition, parcels=parcels, durable=durable, beat_s=beat_s
        )
        try:
            stored = courier.carry(request, to=known.address, until_s=until_s)
        except (OwnerGone, OwnerSilent) as error:
            self._depose(known, error, until_s)
            raise
        except OwnerMoved:
            self._forget(known)
            raise
        self._around.counts.add(LogCounts(forwarded=len(parcels)))
        return stored

    def _found(self, until_s: float) -> tuple[PartitionOwner | None, FileStatus | None]:
        """The owner: this process, or the segment of another one. Become it if nobody is."""
        owner, known = self.owner, self._known
        if owner is not None or known is not None:
            return owner, known
        with self._lock:
            if self._closed.is_set():
                raise OwnerMoved("the log is being closed")
            if self.owner is not None or self._known is not None:
                return self.owner, self._known
            if self._owner is not None:
                self._owner.close()  # it has ended; its segment is closed or somebody else's
            settings = self._stream().settings
            last = newest(self._around.files, self.partition, from_base=self._from_base)
            if last is not None:
                self._from_base = base_of(last.path) or 0
            if last is not None and last.state is not FileState.CLOSED:
                if self._is_reachable(last):
                    self._known, self._has_recovered = last, False
                    return None, last
                self._recover(last, until_s)
            self._owner = self._become(settings)
            return self._owner, None

    def _is_reachable(self, last: FileStatus) -> bool:
        """Whether its writer may be asked; if not, the segment may be recovered at once."""
        if last.state is FileState.RECOVERING or last.holder == self._around.files.holder:
            return False
        if last.host == host_name() and last.address.startswith(SCHEME):
            return True
        if last.idle_s > self._around.soft_limit_s:
            return False
        raise FileHeld(
            f"{self.partition} is being written by {last.holder} on the machine {last.host}: "
            "producers on several machines can not share a partition without a hub; run them on "
            "one machine, or give each its own partitions",
            path=last.path,
            holder=last.holder,
            host=last.host,
            since=last.opened_at,
            epoch=last.epoch,
            retry_after_s=max(self._around.soft_limit_s - last.idle_s, 0.0),
            address=last.address,
        )

    def _stream(self) -> StreamInfo:
        return self._around.catalog.same(self.partition.stream, self.created_at)

    def _become(self, settings: StreamSettings) -> PartitionOwner:
        self._around.open_door()
        opening = take(self._around.files, self.partition, settings, from_base=self._from_base)
        self._from_base = opening.ledger.next_sequence
        self._around.counts.add(LogCounts(taken=1, recovered=int(self._has_recovered)))
        self._has_recovered = False
        log.info("%s is written here from %d on", self.partition, self._from_base)
        return PartitionOwner(
            self.partition,
            opening,
            settings,
            files=self._around.files,
            clock=self._around.clock,
            counts=self._around.counts,
            rolled=self._retire,
        )

    def _retire(self) -> None:
        """Remove what the stream no longer keeps of this partition; if not now, then next time."""
        try:
            stream = self._stream()
            if stream.settings.retain_age_s or stream.settings.retention_bytes:
                trim(
                    stream,
                    files=self._around.files,
                    catalog=self._around.catalog,
                    clock=self._around.clock,
                    execute=True,
                    partitions=(self.partition.number,),
                )
        except (LeaseholdError, OSError) as error:
            log.warning("%s: old segments could not be removed: %s", self.partition, error)

    def _depose(self, known: FileStatus, error: LeaseholdError, until_s: float) -> None:
        """Shut a dead or silent owner out, unless somebody has done so already."""
        with self._lock:
            if self._known is known:
                self._known = None
                log.warning("%s: %s: recovering %s", self.partition, error, known.path)
                now = self._around.files.status(known.path)
                if now.epoch == known.epoch and now.state is FileState.OPEN:
                    self._recover(known, until_s)

    def _recover(self, last: FileStatus, until_s: float) -> None:
        left_s = max(until_s - self._around.clock.boottime_s(), 0.0)
        self._around.files.recover(last.path, timeout=timedelta(seconds=left_s))
        self._has_recovered = True

    def _forget(self, known: FileStatus) -> None:
        with self._lock:
            if self._known is known:
                self._known = None
